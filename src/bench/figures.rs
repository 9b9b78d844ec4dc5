use serde::Serialize;

use super::counters::Counters;
use super::turn::{Tally, Turn};

/// What a contender did in a scene: the median of each figure over the rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Figures {
    /// Decisions per second.
    pub per_second: f64,
    /// Half of the calls are answered within so many microseconds,
    pub p50_us: f64,
    /// 99 of 100 within so many,
    pub p99_us: f64,
    /// and 999 of 1000 within so many.
    pub p999_us: f64,
    /// Statements per decision, `begin` and `commit` included. Unknown where the server has no `pg_stat_statements`.
    pub statements: Option<f64>,
    /// Rows inserted, updated or deleted per decision.
    pub rows_written: f64,
    /// Decisions per transaction that wrote. None where nothing was written.
    pub batch: Option<f64>,
    /// The share of updates that touched no index. None where nothing was updated.
    pub hot_share: Option<f64>,
    /// Bytes of write-ahead log per decision; whatever else the server wrote meanwhile is in it.
    pub wal_bytes: f64,
}

impl Figures {
    /// The figures of one turn, from what its callers and the server counted.
    pub(super) fn of(turn: &Turn, tally: &Tally, counters: Counters) -> Self {
        let decisions = float(tally.decisions);
        let latency_us = |quantile| float(tally.latencies.value_at_quantile(quantile)) / 1e3;
        // Somebody else's transaction now and then is no batch of ours.
        let wrote = counters.rows_written > 0.0;
        Self {
            per_second: float(tally.latencies.len()) / turn.timed.as_secs_f64(),
            p50_us: latency_us(0.5),
            p99_us: latency_us(0.99),
            p999_us: latency_us(0.999),
            statements: counters.statements.map(|statements| statements / decisions),
            rows_written: counters.rows_written / decisions,
            batch: wrote.then(|| decisions / counters.writers),
            hot_share: (counters.updates > 0.0).then(|| counters.hot_updates / counters.updates),
            wal_bytes: counters.wal_bytes / decisions,
        }
    }

    /// Each figure's median by itself; none for no rounds.
    pub(super) fn median(rounds: &[Self]) -> Option<Self> {
        let of = |figure: fn(&Self) -> f64| median(rounds.iter().map(figure));
        let known = |figure: fn(&Self) -> Option<f64>| median(rounds.iter().filter_map(figure));
        Some(Self {
            per_second: of(|figures| figures.per_second)?,
            p50_us: of(|figures| figures.p50_us)?,
            p99_us: of(|figures| figures.p99_us)?,
            p999_us: of(|figures| figures.p999_us)?,
            statements: known(|figures| figures.statements),
            rows_written: of(|figures| figures.rows_written)?,
            batch: known(|figures| figures.batch),
            hot_share: known(|figures| figures.hot_share),
            wal_bytes: of(|figures| figures.wal_bytes)?,
        })
    }
}

/// The middle one; of an even number the higher of the middle two.
pub(super) fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

#[expect(clippy::cast_precision_loss, reason = "counts and nanoseconds of a few seconds are exact in 53 bits")]
fn float(count: u64) -> f64 {
    count as f64
}
