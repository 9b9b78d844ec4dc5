//! How the tables come to be.

use std::hash::{DefaultHasher, Hash, Hasher};

use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tollgate::migrate::{self, MigrateError};
use tollgate::{Error, Limit, Limiter, MINUTE, SECOND, SetupFault};

use crate::traced::traced;
use crate::world::{ON_CALL, OWNER, World, pid, second};

/// The number of migrations.
fn all() -> usize {
    std::fs::read_dir("migrations").unwrap().count()
}

#[tokio::test]
async fn run_twice_it_does_nothing_the_second_time() {
    let world = World::unmigrated().await;
    let mut conn = world.connect().await;
    assert_eq!(migrate::run(&mut conn).await.unwrap().len(), all());
    assert_eq!(migrate::run(&mut conn).await.unwrap(), []);
    let status = migrate::status(&mut conn).await.unwrap();
    assert!(status.is_current());
    assert_eq!((status.applied.len(), status.newer.len()), (all(), 0));
    migrate::validate(&mut conn).await.unwrap();
}

#[test]
fn no_run_tells_of_a_history_that_is_there_already() {
    let log = traced(async {
        let world = World::unmigrated().await;
        let mut conn = world.connect().await;
        assert_eq!(migrate::run(&mut conn).await.unwrap().len(), all());
        assert_eq!(migrate::run(&mut conn).await.unwrap(), []);
    });
    let notices: Vec<_> = log.lines().filter(|line| line.contains("already exists")).collect();
    assert!(notices.is_empty() && log.contains("sqlx"), "{notices:#?}");
}

#[tokio::test]
async fn of_eight_runners_at_once_one_applies_and_the_others_find_nothing_to_do() {
    let world = World::unmigrated().await;
    let mut runners = Vec::new();
    for _ in 0..8 {
        let mut conn = world.connect().await;
        sqlx::raw_sql("set lock_timeout = '10min'").execute(&mut conn).await.unwrap();
        runners.push(tokio::spawn(async move { migrate::run(&mut conn).await.map(|applied| applied.len()) }));
    }
    let mut applied = Vec::new();
    for runner in runners {
        applied.push(runner.await.unwrap().unwrap());
    }
    applied.sort_unstable();
    assert_eq!(applied, [0, 0, 0, 0, 0, 0, 0, all()]);
}

#[tokio::test]
async fn a_migration_that_fails_leaves_nothing_of_the_others() {
    let world = World::unmigrated().await;
    world
        .sql(&format!("create schema tollgate authorization {OWNER}; create table tollgate.durable (in_the_way int)"))
        .await;
    let mut conn = world.connect().await;
    let failed = migrate::run(&mut conn).await;
    assert!(matches!(failed, Err(MigrateError::Failed(_))), "{failed:?}");
    let left: i64 =
        sqlx::query_scalar("select count(*) from pg_class where relnamespace = 'tollgate'::regnamespace::oid")
            .fetch_one(&mut conn)
            .await
            .unwrap();
    assert_eq!(left, 1, "only what was in the way");
    assert_eq!(migrate::status(&mut conn).await.unwrap().pending.len(), all());
}

#[tokio::test]
async fn a_dry_run_says_what_a_run_would_do_and_does_not_do_it() {
    let world = World::unmigrated().await;
    let mut conn = world.connect().await;
    assert_eq!(migrate::dry_run(&mut conn).await.unwrap().len(), all());
    assert_eq!(migrate::status(&mut conn).await.unwrap().pending.len(), all());
}

#[tokio::test]
async fn in_the_callers_transaction_migrations_share_its_fate() {
    let world = World::unmigrated().await;
    let mut conn = world.connect().await;
    let mut tx = conn.begin().await.unwrap();
    migrate::run(&mut tx).await.unwrap();
    let balance = Limiter::new().balance(&mut tx, Limit::token_bucket("early", 1, SECOND).global()).await;
    assert!(balance.unwrap().is_full());
    tx.rollback().await.unwrap();
    assert_eq!(migrate::status(&mut conn).await.unwrap().applied, []);
}

