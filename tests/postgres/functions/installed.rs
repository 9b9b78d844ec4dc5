//! The functions as they are in a database: inlined, whole, dumped and restored, and of no use for tables with parts.

use std::process::Command;

use sqlx::PgConnection;
use tollgate::migrate::{self, Callers, MigrateError};
use tollgate_embedded::find_programs;

use super::asked::{defined, one};
use super::{fails, owner};
use crate::teller::run;
use crate::world::{OWNER, World, is_on_citus};

/// A helper that is not inlined is parsed and planned at each call.
#[tokio::test]
async fn the_helpers_are_inlined() {
    let world = World::new().await;
    let mut conn = world.admin().await;
    run(&mut conn, "set search_path = pg_catalog; set track_functions = 'all'").await;
    defined(&mut conn).await;
    run(
        &mut conn,
        "select tollgate.define('steps', 'stepped_bucket', 10, '1s'),
             tollgate.define('grid', 'fixed_window', 10, '1s', start => '0', max_reserved => 9)",
    )
    .await;
    for limit in ["ten", "steps", "grid", "owing"] {
        run(
            &mut conn,
            &format!(
                "select (tollgate.reserve('{limit}', n::text)).granted, (tollgate.reserve('{limit}', '1', 9)).granted,
                        (tollgate.consume_all(array[tollgate.request('{limit}', n::text)])).granted,
                        tollgate.credit('{limit}', '1', 2), tollgate.settle('{limit}', '1', 2, 1, now()),
                        tollgate.debit('{limit}', '1', 1)
                   from generate_series(1, 20) n"
            ),
        )
        .await;
    }
    run(&mut conn, "select pg_stat_force_next_flush()").await;
    let sql = "select calls from pg_stat_user_functions where funcname = '_ask'";
    assert_eq!(one::<i64>(&mut conn, sql).await, 160);
    let sql = "select s.funcname::text from pg_stat_user_functions s join pg_proc p on p.oid = s.funcid
                 join pg_language l on l.oid = p.prolang
                   where l.lanname = 'sql' and s.schemaname = 'tollgate' and s.calls >= 80 order by 1";
    let called: Vec<String> = sqlx::query_scalar(sql).fetch_all(&mut conn).await.unwrap();
    assert_eq!(called, Vec::<String>::new());
}

#[tokio::test]
async fn an_edited_function_is_an_error_with_its_name() {
    let world = World::new().await;
    let mut conn = world.connect_as(OWNER).await;
    migrate::validate(&mut conn).await.unwrap();
    run(
        &mut conn,
        "create or replace function tollgate._step(at bigint, phase bigint, period bigint) returns bigint
                    language sql immutable as 'select (at - phase) / period'",
    )
    .await;
    let edited = migrate::validate(&mut conn).await;
    assert!(matches!(&edited, Err(MigrateError::EditedFunction { name, .. }) if name == "_step"), "{edited:?}");
    run(&mut conn, "drop function tollgate.cancel").await;
    let missing = migrate::validate(&mut conn).await;
    assert!(
        matches!(&missing, Err(MigrateError::EditedFunction { name, .. }) if name == "_step" || name == "cancel"),
        "{missing:?}"
    );
}

#[tokio::test]
async fn a_dump_brings_all_of_it_back() {
    let (world, restored) = (World::new().await, World::unmigrated().await);
    let mut conn = owner(&world).await;
    run(&mut conn, "select tollgate.define('ten', 'token_bucket', 10, '1 day'), tollgate.consume('ten', 'k', 4)").await;
    let role = world.role().await;
    world.sql(&migrate::grants(&role, Callers::Applications)).await;
    let mut dump = Command::new(find_programs().unwrap().join("pg_dump"));
    let dump = dump.args(["--schema=tollgate", "--inserts", "--dbname", &world.url_of(OWNER)]).output().unwrap();
    assert!(dump.status.success(), "{}", String::from_utf8_lossy(&dump.stderr));
    let dump = String::from_utf8(dump.stdout).unwrap();
    // Leaves out the lines that only psql understands.
    let sql: Vec<_> = dump.lines().filter(|line| !line.starts_with('\\')).collect();
    restored.sql(&sql.join("\n")).await;
    let mut conn = owner(&restored).await;
    migrate::validate(&mut conn).await.unwrap();
    assert!(one::<bool>(&mut conn, "select not granted from tollgate.consume('ten', 'k', 7)").await);
    let may = format!("select has_function_privilege('{role}', 'tollgate.balance(text, text)', 'execute')");
    assert!(one::<bool>(&mut conn, &may).await);
    assert_eq!(fails(&mut conn, "insert into tollgate.limits values ('x', 'leaky', 1, 1, 1)").await, "23514");
}

/// They ask part 0, where no row is any more: all keys would be full.
#[tokio::test]
async fn on_distributed_tables_the_functions_refuse() {
    for parts in [1, 8] {
        let world = World::new().await;
        let mut conn = owner(&world).await;
        run(&mut conn, "select tollgate.define('ten', 'token_bucket', 10, '1 day')").await;
        // As `distribute` does.
        let told = "create or replace function tollgate._parts() returns int4 language sql immutable as";
        run(&mut conn, &format!("{told} 'select {parts}'")).await;
        the_functions_refuse(&mut conn).await;
        // Citus plans none of the helpers that read definitions.
        run(&mut conn, "drop table tollgate.limits, tollgate.overrides cascade").await;
        the_functions_refuse(&mut conn).await;
    }
}

/// On the tables of a cluster, where planning may fail before the function runs.
#[tokio::test]
async fn the_functions_refuse_on_citus() {
    if !is_on_citus() {
        return;
    }
    let world = World::new().await;
    let mut conn = world.connect_as(OWNER).await;
    run(&mut conn, "select tollgate.define('ten', 'token_bucket', 10, '1 day')").await;
    the_functions_refuse(&mut conn).await;
}

async fn the_functions_refuse(conn: &mut PgConnection) {
    for sql in [
        "select tollgate.consume('ten', 'k')",
        "select tollgate.consume_global('ten')",
        "select tollgate.reserve('ten', 'k')",
        "select tollgate.check('ten', 'k')",
        "select tollgate.balance('ten', 'k')",
        "select tollgate.consume_all(array[tollgate.request('ten', 'k')])",
        "select tollgate.reserve_all(array[tollgate.request('ten', 'k')])",
        "select tollgate.check_all(array[tollgate.request('ten', 'k')])",
        "select tollgate.credit('ten', 'k', 1)",
        "select tollgate.debit('ten', 'k', 1)",
        "select tollgate.reset('ten', 'k')",
        "select tollgate.settle('ten', 'k', 1, 0, now())",
        "select tollgate.cancel('ten', 'k', 1, now(), now())",
    ] {
        assert_eq!(fails(conn, sql).await, "TG005", "{sql}");
    }
}
