//! Where it rages.

use std::fs::{self, File};
use std::io;
use std::path::PathBuf;
use std::process::Command;

use chrono::{DateTime, Utc};
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio::task::block_in_place;
use tokio::time::{Duration, interval, sleep, timeout};
use tollgate::migrate;
use tollgate_embedded::{Builder, Server};

use super::calls::LAPSE;
use super::rates::MAX_AGE;
use crate::standby::{follow, promote};
use crate::world::{World, is_on_citus, nodes, soon};

pub(super) enum Place {
    Server(Server),
    /// A database on the nodes of a cluster.
    Cluster(World),
}

impl Place {
    pub(super) async fn new() -> Self {
        if is_on_citus() {
            return Self::Cluster(World::new().await);
        }
        let server = match disk() {
            Some(disk) => server().data_dir(disk.join("0")),
            None => server(),
        };
        let server = server.start().unwrap();
        migrate::run(&mut PgConnection::connect(server.url()).await.unwrap()).await.unwrap();
        Self::Server(server)
    }

    pub(super) fn url(&self) -> String {
        match self {
            Self::Server(server) => server.url().to_owned(),
            Self::Cluster(world) => world.direct_url(),
        }
    }

    /// Fails where calls have deadlocked: their callers would ask again, and nobody would see.
    pub(super) fn look(&self) {
        let Self::Server(server) = self else { return };
        let log = server.log();
        if let Some(place) = log.find("deadlock detected") {
            panic!("{}", log[place..].chars().take(1_000).collect::<String>());
        }
    }

    /// Crashes the server or a node, and returns once it is back.
    pub(super) async fn crash(&mut self) {
        match self {
            Self::Server(server) => block_in_place(|| server.crash().and_then(|()| server.restart())).unwrap(),
            Self::Cluster(world) => crash_a_node(world).await,
        }
    }
}

/// `./dev storm` looks for the name: it moves the clock of this server alone. Its log fits on a small disk.
fn server() -> Builder {
    let server = Server::builder().durable().setting("max_connections", "200").setting("max_wal_size", "128MB");
    server.setting("cluster_name", "storm")
}

/// The small disk on which the server has its data, if there is one.
pub(super) fn disk() -> Option<PathBuf> {
    std::env::var_os("TOLLGATE_STORM_DISK").map(PathBuf::from)
}

/// Fills the disk for a moment. A server that has no room for its log crashes, and stays down until there is some.
pub(super) async fn fill_disk(server: &mut Server) {
    let restarts = async |url: &str, whether| {
        let mut conn = PgConnection::connect(url).await.unwrap();
        let set = format!("alter system set restart_after_crash = {whether}");
        sqlx::raw_sql(AssertSqlSafe(set)).execute(&mut conn).await.unwrap();
        sqlx::raw_sql("select pg_reload_conf()").execute(&mut conn).await.unwrap();
    };
    restarts(server.url(), "off").await;
    let filler = disk().unwrap().join("filler");
    let fill = || io::copy(&mut io::repeat(0), &mut File::create(&filler).unwrap());
    assert_eq!(block_in_place(fill).unwrap_err().kind(), io::ErrorKind::StorageFull);
    sleep(MAX_AGE).await;
    fs::remove_file(&filler).unwrap();
    if let Err(sqlx::Error::Io(_)) = PgConnection::connect(server.url()).await {
        block_in_place(|| server.restart()).unwrap();
    }
    restarts(server.url(), "on").await;
}

/// Makes a standby of the server, lets the server crash, and promotes the standby. Returns an instant between the rows
/// that the crash took and those after it.
pub(super) async fn fail_over(server: &mut Server) -> i64 {
    let mut conn = PgConnection::connect(server.url()).await.unwrap();
    let data: String = sqlx::query_scalar("show data_directory").fetch_one(&mut conn).await.unwrap();
    let nth: u32 = data.rsplit('/').next().unwrap().parse().unwrap();
    let standby = follow(server, &disk().unwrap().join((nth + 1).to_string()), self::server()).await;
    block_in_place(|| server.crash()).unwrap();
    let mut conn = PgConnection::connect(standby.url()).await.unwrap();
    let between: DateTime<Utc> = sqlx::query_scalar("select clock_timestamp()").fetch_one(&mut conn).await.unwrap();
    promote(&standby).await;
    *server = standby;
    fs::remove_dir_all(data).unwrap();
    between.timestamp_micros()
}

/// Kills one node of the cluster by its own hand, wherever it runs, with SIGKILL; and starts it again.
pub(super) async fn crash_a_node(world: &World) {
    let node = fastrand::choice(nodes().await).unwrap();
    let started = async || -> Result<String, sqlx::Error> {
        let mut conn = PgConnection::connect_with(node).await?;
        sqlx::query_scalar("select pg_postmaster_start_time()::text").fetch_one(&mut conn).await
    };
    let before = started().await.unwrap();
    let mut conn = PgConnection::connect_with(node).await.unwrap();
    // Its backends end when they notice; until then the memory that they share is in use.
    let crash = "copy (select) to program $program$
                 programs=$(dirname \"$(readlink /proc/$PPID/exe)\")
                 export programs
                 setsid sh -c '
                     kill -9 $(head -n 1 postmaster.pid)
                     until \"$programs/pg_ctl\" -D . restart; do sleep 0.1; done
                 ' >/dev/null 2>&1 </dev/null & $program$";
    // The end of the connection may go unnoticed: the new server inherits the socket.
    let _ = timeout(LAPSE, sqlx::raw_sql(crash).execute(&mut conn)).await;
    let mut pace = interval(Duration::from_millis(20));
    soon(async {
        while started().await.map_or(true, |started| started == before) {
            pace.tick().await;
        }
    })
    .await;
    // Else its prepared transactions keep their locks for up to a minute.
    world.sql("select recover_prepared_transactions()").await;
}

/// Sends a signal to processes.
pub(super) fn signal(signal: &str, pids: &[i32]) {
    let pids = pids.iter().map(ToString::to_string);
    // Some may have ended.
    let _ = Command::new("kill").arg(format!("-{signal}")).args(pids).output().unwrap();
}
