//! C: the rows that are written, for a token bucket and for a window that starts now.

use tollgate::algebra::Timestamp;
use tollgate::plan::{Answer, Plan, Verb};
use tollgate::{Error, HOUR, Limit, MINUTE, SECOND};

use super::{both, seconds_after};
use crate::world::{World, sec, tokens, used};

#[test]
fn the_first_call_writes_one_row() {
    for limit in both(1, SECOND) {
        let plan = Plan::new([Verb::consume(limit.global())]).unwrap();
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
        let error = World::default().call(Verb::consume(limit.global().cost(2)), sec(7)).unwrap_err();
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
        let error = World::default().call(Verb::reserve(limit.global().cost(4)), sec(7)).unwrap_err();
        assert!(impossible(&error, limit.name(), 4, 3), "{error}");
    }
}

#[test]
fn a_reservation_beyond_the_bound_writes_nothing() {
    for limit in both(1, SECOND).map(|limit| limit.capacity(2).max_reserved(1)) {
        let mut world = World::left(&limit.global(), tokens(1), sec(0));
        let before = world.clone();
        let Ok(Answer::Denied(denied)) = world.call(Verb::reserve(limit.global().cost(3)), sec(0)) else {
            panic!("accepted")
        };
        assert_eq!((denied.retry_after().unwrap(), world), (SECOND, before));
    }
}

#[test]
fn a_limit_that_allows_no_reservations_owes_nothing() {
    for limit in both(1, SECOND).map(|limit| limit.max_reserved(0)) {
        let mut world = World::left(&limit.global(), tokens(0), sec(0));
        let answer = world.call(Verb::reserve(limit.global()), sec(0));
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

/// Ten a minute as a bucket and as windows, the instant at which half of it came back, and a figure for each.
fn in_steps_or_drops(figures: [i64; 2]) -> [(Limit, Timestamp, i64); 2] {
    let [bucket, window] = both(10, MINUTE);
    [(bucket, sec(6), figures[0]), (window, sec(60), figures[1])]
}

fn impossible(error: &Error, name: &str, asks: i64, most: i64) -> bool {
    matches!(error, Error::CostExceedsCapacity { limit, asked, max }
        if limit == name && *asked == tokens(asks) && *max == tokens(most))
}
