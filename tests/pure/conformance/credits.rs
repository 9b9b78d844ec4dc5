//! F.5: weights, and giving back.

use std::time::Duration;

use tollgate::plan::{Answer, Verb};
use tollgate::{Limit, MINUTE};

use super::{BUCKET, FIVE, T0, UPLOADS, both, seconds_after, spent};
use crate::world::{World, credit, micros, sec, terms_of, tokens, used};

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
    assert_eq!(spent(&FIVE, 3).balance(Verb::credit(FIVE.global().cost(10)), T0).remaining, tokens(5));
    assert_eq!(spent(&UPLOADS, 3).balance(Verb::credit(UPLOADS.global().cost(10)), T0).remaining, tokens(20));
}

#[test]
fn a_credit_succeeds_where_calls_are_refused() {
    let mut world = spent(&FIVE, 5);
    world.denied(FIVE.global(), T0);
    assert_eq!(world.balance(Verb::credit(FIVE.global().cost(2)), T0).remaining, tokens(2));
}

#[test]
fn a_credit_after_the_window_adds_at_most_up_to_the_capacity() {
    let mut world = spent(&FIVE, 3);
    assert_eq!(world.balance(Verb::credit(FIVE.global().cost(3)), seconds_after(T0, 60)).remaining, tokens(5));
}

#[test]
fn a_cost_of_zero_is_granted_unless_there_is_a_debt_and_writes_nothing() {
    for limit in both(10, MINUTE) {
        for (value, granted) in [(1, true), (0, true), (-1, false)] {
            let mut world = World::left(&limit.global(), micros(value), sec(0));
            let before = world.clone();
            let answer = world.call(Verb::consume(limit.global().cost(0)), sec(0)).unwrap();
            assert_eq!(matches!(answer, Answer::Granted { .. }), granted, "{value}");
            assert_eq!(world, before);
        }
        let mut world = World::default();
        world.granted(limit.global().cost(0), sec(0));
        world.balance(Verb::credit(limit.global().cost(0)), sec(0));
        world.balance(Verb::debit(limit.global().cost(0)), sec(0));
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
