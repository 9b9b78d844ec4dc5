//! Many callers at once: nobody is granted too much, nobody deadlocks, nobody waits for a shard while another is free.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use fastrand::Rng;
use sqlx::{Connection, PgConnection};
use tokio::task::JoinSet;
use tollgate::{Decision, Error, Limit, Limiter, MINUTE, SECOND, Tokens};

use super::stage::{EVER, clear, put, shards};
use crate::gate::stage::patient;
use crate::teller::{both, run};
use crate::world::{World, limiter, pid, second};

static LIMITER: LazyLock<Limiter> = LazyLock::new(limiter);
const ONE: i64 = 1_000_000;

/// Limits with and without shards, in both tables, in any order within a call, under savepoints, with rollbacks, beside
/// gates.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_of_any_limits_in_any_order_never_deadlock_and_balance_to_the_token() {
    const CALLERS: u64 = 32;
    const ROUNDS: usize = 30;
    const CAPACITY: i64 = 160;
    let world = World::new().await;
    let limits = [
        Limit::token_bucket("a", 160, EVER).shards(4),
        Limit::token_bucket("b", 160, EVER),
        Limit::fixed_window("c", 160, EVER).shards(16),
        Limit::token_bucket("d", 160, EVER).shards(3).ephemeral(),
        Limit::token_bucket("e", 160, EVER).ephemeral(),
    ];
    let taken: Arc<Vec<AtomicI64>> = Arc::new(limits.iter().map(|_| AtomicI64::new(0)).collect());
    let gate = patient(&world.pool).build();
    let mut callers = JoinSet::new();
    for seed in 0..CALLERS {
        let (url, limits, taken, gate) = (world.url(), limits.clone(), taken.clone(), gate.clone());
        callers.spawn(async move {
            let (mut conn, mut dice) = (PgConnection::connect(&url).await.unwrap(), Rng::with_seed(seed));
            for _ in 0..ROUNDS {
                let mut order: Vec<_> = (0..limits.len()).collect();
                dice.shuffle(&mut order);
                order.truncate(dice.usize(1..=limits.len()));
                let cost = if dice.u8(..4) == 0 { dice.i64(1..=30) } else { 1 };
                let asks = || order.iter().map(|which| limits[*which].global().cost(cost));
                let count = || {
                    for which in &order {
                        taken[*which].fetch_add(cost, Ordering::SeqCst);
                    }
                };
                if dice.u8(..4) == 0 {
                    if gate.consume(asks()).await.unwrap().is_granted() {
                        count();
                    }
                    continue;
                }
                let mut tx = conn.begin().await.unwrap();
                if dice.bool() {
                    run(&mut tx, "savepoint theirs").await;
                    let _ = LIMITER.consume(&mut tx, asks()).await.unwrap();
                    run(&mut tx, "rollback to savepoint theirs").await;
                }
                let decision = LIMITER.consume(&mut tx, asks()).await.unwrap();
                if dice.u8(..4) == 0 {
                    tx.rollback().await.unwrap();
                } else {
                    tx.commit().await.unwrap();
                    if decision.is_granted() {
                        count();
                    }
                }
            }
        });
    }
    callers.join_all().await;
    let mut conn = world.connect().await;
    let mut tx = conn.begin().await.unwrap();
    let (mut left, mut expected) = (Vec::new(), Vec::new());
    for (limit, taken) in limits.iter().zip(taken.iter()) {
        left.push(LIMITER.balance(&mut tx, limit.global()).await.unwrap().remaining);
        expected.push(Tokens::from_micros((CAPACITY - taken.load(Ordering::SeqCst)) * ONE));
    }
    assert_eq!(left, expected, "of a, b, c, d and e");
    assert!(left.iter().all(|left| !left.is_negative()));
    let deadlocks = "select deadlocks from pg_stat_database where datname = current_database()";
    let deadlocks = sqlx::query_scalar::<_, i64>(deadlocks).persistent(false).fetch_one(&mut *tx).await.unwrap();
    assert_eq!(deadlocks, 0);
}

