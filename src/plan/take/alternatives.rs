//! The alternatives of a call, and the splits in them. A call without either has one alternative.
//!
//! `Ledger::take` charges the first alternative that its rows grant.

use std::iter;

use crate::algebra::{Ask, Timestamp, most};
use crate::answer::decision::{Denied, Source};
use crate::error::Error;
use crate::plan::target::{Item, Target};
use crate::tokens::Tokens;

/// The alternatives of a call, in their order.
pub(in crate::plan) fn alternatives(items: &[Item<Ask>]) -> impl Iterator<Item = &[Item<Ask>]> {
    items.chunk_by(|one, next| one.action.place.alternative == next.action.place.alternative)
}

/// The groups of an alternative that are decided together: a single item, or the items that share a cost.
pub(in crate::plan) fn decided_together(alternative: &[Item<Ask>]) -> impl Iterator<Item = &[Item<Ask>]> {
    alternative.chunk_by(|_, next| next.action.continues_split())
}

/// Leaves out the alternatives that have a fault. If each has one, returns the fault of the first.
pub(in crate::plan) fn keep_right<E>(
    items: &mut Vec<Item<Ask>>,
    check: impl Fn(&[Item<Ask>]) -> Result<(), E>,
) -> Result<(), E> {
    let number = |items: &[Item<Ask>]| items[0].action.place.alternative;
    let mut wrong = alternatives(items).filter_map(|items| check(items).err().map(|fault| (number(items), fault)));
    let Some((first, fault)) = wrong.next() else { return Ok(()) };
    let numbers: Vec<_> = iter::once(first).chain(wrong.map(|(number, _)| number)).collect();
    items.retain(|item| numbers.binary_search(&item.action.place.alternative).is_err());
    if items.is_empty() { Err(fault) } else { Ok(()) }
}

/// Whether an alternative can ever be granted. If not, it is left out before SQL, because the algebra would name an
/// instant for it, which is wrong for the whole call.
pub(in crate::plan) fn possible(alternative: &[Item<Ask>]) -> Result<(), Error> {
    for items in decided_together(alternative) {
        let item = &items[0];
        let asked = item.action.cost();
        let max = if item.action.is_split() {
            most(items.iter().map(|item| (item.action, &item.target.terms)))
        } else {
            item.action.max_cost(&item.target.terms)
        };
        if asked > max && !item.target.is_unlimited() {
            return Err(exceeded(&item.target, asked, max));
        }
    }
    Ok(())
}

pub(super) fn exceeded(target: &Target, asked: Tokens, max: Tokens) -> Error {
    Error::CostExceedsCapacity { limit: target.limit.name.clone().into(), asked, max: max.max(Tokens::ZERO) }
}

/// The refusal of an alternative, if an override denies one of its limits.
pub(in crate::plan) fn denied(items: &[Item<Ask>], now: Timestamp) -> Option<Denied> {
    let denied = || items.iter().filter_map(|item| Some((item, item.target.denied_until(now)?)));
    let refusals =
        denied().map(|(item, until)| item.target.refusal(item.target.denial(), Tokens::ZERO, until)).collect();
    let standing = |(item, until): (&Item<Ask>, _)| item.target.standing(item.action.cost(), Tokens::ZERO, [until; 2]);
    Denied::among(refusals, || denied().map(standing).collect(), now.into(), now.into(), Source::Override)
}
