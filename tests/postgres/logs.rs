//! The log of a service under lasting faults and in an outage. Each service is a process of its own, because a process
//! logs each kind of error once a minute.

use std::io::Write;
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use sqlx::{Connection, PgConnection, PgPool};
use tollgate::{Decision, Gate, Limit, Limiter, MINUTE, Source, migrate};
use tollgate_embedded::Server;
use tracing::Level;

use crate::gate::stage::{pool, soon};
use crate::pgbouncer::{self, PgBouncer};
use crate::world::{SERVICE, World};

const LIMIT: Limit = Limit::token_bucket("messages", 100, MINUTE);

/// The lines of ours at WARN that a process logs which runs a part of this file.
fn log(part: &str, url: &str) -> Vec<String> {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([&format!("logs::{part}"), "--exact", "--ignored", "--nocapture"]);
    let output = command.env(URL, url).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    println!("--- {part}\n{said}");
    said.lines().filter(|line| line.contains(" WARN tollgate::")).map(str::to_owned).collect()
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

#[test]
fn an_outage_begins_and_ends_in_the_log_and_its_calls_are_one_line() {
    let lines = log("lose_the_server", "");
    let with = |words: &str| lines.iter().position(|line| line.contains(words));
    let [began, ended] = ["the server is silent", "the server answers again"].map(|words| with(words).unwrap());
    assert!(began < ended, "{lines:#?}");
    assert!(lines[began].contains("communicating with database"), "{lines:#?}");
    let calls: Vec<_> = lines.iter().filter(|line| line.contains("a call failed")).collect();
    assert_eq!((calls.len(), lines.len()), (1, 3), "{lines:#?}");
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

#[ignore = "a part of another test"]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lose_the_server() {
    if started().await.is_none() {
        return;
    }
    let mut server = Server::start().unwrap();
    migrate::run(&mut PgConnection::connect(server.url()).await.unwrap()).await.unwrap();
    // It has no connection yet, so each call meets the same error.
    let builder = Gate::builder(PgPool::connect_lazy(server.url()).unwrap()).statement_timeout(MINUTE);
    let gate = builder.acquire_timeout(Duration::from_millis(200)).build();
    server.stop().unwrap();
    soon(async {
        while !String::from_utf8_lossy(&HEARD.lock().unwrap()).contains("the server is silent") {
            gate.consume(LIMIT.key(1)).await.unwrap_err();
        }
    })
    .await;
    server.restart().unwrap();
    soon(async {
        while !matches!(gate.consume(LIMIT.key(1)).await, Ok(Decision::Granted(grant)) if grant.source == Source::Database)
        {}
    })
    .await;
}

/// Starts the log, and two pools of a connection each; nothing if no test began this process.
async fn started() -> Option<[PgPool; 2]> {
    let url = std::env::var(URL).ok()?;
    tracing_subscriber::fmt().with_max_level(Level::WARN).with_ansi(false).with_writer(|| Heard).init();
    Some(if url.is_empty() { [lazy(), lazy()] } else { [pool(&url, 1).await, pool(&url, 1).await] })
}

fn lazy() -> PgPool {
    PgPool::connect_lazy("postgres://nobody@localhost/none").unwrap()
}

/// Writes the log to the standard error, and keeps it for the process itself.
struct Heard;

static HEARD: Mutex<Vec<u8>> = Mutex::new(Vec::new());

impl Write for Heard {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        HEARD.lock().unwrap().extend_from_slice(bytes);
        std::io::stderr().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        std::io::stderr().flush()
    }
}

const URL: &str = "TOLLGATE_TEST_LOG_URL";
