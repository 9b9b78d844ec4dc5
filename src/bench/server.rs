use sqlx::{Connection as _, PgConnection};

use super::error::BenchError;
use crate::embedded::{Builder, Server, StartError};

/// Starts a private server for measuring. It writes as a production server does, and it counts statements, which costs
/// nothing that could be measured, where its installation has `pg_stat_statements`.
///
/// # Errors
///
/// [`BenchError::Server`] and [`BenchError::Connect`].
pub async fn server() -> Result<Server, BenchError> {
    let server = tokio::task::spawn_blocking(start).await??;
    let mut conn = PgConnection::connect(server.url()).await.map_err(BenchError::Connect)?;
    // Without it there is one figure less.
    let _ = sqlx::query("create extension pg_stat_statements").execute(&mut conn).await;
    Ok(server)
}

fn start() -> Result<Server, StartError> {
    match configured().setting("shared_preload_libraries", STATISTICS).start() {
        Err(StartError::Startup { log }) if log.contains(STATISTICS) => configured().start(),
        started => started,
    }
}

fn configured() -> Builder {
    Server::builder().durable().setting("max_connections", "100").setting("shared_buffers", "256MB")
}

const STATISTICS: &str = "pg_stat_statements";
