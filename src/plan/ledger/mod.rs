//! Decides the calls of one plan, one after another, over a copy of the rows and stored calls that were found. At the
//! end, the differences are the changes to write.

mod adjust;
mod amounts;
mod repeat;
mod settle;
mod take;
mod taken;
#[cfg(test)]
mod tests;
mod write;

use super::answer::Answer;
use super::call_slot::CallSlot;
use super::item::Target;
use super::operation::{Action, Operation};
use super::rows::RowRange;
use crate::algebra::{Account, Portion, State, Timestamp};
use crate::call::StoredCall;
use crate::error::{Error, FitError};
use crate::text::Text;
pub use write::{CallWrite, RowWrite};

/// The rows and the stored calls of a plan while its calls are decided over them, one after another.
pub(super) struct Ledger<'p> {
    states: Vec<Option<State>>,
    calls: Vec<Entry>,
    /// The chosen rows, if rows are chosen: one for each item of the plan's only call. Each item takes only from its
    /// chosen row.
    chosen: &'p [usize],
    now: Timestamp,
    /// The call that is being decided.
    current: usize,
}

/// The entry of a stored call, if there is one, and the call of the plan that has changed it last.
#[derive(Clone)]
struct Entry {
    row: Option<StoredCall>,
    changed_by: Option<usize>,
}

/// The rows and the stored call that a call may change, as they were before.
struct Saved {
    states: Vec<(usize, Option<State>)>,
    call: Option<(usize, Entry)>,
}

impl<'p> Ledger<'p> {
    pub(super) fn new(
        chosen: &'p [usize],
        found: &[Option<State>],
        known: &[Option<StoredCall>],
        now: Timestamp,
    ) -> Self {
        let calls = known.iter().map(|row| Entry { row: row.clone(), changed_by: None }).collect();
        Self { states: found.to_vec(), calls, chosen, now, current: 0 }
    }

    /// Decides a call of the plan.
    pub(super) fn answer(&mut self, place: usize, call: &Operation) -> Result<Answer, Error> {
        self.current = place;
        let slot = call.slot.as_deref();
        match &call.action {
            Action::Take(items) => self.take(items, slot),
            Action::Check(items) => {
                let saved = self.saved(call);
                let answer = self.take(items, slot);
                self.restore(saved);
                answer.map(Answer::untaken)
            }
            Action::Adjust(item) => self.adjust(item, slot).map(Answer::Done),
            Action::Settle(settling) => {
                let saved = self.saved(call);
                let settled = self.settle(settling, slot);
                if settled.is_err() {
                    self.restore(saved);
                }
                settled.map(Answer::Settled)
            }
        }
    }

    /// The rows and the stored calls that differ from those that were found.
    pub(super) fn changes(
        self,
        found: &[Option<State>],
        known: &[Option<StoredCall>],
    ) -> (Vec<RowWrite>, Vec<CallWrite>) {
        let rows = self.states.into_iter().zip(found).enumerate();
        let changed = rows.filter_map(|(row, (state, found))| {
            let state = state.filter(|state| Some(state) != found.as_ref())?;
            Some(RowWrite { row, state })
        });
        let calls = self.calls.into_iter().zip(known).enumerate();
        let calls = calls.filter_map(|(name, (Entry { row, changed_by }, known))| {
            let call = changed_by?;
            match (known, row) {
                (None, Some(row)) => Some(CallWrite::Insert { call, name, row }),
                (Some(known), Some(row)) => (*known != row).then_some(CallWrite::Use { call, name }),
                (Some(_), None) => Some(CallWrite::Delete { call, name }),
                (None, None) => None,
            }
        });
        (changed.collect(), calls.collect())
    }

    fn account(&self, target: &Target) -> Account<'_> {
        Account::new(&target.terms, &self.states[target.rows.places()], self.now)
    }

    /// Fails if a row is money and the definition is not, or the reverse.
    fn expect_one_money(&self, target: &Target) -> Result<(), Error> {
        let mut rows = self.states[target.rows.places()].iter().flatten();
        if rows.any(|row| !row.is_over(self.now) && target.terms.mixes_money(row)) {
            return Err(unfit(&target.limit.name, FitError::MixedMoney));
        }
        Ok(())
    }

    /// The stored call of a call, if it is there.
    fn stored(&self, slot: Option<&CallSlot>) -> Option<&StoredCall> {
        self.calls[slot?.place].row.as_ref()
    }

    fn write(&mut self, target: &Target, portions: Vec<Portion>) {
        for portion in portions {
            self.states[target.rows.place + portion.shard] = Some(portion.next);
        }
    }

    fn write_call(&mut self, slot: &CallSlot, row: Option<StoredCall>) {
        self.calls[slot.place] = Entry { row, changed_by: Some(self.current) };
    }

    fn saved(&self, call: &Operation) -> Saved {
        let places = call.rows().flat_map(RowRange::places);
        Saved {
            states: places.map(|place| (place, self.states[place].clone())).collect(),
            call: call.slot.as_ref().map(|slot| (slot.place, self.calls[slot.place].clone())),
        }
    }

    fn restore(&mut self, saved: Saved) {
        for (place, state) in saved.states {
            self.states[place] = state;
        }
        if let Some((place, call)) = saved.call {
            self.calls[place] = call;
        }
    }
}

fn unfit(limit: &Text, source: FitError) -> Error {
    Error::DoesNotFit { limit: limit.clone().into(), source }
}
