#![expect(
    clippy::disallowed_methods,
    reason = "how often to look is told by the monotonic clock; what time it is, by the database"
)]

use std::collections::BTreeMap;
use std::slice;
use std::time::{Duration, Instant};

use sqlx::{PgConnection, PgPool};
use tokio::time::timeout;

use crate::algebra::Timestamp;
use crate::call::StoredCall;
use crate::error::{Error, Step, chain};
use crate::execution::Execution;
use crate::meter;
use crate::plan::{Plan, RowId, Under, Verb};
use crate::store::session::{self, Right, Session};
use crate::store::{Backend, Store, begin, defaults, timed_out, unreaped};

/// Gives back the charges of calls that have lapsed.
///
/// A lapse is an ordinary settlement: it locks the rows of the limits, then the stored call. So it deadlocks with no
/// other call, and if two processes give the same call back, one of them finds nothing left.
///
/// `find_lapsed.sql` goes by `now()`, one instant for the whole statement, so the index scan ends there.
/// `clock_timestamp()` would be compared with each entry of the index. Each look begins a minute before the last call
/// that was given back, and so skips rows that are dead but not vacuumed. Once a minute, a look begins at the first
/// entry.
#[derive(Debug)]
pub(crate) struct Reaper {
    pool: PgPool,
    backend: Backend,
    /// The instant of this look; `None` by the database's clock.
    at: Option<Timestamp>,
    /// For each part, when the last call that was given back had lapsed. Dead rows before it are not read again.
    since: BTreeMap<u16, Timestamp>,
    from_the_beginning: Option<Instant>,
    /// Whether the last look has left a call because another transaction had locked its rows.
    is_behind: bool,
    /// How many calls the last look has left, for whatever reason.
    left: u64,
}

/// Is called with each row that was raised.
type Raised<'r> = &'r mut (dyn FnMut(&RowId) + Send);

/// The outcome for calls that had lapsed.
#[derive(Clone, Copy, Default)]
struct Reaped {
    /// The number of calls that were given back.
    back: u64,
    /// The number of calls that are still there.
    left: u64,
}

impl Reaper {
    pub(crate) fn new(pool: PgPool, backend: Backend) -> Self {
        Self { pool, backend, at: None, since: BTreeMap::new(), from_the_beginning: None, is_behind: false, left: 0 }
    }

    /// Whether the last look has left a call because another transaction had locked its rows.
    pub(crate) fn is_behind(&self) -> bool {
        self.is_behind
    }

    /// Whether the pool is closed, so that no look can follow.
    pub(crate) fn is_over(&self) -> bool {
        self.pool.is_closed()
    }

    /// Gives back all calls that have lapsed by now, or by an instant. Returns their number, and reports the rows that
    /// it raised. A call that cannot be given back is left, and an event says so. A part that does not answer does not
    /// hold up the others.
    pub(crate) async fn reap(
        &mut self,
        at: Option<Timestamp>,
        mut raised: impl FnMut(&RowId) + Send,
    ) -> Result<u64, Error> {
        if self.is_behind || self.from_the_beginning.is_none_or(|last| last.elapsed() >= A_WHILE) {
            self.since.clear();
            self.from_the_beginning = Some(Instant::now());
        }
        let is_whole = self.since.is_empty();
        (self.at, self.is_behind, self.left) = (at, false, 0);
        let given_back = self.reap_all(&mut raised).await;
        let left = self.left.max(u64::from(given_back.is_err()));
        // A later look begins behind the calls that were left.
        if left > 0 || is_whole {
            meter::lapsed_left(left);
        }
        given_back
    }

