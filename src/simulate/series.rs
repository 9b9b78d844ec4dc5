use std::time::Duration;

use serde::Serialize;

use super::micros;
use crate::algebra::Timestamp;
use crate::tokens::Tokens;

/// What happened over time, in at most [`Series::MAX_BINS`] equal bins: for a plot, in constant room.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Series {
    /// When the first bin begins.
    pub start: chrono::DateTime<chrono::Utc>,
    /// How long each bin is.
    #[serde(rename = "width_us", serialize_with = "micros::serialize")]
    pub width: Duration,
    /// The bins; the last one may be cut short by the end.
    pub bins: Vec<Bin>,
}

impl Series {
    /// The most bins.
    pub const MAX_BINS: usize = 320;
}

/// What happened in a stretch of time.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Bin {
    /// How often a call was granted.
    pub granted: u64,
    /// How often a call was refused.
    pub refused: u64,
    /// The balances of the watched key, in the order of the rules.
    pub levels: Vec<Level>,
}

/// The least and the most that a balance was in a stretch of time.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
pub struct Level {
    /// The least.
    pub low: Tokens,
    /// The most.
    pub high: Tokens,
}

impl Level {
    fn at(value: Tokens) -> Self {
        Self { low: value, high: value }
    }

    fn and(self, other: Self) -> Self {
        Self { low: self.low.min(other.low), high: self.high.max(other.high) }
    }
}

/// A series while it grows. Where it would grow too long, each two bins become one.
#[derive(Clone, Debug)]
pub(super) struct Recorder {
    start: Timestamp,
    /// Microseconds.
    width: i64,
    bins: Vec<Bin>,
}

impl Recorder {
    pub(super) fn new(start: Timestamp, width: i64, levels: &[Tokens]) -> Self {
        Self { start, width, bins: vec![Bin::at(levels)] }
    }

    /// Where the last bin ends, and the next one begins.
    pub(super) fn edge(&self) -> Timestamp {
        // at most 320 bins, each of which begins at an instant that there is.
        let bins = i64::try_from(self.bins.len()).unwrap_or(i64::MAX);
        Timestamp::from_micros(self.start.micros().saturating_add(self.width.saturating_mul(bins)))
    }

    /// Ends the last bin, and begins the next one, with these balances.
    pub(super) fn turn(&mut self, levels: &[Tokens]) {
        self.observe(levels);
        if self.bins.len() == Series::MAX_BINS {
            self.halve();
        }
        self.bins.push(Bin::at(levels));
    }

    /// Balances at an instant of the last bin.
    pub(super) fn observe(&mut self, levels: &[Tokens]) {
        for (level, value) in self.last().levels.iter_mut().zip(levels) {
            *level = level.and(Level::at(*value));
        }
    }

    /// A call in the last bin.
    pub(super) fn count(&mut self, is_granted: bool) {
        let bin = self.last();
        if is_granted { bin.granted += 1 } else { bin.refused += 1 }
    }

    pub(super) fn finish(self) -> Series {
        let width = Duration::from_micros(self.width.unsigned_abs());
        Series { start: self.start.into(), width, bins: self.bins }
    }

    fn halve(&mut self) {
        self.width = self.width.saturating_mul(2);
        self.bins = (self.bins.chunks(2)).map(|pair| pair.iter().skip(1).fold(pair[0].clone(), Bin::and)).collect();
    }

    fn last(&mut self) -> &mut Bin {
        let last = self.bins.len() - 1;
        &mut self.bins[last]
    }
}

impl Bin {
    fn at(levels: &[Tokens]) -> Self {
        Self { levels: levels.iter().copied().map(Level::at).collect(), ..Self::default() }
    }

    fn and(self, other: &Self) -> Self {
        Self {
            granted: self.granted + other.granted,
            refused: self.refused + other.refused,
            levels: self.levels.iter().zip(&other.levels).map(|(one, other)| one.and(*other)).collect(),
        }
    }
}
