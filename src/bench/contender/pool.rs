use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;

use super::Fault;
use crate::bench::session;

/// The pool that every contender has for itself, with all of its connections open.
///
/// sqlx's pool asks a connection whether it lives when it is given back, and by default once more when it is taken. The
/// second is switched off: it is a round trip that a careful baseline does without.
pub(in crate::bench) async fn open(url: &str, connections: u32) -> Result<PgPool, Fault> {
    let options = PgPoolOptions::new().max_connections(connections).test_before_acquire(false);
    let pool = options.connect_with(session::options(url)?).await?;
    let mut open = Vec::new();
    for _ in 0..connections {
        open.push(pool.acquire().await?);
    }
    drop(open);
    Ok(pool)
}

/// Connections in each pool of the load program.
pub(super) const CONNECTIONS: u32 = 16;
