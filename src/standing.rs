use std::ops::Deref;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::algebra::{Pool, State, Terms, Timestamp};
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
    /// What the call asked of it.
    pub cost: Tokens,
    /// What is left: after a grant without what was taken, after a refusal all that is there. Negative for a debt.
    pub remaining: Tokens,
    /// The first microsecond at which one more whole token is there, if nobody spends; `None` where the limit holds no more, and
    /// where one of its shards granted alone.
    ///
    /// For a limit that refused it is no later than the instant at which it would not refuse any longer.
    pub more_at: Option<DateTime<Utc>>,
}

impl Standing {
    pub(crate) fn new(limit: Limit, key: Key, cost: Tokens, remaining: Tokens, more_at: Option<Timestamp>) -> Self {
        Self { limit, key, cost, remaining, more_at: more_at.map(Into::into) }
    }

    /// The same, of a limit that refuses the call until then: that it would not refuse any longer is more as well.
    pub(crate) fn refused_until(mut self, retry_at: Timestamp) -> Self {
        let retry_at = retry_at.into();
        self.more_at = Some(self.more_at.map_or(retry_at, |more_at| more_at.min(retry_at)));
        self
    }

    /// The whole tokens that are left; none where there is a debt.
    #[must_use]
    pub fn whole(&self) -> u64 {
        whole(self.remaining)
    }

    /// The same as if so much had not been charged, or been given back.
    #[cfg(feature = "tower")]
    pub(crate) fn without(&mut self, charge: Tokens) {
        let before = self.remaining.checked_add(charge).unwrap_or(Tokens::MAX).min(self.limit.capacity);
        // The next whole token is the same one, hence there at the same instant, if it is higher up by just the charge.
        let is_same = next_whole(before).checked_sub(next_whole(self.remaining)) == Some(charge);
        self.more_at = self.more_at.filter(|_| is_same && next_whole(before) <= self.limit.capacity);
        self.remaining = before;
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

/// When the next whole token above what is left will be there, as far as a row holds so much.
///
/// `row` is the row as it was read or will be written, and `left` what it holds now.
pub(crate) fn more_at(terms: &Terms, row: State, left: Tokens) -> Option<Timestamp> {
    let more = next_whole(left);
    (more.micros() <= terms.capacity).then(|| terms.first_instant(row, more))
}

/// The same, of rows that share a limit.
pub(crate) fn more_in_pool_at(terms: &Terms, pool: &Pool) -> Option<Timestamp> {
    let more = next_whole(pool.balance());
    (more.micros() <= terms.capacity).then(|| pool.first_instant(more))
}

/// The least whole number of tokens above what is there.
fn next_whole(tokens: Tokens) -> Tokens {
    let floor = tokens.max(Tokens::ZERO).micros() / Tokens::ONE.micros() * Tokens::ONE.micros();
    Tokens::from_micros(floor).checked_add(Tokens::ONE).unwrap_or(Tokens::MAX)
}
