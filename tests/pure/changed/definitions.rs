//! Definitions of one limit that take turns.

use std::time::Duration;

use chrono::{DateTime, Utc};
use proptest::collection::vec;
use proptest::prelude::*;
use tollgate::algebra::Timestamp;
use tollgate::{Limit, LimitKind, LimitSpec, Request, calendar};

use crate::story::EPOCH;
use crate::world::{at, micros, terms_of};

/// The definitions, and the periods that callers name.
#[derive(Clone, Debug)]
pub(super) struct Definitions {
    limits: Vec<Limit>,
    /// The starts of the months, and the end of the last one. None where the limits have periods of their own.
    months: Vec<i64>,
}

/// A kind and, if it counts in steps, the period and the start of these.
pub(super) type Grid = (LimitKind, Option<(Duration, Option<Duration>)>);

impl Definitions {
    pub(super) fn iter(&self) -> impl Iterator<Item = &Limit> {
        self.limits.iter()
    }

    pub(super) fn grid(&self, which: usize) -> Grid {
        let spec = self.limits[which].spec();
        let in_steps = matches!(spec.kind, LimitKind::SteppedBucket | LimitKind::FixedWindow);
        (spec.kind, in_steps.then_some((spec.period, spec.start)))
    }

    /// The first of them alone.
    pub(super) fn first(&self) -> Self {
        Self { limits: vec![self.limits[0].clone()], months: self.months.clone() }
    }

    /// Which of them has its turn, of any number.
    pub(super) fn turn(&self, which: usize) -> usize {
        which % self.limits.len()
    }

    /// A request by one of them, at an instant.
    pub(super) fn ask(&self, which: usize, now: i64) -> Request {
        let request = self.limits[which].global();
        let month = self.months.iter().skip(1).position(|start| *start > now);
        let Some(next) = month.filter(|_| request.limit().kind == LimitKind::Billing) else { return request };
        let [start, end] = [next, next + 1].map(|n| DateTime::<Utc>::from(at(self.months[n])));
        request.period(start, end)
    }

    pub(super) fn ask_each(&self, now: i64) -> impl Iterator<Item = Request> {
        (0..self.limits.len()).map(move |which| self.ask(which, now))
    }

    pub(super) const fn have_months(&self) -> bool {
        !self.months.is_empty()
    }

    /// The instant at which a story begins.
    pub(super) fn begin(&self) -> i64 {
        self.months.first().copied().unwrap_or(1_000)
    }

    /// The time that a story counts in, in microseconds.
    pub(super) fn unit(&self) -> i64 {
        if self.months.is_empty() { 1 } else { DAY_MICROS }
    }

    /// How much the fastest of them brings between two instants, where they have one grid.
    pub(super) fn refilled(&self, from: i64, to: i64) -> i64 {
        self.iter().map(|limit| self.refilled_by(limit, from, to)).max().unwrap()
    }

    pub(super) fn refilled_by(&self, limit: &Limit, from: i64, to: i64) -> i64 {
        let spec = limit.spec();
        let (rate, period) = (spec.rate.micros(), i64::try_from(spec.period.as_micros()).unwrap());
        if !self.months.is_empty() {
            let begun = self.months.iter().filter(|start| (from + 1..=to).contains(start)).count();
            return rate * i64::try_from(begun).unwrap();
        }
        match spec.kind {
            LimitKind::TokenBucket => rate * (to - from) / period,
            LimitKind::FixedWindow => {
                let start = |now| terms_of(&limit.global()).full(Timestamp::from_micros(now)).ts.micros();
                rate * ((start(to) - start(from)) / period)
            }
            _ => rate * ((to - from) / period + 1),
        }
    }
}

const DAY_MICROS: i64 = 86_400_000_000;

