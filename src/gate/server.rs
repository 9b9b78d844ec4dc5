use std::sync::Arc;
use std::time::Duration;

use sqlx::{ConnectOptions as _, PgConnection, PgPool};
use tokio::time::timeout;

use super::outage::Outage;
use crate::store::{Shards, timed_out};

/// A server that a gate asks: the connections to it, and whether it is known to be silent.
#[derive(Clone)]
pub(super) struct Server {
    pub(super) pool: PgPool,
    pub(super) outage: Arc<Outage>,
    /// The shards on a node of Citus whose tables the gate asks; none elsewhere.
    pub(super) shards: Arc<Shards>,
}

impl Server {
    pub(super) fn new(pool: PgPool, statement_timeout: Duration) -> Self {
        let outage = Arc::new(Outage::new(pool.clone(), statement_timeout));
        Self { pool, outage, shards: Arc::default() }
    }

    /// A connection beside the pool, to see whether the server answers.
    pub(super) async fn connect(&self, patience: Duration) -> Result<PgConnection, sqlx::Error> {
        let options = self.pool.connect_options();
        timeout(patience, options.connect()).await.unwrap_or_else(|_| Err(timed_out()))
    }
}
