//! Limits that are made in code.

use std::cell::{Cell, RefCell};
use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::sync::Once;
use std::time::Duration;

use proptest::prelude::*;
use tollgate::{Limit, LimitFault, MINUTE, SECOND, Tokens};

use super::bucket;
use crate::story::config;
use crate::world::micros;

/// In a `const` these limits do not compile; at run time they panic with the same message, and point at the line that
/// made the limit.
#[test]
fn a_wrong_limit_in_code_points_at_its_own_line() {
    let wrong: [(LimitFault, fn() -> Limit); 23] = [
        (LimitFault::CapacityTooLarge, || bucket().capacity(u64::MAX)),
        (LimitFault::EphemeralReservations, || bucket().ephemeral().max_reserved(1)),
        (LimitFault::EphemeralReservations, || bucket().max_reserved(1).ephemeral()),
        (LimitFault::EphemeralReservations, || bucket().ephemeral().unbounded_reservations()),
        (LimitFault::MaxReservedTooLarge, || bucket().max_reserved(u64::MAX)),
        (LimitFault::NameEmpty, || Limit::token_bucket("", 1, SECOND)),
        (LimitFault::NameNul, || Limit::fixed_window("\0", 1, SECOND)),
        (LimitFault::NameTooLong, || Limit::stepped_bucket("x".repeat(256).leak(), 1, SECOND)),
        (LimitFault::NegativeCapacity, || bucket().rate_and_capacity(Tokens::ONE, micros(-1))),
        (LimitFault::PeriodNotWholeMicros, || Limit::token_bucket("some", 1, Duration::from_nanos(1_001))),
        (LimitFault::PeriodTooLong, || Limit::token_bucket("some", 1, Duration::MAX)),
        (LimitFault::PeriodZero, || Limit::token_bucket("some", 1, Duration::ZERO)),
        (LimitFault::RateNotPositive, || Limit::token_bucket("some", 0, SECOND)),
        (LimitFault::RateNotPositive, || bucket().rate_and_capacity(Tokens::ZERO, Tokens::ONE)),
        (LimitFault::RateTooLarge, || Limit::fixed_window("some", u64::MAX, SECOND)),
        (LimitFault::ShardsOfFirstUse, || Limit::stepped_bucket("some", 5, SECOND).shards(5)),
        (LimitFault::ShardsTooMany, || bucket().shards(Limit::MAX_SHARDS + 1)),
        (LimitFault::ShardsWithoutRate, || bucket().rate_and_capacity(micros(2), Tokens::ONE).shards(3)),
        (LimitFault::ShardsZero, || bucket().shards(0)),
        (LimitFault::StartNotWholeMicros, || Limit::fixed_window("some", 1, SECOND).start(Duration::from_nanos(1))),
        (LimitFault::StartNotWholeMicros, || Limit::fixed_window("some", 1, SECOND).start(Duration::MAX)),
        (LimitFault::StartOfContinuous, || bucket().start(Duration::ZERO)),
        (LimitFault::StartOfFirstUse, || Limit::stepped_bucket("some", 1, SECOND).start(Duration::ZERO)),
    ];
    for (fault, make) in wrong {
        let (message, file) = built(make).unwrap_err();
        assert_eq!((message, file.as_str()), (fault.to_string(), file!()));
    }
}

type Setter = fn(Limit) -> Limit;

/// Options of a limit, no two of which set the same, but for those of one inner list.
const OPTIONS: [&[Setter]; 6] = [
    &[|limit| limit.capacity(5), |limit| limit.capacity(20), |limit| limit.rate_and_capacity(micros(3), micros(3))],
    &[|limit| limit.max_reserved(0), |limit| limit.max_reserved(3), Limit::unbounded_reservations],
    &[|limit| limit.start(7 * SECOND), |limit| limit.start(Duration::from_nanos(1))],
    &[|limit| limit.resolution(7), |limit| limit.resolution(0)],
    &[|limit| limit.shards(3), |limit| limit.shards(4), |limit| limit.shards(0)],
    &[Limit::ephemeral],
];

fn kinds() -> [Limit; 5] {
    [
        Limit::token_bucket("some", 5, MINUTE),
        Limit::fixed_window("some", 5, MINUTE),
        Limit::stepped_bucket("some", 5, MINUTE),
        Limit::sliding_window("some", 5, MINUTE),
        Limit::concurrency("some", 5, MINUTE),
    ]
}

/// A limit with some options, or the message of the panic.
fn with_options(limit: &Limit, options: &[Setter]) -> Result<Limit, String> {
    built(|| options.iter().fold(limit.clone(), |limit, option| option(limit))).map_err(|(message, _)| message)
}

#[test]
fn two_options_say_the_same_in_either_order() {
    for limit in kinds() {
        for (first, one) in OPTIONS.iter().enumerate() {
            for (one, two) in one.iter().flat_map(|one| OPTIONS[..first].concat().into_iter().map(|two| (*one, two))) {
                let (forth, back) = (with_options(&limit, &[one, two]), with_options(&limit, &[two, one]));
                // The panic names the first of two mistakes.
                if with_options(&limit, &[one]).is_err() && with_options(&limit, &[two]).is_err() {
                    assert!(forth.is_err() && back.is_err());
                } else {
                    assert_eq!(forth, back);
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn options_in_any_order_make_the_same_limit_or_none(
        kind in 0..kinds().len(),
        picked in OPTIONS.map(|options| prop::option::of(0..options.len())),
        order in Just([0, 1, 2, 3, 4, 5]).prop_shuffle(),
    ) {
        let option = |place: usize| Some(OPTIONS[place][picked[place]?]);
        let made = |order: [usize; 6]| {
            with_options(&kinds()[kind], &order.into_iter().filter_map(option).collect::<Vec<_>>()).ok()
        };
        prop_assert_eq!(made(order), made([0, 1, 2, 3, 4, 5]));
    }
}

/// A limit, or the message of the panic, and the file of the line that it points at.
fn built(make: impl FnOnce() -> Limit) -> Result<Limit, (String, String)> {
    thread_local! {
        static EXPECTED: Cell<bool> = const { Cell::new(false) };
        static FILE: RefCell<String> = const { RefCell::new(String::new()) };
    }
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        // Other tests panic on other threads, and should be heard.
        let loud = panic::take_hook();
        panic::set_hook(Box::new(move |info| match info.location() {
            Some(location) if EXPECTED.get() => FILE.set(location.file().to_owned()),
            _ => loud(info),
        }));
    });
    EXPECTED.set(true);
    let outcome = catch_unwind(AssertUnwindSafe(make));
    EXPECTED.set(false);
    outcome.map_err(|caught| {
        let message = caught.downcast_ref::<&str>().map(ToString::to_string);
        (message.or_else(|| caught.downcast_ref::<String>().cloned()).unwrap(), FILE.take())
    })
}