#[tokio::test]
async fn callers_take_from_shards_that_nobody_holds_and_wait_only_where_all_are_held() {
    let world = World::new().await;
    for limit in both(&Limit::token_bucket("free", 40, EVER).shards(4)) {
        let mut conn = world.connect().await;
        put(&mut conn, &limit, &[10 * ONE; 4], second(0.0)).await;
        let mut open = Vec::new();
        for _ in 0..4 {
            let mut tx = world.pool.begin().await.unwrap();
            let take = LIMITER.consume(&mut tx, limit.global());
            let decision = tokio::time::timeout(10 * MINUTE, take)
                .await
                .expect("waits for a shard while another is free")
                .unwrap();
            assert!(decision.is_granted());
            open.push(tx);
        }
        let impatient = limiter().lock_timeout(Duration::from_millis(50));
        let mut tx = world.pool.begin().await.unwrap();
        let busy = impatient.consume(&mut tx, limit.global()).await;
        assert!(matches!(busy, Err(Error::Locked { .. })), "{busy:?}");
        drop(open);
        assert!(LIMITER.consume(&mut tx, limit.global()).await.unwrap().is_granted(), "the transaction is usable");
        tx.rollback().await.unwrap();
        clear(&mut conn, &limit).await;
    }
}

/// Rows stay level, so that few calls have to ask them all; and callers spread over equal ones, so that few meet.
#[tokio::test]
async fn the_fullest_shard_is_taken_from_and_of_equal_ones_any() {
    let world = World::new().await;
    let mut conn = world.connect().await;
    let limiter = limiter().at(second(0.0));
    let two = Limit::token_bucket("two", 40, EVER).shards(2);
    let eight = Limit::token_bucket("eight", 80, EVER).shards(8);
    put(&mut conn, &two, &[9 * ONE, 10 * ONE], second(0.0)).await;
    put(&mut conn, &eight, &[9 * ONE; 8], second(0.0)).await;
    let mut taken_from = BTreeSet::new();
    for _ in 0..40 {
        let mut tx = conn.begin().await.unwrap();
        let grant = limiter.consume(&mut tx, two.global()).await.unwrap().granted().unwrap();
        assert_eq!(grant.receipt.charges[0].shard, 1);
        let grant = limiter.consume(&mut tx, eight.global()).await.unwrap().granted().unwrap();
        taken_from.insert(grant.receipt.charges[0].shard);
        tx.rollback().await.unwrap();
    }
    assert!(taken_from.len() > 4, "{taken_from:?}");
}

/// A full row gains nothing while another is low. Rows that are level are full together, so four of them never hold
/// three tokens less than one row would.
#[tokio::test]
async fn level_shards_waste_no_refill() {
    let world = World::new().await;
    let mut conn = world.connect().await;
    let four = Limit::token_bucket("four", 40, SECOND).shards(4);
    let one = Limit::token_bucket("one", 40, SECOND);
    let (mut dice, mut at, mut refused) = (Rng::with_seed(1), 0.0, 0);
    for step in 0..600 {
        // Now more than comes back, now less.
        at += dice.f64() * if step / 100 % 2 == 0 { 0.02 } else { 0.1 };
        let limiter = limiter().at(second(at));
        let mut tx = conn.begin().await.unwrap();
        let taken = limiter.consume(&mut tx, four.global()).await.unwrap();
        refused += u32::from(!taken.is_granted());
        if taken.is_granted() {
            limiter.debit(&mut tx, one.global()).await.unwrap();
        }
        let left = limiter.balance(&mut tx, one.global()).await.unwrap().remaining;
        let together = limiter.balance(&mut tx, four.global()).await.unwrap().remaining;
        assert!(together <= left, "over: {together} of {left}");
        assert!(left.micros() - together.micros() < 3 * ONE + 4, "{together} of {left} at step {step}");
        tx.commit().await.unwrap();
    }
    assert!(refused > 50, "{refused}");
}