/// Any role that may log in can hold the lock, for as long as it likes.
#[tokio::test]
async fn where_somebody_keeps_the_lock_of_the_migrations_they_end_and_say_how_to_find_them() {
    let world = World::unmigrated().await;
    let mut holder = world.connect().await;
    let mut conn = world.connect().await;
    let lock = i64::from_be_bytes(*b"tollgate");
    sqlx::query("select pg_advisory_lock($1)").bind(lock).execute(&mut holder).await.unwrap();
    sqlx::raw_sql("set lock_timeout = '20ms'").execute(&mut conn).await.unwrap();
    let mut said = Vec::new();
    for failed in [migrate::run(&mut conn).await, migrate::dry_run(&mut conn).await] {
        let Err(error @ MigrateError::Locked) = failed else { panic!("{failed:?}") };
        said.push(error.to_string());
    }
    let sql = sqlx::raw_sql(AssertSqlSafe(migrate::sql())).execute(&mut conn).await.unwrap_err();
    said.push(sql.as_database_error().unwrap().message().to_owned());
    for said in said {
        let (sentence, query) = said.strip_suffix(')').unwrap().split_once(" (find it with: ").unwrap();
        assert!(sentence.starts_with("another session keeps the lock of the migrations"), "{said}");
        let found: Vec<i32> = sqlx::query_scalar(AssertSqlSafe(query)).fetch_all(&world.pool).await.unwrap();
        assert_eq!(found, [pid(&mut holder).await]);
    }
    // Its backend may outlive the connection for a moment.
    sqlx::raw_sql("select pg_advisory_unlock_all()").execute(&mut holder).await.unwrap();
    holder.close().await.unwrap();
    assert_eq!(migrate::run(&mut conn).await.unwrap().len(), all());
    sqlx::raw_sql(AssertSqlSafe(migrate::sql())).execute(&mut conn).await.unwrap();
}

/// The server tells how long it would wait.
#[tokio::test]
async fn migrations_wait_for_the_lock_for_a_minute_and_leave_the_timeout_of_before() {
    let world = World::unmigrated().await;
    let mut conn = world.connect().await;
    let mut tx = conn.begin().await.unwrap();
    migrate::run(&mut tx).await.unwrap();
    let after: String = sqlx::query_scalar("select current_setting('lock_timeout')").fetch_one(&mut *tx).await.unwrap();
    assert_eq!(after, "0");
    tx.rollback().await.unwrap();
    world
        .sql(
            "alter function pg_catalog.pg_advisory_xact_lock(int8) rename to true_lock;
             create function pg_catalog.pg_advisory_xact_lock(int8) returns void language plpgsql as
                 'begin raise exception ''for %'', pg_catalog.current_setting(''lock_timeout''); end'",
        )
        .await;
    let asked = migrate::run(&mut conn).await.unwrap_err();
    let asked = std::error::Error::source(&asked).unwrap().to_string();
    assert!(asked.contains("for 1min"), "{asked}");
    let asked = sqlx::raw_sql(AssertSqlSafe(migrate::sql())).execute(&mut conn).await.unwrap_err().to_string();
    assert!(asked.contains("for 1min"), "{asked}");
}

#[tokio::test]
async fn an_older_release_works_on_a_newer_schema() {
    let world = World::new().await;
    world
        .sql(
            "insert into tollgate.schema_history values (99, 'from_the_future', '2030-01-01T00:00:00Z', '1');
              alter table tollgate.durable add column from_the_future text",
        )
        .await;
    let mut conn = world.connect_as(OWNER).await;
    assert_eq!(migrate::run(&mut conn).await.unwrap(), []);
    let status = migrate::status(&mut conn).await.unwrap();
    assert!(status.is_current());
    assert_eq!(status.newer[0].to_string(), "V99__from_the_future");
    migrate::validate(&mut conn).await.unwrap();
    let mut tx = conn.begin().await.unwrap();
    let limit = Limit::token_bucket("works", 5, MINUTE);
    Limiter::new().consume(&mut tx, limit.global()).await.unwrap().granted().unwrap();
}

#[tokio::test]
async fn a_migration_applied_from_another_text_is_an_error_with_its_name() {
    let world = World::new().await;
    world.sql("update tollgate.schema_history set checksum = '42' where version = 2").await;
    let mut conn = world.connect_as(OWNER).await;
    for failed in [migrate::run(&mut conn).await.map(drop), migrate::validate(&mut conn).await] {
        assert!(
            matches!(&failed, Err(MigrateError::Edited { version: 2, name, .. }) if name == "create_durable"),
            "{failed:?}"
        );
    }
}

