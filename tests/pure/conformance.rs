//! Known figures, case by case: the letter and number of a case begin its test's name.
//!
//! The figures come from two older limiters, whose behaviour was written down as facts, and from what both of them
//! lack. Where they give a negative balance together with a wait, a plain call is refused here until the same instant,
//! and a reservation without a bound is given both.

mod buckets;
mod credits;
mod refills;
mod rows;
mod windows;

use std::time::Duration;

use tollgate::algebra::Timestamp;
use tollgate::plan::Verb;
use tollgate::{Limit, MINUTE, SECOND};

use crate::world::{World, at, sec, tokens, used};

// F.7: looking, and resetting.

#[test]
fn looking_changes_nothing() {
    for (limit, full) in [(FIVE, 5), (UPLOADS, 20)] {
        assert_eq!(World::default().look(limit.global(), T0).remaining, tokens(full));
        let mut world = spent(&limit, 2);
        let before = world.clone();
        for _ in 0..2 {
            assert_eq!(world.balance(Verb::Look(limit.global()), T0).remaining, tokens(full - 2));
        }
        assert_eq!(world, before);
    }
}

#[test]
fn a_reset_fills_up() {
    let mut world = spent(&FIVE, 5);
    world.denied(FIVE.global(), T0);
    world.balance(Verb::Reset(FIVE.global()), T0);
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
    world.balance(Verb::Reset(BUCKET.global()), sec(70));
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

/// The same numbers as a token bucket and as a window that starts at the full period.
fn both(rate: u64, period: Duration) -> [Limit; 2] {
    [Limit::token_bucket("both", rate, period), Limit::fixed_window("both", rate, period).start(Duration::ZERO)]
}

/// A world in which so many were spent at [`T0`].
fn spent(limit: &Limit, count: u32) -> World {
    let mut world = World::default();
    world.granted(limit.global().cost(count), T0);
    world
}

fn seconds_after(start: Timestamp, seconds: i64) -> Timestamp {
    at(start.micros() + seconds * 1_000_000)
}

const BUCKET: Limit = Limit::token_bucket("bucket", 10, MINUTE).capacity(10);
const WINDOW: Limit = Limit::fixed_window("window", 10, MINUTE);
const ALIGNED: Limit = Limit::fixed_window("aligned", 10, MINUTE).start(Duration::ZERO);
const FIVE: Limit = Limit::fixed_window("five", 5, MINUTE).start(Duration::ZERO);
const UPLOADS: Limit = Limit::stepped_bucket("uploads", 5, Duration::from_secs(10)).capacity(20);

/// 2025-01-01T00:00:00Z.
const T0: Timestamp = at_second(1_735_689_600);

const fn at_second(seconds: i64) -> Timestamp {
    Timestamp::from_micros(seconds * 1_000_000)
}
