use std::time::Duration;

use super::holds::{Holds, unnamed};
use super::state::{State, cut, wide};
use super::timestamp::Timestamp;
use crate::hash::spread;
use crate::key::Key;
use crate::limit::{Limit, LimitKind, micros};
use crate::tokens::Tokens;

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
    /// What was granted comes back a period after the end of its tick, in microseconds. What is left is the capacity
    /// less what is held.
    Sliding {
        tick: i64,
    },
    /// What was granted comes back when it is released, or after a period. What is left is the capacity less what is
    /// held.
    Leased,
}

impl Flow {
    /// Whether the balance is the capacity less what is held: no refill brings anything.
    pub(crate) fn counts(self) -> bool {
        matches!(self, Self::Sliding { .. } | Self::Leased)
    }
}

impl Terms {
    /// The terms of `limit` for the row of `key`.
    #[must_use]
    pub fn of(limit: &Limit, key: &Key) -> Self {
        let period = in_micros(limit.period);
        let phase = || limit.start.map_or_else(|| spread(limit.name(), key, period), in_micros);
        let flow = match limit.kind {
            LimitKind::TokenBucket => Flow::Continuous,
            LimitKind::SteppedBucket => Flow::FirstUse,
            LimitKind::FixedWindow => Flow::Grid { phase: phase() },
            LimitKind::SlidingWindow => {
                Flow::Sliding { tick: limit.resolution.map_or(1, |steps| (period - 1) / i64::from(steps) + 1) }
            }
            LimitKind::Concurrency => Flow::Leased,
        };
        let [rate, capacity, max_reserved] = [limit.rate, limit.most(), limit.max_reserved].map(Tokens::micros);
        Self { rate, period, capacity, max_reserved, flow }
    }

