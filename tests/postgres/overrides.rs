//! Overrides that operators set over limits: set in transactions, read again and again, and followed at once.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::{Connection, PgConnection};
use tollgate::{
    DAY, Decision, Denied, Error, Gate, HOUR, Key, Limit, MINUTE, NewOverride, OnFailure, Overrides, Reason, SECOND,
    Source, Tokens,
};

mod clocks;
mod faults;
mod labels;
mod nodes;
mod noise;
mod pauses;
mod reports;
mod slots;
mod slow_down;
mod slowed_rate;
mod unreadable;

use crate::gate::stage::EVER;
use crate::world::{World, limiter, patient, second, soon, sweeper};

const TEN: Limit = Limit::token_bucket("ten", 10, EVER);

/// Sets an override, in the role of the operator on call.
async fn say(world: &World, said: NewOverride) {
    said.reason("a test").set(&mut on_call(world).await).await.unwrap();
}

async fn lift(world: &World, limit: &Limit, key: Option<&str>) -> bool {
    let key = key.map(|key| Key::new(key).unwrap());
    NewOverride::remove(&mut on_call(world).await, limit.name(), key.as_ref(), "").await.unwrap()
}

async fn on_call(world: &World) -> PgConnection {
    world.connect_as(crate::world::ON_CALL).await
}

/// The database's clock.
async fn now(world: &World) -> DateTime<Utc> {
    sqlx::query_scalar("select clock_timestamp()").fetch_one(&world.pool).await.unwrap()
}

