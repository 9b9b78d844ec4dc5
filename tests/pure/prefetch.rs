//! Tokens taken ahead: charged for calls to come, spent later, and given back as far as time has not brought them back.
//!
//! The promise is about the tokens spent, dated at the instant of their slice's charge, and netted with nothing. The
//! grants less the tokens that are given back would say nearly nothing: a plain settlement keeps that, too.

mod story;

use proptest::prelude::*;
use tollgate::algebra::{Rest, State, Timestamp};
use tollgate::plan::{Answer, Verb};
use tollgate::{Grant, Limit, MINUTE, Tokens};

use self::story::{Deed, settings, stories, tell};
use crate::story::{Kind, config, limit};
use crate::world::{World, at, micros, ms, sec, terms_of, tokens, used};

proptest! {
    #![proptest_config(config())]

    /// The promise, by the instants at which slices were charged.
    #[test]
    fn what_is_spent_is_within_the_bound_at_the_instants_of_the_charges(
        setting in settings(),
        story in prop_oneof![stories(false, false, false), stories(true, false, false)],
    ) {
        for (from, to, spent, ..) in tell(&setting, &story).spans() {
            let bound = setting.bound(to - from, false);
            prop_assert!(spent <= bound, "{spent} of {bound} from {from} to {to}");
        }
    }

    /// The promise, by the instants at which callers were granted: a span is longer by less than `max_age`.
    #[test]
    fn what_is_spent_in_a_span_is_within_the_bound_of_a_span_longer_by_max_age(
        setting in settings(),
        story in prop_oneof![stories(false, false, false), stories(true, false, false)],
    ) {
        let spends = tell(&setting, &story).spends;
        for (n, (from, _)) in spends.iter().enumerate() {
            let mut spent = 0;
            for (to, amount) in &spends[n..] {
                spent += amount;
                let bound = setting.bound(to - from + setting.max_age - 1, false);
                prop_assert!(spent <= bound, "{spent} of {bound} from {from} to {to}");
            }
        }
    }

    /// Stronger: the row never holds more than one that was charged, at the same instants, only the tokens that were
    /// spent.
    #[test]
    fn the_row_is_never_above_one_that_was_charged_what_was_spent(
        setting in settings(),
        story in prop_oneof![stories(false, false, false), stories(true, false, false)],
    ) {
        let (told, request) = (tell(&setting, &story), setting.limits[0].global());
        let (terms, mut other) = (terms_of(&request), World::default());
        for (deed, row) in &told.rows {
            // Each write rounds down what came back.
            let written = |world: &World, clock| {
                let row = world.state(&request).unwrap_or_else(|| terms.full(at(clock)));
                terms.refill(&row, at(clock))
            };
            match *deed {
                Deed::Charge { of, clock } => {
                    let row = written(&other, clock);
                    let value = micros(row.value.micros() - told.charged[of].spent);
                    other.put(&request, State::new(value, row.ts));
                }
                Deed::Write { clock } => other.put(&request, written(&other, clock)),
                Deed::Gone => other.delete(&request),
            }
            if let (Some(row), Some(other)) = (row, other.state(&request)) {
                prop_assert!(row.value <= other.value, "{row:?} above {other:?}");
            }
        }
    }

    /// A process forgets its slice whenever its definition changes, also where it changes back, so the slice is never
    /// given back by the rate of another definition.
    #[test]
    fn what_is_spent_is_within_the_bound_where_definitions_change(
        setting in settings(),
        story in prop_oneof![stories(false, false, true), stories(true, false, true)],
    ) {
        for (from, to, spent, ..) in tell(&setting, &story).spans() {
            let bound = setting.bound(to - from, true);
            prop_assert!(spent <= bound, "{spent} of {bound} from {from} to {to}");
        }
    }

    /// After any accident elsewhere, the only tokens beyond the bound are those that are given back of slices that were
    /// open when the span began. So the size of a slice bounds all accidents. (Where the clock goes back, a reset
    /// begins it anew.)
    #[test]
    fn accidents_add_no_more_than_what_lay_in_memory(
        setting in settings(),
        story in stories(false, true, true),
    ) {
        for (from, to, spent, risen, old) in tell(&setting, &story).spans() {
            let bound = setting.bound(to - from, true) + risen + old;
            prop_assert!(spent <= bound, "{spent} of {bound} from {from} to {to}");
        }
    }

    /// A sixteenth of the balance, in whole tokens where the cost is; nothing where that is less than two calls.
    #[test]
    fn a_slice_is_a_sixteenth_of_what_is_there_at_most(
        capacity in 32_i64..2_000,
        taken in 0_i64..2_000,
        demand in 2_i64..200,
    ) {
        let limit = limit(Kind::Drip, 1, 1_000_000, capacity * 1_000_000, 0);
        let (mut world, request, now) = (World::default(), limit.global(), sec(1));
        world.call(Verb::debit(request.clone().cost(tokens(taken))), now).unwrap();
        let there = world.look(request.clone(), now).remaining.micros();
        let size = demand.min(there / 16_000_000);
        match world.call(Verb::Ahead(request.clone().cost(tokens(demand)).up_to(2)), now) {
            Ok(Answer::Granted { grant: Grant { amount, .. }, .. }) => {
                prop_assert!(size >= 2 && amount == tokens(size), "{amount} of {there}");
            }
            Ok(Answer::Denied(_)) => prop_assert!(size < 2, "nothing of {there}"),
            other => prop_assert!(false, "{other:?}"),
        }
    }
}

