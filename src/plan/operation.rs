use std::ptr;
use std::time::Duration;

use super::adjust::Adjustment;
use super::answer::Answer;
use super::ledger::Ledger;
use super::settle::Settling;
use super::stored_call::CallSlot;
use super::take::{alternatives, decided_together, keep_right, possible};
use super::target::{Item, RowId, RowRange, Target};
use crate::algebra::Ask;
use crate::call::CallError;
use crate::error::Error;
use crate::limit::LimitKind;
use crate::overrides::OverrideOf;
use crate::parts::Parts;
use crate::tokens::Tokens;
use crate::values::text::Text;

/// The question of a verb to the rows, ready to be decided.
#[derive(Clone, Debug)]
pub(crate) struct Operation {
    pub(super) action: Action,
    /// Its slot among the stored calls, if it is stored.
    pub(super) slot: Option<Box<CallSlot>>,
}

#[derive(Clone, Debug)]
pub(super) enum Action {
    /// Takes the first alternative that is granted, all or nothing. Each limit and key occurs once in it.
    Take(Vec<Item<Ask>>),
    /// Decides as `Take` does, and takes nothing.
    Check(Vec<Item<Ask>>),
    Adjust(Box<Item<Adjustment>>),
    /// Settles all charges or none.
    Settle(Settling),
}

/// The circumstances under which a verb becomes an operation.
#[derive(Clone, Copy)]
#[cfg_attr(feature = "unstable", expect(missing_debug_implementations, reason = "functions have nothing to show"))]
pub struct Under<'u> {
    /// Finds the override of a limit for a key; `None` if there are no overrides.
    pub overrides: Option<&'u OverrideOf<'u>>,
    /// The parts of the tables.
    pub parts: Parts,
    /// Draws an id, which is never used again: for leases, and for the row of a call that has none from
    /// [`Call::once`](crate::Call::once).
    pub draw: &'u dyn Fn() -> u128,
}

impl Under<'_> {
    /// No overrides, and tables without parts. Each id is 1.
    pub const NOTHING: Self = Under { overrides: None, parts: Parts::new(0), draw: &|| 1 };
}

/// # How it is made
impl Operation {
    /// Puts it under the circumstances, if it can ever be granted there.
    pub(super) fn under(mut self, under: &Under<'_>) -> Result<Self, Error> {
        if self.rows().next().is_none() {
            return Err(Error::Call { limit: None, source: CallError::NothingAsked });
        }
        if let Some(overrides) = under.overrides {
            self.put_under(overrides);
        }
        // A call that may be a repeat is answered as before, even under numbers that no longer grant it.
        let is_once = self.is_once();
        if let Some(items) = self.asked_mut().filter(|_| !is_once) {
            keep_right(items, possible)?;
        }
        self.each_rows(|rows| rows.first.part = under.parts.of(&rows.first.key));
        if let Some(slot) = &mut self.slot {
            slot.name.part = under.parts.of(&slot.name.key);
        }
        Ok(self)
    }
}

/// # How it is decided
impl Operation {
    /// Decides it over the rows and the stored calls of a plan in which it has this place.
    pub(super) fn decide(&self, place: usize, ledger: &mut Ledger<'_>) -> Result<Answer, Error> {
        ledger.current = place;
        let slot = self.slot.as_deref();
        match &self.action {
            Action::Take(items) => ledger.take(items, slot),
            Action::Check(items) => {
                let saved = ledger.saved(self.rows(), slot);
                let answer = ledger.take(items, slot);
                ledger.restore(saved);
                answer.map(Answer::untaken)
            }
            Action::Adjust(item) => ledger.adjust(item, slot).map(Answer::Done),
            Action::Settle(settling) => {
                let saved = ledger.saved(self.rows(), slot);
                let settled = ledger.settle(settling, slot);
                if settled.is_err() {
                    ledger.restore(saved);
                }
                settled.map(Answer::Settled)
            }
        }
    }
}

/// # What it asks
impl Operation {
    /// The items that it takes, or checks.
    pub(crate) fn asked(&self) -> &[Item<Ask>] {
        if let Action::Take(items) | Action::Check(items) = &self.action { items } else { &[] }
    }

