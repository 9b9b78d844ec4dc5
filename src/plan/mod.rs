//! **Unstable**: any release may change this module. Plans several requests over locked rows: which rows to lock, in
//! which order, and what follows from the rows that were found.
//!
//! A [`Plan`] names the rows of its calls in the one lock order that all callers share: `ephemeral` before `durable`,
//! then part, name, key and shard by bytes. Transactions that follow it cannot deadlock with each other. Given the rows
//! and the time, a plan decides its calls one after another, each all or nothing, and returns the rows to write. It is
//! as pure as the [`algebra`](crate::algebra) that it applies.
//!
//! # Example
//!
//! ```
//! use tollgate::algebra::Timestamp;
//! use tollgate::plan::{Answer, Plan, Verb};
//! use tollgate::{Limit, MINUTE};
//!
//! const PER_USER: Limit = Limit::token_bucket("per_user", 2, MINUTE);
//! const TOTAL: Limit = Limit::token_bucket("total", 1, MINUTE);
//!
//! let ada = || Verb::consume([TOTAL.global(), PER_USER.key("ada")]);
//! let plan = Plan::new([ada(), ada()])?;
//! assert_eq!(plan.rows()[0].name(), "per_user", "rows come in lock order");
//!
//! // Both rows are missing, hence full: the first call is granted, the second refused by the total, and takes nothing.
//! let outcome = plan.decide(&[None, None], &[], Timestamp::from_micros(0));
//! assert!(matches!(outcome.answers[0], Ok(Answer::Granted { .. })));
//! assert!(matches!(&outcome.answers[1], Ok(Answer::Denied(denied)) if denied.limit == "total"));
//! assert_eq!(outcome.changes[0].state.value.micros(), -1_000_000, "a row says what is used");
//! # Ok::<(), tollgate::Error>(())
//! ```

mod adjust;
mod answer;
mod by_override;
mod ledger;
mod operation;
mod settle;
mod stored_call;
mod take;
mod target;
#[cfg(test)]
mod tests;
mod verb;

pub(crate) use adjust::Adjustment;
pub use answer::Answer;
pub use ledger::{CallWrite, RowWrite};
pub(crate) use operation::Operation;
pub use operation::Under;
pub use settle::Settlement;
pub(crate) use take::{Chosen, draw};
pub(crate) use target::Item;
pub use target::RowId;
pub use verb::Verb;

use crate::algebra::{State, Terms, Timestamp};
pub use crate::call::{CallId, Given, StoredCall};
use crate::error::Error;
pub use crate::overrides::{AppliedOverride, Ruling, SlowedRate};
use crate::tokens::Tokens;
use ledger::Ledger;
use target::RowRange;

/// Calls that are decided together, in their order, over rows that are locked together.
#[derive(Debug)]
pub struct Plan {
    rows: Vec<RowId>,
    names: Vec<CallId>,
    calls: Vec<Operation>,
}

/// The answers to the calls of a plan, and the changes to write.
#[derive(Debug)]
pub struct Outcome {
    /// One answer for each call, in the order of the calls.
    pub answers: Vec<Result<Answer, Error>>,
    /// The rows to write; empty where nothing changes.
    pub changes: Vec<RowWrite>,
    /// The stored calls to write, in the order of [`Plan::names`].
    pub calls: Vec<CallWrite>,
}

/// The least balance of a row that may grant a call: a lower one proves a refusal.
#[derive(Clone, Copy, Debug)]
pub struct Need {
    /// The balance.
    pub balance: Tokens,
    /// The terms by which the row gets there.
    pub terms: Terms,
}

impl Plan {
    /// Plans calls, which will be decided in the order given.
    ///
    /// # Errors
    ///
    /// [`Error::Key`] and [`Error::Call`] for a call that is wrong, and [`Error::CostExceedsCapacity`] for one that can
    /// never be granted.
    pub fn new(verbs: impl IntoIterator<Item = Verb>) -> Result<Self, Error> {
        Self::under(verbs, &Under::NOTHING)
    }

