use crate::algebra::{Ask, Flow};
use crate::key::Key;
use crate::limit::Limit;
use crate::plan::{Adjustment, Item, Operation};
use crate::tokens::Tokens;

/// The effect of a call on a limit and key whose tokens may lie in memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Touch<'c> {
    pub(super) limit: &'c Limit,
    pub(super) key: &'c Key,
    /// The cost to pay at once, if the call does nothing else there.
    pub(super) pays: Option<Tokens>,
    /// Whether it gives tokens that were not charged before.
    pub(super) replenishes: bool,
}

impl<'c> Touch<'c> {
    /// The effects of a call on each limit and key that it asks; none of a call that settles.
    pub(super) fn of(call: &'c Operation) -> impl Iterator<Item = Self> {
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
