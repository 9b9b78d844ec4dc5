//! Faults that were found in the gate, each with the case that showed it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sqlx::Connection;
use tokio::task::JoinSet;
use tollgate::{Balance, Error, HOUR, Limit, Limiter, MINUTE, OnFailure, SECOND, Tokens, migrate};

use crate::gate::stage::{EVER, one_connection, patient, pool, soon};
use crate::proxy::Proxy;
use crate::world::{OWNER, World, run_until_done};

const MANY: Limit = Limit::stepped_bucket("many", 1_000_000, EVER);
const OTHER: Limit = Limit::stepped_bucket("other", 1_000_000, EVER);

/// Somebody takes tokens and gives them back in one transaction. The row is then a new version with the old numbers,
/// and a statement that locks it cannot write it under its own snapshot.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_rewritten_with_the_same_numbers_is_charged_whole_or_not_at_all() {
    const KEYS: i64 = 60;
    let world = World::new().await;
    let gate = patient(&pool(&world.url(), 2).await).lanes(1).build();
    let done = Arc::new(AtomicBool::new(false));
    let mut rewriters = JoinSet::new();
    for _ in 0..3 {
        let (mut conn, done) = (world.connect().await, done.clone());
        rewriters.spawn(async move {
            while !done.load(Ordering::SeqCst) {
                let mut tx = conn.begin().await.unwrap();
                let request = MANY.key(fastrand::i64(0..KEYS));
                let grant = Limiter::new().consume(&mut tx, request).await.unwrap().granted().unwrap();
                Limiter::new().settle(&mut tx, grant, 0).await.unwrap();
                tx.commit().await.unwrap();
            }
        });
    }
    let mut callers = JoinSet::new();
    for key in 0..KEYS {
        let gate = gate.clone();
        callers.spawn(async move {
            for _ in 0..100 {
                soon(gate.consume([MANY.key(key), OTHER.key(key)])).await.unwrap().granted().unwrap();
            }
        });
    }
    while let Some(caller) = callers.join_next().await {
        caller.unwrap();
    }
    done.store(true, Ordering::SeqCst);
    soon(rewriters.join_all()).await;
    for key in 0..KEYS {
        for limit in [MANY, OTHER] {
            let balance = gate.balance(limit.key(key)).await.unwrap();
            assert_eq!(balance.remaining, Tokens::new(1_000_000 - 100), "{limit:?} {key}");
        }
    }
}

#[tokio::test]
async fn a_trigger_that_suppresses_a_write_is_the_error_of_those_who_ask_that_row() {
    let world = World::new().await;
    let proxy = Proxy::new(&world.url());
    let pool = one_connection(proxy.options()).await;
    let gate = patient(&pool).build();
    for key in ["bad", "one", "two"] {
        gate.consume(MANY.key(key)).await.unwrap().granted().unwrap();
    }
    world
        .sql(
            "create function tollgate.no() returns trigger language plpgsql as 'begin return null; end';
             create trigger no before update on tollgate.durable
                for each row when (old.key = 'bad') execute function tollgate.no()",
        )
        .await;
    let corrupt = |error: Error| assert!(matches!(error, Error::CorruptRow { .. }), "{error:?}");
    corrupt(gate.consume(MANY.key("bad")).await.unwrap_err());
    corrupt(gate.consume([MANY.key("bad"), MANY.key("two")]).await.unwrap_err());
    // In one batch with a bystander.
    proxy.hold_after(0);
    let [first, bad, one] = ["two", "bad", "one"].map(|key| {
        let gate = gate.clone();
        tokio::spawn(async move { gate.consume(MANY.key(key)).await })
    });
    soon(proxy.until_held()).await;
    proxy.release();
    first.await.unwrap().unwrap().granted().unwrap();
    corrupt(bad.await.unwrap().unwrap_err());
    one.await.unwrap().unwrap().granted().unwrap();
    // The other row of a group is written, though its caller gets the error.
    for (key, taken) in [("bad", 1), ("one", 2), ("two", 3)] {
        let balance = gate.balance(MANY.key(key)).await.unwrap();
        assert_eq!(balance.remaining, Tokens::new(1_000_000 - taken), "{key}");
    }
    // The limiter in a transaction calls it by the same name.
    let mut tx = pool.begin().await.unwrap();
    corrupt(Limiter::new().consume(&mut tx, MANY.key("bad")).await.unwrap_err());
}

