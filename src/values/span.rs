use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A span of time in the form that people write, in limits files and on command lines: `1h 30m`, `500ms`, `7days`.
///
/// Months and years are errors, because their lengths vary.
///
/// # Example
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Span, SpanError};
///
/// assert_eq!("1h 30m".parse(), Ok(Span(Duration::from_secs(5_400))));
/// assert_eq!(Span(Duration::from_hours(24 * 31)).to_string(), "31days");
/// assert!(matches!("1month".parse::<Span>(), Err(SpanError::Calendar(_))));
/// ```
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Span(pub Duration);

/// Why a text is no span of time.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SpanError {
    /// It names a month or a year.
    #[error(
        "{0:?} is longer in some months and years than in others (write days, or take a monthly or a billing limit)"
    )]
    Calendar(String),
    /// It is written in the form of ISO 8601, such as `PT1M`.
    #[error("{text:?} is a span of ISO 8601 (write \"{span}\")")]
    #[non_exhaustive]
    Iso {
        /// The text.
        text: String,
        /// The same span, in the form that is read here.
        span: Span,
    },
    /// It cannot be read.
    #[error("{text:?} is not a span of time: {reason} (write \"1h 30m\")")]
    #[non_exhaustive]
    Unreadable {
        /// The text.
        text: String,
        /// The fault of the text.
        reason: String,
    },
}

impl FromStr for Span {
    type Err = SpanError;

    fn from_str(text: &str) -> Result<Self, SpanError> {
        match of_iso(text).map(|written| written.parse()) {
            Some(Ok(span)) => return Err(SpanError::Iso { text: text.to_owned(), span }),
            Some(Err(SpanError::Calendar(_))) => return Err(SpanError::Calendar(text.to_owned())),
            _ => {}
        }
        let span = humantime::parse_duration(text).map_err(|error| {
            let reason = match error {
                humantime::DurationError::UnknownUnit { unit, .. } if !unit.is_empty() => {
                    format!("there is no unit {unit:?}")
                }
                other => other.to_string(),
            };
            SpanError::Unreadable { text: text.to_owned(), reason }
        })?;
        let mut units = text.split(|letter: char| !letter.is_ascii_alphabetic());
        if units.any(|unit| OF_CALENDAR.contains(&unit)) {
            return Err(SpanError::Calendar(text.to_owned()));
        }
        Ok(Self(span))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Days are written as days: `humantime` would turn many of them into months of 30.44 days and years of 365.25.
        let (days, seconds) = (self.0.as_secs() / DAY, self.0.as_secs() % DAY);
        let rest = Duration::new(seconds, self.0.subsec_nanos());
        if days > 0 {
            write!(f, "{days}day{}", if days > 1 { "s" } else { "" })?;
        }
        if days == 0 || !rest.is_zero() {
            write!(f, "{}{}", if days > 0 { " " } else { "" }, humantime::format_duration(rest))?;
        }
        Ok(())
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

/// A span of ISO 8601, such as `P1DT12H`, in the form that is read here; `None` for any other text. Only the letters
/// are looked at: parsing numbers with fractions would bring the tables of floats into the core for browsers.
fn of_iso(text: &str) -> Option<String> {
    let lower = text.to_ascii_lowercase();
    let period = lower.strip_prefix('p')?;
    let (date, time) = period.split_once('t').unwrap_or((period, ""));
    let is_of =
        |part: &str, units: &str| part.chars().all(|letter| "0123456789.".contains(letter) || units.contains(letter));
    // The month is the one unit with a capital here, because `m` is a minute.
    (is_of(date, "ymwd") && is_of(time, "hms")).then(|| date.replace('m', "M") + time)
}

/// All that `humantime` reads as 30.44 or 365.25 days.
const OF_CALENDAR: [&str; 8] = ["months", "month", "M", "years", "year", "yr", "yrs", "y"];
const DAY: u64 = 24 * 60 * 60;
