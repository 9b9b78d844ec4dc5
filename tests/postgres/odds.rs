//! Calls at odds: futures that are dropped, ids that collide, rows that are held, and what nobody can give back.

use std::time::{Duration, Instant};

use sqlx::PgPool;
use tollgate::{Error, HOUR, Limit, Limiter, Receipt, SECOND, Source, Sweeper};

use crate::cancellation::{Cut, Cuts};
use crate::gate::stage::{EVER, one_connection, patient, pool, soon};
use crate::proxy::Proxy;
use crate::world::World;

const BUCKET: Limit = Limit::token_bucket("bucket", 1_000, EVER);

async fn look(pool: &PgPool) -> (Option<i64>, Vec<(bool, Option<i32>)>) {
    let value = sqlx::query_scalar(
        "select value / 1000000 from tollgate.durable where name = 'bucket' and key = 'k' and value < 1000000000",
    )
    .fetch_optional(pool)
    .await
    .unwrap();
    let calls = sqlx::query_as("select used, case when lapses_at is null then null else 1 end from tollgate.calls")
        .fetch_all(pool)
        .await
        .unwrap();
    (value, calls)
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
