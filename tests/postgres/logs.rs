//! The log of a service under lasting faults. Each service is a process of its own, because a process
//! logs each kind of error once a minute.

use std::process::Command;

use sqlx::PgPool;
use tollgate::{Gate, Limit, Limiter, MINUTE};
use tracing::Level;

use crate::gate::stage::{pool, soon};
use crate::pgbouncer::{self, PgBouncer};
use crate::world::{SERVICE, World};

const LIMIT: Limit = Limit::token_bucket("messages", 100, MINUTE);

/// The lines at WARN and above that a process logs which runs a part of this file.
fn log(part: &str, url: &str) -> Vec<String> {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([&format!("logs::{part}"), "--exact", "--ignored", "--nocapture"]);
    let output = command.env(URL, url).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    println!("--- {part}\n{said}");
    said.lines().filter(|line| line.contains(" WARN ")).map(str::to_owned).collect()
}

/// One line, with all of these words.
fn says_once(lines: &[String], words: &[&str]) {
    assert_eq!(lines.len(), 1, "{lines:#?}");
    for word in words {
        assert!(lines[0].contains(word), "{word}: {lines:#?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_table_is_in_the_log_once_with_its_remedy() {
    let world = World::new().await;
    world.sql("drop table tollgate.durable cascade").await;
    let missing = ["limit=\"messages\"", "code=\"42P01\"", "others=0", "run `tollgate migrate up`", "tollgate.durable"];
    says_once(&log("serve", &world.direct_url()), &missing);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_right_is_in_the_log_once_with_its_remedy() {
    let world = World::new().await;
    world.sql(&format!("revoke all on tollgate.durable from {SERVICE}")).await;
    let lines = log("serve", &world.direct_url());
    says_once(&lines, &["code=\"42501\"", "tollgate migrate up --grant", "permission denied"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn named_statements_behind_a_pooler_are_in_the_log_once_with_their_remedy() {
    if pgbouncer::is_missing() {
        return;
    }
    let world = World::new().await;
    let pooler = PgBouncer::start(&world.direct_url(), 1);
    says_once(&log("serve", &pooler.url(world.name())), &["unnamed_statements()", "prepared statement"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_is_wrong_is_in_the_log_once_with_its_reason() {
    let world = World::new().await;
    let reason = ["the call for limit \"messages\" is wrong: the cost is invalid: ", "others=0"];
    says_once(&log("ask_wrongly", &world.direct_url()), &reason);
}

/// A service that logs none of its errors: a handler over a gate, and a worker with transactions.
#[ignore = "a part of other tests"]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn serve() {
    let Some(pools) = started().await else { return };
    for pool in &pools {
        let gate = Gate::builder(pool.clone()).statement_timeout(MINUTE).acquire_timeout(MINUTE).build();
        for _ in 0..3 {
            let _ = soon(gate.consume(LIMIT.key(1))).await;
            let mut tx = pool.begin().await.unwrap();
            let _ = soon(Limiter::new().consume(&mut tx, LIMIT.key(2))).await;
            tx.rollback().await.unwrap();
        }
    }
}

#[ignore = "a part of another test"]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ask_wrongly() {
    let Some([pool, _]) = started().await else { return };
    let gate = Gate::new(pool.clone());
    for _ in 0..3 {
        gate.consume(LIMIT.key(1).cost(-1)).await.unwrap_err();
        Limiter::new().check(&mut pool.acquire().await.unwrap(), LIMIT.key(1).cost(-1)).await.unwrap_err();
    }
}

/// Starts the log, and two pools of a connection each; nothing if no test began this process.
async fn started() -> Option<[PgPool; 2]> {
    let url = std::env::var(URL).ok()?;
    tracing_subscriber::fmt().with_max_level(Level::WARN).with_ansi(false).with_writer(std::io::stderr).init();
    Some([pool(&url, 1).await, pool(&url, 1).await])
}

const URL: &str = "TOLLGATE_TEST_LOG_URL";
