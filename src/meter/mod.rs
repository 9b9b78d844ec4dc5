//! Reports decisions: `tracing` events, and with the feature `metrics` counters and histograms. Labels are names of
//! limits and a few words, never keys.

mod failures;

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use crate::answer::decision::{Denied, Reason, Source};
use crate::answer::standing::Standing;
use crate::error::{Error, chain};
use crate::tokens::Tokens;
use crate::values::timestamp::Timestamp;
use failures::Failures;

/// The part of the library that decides.
#[derive(Clone, Copy)]
pub(crate) enum By {
    Limiter,
    Gate,
}

impl By {
    fn as_str(self) -> &'static str {
        match self {
            Self::Limiter => "limiter",
            Self::Gate => "gate",
        }
    }
}

/// A call whose first limit is this one was granted.
pub(crate) fn granted(by: By, limit: &str, source: Source, standings: &[Standing]) {
    answered(by, limit, limit, "granted", source, None);
    #[cfg(feature = "metrics")]
    {
        let asked = standings.iter().map(|standing| standing.limit.name());
        // Where no limit says where it stands, the first one counts.
        let first = Some(limit).filter(|_| standings.is_empty());
        asked.chain(first).for_each(|limit| count(by, limit, "granted", source, "", 1));
    }
    #[cfg(not(feature = "metrics"))]
    let _ = standings;
}

/// A call whose first limit is this one was refused.
pub(crate) fn refused(by: By, limit: &str, denied: &Denied) {
    answered(by, limit, &denied.limit, "denied", denied.source, Some(of(denied.reason)));
    #[cfg(feature = "metrics")]
    {
        let first = (&*denied.limit, &denied.key, denied.reason);
        let others = denied.others.iter().map(|other| (&*other.limit, &other.key, other.reason));
        let refusals: Vec<_> = std::iter::once(first).chain(others).collect();
        for (limit, _, reason) in &refusals {
            count(by, limit, "denied", denied.source, of(*reason), 1);
        }
        let refuses = |asked: &Standing| {
            refusals.iter().any(|(limit, key, _)| (*limit, *key) == (asked.limit.name(), &asked.key))
        };
        for asked in denied.standings.iter().filter(|asked| !refuses(asked)) {
            count(by, asked.limit.name(), "untouched", denied.source, "", 1);
        }
    }
}

/// A call changed a balance or looked at it, or settled charges.
pub(crate) fn changed(by: By, limit: &str, source: Source) {
    answered(by, limit, limit, "changed", source, None);
}

/// Logs an answer under the limit that gave it, and counts it under the first limit of the call.
fn answered(by: By, first: &str, limit: &str, outcome: &'static str, source: Source, reason: Option<&'static str>) {
    let (by, source) = (by.as_str(), word(source));
    tracing::debug!(by, limit, outcome, source, reason, "decided");
    #[cfg(feature = "metrics")]
    count_calls(by, first, outcome, source, 1);
    #[cfg(not(feature = "metrics"))]
    let _ = first;
}

fn of(reason: Reason) -> &'static str {
    match reason {
        Reason::Short => "short",
        Reason::HeldBack => "held_back",
        Reason::Leased => "leased",
        Reason::OutOfTurn => "out_of_turn",
        Reason::Override => "override",
        Reason::Paused => "paused",
    }
}

fn word(source: Source) -> &'static str {
    match source {
        Source::Database => "database",
        Source::Repeated => "repeated",
        Source::Memory => "memory",
        Source::Prefetched => "prefetched",
        Source::Degraded => "degraded",
        Source::Override => "override",
    }
}

#[cfg(feature = "metrics")]
fn count_calls(by: &'static str, limit: &str, outcome: &'static str, source: &'static str, calls: u64) {
    let limit = limit.to_owned();
    metrics::counter!(CALLS, "by" => by, "limit" => limit, "outcome" => outcome, "source" => source).increment(calls);
}

#[cfg(feature = "metrics")]
fn count(by: By, limit: &str, outcome: &'static str, source: Source, reason: &'static str, decisions: u64) {
    metrics::counter!(
        DECISIONS, "by" => by.as_str(), "limit" => limit.to_owned(), "outcome" => outcome, "source" => word(source),
        "reason" => reason
    )
    .increment(decisions);
}

