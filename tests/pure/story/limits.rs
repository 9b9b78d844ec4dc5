//! Limits of each kind, and of extreme numbers.

use std::time::Duration;

use proptest::prelude::*;
use tollgate::algebra::Timestamp;
use tollgate::{DAY, Limit, LimitKind, LimitSpec, MINUTE, SECOND};

use crate::world::micros;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Drip,
    FirstUse,
    Spread,
    /// Thousandths of a period.
    Start(u32),
}

pub(crate) fn drip() -> impl Strategy<Value = Kind> {
    Just(Kind::Drip)
}

pub(crate) fn grids() -> impl Strategy<Value = Kind> {
    prop_oneof![Just(Kind::Spread), (0_u32..1_000).prop_map(Kind::Start)]
}

pub(crate) fn steps() -> impl Strategy<Value = Kind> {
    prop_oneof![Just(Kind::FirstUse), grids()]
}

pub(crate) fn all_but_first_use() -> impl Strategy<Value = Kind> {
    prop_oneof![drip(), grids()]
}

pub(crate) fn any_kind() -> impl Strategy<Value = Kind> {
    prop_oneof![drip(), steps()]
}

/// Limits of a kind, under one name.
pub(crate) fn limits(kind: impl Strategy<Value = Kind>) -> impl Strategy<Value = Limit> {
    let rate = prop_oneof![
        Just(1),
        Just(1_000_000),
        2_i64..50,
        (1_i64..200).prop_map(|whole| whole * 1_000_000),
        1_i64..1_000_000_000_000,
    ];
    let period = prop_oneof![
        1_u64..20,
        Just(7_000_003),
        1_u64..100_000_000,
        Just(SECOND).prop_map(micros_of),
        Just(MINUTE).prop_map(micros_of),
        Just(DAY).prop_map(micros_of),
    ];
    let capacity = prop_oneof![
        4 => (0_i64..5, -1_i64..2).prop_map(|(times, off)| (times, off)),
        1 => (0_i64..1_000_000_000).prop_map(|micros| (0, micros)),
    ];
    let max_reserved = prop_oneof![Just(0), Just(1), 0_i64..50_000_000, 0_i64..1_000_000_000_000, Just(i64::MAX)];
    (kind, rate, period, capacity, max_reserved).prop_map(|(kind, rate, period, (times, off), max_reserved)| {
        limit(kind, rate, period, (rate * times + off).max(0), max_reserved)
    })
}

/// Limits over the whole range of every number.
pub(crate) fn extreme_limits() -> impl Strategy<Value = Limit> {
    let longest = micros_of(Limit::MAX_PERIOD);
    let positive = || prop_oneof![Just(1), Just(i64::MAX), 1..=i64::MAX, 1_i64..100];
    let amount = || prop_oneof![Just(0), Just(1), Just(i64::MAX), 0..=i64::MAX];
    let period = prop_oneof![Just(1), Just(longest), 1..=longest, 1_u64..100];
    // A row has to hold all that may be used of it.
    let bounded =
        |capacity: i64, reserved: i64| if reserved < i64::MAX { reserved.min(i64::MAX - capacity) } else { reserved };
    (any_kind(), positive(), period, amount(), amount()).prop_map(move |(kind, rate, period, capacity, reserved)| {
        limit(kind, rate, period, capacity, bounded(capacity, reserved))
    })
}

pub(crate) fn limit(kind: Kind, rate: i64, period: u64, capacity: i64, max_reserved: i64) -> Limit {
    let (kind, start) = match kind {
        Kind::Drip => (LimitKind::TokenBucket, None),
        Kind::FirstUse => (LimitKind::SteppedBucket, None),
        Kind::Spread => (LimitKind::FixedWindow, None),
        Kind::Start(part) => (LimitKind::FixedWindow, Some(Duration::from_micros(period) / 1_000 * part)),
    };
    let spec = LimitSpec::new("limit", kind, micros(rate), Duration::from_micros(period));
    let start = start.map(|start| Duration::from_micros(micros_of(start)));
    let (capacity, max_reserved) = (Some(micros(capacity)), micros(max_reserved));
    spec.with(|spec| (spec.capacity, spec.start, spec.max_reserved) = (capacity, start, max_reserved))
        .try_into()
        .unwrap()
}

pub(crate) fn extremes() -> impl Strategy<Value = i64> {
    prop_oneof![
        Just(i64::MIN),
        Just(i64::MAX),
        Just(Timestamp::MIN.micros()),
        Just(Timestamp::MAX.micros()),
        -2_i64..3,
        any::<i64>(),
    ]
}

pub(crate) fn micros_of(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap()
}
