#![expect(
    clippy::disallowed_methods,
    reason = "the monotonic clock measures how long batches take and calls wait; the database tells the time"
)]

mod blocked;
mod groups;
mod transaction;

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tracing::Instrument;

use super::connection::{Connection, within};
use super::memory::Reading;
use super::reply::{QueuedCall, Reply};
use super::shared::Shared;
use crate::call::StoredCall;
use crate::error::{Error, Step};
use crate::meter;
use crate::plan::{Answer, Outcome, Plan, RowId, RowWrite};
use crate::store::Found;
use crate::store::session;
pub(super) use blocked::Blocked;
use groups::{Groups, Written};

/// Calls of many callers that are decided together, in the order in which they came.
///
/// One statement reads all rows, without a lock. Another writes the changes, if each row still is the version that was
/// read. It needs no transaction around it, so no lock is kept across a round trip. Calls that lost a race in between,
/// and calls of missing rows, are decided once more in a transaction that locks. If another transaction locks one of
/// their rows for longer than a moment, they are set aside.
///
/// A row that is swapped did not change after it was read, so the decision is the same as under a lock at the instant
/// of the reading. A batch with ids also reads the stored calls, after the rows. It does not read the stored calls of
/// settlements at a cost, because their receipts say enough.
///
/// # Tried and dropped
///
/// - Updates without a lock before them are as fast, but wait for a row that another transaction holds.
/// - `pool.try_acquire` saves the pool's ping, but skips the application's own hooks.
/// - Rows kept in memory between batches are faster for one gate, gain nothing for two, and are wrong after a failover.
pub(super) struct Batch<'s> {
    shared: &'s Shared,
    connection: Connection,
    plan: Plan,
    callers: Vec<Caller>,
    /// Calls whose rows another transaction locks.
    blocked: Vec<QueuedCall>,
    /// When the statement outside of a transaction was sent that the server did not answer in time.
    silent_since: Option<Instant>,
}

/// The connection after a batch.
pub(super) enum ConnectionAfter {
    /// The connection is as good as before.
    Sound(Connection),
    /// The server has not answered since that instant, and may still be at work.
    Silent(Connection, Instant, Error),
    /// There is no connection left.
    Gone,
}

/// How a transaction waits for rows that another one locks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Wait {
    /// Without a lock: it pauses and tries again, for so long in all. Transactions that wait in the server's queue may
    /// come first again and again.
    Apart(Duration),
    /// In the server's queue, for so long for each row. If that is not enough, the server logs an error.
    InQueue(Duration),
}

struct Caller {
    /// `None` once it is answered.
    reply: Option<Reply>,
    blocked_since: Option<Instant>,
}

impl<'s> Batch<'s> {
    pub(super) fn new(shared: &'s Shared, connection: Connection, queued: Vec<QueuedCall>) -> Self {
        let caller = |QueuedCall { call, reply, blocked_since }| (call, Caller { reply: Some(reply), blocked_since });
        let (calls, callers) = queued.into_iter().map(caller).unzip();
        let plan = Plan::of(calls);
        Self { shared, connection, plan, callers, blocked: Vec::new(), silent_since: None }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.callers.is_empty()
    }

    /// The number of callers that wait for the batch. The gate's own calls have no caller.
    pub(super) fn callers(&self) -> usize {
        self.callers.iter().filter_map(|caller| caller.reply.as_ref()).filter(|reply| reply.has_caller()).count()
    }

    /// Decides and answers. Returns the calls whose rows another transaction locks. It does not lock for calls whose
    /// rows others already wait for.
    pub(super) async fn run(mut self, waiting: &Blocked) -> (ConnectionAfter, Vec<QueuedCall>) {
        if self.is_empty() {
            return (ConnectionAfter::Sound(self.connection), Vec::new());
        }
        let (started, calls) = (Instant::now(), self.callers.len());
        let callers = self.callers();
        self.begin();
        let span = tracing::debug_span!("tollgate_batch", calls, rows = self.plan.rows().len());
        let decided = self.decide(waiting).instrument(span).await;
        if self.shared.memories.prefetch.is_on {
            self.shared.memories.prefetch.saw(started.elapsed());
        }
        meter::batch(callers, started.elapsed());
        let blocked = std::mem::take(&mut self.blocked);
        (self.leave(decided), blocked)
    }

    /// Decides and answers under locks, and waits a little for locked rows. Returns the calls whose rows are locked for
    /// longer, and gives the connection back to the pool.
    pub(super) async fn run_locked(mut self, wait: Wait) -> Vec<QueuedCall> {
        self.begin();
        let (shared, groups, everyone) = (self.shared, Groups::of(&self.plan), self.everyone());
        let decided = self.decide_lost(&groups, &everyone, wait).await;
        let blocked = std::mem::take(&mut self.blocked);
        if let ConnectionAfter::Sound(connection) = self.leave(decided) {
            connection.give_back(shared).await;
        }
        blocked
    }

    /// From here on the calls count.
    fn begin(&mut self) {
        self.callers.iter_mut().filter_map(|caller| caller.reply.as_mut()).for_each(|reply| reply.begun = true);
    }

