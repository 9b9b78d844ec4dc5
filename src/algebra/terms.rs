use super::phase;
use super::timestamp::Timestamp;
use crate::key::Key;
use crate::limit::{Grid, Limit, Refill};
use crate::tokens::Tokens;

/// What a row holds: a balance, and the instant at which the balance was that.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct State {
    /// The balance; negative for a debt.
    pub value: Tokens,
    /// When the balance was that: the last write of a continuous refill, the last grid step of a stepped one.
    pub ts: Timestamp,
}

/// The numbers of a limit for one key: rate, period, capacity, and where its steps lie.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Terms {
    pub(crate) rate: i64,
    pub(crate) period: i64,
    pub(crate) capacity: i64,
    pub(crate) max_reserved: i64,
    pub(crate) flow: Flow,
}

/// How tokens come back to a row.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Flow {
    Continuous,
    /// Steps lie whole periods after the row's own instant.
    FirstUse,
    /// Steps lie whole periods after a phase, in microseconds since the Unix epoch.
    Grid {
        phase: i64,
    },
}

impl Terms {
    /// The terms of `limit` for the row of `key`.
    #[must_use]
    pub fn of(limit: &Limit, key: &Key) -> Self {
        let flow = match limit.refill {
            Refill::Continuous => Flow::Continuous,
            Refill::Stepped(Grid::FirstUse) => Flow::FirstUse,
            Refill::Stepped(Grid::Start { offset }) => Flow::Grid { phase: offset },
            Refill::Stepped(Grid::Spread) => Flow::Grid { phase: phase::spread(limit.name(), key, limit.period) },
        };
        Self {
            rate: limit.rate.micros(),
            period: limit.period,
            capacity: limit.capacity.micros(),
            max_reserved: limit.max_reserved.micros(),
            flow,
        }
    }

    /// The terms of one of `shards` rows that share the limit: an equal part of rate, capacity and `max_reserved`.
    /// Where a number does not divide, the first rows get one micro-token more, so the parts sum to the whole. All
    /// rows share one phase. An unbounded limit stays unbounded in every row.
    ///
    /// # Panics
    ///
    /// For no shards, and for more than an `i64` counts.
    #[must_use]
    pub fn shard(&self, index: usize, shards: usize) -> Self {
        if shards == 1 {
            return *self;
        }
        let [index, shards] = [index, shards].map(|count| i64::try_from(count).expect("a limit has at most 64 shards"));
        let part = |whole: i64| whole / shards + i64::from(index < whole % shards);
        let max_reserved = if self.max_reserved == i64::MAX { i64::MAX } else { part(self.max_reserved) };
        Self { rate: part(self.rate), capacity: part(self.capacity), max_reserved, ..*self }
    }

    /// The terms of a fraction of the limit, in millionths from 0 to 1 000 000. Rate and capacity are rounded down, the
    /// rate to one micro-token at least.
    #[cfg(feature = "postgres")]
    pub(crate) fn fraction(self, millionths: i64) -> Self {
        let part = |whole: i64| {
            let part = i128::from(whole) * i128::from(millionths) / 1_000_000;
            i64::try_from(part).expect("a fraction is no larger than the whole")
        };
        Self { rate: part(self.rate).max(1), capacity: part(self.capacity), ..self }
    }

    /// What a missing row means: a full one, at `now` or at the last grid step before it.
    #[must_use]
    pub fn full(&self, now: Timestamp) -> State {
        let ts = match self.flow {
            Flow::Continuous | Flow::FirstUse => now,
            Flow::Grid { phase } => self.step(phase, self.step_number(phase, now)),
        };
        State { value: Tokens::from_micros(self.capacity), ts }
    }

    /// The row at `now`. Where `now` lies before the row's own instant, time stands still.
    #[must_use]
    pub fn refill(&self, row: State, now: Timestamp) -> State {
        let now = now.max(row.ts);
        let elapsed = i128::from(now.micros()) - i128::from(row.ts.micros());
        match self.flow {
            Flow::Continuous => {
                let dripped = i128::from(self.rate) * elapsed / i128::from(self.period);
                State { value: self.filled(row.value, dripped), ts: now }
            }
            Flow::FirstUse => {
                let steps = elapsed / i128::from(self.period);
                let ts = i128::from(row.ts.micros()) + steps * i128::from(self.period);
                self.stepped(row, steps, Timestamp::saturating(ts))
            }
            Flow::Grid { phase } => {
                let last = self.step_number(phase, now);
                let steps = last - self.step_number(phase, row.ts);
                self.stepped(row, steps, self.step(phase, last))
            }
        }
    }

    /// The first instant at which `row` holds `target`, if nobody spends. The target counts as within capacity.
    #[must_use]
    pub fn first_instant(&self, row: State, target: Tokens) -> Timestamp {
        let missing = i128::from(target.micros()) - i128::from(row.value.micros());
        if missing <= 0 {
            return row.ts;
        }
        let (rate, period) = (i128::from(self.rate), i128::from(self.period));
        let ts = i128::from(row.ts.micros());
        match self.flow {
            Flow::Continuous => Timestamp::saturating(ts + div_ceil(missing * period, rate)),
            Flow::FirstUse => Timestamp::saturating(ts + div_ceil(missing, rate) * period),
            Flow::Grid { phase } => self.step(phase, self.step_number(phase, row.ts) + div_ceil(missing, rate)),
        }
    }

    /// When `row` will be full, if nobody spends. From then on it equals a missing row.
    #[must_use]
    pub fn full_at(&self, row: State) -> Timestamp {
        self.first_instant(row, Tokens::from_micros(self.capacity))
    }

    fn stepped(&self, row: State, steps: i128, last_step: Timestamp) -> State {
        let value = self.filled(row.value, steps * i128::from(self.rate));
        State { value, ts: if steps > 0 { last_step } else { row.ts } }
    }

    /// `value` and what came back, cut to the capacity, which is an `i64`.
    fn filled(&self, value: Tokens, came_back: i128) -> Tokens {
        let filled = (i128::from(value.micros()) + came_back).min(i128::from(self.capacity));
        Tokens::from_micros(i64::try_from(filled).expect("it lies between the value and the capacity"))
    }

    /// The number of the last grid step at or before an instant.
    fn step_number(&self, phase: i64, at: Timestamp) -> i128 {
        (i128::from(at.micros()) - i128::from(phase)).div_euclid(i128::from(self.period))
    }

    fn step(&self, phase: i64, number: i128) -> Timestamp {
        Timestamp::saturating(i128::from(phase) + number * i128::from(self.period))
    }
}

/// Both are positive, and so small that nothing overflows: at most 2^64 micro-tokens times 3.2·10^16 microseconds.
pub(crate) fn div_ceil(amount: i128, by: i128) -> i128 {
    (amount + by - 1) / by
}
