//! A pass over the tables: the rows that it sees, the rows that it leaves, and how it ends.

use std::time::Duration;

use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use sqlx::postgres::PgPoolOptions;
use tollgate::{Error, Limit, MINUTE, SetupFault, Storage, Swept};

use super::quick;
use crate::gate::stage::{EVER, pool, soon};
use crate::teller::Teller;
use crate::world::{World, second};

#[tokio::test]
async fn each_limit_has_its_own_time_and_nothing_goes_unless_it_is_swept() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    for (limit, key) in [("a", "used"), ("a", "unused"), ("b", "k")] {
        let period = if limit == "a" { MINUTE } else { 10 * MINUTE };
        let limit = Limit::token_bucket(if limit == "a" { "a" } else { "b" }, 1, period).ephemeral();
        teller.consume(0.0, limit.key(key)).await.granted().unwrap();
    }
    teller.tx.commit().await.unwrap();
    let mut teller = Teller::of(&world).await;
    teller.consume(120.0, Limit::token_bucket("a", 1, MINUTE).ephemeral().key("used")).await.granted().unwrap();
    teller.tx.commit().await.unwrap();
    assert_eq!(world.rows().await, 3);
    assert_eq!(quick().only(Storage::Durable).at(second(121.0)).sweep(&world.pool).await.unwrap().rows(), 0);
    assert_eq!(quick().dry_run().at(second(121.0)).sweep(&world.pool).await.unwrap().ephemeral, 1);
    assert_eq!(world.rows().await, 3);
    assert_eq!(quick().at(second(121.0)).sweep(&world.pool).await.unwrap().ephemeral, 1);
    let left: Vec<(String, String)> =
        sqlx::query_as("select name, key from tollgate.ephemeral order by 1").fetch_all(&world.pool).await.unwrap();
    assert_eq!(left, [("a".to_owned(), "used".to_owned()), ("b".to_owned(), "k".to_owned())]);
}

/// Ten tokens over four rows, of which eight are taken: three rows are empty, and one has lost half a token of its
/// share.
#[tokio::test]
async fn each_of_several_rows_goes_when_its_own_share_is_full() {
    const SPREAD: Limit = Limit::token_bucket("spread", 10, MINUTE).shards(4).ephemeral();
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    teller.consume(0.0, SPREAD.global().cost(8)).await.granted().unwrap();
    teller.tx.commit().await.unwrap();
    assert_eq!(world.rows().await, 4);
    let sweeper = || quick().margin(MINUTE);
    for (at, rows) in [(71.999, 0), (72.0, 1), (119.999, 0), (120.0, 3)] {
        assert_eq!(sweeper().at(second(at)).sweep(&world.pool).await.unwrap().rows(), rows, "{at}");
    }
}

/// Rows of every age on many pages, more on each than a batch takes.
#[tokio::test]
async fn a_pass_sees_every_row_once_and_a_batch_is_never_larger_than_was_said() {
    let world = World::new().await;
    let before: String =
        sqlx::query_scalar("select current_setting('synchronous_commit')").fetch_one(&world.pool).await.unwrap();
    for (table, columns) in [("durable", "value, ts, full_at"), ("ephemeral", "value, ts, full_at")] {
        world
            .sql(&format!(
                "insert into tollgate.{table} (part, name, key, shard, {columns})
                 select 0, 'many', n, 0, 0, now() - interval '2 hours', now() + (n % 3 - 1) * interval '1 hour'
                   from generate_series(1, 20000) n;
                 create table tollgate.deletions (n int8, commit text);
                 grant all on tollgate.deletions to public;
                 create function tollgate.note() returns trigger language plpgsql as
                     'begin insert into tollgate.deletions
                          select count(*), current_setting(''synchronous_commit'') from gone; return null; end';
                 create trigger note after delete on tollgate.{table}
                     referencing old table as gone for each statement execute function tollgate.note()"
            ))
            .await;
        let mut pass = quick().batch(70).pass(&world.pool);
        let mut seen = vec![pass.progress()];
        while pass.step().await.unwrap() {
            seen.push(pass.progress());
        }
        let swept = pass.swept();
        // The remainders 0 and 1 of three: an hour ago, and just now.
        assert_eq!((swept.rows(), swept.missed, swept.yielded), (13_333, 0, false), "{table}");
        assert_eq!(world.rows().await, 20_000 - 13_333);
        assert!(swept.pages > 128, "{swept:?}");
        assert!(seen.is_sorted(), "{seen:?}");
        assert_eq!(pass.progress(), (swept.pages, swept.pages));
        let sql = "select max(n), count(*), bool_and(commit = 'off'), current_setting('synchronous_commit')
                     from tollgate.deletions";
        let deletions: (i64, i64, bool, String) = sqlx::query_as(sql).fetch_one(&world.pool).await.unwrap();
        // A caller that waits for a row that goes does not wait for the disk, and the session's own commits are as
        // before.
        assert_eq!(deletions, (70, i64::try_from(swept.batches).unwrap(), true, before.clone()), "{table}");
        world
            .sql(&format!(
                "truncate tollgate.{table}; drop table tollgate.deletions; drop function tollgate.note cascade"
            ))
            .await;
    }
}

