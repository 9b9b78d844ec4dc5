mod prefetch;
mod refusals;

use std::sync::Arc;

use crate::algebra::{Ask, Flow, State};
use crate::answer::decision::Denied;
use crate::error::Error;
use crate::key::Key;
use crate::limit::Limit;
use crate::plan::{Adjustment, Answer, Item, Operation, Plan, RowId, RowWrite};
use crate::tokens::Tokens;
pub(super) use prefetch::{Ages, Prefetch};
pub(super) use refusals::{Reading, Refusals};

/// The memories of a gate: of rows that were too low for a caller, and of tokens that it has taken ahead.
///
/// A batch reports its reads and writes to both, so that neither remembers a row that was raised.
pub(super) struct Memories {
    pub(super) refusals: Option<Refusals>,
    pub(super) prefetch: Arc<Prefetch>,
}

impl Memories {
    /// The refusal of a call by remembered rows. If tokens lie in memory for one of its keys, the call goes to the
    /// database: its batch gives them back first, and they may be all that the call lacks.
    pub(super) fn refuse(&self, call: &Operation) -> Option<Denied> {
        let denied = self.refusals.as_ref()?.refuse(call)?;
        (!self.prefetch.holds(call)).then_some(denied)
    }

    /// Updates the memory of rows that a batch has written.
    pub(super) fn follow<'c>(&self, plan: &Plan, written: impl Iterator<Item = &'c RowWrite>, reading: Reading) {
        if let Some(refusals) = &self.refusals {
            refusals.follow(written.map(|change| (&plan.rows()[change.row], change.state.clone())), reading);
        }
    }

    /// Learns from the answer to a call whose changes, if any, are written. `state` returns each row as it was written,
    /// or else as it was read.
    pub(super) fn learn<'s>(
        &self,
        plan: &Plan,
        call: usize,
        answer: &Result<Answer, Error>,
        state: impl Fn(&RowId) -> Option<&'s State>,
        reading: Reading,
    ) {
        match (&self.refusals, answer) {
            (Some(refusals), Ok(Answer::Denied(denied))) => {
                refusals.remember(plan.call(call), denied, state, reading);
            }
            (_, Ok(_)) if plan.call(call).raises().next().is_some() => self.forget(plan, call),
            _ => {}
        }
    }

    /// Forgets a call's rows, because they were raised, or written in an unknown way.
    pub(super) fn forget(&self, plan: &Plan, call: usize) {
        if self.prefetch.is_on {
            let replenished = Touch::of(plan.call(call)).filter(|touch| touch.replenishes);
            replenished.for_each(|touch| self.prefetch.forget(touch.limit, touch.key));
        }
        plan.places_of(call).for_each(|place| self.forget_refusals(&plan.rows()[place]));
    }

    /// Forgets the refusals of a row.
    pub(super) fn forget_refusals(&self, row: &RowId) {
        if let Some(refusals) = &self.refusals {
            refusals.forget(row);
        }
    }
}

/// The effect of a call on a limit and key whose tokens may lie in memory.
#[derive(Clone, Copy, Debug)]
struct Touch<'c> {
    limit: &'c Limit,
    key: &'c Key,
    /// The cost to pay at once, if the call does nothing else there.
    pays: Option<Tokens>,
    /// Whether it gives tokens that were not charged before.
    replenishes: bool,
}

impl<'c> Touch<'c> {
    /// The effects of a call on each limit and key that it asks; none of a call that settles.
    fn of(call: &'c Operation) -> impl Iterator<Item = Self> {
        let mut taken = call.taken().iter();
        let pays = move |item: &Item<Ask>| (is_plain(item) && !call.is_stored()).then(|| item.action.cost());
        let adjusted = call.adjusted().map(|item| item.action);
        let replenishes = matches!(adjusted, Some(Adjustment::Credit(_) | Adjustment::Reset));
        call.targets().map(move |target| {
            let pays = taken.next().and_then(pays);
            Self { limit: &target.limit, key: target.key(), pays, replenishes }
        })
    }
}

/// Whether tokens that were taken ahead can pay for an item. A gate takes nothing ahead of a key with an override.
fn is_plain(item: &Item<Ask>) -> bool {
    let is_named = matches!(item.target.terms.flow, Flow::Named { .. });
    item.action.is_plain() && !is_named && !item.target.is_overridden()
}
