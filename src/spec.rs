use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::limit::{Grid, Limit, LimitError, LimitFault, Refill, Storage, name_fault, period_micros, whole_micros};
use crate::text::Text;
use crate::tokens::Tokens;

/// A limit as plain data: read it from a file, fill it in at run time, and turn it into a [`Limit`], which checks it.
///
/// Unknown fields are errors, and durations are written as people do (`"1h 30m"`, `"500ms"`, `"7d"`).
///
/// # Example
///
/// ```
/// use tollgate::{Limit, LimitSpec};
///
/// let spec: LimitSpec = serde_json::from_str(
///     r#"{ "name": "uploads", "kind": "stepped_bucket", "rate": 5, "period": "10s", "capacity": 20 }"#,
/// )?;
/// let uploads = Limit::try_from(spec)?;
/// assert_eq!(uploads.name(), "uploads");
///
/// let mut wrong = uploads.spec();
/// wrong.rate = tollgate::Tokens::ZERO;
/// assert_eq!(Limit::try_from(wrong).unwrap_err().to_string(), r#"limit "uploads": the rate must be positive"#);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct LimitSpec {
    /// Identifies the limit: 1 to 255 bytes, no NUL.
    pub name: String,
    /// How tokens come back.
    pub kind: LimitKind,
    /// Tokens that come back in each period, or of a concurrency limit those held at once; positive.
    pub rate: Tokens,
    /// The period, or the lease of a concurrency limit, from one microsecond to a thousand years, in whole
    /// microseconds.
    #[serde(with = "human_duration", alias = "per", alias = "lease")]
    pub period: Duration,
    /// The most that a rested key can spend at once; the rate if not given.
    #[serde(default)]
    pub capacity: Option<Tokens>,
    /// For the stepped kinds: aligns the steps to the Unix epoch plus this offset.
    #[serde(default, with = "human_duration_option")]
    pub start: Option<Duration>,
    /// For a sliding window: in how many steps it slides; as finely as can be if not given.
    #[serde(default)]
    pub resolution: Option<u16>,
    /// How deep reservations may take the balance below zero. [`Tokens::MAX`], in files `"unbounded"`, is no bound.
    #[serde(default, with = "reservation_bound")]
    pub max_reserved: Tokens,
    /// How many rows share the limit for each key; 1 if not given.
    #[serde(default = "one")]
    pub shards: u16,
    /// Which table holds the rows.
    #[serde(default)]
    pub storage: Storage,
}

impl LimitSpec {
    /// A definition with every option at its default.
    pub fn new(name: impl Into<String>, kind: LimitKind, rate: Tokens, period: Duration) -> Self {
        Self {
            name: name.into(),
            kind,
            rate,
            period,
            capacity: None,
            start: None,
            resolution: None,
            max_reserved: Tokens::ZERO,
            shards: 1,
            storage: Storage::Durable,
        }
    }

    fn check(&self) -> Result<Limit, LimitFault> {
        if let Some(fault) = name_fault(&self.name) {
            return Err(fault);
        }
        let period = period_micros(self.period)?;
        let start = self.start.map(|start| whole_micros(start, LimitFault::StartNotWholeMicros)).transpose()?;
        match self.resolution {
            Some(0) => return Err(LimitFault::ResolutionOutOfRange),
            Some(_) if self.kind != LimitKind::SlidingWindow => return Err(LimitFault::ResolutionWithoutSliding),
            _ => {}
        }
        let refill = match (self.kind, start) {
            (LimitKind::SlidingWindow, None) => Refill::Sliding { resolution: self.resolution.unwrap_or(0) },
            (LimitKind::Concurrency, None) => Refill::Leased,
            (LimitKind::SlidingWindow | LimitKind::Concurrency, Some(_)) => return Err(LimitFault::StartOfCounting),
            (LimitKind::TokenBucket, None) => Refill::Continuous,
            (LimitKind::TokenBucket, Some(_)) => return Err(LimitFault::StartOfContinuous),
            (_, Some(start)) => Refill::Stepped(Grid::Start { offset: start % period }),
            (LimitKind::FixedWindow, None) => Refill::Stepped(Grid::Spread),
            (LimitKind::SteppedBucket, None) => Refill::Stepped(Grid::FirstUse),
        };
        let limit = Limit {
            name: Text::from(self.name.clone()),
            rate: self.rate,
            period,
            capacity: self.capacity.unwrap_or(self.rate),
            refill,
            max_reserved: self.max_reserved,
            shards: self.shards,
            storage: self.storage,
        };
        limit.fault().map_or(Ok(limit), Err)
    }
}

