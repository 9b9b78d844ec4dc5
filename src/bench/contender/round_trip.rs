use sqlx::PgPool;

use super::{Contender, Fault, ROUND_TRIP, Session, pool};
use crate::bench::Scene;

/// Baseline (c): `select 1` for each call, hence what the driver, the connection and the server's loop cost by themselves.
#[derive(Clone, Debug)]
pub(crate) struct RoundTrip {
    url: String,
}

impl RoundTrip {
    /// Over the database at `url`.
    pub(crate) fn new(url: impl Into<String>) -> Self {
        Self { url: url.into() }
    }
}

impl Contender for RoundTrip {
    type Session = RoundTripSession;

    fn name(&self) -> &'static str {
        ROUND_TRIP
    }

    async fn open(&self, scene: Scene) -> Result<RoundTripSession, Fault> {
        Ok(RoundTripSession { scene, pool: pool::open(&self.url, pool::CONNECTIONS).await? })
    }
}

/// [`RoundTrip`] during a turn.
#[derive(Debug)]
pub(crate) struct RoundTripSession {
    scene: Scene,
    pool: PgPool,
}

impl Session for RoundTripSession {
    async fn decide(&self, _user: u32) -> Result<bool, Fault> {
        sqlx::query("select 1").execute(&self.pool).await?;
        Ok(self.scene.workload.is_granted())
    }

    async fn close(&self) {
        self.pool.close().await;
    }
}
