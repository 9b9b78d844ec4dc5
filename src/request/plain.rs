use super::{Position, Request};
use crate::key::Key;
use crate::limit::Limit;
use crate::tokens::Tokens;

/// A cost to pay at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plain<'r> {
    pub(crate) limit: &'r Limit,
    pub(crate) key: &'r Key,
    pub(crate) cost: Tokens,
    pub(crate) flat: bool,
}

impl Plain<'_> {
    pub(crate) fn is_of_same_key(&self, other: &Self) -> bool {
        (&self.limit.name, self.key) == (&other.limit.name, other.key)
    }
}

impl Request {
    /// The cost that it pays at once, if it asks for nothing else.
    pub(crate) fn plain(&self) -> Option<Plain<'_>> {
        let Self { limit, key, cost, least, leaving, keeping, once, flat, period, place } = self;
        let is_whole = matches!(place, Ok(Position { alternative: None, split: None }));
        let is_plain = is_whole
            && matches!((least, leaving), (Ok(None), Ok(None)))
            && (keeping.is_none() && once.is_none() && period.is_none());
        let (Ok(key), Ok(cost), true) = (key, cost, is_plain) else { return None };
        Some(Plain { limit, key, cost: *cost, flat: *flat })
    }
}