/// Months of UTC, or months that callers name: of 28 to 31 days.
pub(super) fn over_months() -> impl Strategy<Value = Definitions> {
    let numbers = vec((1_i64..20, 1_i64..5, prop_oneof![Just(0_i64), 0_i64..20]), 1..4);
    (any::<bool>(), numbers, vec(28_i64..=31, 100)).prop_map(|(is_named, numbers, days)| {
        let kind = if is_named { LimitKind::Billing } else { LimitKind::Monthly };
        let limit = |(rate, times, reserved): (i64, i64, i64)| {
            limit(kind, rate, 0, rate * times, if is_named { 0 } else { reserved }, 0)
        };
        let after = |start: i64, days: i64| {
            let (_, end) = calendar::month(&Utc, 1, at(start).into());
            if is_named { start + days * DAY_MICROS } else { Timestamp::from(end).micros() }
        };
        let starts = days.iter().scan(EPOCH, |start, days| Some(std::mem::replace(start, after(*start, *days))));
        Definitions { limits: numbers.into_iter().map(limit).collect(), months: starts.collect() }
    })
}

/// Definitions of one kind and one grid, up to four that take turns.
pub(super) fn of_one_grid() -> impl Strategy<Value = Definitions> {
    let kind = prop_oneof![Just(LimitKind::TokenBucket), Just(LimitKind::SteppedBucket), Just(LimitKind::FixedWindow)];
    let numbers = vec((1_i64..20, 1_i64..80, prop_oneof![Just(0_i64), 0_i64..40], 1_u64..40), 1..4);
    (kind, 1_u64..40, 0_u64..40, numbers).prop_map(|(kind, period, start, numbers)| {
        let limit = |(rate, capacity, reserved, own): (i64, i64, i64, u64)| {
            // Token buckets have no grid.
            limit(
                kind,
                rate,
                if kind == LimitKind::TokenBucket { own } else { period },
                capacity,
                reserved,
                start % period,
            )
        };
        Definitions { limits: numbers.into_iter().map(limit).collect(), months: Vec::new() }
    })
}

/// Definitions of any kinds, in any numbers of rows.
pub(super) fn of_any_kind(kinds: &[LimitKind]) -> impl Strategy<Value = Definitions> {
    let kind = prop::sample::select(kinds.to_vec());
    let numbers = (1_i64..20, 1_u64..40, 1_i64..80, 0_i64..20, 0_u64..40);
    vec((kind, numbers, prop_oneof![3 => Just(1_u16), 1 => 2_u16..4]), 1..4).prop_map(|definitions| {
        let limit =
            |(kind, (rate, period, capacity, reserved, start), shards): (_, (i64, u64, _, _, u64), _)| match kind {
                LimitKind::SlidingWindow | LimitKind::Concurrency => limit(kind, rate, period, rate, 0, 0),
                LimitKind::SteppedBucket => limit(kind, rate, period, capacity, reserved, 0),
                _ => limit(kind, rate + 3, period, capacity + 3, reserved, start % period).shards(shards),
            };
        Definitions { limits: definitions.into_iter().map(limit).collect(), months: Vec::new() }
    })
}

/// All but the stepped bucket, whose grid goes with its row, and wallets, which are money.
pub(super) const KINDS: [LimitKind; 4] =
    [LimitKind::TokenBucket, LimitKind::FixedWindow, LimitKind::SlidingWindow, LimitKind::Concurrency];

fn limit(kind: LimitKind, rate: i64, period: u64, capacity: i64, max_reserved: i64, start: u64) -> Limit {
    let start = (kind == LimitKind::FixedWindow).then(|| Duration::from_micros(start));
    let spec = LimitSpec::new("limit", kind, micros(rate), Duration::from_micros(period));
    spec.with(|spec| {
        (spec.capacity, spec.max_reserved, spec.start) = (Some(micros(capacity)), micros(max_reserved), start);
    })
    .try_into()
    .unwrap()
}

/// The most that a definition grants at once.
pub(super) fn room(limit: &Limit) -> i64 {
    limit.spec().capacity.unwrap().micros() + limit.spec().max_reserved.micros()
}
