//! Calls at odds: futures that are dropped, ids that collide, rows that are held, and what nobody can give back.

use std::time::Duration;

use sqlx::PgPool;
use tokio::task::JoinSet;
use tollgate::{Error, HOUR, Limit, Limiter, Receipt, Source, Sweeper};

use crate::cancellation::{Cut, Cuts};
use crate::gate::stage::{EVER, one_connection, patient, pool, soon};
use crate::proxy::Proxy;
use crate::world::World;

const BUCKET: Limit = Limit::token_bucket("bucket", 1_000, EVER);

/// What the row holds, and which calls are stored, by whether each is used.
async fn look(pool: &PgPool) -> (Option<i64>, Vec<bool>) {
    let value = "select value from tollgate.durable where name = 'bucket' and key = 'k' and value < 1000000000";
    let value = sqlx::query_scalar(value).fetch_optional(pool).await.unwrap();
    (value, sqlx::query_scalar("select used from tollgate.calls").fetch_all(pool).await.unwrap())
}

/// What is given back and the receipt, what is charged and the id: both or neither, wherever a future is dropped.
#[tokio::test]
async fn a_call_dropped_anywhere_and_committed_counts_with_its_id_or_not_at_all() {
    let world = World::new().await;
    let proxy = Proxy::new(&world.url());
    let wire = one_connection(proxy.options()).await;
    let mut bad = Vec::new();
    for what in ["settle", "settle_once", "consume_once", "credit_once"] {
        let mut cuts = Cuts::default();
        loop {
            world.sql("truncate tollgate.ephemeral, tollgate.durable, tollgate.calls").await;
            let mut tx = world.pool.begin().await.unwrap();
            let limiter = Limiter::new();
            let ask = BUCKET.key("k").cost(100);
            let grant = match what {
                "settle" => Some(limiter.consume(&mut tx, ask.lapses_after(HOUR)).await.unwrap().granted().unwrap()),
                "settle_once" => {
                    Some(limiter.consume(&mut tx, ask.once("a").lapses_after(HOUR)).await.unwrap().granted().unwrap())
                }
                _ => {
                    limiter.debit(&mut tx, ask).await.unwrap();
                    None
                }
            };
            tx.commit().await.unwrap();
            let before = look(&world.pool).await;
            let mut tx = wire.begin().await.unwrap();
            let call = async {
                match what {
                    "consume_once" => drop(limiter.consume(&mut tx, BUCKET.key("k").cost(50).once("b")).await.unwrap()),
                    "credit_once" => drop(limiter.credit(&mut tx, BUCKET.key("k").cost(50).once("b")).await.unwrap()),
                    _ => drop(limiter.settle(&mut tx, Receipt::from(grant.unwrap()), 10).await.unwrap()),
                }
            };
            let done = Cut::after(cuts.waits, call).await;
            tx.commit().await.unwrap();
            let after = look(&world.pool).await;
            let rows_moved = before.0 != after.0;
            let calls_moved = before.1 != after.1;
            if rows_moved != calls_moved {
                bad.push(format!("{what} cut at {}: {before:?} -> {after:?}", cuts.waits));
            }
            if !cuts.go_on(done.is_some()) {
                break;
            }
        }
    }
    assert!(bad.is_empty(), "{bad:#?}");
}

/// A full bucket takes no credit, so the two collide in the id alone.
#[tokio::test]
async fn who_loses_the_race_for_an_id_that_changes_no_row_is_told_so() {
    let world = World::new().await;
    let gate = patient(&pool(&world.url(), 3).await).build();
    let ask = || BUCKET.key("k").cost(5).once("payment");
    let mut tx = world.begin().await;
    Limiter::new().credit(&mut tx, ask()).await.unwrap();
    let second = tokio::spawn({
        let mut tx = world.begin().await;
        async move {
            let answer = Limiter::new().credit(&mut tx, ask()).await;
            drop(tx);
            answer
        }
    });
    let by_gate = tokio::spawn({
        let gate = gate.clone();
        async move { gate.credit(ask()).await }
    });
    world.until_anyone_is_blocked().await;
    tx.commit().await.unwrap();
    let by_gate = soon(by_gate).await.unwrap();
    let second = soon(second).await.unwrap();
    assert!(
        by_gate.is_ok() && second.as_ref().is_ok_and(|b| b.source == Source::Repeated)
            || second.as_ref().is_err_and(Error::is_retryable)
    );
}