/// A call asked a limit to which an override applies.
pub(crate) fn overridden(limit: &str, label: &str) {
    tracing::trace!(limit, label, "overridden");
    #[cfg(feature = "metrics")]
    metrics::counter!(OVERRIDDEN, "limit" => limit.to_owned(), "label" => label.to_owned()).increment(1);
}

/// Slow-downs leave a key of a limit this share of its rate.
pub(crate) fn rate_share(limit: &str, millionths: u32) {
    tracing::trace!(limit, millionths, "share of the rate");
    #[cfg(feature = "metrics")]
    metrics::gauge!(RATE_SHARE, "limit" => limit.to_owned()).set(f64::from(millionths) / 1e6);
}

/// Tokens were taken for calls to come.
pub(crate) fn taken_ahead(limit: &str, tokens: Tokens) {
    tracing::debug!(limit, %tokens, "taken ahead");
    #[cfg(feature = "metrics")]
    metrics::gauge!(PREFETCHED, "limit" => limit.to_owned()).increment(shown(tokens));
}

/// The rest of a slice that was taken ahead has left memory. So many requests were granted from the slice, and of these
/// so many were the first ones of their calls.
pub(crate) fn slice_ended(limit: &str, tokens: Tokens, granted: u32, calls: u32) {
    tracing::debug!(limit, %tokens, granted, calls, "no longer ahead");
    #[cfg(feature = "metrics")]
    {
        metrics::gauge!(PREFETCHED, "limit" => limit.to_owned()).decrement(shown(tokens));
        count(By::Gate, limit, "granted", Source::Prefetched, "", granted.into());
        count_calls(By::Gate.as_str(), limit, "granted", word(Source::Prefetched), calls.into());
    }
}

/// Tokens as a gauge shows them.
#[cfg(feature = "metrics")]
#[expect(clippy::cast_precision_loss, reason = "for a picture")]
fn shown(tokens: Tokens) -> f64 {
    tokens.micros() as f64 / 1e6
}

/// The database did not answer a call.
pub(crate) fn failed(by: By, limit: &str, error: &Error) {
    log(by, limit, error);
    #[cfg(feature = "metrics")]
    metrics::counter!(ERRORS, "by" => by.as_str(), "limit" => limit.to_owned()).increment(1);
}

/// A call is wrong, and was not asked.
pub(crate) fn wrong(by: By, error: &Error) {
    log(by, error.limit().unwrap_or_default(), error);
}

/// Logs each kind of error once a minute, so that an operator sees it even where nobody logs what a call returns.
#[expect(clippy::disallowed_methods, reason = "the monotonic clock spaces lines of a log; no decision depends on it")]
fn log(by: By, limit: &str, error: &Error) {
    static FAILURES: LazyLock<Failures> = LazyLock::new(Failures::default);
    let (by, code) = (by.as_str(), error.sqlstate());
    let code = code.as_deref();
    if let Some(others) = FAILURES.note(error, Instant::now()) {
        tracing::warn!(by, limit, code, others, error = %chain(error), "a call failed");
    } else {
        tracing::debug!(by, limit, code, error = %chain(error), "a call failed");
    }
}

/// A caller of a gate waited for an answer of the database.
pub(crate) fn waited(wait: Duration) {
    tracing::trace!(?wait, "waited");
    #[cfg(feature = "metrics")]
    metrics::histogram!(WAIT).record(wait.as_secs_f64());
}

/// A batch is taken, and so many calls stay in the queue.
pub(crate) fn queued(calls: usize) {
    tracing::trace!(calls, "queued");
    #[cfg(feature = "metrics")]
    #[expect(clippy::cast_precision_loss, reason = "a few thousand")]
    metrics::histogram!(QUEUE).record(calls as f64);
}

/// A batch was worked off.
pub(crate) fn batch(calls: usize, took: Duration) {
    tracing::debug!(calls, ?took, "batch");
    #[cfg(feature = "metrics")]
    {
        metrics::counter!(BATCHES).increment(1);
        #[expect(clippy::cast_precision_loss, reason = "a few hundred")]
        metrics::histogram!(BATCH_CALLS).record(calls as f64);
        metrics::histogram!(BATCH).record(took.as_secs_f64());
    }
}

