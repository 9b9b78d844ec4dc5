//! Known figures, case by case: the letter and number of a case begin its test's name.
//!
//! The figures come from two older limiters, whose behaviour was written down as facts, and from what both of them
//! lack. Where they give a negative balance together with a wait, a plain call is refused here until the same instant,
//! and a reservation without a bound is given both.

use std::time::Duration;

use tollgate::algebra::{Ask, State, Timestamp, Verdict};
use tollgate::plan::{Answer, Call, Plan};
use tollgate::{DAY, Error, HOUR, Limit, MINUTE, SECOND};

use crate::world::{World, at, credit, decide, due, left, micros, ms, sec, terms_of, tokens, used};

// A: one row, one call.

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

// C: the rows that are written, for a token bucket and for a window that starts now.

#[test]
fn the_first_call_writes_one_row() {
    for limit in both(1, SECOND) {
        let plan = Plan::new([Call::consume([limit.global()])]).unwrap();
        let outcome = plan.decide(&[None], &[], sec(7));
        assert!(matches!(outcome.answers[0], Ok(Answer::Granted { .. })));
        let [change] = &outcome.changes[..] else { panic!("{:?}", outcome.changes) };
        assert_eq!((plan.rows()[0].shard(), change.state.clone()), (0, used(1, sec(7), sec(8))));
    }
}

#[test]
fn a_refusal_writes_nothing_and_names_the_wait() {
    for limit in both(1, SECOND) {
        let mut world = World::left(&limit.global(), tokens(0), sec(7));
        assert_eq!(world.denied(limit.global(), sec(7)).retry_after().unwrap(), SECOND);
    }
}

#[test]
fn more_than_the_capacity_is_an_error_that_names_both() {
    for limit in both(1, SECOND) {
        let error = World::default().call(Call::consume([limit.global().cost(2)]), sec(7)).unwrap_err();
        assert!(impossible(&error, limit.name(), 2, 1), "{error}");
    }
}

#[test]
fn keys_do_not_touch_each_other() {
    for limit in both(1, SECOND) {
        let mut world = World::default();
        for request in [limit.key("key"), limit.global(), limit.key("otherKey")] {
            world.put_left(&request, tokens(-1), sec(7));
        }
        assert_eq!(world.denied(limit.key("key"), sec(7)).retry_after().unwrap(), 2 * SECOND);
        assert_eq!(world.granted(limit.key("fresh"), sec(7)), tokens(0));
    }
}

#[test]
fn the_whole_capacity_at_once_but_not_more() {
    for limit in both(1, SECOND).map(|limit| limit.capacity(3)) {
        let full = || World::left(&limit.global(), tokens(3), sec(7));
        assert_eq!(full().granted(limit.global().cost(3), sec(7)), tokens(0));
        let owing = limit.clone().unbounded_reservations();
        let reserved = full().reserved(owing.global().cost(4), sec(7));
        assert_eq!(reserved, (tokens(-1), sec(8)));
    }
}

#[test]
fn half_is_spent_and_comes_back() {
    for (limit, later, left) in in_steps_or_drops([0, 4]) {
        let mut world = World::default();
        assert_eq!(world.granted(limit.global().cost(5), sec(0)), tokens(5));
        assert_eq!(world.granted(limit.global().cost(6), later), tokens(left));
        assert_eq!(world.denied(limit.global().cost(10), later).retry_after().unwrap(), MINUTE);
    }
}

#[test]
fn reservations_queue_up() {
    for ((limit, later, first), second) in in_steps_or_drops([-10, -6]).into_iter().zip([(-10, 60), (-11, 90)]) {
        let limit = limit.unbounded_reservations();
        let mut world = World::default();
        assert_eq!(world.granted(limit.global().cost(5), sec(0)), tokens(5));
        assert_eq!(world.reserved(limit.global().cost(16), later), (tokens(first), seconds_after(later, 60)));
        let last = seconds_after(later, 30);
        let reserved = world.reserved(limit.global().cost(5), last);
        assert_eq!(reserved, (tokens(second.0), seconds_after(last, second.1)));
    }
}