/// Each of the two takes from a row of its own, so they collide in the id alone.
#[tokio::test]
async fn an_id_in_an_open_transaction_holds_up_nobody_else() {
    let world = World::new().await;
    let sharded = Limit::token_bucket("sharded", 800, EVER).shards(8);
    let gate = patient(&pool(&world.url(), 1).await).build();
    let rows = "insert into tollgate.durable (part, name, key, shard, value, ts, full_at)
                select 0, 'sharded', 'k', n, 100000000, now(), now() from generate_series(0, 7) n";
    world.sql(rows).await;
    for key in 0..4 {
        gate.consume(BUCKET.key(key)).await.unwrap().granted().unwrap();
    }
    for round in 0..3 {
        let mut tx = world.begin().await;
        Limiter::new().consume(&mut tx, sharded.key("k").once(round)).await.unwrap().granted().unwrap();
        let mut strangers = JoinSet::new();
        let mut repeated = None;
        for key in [0, 1, 4, 2, 3] {
            let gate = gate.clone();
            if key < 4 {
                strangers.spawn(async move { gate.consume(BUCKET.key(key)).await.unwrap().is_granted() });
            } else {
                let asked = sharded.key("k").once(round);
                repeated = Some(tokio::spawn(async move { gate.consume(asked).await.unwrap().granted().unwrap() }));
            }
        }
        // The statement timeout of this gate is a minute.
        assert_eq!(soon(strangers.join_all()).await, [true; 4]);
        tx.commit().await.unwrap();
        assert_eq!(soon(repeated.unwrap()).await.unwrap().source, Source::Repeated);
    }
}

/// As one that a later release has written.
#[tokio::test]
async fn a_call_that_cannot_be_read_leaves_the_others_alone() {
    let world = World::new().await;
    let mut tx = world.begin().await;
    for key in 0..3 {
        Limiter::new()
            .consume(&mut tx, BUCKET.key(key).lapses_after(Duration::from_micros(1)))
            .await
            .unwrap()
            .granted()
            .unwrap();
    }
    tx.commit().await.unwrap();
    world.sql("update tollgate.calls set charges = '[{\"kind\": \"later\"}]' where key = '1'").await;
    let reaped = Sweeper::new().reap(&world.pool).await;
    assert_eq!(reaped.map_err(|error| error.to_string()), Ok(2));
}

/// More than a look finds, all of one instant.
#[tokio::test]
async fn many_calls_that_cannot_be_given_back_leave_the_others_alone() {
    let world = World::new().await;
    let wallet = Limit::wallet("full");
    let mut tx = world.begin().await;
    Limiter::new().credit(&mut tx, wallet.global().cost(500)).await.unwrap();
    for _ in 0..70 {
        Limiter::new()
            .consume(&mut tx, wallet.global().cost(5).lapses_after(Duration::from_micros(1)))
            .await
            .unwrap()
            .granted()
            .unwrap();
    }
    tx.commit().await.unwrap();
    world.sql(&format!("update tollgate.durable set value = {} where name = 'full'", i64::MAX)).await;
    world.sql("update tollgate.calls set lapses_at = '2020-01-01'").await;
    world.sql("vacuum full tollgate.calls").await;
    let mut tx = world.begin().await;
    Limiter::new()
        .consume(&mut tx, BUCKET.key("k").lapses_after(Duration::from_micros(1)))
        .await
        .unwrap()
        .granted()
        .unwrap();
    tx.commit().await.unwrap();
    world.sql("update tollgate.calls set lapses_at = '2020-01-01' where name = 'bucket'").await;
    assert_eq!(Sweeper::new().reap(&world.pool).await.unwrap(), 1);
}

/// The row of the organisation comes before that of the user, which somebody has locked.
#[tokio::test]
async fn a_locked_row_holds_up_no_other_lapse() {
    let world = World::new().await;
    let [org, user] = [Limit::token_bucket("aorg", 1_000, EVER), Limit::token_bucket("zuser", 1_000, EVER)];
    let mut tx = world.begin().await;
    for key in 0..3 {
        for _ in 0..2 {
            Limiter::new()
                .consume_all(&mut tx, [org.global(), user.key(key).lapses_after(Duration::from_micros(1))])
                .await
                .unwrap()
                .granted()
                .unwrap();
        }
    }
    tx.commit().await.unwrap();
    let mut held = world.begin().await;
    Limiter::new().consume(&mut held, user.key(1)).await.unwrap().granted().unwrap();
    assert_eq!(soon(Sweeper::new().reap(&world.pool)).await.unwrap(), 4, "those of the others");
    held.commit().await.unwrap();
    assert_eq!(Sweeper::new().reap(&world.pool).await.unwrap(), 2);
}
