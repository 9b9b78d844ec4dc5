use std::time::Duration;

use super::months;
use super::state::{List, State, wide};
use crate::answer::receipt::ChargeKind;
use crate::key::Key;
use crate::limit::{Limit, LimitKind, micros};
use crate::tokens::Tokens;
use crate::values::hash::spread;
use crate::values::timestamp::Timestamp;

/// The numbers of a limit for one key: rate, period, capacity, and the place of its steps.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Terms {
    pub(crate) rate: i64,
    pub(crate) period: i64,
    pub(crate) capacity: i64,
    pub(crate) max_reserved: i64,
    pub(crate) flow: Flow,
    /// The last pause, while it counts.
    pub(crate) pause: Option<Pause>,
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
    /// A step lies at the start of each month of UTC, so many microseconds after midnight at the start of its 1st.
    Month {
        offset: i64,
    },
    /// Steps lie at the start of a period that the caller names, and whole periods after it.
    Named {
        start: i64,
    },
    /// The caller names no period of a limit that counts by them, so time brings nothing.
    Unnamed,
    /// A grant comes back a period after the end of its tick, in microseconds. The balance is the capacity less the
    /// held tokens.
    Sliding {
        tick: i64,
    },
    /// A grant comes back when it is released, or after a period. The balance is the capacity less the held tokens.
    Leased,
    /// Nothing comes back by itself.
    Wallet,
}

impl Flow {
    /// How a row with this flow takes a charge back.
    pub(crate) fn charge_kind(self) -> ChargeKind {
        match self {
            Self::Continuous | Self::FirstUse => ChargeKind::Bucket,
            Self::Grid { .. } | Self::Month { .. } | Self::Named { .. } | Self::Unnamed => ChargeKind::Window,
            Self::Sliding { .. } => ChargeKind::Sliding,
            Self::Leased => ChargeKind::Lease,
            Self::Wallet => ChargeKind::Wallet,
        }
    }

    /// Whether tokens come back in steps, and the phase of these, unless each row has its own. `None` if nothing comes
    /// before the end that a row lists.
    pub(crate) fn steps(self) -> Option<(bool, Option<i64>)> {
        match self {
            Self::Continuous => Some((false, None)),
            Self::FirstUse => Some((true, None)),
            Self::Grid { phase } => Some((true, Some(phase))),
            Self::Month { .. }
            | Self::Named { .. }
            | Self::Unnamed
            | Self::Sliding { .. }
            | Self::Leased
            | Self::Wallet => None,
        }
    }

    /// Whether the balance is the capacity less the held tokens, so that no refill brings tokens.
    pub(crate) fn keeps_list(self) -> bool {
        matches!(self, Self::Sliding { .. } | Self::Leased)
    }
}

impl Terms {
    /// The terms of `limit` for the row of `key`.
    #[must_use]
    pub fn of(limit: &Limit, key: &Key) -> Self {
        let period = if limit.kind == LimitKind::Monthly { months::LONGEST } else { in_micros(limit.period) };
        let phase = || limit.start.map_or_else(|| spread(limit.name(), key, period), in_micros);
        let flow = match limit.kind {
            LimitKind::TokenBucket => Flow::Continuous,
            LimitKind::SteppedBucket => Flow::FirstUse,
            LimitKind::FixedWindow => Flow::Grid { phase: phase() },
            LimitKind::SlidingWindow => {
                Flow::Sliding { tick: limit.resolution.map_or(1, |steps| (period - 1) / i64::from(steps) + 1) }
            }
            LimitKind::Monthly => Flow::Month { offset: limit.start.map_or(0, in_micros) },
            LimitKind::Billing => Flow::Unnamed,
            LimitKind::Concurrency => Flow::Leased,
            LimitKind::Meter | LimitKind::Wallet => Flow::Wallet,
        };
        let most = if flow == Flow::Wallet { Tokens::MAX } else { limit.most() };
        let deepest = if limit.kind == LimitKind::Meter { Tokens::MAX } else { limit.max_reserved };
        let [rate, capacity, max_reserved] = [limit.rate, most, deepest].map(Tokens::micros);
        // Some kinds have no period, but some statement divides by the period.
        Self { rate, period: period.max(1), capacity, max_reserved, flow, pause: None }
    }

