//! How long do a hundred calls of a hundred keys take in one transaction, by `consume_each` and in turn?
//!
//! `cargo bench -p tollgate-benches --bench each`
//!
//! Both run in turns on one private server, over one connection on a Unix socket, and the medians of three hundred
//! transactions each count. All rows are there, and all calls are granted. It does not measure a network, over which
//! each call in turn waits for two round trips more.

#![expect(clippy::disallowed_methods, reason = "a benchmark measures spans on this machine's monotonic clock")]

mod support;

use std::time::{Duration, Instant};

use sqlx::{Connection, PgConnection};
use tollgate::{HOUR, Limit, Limiter, Request};
use tollgate_embedded::Server;

use support::{Fault, Latencies, fill, migrated};

/// Never exhausted: every call is granted and saved.
const LIMIT: Limit = Limit::token_bucket("bench", 1_000_000_000, HOUR);

#[tokio::main]
async fn main() -> Result<(), Fault> {
    let server = tokio::task::spawn_blocking(|| Server::builder().durable().start()).await??;
    let pool = migrated(server.url(), 1).await?;
    let mut conn = PgConnection::connect(server.url()).await?;
    println!("storage     in turn ms   consume_each ms    ×");
    for (storage, limit) in [("ephemeral", LIMIT.ephemeral()), ("durable", LIMIT)] {
        fill(&pool, calls(&limit).flatten()).await?;
        let [mut in_turn, mut together] = [Latencies::default(), Latencies::default()];
        for _ in 0..TRANSACTIONS {
            in_turn.record(consume_in_turn(&mut conn, &limit).await?);
            together.record(consume_each(&mut conn, &limit).await?);
        }
        let [in_turn, together] = [in_turn, together].map(|latencies| latencies.sorted().quantile(0.5) / 1e3);
        println!("{storage:<10} {in_turn:>11.2} {together:>17.2} {:>4.0}", in_turn / together);
    }
    Ok(())
}

fn calls(limit: &Limit) -> impl Iterator<Item = [Request; 1]> {
    (0..CALLS).map(|key| [limit.key(key)])
}

async fn consume_in_turn(conn: &mut PgConnection, limit: &Limit) -> Result<Duration, Fault> {
    let begun = Instant::now();
    let mut tx = conn.begin().await?;
    for call in calls(limit) {
        Limiter::new().consume(&mut tx, call).await?.granted()?;
    }
    tx.commit().await?;
    Ok(begun.elapsed())
}

async fn consume_each(conn: &mut PgConnection, limit: &Limit) -> Result<Duration, Fault> {
    let begun = Instant::now();
    let mut tx = conn.begin().await?;
    for decision in Limiter::new().consume_each(&mut tx, calls(limit)).await? {
        decision?.granted()?;
    }
    tx.commit().await?;
    Ok(begun.elapsed())
}

const CALLS: u32 = 100;
const TRANSACTIONS: u32 = 300;
