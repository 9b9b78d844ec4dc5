//! A table is rewritten between a read without a lock and the write that goes by it. `vacuum full` moves rows, and
//! keeps the transactions that wrote them: where a row was, another of the same transaction may lie.

use std::pin::pin;

use sqlx::PgPool;
use tokio::select;
use tollgate::{Limit, Tokens};

use crate::gate::stage::{EVER, one_connection, patient, soon};
use crate::proxy::Proxy;
use crate::world::{World, is_on_citus, sweeper};

const HUNDRED: Limit = Limit::token_bucket("hundred", 100, EVER);

/// Rows of the keys `x` and `y` which one transaction has written, and which a rewrite moves up by one place each.
async fn use_keys(world: &World, pool: &PgPool, change: &str) {
    let gate = patient(pool).build();
    for (key, cost) in [("first", 1), ("x", 1), ("y", 90)] {
        gate.consume(HUNDRED.key(key).cost(cost)).await.unwrap().granted().unwrap();
    }
    world.sql(&format!("update tollgate.durable set {change}")).await;
    world.sql("vacuum full tollgate.durable").await;
    world.sql("delete from tollgate.durable where key = 'first'").await;
}

#[tokio::test]
async fn a_gate_writes_no_row_in_the_place_of_another() {
    if is_on_citus() {
        return;
    }
    let world = World::new().await;
    let proxy = Proxy::new(&world.url());
    let pool = one_connection(proxy.options()).await;
    use_keys(&world, &pool, "value = value").await;
    let gate = patient(&pool).build();
    proxy.hold_after(1);
    let asked = {
        let gate = gate.clone();
        tokio::spawn(async move { gate.consume(HUNDRED.key("x")).await })
    };
    soon(proxy.until_held()).await;
    world.sql("vacuum full tollgate.durable").await;
    proxy.release();
    asked.await.unwrap().unwrap().granted().unwrap();
    for (key, left) in [("x", 98), ("y", 10)] {
        assert_eq!(gate.balance(HUNDRED.key(key)).await.unwrap().remaining, Tokens::new(left), "{key}");
    }
}

/// Between any two of its statements.
#[tokio::test]
async fn a_sweeper_deletes_no_row_in_the_place_of_another() {
    if is_on_citus() {
        return;
    }
    for statements in 0.. {
        let world = World::new().await;
        let proxy = Proxy::new(&world.url());
        let pool = one_connection(proxy.options()).await;
        // That of `x` is full since long.
        let full = "ts = ts - interval '1 day',
                    full_at = case key when 'x' then ts - interval '1 day' else full_at end";
        use_keys(&world, &pool, full).await;
        proxy.hold_after(statements);
        let mut sweeping = tokio::spawn(async move { sweeper().trusting_the_clock().sweep(&pool).await });
        let is_held = select! {
            () = proxy.until_held() => true,
            swept = &mut sweeping => { swept.unwrap().unwrap(); false }
        };
        if !is_held {
            break;
        }
        // Within a statement's transaction the rewrite waits for its end.
        let rewrite = world.sql("vacuum full tollgate.durable");
        let mut rewrite = pin!(rewrite);
        select! {
            () = &mut rewrite => proxy.release(),
            () = world.until_anyone_is_blocked() => {
                proxy.release();
                rewrite.await;
            }
        }
        sweeping.await.unwrap().unwrap();
        let left = "select count(*) from tollgate.durable where key = 'y'";
        assert_eq!(sqlx::query_scalar::<_, i64>(left).fetch_one(&world.pool).await.unwrap(), 1, "{statements}");
    }
}