    /// Answers the callers that have no answer yet, and returns the state of the connection.
    fn leave(mut self, decided: Result<(), Error>) -> ConnectionAfter {
        if let Err(error) = decided {
            self.answer_rest(&error);
            if !error.leaves_connection() || self.connection.is_gone() {
                self.shared.memories.prefetch.broke();
                if error.is_timeout() {
                    self.connection.server.outage.suspect(&error);
                }
                let silent = |since| ConnectionAfter::Silent(self.connection, since, error);
                return self.silent_since.map_or(ConnectionAfter::Gone, silent);
            }
        }
        self.connection.server.outage.heard();
        self.connection.finished();
        ConnectionAfter::Sound(self.connection)
    }

    /// Answers every caller, or returns the error for those that have no answer yet.
    async fn decide(&mut self, waiting: &Blocked) -> Result<(), Error> {
        let asked = Instant::now();
        let mut groups = Groups::of(&self.plan);
        groups.lose_resets(&self.plan);
        let (found, known) = match self.peek().await {
            Err(error) if self.connection.is_gone() => return Err(error),
            // One row that cannot be read is no reason to refuse the callers of other rows.
            Err(error) if error.is_about_data() => {
                let divided = groups.divide(&self.everyone());
                return self.decide_apart(&divided, A_MOMENT).await;
            }
            Err(error) if error.is_lost_swap() => {
                session::tell_of(&error);
                return self.decide_lost(&groups, &self.everyone(), A_MOMENT).await;
            }
            found => found?,
        };
        let reading = Reading { now: found.now, asked, answered: Instant::now() };
        let outcome = self.plan.decide(&found.states, &known, found.now);
        groups.lose_errors(&self.plan, &outcome.answers);
        let broken = self.swap(&found, &known, &outcome, &mut groups).await;
        let written = outcome.changes.iter().filter(|change| groups.is_done(change.row));
        self.shared.memories.follow(&self.plan, written, reading);
        let mut lost = Vec::new();
        for (call, answer) in outcome.answers.into_iter().enumerate() {
            match groups.outcome(call) {
                Written::Done => self.answer_written(call, answer, &outcome.changes, &found, reading),
                Written::Lost => lost.push(call),
                Written::Failed(error) => self.answer_unsure(call, Err(error.clone())),
            }
        }
        if let Some(error) = broken {
            return Err(error);
        }
        if lost.is_empty() {
            return Ok(());
        }
        let (blocked, lost) = waiting.divide(&self.plan, lost);
        self.set_aside(&blocked);
        self.decide_lost(&groups, &lost, A_MOMENT).await
    }

    /// Reads rows and calls. The first reading over a connection may find that somebody left it in a transaction.
    async fn peek(&mut self) -> Result<(Found, Vec<Option<StoredCall>>), Error> {
        let peeked = self.try_peek().await;
        let is_left = match &peeked {
            Ok((found, _)) if found.began.is_none() => self.is_left().await?,
            peeked => peeked.as_ref().is_err_and(Error::is_left),
        };
        if !is_left {
            return peeked;
        }
        self.connection.replace(self.shared, self.plan.rows()[0].name()).await?;
        self.try_peek().await
    }

    /// Whether somebody left the connection in a transaction, or under a role without rights.
    async fn is_left(&mut self) -> Result<bool, Error> {
        let (shared, limit) = (self.shared, self.plan.rows()[0].name());
        match self.connection.expect_sound(shared, limit).await {
            Err(error) if error.is_left() => Ok(true),
            idle => idle.map(|()| false),
        }
    }

    async fn try_peek(&mut self) -> Result<(Found, Vec<Option<StoredCall>>), Error> {
        let (shared, rows) = (self.shared, self.plan.rows());
        let (asked, limit, mut store) = (Instant::now(), rows[0].name(), self.connection.store(shared));
        let peek = async {
            let found = store.peek(rows).await?;
            if self.plan.trusts_absence(&found.states) && !shared.has_parts.load(Ordering::Relaxed) {
                store.expect_parts(limit).await?;
                shared.has_parts.store(true, Ordering::Relaxed);
            }
            let known = store.known_calls(&self.plan, false).await?;
            Ok((found, known))
        };
        let found = within(shared.settings.statement_timeout, Step::Read, limit, peek).await;
        self.silent_since = found.as_ref().is_err_and(Error::is_timeout).then_some(asked);
        found
    }

    /// Writes the changes, table by table and part by part, each group whole or not at all. Returns the error that
    /// ended the connection, if there was one.
    async fn swap(
        &mut self,
        found: &Found,
        known: &[Option<StoredCall>],
        outcome: &Outcome,
        groups: &mut Groups,
    ) -> Option<Error> {
        let (shared, rows) = (self.shared, self.plan.rows());
        let is_distributed = shared.settings.backend.parts.is_distributed();
        let mut broken = None;
        for swap in groups.swaps(&self.plan, &found.states, outcome, is_distributed) {
            if let Some(error) = &broken {
                groups.fail(&swap, error);
                continue;
            }
            let limit = rows[swap.first()].name();
            let mut store = self.connection.store(shared);
            let (asked, patience) = (Instant::now(), shared.settings.statement_timeout);
            match within(patience, Step::Save, limit, store.swap(rows, found, known, &swap)).await {
                Ok(written) => groups.note_written(rows, &swap, &written),
                Err(error) if error.is_lost_swap() || error.is_left() => {
                    session::tell_of(&error);
                    groups.note_written(rows, &swap, &[]);
                }
                Err(error) => {
                    self.silent_since = error.is_timeout().then_some(asked);
                    broken = (!error.leaves_connection()).then(|| error.clone());
                    groups.fail(&swap, &error.of_commit());
                }
            }
        }
        broken
    }

