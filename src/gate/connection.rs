#![expect(
    clippy::disallowed_methods,
    reason = "the monotonic clock measures the wait for a connection; the database tells the time"
)]

use std::ops::{Deref, DerefMut};
use std::pin::pin;
use std::time::{Duration, Instant};

use futures_util::TryFutureExt as _;
use futures_util::future::{Either, select};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, Row as _};
use tokio::time::{sleep, timeout};

use super::outage::close_idle;
use super::server::Server;
use super::shared::Shared;
use crate::error::{Error, Step};
use crate::store::session::{self, Right, Session};
use crate::store::{self, Store, database, millis, timed_out};

/// A connection to a server of the gate. Somebody may have left it in a transaction.
pub(super) struct Connection {
    /// `None` once it could not be replaced.
    session: Option<Session>,
    pub(super) server: Server,
}

impl Connection {
    /// Waits for a connection, in the pool's queue. It does not wait if the server is known to be silent.
    pub(super) async fn acquire(shared: &Shared, server: &Server, limit: &str) -> Result<Self, Error> {
        let mut outage = server.outage.listen();
        loop {
            if let Some(error) = server.outage.known() {
                return Err(error.concerning(&limit.to_owned().into()));
            }
            let acquired = pin!(Self::try_acquire(shared, server, limit));
            match select(acquired, pin!(outage.changed())).await {
                Either::Left((acquired, _)) => return acquired,
                // An outage began or ended, so it tries again: the answer that the pool waits for may be lost.
                Either::Right(((), _)) => {}
            }
        }
    }

    /// Waits for a connection that nobody left in a transaction or under a role without rights. This takes a round
    /// trip.
    pub(super) async fn acquire_sound(shared: &Shared, server: &Server, limit: &str) -> Result<Self, Error> {
        let mut tries = session::tries(&server.pool);
        loop {
            let mut connection = Self::acquire(shared, server, limit).await?;
            match connection.expect_sound(shared, limit).await {
                Err(error) if (error.is_left() || error.may_be_a_setting()) && tries > 0 => {
                    tries -= 1;
                    if error.is_left() {
                        session::tell();
                    }
                }
                Err(error) => return Err(error),
                Ok(()) => {
                    connection.finished();
                    return Ok(connection);
                }
            }
        }
    }