    pub(super) fn asked_mut(&mut self) -> Option<&mut Vec<Item<Ask>>> {
        if let Action::Take(items) | Action::Check(items) = &mut self.action { Some(items) } else { None }
    }

    /// The items that it takes; none for a check.
    pub(crate) fn taken(&self) -> &[Item<Ask>] {
        if self.takes() { self.asked() } else { &[] }
    }

    /// Whether it takes tokens for calls to come.
    pub(crate) fn takes_ahead(&self) -> bool {
        self.asked().iter().any(|item| item.action.is_ahead())
    }

    /// The item that it adjusts.
    pub(crate) fn adjusted(&self) -> Option<&Item<Adjustment>> {
        if let Action::Adjust(item) = &self.action { Some(item) } else { None }
    }

    /// The charges that it settles.
    pub(super) fn settling(&self) -> Option<&Settling> {
        if let Action::Settle(settling) = &self.action { Some(settling) } else { None }
    }

    /// Each limit and key that it asks.
    pub(crate) fn targets(&self) -> impl Iterator<Item = &Target> {
        self.asked().iter().map(|item| &item.target).chain(self.adjusted().map(|item| &item.target))
    }

    pub(super) fn each_target(&mut self, mut change: impl FnMut(&mut Target)) {
        match &mut self.action {
            Action::Take(items) | Action::Check(items) => items.iter_mut().for_each(|item| change(&mut item.target)),
            Action::Adjust(item) => change(&mut item.target),
            Action::Settle(_) => {}
        }
    }

    /// The rows of each limit and key that it asks, or each row that it settles.
    pub(super) fn rows(&self) -> impl Iterator<Item = &RowRange> {
        let settled = self.settling().into_iter().flat_map(|settling| &settling.rows);
        self.targets().map(|target| &target.rows).chain(settled)
    }

    pub(super) fn each_rows(&mut self, mut change: impl FnMut(&mut RowRange)) {
        if let Action::Settle(settling) = &mut self.action {
            settling.rows.iter_mut().for_each(&mut change);
        }
        self.each_target(|target| change(&mut target.rows));
    }

    /// The first of each of these rows.
    pub(crate) fn first_rows(&self) -> impl Iterator<Item = &RowId> {
        self.rows().map(|rows| &rows.first)
    }

    /// How many rows it asks for.
    pub(crate) fn count_rows(&self) -> usize {
        self.rows().map(|rows| rows.count).sum()
    }

    /// How many keys of limits it asks for.
    pub(crate) fn keys(&self) -> usize {
        self.rows().count()
    }

    /// The limit that stands for the call in traces and errors: the first that it asks.
    pub(crate) fn limit(&self) -> &Text {
        &self.first_rows().next().expect("a checked call asks something").name
    }

    /// The part that all its rows lie in; `None` for a call over several parts.
    pub(crate) fn part(&self) -> Option<u16> {
        let mut parts = self.first_rows().map(|row| row.part);
        let first = parts.next();
        first.filter(|first| parts.all(|part| part == *first))
    }
}

/// # Alternatives
impl Operation {
    /// Its alternatives.
    pub(crate) fn alternatives(&self) -> impl Iterator<Item = &[Item<Ask>]> {
        alternatives(self.asked())
    }

    /// The call without alternatives behind this one.
    pub(super) fn through(&self, alternative: usize) -> Self {
        let mut call = self.clone();
        if let Some(items) = call.asked_mut() {
            items.retain(|item| item.action.place.alternative.is_none_or(|number| number <= alternative));
        }
        call
    }

    /// The other items over which the cost of an item is split.
    pub(crate) fn split_with<'c>(&'c self, item: &'c Item<Ask>) -> impl Iterator<Item = &'c Item<Ask>> {
        let mut together = self.alternatives().flat_map(decided_together);
        let of_item = together.find(move |items| items.iter().any(|other| ptr::eq(other, item)));
        of_item.into_iter().flatten().filter(move |other| !ptr::eq(*other, item))
    }

