//! Rows that appear and vanish meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use sqlx::{Connection, PgConnection};
use tokio::task::JoinSet;
use tollgate::{Limit, MINUTE, Storage, Tokens};

use super::{EVER, LIMITER, Sweeper, take};
use crate::gate::stage::sweep;
use crate::world::{World, pid};

/// Between a caller's lock and its insert the row appears, and between its insert and its lock it vanishes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_beside_resets_and_sweeps_never_fail_and_get_what_the_resets_allow() {
    for limit in [Limit::token_bucket("swept", 5, EVER), Limit::stepped_bucket("swept", 5, EVER).ephemeral()] {
        let world = World::new().await;
        let (done, granted) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let mut callers = JoinSet::new();
        for _ in 0..8 {
            let (url, limit, done, granted) = (world.url(), limit.clone(), done.clone(), granted.clone());
            callers.spawn(async move {
                let mut conn = PgConnection::connect(&url).await.unwrap();
                while !done.load(Ordering::SeqCst) {
                    granted.fetch_add(take(&mut conn, limit.key("k")).await.is_some().into(), Ordering::SeqCst);
                }
            });
        }
        let (sweeper, mut resets) = (Sweeper::start(&world), 0);
        let mut conn = world.connect().await;
        let reset_until_enough_was_seen = async {
            while granted.load(Ordering::SeqCst) < 100 || sweeper.deleted() < 3 {
                let mut tx = conn.begin().await.unwrap();
                assert!(LIMITER.reset(&mut tx, limit.key("k")).await.unwrap().is_full());
                tx.commit().await.unwrap();
                resets += 1;
            }
        };
        tokio::time::timeout(10 * MINUTE, reset_until_enough_was_seen).await.unwrap();
        done.store(true, Ordering::SeqCst);
        callers.join_all().await;
        sweeper.stop().await;
        let granted = granted.load(Ordering::SeqCst);
        assert!(granted <= 5 * (resets + 1), "{granted} granted of a capacity of 5 with {resets} resets");
    }
}

/// A caller waits for a row that somebody else is inserting, and decides by its end: committed, deleted or rolled back.
#[tokio::test]
async fn a_row_that_appears_or_comes_and_goes_while_it_is_inserted_is_decided_anew() {
    let world = World::new().await;
    let limit = Limit::token_bucket("slow", 10, EVER);
    let spend = "begin; insert into tollgate.durable values (0, 'slow', 'k', 0, -8000000, now(), '9999-01-01')";
    let (mut holder, mut waiter) = (world.connect().await, world.connect().await);
    let waiter_pid = pid(&mut waiter).await;
    for (end, cost, remaining) in [
        ("commit", 3, None),
        ("commit", 2, Some(0)),
        ("delete from tollgate.durable; commit", 10, Some(0)),
        ("rollback", 10, Some(0)),
    ] {
        sqlx::raw_sql(spend).execute(&mut holder).await.unwrap();
        let mut tx = waiter.begin().await.unwrap();
        let (decision, ()) = tokio::join!(LIMITER.consume(&mut tx, limit.key("k").cost(cost)), async {
            world.until_blocked(waiter_pid).await;
            sqlx::raw_sql(end).execute(&mut holder).await.unwrap();
        });
        let found = decision.unwrap().granted().ok().map(|grant| grant.remaining);
        assert_eq!(found, remaining.map(Tokens::new), "{cost} after {end}");
        tx.commit().await.unwrap();
        world.sql("truncate tollgate.durable").await;
    }
}

#[tokio::test]
async fn refusals_leave_no_row_behind() {
    let world = World::new().await;
    let spent = Limit::token_bucket("spent", 1, EVER);
    let others = [Limit::token_bucket("a", 5, EVER), Limit::token_bucket("z", 5, EVER).ephemeral()];
    let mut conn = world.connect().await;
    take(&mut conn, spent.global()).await.unwrap();
    let mut tx = conn.begin().await.unwrap();
    for other in &others {
        for ask in [vec![spent.global(), other.key(1)], vec![other.key(1), other.key(2), spent.global()]] {
            let denied = LIMITER.consume(&mut tx, ask).await.unwrap().denied().unwrap();
            assert_eq!(denied.limit, "spent");
        }
    }
    tx.commit().await.unwrap();
    assert_eq!(world.rows().await, 1);
}

/// The call reads enough in the limit, waits for a row of the set, and finds it spent: the row that the call inserted
/// is gone again.
#[tokio::test]
async fn a_refusal_after_a_wait_leaves_no_row_behind() {
    let world = World::new().await;
    let limit = Limit::token_bucket("raced", 1, EVER);
    // The second key has a row; the first is inserted before the wait.
    world.sql("insert into tollgate.durable values (0, 'raced', 'b', 0, 0, now(), now())").await;
    let (mut holder, mut waiter) = (world.connect().await, world.connect().await);
    let waiter_pid = pid(&mut waiter).await;
    let mut held = holder.begin().await.unwrap();
    LIMITER.consume(&mut held, limit.key("b")).await.unwrap().granted().unwrap();
    let mut tx = waiter.begin().await.unwrap();
    let ask = LIMITER.consume(&mut tx, [limit.key("a"), limit.key("b")]);
    let (decision, ()) = tokio::join!(ask, async {
        world.until_blocked(waiter_pid).await;
        held.commit().await.unwrap();
    });
    assert_eq!(decision.unwrap().denied().unwrap().key.as_str(), "b");
    tx.commit().await.unwrap();
    assert_eq!(world.row(Storage::Durable, "raced", "a").await, None);
}

/// A row that is deleted whenever it is reset vanishes under each caller again and again: someone has to insert it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_beside_a_clean_up_that_deletes_what_it_resets_are_never_contended() {
    let world = World::new().await;
    let limit = Limit::token_bucket("swept", 5, EVER);
    let done = Arc::new(AtomicBool::new(false));
    let mut callers = JoinSet::new();
    for _ in 0..16 {
        let (url, limit, done) = (world.url(), limit.clone(), done.clone());
        callers.spawn(async move {
            let mut conn = PgConnection::connect(&url).await.unwrap();
            while !done.load(Ordering::SeqCst) {
                let mut tx = conn.begin().await.unwrap();
                let decision = LIMITER.consume(&mut tx, limit.key("k")).await;
                tx.commit().await.unwrap();
                if let Err(error) = decision {
                    done.store(true, Ordering::SeqCst);
                    return Some(error);
                }
            }
            None
        });
    }
    let mut conn = world.connect().await;
    for _ in 0..150 {
        let mut tx = conn.begin().await.unwrap();
        LIMITER.reset(&mut tx, limit.key("k")).await.unwrap();
        sweep(&mut tx).await;
        tx.commit().await.unwrap();
    }
    done.store(true, Ordering::SeqCst);
    let errors: Vec<_> = callers.join_all().await.into_iter().flatten().collect();
    assert!(errors.is_empty(), "{errors:?}");
}