impl Limit {
    /// The definition as plain data.
    #[must_use]
    pub fn spec(&self) -> LimitSpec {
        self.clone().into()
    }
}

/// As its [`LimitSpec`].
impl Serialize for Limit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.spec().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Limit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        LimitSpec::deserialize(deserializer)?.try_into().map_err(de::Error::custom)
    }
}

impl TryFrom<LimitSpec> for Limit {
    type Error = LimitError;

    fn try_from(spec: LimitSpec) -> Result<Self, LimitError> {
        spec.check().map_err(|fault| LimitError { name: spec.name, fault })
    }
}

impl From<Limit> for LimitSpec {
    fn from(limit: Limit) -> Self {
        let (kind, start) = match limit.refill {
            Refill::Leased => (LimitKind::Concurrency, None),
            Refill::Sliding { .. } => (LimitKind::SlidingWindow, None),
            Refill::Continuous => (LimitKind::TokenBucket, None),
            Refill::Stepped(Grid::Spread) => (LimitKind::FixedWindow, None),
            Refill::Stepped(Grid::FirstUse) => (LimitKind::SteppedBucket, None),
            // On an aligned grid the two stepped kinds are one.
            Refill::Stepped(Grid::Start { offset }) => (LimitKind::FixedWindow, Some(span(offset))),
        };
        Self {
            name: limit.name.as_str().to_owned(),
            kind,
            rate: limit.rate,
            period: span(limit.period),
            capacity: Some(limit.capacity),
            start,
            resolution: match limit.refill {
                Refill::Sliding { resolution } if resolution > 0 => Some(resolution),
                _ => None,
            },
            max_reserved: limit.max_reserved,
            shards: limit.shards,
            storage: limit.storage,
        }
    }
}

/// How tokens come back; see [`Limit`]'s constructors of the same names.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitKind {
    /// [`Limit::concurrency`].
    Concurrency,
    /// [`Limit::fixed_window`].
    FixedWindow,
    /// [`Limit::sliding_window`].
    SlidingWindow,
    /// [`Limit::stepped_bucket`].
    SteppedBucket,
    /// [`Limit::token_bucket`].
    TokenBucket,
}

impl fmt::Display for LimitKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Concurrency => "concurrency limit",
            Self::FixedWindow => "fixed window",
            Self::SlidingWindow => "sliding window",
            Self::SteppedBucket => "stepped bucket",
            Self::TokenBucket => "token bucket",
        })
    }
}

fn one() -> u16 {
    1
}

/// A valid limit's spans are not negative.
fn span(micros: i64) -> Duration {
    Duration::from_micros(micros.unsigned_abs())
}

pub(crate) mod human_duration {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer, de};

    pub(crate) fn serialize<S: Serializer>(span: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&humantime::format_duration(*span))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        let text = String::deserialize(deserializer)?;
        humantime::parse_duration(&text).map_err(|error| {
            de::Error::custom(format_args!("{error}, in the duration {text:?} (write it as \"1h 30m\")"))
        })
    }
}

mod human_duration_option {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Deserialize, Serialize)]
    struct Human(#[serde(with = "super::human_duration")] Duration);

    #[expect(clippy::ref_option, reason = "the signature that serde's `with` calls")]
    pub(super) fn serialize<S: Serializer>(span: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
        span.map(Human).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<Human>::deserialize(deserializer)?.map(|Human(span)| span))
    }
}

/// `Tokens::MAX` as the word "unbounded", where people read and write it.
mod reservation_bound {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::tokens::Tokens;

    const UNBOUNDED: &str = "unbounded";

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Bound {
        Amount(Tokens),
        Word(String),
    }

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde's `with` calls")]
    pub(super) fn serialize<S: Serializer>(bound: &Tokens, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() && *bound == Tokens::MAX {
            serializer.serialize_str(UNBOUNDED)
        } else {
            bound.serialize(serializer)
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Tokens, D::Error> {
        if !deserializer.is_human_readable() {
            return Tokens::deserialize(deserializer);
        }
        match Bound::deserialize(deserializer)? {
            Bound::Amount(tokens) => Ok(tokens),
            Bound::Word(word) if word == UNBOUNDED => Ok(Tokens::MAX),
            Bound::Word(word) => Err(serde::de::Error::custom(format_args!(
                "max_reserved is {word:?} (write a number of tokens, or {UNBOUNDED:?})"
            ))),
        }
    }
}
