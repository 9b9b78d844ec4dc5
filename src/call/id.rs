use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::CallError;
use crate::key::Key;
use crate::limit::{LimitFault, name_fault, period_fault, written};
use crate::values::text::Text;

/// The name of a stored call: the limit and the key of one of its requests, and an id.
///
/// The order of names is the order in which they are locked, after all rows of limits.
#[derive(Clone, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
pub struct CallId {
    // The derived order is the lock order: do not move a field.
    #[serde(skip)]
    pub(crate) part: u16,
    #[serde(rename = "limit")]
    pub(crate) name: Text,
    pub(crate) key: Key,
    pub(crate) id: Text,
}

impl CallId {
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

    /// Whether a row can have this name.
    pub(crate) fn is_right(&self) -> bool {
        name_fault(self.name()).is_none() && id_fault(self.id()).is_none()
    }

    /// The id that was given to [`Call::once`](crate::Call::once). Without one, 32 hexadecimal digits: the first
    /// twelve are milliseconds since 1970, the others are random.
    #[must_use]
    pub fn id(&self) -> &str {
        self.id.as_str()
    }
}

/// A name that was drawn at random: for a call without an id from its caller, or for a lease in its row.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub(crate) struct Drawn(pub(crate) u128);

impl fmt::Display for Drawn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// It is written as a string, because not all readers of JSON hold an integer of 128 bits.
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

/// How long a call can be settled after its tokens are ready, and the fate of the tokens after that.
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

    /// The option that says it.
    pub(crate) fn option(self) -> &'static str {
        if self.lapses() { "lapses_after" } else { "tracked_for" }
    }

    pub(crate) fn lapses(self) -> bool {
        matches!(self, Self::LapsesAfter(_))
    }
}

/// The id by which a caller names its call, and the least time for which it is kept, if the caller says one.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) struct Once {
    pub(crate) id: Box<str>,
    #[serde(default, with = "written::optional_span")]
    pub(crate) span: Option<Duration>,
}

impl Once {
    /// The fault of the id, or else of the span.
    pub(super) fn fault(&self) -> Option<CallError> {
        id_fault(&self.id).or(self.span.and_then(span_fault))
    }
}

fn id_fault(id: &str) -> Option<CallError> {
    match id.len() {
        0 => Some(CallError::IdEmpty),
        1..=CallId::MAX_ID_BYTES => id.contains('\0').then_some(CallError::IdNul),
        _ => Some(CallError::IdTooLong),
    }
}

/// The fault of a span for which something is kept.
pub(super) fn span_fault(span: Duration) -> Option<CallError> {
    match period_fault(span)? {
        LimitFault::PeriodZero | LimitFault::PeriodTooLong => Some(CallError::SpanOutOfRange),
        _ => Some(CallError::SpanNotWholeMicros),
    }
}