    /// The terms of a limit that is or was paused.
    #[must_use]
    pub fn paused(self, pause: Option<Pause>) -> Self {
        Self { pause, ..self }
    }

    /// The terms by a period that a caller names.
    pub(crate) fn named(self, start: Timestamp, end: Timestamp) -> Self {
        let flow = Flow::Named { start: start.micros() };
        // From a second to a thousand years: the difference fits.
        Self { flow, period: end.micros() - start.micros(), ..self }
    }

    /// The terms of one of `shards` rows that share the limit: an equal share of rate, capacity and `max_reserved`. If
    /// a number does not divide evenly, the first rows get one micro-token more, so the shares sum to the whole. All
    /// rows share one phase. An unbounded limit stays unbounded in every row.
    ///
    /// # Panics
    ///
    /// For no shards, and for more than fit into an `i64`.
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
    pub(crate) fn fraction(self, millionths: i64) -> Self {
        let of = |whole: i64| {
            let fraction = i128::from(whole) * i128::from(millionths) / 1_000_000;
            i64::try_from(fraction).expect("a fraction is no larger than the whole")
        };
        Self { rate: of(self.rate).max(1), capacity: of(self.capacity), ..self }
    }

    /// The number of tokens that fit above a value.
    pub(super) fn room_above(&self, value: Tokens) -> i128 {
        if self.flow == Flow::Wallet { i128::from(i64::MAX) - wide(value) } else { -wide(value) }
    }

    /// The list of a row that lists nothing.
    pub(super) fn no_list(&self) -> List {
        match self.flow {
            Flow::Wallet => List::Wallet,
            Flow::Sliding { .. } => List::Grants(Vec::new()),
            Flow::Leased => List::Leases(Vec::new()),
            _ => List::None,
        }
    }

    /// The mark of a row that these terms write.
    pub(super) fn mark(&self, next: &State) -> List {
        match self.flow {
            _ if self.stands_still(next) => next.list.clone(),
            Flow::Month { offset } => {
                List::Month { end: months::step(months::number(next.ts, offset) + 1, offset), offset }
            }
            Flow::Named { start } => self.named_mark(start.into(), next),
            _ => next.list.clone(),
        }
    }

    /// Whether either the row or these terms are money, and the other is not.
    pub(crate) fn mixes_money(&self, row: &State) -> bool {
        row.mixes_money(self.flow == Flow::Wallet)
    }
}

/// A span in which a limit was paused. It brings a token bucket nothing, so that no burst follows it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Pause {
    /// When it began.
    pub from: Timestamp,
    /// When it ends.
    pub until: Timestamp,
}

impl Pause {
    /// Whether it still counts: while it lasts, and as long again.
    pub(crate) fn is_remembered(self, now: Timestamp) -> bool {
        now >= self.from && now.micros() - self.until.micros() < self.until.micros() - self.from.micros()
    }
}

/// A span of a limit in microseconds.
fn in_micros(span: Duration) -> i64 {
    micros(span).expect("a limit's spans are whole microseconds, of a thousand years at most")
}

#[cfg(test)]
mod tests {
    use super::Terms;
    use crate::SECOND;
    use crate::key::Key;
    use crate::limit::Limit;

    #[test]
    fn a_fraction_of_rate_and_capacity_is_rounded_down() {
        let terms = Terms::of(&Limit::token_bucket("ten", 10, SECOND).capacity(25), &Key::GLOBAL);
        for (millionths, rate, capacity) in
            [(0, 1, 0), (1, 10, 25), (333_333, 3_333_330, 8_333_325), (1_000_000, 10_000_000, 25_000_000)]
        {
            let fraction = terms.fraction(millionths);
            assert_eq!((fraction.rate, fraction.capacity), (rate, capacity), "{millionths}");
            assert_eq!(fraction.period, terms.period);
        }
    }
}
