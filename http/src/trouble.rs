use std::time::{Duration, SystemTime};

use chrono::{DateTime, Utc};
use http::header::{DATE, RETRY_AFTER};
use http::{HeaderMap, StatusCode};

/// An answer of another service that is in trouble: 429 or 503, and how long it asks its callers to wait.
///
/// [`report`](Self::report) tells all processes, so that they slow down together. An
/// [`OutgoingLayer`](crate::tower::OutgoingLayer) does so for each call.
///
/// # Example
///
/// ```
/// use http::{HeaderMap, StatusCode};
/// use tollgate_http::{RetryAfter, Trouble};
///
/// let mut headers = HeaderMap::new();
/// assert!(Trouble::of(StatusCode::OK, &headers).is_none());
/// headers.insert("retry-after", "120".parse()?);
/// let trouble = Trouble::of(StatusCode::TOO_MANY_REQUESTS, &headers).ok_or("none")?;
/// assert_eq!(trouble.retry_after, Some(RetryAfter::Span(std::time::Duration::from_secs(120))));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Trouble {
    /// The wait that `Retry-After` asks for. `None` if there is no such field, or one that is not valid.
    pub retry_after: Option<RetryAfter>,
}

/// The wait of a `Retry-After` field (RFC 9110, section 10.2.3).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RetryAfter {
    /// So long from now: a number of seconds, or an instant less the answer's own `Date`.
    Span(Duration),
    /// Until this instant, of an answer without a `Date`. A wrong clock of the other side counts.
    Instant(DateTime<Utc>),
}

impl Trouble {
    /// The trouble that an answer tells of; `None` for every status but 429 and 503.
    #[must_use]
    pub fn of(status: StatusCode, headers: &HeaderMap) -> Option<Self> {
        let is_trouble = matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
        is_trouble.then(|| Self { retry_after: RetryAfter::of(headers) })
    }

    /// Slows a limit down for all processes, and pauses it if the answer asks callers to wait. The request names the
    /// limit and the key; its cost does not count.
    ///
    /// # Errors
    ///
    /// Those of [`Overrides::slow_down`](tollgate::Overrides::slow_down).
    #[cfg(feature = "tower")]
    pub async fn report(
        self,
        overrides: &tollgate::Overrides,
        request: tollgate::Request,
        how: &tollgate::SlowDown,
    ) -> Result<(), tollgate::OverrideError> {
        match self.retry_after {
            Some(RetryAfter::Span(span)) => drop(overrides.pause_for(request.clone(), span).await?),
            Some(RetryAfter::Instant(at)) => drop(overrides.pause_until(request.clone(), at).await?),
            None => {}
        }
        overrides.slow_down(request, how).await.map(drop)
    }
}

impl RetryAfter {
    fn of(headers: &HeaderMap) -> Option<Self> {
        let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
        if !text.is_empty() && text.bytes().all(|digit| digit.is_ascii_digit()) {
            return Some(Self::Span(Duration::from_secs(text.parse().unwrap_or(u64::MAX))));
        }
        let at = httpdate::parse_http_date(text).ok()?;
        // An instant that has passed asks for no wait.
        let since = |now: SystemTime| Self::Span(at.duration_since(now).unwrap_or_default());
        let now = headers.get(DATE).and_then(|date| httpdate::parse_http_date(date.to_str().ok()?).ok());
        Some(now.map_or_else(|| Self::Instant(at.into()), since))
    }
}
