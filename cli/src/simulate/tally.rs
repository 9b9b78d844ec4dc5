use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Serialize, Serializer};
use tollgate::algebra::Timestamp;
use tollgate::{Key, Tokens};
use tollgate_simulation::{Look, RowMap};

/// The result of a trial, in numbers.
#[derive(Debug, Default, Serialize)]
pub(super) struct Figures {
    pub(super) calls: u64,
    pub(super) granted: u64,
    pub(super) refused: u64,
    /// Calls that cost more than a capacity, so that no wait lets them through. The limiter reports them as errors.
    pub(super) impossible: u64,
    /// The longest wait that a refusal named.
    #[serde(rename = "worst_retry_after_us", serialize_with = "micros")]
    pub(super) worst_retry_after: Duration,
    /// Granted calls that may spend only later.
    pub(super) waited: u64,
    #[serde(rename = "worst_wait_us", serialize_with = "micros")]
    pub(super) worst_wait: Duration,
    /// The callers with the most refused calls, and then the busiest.
    pub(super) callers: Vec<Caller>,
}

/// The outcomes of the calls of one key.
#[derive(Debug, Serialize)]
pub(super) struct Caller {
    pub(super) key: Key,
    pub(super) calls: u64,
    pub(super) granted: u64,
}

/// The counts while a trial runs.
#[derive(Default)]
pub(super) struct Tally {
    pub(super) figures: Figures,
    /// Calls and grants by key.
    callers: HashMap<Key, [u64; 2]>,
}

impl Tally {
    pub(super) fn called(&mut self, key: &Key) {
        self.figures.calls += 1;
        self.callers.entry(key.clone()).or_default()[0] += 1;
    }

    pub(super) fn granted(&mut self, key: &Key, wait: Duration) {
        self.figures.granted += 1;
        self.figures.waited += u64::from(!wait.is_zero());
        self.figures.worst_wait = self.figures.worst_wait.max(wait);
        self.callers.entry(key.clone()).or_default()[1] += 1;
    }

    pub(super) fn denied(&mut self, retry_after: Option<Duration>) {
        self.figures.refused += 1;
        self.figures.worst_retry_after = self.figures.worst_retry_after.max(retry_after.unwrap_or_default());
    }

    pub(super) fn finish(self) -> Figures {
        let callers = self.callers.into_iter().map(|(key, [calls, granted])| Caller { key, calls, granted });
        let mut callers: Vec<_> = callers.collect();
        callers.sort_unstable_by(|one, other| {
            let order = |caller: &Caller| Reverse((caller.calls - caller.granted, caller.calls));
            order(one).cmp(&order(other)).then_with(|| one.key.cmp(&other.key))
        });
        callers.truncate(MOST_CALLERS);
        Figures { callers, ..self.figures }
    }
}

fn micros<S: Serializer>(span: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    span.as_micros().serialize(serializer)
}

/// The course of a trial, in at most [`MAX_BINS`] equal bins. When it grows too long, each two bins become one.
#[derive(Debug, Serialize)]
pub(super) struct Series {
    pub(super) start: DateTime<Utc>,
    pub(super) width_us: u64,
    /// The last one may be cut short by the end.
    pub(super) bins: Vec<Bin>,
    /// A look at each limit, for the key that is watched.
    #[serde(skip)]
    looks: Vec<Look>,
    /// Where the last bin ends, and the next one begins.
    #[serde(skip)]
    edge: Timestamp,
}

/// The calls and the balances in a stretch of time.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Bin {
    pub(super) granted: u32,
    pub(super) refused: u32,
    /// The balances of the watched key, in the order of the limits.
    pub(super) levels: Vec<Level>,
}

/// The least and the most that a balance was in a stretch of time.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Level {
    pub(super) low: Tokens,
    pub(super) high: Tokens,
}

impl Series {
    /// From an instant on. Bins begin as narrow as a millisecond, which is less than most recorded traffic tells apart.
    pub(super) fn new(start: Timestamp, looks: Vec<Look>) -> Self {
        Self { start: start.into(), width_us: 1_000, bins: Vec::new(), looks, edge: start }
    }

    /// Goes on to an instant, and notes the balances there and where bins end on the way.
    pub(super) fn observe(&mut self, rows: &RowMap, to: Timestamp) {
        while self.edge <= to && self.edge < Timestamp::MAX {
            self.note(rows, self.edge);
            if self.bins.len() == MAX_BINS {
                self.halve();
            }
            self.bins.push(Bin { granted: 0, refused: 0, levels: Vec::new() });
            self.note(rows, self.edge);
            self.edge = self.edge.plus(Duration::from_micros(self.width_us));
        }
        self.note(rows, to);
    }

    /// A call in the last bin.
    pub(super) fn count(&mut self, is_granted: bool) {
        if let Some(bin) = self.bins.last_mut() {
            *(if is_granted { &mut bin.granted } else { &mut bin.refused }) += 1;
        }
    }

    /// How long it is.
    pub(super) fn length(&self) -> Duration {
        Duration::from_micros(self.edge.micros().abs_diff(Timestamp::from(self.start).micros()))
    }

    /// Notes the balances at an instant of the last bin.
    fn note(&mut self, rows: &RowMap, at: Timestamp) {
        let Some(bin) = self.bins.last_mut() else { return };
        for (place, look) in self.looks.iter().enumerate() {
            let balance = rows.balance(look, at);
            let level = Level { low: balance, high: balance };
            match bin.levels.get_mut(place) {
                Some(other) => *other = other.and(level),
                None => bin.levels.push(level),
            }
        }
    }

    fn halve(&mut self) {
        self.width_us = self.width_us.saturating_mul(2);
        self.bins = self.bins.chunks(2).map(|pair| pair[1..].iter().fold(pair[0].clone(), Bin::and)).collect();
    }
}

impl Bin {
    pub(super) fn calls(&self) -> u32 {
        self.granted + self.refused
    }

    fn and(self, other: &Self) -> Self {
        Self {
            granted: self.granted + other.granted,
            refused: self.refused + other.refused,
            levels: self.levels.iter().zip(&other.levels).map(|(one, other)| one.and(*other)).collect(),
        }
    }
}

impl Level {
    fn and(self, other: Self) -> Self {
        Self { low: self.low.min(other.low), high: self.high.max(other.high) }
    }
}

/// So many bins are bars of two pixels in a picture.
const MAX_BINS: usize = 160;

/// Nobody reads a table of more.
const MOST_CALLERS: usize = 10;