/// A feature of refinery that any crate of the host application can switch widens versions to 64 bits, and with them
/// the column and every checksum.
#[tokio::test]
async fn a_history_with_wide_versions_is_the_same_history() {
    let world = World::new().await;
    world.sql("alter table tollgate.schema_history alter column version type int8").await;
    for (version, name) in [(1_i64, "create_ephemeral"), (2, "create_durable"), (3, "create_calls")] {
        let sql = std::fs::read_to_string(format!("migrations/V{version}__{name}.sql")).unwrap();
        let mut hasher = DefaultHasher::new();
        (name, version, sql.as_str()).hash(&mut hasher);
        world
            .sql(&format!(
                "update tollgate.schema_history set checksum = '{}' where version = {version}",
                hasher.finish()
            ))
            .await;
    }
    let mut conn = world.connect_as(OWNER).await;
    assert_eq!(migrate::run(&mut conn).await.unwrap(), []);
    migrate::validate(&mut conn).await.unwrap();
}

#[tokio::test]
async fn the_sql_text_makes_the_same_schema_and_is_safe_to_run_twice() {
    let (by_run, by_text) = (World::new().await, World::unmigrated().await);
    let mut conn = by_text.connect().await;
    for _ in 0..2 {
        sqlx::raw_sql(AssertSqlSafe(migrate::sql())).execute(&mut conn).await.unwrap();
    }
    assert_eq!(migrate::run(&mut conn).await.unwrap(), []);
    migrate::validate(&mut conn).await.unwrap();
    assert_eq!(definitions(&mut conn).await, definitions(&mut by_run.connect_as(OWNER).await).await);
}

/// Every column, constraint, comment and view, as text.
async fn definitions(conn: &mut PgConnection) -> Vec<String> {
    let sql = "
        select format('%s %s.%s %s %s', c.relpersistence, c.relname, a.attname, a.atttypid::regtype,
          col_description(c.oid, a.attnum))
          from pg_class c join pg_attribute a on a.attrelid = c.oid
         where c.relnamespace = 'tollgate'::regnamespace::oid and a.attnum > 0
        union all
        select format('%s %s %s', conrelid::regclass, conname, pg_get_constraintdef(oid))
          from pg_constraint where connamespace = 'tollgate'::regnamespace::oid
        union all
        select pg_get_viewdef('tollgate.balances'::regclass)
        order by 1";
    sqlx::query_scalar(sql).fetch_all(conn).await.unwrap()
}

#[tokio::test]
async fn a_damaged_schema_is_an_error_with_the_place() {
    for (damage, table, column) in [
        ("alter table tollgate.ephemeral set logged", "ephemeral", "part"),
        ("drop table tollgate.durable cascade", "durable", "part"),
    ] {
        let world = World::new().await;
        world.sql(damage).await;
        let fault = migrate::validate(&mut world.connect_as(OWNER).await).await;
        assert!(
            matches!(fault, Err(MigrateError::Damaged { table: t, column: c, .. }) if (t, c) == (table, column)),
            "{damage}: {fault:?}"
        );
    }
    let world = World::unmigrated().await;
    let missing = migrate::validate(&mut world.connect_as(OWNER).await).await.unwrap_err();
    assert_eq!(missing.to_string(), "migration V1__create_ephemeral is not applied (run `tollgate migrate up`)");
}

#[tokio::test]
async fn whichever_column_is_lost_validation_names_it() {
    let world = World::new().await;
    let mut conn = world.connect_as(OWNER).await;
    sqlx::raw_sql("set search_path = pg_catalog").execute(&mut conn).await.unwrap();
    let columns = "select c.relname::text, a.attname::text from pg_class c join pg_attribute a on a.attrelid = c.oid
                    where c.relnamespace = 'tollgate'::regnamespace and c.relkind = 'r'
                      and c.relname <> 'schema_history' and a.attnum > 0";
    let columns: Vec<(String, String)> = sqlx::query_as(columns).fetch_all(&mut conn).await.unwrap();
    assert!(columns.len() > 40, "{columns:?}");
    for (table, column) in columns {
        let mut tx = conn.begin().await.unwrap();
        let lose = format!("alter table tollgate.{table} drop column {column} cascade");
        sqlx::raw_sql(AssertSqlSafe(lose)).execute(&mut *tx).await.unwrap();
        let fault = migrate::validate(&mut tx).await;
        assert!(
            matches!(fault, Err(MigrateError::Damaged { table: t, column: c, .. }) if (t, c) == (&*table, &*column)),
            "{table}.{column}: {fault:?}"
        );
        tx.rollback().await.unwrap();
    }
}