    /// Decides calls once more, in a transaction that locks.
    ///
    /// If another transaction locks one of their rows, or one row is faulty, it tries group by group, so that callers
    /// of other rows do not suffer.
    async fn decide_lost(&mut self, groups: &Groups, calls: &[usize], wait: Wait) -> Result<(), Error> {
        if calls.is_empty() {
            return Ok(());
        }
        meter::locked(calls.len());
        let divided = groups.divide(calls);
        match self.decide_locked(calls, wait).await {
            Err(Error::Locked { .. }) if divided.len() > 1 => {
                self.decide_apart(&divided, Wait::Apart(Duration::ZERO)).await
            }
            Err(error) if error.is_about_data() && divided.len() > 1 => self.decide_apart(&divided, wait).await,
            Err(Error::Locked { .. }) => {
                self.set_aside(calls);
                Ok(())
            }
            decided => decided,
        }
    }

    /// Decides groups one after another, each in a transaction that locks. An error of one group does not affect the
    /// others.
    async fn decide_apart(&mut self, groups: &[Vec<usize>], wait: Wait) -> Result<(), Error> {
        for calls in groups {
            match self.decide_locked(calls, wait).await {
                Err(Error::Locked { .. }) => self.set_aside(calls),
                Err(error) => {
                    for call in calls {
                        self.answer_unsure(*call, Err(error.clone()));
                    }
                    if !error.leaves_connection() || self.connection.is_gone() {
                        return Err(error.of_calls_behind());
                    }
                }
                Ok(()) => {}
            }
        }
        Ok(())
    }

    /// Decides calls in a transaction that locks, and answers them.
    async fn decide_locked(&mut self, calls: &[usize], wait: Wait) -> Result<(), Error> {
        let plan = self.plan.select(calls);
        let answers = self.decide_in_transaction(&plan, wait).await?;
        for (call, answer) in calls.iter().zip(answers) {
            self.answer_unsure(*call, answer);
        }
        Ok(())
    }

    /// Answers a call whose changes, if any, are written.
    fn answer_written(
        &mut self,
        call: usize,
        answer: Result<Answer, Error>,
        changes: &[RowWrite],
        found: &Found,
        reading: Reading,
    ) {
        let state = |row: &RowId| {
            let place = self.plan.rows().binary_search(row).expect("a plan has the rows of its calls");
            let change = changes.iter().find(|change| change.row == place);
            change.map(|change| &change.state).or(found.states[place].as_ref())
        };
        self.shared.memories.learn(&self.plan, call, &answer, state, reading);
        self.answer(call, answer);
    }

    /// Answers a call whose rows may have been written in an unknown way, so memory forgets them.
    fn answer_unsure(&mut self, call: usize, answer: Result<Answer, Error>) {
        self.shared.memories.forget(&self.plan, call);
        self.answer(call, answer);
    }

    /// Sets calls aside whose rows another transaction locks. None of them was carried out. Charges for calls to come
    /// are dropped, because no caller waits for them.
    fn set_aside(&mut self, calls: &[usize]) {
        for place in calls {
            let Caller { reply, blocked_since, .. } = &mut self.callers[*place];
            if let Some(mut reply) = reply.take() {
                reply.begun = false;
                let call = self.plan.call(*place);
                if !call.takes_ahead() {
                    self.blocked.push(QueuedCall { call: call.clone(), reply, blocked_since: *blocked_since });
                }
            }
        }
    }

    /// Gives an error to all callers that have no answer yet.
    fn answer_rest(&mut self, error: &Error) {
        for call in self.everyone() {
            if self.callers[call].reply.is_some() {
                self.answer_unsure(call, Err(error.clone()));
            }
        }
    }

    fn everyone(&self) -> Vec<usize> {
        (0..self.callers.len()).collect()
    }

    /// Answers a call. Before its caller goes on, the waiters for the rows that it has raised are woken.
    fn answer(&mut self, call: usize, answer: Result<Answer, Error>) {
        if let Some(reply) = self.callers[call].reply.take() {
            if matches!(answer, Ok(_) | Err(Error::OutcomeUnknown { .. })) {
                for (row, is_released) in self.plan.call(call).raises() {
                    self.shared.waiters.raise(row, is_released);
                }
            }
            reply.send(answer);
        }
    }
}

/// How a batch waits for locked rows, while its lane waits for the batch. The statements of another gate lock rows for
/// less time than this.
const A_MOMENT: Wait = Wait::Apart(Duration::from_millis(5));
