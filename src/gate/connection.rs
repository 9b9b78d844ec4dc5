use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

use sqlx::pool::PoolConnection;
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, PgConnection, PgPool, Postgres, Row as _};

use super::shared::Shared;
use crate::error::{Error, Step};
use crate::store::{database, millis, timed_out};

/// A connection of the pool that never goes back to it in the middle of something: dropped while a statement is under
/// way, also by a panic or by the end of the runtime, it is closed.
pub(super) struct Connection {
    inner: PoolConnection<Postgres>,
    sound: bool,
}

impl Connection {
    /// Waits for a connection, in the pool's queue.
    ///
    /// Where the pool had none in time, sqlx says the same of a crowd and of a server that is gone. A connection beside
    /// the pool tells the two apart.
    pub(super) async fn acquire(shared: &Shared, limit: &str) -> Result<Self, Error> {
        let failed = |source| database(Step::Acquire, limit, source);
        let patience = shared.settings.acquire_timeout;
        match tokio::time::timeout(patience, shared.pool.acquire()).await {
            Ok(Ok(inner)) => {
                // One that replaces another, which the pool found broken. It may also be the pool's first one.
                if inner.cached_statements_size() == 0 {
                    shared.broke();
                }
                return Ok(Self { inner, sound: true });
            }
            Ok(Err(sqlx::Error::PoolTimedOut)) | Err(_) => {}
            Ok(Err(source)) => return Err(failed(source)),
        }
        connect(shared, patience).await.map_err(failed)?;
        // No crowd leaves any idle. One of them may have kept the pool waiting for its answer.
        close_idle(&shared.pool);
        Err(Error::PoolExhausted { limit: limit.to_owned().into() })
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

/// A connection beside the pool, for as long as it takes to see whether the server answers.
async fn connect(shared: &Shared, patience: Duration) -> Result<PgConnection, sqlx::Error> {
    let options = shared.pool.connect_options();
    tokio::time::timeout(patience, options.connect()).await.unwrap_or_else(|_| Err(timed_out()))
}

/// Returns once the server answers over a connection beside the pool, and is not at work on a statement that has been
/// silent since this instant: so the connection of the statement is cut off. Else never returns.
pub(super) async fn cut_off(shared: &Shared, silent_since: Instant) {
    let patience = shared.settings.statement_timeout;
    match tokio::time::timeout(patience, is_at_work(shared, silent_since)).await {
        Ok(Ok(false)) => close_idle(&shared.pool),
        _ => std::future::pending().await,
    }
}

/// Whether the server is at work on a statement of this role that may be the one that has been silent.
async fn is_at_work(shared: &Shared, silent_since: Instant) -> Result<bool, sqlx::Error> {
    let patience = shared.settings.statement_timeout;
    let mut beside = connect(shared, patience).await?;
    // It began after it was sent, and not a moment ago.
    let (most, least) = (silent_since.elapsed().saturating_add(patience), patience / 2);
    let sql = format!(
        "select exists (select from pg_catalog.pg_stat_activity
          where datname = pg_catalog.current_database() and usename = session_user and state = 'active'::text
            and pid <> pg_catalog.pg_backend_pid() and wait_event_type is distinct from 'Client'::text
            and query_start between pg_catalog.clock_timestamp() - interval '{} milliseconds'
                                and pg_catalog.clock_timestamp() - interval '{} milliseconds')",
        millis(most),
        millis(least)
    );
    sqlx::raw_sql(AssertSqlSafe(sql)).fetch_one(&mut beside).await?.try_get(0)
}

/// Closes connections that lie idle in the pool, since they may be cut off: then each of them would cost a timeout.
fn close_idle(pool: &PgPool) {
    for _ in 0..pool.num_idle() {
        drop(pool.try_acquire().map(PoolConnection::detach));
    }
}

/// Gives up on a server that does not answer. What was asked may still be carried out.
pub(super) async fn within<T>(
    patience: Duration,
    step: Step,
    limit: &str,
    asked: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let gave_up = |_| Err(database(step, limit, timed_out()));
    tokio::time::timeout(patience, asked).await.unwrap_or_else(gave_up)
}
