//! The changes that a settlement may make.

use std::collections::BTreeMap;

use tollgate::algebra::{List, State, Timestamp};
use tollgate::plan::{Answer, Outcome, Plan, RowWrite};
use tollgate::{Charge, Error, Settlement};

use crate::input::expect_words;

/// The answer of a plan with one call. An error says why, and changes nothing.
pub(crate) fn answer(outcome: &Outcome) -> Option<&Answer> {
    let [answer] = outcome.answers.as_slice() else { panic!("{outcome:?} is no answer to one call") };
    if let Err(error) = answer {
        expect_named(error);
        assert!(outcome.changes.is_empty() && outcome.calls.is_empty(), "{error:?} changes something: {outcome:?}");
    }
    answer.as_ref().ok()
}

/// An error that the plan may give.
pub(crate) fn expect_named(error: &Error) {
    assert!(!matches!(error, Error::Database { .. } | Error::Setup { .. }), "{error:?} is of no plan");
    expect_words(error);
}

/// A settlement of some charges over the rows that were found.
pub(crate) struct Settling<'s> {
    pub(crate) charges: &'s [Charge],
    pub(crate) plan: &'s Plan,
    pub(crate) found: &'s [Option<State>],
    pub(crate) now: Timestamp,
}

impl Settling<'_> {
    /// Each row gets just what the settlement says is no longer charged to it. So no row gets more than was charged.
    pub(crate) fn expect_balanced(&self, settlement: &Settlement, changes: &[RowWrite]) {
        assert_eq!(settlement.charges.len(), self.charges.len());
        let mut by_row: BTreeMap<usize, Vec<i128>> = BTreeMap::new();
        for (charge, settled) in self.charges.iter().zip(&settlement.charges) {
            assert_eq!((charge.limit(), &charge.key, charge.shard), (settled.limit(), &settled.key, settled.shard));
            assert!(!settled.cost.is_negative(), "{settled:?}");
            let rows =
                self.plan.rows().iter().enumerate().filter(|(_, row)| {
                    (row.name(), row.key(), row.shard()) == (charge.limit(), &charge.key, charge.shard)
                });
            let back = i128::from(charge.cost.micros()) - i128::from(settled.cost.micros());
            rows.for_each(|(row, _)| by_row.entry(row).or_default().push(back));
        }
        for (row, backs) in by_row {
            let change = changes.iter().find(|change| change.row == row);
            let found = self.found[row].as_ref();
            let before = found.filter(|before| !before.is_over(self.now));
            match (change, backs.as_slice()) {
                (Some(RowWrite { state, .. }), _) if is_release(found, state) => {
                    let gained = listed(found) - listed(Some(state));
                    assert!(gained >= 0 && raised(found, state) <= gained, "{found:?} becomes {state:?}");
                }
                (Some(RowWrite { state, .. }), [back]) => {
                    assert_eq!(raised(before, state), *back, "{before:?} becomes {state:?}");
                }
                (Some(RowWrite { state, .. }), backs) if state.list.entries().is_empty() => {
                    let most: i128 = backs.iter().map(|back| (*back).max(0)).sum();
                    assert!(raised(before, state) <= most, "{before:?} becomes {state:?} of {backs:?}");
                }
                (None, [back]) => {
                    // A lease that its row does not list is over.
                    let is_lease = self.charges.iter().any(|charge| charge.lease_ends_at().is_some());
                    assert!(*back == 0 || is_lease, "{back} comes back to no row");
                }
                _ => {}
            }
        }
    }
}

fn is_release(before: Option<&State>, after: &State) -> bool {
    let is_listed = |state: &State| matches!(state.list, List::Leases(_));
    before.is_some_and(is_listed) && is_listed(after)
}

/// By how much more a row holds. One that is missing, or over, holds all.
fn raised(before: Option<&State>, after: &State) -> i128 {
    let value = |state: &State| i128::from(state.value.micros());
    value(after) - before.map_or(0, value)
}

fn listed(state: Option<&State>) -> i128 {
    state.map_or(0, |state| state.list.entries().iter().map(|entry| i128::from(entry.amount.micros())).sum())
}