#[tokio::test]
async fn the_clock_is_the_databases() {
    let world = World::new().await;
    world
        .sql(
            "insert into tollgate.ephemeral values
                 (0, 'c', 'past', 0, 0, clock_timestamp() - interval '1 hour', clock_timestamp()),
                 (0, 'c', 'future', 0, 0, clock_timestamp(), clock_timestamp() + interval '1 hour'),
                 -- Of none of ours: full before the instant that it stands at.
                 (0, 'c', 'odd', 0, 0, clock_timestamp(), '4713-01-01 BC'),
                 (0, 'c', 'never', 0, 0, clock_timestamp(), '9999-01-01'),
                 -- The clock has gone back since.
                 (0, 'c', 'ahead', 0, 5, clock_timestamp() + interval '1 hour', clock_timestamp() + interval '1 hour')",
        )
        .await;
    assert_eq!(quick().sweep(&world.pool).await.unwrap().ephemeral, 1);
    assert!(world.row(Storage::Ephemeral, "c", "past").await.is_none());
    assert_eq!(world.rows().await, 4);
}

#[tokio::test]
async fn a_task_sweeps_until_it_is_stopped_and_tells_what_it_did() {
    let world = World::new().await;
    let sweeping = quick().spawn(world.pool.clone(), Duration::from_millis(20));
    for round in 0..3 {
        world.sql(&format!("insert into tollgate.ephemeral values (0, 'c', '{round}', 0, 0, now(), now())")).await;
        soon(async { while world.rows().await > 0 {} }).await;
    }
    let swept = soon(sweeping.stop()).await;
    assert_eq!((swept.ephemeral, swept.durable), (3, 0));
    world.sql("insert into tollgate.ephemeral values (0, 'c', 'late', 0, 0, now(), now())").await;
    assert_eq!(world.rows().await, 1);

    // One that waits for its time, or whose database is away, is stopped as well.
    assert_eq!(soon(quick().spawn(world.pool.clone(), EVER).stop()).await, Swept::default());
    let nobody = PgPoolOptions::new().acquire_timeout(Duration::from_millis(50));
    let nobody = nobody.connect_lazy("postgres://nobody@127.0.0.1:1/none").unwrap();
    assert_eq!(soon(quick().spawn(nobody, Duration::ZERO).stop()).await, Swept::default());
}

#[tokio::test]
async fn what_goes_wrong_has_a_name() {
    let world = World::unmigrated().await;
    let error = quick().sweep(&world.pool).await.unwrap_err();
    assert!(matches!(error, Error::Setup { fault: SetupFault::Schema, .. }), "{error:?}");
    assert!(error.to_string().contains("tollgate migrate up"), "{error}");

    let world = World::new().await;
    let role = world.role().await;
    world
        .sql(&format!(
            "grant usage on schema tollgate to {role}; grant select on all tables in schema tollgate to {role}"
        ))
        .await;
    world.sql("insert into tollgate.durable values (0, 'd', 'k', 0, 0, now(), now())").await;
    let url = world.url();
    let pool = PgPoolOptions::new().max_connections(1).acquire_timeout(5 * MINUTE).after_connect(move |conn, _| {
        let set = format!("set role {role}");
        Box::pin(async move { sqlx::raw_sql(sqlx::AssertSqlSafe(set)).execute(conn).await.map(drop) })
    });
    let pool = pool.connect(&url).await.unwrap();
    let error = quick().sweep(&pool).await.unwrap_err();
    assert!(matches!(error, Error::Setup { fault: SetupFault::Rights, .. }) && !error.is_retryable(), "{error:?}");
    assert_eq!(quick().dry_run().sweep(&pool).await.unwrap().durable, 1);
    pool.close().await;
}

#[tokio::test]
async fn without_names_no_statement_stays_prepared() {
    let world = World::new().await;
    world.sql("insert into tollgate.durable values (0, 'd', 'k', 0, 0, now(), now())").await;
    let pool = pool(&world.url(), 1).await;
    assert_eq!(quick().unnamed_statements().sweep(&pool).await.unwrap().rows(), 1);
    let count = "select count(*) from pg_prepared_statements where statement like '%tollgate%'";
    let prepared: i64 = sqlx::raw_sql(count).fetch_one(&pool).await.map(|row| sqlx::Row::get(&row, 0)).unwrap();
    assert_eq!(prepared, 0);
}

/// A recorder is set for a thread, so everything happens on this one.
#[test]
fn a_task_counts_what_it_deletes_and_ends_when_it_is_dropped() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    metrics::with_local_recorder(&recorder, || {
        runtime.block_on(async {
            let world = World::new().await;
            let pool = pool(&world.url(), 1).await;
            world
                .sql("insert into tollgate.ephemeral select 0, 'c', n, 0, 0, now(), now() from generate_series(1, 5) n")
                .await;
            let tasks = alive();
            let sweeping = quick().spawn(pool.clone(), Duration::from_millis(20));
            assert_eq!(alive(), tasks + 1);
            soon(async { while world.rows().await > 0 {} }).await;
            drop(sweeping);
            soon(async {
                while alive() > tasks {
                    tokio::task::yield_now().await;
                }
            })
            .await;
        });
    });
    let snapshot = snapshotter.snapshot().into_vec();
    let counted: Vec<_> = snapshot
        .iter()
        .filter(|(key, ..)| key.key().name() == "tollgate_swept_rows_total")
        .map(|(key, _, _, value)| (key.key().labels().map(|label| label.value().to_owned()).collect::<String>(), value))
        .collect();
    assert!(counted.contains(&("ephemeral".to_owned(), &DebugValue::Counter(5))), "{counted:?}");
}

/// How many tasks the runtime has.
fn alive() -> usize {
    tokio::runtime::Handle::current().metrics().num_alive_tasks()
}
