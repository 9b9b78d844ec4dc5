//! Calls with a row of their own: charged once under an id, settled once, or back by a lapse.

mod lapses;
mod repeats;
mod settlements;
mod wallets;

use std::time::Duration;

use sqlx::{PgConnection, PgPool};
use tollgate::{Call, DAY, Error, Gate, Grant, HOUR, Limit, MINUTE, Receipt, Request, SECOND, Settlement, Source};

use crate::gate::stage::{EVER, patient, pool};
use crate::teller::both;
use crate::world::{World, limiter};

/// Ten, of which none comes back while a test runs; in either table.
fn ten() -> [Limit; 2] {
    both(&Limit::token_bucket("ten", 10, EVER))
}

/// A day's budget of an organisation, a team and a user.
const ORG: Limit = Limit::fixed_window("org", 1_000, DAY).start(Duration::ZERO);
const TEAM: Limit = Limit::sliding_window("team", 1_000, DAY);
const USER: Limit = Limit::token_bucket("user", 1_000, EVER).ephemeral();

fn levels(cost: u32) -> [Request; 3] {
    [ORG.key("acme"), TEAM.key("blue"), USER.key("ada")].map(|request| request.cost(cost))
}

/// How many calls are stored.
pub(crate) async fn stored(conn: &mut PgConnection) -> i64 {
    sqlx::query_scalar("select count(*) from tollgate.calls").persistent(false).fetch_one(conn).await.unwrap()
}

/// The whole tokens that are left, by a gate that remembers nothing.
pub(crate) async fn left(pool: &PgPool, request: Request) -> i64 {
    patient(pool).build().balance(request).await.unwrap().remaining.micros() / 1_000_000
}

/// The grant of a call in a transaction of its own.
pub(crate) async fn consume_in(pool: &PgPool, call: impl Into<Call>) -> Grant {
    let mut tx = pool.begin().await.unwrap();
    let decision = limiter().consume(&mut tx, call).await.unwrap();
    tx.commit().await.unwrap();
    decision.granted().unwrap()
}

#[tokio::test]
async fn a_plain_call_stores_nothing_and_one_with_a_lapse_one_row_whatever_it_asks() {
    let world = World::new().await;
    let gate = patient(&pool(&world.url(), 3).await).build();
    let mut conn = world.connect().await;
    gate.consume(levels(1)).await.unwrap().granted().unwrap();
    assert_eq!(stored(&mut conn).await, 0);
    // Several calls, because the first may go another way through the gate than the later ones.
    for calls in 1..=3 {
        let [org, team, user] = levels(1);
        gate.consume(Call::from([org, team, user]).lapses_after(HOUR)).await.unwrap().granted().unwrap();
        assert_eq!(stored(&mut conn).await, calls);
    }
    let [org, team, user] = levels(1);
    let grant = consume_in(&world.pool, Call::from([org, team, user]).tracked_for(HOUR)).await;
    assert_eq!(stored(&mut conn).await, 4);
    gate.settle(grant, 0).await.unwrap();
    assert_eq!(stored(&mut conn).await, 3);
}

/// Settles by a gate, or in a transaction of its own.
pub(crate) async fn settle(
    world: &World,
    gate: Option<&Gate>,
    receipt: impl Into<Receipt>,
    cost: u32,
) -> Result<Settlement, Error> {
    if let Some(gate) = gate {
        return gate.settle(receipt, cost).await;
    }
    let mut tx = world.begin().await;
    let settled = limiter().settle(&mut tx, receipt, cost).await;
    tx.commit().await.unwrap();
    settled
}

/// All rows and stored calls, as texts.
pub(crate) async fn rows_and_calls(world: &World) -> Vec<String> {
    let sql = "select r::text from tollgate.durable r union all select r::text from tollgate.ephemeral r
                union all select c::text from tollgate.calls c order by 1";
    sqlx::query_scalar(sql).fetch_all(&world.pool).await.unwrap()
}

