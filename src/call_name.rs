use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::key::Key;
use crate::limit::{LimitFault, name_fault, period_fault, written};
use crate::text::Text;

/// What names a stored call: the limit and the key of one of its requests, and an id.
///
/// Names order as they are locked, after all rows of limits.
#[derive(Clone, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
pub struct CallName {
    // The derived order is the lock order: do not move a field.
    #[serde(skip)]
    pub(crate) part: u16,
    #[serde(rename = "limit")]
    pub(crate) name: Text,
    pub(crate) key: Key,
    pub(crate) id: Text,
}

impl CallName {
    /// The longest id, in bytes.
    pub const MAX_ID_BYTES: usize = 255;

    /// The limit's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.name.as_str()
    }

    /// The key.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Whether a row can have it.
    pub(crate) fn is_right(&self) -> bool {
        name_fault(self.name()).is_none() && id_fault(self.id()).is_none()
    }

    /// What [`Request::once`](crate::Request::once) said, or 32 hexadecimal digits: the first
    /// twelve are milliseconds since 1970, the others random.
    #[must_use]
    pub fn id(&self) -> &str {
        self.id.as_str()
    }
}

/// A name that was drawn: of a call without an id of its caller's, or of a lease in its row.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub(crate) struct Drawn(pub(crate) u128);

impl fmt::Display for Drawn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// As a string: not all readers of JSON hold an integer of 128 bits.
impl Serialize for Drawn {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Drawn {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        u128::from_str_radix(&text, 16).map(Self).map_err(de::Error::custom)
    }
}

/// For how long a call can be settled, from the instant on at which its tokens are ready, and what then becomes of
/// them.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Keeping {
    /// They come back.
    LapsesAfter(#[serde(with = "written::span")] Duration),
    /// They stay spent.
    TrackedFor(#[serde(with = "written::span")] Duration),
}

impl Keeping {
    pub(crate) fn span(self) -> Duration {
        let (Self::LapsesAfter(span) | Self::TrackedFor(span)) = self;
        span
    }

    pub(crate) fn lapses(self) -> bool {
        matches!(self, Self::LapsesAfter(_))
    }
}

/// What names a call to its caller, and for how long at least.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) struct Once {
    pub(crate) id: Box<str>,
    #[serde(with = "written::span")]
    pub(crate) span: Duration,
}

impl Once {
    /// The same, if it is right.
    pub(crate) fn checked(self) -> Result<Self, CallError> {
        match id_fault(&self.id) {
            Some(fault) => Err(fault),
            None => checked_span(self.span).map(|_| self),
        }
    }
}

fn id_fault(id: &str) -> Option<CallError> {
    match id.len() {
        0 => Some(CallError::IdEmpty),
        1..=CallName::MAX_ID_BYTES => id.contains('\0').then_some(CallError::IdNul),
        _ => Some(CallError::IdTooLong),
    }
}

/// A span for which something is kept, if it is right.
pub(crate) fn checked_span(span: Duration) -> Result<Duration, CallError> {
    match period_fault(span) {
        None => Ok(span),
        Some(LimitFault::PeriodZero) => Err(CallError::SpanZero),
        Some(LimitFault::PeriodTooLong) => Err(CallError::SpanTooLong),
        Some(_) => Err(CallError::SpanNotWholeMicros),
    }
}

/// Why a request cannot be stored, or not be part of its call.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// What [`first_of`](crate::first_of) made is not asked as it was made: alternatives lie in alternatives, one has
    /// no requests, or others are asked beside them.
    #[error("alternatives are a call of their own, and none is empty (give a verb what `first_of` made, and no more)")]
    Alternatives,
    /// A concurrency limit is credited or debited: it counts who holds it, and nothing else.
    #[error("a concurrency limit is acquired, released and reset (release what was acquired)")]
    Counted,
    /// Two requests of one call ask for different spans, or two for one limit and key differ in being flat.
    #[error("two requests of one call are to be kept in different ways (say one span in a call, or ask two calls)")]
    Conflicting,
    /// The id of [`Request::once`](crate::Request::once) is empty.
    #[error("the id of `once` is empty")]
    IdEmpty,
    /// The id has a NUL character, which PostgreSQL holds in no text.
    #[error("the id of `once` contains a NUL character")]
    IdNul,
    /// The id is longer than [`CallName::MAX_ID_BYTES`].
    #[error("the id of `once` is longer than 255 bytes (hash it)")]
    IdTooLong,
    /// The least part of [`Request::up_to`](crate::Request::up_to) is nothing, or more than the cost.
    #[error("`up_to` asks for nothing, or for more than the cost (say from 1 up to the cost)")]
    Least,
    /// The limit is a concurrency limit: what it grants lapses at the end of its lease.
    #[error("what a concurrency limit grants lapses at the end of its lease (drop the span, or change the lease)")]
    Leased,
    /// [`up_to`](crate::Request::up_to), [`leaving`](crate::Request::leaving), [`first_of`](crate::first_of) or
    /// [`split`](crate::split) in a call that takes what is not there, or a [`shadow`](crate::Request::shadow) where
    /// nothing is refused.
    #[error(
        "`up_to`, `leaving`, `first_of`, `split` and `shadow` are of calls that may be refused (consume, but shadow)"
    )]
    NotConsumed,
    /// An alternative of [`first_of`](crate::first_of) only tries limits out: it would always be granted.
    #[error("an alternative of shadows alone is granted always (give it a limit that may refuse)")]
    OnlyShadows,
    /// Two requests of one call say [`up_to`](crate::Request::up_to) and ask for different costs or different parts.
    #[error("two requests of one call take parts of different costs (give them one cost and one `up_to`)")]
    PartsDiffer,
    /// A [`period`](crate::Request::period) that ends before it starts, is shorter than a second or longer than
    /// [`Limit::MAX_PERIOD`](crate::Limit::MAX_PERIOD), or is not of a fixed window or a stepped bucket.
    #[error("a period is named of fixed windows and stepped buckets, and lasts from a second to 1000 years")]
    Period,
    /// The span has a fraction of a microsecond.
    #[error("the span is not a whole number of microseconds")]
    SpanNotWholeMicros,
    /// The span is longer than [`Limit::MAX_PERIOD`](crate::Limit::MAX_PERIOD).
    #[error("the span is longer than 1000 years")]
    SpanTooLong,
    /// The span is zero.
    #[error("the span is zero")]
    SpanZero,
    /// A [`split`](crate::split) asks nothing, a limit and key that its call asks already, or a concurrency limit,
    /// takes a part, tries out, lies in another, or is not asked as it was made.
    #[error("a split asks one limit or more, each key once, none of leases, and says neither `up_to` nor `shadow`")]
    Split,
    /// Two requests of one call have an id.
    #[error("two requests of one call have an id (say `once` in one of them: it counts for the whole call)")]
    TwoIds,
    /// A credit or a debit is to be settled: neither gives a receipt.
    #[error("a credit and a debit give no receipt that could lapse (drop the span; `once_for` keeps an id)")]
    WithoutReceipt,
}