    /// Plans calls under overrides, and with ids.
    ///
    /// # Errors
    ///
    /// Those of [`new`](Self::new).
    pub fn under(verbs: impl IntoIterator<Item = Verb>, under: &Under<'_>) -> Result<Self, Error> {
        verbs.into_iter().map(|verb| Operation::of(verb, under)).collect::<Result<Vec<_>, _>>().map(Self::of)
    }

    /// Plans operations.
    pub(crate) fn of(mut calls: Vec<Operation>) -> Self {
        let mut rows: Vec<RowId> = calls.iter().flat_map(Operation::rows).flat_map(RowRange::each).collect();
        rows.sort_unstable();
        rows.dedup();
        let mut names: Vec<_> = calls.iter().filter_map(|call| Some(call.slot.as_ref()?.name.clone())).collect();
        names.sort_unstable();
        names.dedup();
        for call in &mut calls {
            call.each_rows(|asked| {
                asked.place = rows.binary_search(&asked.first).expect("the rows were collected from these calls");
            });
            if let Some(slot) = &mut call.slot {
                slot.place = names.binary_search(&slot.name).expect("the names were collected from these calls");
            }
        }
        Self { rows, names, calls }
    }

    /// The rows to lock, in lock order.
    #[must_use]
    pub fn rows(&self) -> &[RowId] {
        &self.rows
    }

    /// How many keys of limits it asks for.
    pub(crate) fn count_keys(&self) -> usize {
        self.rows.chunk_by(RowId::is_of_same_key).count()
    }

    /// The stored calls to read and to write, in the order in which they are locked, after all rows.
    #[must_use]
    pub fn names(&self) -> &[CallId] {
        &self.names
    }

    /// The places of the names that must be read before the plan is decided. A name that was just drawn cannot be
    /// stored yet.
    #[must_use]
    pub fn asked_names(&self) -> Vec<usize> {
        let asked = self.calls.iter().filter_map(|call| call.slot.as_ref()).filter(|slot| !slot.is_fresh());
        let mut asked: Vec<_> = asked.map(|slot| slot.place).collect();
        asked.sort_unstable();
        asked.dedup();
        asked
    }

    /// Decides the calls over the states that were found for [`Plan::rows`], and the stored calls that are known for
    /// [`Plan::names`], in the same order; `None` for a missing one.
    ///
    /// # Panics
    ///
    /// If there are fewer states than rows, or fewer stored calls than names.
    #[must_use]
    pub fn decide(&self, found: &[Option<State>], known: &[Option<StoredCall>], now: Timestamp) -> Outcome {
        self.decide_in(&[], found, known, now)
    }

    /// The least balance of the plan's only row that may grant its only call: a lower one proves a refusal.
    ///
    /// `None` if a low balance proves nothing: for a plan of several calls or rows, for a call that no balance refuses,
    /// and for a call that may have been granted before.
    #[must_use]
    pub fn need(&self) -> Option<Need> {
        let [call] = self.calls.as_slice() else { return None };
        let [item] = call.taken() else { return None };
        let terms = item.target.terms;
        let proves = item.target.rows.count == 1 && !call.is_once() && !item.target.is_unlimited();
        proves.then(|| Need { balance: item.action.needs(&terms), terms })
    }

    /// Whether a missing row may have to be inserted.
    #[must_use]
    pub fn inserts(&self) -> bool {
        self.calls.iter().any(Operation::inserts)
    }

    /// Whether a call that inserts nothing asks a row that was not found. On Citus a wrong number of parts looks like a
    /// missing row: an insert would fail, but a read does not.
    pub(crate) fn trusts_absence(&self, found: &[Option<State>]) -> bool {
        let mut calls = self.calls.iter().filter(|call| !call.inserts());
        calls.any(|call| call.rows().any(|rows| found[rows.place].is_none()))
    }