/// A call of a limit with shards is one call, with any number of charged rows.
#[tokio::test]
async fn limits_with_shards_keep_ids_receipts_and_lapses() {
    let world = World::new().await;
    let gate = patient(&pool(&world.url(), 2).await).build();
    for limit in both(&Limit::token_bucket("sharded", 100, EVER).shards(4)) {
        let ask = |id: &str| limit.global().cost(60).once(id).lapses_after(HOUR);
        let first = gate.consume(ask("one")).await.unwrap().granted().unwrap();
        assert!(first.receipt.charges.len() > 1);
        for again in
            [gate.consume(ask("one")).await.unwrap().granted().unwrap(), consume_in(&world.pool, ask("one")).await]
        {
            assert_eq!((again.source, &again.receipt), (Source::Repeated, &first.receipt));
        }
        assert_eq!(left(&world.pool, limit.global()).await, 40);
        gate.settle(first, 10).await.unwrap();
        assert_eq!(left(&world.pool, limit.global()).await, 90);
        let alone = consume_in(&world.pool, limit.global().cost(10).once("two")).await;
        assert_eq!(alone.receipt.charges.len(), 1);
        let again = consume_in(&world.pool, limit.global().cost(10).once("two")).await;
        assert_eq!((again.source, again.receipt), (Source::Repeated, alone.receipt));
        assert_eq!(left(&world.pool, limit.global()).await, 80);
        world.sql("truncate tollgate.calls").await;
    }
}

#[tokio::test]
async fn rows_that_cannot_be_read_are_an_error_with_a_name() {
    let world = World::new().await;
    let gate = patient(&pool(&world.url(), 3).await).build();
    for limit in ten() {
        gate.consume(limit.key("torn")).await.unwrap().granted().unwrap();
        for list in ["{}", "{1,5}", "{1,9,1,5,1}", "{1,null,1}", "{7}", "{2,1,1,1}"] {
            let update = |table| format!("update tollgate.{table} set list = '{list}'");
            world.sql(&["ephemeral", "durable"].map(update).join(";")).await;
            let mut tx = world.begin().await;
            let error = limiter().consume(&mut tx, limit.key("torn")).await.unwrap_err();
            assert!(matches!(error, Error::CorruptRow { .. }), "{list}: {error:?}");
            tx.rollback().await.unwrap();
            let error = gate.consume(limit.key("torn")).await.unwrap_err();
            assert!(matches!(error, Error::CorruptRow { .. }), "{list}: {error:?}");
        }
    }
    let [limit, _] = ten();
    gate.consume(limit.key("call").once("job")).await.unwrap().granted().unwrap();
    for (column, torn) in [("charges", "[{}]"), ("charges", "3"), ("answer", "3")] {
        world.sql(&format!("update tollgate.calls set {column} = '{torn}'")).await;
        let error = gate.consume(limit.key("call").once("job")).await.unwrap_err();
        assert!(matches!(&error, Error::CorruptRow { limit, .. } if limit == "ten"), "{torn}: {error:?}");
        gate.consume(limit.key("other").once("job")).await.unwrap().granted().unwrap();
        world.sql("delete from tollgate.calls").await;
        gate.consume(limit.key("call").once("job")).await.unwrap().granted().unwrap();
    }
}

#[tokio::test]
async fn bad_ids_and_spans_are_errors_before_any_sql() {
    let world = World::new().await;
    let gate = patient(&pool(&world.url(), 1).await).build();
    world.sql("drop schema tollgate cascade").await;
    let [limit, _] = ten();
    let lease = Limit::concurrency("leases", 2, MINUTE);
    let bad = [
        limit.global().once(""),
        limit.global().once("x".repeat(256)),
        limit.global().once("nul\0"),
        limit.global().lapses_after(Duration::ZERO),
        limit.global().tracked_for(Duration::from_nanos(1_500)),
        limit.global().once_for("one", Limit::MAX_PERIOD + SECOND),
        lease.global().lapses_after(HOUR),
    ];
    for call in bad {
        let error = gate.consume(call.clone()).await.unwrap_err();
        assert!(matches!(error, Error::Call { .. }) && error.is_bad_input(), "{call:?}: {error:?}");
    }
}
