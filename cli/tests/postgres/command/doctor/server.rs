//! The server with its settings and its upkeep, and the poolers and drivers before it.

use sqlx::{Connection as _, PgConnection};
use tollgate::migrate;
use tollgate_embedded::Server;

use super::{expect, findings, set};
use crate::command::{EXAMPLE, run, tollgate};
use crate::pgbouncer::{self, PgBouncer};
use crate::world::{World, soon};

#[tokio::test]
async fn a_pooler_that_loses_named_statements_is_found() {
    if pgbouncer::is_missing() {
        return;
    }
    let world = World::new().await;
    let pooler = PgBouncer::start(&world.command_url(), 2);
    let url = pooler.url(world.name());
    let found = findings(&url, &[]);
    let finding = found.iter().find(|finding| finding["check"] == "pooler").unwrap();
    assert_eq!(finding["severity"], "error", "{finding}");
    assert!(
        finding["what"].as_str().unwrap().contains("does not follow named statements: prepared statement"),
        "{finding}"
    );

    for _ in 0..3 {
        let consumed =
            run(tollgate().args(["consume", "send_message", "ada", "--limits", EXAMPLE, "--database-url", &url]));
        assert_eq!(consumed.status.code(), Some(0), "the command itself works through it: {consumed:?}");
    }
}

#[tokio::test]
async fn a_driver_that_keeps_no_statement_is_found() {
    let world = World::new().await;
    let url = world.command_url();
    let url = format!("{url}{}statement-cache-capacity=0", if url.contains('?') { '&' } else { '?' });
    let found = findings(&url, &[]);
    let finding = found.iter().find(|finding| finding["check"] == "statements").unwrap();
    assert_eq!(finding["severity"], "warning", "{finding}");
    assert!(finding["remedy"].as_str().unwrap().contains("unnamed_statements()"), "{finding}");
}

#[tokio::test]
async fn settings_that_lose_grants_or_break_calls_are_found() {
    for (setting, check, severity) in [
        ("synchronous_commit = off", "synchronous_commit", "warning"),
        ("default_transaction_isolation = 'serializable'", "isolation", "warning"),
        ("default_transaction_read_only = on", "read_only", "error"),
    ] {
        let world = World::new().await;
        set(&world, setting).await;
        expect(&world, &[], check, severity, "");
    }
}

#[tokio::test]
async fn an_old_snapshot_is_found_with_who_holds_it() {
    let world = World::new().await;
    let mut tx = world.pool.begin().await.unwrap();
    sqlx::raw_sql("set transaction isolation level repeatable read; set application_name = 'report'; select 1")
        .execute(&mut *tx)
        .await
        .unwrap();
    expect(&world, &["--old-snapshot", "0s"], "snapshots", "warning", "report, idle in transaction)");
    assert!(
        findings(&world.command_url(), &["--old-snapshot", "1h"]).iter().all(|finding| finding["check"] != "snapshots"),
        "a young one is none"
    );
}

#[tokio::test]
async fn dead_rows_and_costly_updates_are_found() {
    let world = World::new().await;
    let mut conn = world.admin().await;
    for statement in [
        "alter table tollgate.durable set (autovacuum_enabled = false, fillfactor = 100)",
        "create index slow on tollgate.durable (value)",
        "insert into tollgate.durable select 0, 'quota', n::text, 0, 0, now(), now() from generate_series(1, 500) n",
        "do $$ begin for turn in 1..25 loop update tollgate.durable set value = value + 1; end loop; end $$",
    ] {
        sqlx::raw_sql(statement).execute(&mut conn).await.unwrap();
    }
    // The statistics are there once the session that made them has ended.
    conn.close().await.unwrap();
    let counted = "select n_tup_upd >= 12500 from pg_stat_user_tables where relname = 'durable'";
    soon(async { while !sqlx::query_scalar::<_, bool>(counted).fetch_one(&world.pool).await.unwrap() {} }).await;
    expect(&world, &[], "dead_rows", "warning", "tollgate.durable has 12500 dead rows to 500 live ones");
    expect(&world, &[], "hot_updates", "warning", "only 0 % of the updates of tollgate.durable");
    expect(&world, &[], "autovacuum", "warning", "autovacuum is switched off for tollgate.durable");
}

#[tokio::test]
async fn a_log_of_whole_pages_is_found_until_they_are_compressed() {
    // The log is the server's, so it has one of its own.
    let builder = Server::builder().setting("full_page_writes", "on");
    let server = tokio::task::spawn_blocking(|| builder.start()).await.unwrap().unwrap();
    let mut conn = PgConnection::connect(server.url()).await.unwrap();
    migrate::run(&mut conn).await.unwrap();
    let rows = "insert into tollgate.durable
                select 0, 'quota', n::text, 0, 0, now(), now() from generate_series(1, 20000) n";
    sqlx::raw_sql(rows).execute(&mut conn).await.unwrap();
    // A row of each page, again and again after a checkpoint.
    for _ in 0..60 {
        let some = "update tollgate.durable set value = value - 1 where key::int % 100 = 0";
        sqlx::raw_sql("checkpoint").execute(&mut conn).await.unwrap();
        sqlx::raw_sql(some).execute(&mut conn).await.unwrap();
    }
    conn.close().await.unwrap();
    let mut conn = PgConnection::connect(server.url()).await.unwrap();
    let counted = "select n_tup_upd >= 12000 from pg_stat_user_tables where relname = 'durable'";
    soon(async { while !sqlx::query_scalar::<_, bool>(counted).fetch_one(&mut conn).await.unwrap() {} }).await;
    let found = || findings(server.url(), &[]).into_iter().find(|finding| finding["check"] == "log");
    let finding = found().expect("most of the log are pages");
    assert_eq!(finding["severity"], "warning", "{finding}");
    assert!(finding["remedy"].as_str().unwrap().contains("wal_compression"), "{finding}");
    sqlx::raw_sql("alter system set wal_compression = on").execute(&mut conn).await.unwrap();
    sqlx::raw_sql("select pg_reload_conf()").execute(&mut conn).await.unwrap();
    soon(async { while found().is_some() {} }).await;
}
