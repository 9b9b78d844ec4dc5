#![expect(clippy::disallowed_methods, reason = "this is what answers without the database, and says so")]

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use super::meter;
use crate::algebra::{State, Timestamp};
use crate::decision::{Decision, Grant, Source};
use crate::error::Error;
use crate::plan::{Answer, CheckedCall, Plan, Row};
use crate::standing::Standings;
use crate::tokens::Tokens;

/// What a gate answers to `consume`, `consume_all`, `check` and `wait` while the database cannot be asked: it is down,
/// cannot be reached, gives up, takes no writes, or lacks the tables.
///
/// A pool without a free connection for [`acquire_timeout`](crate::GateBuilder::acquire_timeout) counts as away,
/// because sqlx reports a server that is down in the same words. These stay errors: bad input; [`Error::Busy`], because
/// a crowd must not open the gate; [`Error::OutcomeUnknown`], because the tokens may have been taken; and what the
/// database objects to in a key or a row. All other verbs always fail closed. Each answer without the database has
/// [`Source::Degraded`], charges nothing, and leaves a `tracing` event at level `warn`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum OnFailure {
    /// The error: nothing happens without the database.
    #[default]
    Closed,
    /// Everything is granted.
    Open,
    /// Each limit goes on in this process's memory, with this fraction of its rate and capacity: with n processes, 1/n
    /// keeps the whole within the limit.
    ///
    /// The fraction is cut to the range from 0 to 1; NaN is 0. A cost that the fraction can never grant at once stays
    /// the error. Buckets start full, and what they grant is not charged when the database is back.
    Local(f64),
}

/// Answers in place of the database.
#[derive(Debug)]
pub(super) struct Fallback {
    policy: OnFailure,
    rows: Mutex<HashMap<Row, Local>>,
    started: (Timestamp, Instant),
}

/// A bucket of this process's own.
#[derive(Clone, Copy, Debug)]
struct Local {
    state: State,
    full_at: Timestamp,
}

impl Fallback {
    pub(super) fn new(policy: OnFailure) -> Self {
        // Once, so that steps that are aligned to a calendar fall where they should; from then on monotonic.
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let started = (Timestamp::from_micros(0).plus(since_epoch), Instant::now());
        Self { policy, rows: Mutex::default(), started }
    }

    /// What to keep of a call, to answer it if need be.
    pub(super) fn keep(&self, call: &CheckedCall) -> Option<CheckedCall> {
        (self.policy != OnFailure::Closed).then(|| call.clone())
    }

    /// The answer to a call that the database did not answer.
    pub(super) fn answer(&self, kept: Option<CheckedCall>, error: Error) -> Result<Decision, Error> {
        let Some(call) = kept.filter(|_| self.answers(&error)) else { return Err(error) };
        let limit = call.limit().name.clone();
        let Some(decision) = self.decide(call) else { return Err(error) };
        let (limit, outcome) = (limit.as_str(), if decision.is_granted() { "granted" } else { "denied" });
        tracing::warn!(limit, outcome, degraded = true, %error, "decided without the database");
        meter::decided(limit, outcome, Source::Degraded);
        Ok(decision)
    }

    /// Whether this is a failure that the policy has an answer to.
    pub(super) fn answers(&self, error: &Error) -> bool {
        // Whoever can choose a key that the database objects to must not open the gate by it.
        let failed = error.is_of_the_database() && !error.is_about_data();
        failed && self.policy != OnFailure::Closed
    }

    fn decide(&self, call: CheckedCall) -> Option<Decision> {
        match self.policy {
            OnFailure::Closed => None,
            OnFailure::Open => Some(Decision::Granted(self.degraded(Tokens::ZERO, Standings::default()))),
            OnFailure::Local(fraction) => self.decide_locally(call.fraction(fraction)?),
        }
    }

    /// As the database would: the same plan, over rows of our own.
    fn decide_locally(&self, call: CheckedCall) -> Option<Decision> {
        let (plan, now) = (Plan::of(vec![call]), self.now());
        let mut rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        let found: Vec<_> = plan.rows().iter().map(|row| rows.get(row).map(|local| local.state)).collect();
        let outcome = plan.decide(&found, now);
        let new = outcome.changes.iter().filter(|change| found[change.row].is_none()).count();
        if rows.len() + new > MAX_ROWS {
            rows.retain(|_, local| local.full_at > now);
            if rows.len() + new > MAX_ROWS {
                return None;
            }
        }
        for change in outcome.changes {
            let local = Local { state: change.state, full_at: change.full_at };
            rows.insert(plan.rows()[change.row].clone(), local);
        }
        match outcome.answers.into_iter().next()?.ok()? {
            Answer::Granted { remaining, standings, .. } => {
                Some(Decision::Granted(self.degraded(remaining, standings)))
            }
            Answer::Denied(mut denied) => {
                denied.source = Source::Degraded;
                Some(Decision::Denied(denied))
            }
            Answer::Done(_) => None,
        }
    }

    fn degraded(&self, remaining: Tokens, standings: Standings) -> Grant {
        let now = self.now().into();
        let (source, charges) = (Source::Degraded, Vec::new());
        Grant { remaining, observed_at: now, decided_at: now, source, charges, standings }
    }

    fn now(&self) -> Timestamp {
        let (instant, started) = self.started;
        instant.plus(started.elapsed())
    }
}

/// So many buckets of one process that are not full; beyond them the database's error stands.
const MAX_ROWS: usize = 100_000;