#[test]
fn a_plain_call_waits_behind_every_reservation() {
    for limit in both(1, HOUR).map(Limit::unbounded_reservations) {
        let mut world = World::left(&limit.global(), tokens(0), sec(0));
        assert_eq!(world.reserved(limit.global().cost(100), sec(0)), (tokens(-100), sec(100 * 3_600)));
        assert_eq!(world.denied(limit.global(), sec(0)).retry_after().unwrap(), 101 * HOUR);
    }
}

#[test]
fn a_reservation_up_to_the_bound_is_accepted() {
    for limit in both(1, HOUR).map(|limit| limit.max_reserved(1)) {
        let mut world = World::left(&limit.global(), tokens(1), sec(0));
        assert_eq!(world.reserved(limit.global().cost(2), sec(0)), (tokens(-1), sec(3_600)));
        assert_eq!(world.denied(limit.global(), sec(0)).retry_after().unwrap(), 2 * HOUR);
    }
}

#[test]
fn more_than_capacity_and_bound_is_an_error() {
    for limit in both(1, SECOND).map(|limit| limit.max_reserved(2)) {
        let error = World::default().call(Call::reserve([limit.global().cost(4)]), sec(7)).unwrap_err();
        assert!(impossible(&error, limit.name(), 4, 3), "{error}");
    }
}

#[test]
fn a_reservation_beyond_the_bound_writes_nothing() {
    for limit in both(1, SECOND).map(|limit| limit.capacity(2).max_reserved(1)) {
        let mut world = World::left(&limit.global(), tokens(1), sec(0));
        let before = world.clone();
        let Ok(Answer::Denied(denied)) = world.call(Call::reserve([limit.global().cost(3)]), sec(0)) else {
            panic!("accepted")
        };
        assert_eq!((denied.retry_after().unwrap(), world), (SECOND, before));
    }
}

#[test]
fn a_limit_that_allows_no_reservations_owes_nothing() {
    for limit in both(1, SECOND).map(|limit| limit.max_reserved(0)) {
        let mut world = World::left(&limit.global(), tokens(0), sec(0));
        let answer = world.call(Call::reserve([limit.global()]), sec(0));
        assert!(matches!(&answer, Ok(Answer::Denied(denied)) if denied.retry_after().unwrap() == SECOND), "{answer:?}");
    }
}

#[test]
fn a_reservation_that_fits_is_a_grant_with_an_instant() {
    for limit in both(1, SECOND).map(|limit| limit.max_reserved(1)) {
        let mut world = World::left(&limit.global(), tokens(0), sec(0));
        assert_eq!(world.reserved(limit.global(), sec(0)), (tokens(-1), sec(1)));
    }
}

// F.1: five a minute.

#[test]
fn five_calls_and_no_sixth() {
    let mut world = World::default();
    for left in [4, 3, 2, 1, 0] {
        assert_eq!(world.granted(FIVE.global(), T0), tokens(left));
    }
    assert_eq!(world.denied(FIVE.global(), T0).remaining, tokens(0));
}

#[test]
fn refusals_do_not_reach_into_the_next_window() {
    let mut world = spent(&FIVE, 5);
    world.denied(FIVE.global(), T0);
    assert_eq!(world.granted(FIVE.global(), seconds_after(T0, 61)), tokens(4));
}

#[test]
fn a_window_is_full_again_as_the_next_one_starts() {
    let world = spent(&FIVE, 1);
    assert_eq!(due(world.look(FIVE.global(), T0).full_at), seconds_after(T0, 60));
}

#[test]
fn at_exactly_sixty_seconds_the_window_is_new() {
    let mut world = spent(&FIVE, 5);
    world.denied(FIVE.global(), at(T0.micros() + 59_999_999));
    assert_eq!(world.granted(FIVE.global(), seconds_after(T0, 60)), tokens(4));
}

#[test]
fn refused_calls_do_not_count() {
    let mut world = spent(&FIVE, 5);
    for _ in 0..100 {
        world.denied(FIVE.global(), T0);
    }
    world.balance(Call::credit(FIVE.global()), T0);
    assert_eq!(world.granted(FIVE.global(), T0), tokens(0));
}

// F.3: five every ten seconds, at most twenty.

