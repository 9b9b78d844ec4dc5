use chrono::{DateTime, Utc};

/// An instant in whole microseconds since the Unix epoch.
///
/// It stays within what PostgreSQL and chrono can both hold, from 4714 BC to the year 262142: arithmetic beyond saturates.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
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
    #[cfg(any(feature = "postgres", feature = "simulate"))]
    pub(crate) fn plus(self, span: std::time::Duration) -> Self {
        Self::saturating(i128::from(self.0) + i128::try_from(span.as_micros()).unwrap_or(i128::MAX >> 1))
    }

    /// The nearest instant to a wide result.
    pub(super) fn saturating(micros: i128) -> Self {
        let clamped = micros.clamp(i128::from(Self::MIN.0), i128::from(Self::MAX.0));
        // Clamped into the range of `i64` on the line above, so the fallback is never taken.
        Self(i64::try_from(clamped).unwrap_or(Self::MAX.0))
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
        // Every instant in range is one of chrono's, so the fallback is never taken.
        DateTime::from_timestamp_micros(micros).unwrap_or(DateTime::<Utc>::MAX_UTC)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_range_is_what_both_chrono_and_postgres_hold() {
        assert_eq!(Timestamp::MAX.micros(), DateTime::<Utc>::MAX_UTC.timestamp_micros());
        assert_eq!(DateTime::from(Timestamp::MIN).to_string(), "-4713-11-24 00:00:00 UTC");
        for end in [Timestamp::MIN, Timestamp::MAX] {
            assert_eq!(Timestamp::from(DateTime::from(end)), end);
        }
        assert_eq!(Timestamp::from_micros(i64::MAX), Timestamp::MAX);
        assert_eq!(Timestamp::from_micros(i64::MIN), Timestamp::MIN);
        assert_eq!(Timestamp::from(DateTime::<Utc>::MIN_UTC), Timestamp::MIN);
    }
}
