//! The clock goes back behind a row. Time stands still for the row, and a refusal names the wait by the clock as it is.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::postgres::PgPoolOptions;
use tollgate::{Decision, Denied, Gate, HOUR, Limit, MINUTE, OnFailure, SECOND, Source};

use crate::gate::stage::{patient, soon};
use crate::world::{World, limiter};

const DRIP: Limit = Limit::token_bucket("drip", 10, MINUTE).unbounded_reservations();
const SPREAD: Limit = Limit::token_bucket("spread", 12, MINUTE).shards(4).ephemeral();

/// Both limits were emptied for a key while the clock was an hour ahead, and DRIP has half of it left for another key.
async fn emptied() -> World {
    let world = World::with_clock().await;
    world.set_ahead("1 hour").await;
    let gate = patient(&world.pool).build();
    let requests = [DRIP.key("k").cost(10), SPREAD.key("k").cost(12), DRIP.key("half").cost(5)];
    for request in requests {
        gate.consume(request).await.unwrap().granted().unwrap();
    }
    world.set_ahead("0").await;
    world
}

/// The clock as it is, and as it was when the rows were written.
async fn clocks(world: &World) -> [DateTime<Utc>; 2] {
    let sql = "select clock_timestamp(), max(ts) from tollgate.durable where key = 'k'";
    let (now, row): (DateTime<Utc>, DateTime<Utc>) = sqlx::query_as(sql).fetch_one(&world.pool).await.unwrap();
    [now, row]
}

#[tokio::test]
async fn who_is_refused_is_told_a_wait_that_is_true_by_the_clock_as_it_is() {
    let world = emptied().await;
    let gate = patient(&world.pool).build();
    let remembering = patient(&world.pool).remember_refusals(HOUR).build();
    let [before, ahead] = clocks(&world).await;
    let mut tx = world.begin().await;
    let denied: [Denied; 7] = [
        limiter().consume(&mut tx, DRIP.key("k")).await.unwrap().denied().unwrap(),
        limiter().check(&mut tx, DRIP.key("k")).await.unwrap().denied().unwrap(),
        gate.consume(DRIP.key("k")).await.unwrap().denied().unwrap(),
        soon(gate.wait(DRIP.key("k"), 10 * MINUTE)).await.unwrap().denied().unwrap(),
        gate.consume([DRIP.key("half"), DRIP.key("k")]).await.unwrap().denied().unwrap(),
        remembering.consume(DRIP.key("k")).await.unwrap().denied().unwrap(),
        remembering.consume(DRIP.key("k")).await.unwrap().denied().unwrap(),
    ];
    let [after, _] = clocks(&world).await;
    assert_eq!((denied[5].source, denied[6].source), (Source::Database, Source::Memory));
    for denied in &denied {
        assert_eq!((denied.decided_at, denied.retry_at), (ahead, Some(ahead + 6 * SECOND)));
        let wait = denied.retry_after().unwrap();
        assert!((before..=after).contains(&denied.observed_at), "{denied:?}");
        assert_eq!(wait, (denied.retry_at.unwrap() - denied.observed_at).to_std().unwrap());
    }
    for denied in [
        limiter().consume(&mut tx, SPREAD.key("k")).await.unwrap().denied().unwrap(),
        gate.consume(SPREAD.key("k")).await.unwrap().denied().unwrap(),
    ] {
        assert!(denied.retry_after().unwrap() > 30 * MINUTE, "{denied:?}");
    }
}

#[tokio::test]
async fn a_reservation_waits_for_the_clock_or_is_ready_at_once() {
    let world = emptied().await;
    let gate = patient(&world.pool).build();
    let [_, ahead] = clocks(&world).await;
    let ready = gate.reserve(DRIP.key("half")).await.unwrap().granted().unwrap();
    assert_eq!((ready.is_ready(), ready.wait(), ready.ready_at), (true, Duration::ZERO, ready.observed_at));
    let booked = gate.reserve(DRIP.key("k")).await.unwrap().granted().unwrap();
    assert_eq!((booked.is_ready(), booked.decided_at, booked.ready_at), (false, ahead, ahead + 6 * SECOND));
    assert_eq!(booked.wait(), (booked.ready_at - booked.observed_at).to_std().unwrap());
    assert!(booked.observed_at < ahead);
    // Both can be given back as long as time stands still.
    gate.cancel(ready).await.unwrap();
    gate.cancel(booked).await.unwrap();
    assert_eq!(gate.balance(DRIP.key("k")).await.unwrap().debt().micros(), 0);
}

/// The process's own clock does not go back.
#[tokio::test]
async fn an_answer_without_the_database_is_of_one_instant() {
    let nobody = PgPoolOptions::new().connect_lazy("postgres://nobody@127.0.0.1:1/none").unwrap();
    for policy in [OnFailure::Open, OnFailure::Local(0.1)] {
        let gate = Gate::builder(nobody.clone()).acquire_timeout(Duration::from_millis(1)).on_failure(policy).build();
        let grant = gate.consume(DRIP.key("k")).await.unwrap().granted().unwrap();
        assert_eq!((grant.source, grant.observed_at), (Source::Degraded, grant.decided_at));
        if let Decision::Denied(denied) = gate.consume(DRIP.key("k")).await.unwrap() {
            assert_eq!((denied.source, denied.observed_at), (Source::Degraded, denied.decided_at));
        }
    }
}
