use sqlx::PgPool;

use super::{Contender, Fault, Session, UPDATE, pool};
use crate::bench::scene::{Ask, Scene};
use crate::bench::workload::Workload;
use crate::limit::Storage;

/// Baseline (b): one `update` of one row by its primary key for each call, in autocommit.
///
/// The least that a writer which does not merge its calls can do: it decides nothing.
#[derive(Clone, Debug)]
pub(crate) struct Update {
    url: String,
}

impl Update {
    /// Over the database at `url`.
    pub(crate) fn new(url: impl Into<String>) -> Self {
        Self { url: url.into() }
    }
}

impl Contender for Update {
    type Session = UpdateSession;

    fn name(&self) -> &'static str {
        UPDATE
    }

    /// A refusal writes nothing, and three rows are more than one.
    fn enters(&self, scene: &Scene) -> bool {
        !matches!(scene.workload, Workload::Refused | Workload::Three)
    }

    async fn open(&self, scene: Scene) -> Result<UpdateSession, Fault> {
        Ok(UpdateSession { scene, pool: pool::open(&self.url, pool::CONNECTIONS).await? })
    }
}

/// [`Update`] during a turn.
#[derive(Debug)]
pub(crate) struct UpdateSession {
    scene: Scene,
    pool: PgPool,
}

impl Session for UpdateSession {
    async fn decide(&self, user: u32) -> Result<bool, Fault> {
        let sql = match self.scene.storage {
            Storage::Ephemeral => UPDATE_BUCKET,
            Storage::Durable => UPDATE_RATE_LIMIT,
        };
        let Ask::One(request) = self.scene.ask(user) else { return Err("one row is updated, not several".into()) };
        let asked = request.into_parts()?;
        let query = sqlx::query(sql).bind(asked.limit.name()).bind(asked.key.as_str());
        Ok(query.execute(&self.pool).await?.rows_affected() == 1)
    }

    async fn close(&self) {
        self.pool.close().await;
    }
}

const UPDATE_BUCKET: &str =
    "update tollgate.buckets set tokens = tokens - 1000000 where name = $1 and key = $2 and shard = 0";
const UPDATE_RATE_LIMIT: &str =
    "update tollgate.rate_limits set value = value - 1000000 where name = $1 and key = $2 and shard = 0";
