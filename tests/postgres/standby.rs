//! A streaming standby: its answers while it is one, and its balances when it is promoted.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection, PgConnection};
use tollgate::{Error, GateBuilder, HOUR, Limit, Limiter, MINUTE, OnFailure, Receipt, SECOND, Source, Tokens, migrate};
use tollgate_embedded::{Builder, Server};

use crate::gate::stage::{patient, pool};

const LIMITER: Limiter = Limiter::new();
const DURABLE: Limit = Limit::token_bucket("durable", 10, Limit::MAX_PERIOD).unbounded_reservations();
const SPREAD: Limit = Limit::token_bucket("spread", 10, Limit::MAX_PERIOD).shards(3);
const OTHERWISE_SPREAD: Limit = Limit::token_bucket("spread", 10, Limit::MAX_PERIOD).shards(2);
const EPHEMERAL: Limit = Limit::token_bucket("ephemeral", 10, Limit::MAX_PERIOD).ephemeral();

/// A migrated server and its standby. The standby has each commit of the server on disk.
pub(crate) struct Pair {
    /// Dropped before the other, with whose private directory its data go.
    pub(crate) standby: Server,
    pub(crate) primary: Server,
}

impl Pair {
    pub(crate) async fn new() -> Self {
        let primary = Server::builder().durable().start().unwrap();
        migrate::run(&mut connect(&primary).await).await.unwrap();
        let data = home(&primary).join("standby");
        let standby = follow(&primary, &data, Server::builder().durable()).await;
        Self { standby, primary }
    }

    /// Makes a primary of the standby. It may go on serving the connected clients.
    pub(crate) async fn promote(&self) {
        promote(&self.standby).await;
    }
}

/// A standby of a running server, in a new directory. From now on it has each commit on disk before its caller hears
/// of it.
pub(crate) async fn follow(primary: &Server, data: &Path, standby: Builder) -> Server {
    let mut conn = connect(primary).await;
    base_backup(primary, data);
    let standby = standby.data_dir(data).start().unwrap();
    let wait_for_standby = "alter system set synchronous_standby_names = '*'";
    sqlx::raw_sql(wait_for_standby).execute(&mut conn).await.unwrap();
    sqlx::raw_sql("select pg_reload_conf()").execute(&mut conn).await.unwrap();
    until(&mut conn, "select exists (select from pg_stat_replication where sync_state = 'sync')").await;
    until_alike(primary, &standby).await;
    standby
}

/// Returns once all that is committed on the primary can be seen on the standby.
async fn until_alike(primary: &Server, standby: &Server) {
    let here = "select pg_current_wal_lsn()::text";
    let here: String = sqlx::query_scalar(here).fetch_one(&mut connect(primary).await).await.unwrap();
    until(&mut connect(standby).await, &format!("select pg_last_wal_replay_lsn() >= '{here}'")).await;
}

pub(crate) async fn promote(standby: &Server) {
    let promote = sqlx::query_scalar("select pg_promote(true, 600)");
    let promoted: bool = promote.fetch_one(&mut connect(standby).await).await.unwrap();
    assert!(promoted);
}

/// The private directory of a server.
fn home(server: &Server) -> PathBuf {
    server.url().parse::<PgConnectOptions>().unwrap().get_socket().unwrap().clone()
}