/// Asks until the answer is as wanted.
async fn until<T>(mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    soon(Box::pin(async {
        loop {
            if let Some(told) = ask().await {
                return told;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }))
    .await
}

fn refused(decision: Decision) -> Option<Denied> {
    decision.denied()
}

#[tokio::test]
async fn a_deny_bites_within_a_poll_and_ends_when_it_is_lifted() {
    let world = World::new().await;
    let overrides = Overrides::watch(world.pool.clone()).await.unwrap();
    let gate = patient(&world.pool).overrides(&overrides).build();
    let limiter = limiter().overrides(&overrides);
    assert!(gate.consume(TEN.key("ada")).await.unwrap().is_granted());

    // Everybody, by one row.
    say(&world, NewOverride::deny(&TEN).lasting(DAY)).await;
    let denied = until(async || refused(gate.check(TEN.key("ada")).await.unwrap())).await;
    assert_eq!((denied.reason, denied.source, denied.remaining), (Reason::Override, Source::Override, Tokens::ZERO));
    assert!(denied.retry_after().is_some_and(|wait| (23 * HOUR..=DAY).contains(&wait)), "{denied:?}");
    let mut tx = world.begin().await;
    for denied in [
        refused(limiter.consume(&mut tx, TEN.key("bob")).await.unwrap()),
        limiter.reserve(&mut tx, TEN.key("bob")).await.unwrap().denied(),
        refused(limiter.check(&mut tx, TEN.global()).await.unwrap()),
        refused(gate.check(TEN.key("bob")).await.unwrap()),
        gate.reserve(TEN.key("bob")).await.unwrap().denied(),
        refused(gate.wait(TEN.key("bob"), MINUTE).await.unwrap()),
        gate.acquire(TEN.key("bob")).await.unwrap().denied(),
    ] {
        assert_eq!(denied.unwrap().reason, Reason::Override);
    }
    let each = limiter.consume_each(&mut tx, [[TEN.key("bob")], [TEN.key("x".repeat(600))]]).await.unwrap();
    assert!(matches!(&each[..], [Ok(Decision::Denied(_)), Err(Error::Key { .. })]), "{each:?}");
    // The balances stay, and can be changed.
    assert_eq!(gate.credit(TEN.key("ada")).await.unwrap().remaining, Tokens::new(10));
    assert_eq!(limiter.balance(&mut tx, TEN.key("bob")).await.unwrap().remaining, Tokens::new(10));
    drop(tx);

    assert!(lift(&world, &TEN, None).await);
    assert!(!lift(&world, &TEN, None).await);
    until(async || gate.consume(TEN.key("ada")).await.unwrap().granted().ok()).await;
}

/// The operator may roll an override back; where it commits, the override is set at once.
#[tokio::test]
async fn an_override_has_the_fate_of_its_transaction() {
    let world = World::new().await;
    let mut conn = on_call(&world).await;
    let mut tx = conn.begin().await.unwrap();
    NewOverride::deny(&TEN).reason("never").set(&mut tx).await.unwrap();
    tx.rollback().await.unwrap();
    assert!(Overrides::read(&mut conn).await.unwrap().all().is_empty());
    let until = second(1e9);
    let friend = NewOverride::unlimited(&TEN).key(("a", "b|c")).until(until).reason("a friend").by("ada");
    friend.set(&mut conn).await.unwrap();
    let all = Overrides::read(&mut conn).await.unwrap().all();
    assert_eq!(all.len(), 1);
    assert_eq!((&*all[0].reason, &*all[0].set_by), ("a friend", "ada"));
    assert_eq!(all[0].key, Some(Key::new(("a", "b|c")).unwrap()));
    assert_eq!(all[0].ends_at.map(|at| at.timestamp_micros()), Some(until.timestamp_micros()));
}

/// An unlimited call takes nothing, and its receipt gives nothing back.
#[tokio::test]
async fn what_is_unlimited_leaves_the_rows_as_they_are() {
    let world = World::new().await;
    let other = Limit::token_bucket("other", 10, EVER);
    say(&world, NewOverride::unlimited(&TEN).key("ada")).await;
    let overrides = Overrides::read(&mut world.connect().await).await.unwrap();
    let gate = patient(&world.pool).overrides(&overrides).build();
    let limiter = limiter().overrides(&overrides);
    let mut tx = world.begin().await;
    let grant = limiter.consume(&mut tx, TEN.key("ada").cost(1_000)).await.unwrap().granted().unwrap();
    assert_eq!((grant.source, grant.remaining), (Source::Override, Tokens::MAX));
    limiter.settle(&mut tx, grant, 2_000).await.unwrap();
    let grant = gate.consume(TEN.key("ada").cost(1_000)).await.unwrap().granted().unwrap();
    assert_eq!(gate.settle(grant, 0).await.unwrap().charges[0].cost, Tokens::ZERO);
    tx.commit().await.unwrap();
    assert_eq!(world.rows().await, 0);
    // One that is stored is known by its id, and is a repeat the second time.
    for source in [Source::Override, Source::Repeated] {
        let request = || TEN.key("ada").cost(1_000).once("job 1");
        assert_eq!(gate.consume(request()).await.unwrap().granted().unwrap().source, source);
    }
    let mut tx = world.begin().await;
    for source in [Source::Override, Source::Repeated] {
        let request = TEN.key("ada").cost(1_000).once("job 2");
        assert_eq!(limiter.consume(&mut tx, request).await.unwrap().granted().unwrap().source, source);
    }
    // Beside another that is charged.
    let both = [TEN.key("ada").cost(1_000), other.key("ada").cost(4)];
    let grant = limiter.consume(&mut tx, both.clone()).await.unwrap().granted().unwrap();
    assert_eq!((grant.source, grant.remaining), (Source::Database, Tokens::new(6)));
    limiter.settle_each(&mut tx, grant, &[Tokens::new(9), Tokens::new(2)]).await.unwrap();
    assert_eq!(limiter.balance(&mut tx, other.key("ada")).await.unwrap().remaining, Tokens::new(8));
    tx.commit().await.unwrap();
    let grant = gate.consume(both).await.unwrap().granted().unwrap();
    gate.settle(grant, 1).await.unwrap();
    assert_eq!(gate.balance(other.key("ada")).await.unwrap().remaining, Tokens::new(7));
    assert_eq!(gate.balance(TEN.key("ada")).await.unwrap().remaining, Tokens::new(10));
    // The larger numbers count for no other key.
    assert!(matches!(gate.consume(TEN.key("bob").cost(11)).await, Err(Error::CostExceedsCapacity { .. })));
}

/// A retry of a call that was granted before a deny is answered as a repeat. Else its work would be lost, though it was
/// charged.
#[tokio::test]
async fn a_repeat_is_a_repeat_under_a_deny_and_anything_else_is_denied() {
    let world = World::new().await;
    let plain = patient(&world.pool).build();
    let grant = plain.consume(TEN.key("ada").once("job")).await.unwrap().granted().unwrap();
    say(&world, NewOverride::deny(&TEN)).await;
    let overrides = Overrides::read(&mut world.connect().await).await.unwrap();
    let gate = patient(&world.pool).overrides(&overrides).build();
    let repeated = gate.consume(TEN.key("ada").once("job")).await.unwrap().granted().unwrap();
    assert_eq!((repeated.source, &repeated.receipt), (Source::Repeated, &grant.receipt));
    let denied = gate.consume(TEN.key("ada").once("other job")).await.unwrap().denied().unwrap();
    assert_eq!((denied.reason, denied.retry_at), (Reason::Override, None));
    assert!(gate.settle(grant, 0).await.is_ok());
}

#[tokio::test]
async fn raised_numbers_pass_by_what_a_gate_remembers() {
    let world = World::new().await;
    let overrides = Overrides::watch(world.pool.clone()).await.unwrap();
    let gate = patient(&world.pool).remember_refusals(HOUR).overrides(&overrides).build();
    gate.consume(TEN.key("ada").cost(10)).await.unwrap().granted().unwrap();
    assert_eq!(gate.consume(TEN.key("ada")).await.unwrap().denied().unwrap().source, Source::Database);
    assert_eq!(gate.consume(TEN.key("ada")).await.unwrap().denied().unwrap().source, Source::Memory);
    // A token each microsecond.
    say(&world, NewOverride::numbers(&Limit::token_bucket("ten", 1_000_000, SECOND)).key("ada")).await;
    let grant = until(async || gate.consume(TEN.key("ada")).await.unwrap().granted().ok()).await;
    assert!(grant.standings[0].overridden);
    assert!(gate.consume(TEN.key("ada").cost(500_000)).await.is_ok(), "it is asked by the new numbers");
    // And back: the balance is cut to the capacity of the definition.
    lift(&world, &TEN, Some("ada")).await;
    until(async || (gate.balance(TEN.key("ada")).await.unwrap().remaining <= Tokens::new(10)).then_some(())).await;
}

#[tokio::test]
async fn a_repeat_is_answered_as_before_under_numbers_that_grant_it_no_more() {
    let world = World::new().await;
    let ask = |key| TEN.key(key).cost(8).once("job");
    let first = patient(&world.pool).build().consume(ask("ada")).await.unwrap().granted().unwrap();
    say(&world, NewOverride::numbers(&Limit::token_bucket("ten", 5, EVER))).await;
    let overrides = Overrides::read(&mut world.connect().await).await.unwrap();
    let (gate, limiter) = (patient(&world.pool).overrides(&overrides).build(), limiter().overrides(&overrides));
    let mut tx = world.begin().await;
    for again in [gate.consume(ask("ada")).await, limiter.consume(&mut tx, ask("ada")).await] {
        let again = again.unwrap().granted().unwrap();
        assert_eq!((again.source, again.amount), (Source::Repeated, first.amount));
        assert_eq!(again.receipt.charges, first.receipt.charges);
    }
    // A cost that is above the capacity now and was never granted can never be, and leaves no row.
    for fault in [gate.consume(ask("bob")).await, limiter.consume(&mut tx, ask("bob")).await] {
        assert!(matches!(fault, Err(Error::CostExceedsCapacity { max, .. }) if max == Tokens::new(5)));
    }
    tx.commit().await.unwrap();
    assert_eq!(world.rows().await, 1);
}

/// Tokens in memory were taken by other numbers: a deny and lowered numbers drop them, and no more are taken.
#[tokio::test]
async fn what_lies_in_memory_is_dropped_where_something_is_said() {
    let hot = Limit::stepped_bucket("hot", 99_999, DAY).capacity(100_000);
    let fewer = Limit::stepped_bucket("hot", 999, DAY).capacity(1_000);
    let world = World::new().await;
    let overrides = Overrides::watch(world.pool.clone()).await.unwrap();
    let gate = patient(&world.pool).prefetch(HOUR).overrides(&overrides).build();
    for (key, said) in [("denied", NewOverride::deny(&hot)), ("lowered", NewOverride::numbers(&fewer))] {
        let ask = async || gate.consume(hot.key(key)).await.unwrap();
        while gate.prefetched(&hot.key(key)) < Tokens::new(50) {
            ask().await.granted().unwrap();
        }
        say(&world, said.key(key)).await;
        until(async || overrides.all().iter().any(|said| said.key == Key::new(key).ok()).then_some(())).await;
        let denied = ask().await.denied();
        assert_eq!(denied.map(|denied| denied.reason), (key == "denied").then_some(Reason::Override));
        assert_eq!(gate.prefetched(&hot.key(key)), Tokens::ZERO, "{key}");
        for _ in 0..100 {
            let asked = ask().await.granted();
            assert!(asked.is_ok_and(|grant| grant.source == Source::Database) || key == "denied");
        }
        assert_eq!(gate.prefetched(&hot.key(key)), Tokens::ZERO, "{key}");
    }
}

/// An operator's deny is for outages, too, and ends when it was to end.
#[tokio::test]
async fn while_the_database_is_away_the_last_map_denies_whatever_the_policy() {
    let world = World::new().await;
    say(&world, NewOverride::deny(&TEN).key("ada").lasting(DAY)).await;
    let overrides = Overrides::watch(world.pool.clone()).await.unwrap();
    let away = || {
        let nowhere = sqlx::postgres::PgPoolOptions::new().acquire_timeout(Duration::from_millis(50));
        let nowhere = nowhere.connect_lazy("postgres://nobody@127.0.0.1:9/nowhere").unwrap();
        Gate::builder(nowhere).acquire_timeout(Duration::from_millis(50)).overrides(&overrides)
    };
    for policy in [OnFailure::Open, OnFailure::Local(1.0), OnFailure::Closed] {
        let gate = away().on_failure(policy).build();
        let denied = gate.consume(TEN.key("ada")).await.unwrap().denied().unwrap();
        assert_eq!(denied.reason, Reason::Override, "{policy:?}");
        // Whether it is a repeat, nobody can tell.
        let once = gate.consume(TEN.key("ada").once("job")).await;
        match policy {
            OnFailure::Closed => assert!(once.is_err()),
            _ => assert_eq!(once.unwrap().denied().unwrap().reason, Reason::Override, "{policy:?}"),
        }
        let bob = gate.consume(TEN.key("bob")).await;
        assert_eq!(bob.is_ok_and(|decision| decision.is_granted()), policy != OnFailure::Closed, "{policy:?}");
    }
    // Its pool ends, and the overrides that it has read stay.
    world.pool.close().await;
    until(async || (overrides.age() > 2 * SECOND).then_some(())).await;
    let gate = away().on_failure(OnFailure::Open).build();
    assert!(!gate.consume(TEN.key("ada")).await.unwrap().is_granted());
    // The clock of this gate is past the end of the override.
    let later = away().on_failure(OnFailure::Open).clock(|| second(1e9)).build();
    assert!(later.consume(TEN.key("ada")).await.unwrap().is_granted());
}

/// Other numbers that begin and end change neither the instant at which a row goes, nor the balance of one that went.
#[tokio::test]
async fn a_sweep_is_seen_by_nobody_whatever_numbers_begin_and_end() {
    let limit = Limit::token_bucket("debts", 10, SECOND).max_reserved(1_000);
    let slow = Limit::token_bucket("debts", 1, HOUR).capacity(100).max_reserved(1_000);
    for swept in [false, true] {
        let world = World::new().await;
        let mut tx = world.begin().await;
        limiter().at(second(0.0)).reserve(&mut tx, limit.key("ada").cost(500)).await.unwrap().granted().unwrap();
        tx.commit().await.unwrap();
        // Repaid within a minute by the definition, and by the other numbers in 20 days.
        say(&world, NewOverride::numbers(&slow).key("ada").from(second(1.0))).await;
        let overrides = Overrides::read(&mut world.connect().await).await.unwrap();
        let mut tx = world.begin().await;
        let limiter = limiter().overrides(&overrides);
        let owes = limiter.clone().at(second(49.0)).balance(&mut tx, limit.key("ada")).await.unwrap();
        assert_eq!((owes.remaining, owes.used), (Tokens::from_micros(-399_986_389), Tokens::from_micros(499_986_389)));
        tx.commit().await.unwrap();
        let at = |seconds| sweeper().margin(Duration::ZERO).at(second(seconds));
        assert_eq!(at(49.999_999).sweep(&world.pool).await.unwrap().rows(), 0);
        assert_eq!(if swept { at(50.0).sweep(&world.pool).await.unwrap().rows() } else { 1 }, 1);
        let mut tx = world.begin().await;
        let full = limiter.at(second(50.0)).balance(&mut tx, limit.key("ada")).await.unwrap();
        assert_eq!((full.remaining, full.used), (Tokens::new(100), Tokens::ZERO), "swept: {swept}");
        tx.commit().await.unwrap();
        assert!(lift(&world, &limit, Some("ada")).await);
    }
}

/// Larger numbers count at once, also for a key that has used all; their end takes the additional tokens back.
#[tokio::test]
async fn larger_numbers_count_at_once_and_their_end_takes_back_what_they_gave() {
    let world = World::new().await;
    let kinds: [fn(u64) -> Limit; 4] = [
        |n| Limit::fixed_window("plan", n, EVER).start(Duration::ZERO),
        |n| Limit::token_bucket("plan", n, EVER),
        |n| Limit::stepped_bucket("plan", n, EVER),
        |n| Limit::sliding_window("plan", n, EVER),
    ];
    for kind in kinds {
        let (own, larger) = (kind(10), kind(1_000));
        let mut tx = world.begin().await;
        limiter().at(second(0.0)).consume(&mut tx, own.key("ada").cost(10)).await.unwrap().granted().unwrap();
        assert!(!limiter().at(second(0.0)).consume(&mut tx, own.key("ada")).await.unwrap().is_granted());
        tx.commit().await.unwrap();
        say(&world, NewOverride::numbers(&larger).key("ada").from(second(0.0))).await;
        let overrides = Overrides::read(&mut world.connect().await).await.unwrap();
        let mut tx = world.begin().await;
        let raised = limiter().overrides(&overrides).at(second(1.0));
        let grant = raised.consume(&mut tx, own.key("ada").cost(40)).await.unwrap().granted().unwrap();
        assert_eq!(grant.remaining, Tokens::new(950), "{}", own.spec().kind);
        let after = limiter().at(second(1.0)).balance(&mut tx, own.key("ada")).await.unwrap();
        assert_eq!(
            (after.remaining, after.used),
            (Tokens::from_micros(-40_000_000), Tokens::new(50)),
            "{}",
            own.spec().kind
        );
        limiter().reset(&mut tx, own.key("ada")).await.unwrap();
        tx.commit().await.unwrap();
        assert!(lift(&world, &own, Some("ada")).await);
    }
}
