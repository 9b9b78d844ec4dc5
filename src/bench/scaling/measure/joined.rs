use sqlx::{AssertSqlSafe, Connection as _, PgPool};

use crate::SECOND;
use crate::bench::contender::{Contender, Fault, Session, pool};
use crate::bench::scene::Scene;
use crate::limit::{Limit, Storage};
use crate::limiter::Limiter;

/// A transaction for each call, with a `Limiter` and other work in it, over a connection for each caller.
#[derive(Clone, Debug)]
pub(super) struct Joined {
    pub(super) url: String,
    /// For one key; none where each user is one.
    pub(super) shards: Option<u16>,
    pub(super) work_us: u32,
}

impl Contender for Joined {
    type Session = JoinedSession;

    fn name(&self) -> &'static str {
        "joined"
    }

    async fn open(&self, scene: Scene) -> Result<JoinedSession, Fault> {
        let limit = Limit::token_bucket("bench_joined", PLENTY, SECOND).shards(self.shards.unwrap_or(1));
        let limit = if scene.storage == Storage::Ephemeral { limit.ephemeral() } else { limit };
        let pool = pool::open(&self.url, u32::try_from(scene.callers)?).await?;
        let session = JoinedSession { limit, hot: self.shards.is_some(), work: None, pool };
        session.prepare().await?;
        let work = (self.work_us > 0).then(|| format!("select pg_sleep({})", f64::from(self.work_us) / 1e6));
        Ok(JoinedSession { work, ..session })
    }
}

/// [`Joined`] during a turn.
#[derive(Debug)]
pub(super) struct JoinedSession {
    limit: Limit,
    hot: bool,
    work: Option<String>,
    pool: PgPool,
}

impl JoinedSession {
    /// Has every connection plan every statement: where callers wait for each other, none comes to that in a warm-up.
    async fn prepare(&self) -> Result<(), Fault> {
        let mut connections = Vec::new();
        for _ in 0..self.pool.options().get_max_connections() {
            connections.push(self.pool.acquire().await?);
        }
        for (key, connection) in connections.iter_mut().enumerate() {
            for _ in 0..PLANNINGS {
                let mut tx = connection.begin().await?;
                Limiter::new().consume(&mut tx, self.limit.key(key)).await?.granted()?;
                tx.commit().await?;
            }
        }
        Ok(())
    }
}

impl Session for JoinedSession {
    async fn decide(&self, user: u32) -> Result<bool, Fault> {
        let request = if self.hot { self.limit.global() } else { self.limit.key(user) };
        let mut tx = self.pool.begin().await?;
        let decision = Limiter::new().consume(&mut tx, request).await?;
        if let Some(work) = &self.work {
            sqlx::query(AssertSqlSafe(work.clone())).execute(&mut *tx).await?;
        }
        tx.commit().await?;
        Ok(decision.is_granted())
    }

    async fn close(&self) {
        self.pool.close().await;
    }
}

/// PostgreSQL plans a statement anew for its first five executions, and then settles on a plan.
const PLANNINGS: u32 = 6;

/// More than any machine spends.
const PLENTY: u64 = 1_000_000_000;
