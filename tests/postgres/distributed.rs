//! By statements that each name one key, as Citus sends them to the one node that has it. Here there is one node: what is tested
//! is that nothing else is said, and that by these, too, all answers are right.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

use sqlx::PgConnection;
use sqlx::postgres::PgPoolOptions;
use tollgate::{Error, Gate, Limit, Limiter, MINUTE, Request, SECOND, Tokens};

use crate::gate::stage::EVER;
use crate::teller::both;
use crate::world::{DISTRIBUTED, POOLER, World, second};

const LIMITER: Limiter = Limiter::new().distributed();

/// The core of the suite, in a process in which all that it tests is said in this way. So do `conformance::`, `gate::memory::` and
/// `gate::promise::`, which take two minutes more: `TOLLGATE_TEST_DISTRIBUTED=1 ./dev test conformance::`.
#[test]
fn the_core_suite_passes_by_statements_that_name_one_key() {
    if [DISTRIBUTED, POOLER].into_iter().any(|chosen| std::env::var_os(chosen).is_some()) {
        return;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["consume::", "contention::", "gate::agreement::", "receipts::", "shards::", "transactions::"]);
    // They count statements, hold one of a certain number, or name what fails: here it is another.
    for other in ["is_held_between_the_statements", "the_failure_names_limit_and_step", "g20_named", "shards::cost"] {
        command.args(["--skip", other]);
    }
    let output = command.args(["--test-threads", "2"]).env(DISTRIBUTED, "1").output().unwrap();
    let told = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{told}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(!told.contains(" 0 passed"), "{told}");
}

/// What Citus was seen to send to one node, and to lock there: see `docs/citus.md`.
#[test]
fn each_statement_goes_to_one_node() {
    let statements = statements();
    assert!(statements.len() >= 15, "{statements:?}");
    for statement in &statements {
        let text: String = statement.lines().filter(|line| !line.starts_with("--")).collect::<Vec<_>>().join("\n");
        let tables = text.matches("tollgate.").count();
        let keys = text.matches("key = $2").count();
        if text.starts_with("insert") {
            assert!(text.contains("(name, key, ") && text.contains("values ($1, $2, ") && tables == 1, "{text}");
        } else {
            assert!(tables > 0 && keys == tables, "each table is looked up by the key: {text}");
        }
        // Its functions are called in what reads: in what writes all values are bound.
        let writes = ["insert", "update tollgate", "delete"].iter().any(|verb| text.contains(verb));
        let calls = ["clock_timestamp", "now()", "txid", "coalesce", "array_agg", "unnest"];
        assert!(!writes || calls.iter().all(|call| !text.contains(call)), "{text}");
    }
}

#[tokio::test]
async fn nothing_else_is_said() {
    let world = World::new().await;
    let known = statements();
    for limit in [Limit::token_bucket("one", 10, MINUTE), Limit::token_bucket("four", 10, MINUTE).shards(4)] {
        for limit in both(&limit) {
            let mut tx = world.pool.begin().await.unwrap();
            let ask = || limit.key("k");
            let with = |other| [limit.key("k"), limit.key(other), Limit::token_bucket("other", 5, MINUTE).global()];
            LIMITER.consume(&mut tx, ask().cost(8)).await.unwrap().granted().unwrap();
            LIMITER.consume(&mut tx, ask().cost(8)).await.unwrap().denied().unwrap();
            LIMITER.consume_all(&mut tx, with("l")).await.unwrap().granted().unwrap();
            LIMITER.consume_all(&mut tx, with("absent").map(|ask| ask.cost(4))).await.unwrap().denied().unwrap();
            LIMITER.credit(&mut tx, ask()).await.unwrap();
            LIMITER.debit(&mut tx, ask().cost(20)).await.unwrap();
            LIMITER.lock_timeout(SECOND).reset(&mut tx, ask()).await.unwrap();
            LIMITER.check(&mut tx, ask()).await.unwrap().granted().unwrap();
            LIMITER.balance(&mut tx, ask()).await.unwrap();
            let grant = LIMITER.consume(&mut tx, ask().tracked()).await.unwrap().granted().unwrap();
            LIMITER.settle(&mut tx, grant, 2).await.unwrap();
            let booked = LIMITER.reserve(&mut tx, ask().tracked()).await.unwrap().granted().unwrap();
            LIMITER.cancel(&mut tx, booked).await.unwrap();
            // Of another number of shards: taken over.
            let shards = if limit.spec().shards == 1 { 2 } else { 1 };
            LIMITER.consume(&mut tx, limit.clone().shards(shards).key("l")).await.unwrap().granted().unwrap();
            let said = prepared(&mut tx).await;
            assert!(said.len() >= 5, "{said:?}");
            assert_eq!(said.difference(&known).collect::<Vec<_>>(), Vec::<&String>::new());
            tx.commit().await.unwrap();
        }
    }
}

