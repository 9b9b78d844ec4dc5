use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::header::{DATE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use tollgate::{DAY, MINUTE};
use tollgate_http::Trouble;

/// The answer of another service: its status, and then its header fields, each on a line.
///
/// No answer brings a wait beyond a year, or beyond the longest pause. A number in `Retry-After` alone is so many
/// seconds. The clock of this process does not matter where the answer names its own instant.
pub fn trouble(bytes: &[u8]) {
    let mut lines = bytes.split(|byte| *byte == b'\n');
    let status = lines.next().and_then(|line| StatusCode::from_bytes(line).ok());
    let status = status.unwrap_or(StatusCode::TOO_MANY_REQUESTS);
    let mut fields: HeaderMap = lines.filter_map(field).fold(HeaderMap::new(), |mut fields, (name, value)| {
        fields.append(name, value);
        fields
    });
    let read = |fields: &HeaderMap, now: SystemTime| Trouble::of(status, fields, now);
    let now = UNIX_EPOCH + Duration::from_secs(TODAY);
    let trouble = read(&fields, now);
    if let Some(trouble) = trouble {
        assert!(status.is_client_error() || status.is_server_error(), "{status} is no trouble: {fields:?}");
        assert!(trouble.retry_after.is_none_or(|span| span <= 366 * DAY), "{trouble:?} of {fields:?}");
        let bounded = trouble.at_most(5 * MINUTE).retry_after;
        assert_eq!(bounded, trouble.retry_after.map(|span| span.min(5 * MINUTE)));
    }
    if let Some(seconds) = alone(&fields).filter(|_| !matches!(status.as_u16(), ..400 | 600..)) {
        assert_eq!(trouble.and_then(|trouble| trouble.retry_after), Some(seconds), "{fields:?}");
    }
    if !fields.contains_key(DATE) {
        fields.insert(DATE, HeaderValue::from_static("Wed, 01 Jan 2025 00:00:00 GMT"));
        for clock in [UNIX_EPOCH, now + DAY] {
            assert_eq!(read(&fields, clock), trouble, "{fields:?}");
        }
    }
}

/// A header field, if it can be sent.
fn field(line: &[u8]) -> Option<(HeaderName, HeaderValue)> {
    let (name, value) = line.split_at(line.iter().position(|byte| *byte == b':')?);
    Some((HeaderName::from_bytes(name).ok()?, HeaderValue::from_bytes(value[1..].trim_ascii()).ok()?))
}

/// The seconds of `Retry-After`, if it is the only field, and says whole seconds of less than a year.
fn alone(fields: &HeaderMap) -> Option<Duration> {
    let digits = fields.get(RETRY_AFTER).filter(|_| fields.len() == 1)?.to_str().ok()?;
    let is_short = digits.len() < 8 && digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|_| is_short).map(Duration::from_secs)
}

/// The first of January 2025, in seconds since 1970.
const TODAY: u64 = 1_735_689_600;
