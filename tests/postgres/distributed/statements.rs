//! The statements about rows: each names one part, and the library sends no others.

use std::collections::BTreeSet;
use std::path::PathBuf;

use sqlx::PgConnection;
use tollgate::{Limit, MINUTE, SECOND, Tokens};

use super::{LIMITER, sharded};
use crate::gate::stage::{EVER, patient, pool};
use crate::teller::both;
use crate::world::{PARTS, World};

/// Judged by the statements that Citus was seen to send to one node: see `docs/citus.md`. A sweep goes by the places of
/// rows, on each node.
#[test]
fn each_statement_names_one_part() {
    let statements = statements();
    assert!(statements.len() >= 20, "{statements:?}");
    for statement in &statements {
        let text: String = statement.lines().filter(|line| !line.starts_with("--")).collect::<Vec<_>>().join("\n");
        // The coordinator crashes where a column is set to a slice itself.
        assert!(!text.contains("list = ("), "{text}");
        // Citus takes no CASE around a function that is not immutable, where a statement begins with a write.
        let is_write = ["update", "delete"].iter().any(|verb| text.starts_with(verb));
        assert!(!is_write || !text.contains("case when "), "{text}");
        // A text in quotes names a table to a function, which reads no row of it.
        let text: String = text.split('\'').step_by(2).collect();
        let tables: usize = ["ephemeral", "durable", "calls"]
            .map(|table| text.matches(&format!("tollgate.{table}")).count())
            .iter()
            .sum();
        if text.starts_with("insert") {
            let selects = text.contains("values ($1, ") || text.contains("\nselect $1, ");
            assert!(text.contains(" (part, name, key, ") && selects && tables == 1, "{text}");
        } else {
            assert!(
                tables > 0 && text.matches("part = $1").count() == tables,
                "each table is asked by the part: {text}"
            );
        }
    }
}

#[tokio::test]
async fn nothing_else_is_said() {
    let world = World::of_parts(PARTS).await;
    let known = statements();
    for limit in [Limit::token_bucket("one", 10, EVER), sharded()] {
        for limit in both(&limit) {
            let mut tx = world.pool.begin().await.unwrap();
            let ask = || limit.key("k");
            let with = |other| [limit.key("k"), limit.key(other), Limit::token_bucket("other", 5, MINUTE).global()];
            LIMITER.consume(&mut tx, ask().cost(8)).await.unwrap().granted().unwrap();
            LIMITER.consume(&mut tx, ask().cost(8)).await.unwrap().denied().unwrap();
            LIMITER.consume(&mut tx, with("l")).await.unwrap().granted().unwrap();
            LIMITER.consume(&mut tx, with("absent").map(|ask| ask.cost(4))).await.unwrap().denied().unwrap();
            LIMITER.credit(&mut tx, ask()).await.unwrap();
            LIMITER.debit(&mut tx, ask().cost(20)).await.unwrap();
            LIMITER.lock_timeout(SECOND).reset(&mut tx, ask()).await.unwrap();
            LIMITER.check(&mut tx, ask()).await.unwrap().granted().unwrap();
            LIMITER.balance(&mut tx, ask()).await.unwrap();
            let grant = LIMITER.consume(&mut tx, ask()).await.unwrap().granted().unwrap();
            LIMITER.settle(&mut tx, grant, 2).await.unwrap();
            let booked = LIMITER.reserve(&mut tx, ask()).await.unwrap().granted().unwrap();
            LIMITER.cancel(&mut tx, booked).await.unwrap_err();
            let said = prepared(&mut tx).await;
            assert!(said.len() >= 5, "{said:?}");
            assert_eq!(said.difference(&known).collect::<Vec<_>>(), Vec::<&String>::new());
            tx.commit().await.unwrap();
        }
    }
}

#[tokio::test]
async fn nor_by_a_gate() {
    let world = World::of_parts(PARTS).await;
    let pool = pool(&world.url(), 1).await;
    let gate = patient(&pool).parts(PARTS).remember_refusals(MINUTE).build();
    for limit in both(&Limit::token_bucket("ten", 10, EVER)) {
        let asks = |key: &'static str| [limit.key(key), limit.key("both")];
        for _ in 0..3 {
            gate.consume(limit.key("one")).await.unwrap().granted().unwrap();
            gate.consume(asks("several")).await.unwrap().granted().unwrap();
        }
        assert_eq!(gate.balance(limit.key("both")).await.unwrap().remaining, Tokens::new(7));
        gate.consume(limit.key("one").cost(8)).await.unwrap().denied().unwrap();
        gate.reset(limit.key("one")).await.unwrap();
        let grant = gate.consume(limit.key("one")).await.unwrap().granted().unwrap();
        gate.settle(grant, 0).await.unwrap();
        assert!(gate.balance(limit.key("one")).await.unwrap().is_full());
    }
    let said = prepared(&mut pool.acquire().await.unwrap()).await;
    assert!(said.len() >= 8, "{said:?}");
    assert_eq!(said.difference(&statements()).collect::<Vec<_>>(), Vec::<&String>::new());
}

/// All statements about rows, but those of the sweeper.
fn statements() -> BTreeSet<String> {
    let others = [
        "claim",
        "claim_free",
        "count_pages",
        "delete_full",
        "find_full",
        "forget_calls",
        "is_marked",
        "mark_transaction",
        "parts",
        "save_calls",
        "swap_calls",
    ];
    statement_files()
        .into_iter()
        .filter(|path| !others.contains(&path.file_stem().unwrap().to_str().unwrap()))
        .map(|path| std::fs::read_to_string(path).unwrap())
        .collect()
}

/// Where all statements are written.
pub(crate) fn statement_files() -> Vec<PathBuf> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src/store/sql");
    let files = [folder.clone(), folder.join("ephemeral")].map(|folder| std::fs::read_dir(folder).unwrap());
    files.into_iter().flatten().map(|file| file.unwrap().path()).filter(|path| path.is_file()).collect()
}

/// The statements about our tables that a session has prepared, and so executed.
async fn prepared(conn: &mut PgConnection) -> BTreeSet<String> {
    let sql = "select statement from pg_prepared_statements where statement like '%tollgate.%'";
    let rows = sqlx::raw_sql(sql).fetch_all(conn).await.unwrap();
    rows.iter().map(|row| sqlx::Row::get(row, 0)).collect()
}