    /// Decides as [`decide`](Self::decide) does. If rows are chosen, one for each item of the plan's only call, each
    /// item takes only from its chosen row.
    pub(crate) fn decide_in(
        &self,
        chosen: &[usize],
        found: &[Option<State>],
        known: &[Option<StoredCall>],
        now: Timestamp,
    ) -> Outcome {
        let mut ledger = Ledger::new(chosen, found, known, now);
        let calls = self.calls.iter().enumerate();
        let answers = calls.map(|(place, call)| call.decide(place, &mut ledger)).collect();
        let (changes, calls) = ledger.changes(found, known);
        Outcome { answers, changes, calls }
    }

    /// The plan of some of the calls, in the order given.
    pub(crate) fn select(&self, calls: &[usize]) -> Self {
        Self::of(calls.iter().map(|call| self.calls[*call].clone()).collect())
    }

    /// One of the calls.
    pub(crate) fn call(&self, call: usize) -> &Operation {
        &self.calls[call]
    }

    /// How many calls there are.
    pub(crate) fn len(&self) -> usize {
        self.calls.len()
    }

    /// The places in [`Plan::rows`] of one call's rows.
    pub(crate) fn places_of(&self, call: usize) -> impl Iterator<Item = usize> {
        self.calls[call].rows().flat_map(RowRange::places)
    }

    /// The place in [`Plan::names`] of one call's name, if it has one.
    pub(crate) fn name_of(&self, call: usize) -> Option<usize> {
        self.calls[call].slot.as_ref().map(|slot| slot.place)
    }

    /// The stored calls of [`Plan::names`] as settlements may assume them: each is there, and its receipt is not used.
    /// The statement that writes checks this. `None` if another call asks for the name.
    pub(crate) fn assumed(&self) -> Vec<Option<StoredCall>> {
        let (mut assumed, mut others) = (vec![None; self.names.len()], Vec::new());
        for (call, slot) in self.calls.iter().filter_map(|call| Some((call, call.slot.as_deref()?))) {
            match call.settling().and_then(|settling| settling.assumed(slot)) {
                None => others.push(slot.place),
                row => assumed[slot.place] = row,
            }
        }
        for name in others {
            assumed[name] = None;
        }
        assumed
    }

    /// Whether a call may repeat another.
    pub(crate) fn may_repeat(&self) -> bool {
        self.calls.iter().any(Operation::is_once)
    }

    /// Whether a call has several alternatives.
    pub(crate) fn has_alternatives(&self) -> bool {
        self.calls.iter().any(|call| call.alternatives().nth(1).is_some())
    }

    /// Whether some of the rows may suffice: a call has alternatives, or the only call takes from a limit with several
    /// rows.
    pub(crate) fn has_choice(&self) -> bool {
        let takes_one = || self.len() == 1 && self.takes() && self.inserts();
        self.has_alternatives() || takes_one() && self.calls[0].rows().any(|rows| rows.count > 1)
    }

    /// The first stale shard of each limit and key that some call resets, in lock order.
    pub(crate) fn stale(&self) -> Vec<RowId> {
        let mut stale: Vec<_> = self.calls.iter().filter_map(Operation::stale).collect();
        stale.sort_unstable();
        stale
    }

    /// Whether every call takes tokens, so that the balances may refuse it.
    pub(crate) fn takes(&self) -> bool {
        self.calls.iter().all(Operation::takes)
    }

    /// Whether nothing is locked or written for any call.
    pub(crate) fn looks(&self) -> bool {
        self.calls.iter().all(Operation::looks)
    }
}

impl Need {
    /// Whether a row has too low a balance at an instant.
    pub(crate) fn is_missed(&self, row: Option<&State>, now: Timestamp) -> bool {
        row.is_some_and(|row| self.terms.balance(row, now) < self.balance)
    }
}
