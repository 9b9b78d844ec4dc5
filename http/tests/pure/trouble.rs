//! Answers of other services that ask their callers to slow down.

use std::time::Duration;

use chrono::{DateTime, TimeZone, Utc};
use http::{HeaderMap, HeaderValue, StatusCode};
use tollgate_http::{RetryAfter, Trouble};

fn retry_after(fields: &[(&'static str, &str)]) -> Option<RetryAfter> {
    let fields = fields.iter().map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_str(value).unwrap()));
    Trouble::of(StatusCode::TOO_MANY_REQUESTS, &fields.collect()).unwrap().retry_after
}

const fn span(seconds: u64) -> RetryAfter {
    RetryAfter::Span(Duration::from_secs(seconds))
}

#[test]
fn two_statuses_are_trouble() {
    let trouble =
        (100..600).filter(|status| Trouble::of(StatusCode::from_u16(*status).unwrap(), &HeaderMap::new()).is_some());
    assert_eq!(trouble.collect::<Vec<_>>(), [429, 503]);
}

#[test]
fn retry_after_is_seconds_or_a_date() {
    const NEXT: &str = "Wed, 21 Oct 2026 07:28:10 GMT";
    let next: DateTime<Utc> = Utc.with_ymd_and_hms(2026, 10, 21, 7, 28, 10).unwrap();
    assert_eq!(retry_after(&[]), None);
    assert_eq!(retry_after(&[("retry-after", "0")]), Some(span(0)));
    assert_eq!(retry_after(&[("retry-after", " 120 ")]), Some(span(120)));
    assert_eq!(retry_after(&[("retry-after", "99999999999999999999999")]), Some(span(u64::MAX)));
    assert_eq!(retry_after(&[("retry-after", NEXT)]), Some(RetryAfter::Instant(next)));
    // The clock of whoever answers does not matter where it says what time it is.
    let date = |date| retry_after(&[("retry-after", NEXT), ("date", date)]);
    assert_eq!(date("Wed, 21 Oct 2026 07:27:40 GMT"), Some(span(30)));
    assert_eq!(date("Wed, 21 Oct 2026 08:00:00 GMT"), Some(span(0)));
    assert_eq!(date("yesterday"), Some(RetryAfter::Instant(next)));
    for none in ["", "soon", "-1", "1.5", "+5", "1e3", "٣"] {
        let value = HeaderValue::from_bytes(none.as_bytes()).unwrap();
        let headers = HeaderMap::from_iter([("retry-after".parse().unwrap(), value)]);
        let trouble = Trouble::of(StatusCode::SERVICE_UNAVAILABLE, &headers).unwrap();
        assert_eq!(trouble.retry_after, None, "{none:?}");
    }
}
