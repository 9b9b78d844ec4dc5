use std::time::{Duration, SystemTime};

use http::{HeaderMap, StatusCode};

use crate::told::Told;

/// Trouble of another service, and how long it asks its callers to wait.
///
/// [`report`](Self::report) tells all processes, so that they slow down together. An
/// [`OutgoingLayer`](crate::tower::OutgoingLayer) does so for each call.
///
/// # Example
///
/// ```
/// use std::time::{Duration, SystemTime};
///
/// use http::{HeaderMap, StatusCode};
/// use tollgate_http::Trouble;
///
/// let (mut headers, now) = (HeaderMap::new(), SystemTime::now());
/// assert!(Trouble::of(StatusCode::OK, &headers, now).is_none());
/// headers.insert("retry-after", "120".parse()?);
/// let trouble = Trouble::of(StatusCode::TOO_MANY_REQUESTS, &headers, now).ok_or("none")?;
/// assert_eq!(trouble.retry_after, Some(Duration::from_secs(120)));
/// assert_eq!(trouble.at_most(Duration::from_secs(60)).retry_after, Some(Duration::from_secs(60)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct Trouble {
    /// The wait that the answer asks for, in `Retry-After` or as the reset of a limit that has nothing left; at most a
    /// year. `None` if it names none, or one that is not valid.
    pub retry_after: Option<Duration>,
}

impl Trouble {
    /// The trouble that an answer tells of: 429, 503, 529, any other 4xx or 5xx with `Retry-After`, and a 403 that says
    /// that a limit has nothing left. `None` for others, and for what a cache has answered.
    ///
    /// The guide `http.md` has the fields that are read, and their units. An instant is as far away as the answer's
    /// `Date` says. `now` counts where there is none.
    #[must_use]
    pub fn of(status: StatusCode, headers: &HeaderMap, now: SystemTime) -> Option<Self> {
        if !(status.is_client_error() || status.is_server_error()) {
            return None;
        }
        let told = Told::new(headers, now);
        let (retry_after, spent) = (told.retry_after(), told.spent());
        let is_trouble = match status.as_u16() {
            429 | 503 | 529 => true,
            403 if !spent.is_empty() => true,
            _ => told.has_retry_after(),
        };
        // A refusal's `Retry-After` is over all limits.
        let is_whole = status.is_client_error() && retry_after.is_some();
        let reset = spent.into_iter().reduce(|one, other| Some(one?.max(other?))).flatten().filter(|_| !is_whole);
        (is_trouble && !told.is_stored()).then(|| Self { retry_after: retry_after.max(reset) })
    }

    /// Asks callers to wait no longer than so long, as a wrong clock or a wrong unit would.
    #[must_use]
    pub fn at_most(self, longest: Duration) -> Self {
        Self { retry_after: self.retry_after.map(|span| span.min(longest)) }
    }

    /// Slows a limit down for all processes, and [pauses](tollgate::Overrides::pause_as_told) it if the answer asks
    /// callers to wait, for a day at most. The request names the limit and the key, and its cost is the
    /// weight of the report.
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
        if let Some(span) = self.retry_after {
            overrides.pause_as_told(request.clone(), span).await?;
        }
        overrides.slow_down(request, how).await.map(drop)
    }
}
