use std::time::Duration;

use chrono::{DateTime, Utc};

/// Whole seconds, rounded up: who waits so long does not come too early.
pub(super) fn up(span: Duration) -> u64 {
    span.as_secs() + u64::from(span.subsec_nanos() > 0)
}

/// The seconds of `Retry-After`: never 0, for that is no wait.
pub(super) fn retry_after(span: Duration) -> u64 {
    up(span).max(1)
}

/// Seconds since the Unix epoch, rounded up.
pub(super) fn since_epoch(instant: DateTime<Utc>) -> i64 {
    instant.timestamp() + i64::from(instant.timestamp_subsec_nanos() > 0)
}
