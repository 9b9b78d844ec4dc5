#![expect(
    clippy::disallowed_methods,
    reason = "the monotonic clock measures how long a server is silent; no decision depends on it"
)]

mod buckets;
mod fallback;

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::{Either, select};
use sqlx::pool::PoolConnection;
use sqlx::{ConnectOptions as _, PgPool};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::worker::Worker;
use crate::error::{Error, Step, chain};
use crate::store::{database, session};
pub(super) use fallback::Fallback;
pub use fallback::OnFailure;

/// Remembers that the server is silent, so that each caller gets the error at once and does not run into a timeout of
/// its own.
///
/// A statement without an answer is only a suspicion: the connection may be cut off, or the server busy. So a task asks
/// over a connection beside the pool. If no answer comes there or to another batch, the outage is known. Then every new
/// or queued call gets the error at once, and the task asks until it gets an answer.
pub(super) struct Outage {
    pool: PgPool,
    statement_timeout: Duration,
    state: watch::Sender<Health>,
    built: Instant,
    /// When the last batch was answered, in microseconds since `built`.
    heard: AtomicU64,
    /// When the last connection could not be opened, likewise; 0 if each could.
    failed: AtomicU64,
}

/// Only the task sets it back to fine, and then the task ends.
enum Health {
    Fine,
    Suspected,
    /// The outage is known. Each call gets this error.
    Known(Error),
}

/// Is notified when an outage becomes known, and when it is over.
pub(super) struct Listener(watch::Receiver<Health>);

impl Outage {
    pub(super) fn new(pool: PgPool, statement_timeout: Duration) -> Self {
        let (state, built) = (watch::Sender::new(Health::Fine), Instant::now());
        Self { pool, statement_timeout, state, built, heard: AtomicU64::new(0), failed: AtomicU64::new(0) }
    }

    /// The error of the outage, if there is one.
    pub(super) fn known(&self) -> Option<Error> {
        self.state.borrow().known()
    }

    pub(super) fn listen(&self) -> Listener {
        Listener(self.state.subscribe())
    }

    /// The server has answered a batch.
    pub(super) fn heard(&self) {
        self.heard.store(self.now(), Ordering::Relaxed);
    }

    /// A statement was not answered in time.
    pub(super) fn suspect(self: &Arc<Self>, error: &Error) {
        self.ask_if_first(error.clone().of_calls_behind(), |state| {
            if matches!(state, Health::Fine) {
                *state = Health::Suspected;
            }
            false
        });
    }

    /// Neither the pool nor a connection beside it was answered, or two connections were closed at once.
    pub(super) fn confirm(self: &Arc<Self>, error: &Error) {
        self.ask_if_first(error.clone(), |state| state.know(error));
    }

    /// Changes the state, and starts the task if the server was fine.
    fn ask_if_first(self: &Arc<Self>, error: Error, change: impl FnOnce(&mut Health) -> bool) {
        let mut is_first = false;
        self.state.send_if_modified(|state| {
            is_first = matches!(state, Health::Fine);
            change(state)
        });
        if is_first {
            self.ask(error);
        }
    }

    /// A connection could not be opened. The second time within half a second counts as silence, or each call would try
    /// one more: a server may accept connections, and close each at once.
    pub(super) fn fail(self: &Arc<Self>, error: &Error) {
        let now = self.now();
        let before = self.failed.swap(now, Ordering::Relaxed);
        let is_soon = u128::from(now.saturating_sub(before)) < EVERY.as_micros();
        if before > 0 && is_soon && !self.has_heard(before) {
            self.confirm(error);
        }
    }

