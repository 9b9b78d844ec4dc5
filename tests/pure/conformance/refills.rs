//! A: one row, one call.

use std::time::Duration;

use tollgate::algebra::{Ask, State, Timestamp, Verdict};
use tollgate::plan::Verb;
use tollgate::{DAY, Error, HOUR, Limit, MINUTE, SECOND};

use super::{ALIGNED, BUCKET, WINDOW};
use crate::world::{World, at, decide, due, left, micros, ms, sec, terms_of, tokens};

#[test]
fn to_a04_a_token_bucket_refills_while_it_rests() {
    let now = T;
    table(
        &BUCKET,
        &[
            Case { id: "A1", row: None, now, count: 0, value: 10, ts: now, wait: 0 },
            Case { id: "A2", row: Some((5, now - 30_000)), now, count: 0, value: 10, ts: now, wait: 0 },
            Case { id: "A3", row: Some((5, now - 30_000)), now, count: 8, value: 2, ts: now, wait: 0 },
            Case { id: "A4", row: Some((5, now - 30_000)), now, count: 15, value: -5, ts: now, wait: 30_000 },
        ],
    );
}

#[test]
fn to_a09_a_window_refills_as_it_starts() {
    for part in [0, 1, 29_999, 30_000, 59_999] {
        let w = T - part;
        let windows = WINDOW.start(Duration::from_millis(w.unsigned_abs()));
        table(
            &windows,
            &[
                Case { id: "A5", row: None, now: T, count: 0, value: 10, ts: w, wait: 0 },
                Case { id: "A6", row: Some((5, w)), now: w + 45_000, count: 0, value: 5, ts: w, wait: 0 },
                Case { id: "A7", row: Some((5, w)), now: w + 90_000, count: 0, value: 10, ts: w + 60_000, wait: 0 },
                Case { id: "A8", row: Some((5, w)), now: w + 45_000, count: 3, value: 2, ts: w, wait: 0 },
                Case { id: "A9", row: Some((5, w)), now: w + 45_000, count: 8, value: -3, ts: w, wait: 15_000 },
            ],
        );
    }
}

#[test]
fn unused_windows_roll_over_up_to_the_capacity() {
    table(
        &ALIGNED.capacity(30),
        &[
            Case { id: "A10", row: Some((0, 0)), now: 150_000, count: 0, value: 20, ts: 120_000, wait: 0 },
            Case { id: "A11", row: Some((0, 0)), now: 240_000, count: 0, value: 30, ts: 240_000, wait: 0 },
        ],
    );
}

#[test]
fn a_debt_is_carried_into_the_next_window() {
    table(&ALIGNED, &[Case { id: "A12", row: Some((-6, 0)), now: 60_000, count: 0, value: 4, ts: 60_000, wait: 0 }]);
}

#[test]
fn three_windows_of_debt_take_121_s() {
    table(
        &ALIGNED,
        &[
            Case { id: "A13", row: Some((-25, 0)), now: 59_000, count: 1, value: -26, ts: 0, wait: 121_000 },
            Case { id: "A14", row: Some((-25, 0)), now: 61_000, count: 1, value: -16, ts: 60_000, wait: 119_000 },
        ],
    );
}

#[test]
fn the_boundary_belongs_to_the_new_window() {
    let five = Limit::fixed_window("five", 5, MINUTE).start(Duration::ZERO);
    table(
        &five,
        &[
            Case { id: "A15", row: Some((0, 0)), now: 59_999, count: 1, value: -1, ts: 0, wait: 1 },
            Case { id: "A16", row: Some((0, 0)), now: 60_000, count: 1, value: 4, ts: 60_000, wait: 0 },
        ],
    );
}

#[test]
fn windows_can_be_aligned_to_the_epoch() {
    table(&ALIGNED, &[Case { id: "A17", row: None, now: 90_000, count: 1, value: 9, ts: 60_000, wait: 0 }]);
}

#[test]
fn a_plain_call_waits_to_the_microsecond_although_the_balance_is_no_whole_micro_token() {
    let mut world = World::left(&BUCKET.global(), tokens(-10), sec(0));
    let denied = world.denied(BUCKET.global(), sec(59));
    assert_eq!(due(denied.retry_at), sec(66), "computed from the row as read");
    // A write rounds the debt up to a whole micro-token, and a third of one takes 2 µs.
    let owing = BUCKET.unbounded_reservations();
    assert_eq!(world.reserved(owing.global(), sec(59)), (micros(-1_166_667), at(66_000_002)));
}

