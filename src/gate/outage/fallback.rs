#![expect(clippy::disallowed_methods, reason = "this is what answers without the database, and says so")]

use std::sync::Mutex;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use super::buckets::LocalBuckets;
use crate::algebra::{Ask, Timestamp};
use crate::answer::decision::{Decision, Denied, Grant, Source};
use crate::answer::receipt::Receipt;
use crate::answer::standing::Standings;
use crate::error::{Error, chain};
use crate::meter::{self, By};
use crate::plan::{Operation, Plan};
use crate::tokens::Tokens;
use crate::values::lock::lock;

/// The answer of a gate to `consume`, `check`, `wait`, `acquire` and their variants during an outage of the database. A
/// [`Lease`](crate::Lease) that is granted without the database holds no tokens.
///
/// An outage is one of these:
///
/// - No connection can be opened: the server is away, starts up or shuts down, or PgBouncer says so of it or of itself.
/// - A connection breaks, or the server does not answer in time, or cancels a statement after the gate's own timeout.
/// - The server takes no writes: it is a standby or read-only, or its disk is full or fails.
/// - Citus has lost a node that the call needs.
///
/// Everything else stays an error. A full pool, a full queue, a locked row and too many connections stay errors because
/// a crowd must not open the gate. Missing rights or tables, a refused password and a wrong setting stay errors because
/// otherwise nobody would notice them. Bad input, a key or a row that the database rejects, and a closed pool stay
/// errors, too. So does [`Error::OutcomeUnknown`], because the tokens may have been taken. A pooler's own error is one
/// of these, unless its message says that a server is away. A statement that ends before the gate's own timeout is cut
/// short by somebody's setting, or by a person: the gate tries it again.
///
/// # Silence
///
/// A statement that is not answered within [`statement_timeout`](crate::GateBuilder::statement_timeout), or a
/// connection that cannot be opened within about [`acquire_timeout`](crate::GateBuilder::acquire_timeout), is an outage
/// for its callers. If the server then answers neither a connection beside the pool within half a second nor another
/// statement, the outage is *known*: the policy answers every call at once. Under [`Closed`](Self::Closed) each call
/// gets the error at once, and so does a call that no policy answers. So no call queues for a server that is known to
/// be silent. The error is retryable, so pause before you retry. Until the server answers, the gate asks it over at
/// most two connections beside the pool. About half a second after the server is back, the database decides again.
///
/// All other verbs always fail closed. Each answer without the database has [`Source::Degraded`], charges nothing, and
/// emits a `tracing` event at level `warn`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum OnFailure {
    /// The call gets the error: nothing is granted without the database.
    #[default]
    Closed,
    /// Everything is granted.
    Open,
    /// Each limit goes on in this process's memory, with this fraction of its rate and capacity. With n processes, a
    /// fraction of 1/n keeps all of them together within the limit.
    ///
    /// The fraction is cut to the range from 0 to 1; NaN is 0. A call whose cost the fraction can never grant at once
    /// gets the error. Buckets start full, and their grants are not charged when the database is back.
    ///
    /// A process keeps 100 000 buckets, and forgets only full ones, because a forgotten bucket is full again. While
    /// none of them is full, a call of a new key gets the error. So nobody can reset a bucket by inventing keys, but
    /// invented keys can keep other new keys out.
    ///
    /// Memory knows no [id](crate::Call::once) of the database or of another process. A call that was granted there
    /// may be refused here, or granted once more from the memory of each process. The database keeps its own ids
    /// meanwhile.
    Local(f64),
}

/// Answers in place of the database.
pub(crate) struct Fallback {
    policy: OnFailure,
    buckets: Mutex<LocalBuckets>,
    started: (Timestamp, Instant),
}

impl Fallback {
    /// What answers by this policy; `None` if nothing does.
    pub(crate) fn of(policy: OnFailure) -> Option<Self> {
        // The wall clock is read once, so that steps that are aligned to a calendar fall where they should; from then
        // on time is monotonic.
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let started = (Timestamp::from_micros(0).plus(since_epoch), Instant::now());
        let buckets = Mutex::new(LocalBuckets::new(MAX_BUCKETS));
        (policy != OnFailure::Closed).then_some(Self { policy, buckets, started })
    }

    /// The answer to a call that the database did not answer.
    pub(crate) fn answer(&self, call: Operation, error: Error) -> Result<Decision, Error> {
        if !error.is_outage() {
            return Err(error);
        }
        let limit = call.limit().clone();
        let Some(decision) = self.decide(call) else { return Err(error) };
        let (limit, outcome) = (limit.as_str(), if decision.is_granted() { "granted" } else { "denied" });
        tracing::warn!(limit, outcome, degraded = true, error = %chain(&error), "decided without the database");
        match &decision {
            Decision::Granted(grant) => meter::granted(By::Gate, limit, Source::Degraded, &grant.standings),
            Decision::Denied(denied) => meter::refused(By::Gate, limit, denied),
        }
        Ok(decision)
    }

    fn decide(&self, call: Operation) -> Option<Decision> {
        match self.policy {
            OnFailure::Closed => None,
            OnFailure::Open => Some(match call.undenied(self.now()) {
                Ok(alternative) => {
                    let (most, none) = (most(&call), Standings::default());
                    Decision::Granted(self.degraded(most, alternative, Tokens::ZERO, none))
                }
                // The call may be a repeat, which cannot be known now.
                Err(denied) => Decision::Denied(denied),
            }),
            OnFailure::Local(fraction) => self.decide_locally(call.fraction(fraction)?),
        }
    }

    /// Decides as the database would: with the same plan, over rows in memory.
    fn decide_locally(&self, call: Operation) -> Option<Decision> {
        let (plan, now) = (Plan::of(vec![call]), self.now());
        let mut buckets = lock(&self.buckets);
        let outcome = plan.decide(&buckets.states(plan.rows()), &vec![None; plan.names().len()], now);
        if !buckets.write(plan.rows(), &outcome.changes, now) {
            return None;
        }
        drop(buckets);
        Some(match outcome.answers.into_iter().next()?.ok()?.grant() {
            Decision::Granted(Grant { amount, alternative, remaining, standings, .. }) => {
                Decision::Granted(self.degraded(amount, alternative, remaining, standings))
            }
            Decision::Denied(denied) => Decision::Denied(Denied { source: Source::Degraded, ..denied }),
        })
    }

    fn degraded(&self, amount: Tokens, alternative: usize, remaining: Tokens, standings: Standings) -> Grant {
        let now = self.now().into();
        let (source, receipt) = (Source::Degraded, Receipt::default());
        let (observed_at, decided_at) = (now, now);
        Grant { amount, alternative, remaining, observed_at, decided_at, source, receipt, standings }
    }

    fn now(&self) -> Timestamp {
        let (instant, started) = self.started;
        instant.plus(started.elapsed())
    }
}

/// The amount that a call gets if no limit is short.
fn most(call: &Operation) -> Tokens {
    let Some(first) = call.asked().first().map(|item| item.action) else { return Tokens::ZERO };
    let charged = |ask: &Ask| ask.place.alternative == first.place.alternative;
    let part = call.asked().iter().map(|item| item.action).filter(charged).find_map(Ask::most);
    part.unwrap_or_else(|| first.cost())
}

/// These take some tens of megabytes, with keys of the usual length.
const MAX_BUCKETS: usize = 100_000;