#[test]
fn the_first_call_finds_the_bucket_full() {
    assert_eq!(World::default().granted(UPLOADS.global(), T0), tokens(19));
}

#[test]
fn five_come_back_after_ten_seconds() {
    assert_eq!(spent(&UPLOADS, 15).granted(UPLOADS.global(), seconds_after(T0, 10)), tokens(9));
}

#[test]
fn a_long_rest_fills_to_the_capacity() {
    assert_eq!(spent(&UPLOADS, 2).granted(UPLOADS.global(), seconds_after(T0, 3_600)), tokens(19));
}

#[test]
fn twenty_calls_and_the_next_in_ten_seconds() {
    let denied = spent(&UPLOADS, 20).denied(UPLOADS.global(), T0);
    assert_eq!((denied.remaining, denied.retry_after().unwrap()), (tokens(0), 10 * SECOND));
}

#[test]
fn refusals_do_not_delay_the_next_step() {
    let mut world = spent(&UPLOADS, 20);
    for _ in 0..5 {
        world.denied(UPLOADS.global(), T0);
    }
    assert_eq!(world.granted(UPLOADS.global(), seconds_after(T0, 10)), tokens(4));
}

#[test]
fn and_f16x_only_whole_steps_count_and_none_is_lost() {
    let mut world = spent(&UPLOADS, 15);
    assert_eq!(world.granted(UPLOADS.global(), seconds_after(T0, 15)), tokens(9));
    assert_eq!(world.granted(UPLOADS.global(), seconds_after(T0, 20)), tokens(13), "the grid of the first use is kept");
}

#[test]
fn a_late_refusal_waits_for_the_rest_of_the_step() {
    let mut world = spent(&UPLOADS, 20);
    assert_eq!(world.denied(UPLOADS.global(), seconds_after(T0, 9)).retry_after().unwrap(), SECOND);
    assert_eq!(world.granted(UPLOADS.global(), seconds_after(T0, 10)), tokens(4));
}

#[test]
fn to_f21_calls_slower_than_the_rate_are_all_granted() {
    every(&UPLOADS, 9 * SECOND, 400);
    let ten = Limit::stepped_bucket("ten", 10, MINUTE);
    every(&ten, 7 * SECOND, 515);
    every(&ten, 6 * SECOND, 600);
    every(&Limit::stepped_bucket("hundred", 100, SECOND), Duration::from_millis(20), 3_000);
}

#[test]
fn a_full_bucket_keeps_its_grid() {
    let mut world = World::default();
    let left = [0, 12, 20].map(|after| world.granted(UPLOADS.global(), seconds_after(T0, after)));
    assert_eq!(left, [19, 19, 19].map(tokens));
}

#[test]
fn the_seed_example_goes_20_15_20_2_7() {
    let mut world = World::default();
    assert_eq!(world.granted(UPLOADS.global().cost(5), T0), tokens(15));
    assert_eq!(world.look(UPLOADS.global(), seconds_after(T0, 10)).remaining, tokens(20));
    assert_eq!(world.granted(UPLOADS.global().cost(18), seconds_after(T0, 10)), tokens(2));
    assert_eq!(world.look(UPLOADS.global(), seconds_after(T0, 20)).remaining, tokens(7));
}

#[test]
fn ten_spent_of_ten_a_minute_leave_exactly_six_seconds_to_wait() {
    assert_eq!(spent(&BUCKET, 10).denied(BUCKET.global(), T0).retry_after().unwrap(), 6 * SECOND);
}

#[test]
fn sixty_a_second_against_ten_a_second_are_fifty_at_once_and_then_one_in_six() {
    let limit = Limit::token_bucket("fifty", 10, SECOND).capacity(50);
    let mut world = World::default();
    let granted: Vec<bool> = (0..600)
        .map(|n| world.call(Call::consume([limit.global()]), at(n * 1_000_000 / 60)))
        .map(|answer| matches!(answer, Ok(Answer::Granted { .. })))
        .collect();
    let until = |end: usize| granted[..end].iter().filter(|granted| **granted).count();
    assert_eq!(until(59), 59, "50 at once, and what drips meanwhile");
    assert!(
        (60..600).step_by(6).all(|start| granted[start..start + 6].iter().filter(|granted| **granted).count() == 1)
    );
}

