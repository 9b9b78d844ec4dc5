//! How far the instants are that header fields name. Servers write them in many units, and the size tells which.
//!
//! The mirror reads the same (`web/ts/spans.ts`), and `web/tests/troubles.json` has cases for both.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use chrono::DateTime;

/// The span until the latest of the instants that a field lists; `None` if one of them is wrong, or beyond a year.
///
/// Each is a number, a duration (`6m0s`, `20ms`), an HTTP-date, or a date and time of ISO 8601 with its zone. A
/// negative number counts for nothing.
pub(crate) fn span_of(field: &str, now: SystemTime) -> Option<Duration> {
    let (mut latest, mut members) = (None, field.split(',').map(str::trim));
    while let Some(member) = members.next() {
        let is_day = !member.is_empty() && member.bytes().all(|byte| byte.is_ascii_alphabetic());
        // The comma after the day of a date does not end it.
        let dated = if is_day { format!("{member}, {}", members.next()?) } else { member.to_owned() };
        if dated.strip_prefix('-').and_then(number).is_none() {
            latest = latest.max(Some(until(&dated, now)?));
        }
    }
    latest
}

/// A number of up to a year's seconds is a span. A larger one is an instant: its size tells the unit since 1970.
pub(crate) fn span_of_number(number: f64, now: SystemTime) -> Option<Duration> {
    if number <= YEAR {
        return (number >= 0.0).then(|| Duration::from_secs_f64(number));
    }
    // For three thousand years on, milliseconds have more digits than seconds, and so on.
    let unit = [1.0, 1e3, 1e6].into_iter().find(|unit| number < 1e11 * unit).unwrap_or(1e9);
    within(number / unit - since_1970(now))
}

/// A number as digits, with a fraction or without.
pub(crate) fn number(text: &str) -> Option<f64> {
    let is_digit = |c: char| c.is_ascii_digit();
    let is_number = text.starts_with(is_digit) && text.ends_with(is_digit);
    let is_number = is_number && text.chars().all(|c| c == '.' || is_digit(c));
    text.parse().ok().filter(|_| is_number)
}

/// The instant of an HTTP-date.
pub(crate) fn date(text: &str) -> Option<SystemTime> {
    httpdate::parse_http_date(text.trim()).ok()
}

fn until(member: &str, now: SystemTime) -> Option<Duration> {
    if let Some(number) = number(member) {
        return span_of_number(number, now);
    }
    if let Some(seconds) = seconds_of(member) {
        return within(seconds);
    }
    let instant = date(member).or_else(|| iso(member))?;
    within(since_1970(instant) - since_1970(now))
}

/// An instant that is over is now. One that is far away comes from a wrong clock, or is in no unit of these.
fn within(seconds: f64) -> Option<Duration> {
    (seconds.abs() <= YEAR).then(|| Duration::from_secs_f64(seconds.max(0.0)))
}

/// The seconds of a duration.
fn seconds_of(duration: &str) -> Option<f64> {
    let (mut seconds, mut rest) = (0.0, duration);
    loop {
        let (count, after) = rest.split_at(rest.find(|c: char| c != '.' && !c.is_ascii_digit())?);
        let (unit, next) = after.split_at(after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len()));
        seconds += number(count)? * UNITS.iter().find(|(name, _)| *name == unit)?.1;
        if next.is_empty() {
            return Some(seconds);
        }
        rest = next;
    }
}

/// Without its zone nobody knows when that is.
fn iso(text: &str) -> Option<SystemTime> {
    let text = text.replace(" UTC", "Z").replace("UTC", "Z").replace('T', " ");
    let has_form = ISO.chars().zip(text.chars()).all(|(form, c)| form == c || form == '0' && c.is_ascii_digit());
    DateTime::parse_from_str(&text, "%Y-%m-%d %H:%M:%S%.f%#z").ok().filter(|_| has_form).map(SystemTime::from)
}

fn since_1970(at: SystemTime) -> f64 {
    at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// No wait that a caller can sit out is longer.
const YEAR: f64 = 366.0 * 86_400.0;
/// The parser of `chrono` would also take fewer digits.
const ISO: &str = "0000-00-00 00:00:00";
/// In seconds. The sign of micro is a byte of Latin-1.
const UNITS: [(&str, f64); 8] = [
    ("ms", 1e-3),
    ("us", 1e-6),
    ("\u{b5}s", 1e-6),
    ("ns", 1e-9),
    ("d", 86_400.0),
    ("h", 3_600.0),
    ("m", 60.0),
    ("s", 1.0),
];
