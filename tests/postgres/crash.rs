//! The changes that outlive the server: after an immediate stop under load, and after a clean one.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use sqlx::{Connection, PgConnection};
use tokio::task::JoinSet;
use tollgate::{Error, Limit, Limiter, MINUTE, Receipt, migrate};
use tollgate_embedded::Server;

const LIMITER: Limiter = Limiter::new();

const EVER: Duration = Limit::MAX_PERIOD;
const DURABLE: Limit = Limit::token_bucket("durable", 10, EVER).unbounded_reservations();
/// Four rows of ten.
const SPREAD: Limit = Limit::token_bucket("spread", 40, EVER).unbounded_reservations().shards(4);
const EPHEMERAL: Limit = Limit::token_bucket("ephemeral", 10, EVER).ephemeral();

/// A server of its own: nobody else's is to crash.
async fn server() -> Server {
    let server = Server::builder().durable().start().unwrap();
    let mut conn = connect(&server).await;
    migrate::run(&mut conn).await.unwrap();
    server
}

async fn connect(server: &Server) -> PgConnection {
    PgConnection::connect(server.url()).await.unwrap()
}

/// The balances of three rows, in whole tokens.
async fn balances(conn: &mut PgConnection) -> [i64; 3] {
    let mut balances = [0; 3];
    let requests = [DURABLE.key("k"), DURABLE.key("owing"), EPHEMERAL.key("k")];
    for (balance, request) in balances.iter_mut().zip(requests) {
        *balance = LIMITER.balance(conn, request).await.unwrap().remaining.micros() / 1_000_000;
    }
    balances
}

/// A promise survives: nobody is served before the callers that hold reservations.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_crash_durable_limits_and_reservations_stand_and_ephemeral_limits_are_full() {
    let mut server = server().await;
    let mut conn = connect(&server).await;
    let mut tx = conn.begin().await.unwrap();
    let ask = [DURABLE.key("k").cost(3), EPHEMERAL.key("k").cost(3)];
    LIMITER.consume(&mut tx, ask).await.unwrap().granted().unwrap();
    let ask = DURABLE.key("owing").cost(25);
    let receipt = Receipt::from(LIMITER.reserve(&mut tx, ask).await.unwrap().granted().unwrap());
    tx.commit().await.unwrap();
    assert_eq!(balances(&mut conn).await, [7, -15, 7]);

    // Taken, but not committed.
    let mut open = conn.begin().await.unwrap();
    let ask = [DURABLE.key("k").cost(2), DURABLE.key("open"), EPHEMERAL.key("open")];
    LIMITER.consume(&mut open, ask).await.unwrap().granted().unwrap();
    server.crash().unwrap();
    server.restart().unwrap();

    let mut conn = connect(&server).await;
    assert_eq!(balances(&mut conn).await, [7, -15, 10]);
    let rows = "select (select count(*) from tollgate.ephemeral), (select count(*) from tollgate.durable)";
    assert_eq!(sqlx::query_as::<_, (i64, i64)>(rows).fetch_one(&mut conn).await.unwrap(), (0, 2));
    let mut tx = conn.begin().await.unwrap();
    assert!(!LIMITER.consume(&mut tx, DURABLE.key("owing")).await.unwrap().is_granted());
    let ask = [DURABLE.key("k").cost(7), EPHEMERAL.key("k").cost(10)];
    LIMITER.consume(&mut tx, ask).await.unwrap().granted().unwrap();
    LIMITER.cancel(&mut tx, receipt).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(balances(&mut conn).await, [0, 10, 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_clean_restart_both_kinds_stand() {
    let mut server = server().await;
    let mut conn = connect(&server).await;
    let mut tx = conn.begin().await.unwrap();
    let ask = [DURABLE.key("k").cost(3), EPHEMERAL.key("k").cost(3)];
    LIMITER.consume(&mut tx, ask).await.unwrap().granted().unwrap();
    tx.commit().await.unwrap();
    conn.close().await.unwrap();
    server.stop().unwrap();
    server.restart().unwrap();
    assert_eq!(balances(&mut connect(&server).await).await, [7, 10, 7]);
}

/// Every acknowledged commit is there, and of the others at most the one that each caller was waiting for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_under_load_loses_nothing_that_was_acknowledged() {
    const CALLERS: i64 = 8;
    let mut server = server().await;
    let acknowledged = Arc::new(AtomicI64::new(0));
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        let (url, acknowledged) = (server.url().to_owned(), acknowledged.clone());
        callers.spawn(async move {
            let mut conn = PgConnection::connect(&url).await.unwrap();
            // Half of them on one row, half each on its own; both kinds together.
            let key = if caller % 2 == 0 { 0 } else { caller };
            loop {
                let spend = async {
                    let mut tx = conn.begin().await?;
                    let all = [DURABLE.key(key), SPREAD.key(key), EPHEMERAL.key(key).cost(0)];
                    let booked = LIMITER.reserve(&mut tx, all).await;
                    match booked {
                        Ok(booked) => drop(booked.granted().unwrap()),
                        Err(Error::Database { .. }) => return Err(sqlx::Error::WorkerCrashed),
                        Err(error) => panic!("{error}"),
                    }
                    tx.commit().await
                };
                if spend.await.is_err() {
                    return;
                }
                acknowledged.fetch_add(1, Ordering::SeqCst);
            }
        });
    }
    let enough = async {
        while acknowledged.load(Ordering::SeqCst) < 200 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(10 * MINUTE, enough).await.unwrap();
    server.crash().unwrap();
    server.restart().unwrap();
    callers.join_all().await;

    let mut conn = connect(&server).await;
    let sql = "select -sum(value)::int8 from tollgate.durable group by name";
    let spent: Vec<i64> = sqlx::query_scalar(sql).fetch_all(&mut conn).await.unwrap();
    let [spent, spread] = spent[..] else { panic!("{spent:?}") };
    assert_eq!(spent, spread, "one fate");
    let (spent, acknowledged) = (spent / 1_000_000, acknowledged.load(Ordering::SeqCst));
    assert!((acknowledged..=acknowledged + CALLERS).contains(&spent), "{spent} spent, {acknowledged} acknowledged");
}