/// Calls of a batch are decided under a lock.
pub(crate) fn locked(calls: usize) {
    tracing::debug!(calls, "decided under a lock");
    #[cfg(feature = "metrics")]
    metrics::counter!(LOCKED).increment(calls as u64);
}

/// Rows of a table were swept away.
pub(crate) fn swept(ephemeral: u64, durable: u64) {
    tracing::trace!(ephemeral, durable, "swept rows");
    #[cfg(feature = "metrics")]
    for (table, rows) in [("ephemeral", ephemeral), ("durable", durable)] {
        metrics::counter!(SWEPT, "table" => table).increment(rows);
    }
}

/// A task sweeps from now on. Its counter begins here, so that a rule sees one that stays at zero.
pub(crate) fn sweeping() {
    #[cfg(feature = "metrics")]
    metrics::counter!(SWEEPS).increment(0);
}

/// A pass of a sweeper has reached the end of the tables.
pub(crate) fn swept_all() {
    #[cfg(feature = "metrics")]
    metrics::counter!(SWEEPS).increment(1);
}

/// A look has left so many lapsed calls whose charges could not be given back.
pub(crate) fn lapsed_left(calls: u64) {
    tracing::trace!(calls, "lapsed calls are left");
    #[cfg(feature = "metrics")]
    #[expect(clippy::cast_precision_loss, reason = "for a picture")]
    metrics::gauge!(LAPSED).set(calls as f64);
}

/// Overrides were read, at this instant of the database's clock.
pub(crate) fn overrides_read(at: Timestamp) {
    tracing::trace!(at = at.micros(), "overrides read");
    #[cfg(feature = "metrics")]
    #[expect(clippy::cast_precision_loss, reason = "for a picture")]
    metrics::gauge!(OVERRIDES_READ).set(at.micros() as f64 / 1e6);
}

/// Describes the metrics of this crate, with their units, to the installed recorder, and sets two gauges to the numbers
/// of each of these limits. So a board can show how much of a limit is used.
///
/// Call it once, after the recorder is installed, and again where limits change.
///
/// | metric | kind | labels |
/// | --- | --- | --- |
/// | `tollgate_calls_total` | counter: answered calls, under their first limit | `by`, `limit`, `outcome`, `source` |
/// | `tollgate_decisions_total` | counter: answers of each limit asked | `by`, `limit`, `outcome`, `source`, `reason` |
/// | `tollgate_overridden_total` | counter: calls of a limit under an [override](crate::Overrides) | `limit`, `label` |
/// | `tollgate_overrides_read_timestamp_seconds` | gauge: when [overrides](crate::Overrides::watch) were last read | |
/// | `tollgate_rate_share` | gauge: the least share of a key's rate after [slow-downs](crate::SlowDown) | `limit` |
/// | `tollgate_errors_total` | counter: calls that the database did not answer | `by`, `limit` |
/// | `tollgate_wait_seconds` | histogram: from a gate's call to the answer of the database | |
/// | `tollgate_queue_calls` | histogram: calls that stay in a gate's queue as a batch is taken | |
/// | `tollgate_batches_total` | counter | |
/// | `tollgate_batch_calls` | histogram | |
/// | `tollgate_batch_seconds` | histogram | |
/// | `tollgate_locked_calls_total` | counter: a gate's calls that were decided under a lock | |
/// | `tollgate_prefetched_tokens` | gauge: tokens [taken ahead](crate::GateBuilder::prefetch), as charged | `limit` |
/// | `tollgate_swept_rows_total` | counter | `table` (`ephemeral`, `durable`) |
/// | `tollgate_sweeps_total` | counter: passes of [tasks](crate::Sweeper::spawn) that reached the end of the tables | |
/// | `tollgate_lapsed_left` | gauge: lapsed calls that the last whole look could not give back; 1 if it failed | |
/// | `tollgate_limit_capacity_tokens` | gauge: the most that a limit holds for a key | `limit` |
/// | `tollgate_limit_rate_tokens` | gauge: what comes back to a key in a second | `limit` |
///
/// `by` is `gate` or `limiter`; `source` is `database`, `repeated`, `memory`, `prefetched`, `degraded` or `override`;
/// `reason` is the reason of a refusal (`short`, `held_back`, `leased`, `out_of_turn`, `override`, `paused`), else
/// empty. The `outcome` of a call is `granted`, `denied`, or `changed` for all verbs that ask no tokens, such as
/// `settle`. The `outcome` of a limit is `granted`, `denied`, or `untouched` where another limit refused the call.
/// After a refusal from memory, or by an override, only the limits that refused are counted. Of a `first_of`, the
/// limits of the alternative that was taken are counted.
///
/// A limiter counts its answers, whether its caller commits or not. Errors are counted even if the failure policy
/// answers the call. A gate decides under a lock when a call has lost a race or its row is new. It counts its grants
/// from a slice of tokens taken ahead when the slice ends.
///
/// # Example
///
/// ```
/// use tollgate::{Limit, MINUTE};
///
/// const SIGN_UPS: Limit = Limit::token_bucket("sign_ups", 10, MINUTE);
///
/// tollgate::describe_metrics([&SIGN_UPS]);
/// ```
#[cfg(feature = "metrics")]
pub fn describe_metrics<'l>(limits: impl IntoIterator<Item = &'l crate::limit::Limit>) {
    describe();
    for limit in limits {
        let [capacity, rate] = [limit.most(), limit.rate].map(shown);
        metrics::gauge!(CAPACITY, "limit" => limit.name().to_owned()).set(capacity);
        // A wallet and a meter get no tokens by themselves, and months differ in length.
        if !limit.period.is_zero() {
            metrics::gauge!(RATE, "limit" => limit.name().to_owned()).set(rate / limit.period.as_secs_f64());
        }
    }
}

