//! What a gate tells the outside of its work: `tracing` events, and with the feature `metrics` counters and histograms.
//! Labels are names of limits and a few words, never keys.
//!
//! | metric | kind | labels |
//! | --- | --- | --- |
//! | `tollgate_decisions_total` | counter | `limit`, `outcome` (`granted`, `denied`, `changed`), `source` (`database`, `repeated`, `memory`, `degraded`) |
//! | `tollgate_errors_total` | counter: calls that the database did not answer, whatever the failure policy made of it | `limit` |
//! | `tollgate_batches_total` | counter | |
//! | `tollgate_batch_calls` | histogram | |
//! | `tollgate_batch_seconds` | histogram | |
//! | `tollgate_locked_calls_total` | counter: calls that were decided under a lock, as they lost a race or their row was new | |

use std::time::Duration;

use crate::decision::Source;
use crate::error::{Error, chain};

/// One call was answered.
pub(super) fn decided(limit: &str, outcome: &'static str, source: Source) {
    let source = match source {
        Source::Database => "database",
        Source::Repeated => "repeated",
        Source::Memory => "memory",
        Source::Degraded => "degraded",
    };
    tracing::debug!(limit, outcome, source, "decided");
    #[cfg(feature = "metrics")]
    metrics::counter!("tollgate_decisions_total", "limit" => limit.to_owned(), "outcome" => outcome, "source" => source)
        .increment(1);
}

/// The database did not answer a call.
pub(super) fn failed(limit: &str, error: &Error) {
    tracing::debug!(limit, error = %chain(error), "not decided");
    #[cfg(feature = "metrics")]
    metrics::counter!("tollgate_errors_total", "limit" => limit.to_owned()).increment(1);
}

/// A batch was worked off.
pub(super) fn batch(calls: usize, took: Duration) {
    tracing::debug!(calls, ?took, "batch");
    #[cfg(feature = "metrics")]
    {
        metrics::counter!("tollgate_batches_total").increment(1);
        #[expect(clippy::cast_precision_loss, reason = "a few hundred")]
        metrics::histogram!("tollgate_batch_calls").record(calls as f64);
        metrics::histogram!("tollgate_batch_seconds").record(took.as_secs_f64());
    }
}

/// Calls of a batch are decided under a lock.
pub(super) fn locked(calls: usize) {
    tracing::debug!(calls, "decided under a lock");
    #[cfg(feature = "metrics")]
    metrics::counter!("tollgate_locked_calls_total").increment(calls as u64);
}
