//! Calls over several rows never deadlock.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use fastrand::Rng;
use sqlx::{Connection, PgConnection};
use tokio::task::JoinSet;
use tollgate::{Call, Decision, Limit, SECOND, Tokens};

use super::{EVER, LIMITER, Sweeper, some, take};
use crate::gate::stage::soon;
use crate::judge::balances;
use crate::proxy::Proxy;
use crate::teller::run;
use crate::world::{World, part, pid};

/// Sets of rows that are there, that are not, and that come and go, some of them shards, asked in every order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_asked_together_in_any_order_never_deadlock_and_balance_to_the_token() {
    const CALLERS: u64 = 32;
    const ROUNDS: u64 = 32;
    const KEYS: usize = 4;
    let world = World::new().await;
    let limits = [
        Limit::token_bucket("a", 12, EVER),
        Limit::stepped_bucket("b", 12, EVER),
        Limit::token_bucket("c", 12, EVER).ephemeral(),
        Limit::token_bucket("d", 12, EVER).shards(4),
        Limit::fixed_window("e", 12, EVER).shards(3).ephemeral(),
    ];
    let taken: Arc<[AtomicI64; 20]> = Arc::default();
    let granted = Arc::new(AtomicU64::new(0));
    let sweeper = Sweeper::start(&world);
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        let (url, limits, taken, granted) = (world.url(), limits.clone(), taken.clone(), granted.clone());
        callers.spawn(async move {
            let (mut conn, mut dice) = (PgConnection::connect(&url).await.unwrap(), Rng::with_seed(caller));
            for round in 0..ROUNDS {
                let (rows, cost) = (some(&mut dice, 2..=6, 5 * KEYS), dice.i64(1..=3));
                let count = |sign: i64| {
                    for row in &rows {
                        taken[*row].fetch_add(sign * cost, Ordering::SeqCst);
                    }
                };
                let ask = || rows.iter().map(|row| limits[row % 5].key(row / 5).cost(cost));
                let mut tx = conn.begin().await.unwrap();
                if dice.u8(..4) == 0 {
                    run(&mut tx, "savepoint theirs").await;
                    let _ = LIMITER.consume(&mut tx, ask().collect::<Call>()).await.unwrap();
                    run(&mut tx, "rollback to savepoint theirs").await;
                }
                let Decision::Granted(grant) = LIMITER.consume(&mut tx, ask().collect::<Call>()).await.unwrap() else {
                    tx.commit().await.unwrap();
                    continue;
                };
                granted.fetch_add(1, Ordering::SeqCst);
                if dice.u8(..4) == 0 {
                    tx.rollback().await.unwrap();
                    continue;
                }
                tx.commit().await.unwrap();
                count(1);
                // All is given back until near the end, so that rows fill up, vanish and are made anew.
                if round < ROUNDS - 4 || dice.bool() {
                    if rows.iter().any(|row| limits[row % 5].shards > 1) {
                        // A credit may go to other shards than the charge was taken from.
                        let mut tx = conn.begin().await.unwrap();
                        LIMITER.settle(&mut tx, grant, 0).await.unwrap();
                        tx.commit().await.unwrap();
                        count(-1);
                        continue;
                    }
                    for request in ask() {
                        let mut tx = conn.begin().await.unwrap();
                        LIMITER.credit(&mut tx, request).await.unwrap();
                        tx.commit().await.unwrap();
                    }
                    count(-1);
                }
            }
        });
    }
    callers.join_all().await;
    assert!(sweeper.deleted() > 0, "the rows never vanished");
    sweeper.stop().await;
    assert!(granted.load(Ordering::SeqCst) > CALLERS * ROUNDS / 8);
    balances(&world, &limits, &*taken, 12).await;
}