/// The metrics by their names, and their descriptions.
#[cfg(feature = "metrics")]
macro_rules! metrics {
    ($($metric:ident = $describe:ident($name:literal, $unit:ident, $what:literal);)*) => {
        $(const $metric: &str = $name;)*

        fn describe() {
            $(metrics::$describe!($metric, metrics::Unit::$unit, $what);)*
        }
    };
}
#[cfg(feature = "metrics")]
metrics! {
    CALLS = describe_counter("tollgate_calls_total", Count, "Calls that were answered.");
    DECISIONS = describe_counter("tollgate_decisions_total", Count, "Limits that calls asked, by their answers.");
    OVERRIDDEN = describe_counter("tollgate_overridden_total", Count, "Calls that asked a limit under an override.");
    OVERRIDES_READ = describe_gauge(
        "tollgate_overrides_read_timestamp_seconds", Seconds, "When overrides were last read, in seconds since 1970."
    );
    RATE_SHARE = describe_gauge(
        "tollgate_rate_share", Count, "The least share of its rate that slow-downs leave a key of a limit."
    );
    ERRORS = describe_counter("tollgate_errors_total", Count, "Calls that the database did not answer.");
    WAIT = describe_histogram("tollgate_wait_seconds", Seconds, "From a call of a gate to the answer of the database.");
    QUEUE = describe_histogram(
        "tollgate_queue_calls", Count, "Calls that stay in the queue of a gate as a batch is taken."
    );
    BATCHES = describe_counter("tollgate_batches_total", Count, "Batches of a gate.");
    BATCH_CALLS = describe_histogram("tollgate_batch_calls", Count, "Calls of a batch.");
    BATCH = describe_histogram("tollgate_batch_seconds", Seconds, "From the start of a batch to its last answer.");
    PREFETCHED = describe_gauge(
        "tollgate_prefetched_tokens", Count, "Tokens taken ahead, as they were charged, until their time is over."
    );
    LOCKED = describe_counter("tollgate_locked_calls_total", Count, "Calls of a gate that were decided under a lock.");
    SWEPT = describe_counter("tollgate_swept_rows_total", Count, "Full rows that a sweeper has deleted.");
    SWEEPS = describe_counter("tollgate_sweeps_total", Count, "Passes of a sweeper that reached the end of the tables.");
    LAPSED = describe_gauge("tollgate_lapsed_left", Count, "Lapsed calls that the last look could not give back.");
    CAPACITY = describe_gauge("tollgate_limit_capacity_tokens", Count, "The most that a limit holds for a key.");
    // An exporter that appends units would put `count_per_second` behind a name that says it.
    RATE = describe_gauge("tollgate_limit_rate_tokens", Count, "What comes back to a key of a limit in a second.");
}
