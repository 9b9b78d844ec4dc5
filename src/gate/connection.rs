use std::ops::{Deref, DerefMut};
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::{PgConnection, Postgres};

use super::shared::Shared;
use crate::error::{Error, Step};
use crate::store::database;

/// A connection of the pool that never goes back to it in the middle of something: dropped while a statement is under
/// way, also by a panic or by the end of the runtime, it is closed.
#[derive(Debug)]
pub(super) struct Connection {
    inner: PoolConnection<Postgres>,
    sound: bool,
}

impl Connection {
    /// Waits for a connection, in the pool's queue.
    pub(super) async fn acquire(shared: &Shared, limit: &str) -> Result<Self, Error> {
        let acquired = tokio::time::timeout(shared.settings.acquire_timeout, shared.pool.acquire()).await;
        let inner = acquired
            .unwrap_or(Err(sqlx::Error::PoolTimedOut))
            .map_err(|source| database(Step::Acquire, limit, source))?;
        Ok(Self { inner, sound: true })
    }

    /// Marks that a statement is under way, until [`finished`](Self::finished).
    pub(super) fn begin(&mut self) {
        self.sound = false;
    }

    /// Marks that what was begun has come to its end.
    pub(super) fn finished(&mut self) {
        self.sound = true;
    }

    /// Keeps the connection for the next batch, unless the pool has no other to give: then it goes back, and to the end
    /// of the pool's queue, so that the host application's own requests get their turn. Nor is it kept from a pool that
    /// is being closed.
    pub(super) async fn unless_wanted(self, shared: &Shared) -> Option<Self> {
        let pool = &shared.pool;
        let exhausted = pool.num_idle() == 0 && pool.size() >= pool.options().get_max_connections();
        if !exhausted && !pool.is_closed() {
            return Some(self);
        }
        self.give_back(shared).await;
        None
    }

    /// Returns it to the pool, or closes it where the server does not answer.
    ///
    /// The pool asks whether the server is there, without an end, and counts the connection as one that is in use. What
    /// drops it would leave that to a task of sqlx. This method of sqlx is hidden, but public: it is the only way to
    /// bound the question.
    pub(super) async fn give_back(mut self, shared: &Shared) {
        let returned = self.inner.return_to_pool();
        // Dropped in the middle of the question, it is closed, and its place in the pool is free.
        let _ = tokio::time::timeout(shared.settings.statement_timeout, returned).await;
    }
}

impl Deref for Connection {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.inner
    }
}

impl DerefMut for Connection {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.inner
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if !self.sound {
            self.inner.close_on_drop();
        }
    }
}

/// Gives up on a server that does not answer. What was asked may still be carried out.
pub(super) async fn within<T>(
    patience: Duration,
    step: Step,
    limit: &str,
    asked: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let gave_up = |_| Err(database(step, limit, std::io::Error::from(std::io::ErrorKind::TimedOut).into()));
    tokio::time::timeout(patience, asked).await.unwrap_or_else(gave_up)
}