/// Settling and cancelling lock several rows too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reserving_settling_and_cancelling_several_limits_never_deadlock() {
    let world = World::new().await;
    let limits =
        ["a", "b", "c", "d"].map(|name| Limit::token_bucket(name, 5, EVER).capacity(0).unbounded_reservations());
    let mut callers = JoinSet::new();
    for caller in 0..16 {
        let (url, limits) = (world.url(), limits.clone());
        callers.spawn(async move {
            let (mut conn, mut dice) = (PgConnection::connect(&url).await.unwrap(), Rng::with_seed(caller));
            for _ in 0..20 {
                let ask = some(&mut dice, 2..=4, 4).into_iter().map(|which| limits[which].key("k").cost(2));
                let mut tx = conn.begin().await.unwrap();
                let mut booked = LIMITER.reserve(&mut tx, ask.collect::<Call>()).await.unwrap().granted().unwrap();
                tx.commit().await.unwrap();
                // In any order: the plan sorts them.
                booked.receipt.charges.reverse();
                let mut tx = conn.begin().await.unwrap();
                let settled = if dice.bool() {
                    LIMITER.settle(&mut tx, booked, 0).await
                } else {
                    LIMITER.cancel(&mut tx, booked).await
                };
                settled.unwrap();
                tx.commit().await.unwrap();
            }
        });
    }
    callers.join_all().await;
    for limit in &limits {
        let left = world.left(limit, "k").await.unwrap();
        assert_eq!(left, Tokens::ZERO, "{}", limit.name());
    }
}

/// The first table's row looks short, so nothing there is locked; while the call waits for the second table's row,
/// tokens come back. To lock the first table's row then, holding the second's, is the wrong order.
#[tokio::test]
async fn a_set_over_both_tables_locks_no_row_of_the_second_table_before_the_first() {
    let world = World::new().await;
    let (first, second) = (Limit::token_bucket("e", 2, SECOND).ephemeral(), Limit::token_bucket("d", 1000, EVER));
    let proxy = Proxy::new(&world.url());
    let (mut slow, mut quick, mut holder) = (proxy.connect().await, world.connect().await, world.connect().await);
    let mut third = world.connect().await;
    let (slow_pid, third_pid) = (pid(&mut slow).await, pid(&mut third).await);
    let both = |cost: Tokens| [first.key("k").cost(cost), second.key("k")];
    let mut tx = slow.begin().await.unwrap();
    LIMITER.consume(&mut tx, [first.key("warm"), second.key("warm")]).await.unwrap().granted().unwrap();
    LIMITER.consume(&mut tx, [first.key("warm"), second.key("warm")]).await.unwrap().granted().unwrap();
    tx.commit().await.unwrap();
    take(&mut quick, second.key("k")).await.unwrap();

    let (mut tx, mut other) = (slow.begin().await.unwrap(), third.begin().await.unwrap());
    // The reads without a lock, one for each table, in which all looks well.
    proxy.hold_after(2);
    let mut slow = pin!(async {
        let answer = LIMITER.consume(&mut tx, both(Tokens::ONE)).await;
        // The third waits for what this one holds.
        tx.rollback().await.unwrap();
        answer
    });
    tokio::select! {
        answer = &mut slow => panic!("{answer:?} over a held wire"),
        () = proxy.until_held() => {}
    }
    let mut held = holder.begin().await.unwrap();
    let lock = "select from tollgate.durable where part = $1 and key = 'k' for update";
    sqlx::query(lock).bind(part("k")).execute(&mut *held).await.unwrap();
    take(&mut quick, first.key("k").cost(2)).await.unwrap();
    proxy.release();
    // Refused at once, or waiting for the second table's row.
    tokio::select! {
        answer = &mut slow => assert!(!answer.unwrap().is_granted()),
        () = world.until_blocked(slow_pid) => {
            let mut looking = quick.begin().await.unwrap();
            soon(async { while !LIMITER.check(&mut looking, first.key("k")).await.unwrap().is_granted() {} }).await;
            let other = LIMITER.consume(&mut other, both(Tokens::from_micros(1)));
            let (answer, other, ()) = tokio::join!(slow, other, async {
                world.until_blocked(third_pid).await;
                held.rollback().await.unwrap();
            });
            assert!(answer.is_ok() && other.is_ok(), "{answer:?}, {other:?}");
        }
    }
}
