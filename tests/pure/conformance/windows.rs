//! F.1: five a minute.

use tollgate::plan::Verb;

use super::{FIVE, T0, seconds_after, spent};
use crate::world::{World, at, due, tokens};

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
    world.balance(Verb::credit(FIVE.global()), T0);
    assert_eq!(world.granted(FIVE.global(), T0), tokens(0));
}
