use super::{Call, Request};
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

impl Call {
    /// Its requests, if it says nothing but them.
    pub(crate) fn plain(&self) -> Option<impl Iterator<Item = &Request>> {
        let Self { once, keeping, fault, .. } = self;
        let is_choice = self.choice().is_some();
        (!is_choice && once.is_none() && keeping.is_none() && fault.is_none()).then(|| self.requests())
    }
}

impl Request {
    /// The cost that it pays at once, if it asks for nothing else.
    pub(crate) fn plain(&self) -> Option<Plain<'_>> {
        let Self { limit, key, cost, least, leaving, flat, period, fault } = self;
        let is_plain = least.is_none() && leaving.is_none() && period.is_none() && fault.is_none();
        (is_plain && !cost.is_negative()).then_some(Plain { limit, key, cost: *cost, flat: *flat })
    }
}
