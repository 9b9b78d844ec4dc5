//! F.3: five every ten seconds, at most twenty.

use std::time::Duration;

use tollgate::plan::{Answer, Verb};
use tollgate::{Limit, MINUTE, SECOND};

use super::{BUCKET, T0, UPLOADS, seconds_after, spent};
use crate::world::{World, at, tokens};

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
        .map(|n| world.call(Verb::consume(limit.global()), at(n * 1_000_000 / 60)))
        .map(|answer| matches!(answer, Ok(Answer::Granted { .. })))
        .collect();
    let until = |end: usize| granted[..end].iter().filter(|granted| **granted).count();
    assert_eq!(until(59), 59, "50 at once, and what drips meanwhile");
    assert!(
        (60..600).step_by(6).all(|start| granted[start..start + 6].iter().filter(|granted| **granted).count() == 1)
    );
}

/// Every call must be granted.
fn every(limit: &Limit, gap: Duration, calls: i64) {
    let gap = i64::try_from(gap.as_micros()).unwrap();
    let mut world = World::default();
    for n in 0..calls {
        world.granted(limit.global(), at(T0.micros() + n * gap));
    }
}
