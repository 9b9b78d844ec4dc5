use std::time::Duration;

use chrono::{DateTime, Utc};
use tollgate::Denied;

/// The seconds of `Retry-After`, at least 1; `None` if no wait helps.
pub(crate) fn retry_after(denied: &Denied) -> Option<u64> {
    denied.retry_after().map(|wait| up(wait).max(1))
}

/// A span between two instants of one clock; zero where they are in the other order.
pub(crate) fn span(from: DateTime<Utc>, to: DateTime<Utc>) -> Duration {
    (to - from).to_std().unwrap_or_default()
}

/// Whole seconds, rounded up, so that a client that waits so long does not come too early.
pub(crate) fn up(span: Duration) -> u64 {
    span.as_secs().saturating_add(u64::from(span.subsec_nanos() > 0))
}