    /// The tables, over this connection, by the gate's clock.
    pub(super) fn store(&mut self, shared: &Shared) -> Store<'_> {
        let (backend, timeout, shards) =
            (shared.settings.backend, shared.settings.statement_timeout, self.server.shards.clone());
        let store = shared.store_in(self).on_shards(shards);
        if backend.unnamed { store.wrapping(store::timeouts(backend, None, timeout)) } else { store }
    }

    /// Closes a connection that somebody left so, and takes another. If there is none, this one is
    /// [gone](Self::is_gone).
    pub(super) async fn replace(&mut self, shared: &Shared, limit: &str) -> Result<(), Error> {
        session::tell();
        self.session = None;
        self.session = Self::acquire_sound(shared, &self.server, limit).await?.session.take();
        Ok(())
    }

    /// Fails if somebody left it in a transaction, or under a role without rights.
    pub(super) async fn expect_sound(&mut self, shared: &Shared, limit: &str) -> Result<(), Error> {
        let sound = session::expect_sound(self, Right::STORE).map_err(|source| database(Step::Begin, limit, source));
        within(shared.settings.statement_timeout, Step::Begin, limit, sound).await
    }

    pub(super) fn is_gone(&self) -> bool {
        self.session.is_none()
    }

    /// Waits for a connection, and finds out why there is none.
    ///
    /// sqlx reports a crowd and a server that is gone by the same error. The pool's counters do not tell them apart
    /// either, because they include a connection that the pool is trying to open. The pool also asks an idle connection
    /// whether it is alive, and waits for the answer forever. So the gate tries a connection beside the pool. It tries
    /// early if a connection was idle: then there is no crowd, and the idle one may be cut off.
    async fn try_acquire(shared: &Shared, server: &Server, limit: &str) -> Result<Self, Error> {
        let failed = |source| database(Step::Acquire, limit, source);
        let (pool, patience) = (&server.pool, shared.settings.acquire_timeout);
        let started = Instant::now();
        let had_idle = session::idle(pool) > 0;
        let pause = if had_idle { LOOK.min(patience / 4) } else { patience / 2 };
        let look = async || (server.outage.now(), server.connect(patience).await.map(drop));
        let mut early = pin!(async {
            sleep(pause).await;
            look().await
        });
        let mut beside = None;
        loop {
            let left = patience.saturating_sub(started.elapsed());
            let mut acquired = pin!(timeout(left, pool.acquire()));
            let acquired = match beside {
                Some(_) => acquired.await,
                None => match select(acquired.as_mut(), early.as_mut()).await {
                    Either::Left((acquired, _)) => acquired,
                    Either::Right((found, _)) => {
                        let is_cut_off = had_idle && found.1.is_ok();
                        beside = Some(found);
                        if is_cut_off {
                            close_idle(pool);
                            continue;
                        }
                        acquired.await
                    }
                },
            };
            match acquired {
                Ok(Ok(inner)) => {
                    // This is a new connection. It may replace one that the pool found broken, or be the pool's first.
                    if inner.cached_statements_size() == 0 {
                        shared.memories.prefetch.broke();
                    }
                    return Ok(Self { session: Some(Session::of(inner)), server: server.clone() });
                }
                Ok(Err(sqlx::Error::PoolTimedOut)) | Err(_) => break,
                Ok(Err(source)) => {
                    let error = failed(source);
                    if error.is_outage() {
                        server.outage.fail(&error);
                    }
                    return Err(error);
                }
            }
        }
        let (asked, found) = match beside {
            Some(found) if found.1.is_err() || !had_idle => found,
            _ => look().await,
        };
        match found.map_err(failed) {
            // Other callers were answered meanwhile, so the server only accepts no further connection.
            Err(error) if error.is_outage() && server.outage.has_heard(asked) => {}
            Err(error) => {
                if error.is_outage() {
                    server.outage.confirm(&error);
                }
                return Err(error);
            }
            Ok(()) => {}
        }
        // A crowd leaves no connection idle. One of the idle ones may have kept the pool waiting for its answer.
        close_idle(pool);
        Err(Error::PoolExhausted { limit: limit.to_owned().into() })
    }

    /// Marks that the statement has ended.
    pub(super) fn finished(&mut self) {
        self.session.iter_mut().for_each(Session::finished);
    }

    /// Keeps the connection for the next batch, unless the pool has no other free connection or is being closed. Then
    /// the connection goes back, and the lane queues for one again, so that the host application's own requests get
    /// their turn.
    pub(super) async fn unless_wanted(self, shared: &Shared) -> Option<Self> {
        let pool = &self.server.pool;
        let exhausted = session::idle(pool) == 0 && pool.size() >= pool.options().get_max_connections();
        if !exhausted && !pool.is_closed() {
            return Some(self);
        }
        self.give_back(shared).await;
        None
    }

    /// Returns it to the pool, or closes it if the server does not answer.
    pub(super) async fn give_back(self, shared: &Shared) {
        if let Some(session) = self.session {
            let _ = timeout(shared.settings.statement_timeout, session.give_back()).await;
        }
    }
}

impl Deref for Connection {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        self.session.as_ref().expect(GONE)
    }
}

impl DerefMut for Connection {
    fn deref_mut(&mut self) -> &mut PgConnection {
        self.session.as_mut().expect(GONE)
    }
}

/// Returns once it is clear that the connection of a statement, silent since this instant, is cut off. That is clear
/// when the server answers over a connection beside the pool, and is not at work on such a statement. It asks again
/// once an outage is over. Otherwise it never returns.
pub(super) async fn cut_off(server: &Server, patience: Duration, silent_since: Instant) {
    let mut outage = server.outage.listen();
    loop {
        let look = pin!(timeout(patience, is_at_work(server, patience, silent_since)));
        match select(look, pin!(outage.over())).await {
            Either::Left((Ok(Ok(false)), _)) => return close_idle(&server.pool),
            Either::Left((_, over)) => over.await,
            Either::Right(((), _)) => {}
        }
    }
}

/// Whether the server is at work on a statement of this role that may be the silent one. sqlx exposes no process id,
/// with which the gate could ask for its own session, or cancel it.
async fn is_at_work(server: &Server, patience: Duration, silent_since: Instant) -> Result<bool, sqlx::Error> {
    let mut beside = server.connect(patience).await?;
    // The silent statement began after it was sent, and not just now.
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

/// Gives up on a server that does not answer. It may still carry out the statement.
pub(super) async fn within<T>(
    patience: Duration,
    step: Step,
    limit: &str,
    asked: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let gave_up = |_| Err(database(step, limit, timed_out()));
    timeout(patience, asked).await.unwrap_or_else(gave_up)
}

/// Says whether an error came before a timeout of ours could have struck.
pub(super) async fn timed<T>(timeout: Duration, asked: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let began = Instant::now();
    asked.await.map_err(|error| if began.elapsed() < timeout { error.of_no_timeout() } else { error })
}

const GONE: &str = "a connection that is gone is not used";

/// How long an idle connection may take to answer the pool before the gate checks whether a new one is faster.
const LOOK: Duration = Duration::from_secs(1);