#[tokio::test]
async fn a_limit_that_is_a_bucket_now_leaves_no_list_in_its_row() {
    let world = World::new().await;
    let gate = world.gate();
    for limit in [Limit::sliding_window("kind", 10, HOUR), Limit::token_bucket("kind", 10, HOUR)] {
        gate.consume(limit.key("k")).await.unwrap().granted().unwrap();
    }
    let list: Option<Vec<i64>> =
        sqlx::query_scalar("select list from tollgate.durable").fetch_one(&world.pool).await.unwrap();
    assert_eq!(list, None);
}

/// A server that cannot answer keeps the connection of the call, and further calls do not take one more connection
/// each.
#[tokio::test]
async fn a_table_that_is_locked_does_not_use_up_the_servers_connections() {
    let world = World::new().await;
    let short = Duration::from_millis(100);
    let pool = pool(&world.url(), 4).await;
    let gate = patient(&pool).lanes(1).statement_timeout(short).lock_timeout(short).build();
    // Under load the first use of a key may take longer than that.
    patient(&pool).build().consume(MANY.key("k")).await.unwrap().granted().unwrap();
    let mut conn = world.connect().await;
    let mut tx = conn.begin().await.unwrap();
    sqlx::query("lock table tollgate.durable in access exclusive mode").execute(&mut *tx).await.unwrap();
    for _ in 0..8 {
        let error = soon(gate.consume(MANY.key("k"))).await.unwrap_err();
        assert!(error.is_retryable(), "{error:?}");
    }
    let waiting = "select count(*) from pg_stat_activity
                    where datname = current_database() and wait_event_type = 'Lock'";
    let waiting: i64 = sqlx::query_scalar(waiting).fetch_one(&mut *tx).await.unwrap();
    assert!(waiting <= 1, "{waiting} connections wait");
    tx.rollback().await.unwrap();
    soon(async { while gate.consume(MANY.key("k")).await.is_err() {} }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_can_be_closed_under_a_gate_that_is_never_idle() {
    let world = World::new().await;
    let pool = pool(&world.url(), 8).await;
    let gate = patient(&pool).lanes(1).build();
    let mut callers = JoinSet::new();
    let served = Arc::new(tokio::sync::Semaphore::new(0));
    for _ in 0..20 {
        let (gate, served) = (gate.clone(), served.clone());
        callers.spawn(async move {
            loop {
                match gate.consume(MANY.key("k")).await {
                    Ok(decision) => drop(decision.granted().unwrap()),
                    Err(error) => return error,
                }
                served.add_permits(1);
            }
        });
    }
    soon(served.acquire_many(100)).await.unwrap().forget();
    soon(pool.close()).await;
    for error in soon(callers.join_all()).await {
        assert!(
            matches!(&error, Error::Database { source, .. } if matches!(**source, sqlx::Error::PoolClosed)),
            "{error:?}"
        );
    }
}

#[tokio::test]
async fn settings_beyond_all_times_are_no_limits() {
    let world = World::new().await;
    let gate = patient(&pool(&world.url(), 2).await)
        .acquire_timeout(Duration::MAX)
        .jitter(Duration::MAX)
        .lock_timeout(Duration::MAX)
        .remember_refusals(Duration::MAX)
        .statement_timeout(Duration::MAX)
        .build();
    let limit = Limit::stepped_bucket("one", 1, EVER);
    soon(gate.consume(limit.key("k"))).await.unwrap().granted().unwrap();
    soon(gate.wait(limit.key("k"), SECOND)).await.unwrap().granted().unwrap_err();
}

#[tokio::test]
async fn a_database_that_is_read_only_by_default_is_written_all_the_same() {
    let world = World::new().await;
    world
        .sql(
            "do $$ begin
                 execute format('alter database %I set default_transaction_read_only = on', current_database());
             end $$",
        )
        .await;
    let gate = patient(&pool(&world.url(), 1).await).build();
    for _ in 0..3 {
        gate.consume(MANY.key("k")).await.unwrap().granted().unwrap();
    }
    assert_eq!(gate.balance(MANY.key("k")).await.unwrap().remaining, Tokens::new(999_997));
}

/// The settlement was committed, and its answer lost: the memory of the row is worth nothing now.
#[tokio::test]
async fn a_settlement_of_unknown_outcome_is_not_refused_from_memory() {
    let world = World::new().await;
    let proxy = Proxy::new(&world.url());
    let pool = one_connection(proxy.options()).await;
    let gate = patient(&pool).remember_refusals(HOUR).build();
    let durable = Limit::stepped_bucket("durable", 1, EVER);
    let ephemeral = Limit::stepped_bucket("ephemeral", 1, EVER).ephemeral();
    for (asks, statements) in [
        // Peek, swap.
        (vec![durable.key("k")], 2),
        // Peek twice; begin, lock twice, save, commit.
        (vec![durable.key("both"), ephemeral.key("both")], 7),
    ] {
        let grant = gate.consume(asks.clone()).await.unwrap().granted().unwrap();
        for ask in &asks {
            gate.consume(ask.clone()).await.unwrap().granted().unwrap_err();
        }
        proxy.cut_after(statements);
        let settled = soon(gate.settle(grant, 0)).await;
        assert!(matches!(settled, Err(Error::OutcomeUnknown { .. })), "{settled:?}");
        for ask in asks {
            let Balance { key, remaining: value, .. } = world.gate().balance(ask.clone()).await.unwrap();
            assert_eq!(value, Tokens::ONE, "{key:?}");
            soon(gate.consume(ask)).await.unwrap().granted().unwrap();
        }
    }
}

/// The key is the caller's choice: it neither fails the other calls of its batch, nor opens a gate that is open on
/// failure.
#[tokio::test]
async fn a_key_that_the_encoding_lacks_is_the_error_of_its_caller_alone() {
    let world = World::new().await;
    let name = format!("tollgate_latin_{}", std::process::id());
    let template = "encoding 'LATIN1' lc_collate 'C' lc_ctype 'C' template template0";
    world.sql(&format!("create database {name} owner {OWNER} {template}")).await;
    let options = (*world.pool.connect_options()).clone().username(OWNER).database(&name);
    let pool = one_connection(options).await;
    migrate::run(&mut pool.acquire().await.unwrap()).await.unwrap();
    let gate = patient(&pool).on_failure(OnFailure::Open).build();
    let (euro, plain) = tokio::join!(gate.consume(MANY.key("€")), gate.consume(MANY.key("e")));
    assert!(matches!(euro, Err(Error::Database { .. })), "{euro:?}");
    plain.unwrap().granted().unwrap();
    pool.close().await;
    run_until_done(&mut world.admin().await, &format!("drop database {name} with (force)")).await;
}

/// Time stands still for a row from the future until the clock has caught up, beyond the timeout.
#[tokio::test]
async fn who_would_wait_for_a_row_from_the_future_is_refused_at_once() {
    let world = World::new().await;
    let proxy = Proxy::new(&world.url());
    let pool = one_connection(proxy.options()).await;
    let gate = patient(&pool).build();
    let fast = Limit::token_bucket("fast", 1_000_000, SECOND);
    gate.consume(fast.key("k").cost(1_000_000)).await.unwrap().granted().unwrap();
    world
        .sql(
            "update tollgate.durable set ts = clock_timestamp() + interval '1 hour', value = -1000000000000,
                                        full_at = clock_timestamp() + interval '2 hours'",
        )
        .await;
    let before = proxy.statements();
    let denied = soon(gate.wait(fast.key("k"), 10 * MINUTE)).await.unwrap().denied().unwrap();
    assert!(denied.retry_after().unwrap() > 50 * MINUTE, "{denied:?}");
    assert_eq!(proxy.statements() - before, 1);
}

/// The place of a row identifies it only together with the partition.
#[tokio::test]
async fn a_partitioned_table_is_written_where_the_row_is() {
    let world = World::new().await;
    world
        .sql(
            "drop view tollgate.balances;
             alter table tollgate.durable rename to plain;
             create table tollgate.durable (like tollgate.plain, primary key (part, name, key, shard))
                partition by hash (key);
             grant select, insert, update on tollgate.durable to public;
             create table tollgate.p0 partition of tollgate.durable for values with (modulus 2, remainder 0);
             create table tollgate.p1 partition of tollgate.durable for values with (modulus 2, remainder 1)",
        )
        .await;
    let gate = patient(&pool(&world.url(), 1).await).build();
    for key in 0..6 {
        gate.consume(MANY.key(key)).await.unwrap().granted().unwrap();
    }
    gate.consume(MANY.key(0)).await.unwrap().granted().unwrap();
    gate.consume([MANY.key(1), MANY.key(2)]).await.unwrap().granted().unwrap();
    for key in 0..6 {
        let taken = if key < 3 { 2 } else { 1 };
        assert_eq!(gate.balance(MANY.key(key)).await.unwrap().remaining, Tokens::new(1_000_000 - taken), "{key}");
    }
}
