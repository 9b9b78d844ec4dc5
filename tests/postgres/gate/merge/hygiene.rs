//! A pool that is shared with a host application: the gate leaves it connections, and leaves them clean.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use tollgate::{Error, Gate, Limit, Tokens};

use crate::gate::stage::{EVER, idle_in_transaction, one_connection, patient, pool, soon};
use crate::proxy::Proxy;
use crate::world::World;

const LIMIT: Limit = Limit::stepped_bucket("hot", 1_000_000, EVER);

/// On one hot key, and on as many keys as there are callers: so with every connection at work, and without a pause.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_callers_and_a_health_check_share_four_connections() {
    let world = World::new().await;
    let pool = pool(&world.url(), 4).await;
    let mut taken = 0;
    for (lanes, keys) in [(None, 1), (Some(4), 1), (Some(4), 1000)] {
        let gate = patient(&pool);
        let gate = if let Some(lanes) = lanes { gate.lanes(lanes) } else { gate }.build();
        let done = Arc::new(AtomicBool::new(false));
        let mut callers = JoinSet::new();
        for caller in 0..1000 {
            let (gate, done) = (gate.clone(), done.clone());
            callers.spawn(async move {
                let mut taken = 0;
                while taken == 0 || !done.load(Ordering::SeqCst) {
                    gate.consume(LIMIT.key(caller % keys)).await.unwrap().granted().unwrap();
                    taken += 1;
                }
                taken
            });
        }
        // None of these waits until the callers have enough, because they never have.
        for _ in 0..10 {
            sqlx::query("select 1").execute(&pool).await.unwrap();
        }
        done.store(true, Ordering::SeqCst);
        taken += soon(callers.join_all()).await.into_iter().sum::<i64>();
        assert!(pool.size() <= 4);
    }
    let sql = "select sum(-value)::int8 from tollgate.durable";
    let missing: i64 = sqlx::query_scalar(sql).fetch_one(&world.pool).await.unwrap();
    assert_eq!(missing, taken * 1_000_000);
    assert_eq!(idle_in_transaction(&world.pool).await, 0);
}

/// The host holds all but one connection: the gate goes on over that one, and gives it back between batches.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gate_works_on_what_its_host_leaves_of_the_pool() {
    let world = World::new().await;
    let pool = pool(&world.url(), 4).await;
    let gate = patient(&pool).lanes(4).build();
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(pool.begin().await.unwrap());
    }
    let (mut callers, done) = (JoinSet::new(), Arc::new(AtomicBool::new(false)));
    for caller in 0..200 {
        let (gate, done) = (gate.clone(), done.clone());
        callers.spawn(async move {
            while !done.load(Ordering::SeqCst) {
                gate.consume(LIMIT.key(caller % 20)).await.unwrap().granted().unwrap();
            }
        });
    }
    for _ in 0..3 {
        sqlx::query("select 1").execute(&pool).await.unwrap();
    }
    done.store(true, Ordering::SeqCst);
    soon(callers.join_all()).await;
}

/// The caller itself holds the only connection: an error that names the pool, within the patience asked, and nothing
/// else.
#[tokio::test]
async fn a_caller_that_holds_the_only_connection_gets_an_error_and_does_not_hang() {
    let world = World::new().await;
    let pool = pool(&world.url(), 1).await;
    let gate = Gate::builder(pool.clone()).acquire_timeout(Duration::from_secs(1)).build();
    let held = pool.begin().await.unwrap();
    let error = soon(gate.consume(LIMIT.key("k"))).await.unwrap_err();
    assert!(matches!(&error, Error::PoolExhausted { limit } if limit == "hot"), "{error:?}");
    assert!(error.is_retryable());
    held.rollback().await.unwrap();
    // A second may pass without a connection on a busy machine.
    soon(async { while gate.consume(LIMIT.key("k")).await.is_err() {} }).await;
    assert_eq!(world.rows().await, 1);
}

/// A grant of a gate is committed, even if its caller's own work is rolled back.
#[tokio::test]
async fn a_grant_is_seen_by_others_at_once_and_outlives_the_callers_rollback() {
    let world = World::new().await;
    let gate = world.gate();
    let mut tx = world.pool.begin().await.unwrap();
    sqlx::query("create table work (n int)").execute(&mut *tx).await.unwrap();
    for limit in [LIMIT, LIMIT.ephemeral()] {
        for left in [999_999, 999_998] {
            gate.consume(limit.key("k")).await.unwrap().granted().unwrap();
            assert_eq!(world.left(&limit, "k").await.unwrap(), Tokens::new(left));
        }
    }
    tx.rollback().await.unwrap();
    assert_eq!(gate.balance(LIMIT.key("k")).await.unwrap().remaining, Tokens::new(999_998));
}