#[test]
fn a_debt_ends_at_an_exact_instant() {
    table(
        &BUCKET,
        &[
            Case { id: "A19", row: Some((-10, 0)), now: 60_000, count: 0, value: 0, ts: 60_000, wait: 0 },
            Case { id: "A20", row: Some((-10, 0)), now: 66_000, count: 1, value: 0, ts: 66_000, wait: 0 },
        ],
    );
}

#[test]
fn waits_round_up() {
    for (limit, wait, millis) in [
        (Limit::token_bucket("3/s", 3, SECOND), 333_334, 334),
        (Limit::token_bucket("7/min", 7, MINUTE), 8_571_429, 8_572),
    ] {
        let mut world = World::left(&limit.global(), tokens(0), sec(0));
        let denied = world.denied(limit.global(), sec(0));
        assert_eq!(due(denied.retry_at), at(wait), "{}", limit.name());
        assert_eq!(serde_json::to_value(&denied).unwrap()["retry_after_ms"], millis, "{}", limit.name());
        assert_eq!(world.reserved(limit.unbounded_reservations().global(), sec(0)), (tokens(-1), at(wait)));
    }
}

#[test]
fn who_waits_as_told_is_granted_and_a_millisecond_earlier_is_not() {
    let now = ms(T);
    for rate in 1..=199 {
        for period in [SECOND, MINUTE, HOUR, DAY] {
            let limit = Limit::token_bucket("any", rate, period);
            let terms = terms_of(&limit.global());
            let empty = Some(left(&limit.global(), tokens(0), now));
            let ask = Ask::consume(tokens(1));
            let Ok(Verdict::Denied { retry_at, .. }) = decide(&terms, empty.as_ref(), now, ask) else {
                panic!("granted")
            };
            let granted =
                |instant: i64| matches!(decide(&terms, empty.as_ref(), at(instant), ask), Ok(Verdict::Granted { .. }));
            let wait_ms = (retry_at.micros() - now.micros() + 999) / 1_000;
            assert!(granted(now.micros() + wait_ms * 1_000), "{rate} per {period:?}");
            assert!(!granted(now.micros() + (wait_ms - 1) * 1_000), "{rate} per {period:?}");
            assert!(granted(retry_at.micros()), "{rate} per {period:?}");
            assert!(!granted(retry_at.micros() - 1), "{rate} per {period:?}");
        }
    }
}

/// The input and the expected answer of a case, in whole tokens and milliseconds.
struct Case {
    id: &'static str,
    /// Value and instant.
    row: Option<(i64, i64)>,
    now: i64,
    count: u32,
    value: i64,
    ts: i64,
    /// From `now` until the balance is not negative.
    wait: i64,
}

/// Checks each case with a plain call, and with a reservation without a bound.
fn table(limit: &Limit, cases: &[Case]) {
    let owing = limit.clone().unbounded_reservations();
    for Case { id, row, now, count, value, ts, wait } in cases {
        let found = row.map(|(value, ts)| left(&limit.global(), tokens(value), ms(ts)));
        let expected = left(&limit.global(), tokens(*value), ms(*ts));
        let world = || found.clone().map_or_else(World::default, |state| World::holding(&limit.global(), state));
        let asking = |limit: &Limit| limit.global().cost(*count);
        if *count == 0 {
            let terms = terms_of(&limit.global());
            let row = found.clone().unwrap_or_else(|| terms.full(ms(*now)));
            assert_eq!(silent(terms.refill(&row, ms(*now))), expected, "{id}");
        }

        let mut reserving = world();
        assert_eq!(reserving.reserved(asking(&owing), ms(*now)), (tokens(*value), ms(now + wait)), "{id} reserves");
        if *count > 0 {
            assert_eq!(reserving.state(&limit.global()).map(silent), Some(expected.clone()), "{id} writes");
        }

        let mut plain = world();
        if tokens(i64::from(*count)) > limit.spec().capacity.unwrap() {
            let error = plain.call(Verb::consume(asking(limit)), ms(*now)).unwrap_err();
            assert!(matches!(error, Error::CostExceedsCapacity { .. }), "{id}: {error}");
        } else if *wait == 0 {
            assert_eq!(plain.granted(asking(limit), ms(*now)), tokens(*value), "{id} is granted");
            assert_eq!(plain, reserving, "{id} writes the same");
        } else {
            let denied = plain.denied(asking(limit), ms(*now));
            assert_eq!(due(denied.retry_at), ms(now + wait), "{id} is refused");
            plain.denied(asking(limit), at((now + wait) * 1_000 - 1));
            plain.granted(asking(limit), ms(now + wait));
        }
    }
}

/// A row without the instant at which it is full.
fn silent(row: State) -> State {
    row.full_at(Timestamp::MIN)
}

/// Some instant of our time, in milliseconds: sums of that size are where floats begin to fail.
const T: i64 = 1_754_913_600_123;
