use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

/// An instant in whole microseconds since the Unix epoch.
///
/// It stays within the range that PostgreSQL and chrono share, from 4714 BC to the year 262142. Arithmetic beyond that
/// saturates.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(from = "i64", into = "i64")]
pub struct Timestamp(i64);

impl Timestamp {
    /// The first instant: the least that PostgreSQL holds, midnight at the start of 24 November 4714 BC.
    pub const MIN: Self = Self(-210_866_803_200_000_000);

    /// The last instant: the greatest whole microsecond that chrono holds.
    pub const MAX: Self = Self(8_210_266_876_799_999_999);

    /// The nearest instant to a count of microseconds since the Unix epoch.
    #[must_use]
    pub const fn from_micros(micros: i64) -> Self {
        if micros < Self::MIN.0 {
            Self::MIN
        } else if micros > Self::MAX.0 {
            Self::MAX
        } else {
            Self(micros)
        }
    }

    /// Microseconds since the Unix epoch.
    #[must_use]
    pub const fn micros(self) -> i64 {
        self.0
    }

    /// The instant so much later, in whole microseconds.
    #[must_use]
    #[allow(clippy::missing_panics_doc, reason = "every duration fits")]
    pub fn plus(self, span: Duration) -> Self {
        let span = i128::try_from(span.as_micros()).expect("a duration has less than 2^84 microseconds");
        Self::saturating(i128::from(self.0) + span)
    }

    /// The instant so many microseconds later.
    pub(crate) fn after(self, micros: i64) -> Self {
        Self::saturating(i128::from(self.0) + i128::from(micros))
    }

    /// The instant for callers; `None` for the end of time, which never comes.
    pub(crate) fn if_ever(self) -> Option<DateTime<Utc>> {
        (self < Self::MAX).then(|| self.into())
    }

    /// The first instant from this one on that is a multiple of a step.
    pub(crate) fn round_up(self, step: i64) -> Self {
        let step = i128::from(step);
        Self::saturating((i128::from(self.0) + step - 1).div_euclid(step) * step)
    }

    /// The nearest instant to an `i128` of microseconds.
    pub(crate) fn saturating(micros: i128) -> Self {
        let clamped = micros.clamp(i128::from(Self::MIN.0), i128::from(Self::MAX.0));
        Self(i64::try_from(clamped).expect("the line above cuts it to the range of i64"))
    }
}

impl From<i64> for Timestamp {
    fn from(micros: i64) -> Self {
        Self::from_micros(micros)
    }
}

impl From<Timestamp> for i64 {
    fn from(Timestamp(micros): Timestamp) -> Self {
        micros
    }
}

impl From<DateTime<Utc>> for Timestamp {
    /// Rounds down to the microsecond.
    fn from(instant: DateTime<Utc>) -> Self {
        Self::from_micros(instant.timestamp_micros())
    }
}

impl From<Timestamp> for DateTime<Utc> {
    fn from(Timestamp(micros): Timestamp) -> Self {
        DateTime::from_timestamp_micros(micros).expect("chrono holds every instant in range")
    }
}