    async fn reap_all(&mut self, raised: Raised<'_>) -> Result<u64, Error> {
        let (mut reaped, mut failed) = (0, None);
        for part in self.backend.parts.all() {
            // If the pool has no connection for this part, it has none for the next one.
            let conn = self.take().await?;
            match self.reap_part(conn, part, raised).await {
                Ok(more) => reaped += more,
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(reaped), Err)
    }

    async fn reap_part(&mut self, mut conn: Session, part: u16, raised: Raised<'_>) -> Result<u64, Error> {
        let since = self.since.get(&part).copied().unwrap_or(Timestamp::MIN);
        let (mut reaped, mut left) = (0, 0);
        loop {
            let some = self.reap_some(&mut conn, (part, since, left), raised).await;
            if some.as_ref().err().is_none_or(Error::leaves_connection) {
                conn.finished();
            }
            let (found, given) = some?;
            reaped += given.back;
            // A call that cannot be given back must not stand in front of the rest.
            left += given.left;
            self.left += given.left;
            if found < u64::from(MOST) {
                return Ok(reaped);
            }
            // Other users of the pool get their turn.
            drop(conn);
            conn = self.take().await?;
        }
    }

    async fn take(&self) -> Result<Session, Error> {
        // In a box, because it is larger than all else that a reaper waits for.
        let taken = Box::pin(session::take(&self.pool, Right::STORE));
        within(GIVE_UP, async { taken.await.map_err(unreaped) }).await
    }

    /// Finds the first calls of a part that have lapsed since an instant, behind those that were left, and gives them
    /// back. Returns how many were found, and what became of them.
    async fn reap_some(
        &mut self,
        conn: &mut PgConnection,
        (part, since, left): (u16, Timestamp, u64),
        raised: Raised<'_>,
    ) -> Result<(u64, Reaped), Error> {
        let mut store = Store::new(conn, self.at, self.backend).wrapping(defaults(self.backend));
        let lapsed = within(GIVE_UP, store.find_lapsed(part, since, left, MOST)).await?;
        let Some(last) = lapsed.last else { return Ok((0, Reaped::default())) };
        let found = lapsed.calls.len() as u64 + lapsed.unreadable;
        let given = self.give_back_all(conn, &lapsed.calls, raised).await?;
        self.since.insert(part, last.after(-LOOK_BACK));
        Ok((found, Reaped { left: given.left + lapsed.unreadable, ..given }))
    }

    /// Gives calls back together, or one by one if something is wrong with one of them.
    async fn give_back_all(
        &mut self,
        conn: &mut PgConnection,
        lapsed: &[StoredCall],
        raised: Raised<'_>,
    ) -> Result<Reaped, Error> {
        if lapsed.is_empty() {
            return Ok(Reaped::default());
        }
        match within(GIVE_UP, self.give_back(conn, lapsed, PATIENCE, raised)).await {
            Err(error) if error.leaves_connection() => {}
            done => return done,
        }
        let mut all = Reaped::default();
        for call in lapsed {
            match within(GIVE_UP, self.give_back(conn, slice::from_ref(call), A_MOMENT, raised)).await {
                Ok(given) => {
                    all.back += given.back;
                    all.left += given.left;
                }
                Err(error) if error.leaves_connection() => {
                    all.left += 1;
                    self.is_behind |= error.is_retryable();
                    tell(call, &error);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(all)
    }

    async fn give_back(
        &self,
        conn: &mut PgConnection,
        lapsed: &[StoredCall],
        lock_timeout: Duration,
        raised: Raised<'_>,
    ) -> Result<Reaped, Error> {
        let verbs = lapsed.iter().cloned().map(Verb::Lapse);
        let plan = Plan::under(verbs, &Under { parts: self.backend.parts, ..Under::NOTHING })?;
        let begun = begin(conn, self.backend, lock_timeout, TIMEOUT).await;
        let mut tx =
            begun.map_err(|source| Error::Database { step: Step::Begin, limit: None, source: source.into() })?;
        let store = Store::new(&mut tx, self.at, self.backend);
        let answers = Execution { store, plan: &plan, looks: false, waits: true }.run().await?;
        tx.commit().await.map_err(unreaped)?;
        let mut given = Reaped::default();
        for (place, (call, answer)) in lapsed.iter().zip(answers).enumerate() {
            match answer {
                // If another process was faster, no charge is left.
                Ok(answer) => {
                    if !answer.settlement().charges.is_empty() {
                        given.back += 1;
                        plan.call(place).first_rows().for_each(&mut *raised);
                    }
                }
                Err(error) => {
                    given.left += 1;
                    tell(call, &error);
                }
            }
        }
        Ok(given)
    }
}

/// Gives up on a server that does not answer.
async fn within<T>(patience: Duration, asked: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    timeout(patience, asked).await.unwrap_or_else(|_| Err(unreaped(timed_out())))
}

fn tell(call: &StoredCall, error: &Error) {
    let (limit, id) = (call.name.name(), call.name.id());
    tracing::warn!(limit, id, error = %chain(error), "what a lapsed call has charged could not be given back");
}

/// How many calls one transaction gives back at most.
const MOST: u32 = 64;

/// How long it waits for a row that another transaction has locked. Meanwhile it holds the rows before it, which any
/// caller may need.
const PATIENCE: Duration = Duration::from_millis(100);

/// How long it waits for each of several calls that were not given back together.
const A_MOMENT: Duration = Duration::from_millis(5);

/// How long it waits for a statement.
const TIMEOUT: Duration = Duration::from_secs(5);

/// How long it waits for a transaction, whose statements the server watches. A server that is still silent is gone.
const GIVE_UP: Duration = Duration::from_secs(15);

/// How often a look begins at the first entry.
const A_WHILE: Duration = Duration::from_mins(1);

/// How far before the last call that was given back the other looks begin, for calls whose transactions committed late:
/// a minute, in microseconds.
const LOOK_BACK: i64 = 60_000_000;
