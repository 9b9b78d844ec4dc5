//! The tokens that the requests of an alternative take together: the amount of `up_to`, and the pieces of a split cost.

use super::alternatives::decided_together;
use crate::algebra::{Ask, Lacking, Piece, split};
use crate::plan::ledger::Ledger;
use crate::plan::target::Item;
use crate::tokens::Tokens;

/// The tokens that the items of an alternative take, if they depend on the other items.
pub(super) struct Amounts {
    /// The tokens that each request with a part gets, if there is one: the least that any of their limits has.
    pub(super) partial: Option<Tokens>,
    /// The piece that each limit of a split gives, at the place of its item; empty for a call that splits no cost.
    given: Vec<Option<Result<Piece, Lacking>>>,
}

impl Amounts {
    pub(super) fn of(ledger: &Ledger<'_>, items: &[Item<Ask>]) -> Self {
        Self { partial: partial(ledger, items), given: given(ledger, items) }
    }

    /// The piece of a split cost that the limit of an item gives.
    pub(super) fn given(&self, place: usize) -> Option<Result<Piece, Lacking>> {
        self.given.get(place).copied().flatten()
    }

    /// The ask of an item for its amount.
    pub(super) fn ask(&self, place: usize, item: &Item<Ask>) -> Ask {
        match (self.given(place), self.partial) {
            (Some(Ok(given)), _) => item.action.with_cost(given.cost),
            (_, Some(partial)) => item.action.with_partial(partial),
            (_, None) => item.action,
        }
    }
}

fn partial(ledger: &Ledger<'_>, items: &[Item<Ask>]) -> Option<Tokens> {
    let parts = items.iter().filter(|item| item.action.most().is_some());
    let partial = |item: &Item<Ask>| {
        if item.target.is_unlimited() { item.action.most() } else { ledger.account(&item.target).partial(item.action) }
    };
    parts.filter_map(partial).min()
}

fn given(ledger: &Ledger<'_>, items: &[Item<Ask>]) -> Vec<Option<Result<Piece, Lacking>>> {
    if !items.iter().any(|item| item.action.is_split()) {
        return Vec::new();
    }
    let of_items = |items: &[Item<Ask>]| {
        if items[0].target.is_unlimited() || !items[0].action.is_split() {
            return vec![None; items.len()];
        }
        let accounts: Vec<_> = items.iter().map(|item| (ledger.account(&item.target), item.action)).collect();
        match split(&accounts) {
            Ok(given) => given.into_iter().map(|given| Some(Ok(given))).collect(),
            Err(lacking) => vec![Some(Err(lacking)); items.len()],
        }
    };
    decided_together(items).flat_map(of_items).collect()
}
