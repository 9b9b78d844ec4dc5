use sqlx::PgPool;

use super::{Contender, Fault, PLAIN, Session, pool};
use crate::bench::scene::{Ask, Scene};
use crate::limiter::Limiter;

/// Baseline (a): a transaction for each call, with [`Limiter`] in it and nothing else.
#[derive(Clone, Debug)]
pub(crate) struct Plain {
    url: String,
}

impl Plain {
    /// Over the database at `url`.
    pub(crate) fn new(url: impl Into<String>) -> Self {
        Self { url: url.into() }
    }
}

impl Contender for Plain {
    type Session = PlainSession;

    fn name(&self) -> &'static str {
        PLAIN
    }

    async fn open(&self, scene: Scene) -> Result<PlainSession, Fault> {
        Ok(PlainSession { scene, pool: pool::open(&self.url, pool::CONNECTIONS).await? })
    }
}

/// [`Plain`] during a turn.
#[derive(Debug)]
pub(crate) struct PlainSession {
    scene: Scene,
    pool: PgPool,
}

impl Session for PlainSession {
    async fn decide(&self, user: u32) -> Result<bool, Fault> {
        let mut tx = self.pool.begin().await?;
        let decision = match self.scene.ask(user) {
            Ask::One(request) => Limiter::new().consume(&mut tx, request).await?,
            Ask::All(requests) => Limiter::new().consume_all(&mut tx, requests).await?,
        };
        tx.commit().await?;
        Ok(decision.is_granted())
    }

    async fn close(&self) {
        self.pool.close().await;
    }
}
