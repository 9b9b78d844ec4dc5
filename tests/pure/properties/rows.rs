//! Rows: when a sweep may take one, how a write changes it, and how another definition reads it.

use num_bigint::BigInt;
use num_rational::BigRational;
use num_traits::{One, Zero};
use proptest::collection::vec;
use proptest::prelude::*;
use tollgate::Tokens;
use tollgate::algebra::Timestamp;
use tollgate::plan::Verb;

use crate::model::{Flow, Model, whole};
use crate::story::{
    EPOCH, Event, Kind, Step, all_but_first_use, amounts, any_kind, capacity, config, gaps, limits, places, retell,
    stories, sweep, tell,
};
use crate::world::{World, at, credit, debit, micros, terms_of};

proptest! {
    #![proptest_config(config())]

    /// A row that is full again can be deleted at any moment, and nobody can tell.
    #[test]
    fn a_full_row_equals_an_absent_one(limit in limits(all_but_first_use()), story in stories()) {
        // A receipt is the exception: a missing row takes nothing back, and tokens used beyond the charge are lost on
        // it.
        let mut script = tell(&limit, &story).events;
        script.retain(|event| !(event.settles() && event.change() < Tokens::ZERO));
        let script: Vec<_> = script.iter().map(Event::line).collect();
        let told = retell(&limit, &script, |_, _| {});
        let again = retell(&limit, &script, |world, now| sweep(world, &limit, now));
        for (told, again) in told.events.iter().zip(&again.events).filter(|(told, _)| !told.settles()) {
            prop_assert_eq!(format!("{:?}", told.answer), format!("{:?}", again.answer));
            prop_assert_eq!(told.balances, again.balances);
        }
    }

    /// A grid of first use that was swept may begin anew, later than the old one would have gone on. From the first
    /// call on, the new row holds no more than the old one at any instant, so it names no earlier wait either.
    #[test]
    fn a_swept_grid_of_first_use_begins_no_earlier(
        limit in limits(Just(Kind::FirstUse)),
        place in places(),
        rest in gaps(),
        amount in amounts(),
        later in vec(gaps(), 1..10),
    ) {
        let (request, terms) = (limit.global(), terms_of(&limit.global()));
        let row = place.state(&request, at(EPOCH));
        let swept_at = terms.full_at(&row).max(row.ts);
        let mut now = rest.after(&limit, swept_at, &[]);
        prop_assume!(now < at(Timestamp::MAX.micros() / 2));
        let (mut kept, mut swept) = (World::holding(&request, row), World::default());
        let cost = amount.resolve(&swept, &request, now, false);
        prop_assert_eq!(kept.granted(request.clone().cost(cost), now), swept.granted(request.clone().cost(cost), now));
        for gap in later {
            now = gap.after(&limit, now, &[]);
            let (kept, swept) = (kept.look(request.clone(), now), swept.look(request.clone(), now));
            prop_assert!(swept.remaining <= kept.remaining, "{now:?}: {kept:?} {swept:?}");
            prop_assert!(swept.full_at >= kept.full_at, "{now:?}: {kept:?} {swept:?}");
        }
    }

    /// A write gains nothing and loses less than a micro-token, whether it is compared with the row before it or with a
    /// balance that was never rounded since the beginning.
    #[test]
    fn a_write_gains_nothing_and_loses_less_than_a_micro_token(limit in limits(any_kind()), story in stories()) {
        let request = limit.global();
        let (model, terms) = (Model::of(&request), terms_of(&request));
        // The row's balance without any rounding, and how often the row was written.
        let mut exact: Option<(BigRational, Timestamp)> = None;
        let mut writes = BigInt::zero();
        for event in tell(&limit, &story).events {
            if event.before == event.after {
                continue;
            }
            let after = event.after.clone().unwrap();
            let before = event.before.clone().filter(|row| !row.is_over(event.now));
            let before = before.unwrap_or_else(|| terms.full(event.now));
            let change = event.change();
            let is_live = event.before.as_ref().is_some_and(|row| !row.is_over(event.now));
            if event.settles() && is_live {
                prop_assert_eq!(before.value.checked_add(change), Some(after.value));
                let (value, ts) = exact.take().unwrap_or_else(|| (model.left(&before), before.ts));
                exact = Some((value + whole(change), ts));
                continue;
            }
            let full = BigRational::from(model.capacity.clone());
            let moved = |balance: BigRational| match &event.step {
                Step::Reset => full.clone(),
                _ => (balance + whole(change)).min(full.clone()),
            };
            let once = moved(model.balance(&before, event.now)) - model.left(&after);
            prop_assert!(once >= BigRational::zero() && once < BigRational::one(), "{event:?}");

            writes += 1;
            let (value, ts) = exact.take().unwrap_or_else(|| (model.left(&before), before.ts));
            let value = moved(model.grown(&value, ts, event.now));
            let ever = &value - model.left(&after);
            prop_assert!(ever >= BigRational::zero() && ever < writes.clone().into(), "{event:?}");
            exact = Some((value, after.ts));
        }
    }

    /// A written row stands at the instant of the write, or at the last step before it: no step is counted twice or
    /// lost.
    #[test]
    fn a_written_row_stands_at_its_last_step(limit in limits(any_kind()), story in stories()) {
        let model = Model::of(&limit.global());
        for event in tell(&limit, &story).events {
            let (Some(before), Some(after)) = (&event.before, &event.after) else { continue };
            if before == after || matches!(event.step, Step::Reset) || event.settles() && before.is_over(event.now) {
                continue;
            }
            if event.settles() {
                prop_assert_eq!(after.ts, before.ts, "{:?}", event);
            } else if let Flow::Drip = model.flow {
                prop_assert_eq!(after.ts, event.now, "{:?}", event);
            } else {
                let steps = |after, until| model.steps(before.ts, after, until);
                prop_assert!(steps(after.ts, event.now).is_zero(), "{event:?}");
                prop_assert!(after.ts == before.ts || steps(at(after.ts.micros() - 1), after.ts).is_one(), "{event:?}");
            }
        }
    }

    /// A row holds at most the capacity, and owes at most the bound unless it was debited.
    #[test]
    fn a_row_stays_between_its_bounds(limit in limits(any_kind()), story in stories()) {
        let model = Model::of(&limit.global());
        let mut debited = false;
        for event in tell(&limit, &story).events {
            debited |= event.change() < Tokens::ZERO && event.asked().is_none();
            let Some(row) = &event.after else { continue };
            // Tokens that a receipt brings back to a full row are cut when the row is read.
            prop_assert!(event.settles() || event.before == event.after || row.value <= Tokens::ZERO, "{event:?}");
            prop_assert!(debited || model.left(row) >= BigRational::from(-&model.max_reserved), "{event:?}");
        }
    }

    #[test]
    fn a_credit_gives_what_fits_and_a_debit_takes_all(
        limit in limits(any_kind()),
        place in places(),
        rest in gaps(),
        amount in 0..=i64::MAX,
    ) {
        let request = limit.global();
        let (model, terms) = (Model::of(&request), terms_of(&request));
        let row = place.state(&request, at(EPOCH));
        let now = rest.after(&limit, row.ts, &[]);
        let before = model.balance(&row, now).floor().to_integer();

        let credited = credit(&terms, Some(&row), now, micros(amount));
        let full = (&before + amount).min(model.capacity.clone());
        prop_assert_eq!(credited.is_some(), full > before);
        if let Some(credited) = credited {
            prop_assert_eq!(model.left(&credited), full.into());
        }
        prop_assert_eq!(credit(&terms, None, now, micros(amount)), None, "an absent row is full");

        let left = before - amount;
        match debit(&terms, Some(&row), now, micros(amount)) {
            Ok(Some(debited)) => prop_assert_eq!(model.left(&debited), left.into()),
            Ok(None) => prop_assert_eq!(amount, 0),
            Err(_) => prop_assert!(left < i64::MIN.into()),
        }
    }

    /// A row reads under every definition: used tokens stay used, under any capacity.
    #[test]
    fn a_changed_definition_reads_the_row_as_it_is(
        old in limits(any_kind()),
        new in limits(any_kind()),
        story in stories(),
    ) {
        let told = tell(&old, &story);
        let Some(row) = told.world.state(&old.global()) else { return Ok(()) };
        let now = row.ts;
        let used = -i128::from(row.value.min(Tokens::ZERO).micros());
        // One more does not fit into a row.
        if row.is_over(now) || used >= i128::from(i64::MAX) {
            return Ok(());
        }
        let balance = told.world.look(new.global(), now);
        prop_assert_eq!(i128::from(balance.remaining.micros()), i128::from(capacity(&new).micros()) - used);
        prop_assert_eq!(i128::from(balance.used.micros()), used);
        let mut world = told.world.clone();
        let debited = world.balance(Verb::debit(new.global().cost(micros(1))), now);
        prop_assert_eq!(debited.used.micros(), balance.used.micros().saturating_add(1));
    }
}
