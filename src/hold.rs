use std::fmt;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::hash::stable_hash;
use crate::limit::{LimitFault, period_fault, written};
use crate::tokens::Tokens;

/// What names a hold in its row. Random, so that an old receipt never meets the hold of a later one, unless the caller
/// named it by [`Request::once`](crate::Request::once). It is no credential, so sign a receipt that you hand to a
/// client.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct HoldId(i64);

impl HoldId {
    /// The id of the low 61 bits of a number; 0 counts as 1.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self::stored(number & !Self::ONCE)
    }

    /// The id of 62 bits that were stored, of either sort.
    #[expect(clippy::cast_possible_wrap, reason = "62 bits are no sign")]
    pub(crate) const fn stored(bits: u64) -> Self {
        let bits = (bits & Self::MAX) as i64;
        Self(if bits == 0 { 1 } else { bits })
    }

    /// The id of what its caller has named: the top bit, which random ids lack, 48 bits of a hash of the name, and 13
    /// bits for [`asking`](Self::asking). Rows keep it, so every release and platform must compute the same one.
    pub(crate) fn once(name: &str) -> Self {
        Self::stored(Self::ONCE | stable_hash(name.bytes()) >> 16 << Self::PRINT_BITS)
    }

    /// The same, with a fingerprint of what is asked under the name: a cost, and a hold.
    pub(crate) fn asking(self, cost: Tokens, holding: Option<Holding>) -> Self {
        let span = holding.map_or(0, |holding| holding.span().as_micros() << 1 | u128::from(holding.keeps()));
        let asked = cost.micros().to_le_bytes().into_iter().chain(span.to_le_bytes());
        Self::stored(
            self.0.unsigned_abs() >> Self::PRINT_BITS << Self::PRINT_BITS
                | stable_hash(asked) >> (64 - Self::PRINT_BITS),
        )
    }

    pub(crate) fn is_once(self) -> bool {
        self.0.unsigned_abs() & Self::ONCE != 0
    }

    /// Whether both are of one name, whatever was asked under it.
    pub(crate) fn is_namesake(self, other: Self) -> bool {
        self.0 >> Self::PRINT_BITS == other.0 >> Self::PRINT_BITS
    }

    pub(crate) const fn get(self) -> i64 {
        self.0
    }

    /// Another one, for a row that has a hold of this name.
    pub(crate) fn next(self) -> Self {
        Self::new(self.0.unsigned_abs() + 1)
    }

    const MAX: u64 = (1 << 62) - 1;
    const ONCE: u64 = 1 << 61;
    const PRINT_BITS: u32 = 13;
}

impl fmt::Display for HoldId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// As a string: not all readers of JSON hold an integer of 62 bits.
impl Serialize for HoldId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for HoldId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let id = text.parse().map(Self::stored).map_err(de::Error::custom)?;
        if id.to_string() == text { Ok(id) } else { Err(de::Error::custom("no id of a hold")) }
    }
}

/// The hold of a charge: what settling or cancelling it removes from the row, so that it happens once.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Held {
    /// Names the hold in its row.
    pub id: HoldId,
    /// Until when the charge can be settled or cancelled; at this instant it can no longer.
    pub lapses_at: DateTime<Utc>,
}

/// For how long a request keeps a hold, from the instant on at which its tokens are ready, and what then becomes of
/// them.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Holding {
    /// They come back.
    LapsesAfter(#[serde(with = "written::span")] Duration),
    /// They stay spent.
    TrackedFor(#[serde(with = "written::span")] Duration),
}

impl Holding {
    pub(crate) fn span(self) -> Duration {
        let (Self::LapsesAfter(span) | Self::TrackedFor(span)) = self;
        span
    }

    pub(crate) fn keeps(self) -> bool {
        matches!(self, Self::TrackedFor(_))
    }

    /// The same, if its span is right.
    pub(crate) fn checked(self) -> Result<Self, HoldError> {
        match period_fault(self.span()) {
            None => Ok(self),
            Some(LimitFault::PeriodZero) => Err(HoldError::SpanZero),
            Some(LimitFault::PeriodTooLong) => Err(HoldError::SpanTooLong),
            Some(_) => Err(HoldError::SpanNotWholeMicros),
        }
    }
}

/// Why a request can have no hold.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum HoldError {
    /// A concurrency limit is credited or debited: it counts who holds it, and nothing else.
    #[error("a concurrency limit is acquired, released and reset (release what was acquired)")]
    Counted,
    /// Two requests of one call for the same limit and key ask for different holds.
    #[error("two requests for one key ask for different holds (ask for the same, or in two calls)")]
    Conflicting,
    /// The id of [`Request::once`](crate::Request::once) is empty.
    #[error("the id of `once` is empty")]
    IdEmpty,
    /// A request with an id has no hold that could keep it.
    #[error("an id is kept by a hold (say `lapses_after` or `tracked_for`; a credit and a debit have none)")]
    IdWithoutHold,
    /// The limit is a concurrency limit: what it grants lapses at the end of its lease.
    #[error("what a concurrency limit grants lapses at the end of its lease (drop the span, or change the lease)")]
    Leased,
    /// The limit has [shards](crate::Limit::shards): its rows give and take for each other, and hold nothing.
    #[error("a limit with shards keeps no holds (drop one of the two)")]
    Shards,
    /// The span has a fraction of a microsecond.
    #[error("the span is not a whole number of microseconds")]
    SpanNotWholeMicros,
    /// The span is longer than [`Limit::MAX_PERIOD`](crate::Limit::MAX_PERIOD).
    #[error("the span is longer than 1000 years")]
    SpanTooLong,
    /// The span is zero: the hold would be gone when it is made.
    #[error("the span is zero")]
    SpanZero,
}
