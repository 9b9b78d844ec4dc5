use std::ops::Deref;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::key::Key;
use crate::limit::Limit;
use crate::tokens::Tokens;

/// Where a limit stands after a decision: what it has left for a key, and when there is more.
///
/// It is what a client is told in header fields, see the `http` module.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Standing {
    /// The limit, as it was asked.
    pub limit: Limit,
    /// Whom it applies to.
    pub key: Key,
    /// What the call asked of it: of [`up_to`](crate::Request::up_to) what it got, or after a refusal the least.
    pub cost: Tokens,
    /// What is left: after a grant without what was taken, after a refusal all that is there. Negative for a debt.
    pub remaining: Tokens,
    /// The first microsecond at which one more whole token is there, if nobody spends; `None` where the limit holds no
    /// more.
    ///
    /// For a limit that refused it is no later than the instant from which it would grant.
    pub more_at: Option<DateTime<Utc>>,
}

impl Standing {
    /// The whole tokens that are left; none where there is a debt.
    #[must_use]
    pub fn whole(&self) -> u64 {
        whole(self.remaining)
    }
}

/// Where the limits of one call stand after it, in the order asked: a slice of [`Standing`].
///
/// Empty where nobody knows: in answers that were given without the database, unless they were counted in memory.
pub type Standings = Each<Standing>;

/// What an answer tells of each limit: a slice.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Each<T>(
    #[expect(
        clippy::box_collection,
        reason = "one pointer: with three, `Result<_, Denied>` is as large as clippy warns of"
    )]
    Option<Box<Vec<T>>>,
);

impl<T> Default for Each<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T> Deref for Each<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.0.as_deref().map_or(&[], Vec::as_slice)
    }
}

impl<T> From<Vec<T>> for Each<T> {
    fn from(each: Vec<T>) -> Self {
        Self((!each.is_empty()).then(|| Box::new(each)))
    }
}

impl<T> FromIterator<T> for Each<T> {
    fn from_iter<I: IntoIterator<Item = T>>(each: I) -> Self {
        Vec::from_iter(each).into()
    }
}

impl<T> IntoIterator for Each<T> {
    type Item = T;
    type IntoIter = std::vec::IntoIter<T>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.map_or_else(Vec::new, |each| *each).into_iter()
    }
}

impl<'s, T> IntoIterator for &'s Each<T> {
    type Item = &'s T;
    type IntoIter = std::slice::Iter<'s, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<T: Serialize> Serialize for Each<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (**self).serialize(serializer)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Each<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Vec::deserialize(deserializer).map(Self::from)
    }
}

/// Whole tokens, rounded down; none for a debt.
pub(crate) fn whole(tokens: Tokens) -> u64 {
    u64::try_from(tokens.micros() / Tokens::ONE.micros()).unwrap_or_default()
}
