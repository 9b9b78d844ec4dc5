use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::call_error::CallError;
use crate::call_name::{CallName, Drawn};
use crate::error::Error;
use crate::key::Key;
use crate::lean::lean;
use crate::limit::{Limit, Storage, name_fault};
use crate::request::Plain;
use crate::text::Text;
use crate::timestamp::Timestamp;
use crate::tokens::{Tokens, TokensError};

/// What was taken, and from where: a value to keep with the job that it pays for, and to settle or cancel by.
///
/// A receipt needs no definition: what it gives back, it gives to the rows that were charged, whatever their limits
/// have become. So a worker of a later release can settle it. Settling uses it up by move. A stored receipt could be
/// read twice: take it out of its row in the transaction that settles it (`delete from jobs … returning receipt`), or
/// ask for one that is used once ([`Request::tracked_for`](crate::Request::tracked_for),
/// [`Request::lapses_after`](crate::Request::lapses_after)).
///
/// It is no credential, so sign a receipt that you hand to a client.
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
    /// The stored call that it belongs to, if it does: so it is used once.
    #[serde(default)]
    pub(crate) call: Option<CallName>,
    /// Until when the stored call is there at least.
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
    /// Until when it can be settled for sure, where it is used once; see
    /// [`Request::lapses_after`](crate::Request::lapses_after).
    #[must_use]
    pub fn lapses_at(&self) -> Option<DateTime<Utc>> {
        self.lapses_at.map(Into::into)
    }

    /// The charges, request by request: of a limit with shards, one request may have charged several rows.
    pub fn by_request(&self) -> impl Iterator<Item = &[Charge]> {
        by_request(&self.charges)
    }

    /// The charges of concurrency limits.
    pub(crate) fn leases(&self) -> impl Iterator<Item = &Charge> {
        self.charges.iter().filter(|charge| charge.lease.is_some())
    }

    /// Whether there is something to settle: a charge, or a stored call. What was unlimited was not charged.
    #[must_use]
    pub fn is_charged(&self) -> bool {
        self.call.is_some() || self.charges.iter().any(|charge| charge.kind != ChargeKind::Free)
    }

    /// One actual cost for all requests that are counted, which were all the same.
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

/// Tokens taken from one row. It says all that giving them back needs, and no definition.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq)]
#[non_exhaustive]
pub struct Charge {
    pub(crate) limit: Text,
    /// Whom it was charged to.
    pub key: Key,
    /// How much.
    pub cost: Tokens,
    pub(crate) ready_at: Timestamp,
    /// What its writer knows that this release must know too; 0 for nothing.
    #[serde(default)]
    pub(crate) version: u8,
    #[serde(default)]
    pub(crate) storage: Storage,
    /// Which of the limit's rows, from 0.
    #[serde(default)]
    pub shard: u16,
    /// What earlier charges of its request took.
    #[serde(default)]
    pub(crate) before: Tokens,
    /// Whether one cost for all requests is not that of this one; see [`Request::flat`](crate::Request::flat).
    #[serde(default)]
    pub(crate) flat: bool,
    #[serde(default)]
    pub(crate) kind: ChargeKind,
    /// Until when the row gives back what was charged, where that is not `ready_at`; when a lease ends.
    #[serde(default)]
    pub(crate) until: Option<Timestamp>,
    /// What comes back to the row in each period.
    #[serde(default)]
    pub(crate) refill: Tokens,
    /// In microseconds.
    #[serde(default)]
    pub(crate) period: i64,
    /// Names a lease in its row.
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
    /// Nothing, whatever it is settled at: an operator had said `unlimited`.
    Free,
}

impl Charge {
    /// The name of the limit that was charged.
    #[must_use]
    pub fn limit(&self) -> &str {
        self.limit.as_str()
    }

    /// From when on all that was charged together may be spent; cancelling gives tokens back until then.
    #[must_use]
    pub fn ready_at(&self) -> DateTime<Utc> {
        self.ready_at.into()
    }

    /// When its lease ends, if it is one of a concurrency limit that holds something.
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

    /// Of a lease, how long it lasts from its last renewal on.
    pub(crate) fn period(&self) -> Duration {
        Duration::from_micros(self.period.unsigned_abs())
    }

    /// A part of it, paid by a request of its limit and key.
    pub(crate) fn part(&self, paid: &Plain<'_>) -> Self {
        // The texts are the request's: those of the charge would be counted by all who ask the key at the same time.
        let Plain { limit, key, cost, flat } = *paid;
        let Self { ready_at, version, storage, shard, before, kind, until, refill, period, lease, .. } = *self;
        let (limit, key) = (limit.name.clone(), key.clone());
        Self { limit, key, cost, ready_at, version, storage, shard, before, flat, kind, until, refill, period, lease }
    }

    /// Whether one cost for all requests is that of its request, too.
    pub(crate) fn is_counted(&self) -> bool {
        !self.flat && !matches!(self.kind, ChargeKind::Lease | ChargeKind::Free)
    }
}

/// The charges of each request: its first one comes before nothing.
pub(crate) fn by_request(charges: &[Charge]) -> impl Iterator<Item = &[Charge]> {
    charges.chunk_by(|_, next| next.before > Tokens::ZERO)
}
