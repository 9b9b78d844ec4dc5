use std::collections::BTreeMap;

use super::ages::Ages;
use super::keys::Keys;
use crate::gate::memory::touch::Touch;
use crate::key::Key;
use crate::limit::Limit;
use crate::plan::Operation;
use crate::tokens::Tokens;

/// The demand of a batch for a key.
pub(super) struct BatchDemand<'c> {
    pub(super) limit: &'c Limit,
    pub(super) key: &'c Key,
    /// The tokens of the calls that memory can serve, and the cost of the last of them.
    pub(super) tokens: Tokens,
    pub(super) calls: u32,
    pub(super) cost: Tokens,
    /// Whether one of them raises the row.
    pub(super) replenishes: bool,
    /// Whether two calls define the limit differently.
    pub(super) differs: bool,
}

impl<'c> BatchDemand<'c> {
    /// The demand of calls for each key, by its hash.
    pub(super) fn by(calls: impl Iterator<Item = &'c Operation>, ages: &Ages, keys: &Keys) -> BTreeMap<u64, Self> {
        let mut all = BTreeMap::new();
        for call in calls {
            let is_servable = Touch::of(call).all(|touch| touch.pays.is_some() && ages.serve(touch.limit));
            for touch in Touch::of(call) {
                let asked = all.entry(keys.hash(touch.limit, touch.key)).or_insert_with(|| Self::nothing(&touch));
                asked.add(&touch, is_servable);
            }
        }
        all
    }

    fn nothing(&Touch { limit, key, .. }: &Touch<'c>) -> Self {
        let (tokens, calls, cost) = (Tokens::ZERO, 0, Tokens::ZERO);
        Self { limit, key, tokens, calls, cost, replenishes: false, differs: false }
    }

    fn add(&mut self, &Touch { limit, key, pays, replenishes }: &Touch<'c>, is_servable: bool) {
        self.replenishes |= replenishes;
        self.differs |= self.limit != limit;
        if let Some(cost) = pays.filter(|_| is_servable) {
            (self.limit, self.key, self.cost) = (limit, key, cost);
            self.tokens = self.tokens.checked_add(cost).unwrap_or(Tokens::MAX);
            self.calls += 1;
        }
    }
}