/// One of a second, of which one is taken ahead at 0. The row has gained one by the time that it is given back.
#[test]
fn what_time_has_brought_back_is_not_given_back() {
    let (mut world, limit) = (World::default(), limit(Kind::Drip, 1_000_000, 1_000_000, 1_000_000, 0));
    let rest = taken_ahead(&mut world, &limit, 1, sec(0));
    assert_eq!(world.granted(limit.global(), sec(1)), Tokens::ZERO);
    assert_eq!(world.balance(Verb::GiveBack(limit.global(), rest), sec(1)).remaining, Tokens::ZERO);
    // Half of the time brings half of it back.
    let mut world = World::default();
    let rest = taken_ahead(&mut world, &limit, 1, sec(0));
    let balance = world.balance(Verb::GiveBack(limit.global(), rest), ms(500));
    assert_eq!(balance.remaining, tokens(1));
    assert_eq!(world.state(&limit.global()), Some(used(0, ms(500), ms(500))));
}

/// The row's step lies at 0, the charge at 3, the next step at 4: what this brought it brought in the place of the
/// rest.
#[test]
fn steps_are_counted_from_where_the_row_stood() {
    let (mut world, limit) = (World::default(), limit(Kind::FirstUse, 1_000_000, 4_000_000, 1_000_000, 0));
    world.put_left(&limit.global(), tokens(1), sec(0));
    let rest = taken_ahead(&mut world, &limit, 1, sec(3));
    assert_eq!(rest.stood_at, sec(0));
    assert_eq!(world.granted(limit.global(), sec(4)), Tokens::ZERO);
    assert_eq!(world.balance(Verb::GiveBack(limit.global(), rest), sec(4)).remaining, Tokens::ZERO);
}

#[test]
fn a_row_that_is_missing_gets_nothing_back() {
    let (mut world, limit) = (World::default(), limit(Kind::Drip, 1_000_000, 1_000_000, 5_000_000, 0));
    let rest = taken_ahead(&mut world, &limit, 2, sec(0));
    world.delete(&limit.global());
    world.balance(Verb::GiveBack(limit.global(), rest), ms(1));
    assert_eq!(world.state(&limit.global()), None);
}

#[test]
fn what_is_late_is_not_given_back() {
    let (mut world, limit) = (World::default(), Limit::token_bucket("limit", 1, MINUTE).capacity(5));
    let rest = Rest { until: ms(100), ..taken_ahead(&mut world, &limit, 2, sec(0)) };
    let back = |world: &mut World, now| world.balance(Verb::GiveBack(limit.global(), rest), now).remaining;
    assert!(back(&mut world.clone(), at(99_999)) > tokens(4));
    assert!(back(&mut world, ms(100)) < tokens(4));
}

fn taken_ahead(world: &mut World, limit: &Limit, size: i64, now: Timestamp) -> Rest {
    match world.call(Verb::consume(limit.global().cost(tokens(size))), now).unwrap() {
        Answer::Granted { stands_at, .. } => Rest { tokens: tokens(size), stood_at: stands_at, until: Timestamp::MAX },
        other => panic!("not granted: {other:?}"),
    }
}