/// The queue holds two calls while the lane waits for a connection. The third gets an error at once, and the two are
/// answered.
#[tokio::test]
async fn a_full_queue_is_busy_at_once_and_those_in_it_are_answered() {
    let world = World::new().await;
    let pool = pool(&world.url(), 1).await;
    let gate = patient(&pool).queue(2).build();
    let held = pool.begin().await.unwrap();
    let mut waiting = Vec::new();
    for caller in 0..2 {
        let gate = gate.clone();
        waiting.push(tokio::spawn(async move { gate.consume(LIMIT.key(caller)).await }));
        tokio::task::yield_now().await;
    }
    for _ in 0..3 {
        let refused = std::future::poll_fn({
            let mut call = Box::pin(gate.consume(LIMIT.key("third")));
            move |cx| std::task::Poll::Ready(call.as_mut().poll(cx))
        });
        let refused = refused.await;
        assert!(matches!(refused, std::task::Poll::Ready(Err(Error::Overloaded { .. }))), "{refused:?}");
    }
    held.rollback().await.unwrap();
    for call in waiting {
        soon(call).await.unwrap().unwrap().granted().unwrap();
    }
    assert_eq!(world.rows().await, 2);
    soon(gate.consume(LIMIT.key("third"))).await.unwrap().granted().unwrap();
}

/// A row that somebody locks: its callers get an error that says so, and all others are served.
#[tokio::test]
async fn a_row_locked_for_longer_than_the_lock_timeout_is_an_error_and_other_keys_go_on() {
    let world = World::new().await;
    let gate = patient(&pool(&world.url(), 1).await).lock_timeout(Duration::from_millis(50)).build();
    for limit in [LIMIT, LIMIT.ephemeral()] {
        for key in ["held", "other"] {
            gate.consume(limit.key(key)).await.unwrap().granted().unwrap();
        }
        let mut holder = world.connect().await;
        let mut held = sqlx::Connection::begin(&mut holder).await.unwrap();
        for table in ["ephemeral", "durable"] {
            let lock = format!("select from tollgate.{table} where key = 'held' for update");
            sqlx::query(sqlx::AssertSqlSafe(lock)).execute(&mut *held).await.unwrap();
        }
        for _ in 0..2 {
            let answer = soon(gate.consume(limit.key("held"))).await;
            assert!(matches!(answer, Err(Error::Locked { .. })), "{answer:?}");
            assert!(answer.unwrap_err().is_retryable());
            soon(gate.consume(limit.key("other"))).await.unwrap().granted().unwrap();
            soon(gate.consume(limit.key("new"))).await.unwrap().granted().unwrap();
            // A call that takes nothing needs no lock.
            assert_eq!(gate.balance(limit.key("held")).await.unwrap().remaining, Tokens::new(999_999));
            assert!(gate.check(limit.key("held")).await.unwrap().is_granted());
        }
        held.rollback().await.unwrap();
        soon(gate.consume(limit.key("held"))).await.unwrap().granted().unwrap();
        assert_eq!(gate.balance(limit.key("held")).await.unwrap().remaining, Tokens::new(999_998));
    }
}

/// Calls in one batch with a call for a locked row do not share its fate.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_of_other_rows_in_the_batch_of_a_locked_row_are_served() {
    let world = World::new().await;
    let proxy = Proxy::new(&world.url());
    let pool = one_connection(proxy.options()).await;
    let gate = patient(&pool).lock_timeout(Duration::from_millis(50)).build();
    for key in ["held", "other"] {
        gate.consume(LIMIT.key(key)).await.unwrap().granted().unwrap();
    }
    let mut holder = world.connect().await;
    let mut held = sqlx::Connection::begin(&mut holder).await.unwrap();
    sqlx::query("select from tollgate.durable where key = 'held' for update").execute(&mut *held).await.unwrap();
    // Until all are in one batch.
    proxy.hold_after(0);
    let ask = |key: &'static str| {
        let gate = gate.clone();
        tokio::spawn(async move { soon(gate.consume(LIMIT.key(key))).await })
    };
    let [busy, other, new] = ["held", "other", "new"].map(ask);
    proxy.until_held().await;
    proxy.release();
    let (busy, other, new) = tokio::join!(busy, other, new);
    assert!(matches!(busy.unwrap(), Err(Error::Locked { .. })));
    other.unwrap().unwrap().granted().unwrap();
    new.unwrap().unwrap().granted().unwrap();
    held.rollback().await.unwrap();
}

#[tokio::test]
async fn a_row_that_is_locked_for_a_moment_is_waited_for() {
    let world = World::new().await;
    let gate = patient(&pool(&world.url(), 1).await).build();
    gate.consume(LIMIT.key("held")).await.unwrap().granted().unwrap();
    let mut holder = world.connect().await;
    let mut held = sqlx::Connection::begin(&mut holder).await.unwrap();
    let lock = "update tollgate.durable set value = value - 1000000 where key = 'held'";
    sqlx::query(lock).execute(&mut *held).await.unwrap();
    let waits = "select count(*) > 0 from pg_stat_activity
                  where datname = current_database() and pg_catalog.cardinality(pg_blocking_pids(pid)) > 0";
    let (answer, ()) = tokio::join!(soon(gate.consume(LIMIT.key("held"))), async {
        soon(async { while !sqlx::query_scalar::<_, bool>(waits).fetch_one(&world.pool).await.unwrap() {} }).await;
        held.commit().await.unwrap();
    });
    assert_eq!(answer.unwrap().granted().unwrap().remaining, Tokens::new(999_997));
}
