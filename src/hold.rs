use std::fmt;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::limit::{LimitFault, period_micros};
use crate::spec::human_duration;

/// What names a hold in its row. Random, so that an old receipt never meets the hold of a later one; no credential, so
/// sign a receipt that you hand to a client.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct HoldId(i64);

impl HoldId {
    /// The id of the low 62 bits of a number; 0 counts as 1.
    #[must_use]
    #[expect(clippy::cast_possible_wrap, reason = "62 bits are no sign")]
    pub const fn new(number: u64) -> Self {
        let bits = (number & Self::MAX) as i64;
        Self(if bits == 0 { 1 } else { bits })
    }

    pub(crate) const fn get(self) -> i64 {
        self.0
    }

    /// Another one, for a row that has a hold of this name.
    pub(crate) fn next(self) -> Self {
        Self::new(self.0.unsigned_abs() + 1)
    }

    const MAX: u64 = (1 << 62) - 1;
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
        let id = text.parse().map(Self::new).map_err(de::Error::custom)?;
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
    LapsesAfter(#[serde(with = "human_duration")] Duration),
    /// They stay spent.
    TrackedFor(#[serde(with = "human_duration")] Duration),
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
        match period_micros(self.span()) {
            Ok(_) => Ok(self),
            Err(LimitFault::PeriodZero) => Err(HoldError::SpanZero),
            Err(LimitFault::PeriodTooLong) => Err(HoldError::SpanTooLong),
            Err(_) => Err(HoldError::SpanNotWholeMicros),
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