    /// The terms of one of `shards` rows that share the limit: an equal share of rate, capacity and `max_reserved`.
    /// Where a number does not divide, the first rows get one micro-token more, so the shares sum to the whole. All
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
        let share = |whole: i64| whole / shards + i64::from(index < whole % shards);
        let max_reserved = if self.max_reserved == i64::MAX { i64::MAX } else { share(self.max_reserved) };
        Self { rate: share(self.rate), capacity: share(self.capacity), max_reserved, ..*self }
    }

    /// The terms of a fraction of the limit, in millionths from 0 to 1 000 000. Rate and capacity are rounded down, the
    /// rate to one micro-token at least.
    #[cfg(feature = "postgres")]
    pub(crate) fn fraction(self, millionths: i64) -> Self {
        let of = |whole: i64| {
            let fraction = i128::from(whole) * i128::from(millionths) / 1_000_000;
            i64::try_from(fraction).expect("a fraction is no larger than the whole")
        };
        Self { rate: of(self.rate).max(1), capacity: of(self.capacity), ..self }
    }

    /// What a missing row means: a full one, at `now` or at the last grid step before it.
    #[must_use]
    pub fn full(&self, now: Timestamp) -> State {
        let ts = match self.flow {
            Flow::Continuous | Flow::FirstUse | Flow::Sliding { .. } | Flow::Leased => now,
            Flow::Grid { phase } => self.step(phase, self.step_number(phase, now)),
        };
        State::new(Tokens::from_micros(self.capacity), ts)
    }

    /// The row at `now`. Where `now` lies before the row's own instant, time stands still.
    #[must_use]
    pub fn refill(&self, row: &State, now: Timestamp) -> State {
        self.grown(row, now, true)
    }

    /// The same. Where it does not cut, what lies above the capacity stays.
    pub(super) fn grown(&self, row: &State, now: Timestamp, cuts: bool) -> State {
        let now = now.max(row.ts);
        if self.flow.counts() {
            return self.recounted(row, now);
        }
        let (gained, ts) = self.gained(row.ts, now);
        let mut next = State { ts, ..row.clone() };
        next.fill(gained, self.capacity, cuts);
        next.lapse(now);
        State { holds: next.holds.uncounted(), ..next }
    }

    /// The row of a limit that counts, at an instant.
    fn recounted(&self, row: &State, now: Timestamp) -> State {
        // Nothing was granted after the row's instant. So nothing counts for longer than a period from there, whatever
        // definition wrote it; and what another kind of limit found to be spent counts for so long.
        let last = self.leaves_at(row.ts);
        let mut holds = row.holds.clone();
        let spent = i128::from(self.capacity) - wide(row.value);
        if holds.is_none() && spent > 0 {
            holds.insert(unnamed(last, cut(spent)));
        }
        for hold in holds.iter_mut().filter(|hold| hold.id.is_none()) {
            hold.lapses_at = hold.lapses_at.min(last);
        }
        holds.retain(|hold| hold.is_live(now));
        self.counted(holds, now)
    }

    /// The row of a limit that counts, with these holds.
    pub(super) fn counted(&self, mut holds: Holds, ts: Timestamp) -> State {
        holds.merge(self.period);
        State { value: cut(i128::from(self.capacity) - holds.sum()), ts, holds: holds.counted() }
    }

    /// When what is granted at an instant leaves the window, or what nobody renews ends.
    pub(super) fn leaves_at(&self, granted_at: Timestamp) -> Timestamp {
        let tick = if let Flow::Sliding { tick } = self.flow { tick } else { 1 };
        let end = i128::from(Timestamp::from_micros(granted_at.micros() + 1).round_up(tick).micros()) - 1;
        Timestamp::saturating(end + i128::from(self.period))
    }

    /// What comes back by refill from one instant to a later one, and the instant at which a row stands then.
    pub(super) fn gained(&self, ts: Timestamp, now: Timestamp) -> (i128, Timestamp) {
        // Most rows are asked again at the instant at which they were just written, and a division takes its time.
        if now == ts {
            return (0, ts);
        }
        let (rate, period) = (i128::from(self.rate), i128::from(self.period));
        let elapsed = i128::from(now.micros()) - i128::from(ts.micros());
        match self.flow {
            Flow::Continuous => (rate * elapsed / period, now),
            Flow::Sliding { .. } | Flow::Leased => (0, now),
            Flow::FirstUse => {
                let steps = elapsed / period;
                (steps * rate, Timestamp::saturating(i128::from(ts.micros()) + steps * period))
            }
            Flow::Grid { phase } => {
                let last = self.step_number(phase, now);
                let steps = last - self.step_number(phase, ts);
                (steps * rate, if steps > 0 { self.step(phase, last) } else { ts })
            }
        }
    }

    /// The first instant at which `row` holds `target`, if nobody spends. The target counts as within capacity.
    #[must_use]
    pub fn first_instant(&self, row: &State, target: Tokens) -> Timestamp {
        if self.flow.counts() {
            let row = self.recounted(row, row.ts);
            let mut missing = wide(target) - wide(row.value);
            if missing <= 0 {
                return row.ts;
            }
            // Here none keeps.
            let mut holds: Vec<_> = row.holds.iter().collect();
            holds.sort_by_key(|hold| hold.lapses_at);
            let last = holds.into_iter().find(|hold| {
                missing -= wide(hold.amount);
                missing <= 0
            });
            return last.map_or(Timestamp::MAX, |hold| hold.lapses_at);
        }
        let mut sum = wide(row.value);
        let mut first = self.refilled_at(sum, row.ts, target);
        for hold in row.holds.returning() {
            sum += wide(hold.amount);
            first = first.min(self.refilled_at(sum, row.ts, target).max(hold.lapses_at));
        }
        first
    }

    /// The first instant at which `row` is out of debt by refill alone. Holds count for nothing: what is settled does
    /// not come back.
    pub(super) fn repaid_at(&self, row: &State) -> Timestamp {
        self.refilled_at(wide(row.value), row.ts, Tokens::ZERO)
    }

    /// The first instant at which a value that stood at `ts` has grown to `target`.
    fn refilled_at(&self, value: i128, ts: Timestamp, target: Tokens) -> Timestamp {
        let missing = wide(target) - value;
        if missing <= 0 {
            return ts;
        }
        let (rate, period) = (i128::from(self.rate), i128::from(self.period));
        let from = i128::from(ts.micros());
        match self.flow {
            Flow::Continuous => Timestamp::saturating(from + div_ceil(missing * period, rate)),
            Flow::Sliding { .. } | Flow::Leased => Timestamp::MAX,
            Flow::FirstUse => Timestamp::saturating(from + div_ceil(missing, rate) * period),
            Flow::Grid { phase } => self.step(phase, self.step_number(phase, ts) + div_ceil(missing, rate)),
        }
    }

    /// When `row` will be full and without holds, if nobody spends. From then on it equals a missing row.
    #[must_use]
    pub fn full_at(&self, row: &State) -> Timestamp {
        if self.flow.counts() {
            return self.recounted(row, row.ts).holds.last_lapse().unwrap_or(row.ts);
        }
        let full_at = self.first_instant(row, Tokens::from_micros(self.capacity));
        row.holds.last_lapse().map_or(full_at, |lapse| lapse.max(full_at))
    }

    /// The number of the last grid step at or before an instant.
    fn step_number(&self, phase: i64, at: Timestamp) -> i128 {
        (i128::from(at.micros()) - i128::from(phase)).div_euclid(i128::from(self.period))
    }

    fn step(&self, phase: i64, number: i128) -> Timestamp {
        Timestamp::saturating(i128::from(phase) + number * i128::from(self.period))
    }
}

/// The span of a limit.
fn in_micros(span: Duration) -> i64 {
    micros(span).expect("a limit's spans are whole microseconds, of a thousand years at most")
}

/// Both are positive, and so small that nothing overflows: at most 2^64 micro-tokens times 3.2·10^16 microseconds.
pub(crate) fn div_ceil(amount: i128, by: i128) -> i128 {
    (amount + by - 1) / by
}