    /// Fails unless one actual cost can settle the call: in each alternative, all counted requests must have the same
    /// cost.
    pub(crate) fn expect_one_cost(&self) -> Result<(), Error> {
        let is_counted =
            |item: &Item<Ask>| !item.action.flat && !item.target.is_unlimited() && item.target.limit.lease().is_none();
        let is_one_cost = |items: &[Item<Ask>]| {
            let mut asked = decided_together(items).map(|items| &items[0]).filter(|item| is_counted(item));
            let first = asked.next();
            asked.all(|item| first.is_some_and(|first| item.action.is_charged_as(first.action)))
        };
        if alternatives(self.asked()).all(is_one_cost) {
            Ok(())
        } else {
            Err(Error::of_call(self.limit(), CallError::MixedCosts))
        }
    }
}

/// # What it does
impl Operation {
    /// Whether it takes tokens, so that the balances may refuse it.
    pub(super) fn takes(&self) -> bool {
        matches!(self.action, Action::Take(_))
    }

    /// Whether it only reads.
    pub(super) fn looks(&self) -> bool {
        matches!(self.action, Action::Check(_)) || self.adjusted().is_some_and(|item| item.action == Adjustment::Look)
    }

    /// Whether it settles earlier charges.
    pub(crate) fn settles(&self) -> bool {
        self.settling().is_some()
    }

    /// Whether it may have been carried out before.
    pub(crate) fn is_once(&self) -> bool {
        self.slot.as_ref().is_some_and(|slot| slot.is_once())
    }

    /// Whether it is stored.
    pub(crate) fn is_stored(&self) -> bool {
        self.slot.is_some()
    }

    /// The span after which its tokens come back by themselves, if they do.
    pub(crate) fn lapses(&self) -> Option<Duration> {
        self.slot.as_ref()?.lapses()
    }

    /// Whether it asks a limit that counts its holders.
    pub(crate) fn is_held(&self) -> bool {
        self.alternatives().flatten().any(|item| item.target.limit.lease().is_some())
    }

    /// Whether it may insert a row: because it takes tokens, takes more than was charged, gives money back, or gives to
    /// several rows.
    ///
    /// A call that gives to several rows must hold all of them. It would overlook a row that another caller inserts
    /// while it waits for the others.
    pub(super) fn inserts(&self) -> bool {
        match &self.action {
            Action::Take(items) => {
                items.iter().any(|item| item.action.cost() > Tokens::ZERO && !item.target.is_unlimited())
            }
            Action::Check(_) => false,
            Action::Adjust(item) => item.inserts(),
            Action::Settle(settling) => settling.inserts(),
        }
    }

    /// The first stale shard of the limit and key that it resets.
    pub(crate) fn stale(&self) -> Option<RowId> {
        let reset = self.adjusted().filter(|item| item.action == Adjustment::Reset);
        reset.map(|Item { target, .. }| target.rows.first.after(target.rows.count))
    }

    /// The rows that it may raise, and for each whether a lease ends there.
    pub(crate) fn raises(&self) -> impl Iterator<Item = (&RowId, bool)> {
        let raised = self.adjusted().filter(|item| !matches!(item.action, Adjustment::Debit(_) | Adjustment::Look));
        let raised = raised.map(|Item { target, .. }| (&target.rows.first, target.limit.lease().is_some()));
        raised.into_iter().chain(self.settling().into_iter().flat_map(Settling::raises))
    }

    /// The call on a fraction of each limit, from 0 to 1, with one row each, because in memory no caller waits for a
    /// lock. It leaves out alternatives that the fraction can never grant, and those with leases or money, which memory
    /// cannot take back. `None` if no alternative remains.
    pub(crate) fn fraction(mut self, fraction: f64) -> Option<Self> {
        #[expect(clippy::cast_possible_truncation, reason = "a whole number up to a million; NaN is 0")]
        let millionths = (fraction.clamp(0.0, 1.0) * 1e6).floor() as i64;
        let items = self.asked_mut()?;
        for target in items.iter_mut().map(|item| &mut item.target) {
            target.terms = target.terms.fraction(millionths);
            (target.rows.count, target.limit) = (1, target.limit.clone().fraction(millionths));
        }
        let is_no_bucket =
            |item: &Item<Ask>| item.target.limit.kind.is_money() || item.target.limit.kind == LimitKind::Concurrency;
        let check =
            |items: &[Item<Ask>]| if items.iter().any(is_no_bucket) { Err(()) } else { possible(items).map_err(drop) };
        keep_right(items, check).is_ok().then_some(Self { slot: None, ..self })
    }
}
