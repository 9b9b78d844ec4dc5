//! A search path in which strangers come before `pg_catalog`, as in services that stop the clock for tests. All other
//! tests run with `strangers.sql` behind it, where only functions that fit better are found.

use std::path::Path;

use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};
use tollgate::migrate;

use crate::world::{LATE, OWNER, World};

async fn listen_to_strangers(conn: &mut PgConnection) {
    conn.execute(AssertSqlSafe(format!("set search_path = {LATE}; set plan_cache_mode = force_generic_plan")))
        .await
        .unwrap();
}

/// Whether a statement would call a stranger's function, or an operator that fits better. A plan that is not run looks
/// up all rights to execute.
async fn is_led_astray(conn: &mut PgConnection, sql: &str) -> bool {
    let parameters = (1..=40).rev().find(|number| sql.contains(&format!("${number}"))).unwrap_or(0);
    let nulls = vec!["null"; parameters].join(", ");
    let nulls = if parameters > 0 { format!("({nulls})") } else { nulls };
    let mut tx = conn.begin().await.unwrap();
    tx.execute(AssertSqlSafe(format!("prepare asked as {sql}"))).await.unwrap();
    let explained = tx.execute(AssertSqlSafe(format!("explain execute asked{nulls}"))).await;
    tx.rollback().await.unwrap();
    conn.execute("deallocate asked").await.unwrap();
    match explained {
        Ok(_) => false,
        Err(error) if error.to_string().contains("permission denied for function") => true,
        Err(error) => panic!("{error}: {sql}"),
    }
}

#[tokio::test]
async fn no_statement_about_rows_calls_a_strangers_function_or_operator() {
    let world = World::new().await;
    let mut conn = world.connect().await;
    listen_to_strangers(&mut conn).await;
    for astray in
        ["select floor(1.5)", "select 2::int8 = 2.5", "select from tollgate.ephemeral where shard = part::numeric"]
    {
        assert!(is_led_astray(&mut conn, astray).await, "{astray}");
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/store/sql");
    let mut tried = 0;
    for folder in [folder.clone(), folder.join("ephemeral")] {
        for file in std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).filter(|file| file.is_file()) {
            let sql = std::fs::read_to_string(&file).unwrap();
            assert!(!is_led_astray(&mut conn, &sql).await, "{}", file.display());
            tried += 1;
        }
    }
    assert!(tried > 20, "{tried}");
}

#[tokio::test]
async fn no_migration_calls_a_strangers_function_or_operator() {
    for by_text in [false, true] {
        let world = World::unmigrated().await;
        let mut conn = world.connect_as(OWNER).await;
        listen_to_strangers(&mut conn).await;
        migrate::dry_run(&mut conn).await.unwrap();
        if by_text {
            conn.execute(AssertSqlSafe(migrate::sql())).await.unwrap();
        }
        migrate::run(&mut conn).await.unwrap();
        assert!(migrate::status(&mut conn).await.unwrap().is_current());
        migrate::validate(&mut conn).await.unwrap();
        assert_eq!(migrate::parts(&mut conn).await.unwrap(), 0);
        assert!(!is_led_astray(&mut conn, "select * from tollgate.balances").await);
        let row = "insert into tollgate.durable values (0, 'n', 'k', 0, 0, 'epoch', 'epoch')";
        assert!(!is_led_astray(&mut conn, row).await);
        conn.execute(row).await.unwrap();
    }
}
