use std::ops::Deref;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

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
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Standings(
    #[expect(
        clippy::box_collection,
        reason = "one pointer: with three, `Result<_, Denied>` is as large as clippy warns of"
    )]
    Box<Vec<Standing>>,
);

impl Deref for Standings {
    type Target = [Standing];

    fn deref(&self) -> &[Standing] {
        &self.0
    }
}

impl From<Vec<Standing>> for Standings {
    fn from(standings: Vec<Standing>) -> Self {
        Self(Box::new(standings))
    }
}

impl FromIterator<Standing> for Standings {
    fn from_iter<I: IntoIterator<Item = Standing>>(standings: I) -> Self {
        Vec::from_iter(standings).into()
    }
}

impl IntoIterator for Standings {
    type Item = Standing;
    type IntoIter = std::vec::IntoIter<Standing>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<'s> IntoIterator for &'s Standings {
    type Item = &'s Standing;
    type IntoIter = std::slice::Iter<'s, Standing>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// Whole tokens, rounded down; none for a debt.
pub(crate) fn whole(tokens: Tokens) -> u64 {
    u64::try_from(tokens.micros() / Tokens::ONE.micros()).unwrap_or_default()
}