#[tokio::test]
async fn the_search_path_neither_matters_nor_changes() {
    let world = World::unmigrated().await;
    let mut conn = world.connect().await;
    sqlx::raw_sql("create schema \"We\"\"ird\"; set search_path to \"We\"\"ird\"").execute(&mut conn).await.unwrap();
    migrate::run(&mut conn).await.unwrap();
    let path: String = sqlx::query_scalar("show search_path").fetch_one(&mut conn).await.unwrap();
    assert_eq!(path, r#""We""ird""#);
    let mut tx = conn.begin().await.unwrap();
    let limits =
        [Limit::token_bucket("a", 5, MINUTE).global(), Limit::token_bucket("b", 5, MINUTE).ephemeral().global()];
    Limiter::new().consume(&mut tx, limits).await.unwrap().granted().unwrap();
}

#[tokio::test]
async fn a_role_that_owns_the_schema_needs_no_right_to_create_schemas() {
    let world = World::unmigrated().await;
    let role = world.role().await;
    let mut conn = world.connect().await;
    as_role(&mut conn, &role).await;
    let refused = migrate::run(&mut conn).await.unwrap_err();
    assert_eq!(refused.to_string(), "could not create the schema");

    world.sql(&format!("create schema tollgate authorization {role}")).await;
    let mut conn = world.connect().await;
    as_role(&mut conn, &role).await;
    assert_eq!(migrate::run(&mut conn).await.unwrap().len(), all());
}

async fn as_role(conn: &mut PgConnection, role: &str) {
    sqlx::raw_sql(AssertSqlSafe(format!("set role {role}"))).execute(conn).await.unwrap();
}

#[tokio::test]
async fn without_its_schema_the_limiter_names_the_command() {
    let world = World::unmigrated().await;
    let mut tx = world.pool.begin().await.unwrap();
    let missing = Limiter::new().consume(&mut tx, Limit::token_bucket("early", 1, SECOND).global()).await.unwrap_err();
    assert!(matches!(missing, Error::Setup { fault: SetupFault::Schema, .. }), "{missing:?}");
    assert!(missing.to_string().contains("run `tollgate migrate up`"), "{missing}");
}

/// Citus makes a table anew where it gives one back, and the columns of the old table's type are lost.
#[tokio::test]
async fn no_type_is_made_of_the_rows_of_a_table() {
    let world = World::new().await;
    let mut conn = world.admin().await;
    sqlx::raw_sql("set search_path = pg_catalog").execute(&mut conn).await.unwrap();
    let made_of_rows = "select c.relname || '.' || a.attname from pg_class c
                          join pg_attribute a on a.attrelid = c.oid
                          join pg_type t on t.oid = a.atttypid
                          join pg_type e on e.oid = case when t.typelem > 0 then t.typelem else t.oid end
                          join pg_class r on r.oid = e.typrelid and r.relkind = 'r'
                         where c.relnamespace = 'tollgate'::regnamespace";
    let found: Vec<String> = sqlx::query_scalar(made_of_rows).fetch_all(&mut conn).await.unwrap();
    assert_eq!(found, Vec::<String>::new());
    let columns = "select array_agg(attname || ' ' || format_type(atttypid, atttypmod) order by attnum)
                     from pg_attribute where attrelid = to_regclass('tollgate.' || $1) and attnum > 0";
    let mut found = [Vec::<String>::new(), Vec::new()];
    for (of, found) in ["override", "overrides"].into_iter().zip(&mut found) {
        *found = sqlx::query_scalar(columns).bind(of).fetch_one(&mut conn).await.unwrap();
    }
    assert_eq!(found[0], found[1]);
}

#[tokio::test]
async fn the_balances_view_shows_what_is_used_and_rows_from_the_future() {
    let world = World::new().await;
    let limit = Limit::token_bucket("owed", 10, MINUTE).unbounded_reservations();
    let mut tx = world.pool.begin().await.unwrap();
    let far = chrono::DateTime::from_timestamp(9_000_000_000, 0).unwrap();
    let _ = Limiter::new().at(second(0.0)).reserve(&mut tx, limit.key("past").cost(12.5)).await.unwrap();
    let _ = Limiter::new().at(far).reserve(&mut tx, limit.key("future").cost(12.5)).await.unwrap();
    tx.commit().await.unwrap();
    let sql = "select key, storage, used::text, balance::text, is_full, ahead > interval '100 years'
                 from tollgate.balances order by key";
    let rows: Vec<(String, String, String, Option<String>, bool, bool)> =
        sqlx::query_as(sql).fetch_all(&mut world.connect_as(ON_CALL).await).await.unwrap();
    let row = |key: &str, is_full, ahead| {
        (key.to_owned(), "durable".to_owned(), "12.500000".to_owned(), None, is_full, ahead)
    };
    assert_eq!(rows, [row("future", false, true), row("past", true, false)]);
}
