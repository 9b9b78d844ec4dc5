mod prefetch;
mod refusals;
mod touch;

use std::sync::Arc;
use std::time::Duration;

use super::clock::Clock;
use super::reply::QueuedCall;
use crate::algebra::State;
use crate::decision::Denied;
use crate::error::Error;
use crate::plan::{Answer, Change, CheckedCall, Plan, Row};
use crate::request::Request;
use crate::tokens::Tokens;
pub(super) use prefetch::{Ages, Outlet, Prefetch};
pub(super) use refusals::{Reading, Refusals};
use touch::Touch;

/// The memories of a gate: of rows that were too low for a caller, and of tokens that it has taken ahead.
///
/// A batch tells both of what it reads and writes, so that neither remembers a row that was raised.
pub(super) struct Memories {
    pub(super) refusals: Option<Refusals>,
    pub(super) prefetch: Option<Arc<Prefetch>>,
}

impl Memories {
    /// The refusal of a call by remembered rows. A call goes to the database if something lies in memory for one of its
    /// keys: its batch gives that back first, and it may be all that the call lacks.
    pub(super) fn refuse(&self, call: &CheckedCall, clock: &Clock) -> Option<Denied> {
        let denied = self.refusals.as_ref()?.refuse(call, clock)?;
        let holds = self.prefetch.as_ref().is_some_and(|prefetch| prefetch.holds(call));
        (!holds).then_some(denied)
    }

    /// How many tokens lie in memory for a request's key.
    pub(super) fn held(&self, request: &Request) -> Tokens {
        let held = self.prefetch.as_ref().zip(request.asked().ok());
        held.map_or(Tokens::ZERO, |(prefetch, (limit, key, _))| prefetch.held(limit, key))
    }

    /// Takes all that was taken ahead out of memory: the calls that give it back.
    pub(super) fn give_back_all(&self) -> Vec<QueuedCall> {
        self.prefetch.as_ref().map(|prefetch| prefetch.give_back_all()).unwrap_or_default()
    }

    /// A batch of these calls, and beside them the calls that give back and take ahead of their keys.
    pub(super) fn accompany(&self, calls: Vec<QueuedCall>) -> Vec<QueuedCall> {
        match &self.prefetch {
            Some(prefetch) => prefetch.accompany(calls),
            None => calls,
        }
    }

    /// Follows rows that a batch has written.
    pub(super) fn follow<'c>(&self, plan: &Plan, written: impl Iterator<Item = &'c Change>, reading: Reading) {
        if let Some(refusals) = &self.refusals {
            refusals.follow(written.map(|change| (&plan.rows()[change.row], change.state.clone())), reading);
        }
    }

    /// Learns from the answer to a call whose changes, if any, are written. `state` is each row as it was written, or
    /// else as it was read.
    pub(super) fn learn<'s>(
        &self,
        plan: &Plan,
        call: usize,
        answer: &Result<Answer, Error>,
        state: impl Fn(&Row) -> Option<&'s State>,
        reading: Reading,
        clock: &Clock,
    ) {
        match (&self.refusals, answer) {
            (Some(refusals), Ok(Answer::Denied(denied))) => {
                refusals.remember(plan.call(call), denied, state, reading, clock);
            }
            (_, Ok(_)) if plan.call(call).raises_balance() => self.forget(plan, call),
            _ => {}
        }
    }

    /// Forgets what was remembered of a call's rows: they were raised, or written in an unknown way.
    pub(super) fn forget(&self, plan: &Plan, call: usize) {
        if let Some(prefetch) = &self.prefetch {
            let replenished = Touch::of(plan.call(call)).filter(|touch| touch.replenishes);
            replenished.for_each(|touch| prefetch.forget(touch.limit, touch.key));
        }
        plan.places_of(call).for_each(|place| self.forget_refusals(&plan.rows()[place]));
    }

    /// Forgets whom a row has refused.
    pub(super) fn forget_refusals(&self, row: &Row) {
        if let Some(refusals) = &self.refusals {
            refusals.forget(row);
        }
    }

    /// A batch took so long.
    pub(super) fn saw(&self, took: Duration) {
        if let Some(prefetch) = &self.prefetch {
            prefetch.saw(took);
        }
    }

    /// A connection broke, or cannot be made.
    pub(super) fn broke(&self) {
        if let Some(prefetch) = &self.prefetch {
            prefetch.broke();
        }
    }
}