#[tokio::test]
async fn nor_by_a_gate() {
    let world = World::new().await;
    let pool = PgPoolOptions::new().max_connections(1).connect(&world.url()).await.unwrap();
    let gate = Gate::builder(pool.clone()).distributed().remember_refusals(MINUTE).build();
    for limit in both(&Limit::token_bucket("ten", 10, EVER)) {
        let asks = |key: &'static str| [limit.key(key), limit.key("both")];
        for _ in 0..3 {
            gate.consume(limit.key("one")).await.unwrap().granted().unwrap();
            gate.consume_all(asks("several")).await.unwrap().granted().unwrap();
        }
        assert_eq!(gate.balance(limit.key("both")).await.unwrap().value, Tokens::new(7));
        gate.consume(limit.key("one").cost(8)).await.unwrap().denied().unwrap();
        gate.reset(limit.key("one")).await.unwrap();
        let grant = gate.consume(limit.key("one").tracked()).await.unwrap().granted().unwrap();
        assert!(gate.settle(grant, 0).await.unwrap().is_full());
    }
    let said = prepared(&mut pool.acquire().await.unwrap()).await;
    assert!(said.len() >= 8, "{said:?}");
    assert_eq!(said.difference(&statements()).collect::<Vec<_>>(), Vec::<&String>::new());
}

/// It cannot know it by the number of the transaction, which is another on each node.
#[tokio::test]
async fn outside_a_transaction_nothing_is_taken_whoever_began_it() {
    let world = World::new().await;
    let mut conn = world.connect().await;
    for limit in both(&Limit::token_bucket("ten", 10, MINUTE)).into_iter().chain(both(&sharded())) {
        for limiter in [LIMITER, LIMITER.lock_timeout(SECOND)] {
            let refused = limiter.consume(&mut conn, limit.key("k")).await;
            assert!(matches!(refused, Err(Error::NotInTransaction)), "{refused:?}");
            let refused = limiter.debit(&mut conn, limit.key("k")).await;
            assert!(matches!(refused, Err(Error::NotInTransaction)), "{refused:?}");
            assert!(limiter.balance(&mut conn, limit.key("k")).await.unwrap().is_full());
        }
        sqlx::raw_sql("begin").execute(&mut conn).await.unwrap();
        LIMITER.consume(&mut conn, limit.key("k")).await.unwrap().granted().unwrap();
        sqlx::raw_sql("rollback").execute(&mut conn).await.unwrap();
    }
    assert_eq!(world.rows().await, 0);
}

/// Citus waits for rows on its nodes, where a timeout is only known if it is told to pass it on.
#[tokio::test]
async fn a_lock_timeout_is_passed_on_and_both_settings_are_put_back() {
    let world = World::new().await;
    for before in ["none", "local"] {
        let mut tx = world.pool.begin().await.unwrap();
        let set = format!("set local lock_timeout = '7s'; set local citus.propagate_set_commands = '{before}'");
        sqlx::raw_sql(sqlx::AssertSqlSafe(set)).execute(&mut *tx).await.unwrap();
        let limit = Limit::token_bucket("ten", 10, MINUTE);
        let limiter = LIMITER.lock_timeout(SECOND).at(second(0.0));
        limiter.consume(&mut tx, limit.key("k")).await.unwrap().granted().unwrap();
        assert_eq!(settings(&mut tx).await, ("7s".to_owned(), before.to_owned()));

        // Held by another: the wait is cut short, and the transaction goes on.
        let mut other = world.pool.begin().await.unwrap();
        let busy = limit.key("busy");
        Limiter::new().consume(&mut other, busy.clone()).await.unwrap().granted().unwrap();
        other.commit().await.unwrap();
        let mut other = world.pool.begin().await.unwrap();
        Limiter::new().consume(&mut other, busy.clone()).await.unwrap().granted().unwrap();
        let waited = LIMITER.lock_timeout(SECOND / 100).consume(&mut tx, busy).await;
        assert!(matches!(waited, Err(Error::Busy)), "{waited:?}");
        assert_eq!(settings(&mut tx).await, ("7s".to_owned(), before.to_owned()));
        limiter.consume(&mut tx, limit.key("k")).await.unwrap().granted().unwrap();
    }
}

