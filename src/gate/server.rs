use std::sync::Arc;
use std::time::Duration;

use sqlx::{ConnectOptions as _, PgConnection, PgPool};
use tokio::time::timeout;

use super::outage::Outage;
use crate::store::timed_out;

/// A server that a gate asks: the connections to it, and whether it is known to be silent.
#[derive(Clone)]
pub(super) struct Server {
    pub(super) pool: PgPool,
    pub(super) outage: Arc<Outage>,
}

impl Server {
    pub(super) fn new(pool: PgPool, statement_timeout: Duration) -> Self {
        Self { outage: Arc::new(Outage::new(pool.clone(), statement_timeout)), pool }
    }

    /// A connection beside the pool, to see whether the server answers.
    pub(super) async fn connect(&self, patience: Duration) -> Result<PgConnection, sqlx::Error> {
        let options = self.pool.connect_options();
        timeout(patience, options.connect()).await.unwrap_or_else(|_| Err(timed_out()))
    }
}
