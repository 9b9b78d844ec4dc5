//! Calls over several rows never deadlock.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use sqlx::{Connection, PgConnection};
use tokio::task::JoinSet;
use tollgate::{Limit, SECOND, Tokens};

use super::{Dice, EVER, LIMITER, Sweeper, take};
use crate::gate::stage::soon;
use crate::proxy::Proxy;
use crate::world::{World, part, pid};

/// Sets of rows that are there, that are not, and that come and go, asked in every order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_asked_together_in_any_order_never_deadlock_and_balance_to_the_token() {
    const CALLERS: u64 = 32;
    const ROUNDS: u64 = 32;
    const KEYS: u64 = 4;
    const CAPACITY: i64 = 12;
    let world = World::new().await;
    let limits = [
        Limit::token_bucket("a", 12, EVER),
        Limit::stepped_bucket("b", 12, EVER),
        Limit::token_bucket("c", 12, EVER).ephemeral(),
    ];
    let taken: Arc<[AtomicI64; 12]> = Arc::default();
    let granted = Arc::new(AtomicU64::new(0));
    let sweeper = Sweeper::start(&world);
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        let (url, limits, taken, granted) = (world.url(), limits.clone(), taken.clone(), granted.clone());
        callers.spawn(async move {
            let (mut conn, mut dice) = (PgConnection::connect(&url).await.unwrap(), Dice(caller));
            for round in 0..ROUNDS {
                let (rows, cost) = (dice.some(2..=6, 3 * KEYS), 1 + dice.below(3));
                let count = |sign: i64| {
                    let cost = sign * i64::try_from(cost).unwrap();
                    for row in &rows {
                        taken[*row].fetch_add(cost, Ordering::SeqCst);
                    }
                };
                let ask = || rows.iter().map(|row| limits[row % 3].key(row / 3).cost(cost));
                let mut tx = conn.begin().await.unwrap();
                let decision = LIMITER.consume(&mut tx, ask()).await.unwrap();
                if !decision.is_granted() {
                    tx.commit().await.unwrap();
                    continue;
                }
                granted.fetch_add(1, Ordering::SeqCst);
                if dice.below(4) == 0 {
                    tx.rollback().await.unwrap();
                    continue;
                }
                tx.commit().await.unwrap();
                count(1);
                // All is given back until near the end, so that rows fill up, vanish and are made anew.
                if round < ROUNDS - 4 || dice.below(2) == 0 {
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
    for (row, taken) in taken.iter().enumerate() {
        let (limit, taken) = (&limits[row % 3], taken.load(Ordering::SeqCst));
        let found = world.left(limit, &(row / 3).to_string()).await;
        let found = found.map_or(CAPACITY * 1_000_000, tollgate::Tokens::micros);
        assert_eq!(found, (CAPACITY - taken) * 1_000_000, "row {row}: {taken} taken and kept");
    }
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
            let (mut conn, mut dice) = (PgConnection::connect(&url).await.unwrap(), Dice(caller));
            for _ in 0..20 {
                let ask = dice.some(2..=4, 4).into_iter().map(|which| limits[which].key("k").cost(2));
                let mut tx = conn.begin().await.unwrap();
                let mut booked = LIMITER.reserve(&mut tx, ask).await.unwrap().granted().unwrap();
                tx.commit().await.unwrap();
                // In any order: the plan sorts them.
                booked.receipt.charges.reverse();
                let mut tx = conn.begin().await.unwrap();
                let settled = if dice.below(2) == 0 {
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