    /// Starts the task. If the task ends early, with its runtime, the next call finds out for itself.
    fn ask(self: &Arc<Self>, error: Error) {
        let (outage, ended) = (self.clone(), Arc::downgrade(self));
        let worker = Worker::new(move || {
            if let Some(outage) = ended.upgrade() {
                outage.end();
            }
        });
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move {
                outage.until_answered(&error).await;
                outage.end();
                worker.done();
            });
        }
    }

    async fn until_answered(self: &Arc<Self>, error: &Error) {
        let asked = self.now();
        if self.is_answered(EVERY).await || self.has_heard(asked) {
            return;
        }
        tracing::warn!(error = %chain(error), "the server is silent");
        self.state.send_if_modified(|state| state.know(error));
        loop {
            // One connection waits long, for a server that is slow to accept it. Those beside it wait briefly, for a
            // network that loses packets.
            let patient = pin!(self.is_answered(self.statement_timeout));
            let is_over = match select(patient, pin!(self.until_over(asked))).await {
                Either::Left((false, brief)) => timeout(EVERY, brief).await.is_ok(),
                _ => true,
            };
            if is_over {
                break;
            }
        }
        // Each idle connection that is cut off would cost a timeout.
        close_idle(&self.pool);
        if !self.is_abandoned() {
            tracing::warn!("the server answers again");
        }
    }

    /// Whether the gate is gone, or its pool.
    fn is_abandoned(self: &Arc<Self>) -> bool {
        Arc::strong_count(self) == 1 || self.pool.is_closed()
    }

    /// Asks briefly, again and again, until the server answers here or elsewhere, or the gate is gone.
    async fn until_over(self: &Arc<Self>, asked: u64) {
        loop {
            sleep(EVERY).await;
            if self.is_abandoned() || self.is_answered(EVERY).await || self.has_heard(asked) {
                return;
            }
        }
    }

    /// Whether the server answers over a connection beside the pool. A refusal is an answer, too.
    async fn is_answered(&self, patience: Duration) -> bool {
        let options = self.pool.connect_options();
        let asked = async { sqlx::raw_sql("select 1").execute(&mut options.connect().await?).await };
        match timeout(patience, asked).await {
            Ok(Ok(_)) => true,
            Ok(Err(source)) => {
                let error = database(Step::Acquire, "", source).of_no_timeout();
                !error.is_outage() && !error.is_failing_login()
            }
            Err(_) => false,
        }
    }

    fn end(&self) {
        self.state.send_if_modified(|state| matches!(std::mem::replace(state, Health::Fine), Health::Known(_)));
    }

    /// Whether a batch was answered after an instant, as [`now`](Self::now) tells it.
    pub(super) fn has_heard(&self, since: u64) -> bool {
        self.heard.load(Ordering::Relaxed) > since
    }

    pub(super) fn now(&self) -> u64 {
        self.built.elapsed().as_micros().try_into().unwrap_or(u64::MAX)
    }
}

impl Health {
    fn known(&self) -> Option<Error> {
        if let Self::Known(error) = self { Some(error.clone()) } else { None }
    }

    /// Makes the outage known. Returns whether it was not known before.
    fn know(&mut self, error: &Error) -> bool {
        let is_news = !matches!(self, Self::Known(_));
        if is_news {
            *self = Self::Known(error.clone());
        }
        is_news
    }
}

impl Listener {
    /// Returns at the next change: an outage becomes known, or is over.
    pub(super) async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Returns once an outage is known.
    pub(super) async fn known(&mut self) -> Error {
        loop {
            self.changed().await;
            if let Some(error) = self.0.borrow_and_update().known() {
                return error;
            }
        }
    }

    /// Returns once an outage is over.
    pub(super) async fn over(&mut self) {
        loop {
            self.changed().await;
            if self.0.borrow_and_update().known().is_none() {
                return;
            }
        }
    }
}

/// Closes the idle connections of the pool. They may be cut off, and then each of them would cost a timeout.
pub(super) fn close_idle(pool: &PgPool) {
    for _ in 0..session::idle(pool) {
        drop(pool.try_acquire().map(PoolConnection::detach));
    }
}

/// How often the task asks, and how long a brief question waits. The gate notices that the server is back after about
/// this time.
const EVERY: Duration = Duration::from_millis(500);