// F.5: weights, and giving back.

#[test]
fn costs_count() {
    let ten = Limit::fixed_window("ten", 10, MINUTE).start(Duration::ZERO);
    let mut world = World::default();
    assert_eq!(world.granted(ten.global().cost(5), T0), tokens(5));
    assert_eq!(world.granted(ten.global().cost(5), T0), tokens(0));
    world.denied(ten.global(), T0);
}

#[test]
fn a_credit_stops_at_the_capacity() {
    assert_eq!(spent(&FIVE, 3).balance(Call::credit(FIVE.global().cost(10)), T0).remaining, tokens(5));
    assert_eq!(spent(&UPLOADS, 3).balance(Call::credit(UPLOADS.global().cost(10)), T0).remaining, tokens(20));
}

#[test]
fn a_credit_succeeds_where_calls_are_refused() {
    let mut world = spent(&FIVE, 5);
    world.denied(FIVE.global(), T0);
    assert_eq!(world.balance(Call::credit(FIVE.global().cost(2)), T0).remaining, tokens(2));
}

#[test]
fn a_credit_after_the_window_adds_at_most_up_to_the_capacity() {
    let mut world = spent(&FIVE, 3);
    assert_eq!(world.balance(Call::credit(FIVE.global().cost(3)), seconds_after(T0, 60)).remaining, tokens(5));
}

#[test]
fn a_cost_of_zero_is_granted_unless_there_is_a_debt_and_writes_nothing() {
    for limit in both(10, MINUTE) {
        for (value, granted) in [(1, true), (0, true), (-1, false)] {
            let mut world = World::left(&limit.global(), micros(value), sec(0));
            let before = world.clone();
            let answer = world.call(Call::consume([limit.global().cost(0)]), sec(0)).unwrap();
            assert_eq!(matches!(answer, Answer::Granted { .. }), granted, "{value}");
            assert_eq!(world, before);
        }
        let mut world = World::default();
        world.granted(limit.global().cost(0), sec(0));
        world.balance(Call::credit(limit.global().cost(0)), sec(0));
        world.balance(Call::debit(limit.global().cost(0)), sec(0));
        assert_eq!(world, World::default(), "no row appears");
    }
}

#[test]
fn a_credit_settles_the_refill_first() {
    let terms = terms_of(&BUCKET.global());
    let row = credit(&terms, Some(&used(9, sec(0), sec(54))), sec(30), tokens(2));
    assert_eq!(row, Some(used(2, sec(30), sec(42))));
    assert_eq!(terms.balance(&row.unwrap(), sec(36)), tokens(9));
}

// F.7: looking, and resetting.

#[test]
fn looking_changes_nothing() {
    for (limit, full) in [(FIVE, 5), (UPLOADS, 20)] {
        assert_eq!(World::default().look(limit.global(), T0).remaining, tokens(full));
        let mut world = spent(&limit, 2);
        let before = world.clone();
        for _ in 0..2 {
            assert_eq!(world.balance(Call::look(limit.global()), T0).remaining, tokens(full - 2));
        }
        assert_eq!(world, before);
    }
}

#[test]
fn a_reset_fills_up() {
    let mut world = spent(&FIVE, 5);
    world.denied(FIVE.global(), T0);
    world.balance(Call::reset(FIVE.global()), T0);
    assert_eq!(world.granted(FIVE.global(), T0), tokens(4));
}

// G: clocks, and changed definitions.

#[test]
fn a_clock_that_goes_back_changes_no_balance_and_no_instant() {
    let mut world = World::left(&BUCKET.global(), tokens(5), sec(100));
    assert_eq!(world.look(BUCKET.global(), sec(70)).remaining, tokens(5));
    assert_eq!(world.look(BUCKET.global(), sec(70)).ahead(), 30 * SECOND);
    assert_eq!(world.granted(BUCKET.global(), sec(70)), tokens(4));
    assert_eq!(world.state(&BUCKET.global()), Some(used(6, sec(100), sec(136))));
}

#[test]
fn a_reset_brings_a_row_from_the_future_back() {
    let mut world = World::left(&BUCKET.global(), tokens(-5), sec(100));
    world.balance(Call::reset(BUCKET.global()), sec(70));
    assert_eq!(world.state(&BUCKET.global()), Some(used(0, sec(70), sec(70))));
}

