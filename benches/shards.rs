//! How many transactions a second can one hot limit be charged by, through one row and through several?
//!
//! `cargo bench -p tollgate-benches --bench shards`
//!
//! Each client asks the limit in a transaction, does two milliseconds of other work in it, commits, and begins anew.
//! With one row the clients take turns, however fast the machine is. Clients and server share the machine.

#![expect(clippy::disallowed_methods, reason = "how long it takes is told by the monotonic clock")]

mod support;

use std::time::{Duration, Instant};

use sqlx::{Connection, PgConnection};
use tokio::task::JoinSet;
use tollgate::{Limit, Limiter, SECOND};
use tollgate_embedded::Server;

use support::{Fault, migrated};

#[tokio::main]
async fn main() -> Result<(), Fault> {
    let server = Server::builder().setting("max_connections", "200").start()?;
    migrated(server.url(), 1).await?.close().await;
    println!("transactions per second with one hot limit and 2 ms of other work in each");
    println!("{:>10}{:>10}{:>10}{:>10}", "clients", "1 shard", "4 shards", "16 shards");
    for clients in [16, 64] {
        print!("{clients:>10}");
        for shards in [1, 4, 16] {
            print!("{:>10}", per_second(server.url(), clients, shards).await?);
        }
        println!();
    }
    Ok(())
}

async fn per_second(url: &str, clients: u32, shards: u16) -> Result<u64, Fault> {
    let limit = Limit::token_bucket("hot", 1_000_000, SECOND).shards(shards);
    let mut callers = JoinSet::new();
    let start = Instant::now() + WARM_UP;
    for _ in 0..clients {
        let (mut conn, limit) = (PgConnection::connect(url).await?, limit.clone());
        callers.spawn(async move {
            let mut committed = 0;
            while start.elapsed() < MEASURED {
                let mut tx = conn.begin().await?;
                Limiter::new().consume(&mut tx, limit.global()).await?.granted()?;
                tokio::time::sleep(OTHER_WORK).await;
                tx.commit().await?;
                committed += u64::from(Instant::now() >= start);
            }
            Ok::<_, Fault>(committed)
        });
    }
    let mut committed = 0;
    while let Some(caller) = callers.join_next().await {
        committed += caller??;
    }
    Ok(committed / MEASURED.as_secs())
}

const OTHER_WORK: Duration = Duration::from_millis(2);
/// Statements are prepared, and rows are made.
const WARM_UP: Duration = Duration::from_secs(1);
const MEASURED: Duration = Duration::from_secs(4);
