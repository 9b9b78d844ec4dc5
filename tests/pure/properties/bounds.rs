//! Between any two grants a limit grants no more than its bound.

use num_bigint::BigInt;
use num_rational::BigRational;
use proptest::collection::vec;
use proptest::prelude::*;

use crate::model::{Model, span};
use crate::story::{Kind, STORY, config, drip, limits, retell, spans, steps, stories, sweep, take_turns, tell};

proptest! {
    #![proptest_config(config())]

    /// Every pair of grants, the first and the last of a span: nothing is granted beyond the bound, to the micro-token.
    #[test]
    fn never_over_continuous(limit in limits(drip()), story in stories()) {
        let model = Model::of(&limit.global());
        let events = tell(&limit, &story).events;
        for (first, last, granted) in spans(&events) {
            let refilled = model.dripped(first.now, last.now).floor().to_integer();
            prop_assert!(granted <= &model.capacity + &model.max_reserved + refilled, "{first:?} to {last:?}");
        }
    }

    /// The same over steps. The steps are those of the grid that was in force at the first grant, because a reset may
    /// begin another.
    #[test]
    fn never_over_stepped(limit in limits(steps()), story in stories()) {
        let model = Model::of(&limit.global());
        let events = tell(&limit, &story).events;
        for (first, last, granted) in spans(&events) {
            let anchor = first.after.as_ref().unwrap().ts;
            let steps = model.steps(anchor, first.now, last.now);
            let most = BigRational::new(span(first.now, last.now), model.period.clone()).ceil().to_integer();
            prop_assert!(steps <= most, "{steps} steps in {first:?} to {last:?}");
            let bound = &model.capacity + &model.max_reserved + &model.rate * steps;
            prop_assert!(granted <= bound, "{first:?} to {last:?}");
        }
    }

    /// A span that began before the sweep stays within the bound of the grid that it began on.
    #[test]
    fn a_swept_grid_of_first_use_is_never_over(limit in limits(Just(Kind::FirstUse)), story in stories()) {
        let model = Model::of(&limit.global());
        let told = tell(&limit, &story);
        let events = retell(&limit, &told.script(), |world, now| sweep(world, &limit, now)).events;
        for (first, last, granted) in spans(&events) {
            let refilled = model.refilled(first.after.as_ref().unwrap().ts, first.now, last.now);
            prop_assert!(granted <= &model.capacity + &model.max_reserved + refilled, "{first:?} to {last:?}");
        }
    }

    /// While two continuous definitions are live: the larger capacity, the deeper debt and the larger rate.
    #[test]
    fn two_live_continuous_definitions_are_bounded_by_the_larger_of_each(
        both in [limits(drip()), limits(drip())],
        story in stories(),
        turns in vec(0_usize..2, STORY),
    ) {
        let models = [Model::of(&both[0].global()), Model::of(&both[1].global())];
        let larger = |number: fn(&Model) -> &BigInt| number(&models[0]).max(number(&models[1])).clone();
        let events = take_turns(&both, &story, &turns);
        for (first, last, granted) in spans(&events) {
            let drips = models.each_ref().map(|model| model.dripped(first.now, last.now));
            let refilled = drips.into_iter().max().unwrap().floor().to_integer();
            let bound = larger(|model| &model.capacity) + larger(|model| &model.max_reserved) + refilled;
            prop_assert!(granted <= bound, "{first:?} to {last:?}");
        }
    }
}