/// The shard that was chosen is emptied while the caller waits for it: others have enough, so it is no refusal.
#[tokio::test]
async fn a_race_that_is_lost_is_decided_by_all_shards_together() {
    let world = World::new().await;
    for limit in both(&Limit::token_bucket("race", 8, EVER).shards(2)) {
        let mut conn = world.connect().await;
        let limiter = limiter().at(second(0.0));
        // Only the second has enough, and no more than once: it is chosen, and waited for.
        put(&mut conn, &limit, &[ONE, 4 * ONE], second(0.0)).await;
        let mut holder = world.pool.begin().await.unwrap();
        assert!(limiter.consume(&mut holder, limit.global().cost(4)).await.unwrap().is_granted());
        let mut waiter = world.pool.begin().await.unwrap();
        let backend = pid(&mut waiter).await;
        let waiting = tokio::spawn({
            let (limiter, limit) = (limiter.clone(), limit.clone());
            async move {
                let decision = limiter.consume(&mut waiter, limit.global().cost(3)).await.unwrap();
                waiter.commit().await.unwrap();
                decision
            }
        });
        world.until_blocked(backend).await;
        holder.commit().await.unwrap();
        let Decision::Denied(denied) = waiting.await.unwrap() else { panic!("one is left in all") };
        assert_eq!(denied.remaining.micros(), ONE);
        assert_eq!(shards(&mut conn, &limit).await.iter().map(|(_, value)| value).sum::<i64>(), ONE);

        put(&mut conn, &limit, &[2 * ONE, 4 * ONE], second(0.0)).await;
        let mut holder = world.pool.begin().await.unwrap();
        assert!(limiter.consume(&mut holder, limit.global().cost(3)).await.unwrap().is_granted());
        let mut waiter = world.pool.begin().await.unwrap();
        let backend = pid(&mut waiter).await;
        let waiting = tokio::spawn({
            let (limiter, limit) = (limiter.clone(), limit.clone());
            async move {
                let decision = limiter.consume(&mut waiter, limit.global().cost(3)).await.unwrap();
                waiter.commit().await.unwrap();
                decision
            }
        });
        world.until_blocked(backend).await;
        holder.commit().await.unwrap();
        assert!(waiting.await.unwrap().is_granted(), "together they have three");
        assert_eq!(shards(&mut conn, &limit).await.iter().map(|(_, value)| value).sum::<i64>(), 0);
        clear(&mut conn, &limit).await;
    }
}

/// Between any two grants of many callers over real time: no more than the whole limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn never_over_between_any_two_grants_of_callers_and_a_gate() {
    const CAPACITY: i64 = 20;
    const RATE: i64 = 100;
    let world = World::new().await;
    let limit = Limit::token_bucket("real", 100, SECOND).capacity(20).shards(8);
    let gate = patient(&world.pool).build();
    let mut callers = JoinSet::new();
    for caller in 0..12 {
        let (url, limit, gate) = (world.url(), limit.clone(), gate.clone());
        callers.spawn(async move {
            let (mut conn, mut granted) = (PgConnection::connect(&url).await.unwrap(), Vec::new());
            for _ in 0..60 {
                let decision = if caller % 4 == 0 {
                    gate.consume(limit.global()).await.unwrap()
                } else {
                    let mut tx = conn.begin().await.unwrap();
                    let decision = LIMITER.consume(&mut tx, limit.global()).await.unwrap();
                    tx.commit().await.unwrap();
                    decision
                };
                if let Decision::Granted(grant) = decision {
                    granted.push(grant.decided_at.timestamp_micros());
                }
            }
            granted
        });
    }
    let mut granted: Vec<i64> = callers.join_all().await.concat();
    granted.sort_unstable();
    assert!(granted.len() > 20, "{granted:?}");
    for (from, first) in granted.iter().enumerate() {
        for (to, last) in granted.iter().enumerate().skip(from) {
            let count = i64::try_from(to - from + 1).unwrap() * ONE;
            assert!(count <= CAPACITY * ONE + RATE * (last - first), "{first} to {last}: {count}");
        }
    }
}