/// Copies a running server's data for a standby of it, owned by the user that the server runs as.
fn base_backup(primary: &Server, data: &Path) {
    let (home, options) = (home(primary), primary.url().parse::<PgConnectOptions>().unwrap());
    DirBuilder::new().mode(0o700).create(data).unwrap();
    let mut command = Command::new(primary.programs().join("pg_basebackup"));
    command.current_dir("/").arg("-h").arg(&home).args(["-p", &options.get_port().to_string(), "-U", "postgres"]);
    command.args(["--checkpoint", "fast", "--write-recovery-conf", "--no-sync", "-D"]).arg(data);
    if fs::metadata(data).unwrap().uid() == 0 {
        let owner = fs::metadata(&home).unwrap();
        chown(data, Some(owner.uid()), Some(owner.gid())).unwrap();
        command.uid(owner.uid()).gid(owner.gid());
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

async fn until(conn: &mut PgConnection, fact: &str) {
    let is_so = async {
        while !sqlx::query_scalar::<_, bool>(sqlx::AssertSqlSafe(fact)).fetch_one(&mut *conn).await.unwrap() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(10 * MINUTE, is_so).await.unwrap();
}

async fn connect(server: &Server) -> PgConnection {
    PgConnection::connect(server.url()).await.unwrap()
}

/// The balance of a row, in whole tokens.
async fn balance(conn: &mut PgConnection, limit: Limit, key: &str) -> i64 {
    LIMITER.balance(conn, limit.key(key)).await.unwrap().remaining.micros() / 1_000_000
}

#[track_caller]
fn says_so(error: &Error) {
    assert!(matches!(error, Error::ReadOnly { .. }) && !error.is_retryable(), "{error:?}");
    assert!(error.to_string().contains("it is a standby, or the transaction is read-only (connect to the"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_is_looked_at_and_says_that_it_takes_no_writes() {
    let pair = Pair::new().await;
    let mut tx = PgConnection::connect(pair.primary.url()).await.unwrap();
    let mut tx = tx.begin().await.unwrap();
    LIMITER.consume(&mut tx, DURABLE.key("k").cost(4)).await.unwrap().granted().unwrap();
    let booked = LIMITER.reserve(&mut tx, DURABLE.key("owing").cost(15)).await.unwrap().granted().unwrap();
    let spread = LIMITER.consume(&mut tx, SPREAD.key("k").cost(4)).await.unwrap().granted().unwrap();
    tx.commit().await.unwrap();
    until_alike(&pair.primary, &pair.standby).await;

    let (receipt, spread) = (Receipt::from(booked), Receipt::from(spread));
    let mut conn = connect(&pair.standby).await;
    assert_eq!([balance(&mut conn, DURABLE, "k").await, balance(&mut conn, DURABLE, "owing").await], [6, -5]);
    assert!(LIMITER.check(&mut conn, DURABLE.key("k").cost(6)).await.unwrap().is_granted());
    assert!(!LIMITER.check(&mut conn, DURABLE.key("k").cost(7)).await.unwrap().is_granted());
    assert_eq!(balance(&mut conn, SPREAD, "k").await, 6);
    assert!(LIMITER.check(&mut conn, SPREAD.key("k").cost(6)).await.unwrap().is_granted());
    LIMITER.balance(&mut conn, OTHERWISE_SPREAD.key("k")).await.unwrap();
    let mut tx = conn.begin().await.unwrap();
    assert!(!LIMITER.consume(&mut tx, SPREAD.key("k").cost(7)).await.unwrap().is_granted(), "with nothing to write");
    tx.rollback().await.unwrap();
    for limiter in [LIMITER, LIMITER.unnamed_statements(), LIMITER.lock_timeout(SECOND)] {
        for verb in 0..15 {
            let mut tx = conn.begin().await.unwrap();
            let answer = match verb {
                0 => limiter.consume(&mut tx, DURABLE.key("k")).await.map(drop),
                1 => limiter.consume(&mut tx, [DURABLE.key("k"), DURABLE.key("new")]).await.map(drop),
                2 => limiter.consume(&mut tx, [DURABLE.key("k"), EPHEMERAL.key("k")]).await.map(drop),
                3 => limiter.reserve(&mut tx, DURABLE.key("new")).await.map(drop),
                4 => limiter.reset(&mut tx, DURABLE.key("k")).await.map(drop),
                5 => limiter.settle(&mut tx, receipt.clone(), 3).await.map(drop),
                6 => limiter.consume(&mut tx, EPHEMERAL.key("k")).await.map(drop),
                7 => limiter.check(&mut tx, EPHEMERAL.key("k")).await.map(drop),
                8 => limiter.consume(&mut tx, SPREAD.key("k")).await.map(drop),
                9 => limiter.consume(&mut tx, SPREAD.key("new")).await.map(drop),
                10 => limiter.consume(&mut tx, SPREAD.key("k").cost(6)).await.map(drop),
                11 => limiter.consume(&mut tx, OTHERWISE_SPREAD.key("k")).await.map(drop),
                12 => limiter.reset(&mut tx, SPREAD.key("k")).await.map(drop),
                13 => limiter.settle(&mut tx, spread.clone(), 1).await.map(drop),
                _ => limiter.balance(&mut tx, EPHEMERAL.key("k")).await.map(drop),
            };
            says_so(&answer.unwrap_err());
            tx.rollback().await.unwrap();
        }
    }
    migrate::validate(&mut conn).await.unwrap();
    assert!(migrate::status(&mut conn).await.unwrap().is_current());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gate_on_a_standby_looks_and_refuses_and_grants_nothing() {
    let pair = Pair::new().await;
    let gate = patient(&pool(pair.primary.url(), 4).await).build();
    gate.consume(DURABLE.key("k").cost(9)).await.unwrap().granted().unwrap();
    gate.consume(SPREAD.key("k").cost(9)).await.unwrap().granted().unwrap();
    until_alike(&pair.primary, &pair.standby).await;

    let pool = pool(pair.standby.url(), 4).await;
    for gate in [patient(&pool), patient(&pool).unnamed_statements()].map(GateBuilder::build) {
        assert_eq!(gate.balance(DURABLE.key("k")).await.unwrap().remaining, Tokens::ONE);
        assert!(gate.check(DURABLE.key("k")).await.unwrap().is_granted());
        // Proved by a committed balance, with nothing to write.
        assert!(!gate.consume(DURABLE.key("k").cost(2)).await.unwrap().is_granted());
        assert_eq!(gate.balance(SPREAD.key("k")).await.unwrap().remaining, Tokens::ONE);
        assert!(!gate.consume(SPREAD.key("k").cost(2)).await.unwrap().is_granted());
        for answer in [
            gate.consume(DURABLE.key("k")).await.map(drop),
            gate.consume(DURABLE.key("new")).await.map(drop),
            gate.consume(SPREAD.key("k")).await.map(drop),
            gate.consume(SPREAD.key("new").cost(9)).await.map(drop),
            gate.consume([DURABLE.key("k"), EPHEMERAL.key("k")]).await.map(drop),
            gate.reserve(DURABLE.key("k")).await.map(drop),
            gate.credit(DURABLE.key("k")).await.map(drop),
            gate.balance(EPHEMERAL.key("k")).await.map(drop),
            gate.consume(EPHEMERAL.key("k")).await.map(drop),
        ] {
            says_so(&answer.unwrap_err());
        }
    }
    let open = patient(&pool).on_failure(OnFailure::Open).build();
    let grant = open.consume(DURABLE.key("k")).await.unwrap().granted().unwrap();
    assert_eq!(grant.source, Source::Degraded);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_promotion_durable_rows_stand_and_ephemeral_buckets_are_full() {
    let mut pair = Pair::new().await;
    let mut conn = connect(&pair.primary).await;
    let mut tx = conn.begin().await.unwrap();
    let ask = [DURABLE.key("k").cost(4), EPHEMERAL.key("k").cost(4), SPREAD.key("k").cost(7)];
    LIMITER.consume(&mut tx, ask).await.unwrap().granted().unwrap();
    let booked = LIMITER.reserve(&mut tx, DURABLE.key("owing").cost(15)).await.unwrap().granted().unwrap();
    tx.commit().await.unwrap();
    let receipt = Receipt::from(booked);
    // Taken, but not committed.
    let mut open = conn.begin().await.unwrap();
    LIMITER.consume(&mut open, DURABLE.key("k")).await.unwrap().granted().unwrap();
    pair.primary.crash().unwrap();
    let lost = LIMITER.consume(&mut open, DURABLE.key("k")).await;
    assert!(matches!(&lost, Err(error @ Error::Database { .. }) if error.is_retryable()), "{lost:?}");
    pair.promote().await;

    let mut conn = connect(&pair.standby).await;
    let all = [(DURABLE, "k", 6), (DURABLE, "owing", -5), (EPHEMERAL, "k", 10), (SPREAD, "k", 3)];
    for (limit, key, value) in all {
        assert_eq!(balance(&mut conn, limit, key).await, value);
    }
    let mut tx = conn.begin().await.unwrap();
    assert!(!LIMITER.consume(&mut tx, DURABLE.key("owing")).await.unwrap().is_granted());
    let ask = [DURABLE.key("k").cost(6), EPHEMERAL.key("k").cost(10)];
    LIMITER.consume(&mut tx, ask).await.unwrap().granted().unwrap();
    LIMITER.cancel(&mut tx, receipt).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(balance(&mut conn, DURABLE, "owing").await, 10);
}

/// The clock of the former primary was an hour ahead. Until the promoted one's gets there, time stands still for the
/// row.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_promotion_to_a_clock_that_is_behind_time_does_not_go_back() {
    let mut pair = Pair::new().await;
    let limit = Limit::token_bucket("ahead", 10, MINUTE);
    let mut conn = connect(&pair.primary).await;
    let mut tx = conn.begin().await.unwrap();
    let here = LIMITER.check(&mut tx, limit.key("k")).await.unwrap().granted().unwrap().decided_at;
    let ahead = here + HOUR;
    let spread = Limit::token_bucket("spread_ahead", 12, MINUTE).shards(4);
    LIMITER.at(ahead).consume(&mut tx, limit.key("k").cost(9)).await.unwrap().granted().unwrap();
    LIMITER.at(ahead).consume(&mut tx, spread.key("k").cost(12)).await.unwrap().granted().unwrap();
    tx.commit().await.unwrap();
    pair.primary.crash().unwrap();
    pair.promote().await;

    let mut conn = connect(&pair.standby).await;
    let mut tx = conn.begin().await.unwrap();
    let grant = LIMITER.consume(&mut tx, limit.key("k")).await.unwrap().granted().unwrap();
    assert_eq!((grant.decided_at, grant.remaining), (ahead, Tokens::ZERO));
    assert!((here..ahead).contains(&grant.observed_at), "{grant:?}");
    let denied = LIMITER.consume(&mut tx, limit.key("k")).await.unwrap().denied().unwrap();
    assert_eq!((denied.decided_at, denied.retry_at), (ahead, Some(ahead + 6 * SECOND)));
    let denied = LIMITER.consume(&mut tx, spread.key("k")).await.unwrap().denied().unwrap();
    assert_eq!((denied.decided_at, denied.retry_at), (ahead, Some(ahead + 5 * SECOND)));
    assert!(LIMITER.reset(&mut tx, spread.key("k")).await.unwrap().is_full());
    // A row of the promoted one's own goes by its own clock.
    let own = LIMITER.consume(&mut tx, limit.key("new")).await.unwrap().granted().unwrap();
    assert!((here..ahead).contains(&own.decided_at), "{own:?}");
    assert!(LIMITER.reset(&mut tx, limit.key("k")).await.unwrap().is_full());
}