#[test]
fn a_start_in_the_future_is_aligned_backwards() {
    // The start is an hour and a second ahead of now.
    let limit = Limit::fixed_window("later", 10, MINUTE).start(Duration::from_secs(4_601));
    let mut world = World::default();
    assert_eq!(world.granted(limit.global(), sec(1_000)), tokens(9));
    assert_eq!(world.state(&limit.global()).map(|row| row.ts), Some(sec(4_601 - 61 * 60)));
}

#[test]
fn ten_years_fill_to_the_capacity() {
    for limit in [BUCKET, WINDOW, ALIGNED, Limit::stepped_bucket("ten", 10, MINUTE)] {
        let world = spent(&limit, 10);
        let later = seconds_after(T0, 10 * 366 * 86_400);
        assert_eq!(world.look(limit.global(), later).remaining, tokens(10));
    }
}

#[test]
fn a_new_capacity_counts_what_is_used() {
    for limit in [BUCKET, ALIGNED, Limit::stepped_bucket("ten", 10, MINUTE)] {
        let (wide, narrow) = (limit.clone().capacity(10), limit.capacity(5));
        let row = |value| World::left(&wide.global(), tokens(value), sec(0));
        assert_eq!(row(8).look(narrow.global(), sec(0)).remaining, tokens(3));
        assert_eq!(row(2).look(narrow.global(), sec(0)).remaining, tokens(-3));
        assert_eq!(World::left(&narrow.global(), tokens(2), sec(0)).look(wide.global(), sec(0)).remaining, tokens(7));
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
            let error = plain.call(Call::consume([asking(limit)]), ms(*now)).unwrap_err();
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

/// The same numbers as a token bucket and as a window that starts at the full period.
fn both(rate: u64, period: Duration) -> [Limit; 2] {
    [Limit::token_bucket("both", rate, period), Limit::fixed_window("both", rate, period).start(Duration::ZERO)]
}

/// Ten a minute as a bucket and as windows, the instant at which half of it came back, and a figure for each.
fn in_steps_or_drops(figures: [i64; 2]) -> [(Limit, Timestamp, i64); 2] {
    let [bucket, window] = both(10, MINUTE);
    [(bucket, sec(6), figures[0]), (window, sec(60), figures[1])]
}

/// A world in which so many were spent at [`T0`].
fn spent(limit: &Limit, count: u32) -> World {
    let mut world = World::default();
    world.granted(limit.global().cost(count), T0);
    world
}

/// Every call must be granted.
fn every(limit: &Limit, gap: Duration, calls: i64) {
    let gap = i64::try_from(gap.as_micros()).unwrap();
    let mut world = World::default();
    for n in 0..calls {
        world.granted(limit.global(), at(T0.micros() + n * gap));
    }
}

fn impossible(error: &Error, name: &str, asks: i64, most: i64) -> bool {
    matches!(error, Error::CostExceedsCapacity { limit, asked, max }
        if limit == name && *asked == tokens(asks) && *max == tokens(most))
}

fn seconds_after(start: Timestamp, seconds: i64) -> Timestamp {
    at(start.micros() + seconds * 1_000_000)
}

const BUCKET: Limit = Limit::token_bucket("bucket", 10, MINUTE).capacity(10);
const WINDOW: Limit = Limit::fixed_window("window", 10, MINUTE);
const ALIGNED: Limit = Limit::fixed_window("aligned", 10, MINUTE).start(Duration::ZERO);
const FIVE: Limit = Limit::fixed_window("five", 5, MINUTE).start(Duration::ZERO);
const UPLOADS: Limit = Limit::stepped_bucket("uploads", 5, Duration::from_secs(10)).capacity(20);

/// Some instant of our time, in milliseconds: sums of that size are where floats begin to fail.
const T: i64 = 1_754_913_600_123;

/// 2025-01-01T00:00:00Z.
const T0: Timestamp = at_second(1_735_689_600);

const fn at_second(seconds: i64) -> Timestamp {
    Timestamp::from_micros(seconds * 1_000_000)
}
