//! Many callers at once: nobody is granted too much, nobody waits for a shard while another is free.

use std::collections::BTreeSet;
use std::sync::LazyLock;
use std::time::Duration;

use fastrand::Rng;
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio::task::JoinSet;
use tollgate::{Decision, Error, Limit, Limiter, MINUTE, SECOND};

use super::stage::{EVER, clear, put, shards, table, whole};
use crate::gate::stage::patient;
use crate::judge::never_over;
use crate::teller::both;
use crate::world::{World, limiter, pid, second};

static LIMITER: LazyLock<Limiter> = LazyLock::new(limiter);
const ONE: i64 = 1_000_000;

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
        // Only the second has enough, and no more than once: it is chosen, and waited for. Then one is left in all, or
        // together they have three.
        for (rows, taken, left) in [([ONE, 4 * ONE], 4, ONE), ([2 * ONE, 4 * ONE], 3, 0)] {
            put(&mut conn, &limit, &rows, second(0.0)).await;
            let mut holder = world.pool.begin().await.unwrap();
            assert!(limiter.consume(&mut holder, limit.global().cost(taken)).await.unwrap().is_granted());
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
            let refused = waiting.await.unwrap().denied();
            assert_eq!(refused.map(|denied| denied.remaining.micros()), (left > 0).then_some(left));
            assert_eq!(shards(&mut conn, &limit).await.iter().map(|(_, value)| value).sum::<i64>(), left);
        }
        clear(&mut conn, &limit).await;
    }
}

/// A credit and a reset that see the second of two grants see the first, too, whose row was missing when they began to
/// wait.
#[tokio::test]
async fn a_row_that_is_inserted_during_a_wait_is_credited_and_reset_like_the_others() {
    let world = World::new().await;
    for limit in both(&Limit::token_bucket("late", 8, EVER).shards(2)) {
        let mut conn = world.connect().await;
        for (resets, left) in [(false, 5), (true, 8)] {
            put(&mut conn, &limit, &[3 * ONE], second(0.0)).await;
            let mut holder = world.pool.begin().await.unwrap();
            let lock = format!("select from tollgate.{} where name = 'late' for update", table(&limit));
            sqlx::raw_sql(AssertSqlSafe(lock)).execute(&mut *holder).await.unwrap();
            let mut waiter = world.pool.begin().await.unwrap();
            let backend = pid(&mut waiter).await;
            let waiting = tokio::spawn({
                let request = limit.global().cost(5);
                async move {
                    let limiter = limiter().at(second(0.0));
                    let balance = if resets {
                        limiter.reset(&mut waiter, request).await.unwrap()
                    } else {
                        limiter.credit(&mut waiter, request).await.unwrap()
                    };
                    waiter.commit().await.unwrap();
                    balance.remaining
                }
            });
            world.until_blocked(backend).await;
            let limiter = limiter().at(second(0.0));
            let mut first = conn.begin().await.unwrap();
            limiter.consume(&mut first, limit.global().cost(4)).await.unwrap().granted().unwrap();
            first.commit().await.unwrap();
            limiter.consume(&mut holder, limit.global().cost(3)).await.unwrap().granted().unwrap();
            holder.commit().await.unwrap();
            assert_eq!(waiting.await.unwrap(), whole(left), "resets: {resets}");
            assert_eq!(shards(&mut conn, &limit).await.iter().map(|(_, value)| value).sum::<i64>(), left * ONE);
        }
    }
}

#[tokio::test]
async fn a_row_that_is_newer_than_the_snapshot_is_not_overlooked_by_a_credit() {
    let world = World::new().await;
    for limit in both(&Limit::token_bucket("newer", 8, EVER).shards(2)) {
        let mut loser = world.pool.begin_with("begin isolation level repeatable read").await.unwrap();
        sqlx::query("select 1").execute(&mut *loser).await.unwrap();
        put(&mut world.connect().await, &limit, &[0, 0], second(0.0)).await;
        let error = LIMITER.credit(&mut loser, limit.global()).await.unwrap_err();
        assert!(matches!(error, Error::Database { .. }) && error.is_retryable(), "{error:?}");
    }
}

/// Between any two grants of many callers over real time: no more than the whole limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn never_over_between_any_two_grants_of_callers_and_a_gate() {
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
                    granted.push((grant.decided_at.timestamp_micros(), ONE));
                }
            }
            granted
        });
    }
    let mut granted: Vec<_> = callers.join_all().await.concat();
    granted.sort_unstable();
    assert!(granted.len() > 20, "{granted:?}");
    never_over(&granted, 20 * ONE, |instant| 100 * instant, "real");
}
