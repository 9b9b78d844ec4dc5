//! Where it rages.

use std::process::Command;

use sqlx::{Connection, PgConnection};
use tokio::task::block_in_place;
use tokio::time::{Duration, interval, timeout};
use tollgate::migrate;
use tollgate_embedded::Server;

use super::calls::LAPSE;
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
        // `./dev storm` looks for the name: it moves the clock of this server alone.
        let server = Server::builder().durable().setting("max_connections", "200").setting("cluster_name", "storm");
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

    /// Crashes the server or a node, and returns once it is back.
    pub(super) async fn crash(&mut self) {
        match self {
            Self::Server(server) => block_in_place(|| server.crash().and_then(|()| server.restart())).unwrap(),
            Self::Cluster(world) => crash_a_node(world).await,
        }
    }
}

/// Kills one node of the cluster by its own hand, wherever it runs, with SIGKILL; and starts it again.
async fn crash_a_node(world: &World) {
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