/// One receipt that was used before among several: nothing is settled, and nothing used up.
#[tokio::test]
async fn a_receipt_of_which_a_part_was_used_before_changes_nothing() {
    let world = World::new().await;
    let limit = Limit::token_bucket("ten", 10, EVER);
    let asks = || [limit.key("a").cost(3).tracked(), limit.key("b").cost(3).tracked()];
    let mut tx = world.pool.begin().await.unwrap();
    let receipt = tollgate::Receipt::from(LIMITER.consume_all(&mut tx, asks()).await.unwrap().granted().unwrap());
    let last = receipt.clone().split().last().unwrap();
    LIMITER.settle(&mut tx, last, 3).await.unwrap();
    let again = LIMITER.settle(&mut tx, receipt, 0).await;
    assert!(matches!(again, Err(Error::ReceiptUsed)), "{again:?}");
    let kept: i64 = sqlx::query_scalar("select count(*) from tollgate.reservations").fetch_one(&mut *tx).await.unwrap();
    assert_eq!(kept, 1);
    let left = |ask: Request| async { LIMITER.balance(&mut world.connect().await, ask).await };
    tx.commit().await.unwrap();
    for key in ["a", "b"] {
        assert_eq!(left(limit.key(key)).await.unwrap().value, Tokens::new(7));
    }
}

/// So Citus reports a node that it lost while that committed.
#[tokio::test]
async fn an_internal_error_of_a_commit_leaves_the_outcome_open() {
    let world = World::new().await;
    world
        .sql(
            "create function lose() returns trigger language plpgsql as
             $$ begin raise exception 'server closed the connection unexpectedly' using errcode = 'XX000'; end $$;
             create constraint trigger lose after insert or update on tollgate.rate_limits
             deferrable initially deferred for each row execute function lose();",
        )
        .await;
    let gate = Gate::builder(world.pool.clone()).distributed().build();
    let limit = Limit::token_bucket("ten", 10, EVER);
    let lost = gate.consume(limit.key("k")).await;
    assert!(matches!(lost, Err(Error::OutcomeUnknown { .. })), "{lost:?}");
    world.sql("drop trigger lose on tollgate.rate_limits").await;
    assert_eq!(gate.consume(limit.key("k")).await.unwrap().granted().unwrap().remaining, Tokens::new(9));
}

fn sharded() -> Limit {
    Limit::token_bucket("sharded", 10, MINUTE).shards(3)
}

/// All statements for tables that are distributed.
fn statements() -> BTreeSet<String> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src/store/sql/routed");
    let read = |entry: std::io::Result<std::fs::DirEntry>| std::fs::read_to_string(entry.unwrap().path()).unwrap();
    std::fs::read_dir(folder).unwrap().map(read).collect()
}

/// What a session has prepared about our tables, and so executed.
async fn prepared(conn: &mut PgConnection) -> BTreeSet<String> {
    let sql = "select statement from pg_prepared_statements where statement like '%tollgate.%'";
    let rows = sqlx::raw_sql(sql).fetch_all(conn).await.unwrap();
    rows.iter().map(|row| sqlx::Row::get(row, 0)).collect()
}

async fn settings(conn: &mut PgConnection) -> (String, String) {
    let sql = "select current_setting('lock_timeout'), current_setting('citus.propagate_set_commands')";
    sqlx::query_as(sql).fetch_one(conn).await.unwrap()
}
