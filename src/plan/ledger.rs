//! A copy of the rows and stored calls that were found: the calls of a plan are decided over it, one after another. At
//! the end, the differences are the changes to write.

use super::stored_call::CallSlot;
use super::target::{RowRange, Target};
use crate::algebra::{Account, Portion, State, Timestamp};
use crate::call::StoredCall;
use crate::error::{Error, FitError};
use crate::values::text::Text;

/// The rows and the stored calls of a plan while its calls are decided over them, one after another.
pub(super) struct Ledger<'p> {
    pub(super) states: Vec<Option<State>>,
    pub(super) calls: Vec<KnownCall>,
    /// The chosen rows, if rows are chosen: one for each item of the plan's only call. Each item takes only from its
    /// chosen row.
    pub(super) chosen: &'p [usize],
    pub(super) now: Timestamp,
    /// The call that is being decided.
    pub(super) current: usize,
}

/// The entry of a stored call, if there is one, and the call of the plan that has changed it last.
#[derive(Clone)]
pub(super) struct KnownCall {
    pub(super) row: Option<StoredCall>,
    changed_by: Option<usize>,
}

/// The rows and the stored call that a call may change, as they were before.
pub(super) struct Saved {
    states: Vec<(usize, Option<State>)>,
    call: Option<(usize, KnownCall)>,
}

impl<'p> Ledger<'p> {
    pub(super) fn new(
        chosen: &'p [usize],
        found: &[Option<State>],
        known: &[Option<StoredCall>],
        now: Timestamp,
    ) -> Self {
        let calls = known.iter().map(|row| KnownCall { row: row.clone(), changed_by: None }).collect();
        Self { states: found.to_vec(), calls, chosen, now, current: 0 }
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
        let calls = calls.filter_map(|(name, (KnownCall { row, changed_by }, known))| {
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

    pub(super) fn account(&self, target: &Target) -> Account<'_> {
        Account::new(&target.terms, &self.states[target.rows.places()], self.now)
    }

    /// Fails if a row is money and the definition is not, or the reverse.
    pub(super) fn expect_one_money(&self, target: &Target) -> Result<(), Error> {
        let mut rows = self.states[target.rows.places()].iter().flatten();
        if rows.any(|row| !row.is_over(self.now) && target.terms.mixes_money(row)) {
            return Err(unfit(&target.limit.name, FitError::MixedMoney));
        }
        Ok(())
    }

    pub(super) fn write(&mut self, target: &Target, portions: Vec<Portion>) {
        for portion in portions {
            self.states[target.rows.place + portion.shard] = Some(portion.next);
        }
    }

    pub(super) fn write_call(&mut self, slot: &CallSlot, row: Option<StoredCall>) {
        self.calls[slot.place] = KnownCall { row, changed_by: Some(self.current) };
    }

    pub(super) fn saved<'r>(&self, rows: impl Iterator<Item = &'r RowRange>, slot: Option<&CallSlot>) -> Saved {
        let places = rows.flat_map(RowRange::places);
        Saved {
            states: places.map(|place| (place, self.states[place].clone())).collect(),
            call: slot.map(|slot| (slot.place, self.calls[slot.place].clone())),
        }
    }

    pub(super) fn restore(&mut self, saved: Saved) {
        for (place, state) in saved.states {
            self.states[place] = state;
        }
        if let Some((place, call)) = saved.call {
            self.calls[place] = call;
        }
    }
}

pub(super) fn unfit(limit: &Text, source: FitError) -> Error {
    Error::DoesNotFit { limit: limit.clone().into(), source }
}

/// A row to write.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RowWrite {
    /// The row's place in [`Plan::rows`](crate::plan::Plan::rows).
    pub row: usize,
    /// Its new state.
    pub state: State,
}

/// A write to a stored call. `name` is its place in [`Plan::names`](crate::plan::Plan::names), and `call` is the last
/// call of the plan that changed it.
#[derive(Clone, Debug, Eq, PartialEq)]
#[allow(missing_docs, reason = "said above")]
pub enum CallWrite {
    /// The stored call was not there.
    Insert { call: usize, name: usize, row: StoredCall },
    /// Its receipt is used, and it no longer lapses.
    Use { call: usize, name: usize },
    /// The stored call is deleted.
    Delete { call: usize, name: usize },
}

impl CallWrite {
    /// The call of the plan with which this change is written or lost.
    pub(crate) fn call(&self) -> usize {
        let (Self::Insert { call, .. } | Self::Use { call, .. } | Self::Delete { call, .. }) = self;
        *call
    }

    /// Its place in [`Plan::names`](crate::plan::Plan::names).
    pub(crate) fn name(&self) -> usize {
        let (Self::Insert { name, .. } | Self::Use { name, .. } | Self::Delete { name, .. }) = self;
        *name
    }

    /// The row that is inserted, if one is.
    pub(crate) fn row(&self) -> Option<&StoredCall> {
        if let Self::Insert { row, .. } = self { Some(row) } else { None }
    }
}
