//! How fast is `Limiter::consume` in transactions of the caller, beside sqlx and pgbench sending the very same
//! statements?
//!
//! `cargo bench -p tollgate-benches --bench joined`
//!
//! All run in turns on one private server, through 16 connections over a Unix socket, on 10 000 keys and on one. The
//! median of five turns counts. Beside sqlx this measures what the library adds to the statements: it builds them,
//! decodes their rows and decides. Beside pgbench it measures the driver, too. It does not measure a network, other
//! load or more cores. Absolute figures are this machine's.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::{AssertSqlSafe, Connection, PgConnection, Row};
use tollgate::{HOUR, Limit, Limiter};
use tollgate_embedded::Server;

use support::pgbench::{self, statement};
use support::{Fault, fill, median, migrated};

/// Never exhausted: every call is granted and saved.
const LIMIT: Limit = Limit::token_bucket("bench", 1_000_000_000, HOUR);

fn main() -> Result<(), Fault> {
    let server = Server::builder().setting("max_connections", "100").setting("shared_buffers", "256MB").start()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let pool = runtime.block_on(migrated(server.url(), 1))?;
    println!("storage    keys       tollgate /s      × sqlx   × pgbench");
    for (storage, limit) in [("ephemeral", LIMIT.ephemeral()), ("durable", LIMIT)] {
        for keys in [10_000, 1] {
            runtime.block_on(fill(&pool, (0..keys).map(|key| limit.key(key))))?;
            let callers = [Caller::Tollgate(limit.clone()), Caller::sqlx(storage)?].map(Arc::new);
            let [mut ours, mut by_sqlx, mut by_pgbench] = [const { Vec::new() }; 3];
            for _ in 0..TURNS {
                ours.push(runtime.block_on(callers[0].turn(&server, keys))?);
                by_sqlx.push(runtime.block_on(callers[1].turn(&server, keys))?);
                by_pgbench.push(pgbench::per_second(&server, &pgbench::joined(storage, keys)?, CLIENTS, TURN)?);
            }
            let [ours, by_sqlx, by_pgbench] = [ours, by_sqlx, by_pgbench].map(median);
            println!("{storage:<10} {keys:<8} {ours:>13.0} {:>11.2} {:>11.2}", ours / by_sqlx, ours / by_pgbench);
        }
    }
    Ok(())
}

/// A contender; it makes each call in a transaction of its own.
enum Caller {
    Tollgate(Limit),
    /// Sends the statements of `src/store/sql`, and feeds what the first returns to the second.
    Sqlx {
        lock: Arc<str>,
        save: Arc<str>,
    },
}

impl Caller {
    fn sqlx(storage: &str) -> Result<Self, Fault> {
        Ok(Self::Sqlx { lock: statement(storage, "lock_one")?.into(), save: statement(storage, "save_one")?.into() })
    }

    /// Decisions per second.
    async fn turn(self: &Arc<Self>, server: &Server, keys: u32) -> Result<f64, Fault> {
        let (stop, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
        let mut clients = Vec::new();
        for client in 0..CLIENTS {
            let mut conn = PgConnection::connect(server.url()).await?;
            let (stop, count, caller) = (stop.clone(), count.clone(), self.clone());
            clients.push(tokio::spawn(async move {
                let mut random = fastrand::Rng::with_seed(client.into());
                while !stop.load(Ordering::Relaxed) {
                    caller.call(&mut conn, random.u32(..keys)).await?;
                    count.fetch_add(1, Ordering::Relaxed);
                }
                Ok::<_, Fault>(())
            }));
        }
        tokio::time::sleep(TURN).await;
        stop.store(true, Ordering::Relaxed);
        for client in clients {
            client.await??;
        }
        Ok(f64::from(count.load(Ordering::Relaxed)) / TURN.as_secs_f64())
    }

    async fn call(&self, conn: &mut PgConnection, key: u32) -> Result<(), Fault> {
        let mut tx = conn.begin().await?;
        match self {
            Self::Tollgate(limit) => {
                Limiter::new().consume(&mut tx, limit.key(key)).await?.granted()?;
            }
            Self::Sqlx { lock, save } => {
                let key = key.to_string();
                let row = |statement: &Arc<str>| {
                    sqlx::query(AssertSqlSafe(statement.clone())).bind(0_i16).bind("bench").bind(&key).bind(0_i16)
                };
                let lock = row(lock).bind(-1_000_000_000_000_i64).bind(1e15).bind(3_600_f64).bind(false);
                let found = lock.bind(None::<f64>).bind(None::<DateTime<Utc>>).fetch_one(&mut *tx).await?;
                let (value, ts): (i64, DateTime<Utc>) = (found.try_get(3)?, found.try_get(4)?);
                let save = row(save).bind(value - 1).bind(ts).bind(ts).bind(found.try_get::<i64, _>(1)?);
                save.bind(None::<Vec<i64>>).fetch_one(&mut *tx).await?;
            }
        }
        Ok(tx.commit().await?)
    }
}

const CLIENTS: u32 = 16;
const TURN: Duration = Duration::from_secs(3);
const TURNS: usize = 5;
