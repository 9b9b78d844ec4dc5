use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::hold::Held;
use crate::key::Key;
use crate::limit::Limit;
use crate::tokens::Tokens;
#[cfg(feature = "postgres")]
use crate::{error::Error, tokens::TokensError};

/// What was taken, and from where: a value to keep with the job that it pays for, and to settle or cancel by.
///
/// A receipt holds the definitions that it was charged under, so a worker of a later release can settle it. Settling
/// uses it up by move. A stored receipt could be read twice: take it out of its row in the transaction that settles it
/// (`delete from jobs … returning receipt`), or ask for one that is used once
/// ([`Request::tracked_for`](crate::Request::tracked_for), [`Request::lapses_after`](crate::Request::lapses_after)).
///
/// # Example
///
/// ```
/// # fn example(grant: tollgate::Grant) -> Result<(), serde_json::Error> {
/// let receipt = tollgate::Receipt::from(grant);
/// let stored: String = serde_json::to_string(&receipt)?;
/// let later: tollgate::Receipt = serde_json::from_str(&stored)?;
/// assert_eq!(later, receipt);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[must_use = "a receipt that is dropped can no longer be settled"]
#[non_exhaustive]
pub struct Receipt {
    /// One charge for each row that was charged.
    pub charges: Vec<Charge>,
}

impl From<Vec<Charge>> for Receipt {
    fn from(charges: Vec<Charge>) -> Self {
        Self { charges }
    }
}

impl Receipt {
    /// One receipt for each limit, for those whose true costs differ.
    pub fn split(self) -> impl Iterator<Item = Self> {
        let receipts: Vec<_> = self.by_request().map(|charges| Self { charges: charges.to_vec() }).collect();
        receipts.into_iter()
    }

    /// The charges, request by request: of a limit with shards, one request may have charged several.
    pub(crate) fn by_request(&self) -> impl Iterator<Item = &[Charge]> {
        self.charges.chunk_by(Charge::is_of_one_request)
    }

    /// The charges of concurrency limits.
    pub(crate) fn leases(&self) -> impl Iterator<Item = (&Charge, Held)> {
        let leases = self.charges.iter().filter(|charge| charge.limit.lease().is_some());
        leases.filter_map(|charge| Some((charge, charge.hold?)))
    }

    /// One actual cost for requests that were all the same.
    #[cfg(feature = "postgres")]
    pub(crate) fn actual_cost(&self, actual: impl TryInto<Tokens, Error: Into<TokensError>>) -> Result<Tokens, Error> {
        let [first, ..] = self.charges.as_slice() else { return Err(Error::NothingAsked) };
        let cost = |charges: &[Charge]| charges.iter().map(|charge| i128::from(charge.cost.micros())).sum::<i128>();
        let mut costs = self.by_request().map(cost);
        let one = costs.next();
        if costs.any(|other| Some(other) != one) {
            return Err(Error::MixedCosts);
        }
        actual.try_into().map_err(|error| Error::Cost { limit: first.limit.name.clone().into(), source: error.into() })
    }
}

/// Tokens taken from one row.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Charge {
    /// The definition that was charged.
    pub limit: Limit,
    /// Whom it was charged to.
    pub key: Key,
    /// Which of the limit's rows, from 0.
    pub shard: u16,
    /// How much.
    pub cost: Tokens,
    /// From when on all that was charged together may be spent; cancelling gives tokens back until then.
    pub ready_at: DateTime<Utc>,
    /// What using the receipt removes from the row, if the request asked for it; see
    /// [`Request::tracked_for`](crate::Request::tracked_for).
    #[serde(default)]
    pub hold: Option<Held>,
}

impl Charge {
    /// Whether both belong to one request.
    fn is_of_one_request(&self, other: &Self) -> bool {
        self.limit.shards > 1 && self.limit == other.limit && self.key == other.key
    }
}
