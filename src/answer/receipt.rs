use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::call::{CallError, CallId, Drawn, Plain};
use crate::error::Error;
use crate::key::Key;
use crate::limit::{Limit, Storage, name_fault};
use crate::tokens::{Tokens, TokensError};
use crate::values::lean::lean;
use crate::values::text::Text;
use crate::values::timestamp::Timestamp;

/// The charges of a call. Keep it with the job that it pays for, and settle or cancel the call by it.
///
/// A receipt needs no definition: it gives tokens back to the rows that were charged, whatever their limits have
/// become. So a worker of a later release can settle it. Settling consumes the value. A stored receipt could be read
/// twice: take it out of its row in the transaction that settles it (`delete from jobs … returning receipt`), or ask
/// for one that is good for one use ([`Call::tracked_for`](crate::Call::tracked_for),
/// [`Call::lapses_after`](crate::Call::lapses_after)).
///
/// A receipt is no credential: sign one that you hand to a client.
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
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq)]
#[must_use = "a receipt that is dropped can no longer be settled"]
#[non_exhaustive]
pub struct Receipt {
    /// One charge for each row that was charged.
    pub charges: Vec<Charge>,
    /// The stored call that it belongs to, if there is one. Then the receipt is good for one use.
    #[serde(default)]
    pub(crate) call: Option<CallId>,
    /// The earliest instant at which the stored call may be forgotten.
    #[serde(default)]
    pub(crate) lapses_at: Option<Timestamp>,
}

lean!(Receipt { charges } and { call, lapses_at });

impl From<Vec<Charge>> for Receipt {
    fn from(charges: Vec<Charge>) -> Self {
        Self { charges, ..Self::default() }
    }
}

impl Receipt {
    /// Until when it can certainly be settled, if it is good for one use; see
    /// [`Call::lapses_after`](crate::Call::lapses_after).
    #[must_use]
    pub fn lapses_at(&self) -> Option<DateTime<Utc>> {
        self.lapses_at.map(Into::into)
    }

    /// The charges, request by request. One request to a limit with shards may have charged several rows.
    pub fn by_request(&self) -> impl Iterator<Item = &[Charge]> {
        by_request(&self.charges)
    }

    /// The charges of concurrency limits.
    pub(crate) fn leases(&self) -> impl Iterator<Item = &Charge> {
        self.charges.iter().filter(|charge| charge.lease.is_some())
    }

    /// Whether there is something to settle: a charge, or a stored call. Unlimited requests are not charged.
    #[must_use]
    pub fn is_charged(&self) -> bool {
        self.call.is_some() || self.charges.iter().any(|charge| charge.kind != ChargeKind::Free)
    }

    /// The actual cost of each request that is counted; all of them must have been charged the same.
    pub(crate) fn actual_cost(&self, actual: impl TryInto<Tokens, Error: Into<TokensError>>) -> Result<Tokens, Error> {
        let [first, ..] = self.charges.as_slice() else {
            return Err(Error::Call { limit: None, source: CallError::NothingAsked });
        };
        let fault = |source| Error::of_call(&first.limit, source);
        let cost = |charges: &[Charge]| charges.iter().map(|charge| i128::from(charge.cost.micros())).sum::<i128>();
        let mut costs = self.by_request().filter(|charges| charges[0].is_counted()).map(cost);
        let one = costs.next();
        if costs.any(|other| Some(other) != one) {
            return Err(fault(CallError::MixedCosts));
        }
        actual.try_into().map_err(|error| fault(CallError::Cost(error.into())))
    }
}

/// Tokens taken from one row. A charge holds all that is needed to give them back, so no definition is.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq)]
#[non_exhaustive]
pub struct Charge {
    pub(crate) limit: Text,
    /// The key that was charged.
    pub key: Key,
    /// The tokens that were taken.
    pub cost: Tokens,
    pub(crate) ready_at: Timestamp,
    /// The version of the format that a reader must know to settle the charge; 0 for the first.
    #[serde(default)]
    pub(crate) version: u8,
    #[serde(default)]
    pub(crate) storage: Storage,
    /// The number of the row among the limit's rows for the key, from 0.
    #[serde(default)]
    pub shard: u16,
    /// The tokens that earlier charges of the same request took.
    #[serde(default)]
    pub(crate) before: Tokens,
    /// Whether the request stays as charged when the call is settled at one cost; see
    /// [`Request::flat`](crate::Request::flat).
    #[serde(default)]
    pub(crate) flat: bool,
    #[serde(default)]
    pub(crate) kind: ChargeKind,
    /// Until when the row takes the charge back, where that is not `ready_at`. For a lease, its end.
    #[serde(default)]
    pub(crate) until: Option<Timestamp>,
    /// The tokens that come back to the row in each period.
    #[serde(default)]
    pub(crate) refill: Tokens,
    /// The period, in microseconds.
    #[serde(default)]
    pub(crate) period: i64,
    /// The name of the lease in its row.
    #[serde(default)]
    pub(crate) lease: Option<Drawn>,
}

lean!(Charge { limit, key, cost, ready_at }
    and { version, storage, shard, before, flat, kind, until, refill, period, lease });

/// How a row takes a charge back.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ChargeKind {
    #[default]
    Bucket,
    Window,
    Sliding,
    Lease,
    Wallet,
    /// The row was not charged: an override had made the limit unlimited. It settles to nothing, at any actual cost.
    Free,
}

impl Charge {
    /// The name of the limit that was charged.
    #[must_use]
    pub fn limit(&self) -> &str {
        self.limit.as_str()
    }

    /// When all charges of the call may be spent. Cancelling gives tokens back until then.
    #[must_use]
    pub fn ready_at(&self) -> DateTime<Utc> {
        self.ready_at.into()
    }

    /// When the lease ends, if this is a charge of a concurrency limit that holds tokens.
    #[must_use]
    pub fn lease_ends_at(&self) -> Option<DateTime<Utc>> {
        self.lease.and(self.until).map(Into::into)
    }

    /// Whether this release writes such charges.
    pub(crate) fn is_right(&self) -> bool {
        let amounts = [self.cost, self.before, self.refill];
        self.version == 0
            && self.shard < Limit::MAX_SHARDS
            && self.period >= i64::from(matches!(self.kind, ChargeKind::Sliding | ChargeKind::Lease))
            && !amounts.iter().any(|amount| amount.is_negative())
            && name_fault(self.limit()).is_none()
    }

    /// How long a lease lasts after its last renewal.
    pub(crate) fn period(&self) -> Duration {
        Duration::from_micros(self.period.unsigned_abs())
    }

    /// The charge of what a request of its limit and key spends of this one.
    pub(crate) fn spent_from(&self, paid: &Plain<'_>) -> Self {
        // The texts are the request's own. All callers of the key would contend for the reference counts of the
        // charge's texts.
        let Plain { limit, key, cost, flat } = *paid;
        Self { limit: limit.name.clone(), key: key.clone(), cost, flat, ..*self }
    }

    /// Whether a settlement at one cost for all requests counts for its request, too.
    pub(crate) fn is_counted(&self) -> bool {
        !self.flat && !matches!(self.kind, ChargeKind::Lease | ChargeKind::Free)
    }
}

/// The charges of each request. The first charge of a request has no tokens `before` it.
pub(crate) fn by_request(charges: &[Charge]) -> impl Iterator<Item = &[Charge]> {
    charges.chunk_by(|_, next| next.before > Tokens::ZERO)
}
