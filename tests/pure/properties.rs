//! Properties of every limit and every story, against the exact model.

use std::time::Duration;

use num_bigint::BigInt;
use num_rational::BigRational;
use num_traits::{One, Zero};
use proptest::collection::vec;
use proptest::prelude::*;
use tollgate::algebra::{Ask, State, Timestamp};
use tollgate::plan::{Answer, Call};
use tollgate::{Charge, Error, FitError, Receipt, Request, Tokens};

use crate::model::{Flow, Model, span, whole};
use crate::story::{
    Amount, EPOCH, Event, Kind, Line, STORY, Step, all_but_first_use, amounts, any_kind, call, capacity, config, drip,
    extreme_limits, extremes, gaps, limits, named, places, retell, spans, steps, stories, sweep, take_turns, tell,
};
use crate::world::{World, at, credit, debit, decide, due, micros, receipt, terms_of};

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

    /// Each verdict is that of the exact balance, although the stored balance was rounded.
    #[test]
    fn verdicts_are_those_of_the_exact_balance(limit in limits(any_kind()), story in stories()) {
        let request = limit.global();
        let model = Model::of(&request);
        for event in tell(&limit, &story).events {
            let row = event.before.clone().unwrap_or_else(|| terms_of(&request).full(event.now));
            let balance = model.balance(&row, event.now).floor().to_integer();
            if let Some((cost, reserving)) = event.asked() {
                let allowed = model.allows(&row, event.now, cost, reserving);
                match &event.answer {
                    Ok(Answer::Granted { remaining, .. }) => {
                        prop_assert!(allowed, "{event:?}");
                        prop_assert_eq!(BigInt::from(remaining.micros()), balance - cost.micros());
                    }
                    Ok(Answer::Denied(denied)) => {
                        prop_assert!(!allowed, "{event:?}");
                        prop_assert_eq!(BigInt::from(denied.remaining.micros()), balance);
                    }
                    // Below this no row can hold the debt.
                    Err(Error::DoesNotFit { source: FitError::DebtTooDeep, .. }) => {
                        prop_assert!(balance - cost.micros() - &model.capacity <= i64::MIN.into());
                    }
                    other => prop_assert!(false, "{other:?}"),
                }
            }
        }
    }

    /// At the instant that a refusal names the same call, alone, is granted; a microsecond earlier it is not.
    #[test]
    fn waiting_is_exact(limit in limits(any_kind()), story in stories()) {
        for event in tell(&limit, &story).events {
            let (Some((cost, reserving)), Ok(Answer::Denied(denied))) = (event.asked(), &event.answer) else {
                continue;
            };
            let retry_at = due(denied.retry_at);
            if retry_at == Timestamp::MAX {
                continue; // Beyond the end of time.
            }
            prop_assert!(denied.retry_after().unwrap() > Duration::ZERO);
            let asked_at = |instant: i64| {
                let holding = |row| World::holding(&limit.global(), row);
                let mut world = event.before.clone().map_or_else(World::default, holding);
                world.call(call(reserving, [limit.global().cost(cost)]), at(instant))
            };
            let (early, then) = (asked_at(retry_at.micros() - 1), asked_at(retry_at.micros()));
            prop_assert!(matches!(early, Ok(Answer::Denied(_))), "{event:?} early: {early:?}");
            prop_assert!(matches!(then, Ok(Answer::Granted { .. })), "{event:?} then: {then:?}");
        }
    }

    /// The same for a call that asks several rows.
    #[test]
    fn waiting_is_exact_for_several_limits(
        limits in vec(limits(any_kind()), 1..5),
        rows in vec(prop::option::of(places()), 4),
        amounts in vec(amounts(), 4),
        reserving: bool,
    ) {
        let now = at(EPOCH);
        let mut world = World::default();
        let requests: Vec<_> = limits.iter().enumerate().map(|(n, limit)| named(limit, n).global()).collect();
        for (request, place) in requests.iter().zip(&rows) {
            if let Some(place) = place {
                world.put(request, place.state(request, now));
            }
        }
        let asking: Vec<_> = (requests.iter().zip(&amounts))
            .map(|(request, amount)| request.clone().cost(amount.resolve(&world, request, now, reserving)))
            .collect();
        let Ok(Answer::Denied(denied)) = world.clone().call(call(reserving, asking.clone()), now) else {
            return Ok(());
        };
        prop_assert!(denied.others.iter().all(|other| due(other.retry_at) <= due(denied.retry_at)));
        let retry_at = due(denied.retry_at);
        prop_assume!(retry_at < Timestamp::MAX);
        let then = world.clone().call(call(reserving, asking.clone()), retry_at);
        prop_assert!(matches!(then, Ok(Answer::Granted { .. })), "{then:?}");
        let early = world.call(call(reserving, asking), at(retry_at.micros() - 1));
        prop_assert!(matches!(early, Ok(Answer::Denied(_))), "{early:?}");
    }

    /// A reservation is ready at the first instant at which the balance that it leaves is no debt.
    #[test]
    fn a_reservation_is_ready_when_its_debt_is_paid(limit in limits(any_kind()), story in stories()) {
        let model = Model::of(&limit.global());
        for event in tell(&limit, &story).events {
            let (Some((cost, _)), Ok(Answer::Granted { ready_at, decided_at, .. })) = (event.asked(), &event.answer)
            else { continue };
            if cost == Tokens::ZERO || *ready_at == Timestamp::MAX {
                continue; // Nothing is written, or it is ready beyond the end of time.
            }
            let row = event.after.clone().unwrap();
            prop_assert!(model.balance(&row, *ready_at) >= BigRational::zero(), "{event:?}");
            if ready_at == decided_at {
                continue;
            }
            prop_assert!(model.balance(&row, at(ready_at.micros() - 1)) < BigRational::zero(), "{event:?}");
        }
    }

    /// Leaving every refused call out changes no other answer, and no row.
    #[test]
    fn a_refusal_changes_nothing(limit in limits(any_kind()), story in stories()) {
        let told = tell(&limit, &story);
        let mut script = told.script();
        let mut answers = told.answers();
        for n in (0..script.len()).rev() {
            if matches!(told.events[n].answer, Ok(Answer::Denied(_)) | Err(_)) {
                prop_assert_eq!(&told.events[n].before, &told.events[n].after);
                script.remove(n);
                answers.remove(n);
            }
        }
        let again = retell(&limit, &script, |_, _| {});
        prop_assert_eq!(again.answers(), answers);
        prop_assert_eq!(again.world, told.world);
    }

    /// Being asked often takes nothing and delays nothing: refused calls, free calls and looks go in between unseen.
    #[test]
    fn idle_time_can_be_split(limit in limits(any_kind()), story in stories(), part in 0_u32..=1_000) {
        let told = tell(&limit, &story);
        let mut last = None;
        let again = retell(&limit, &told.script(), |world, now| {
            let between = last.replace(now).map_or(now, |last: Timestamp| {
                at(last.micros() + (now.micros() - last.micros()) / 1_000 * i64::from(part))
            });
            let request = limit.global();
            let left = world.look(request.clone(), between).remaining;
            world.call(Call::consume([request.clone().cost(0)]), between).unwrap();
            world.call(Call::reserve([request.clone().cost(0)]), between).ok();
            let fits = |more: &Tokens| *more <= capacity(&limit) && *more > Tokens::ZERO;
            if let Some(more) = left.checked_add(micros(1)).filter(fits) {
                let answer = world.call(Call::consume([request.cost(more)]), between);
                assert!(matches!(answer, Ok(Answer::Denied(_))), "{answer:?}");
            }
        });
        prop_assert_eq!(again.answers(), told.answers());
        prop_assert_eq!(again.world, told.world);
    }

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

    /// A clock that goes back stands still: the row answers as at its own instant, and holds no more for it.
    #[test]
    fn a_clock_that_goes_back_stands_still(
        limit in limits(any_kind()),
        place in places(),
        back in 0..i64::MAX,
        amount in amounts(),
        reserving: bool,
    ) {
        let (request, terms) = (limit.global(), terms_of(&limit.global()));
        let row = place.state(&request, at(EPOCH));
        let (then, now) = (row.ts, at(row.ts.micros().saturating_sub(back)));
        let world = World::holding(&request, row.clone());
        let cost = amount.resolve(&world, &request, now, reserving);
        let ask = if reserving { Ask::reserve(cost) } else { Ask::consume(cost) };
        prop_assert_eq!(decide(&terms, Some(&row), now, ask), decide(&terms, Some(&row), then, ask));
        prop_assert_eq!(credit(&terms, Some(&row), now, cost), credit(&terms, Some(&row), then, cost));
        prop_assert_eq!(debit(&terms, Some(&row), now, cost), debit(&terms, Some(&row), then, cost));
        prop_assert_eq!(terms.refill(&row, now), State { value: row.value.min(Tokens::ZERO), ..row });
    }

    /// A caller that is refused while the clock stands behind a row waits until the clock has caught up, and as long as
    /// everybody from then on. A caller that waits for the named time is granted, and not a microsecond earlier.
    #[test]
    fn a_wait_behind_a_row_is_exact_by_the_clock_as_it_was_read(
        limit in limits(any_kind()),
        place in places(),
        back in 0..400_000_000_000_000_i64,
        amount in amounts(),
        reserving: bool,
    ) {
        let request = limit.global();
        let row = place.state(&request, at(EPOCH));
        let now = at(row.ts.micros() - back);
        let world = World::holding(&request, row.clone());
        let request = request.clone().cost(amount.resolve(&world, &request, now, reserving));
        let ask = |now| world.clone().call(call(reserving, [request.clone()]), now);
        match ask(now) {
            Ok(Answer::Denied(denied)) => {
                prop_assert_eq!((denied.observed_at, denied.decided_at), (now.into(), row.ts.into()));
                prop_assume!(due(denied.retry_at) < Timestamp::MAX);
                let wait = denied.retry_after().unwrap();
                prop_assert!(wait > Duration::from_micros(back.unsigned_abs()));
                let then = ask(now.plus(wait));
                prop_assert!(matches!(then, Ok(Answer::Granted { .. })), "{then:?}");
                let early = ask(now.plus(wait.saturating_sub(Duration::from_micros(1))));
                prop_assert!(matches!(early, Ok(Answer::Denied(_))), "{early:?}");
            }
            Ok(Answer::Granted { observed_at, decided_at, ready_at, .. }) => {
                prop_assert_eq!((observed_at, decided_at), (now, row.ts));
                prop_assert!(ready_at == now || ready_at > row.ts);
            }
            _ => {}
        }
    }

    /// Over a whole story with a clock that jumps both ways no row goes back in time; and by the furthest instant that
    /// was ever read, never over.
    #[test]
    fn a_clock_that_jumps_wins_nothing(
        limit in limits(any_kind()),
        story in stories(),
        jumps in vec(-3_i64..3, STORY),
    ) {
        let model = Model::of(&limit.global());
        let told = tell(&limit, &story);
        let script: Vec<_> = (told.script().into_iter().zip(jumps))
            .filter(|(line, _)| !matches!(line.step, Step::Reset)) // It goes by the clock, wherever that is.
            .map(|(line, jump)| {
                let now = BigInt::from(line.now.micros()) + BigInt::from(jump) * &model.period;
                Line { now: i64::try_from(now).map_or(Timestamp::MAX, at), ..line }
            })
            .collect();
        let mut furthest = Timestamp::MIN;
        let mut events = retell(&limit, &script, |_, _| {}).events;
        for event in &mut events {
            if let (Some(before), Some(after)) = (&event.before, &event.after) {
                // A row that is over is written anew, at the start of a step.
                prop_assert!(after.ts >= before.ts || before.is_over(event.now), "{event:?}");
            }
            // Only a write records an instant, and of settlements one that finds the row over.
            let moved = event.before.as_ref().map(|row| row.ts) != event.after.as_ref().map(|row| row.ts);
            if event.before != event.after && (moved || !event.settles()) {
                furthest = furthest.max(event.now);
            }
            event.now = furthest;
        }
        for (first, last, granted) in spans(&events) {
            let refilled = model.refilled(first.after.as_ref().unwrap().ts, first.now, last.now);
            prop_assert!(granted <= &model.capacity + &model.max_reserved + refilled, "{first:?} to {last:?}");
        }
    }

    /// One plan for many callers is as good as a plan for each, at the same instant.
    #[test]
    fn a_batch_equals_its_calls_one_after_another(
        limits in vec(limits(any_kind()), 3),
        rows in vec(prop::option::of(places()), 3),
        calls in vec((0_usize..5, prop::sample::subsequence(vec![0, 1, 2], 1..3), amounts()), 1..12),
    ) {
        let now = at(EPOCH);
        let requests: Vec<_> = limits.iter().enumerate().map(|(n, limit)| named(limit, n).global()).collect();
        let mut world = World::default();
        for (request, place) in requests.iter().zip(&rows) {
            if let Some(place) = place {
                world.put(request, place.state(request, now));
            }
        }
        let mut one_by_one = world.clone();
        let make = |(verb, asked, amount): &(usize, Vec<usize>, Amount)| {
            let asking = |reserving| {
                let cost = |request: &Request| amount.resolve(&world, request, now, reserving);
                asked.iter().map(|n| requests[*n].clone().cost(cost(&requests[*n]))).collect::<Vec<_>>()
            };
            match verb {
                0 => Call::consume(asking(false)),
                1 => Call::reserve(asking(true)),
                2 => Call::credit(asking(false).remove(0)),
                3 => Call::debit(asking(false).remove(0)),
                _ => Call::reset(asking(false).remove(0)),
            }
        };
        let singly: Vec<_> = calls.iter().map(|call| format!("{:?}", one_by_one.call(make(call), now))).collect();
        let mut together = world.clone();
        let batch = together.batch(calls.iter().map(make), now).unwrap();
        let batch: Vec<_> = batch.iter().map(|answer| format!("{answer:?}")).collect();
        prop_assert_eq!(batch, singly);
        prop_assert_eq!(together, one_by_one);
    }

    /// Several limits are taken all or none, in any order of the requests.
    #[test]
    fn several_limits_are_all_or_nothing_in_any_order(
        limits in vec(limits(any_kind()), 4),
        rows in vec(prop::option::of(places()), 4),
        (asked, shuffled) in vec((0_usize..4, amounts()), 1..7)
            .prop_flat_map(|asked| (Just(asked.clone()), Just(asked).prop_shuffle())),
        reserving: bool,
    ) {
        let now = at(EPOCH);
        let requests: Vec<_> = limits.iter().enumerate().map(|(n, limit)| named(limit, n).global()).collect();
        let mut world = World::default();
        for (request, place) in requests.iter().zip(&rows) {
            if let Some(place) = place {
                world.put(request, place.state(request, now));
            }
        }
        let before = world.clone();
        let asking = |asked: &[(usize, Amount)]| -> Vec<_> {
            let cost = |request: &Request, amount: &Amount| amount.resolve(&before, request, now, reserving);
            asked.iter().map(|(n, amount)| requests[*n].clone().cost(cost(&requests[*n], amount))).collect()
        };
        let mut other = world.clone();
        let answer = world.call(call(reserving, asking(&asked)), now);
        let reordered = other.call(call(reserving, asking(&shuffled)), now);
        prop_assert_eq!(&world, &other);
        match (&answer, &reordered) {
            (
                Ok(Answer::Granted { remaining, ready_at, receipt: Receipt { charges, .. }, .. }),
                Ok(Answer::Granted { remaining: r, ready_at: a, .. }),
            ) => {
                prop_assert_eq!((remaining, ready_at), (r, a));
                // Every row gave its charge, and each was charged once.
                let names: Vec<_> = charges.iter().map(Charge::limit).collect();
                prop_assert!(names.iter().enumerate().all(|(n, name)| !names[..n].contains(name)), "{names:?}");
                for charge in charges {
                    let named = |request: &&Request| request.limit().name() == charge.limit();
                    let request = requests.iter().find(named).unwrap().clone();
                    let [held, left] = [&before, &world].map(|world| world.look(request.clone(), now).remaining);
                    prop_assert_eq!(held.checked_sub(charge.cost), Some(left));
                }
            }
            (Ok(Answer::Denied(denied)), Ok(Answer::Denied(d))) => {
                prop_assert_eq!((denied.retry_at, denied.decided_at), (d.retry_at, d.decided_at));
                prop_assert_eq!(&world, &before);
            }
            (Err(one), Err(_)) => {
                let never = matches!(one, Error::CostExceedsCapacity { .. } | Error::DoesNotFit { source: FitError::DebtTooDeep, .. });
                prop_assert!(never, "{one}");
                prop_assert_eq!(&world, &before);
            }
            (one, two) => prop_assert!(false, "{one:?} but {two:?}"),
        }
    }

    /// Any row and any call at any instant: an answer or an error, never a panic, and nothing out of range.
    #[test]
    fn extremes_are_decided_like_everything_else(
        limit in extreme_limits(),
        value in extremes(),
        ts in extremes(),
        now in extremes(),
        amount in extremes(),
        actual in extremes(),
    ) {
        let (request, terms) = (limit.global(), terms_of(&limit.global()));
        let cost = micros(amount.saturating_abs());
        let world = World::holding(&request, State::new(micros(value), at(ts)).full_at(Timestamp::MAX));
        let model = Model::of(&request);
        for world in [World::default(), world] {
            for reserving in [false, true] {
                let row = world.state(&request).unwrap_or_else(|| terms.full(at(now)));
                let answer = world.clone().call(call(reserving, [request.clone().cost(cost)]), at(now));
                match answer {
                    Ok(Answer::Granted { ready_at, observed_at, decided_at, receipt: Receipt { charges, .. }, .. }) => {
                        prop_assert!(model.allows(&row, at(now), cost, reserving));
                        prop_assert!(ready_at >= observed_at && decided_at >= observed_at && observed_at == at(now));
                        let actual = micros(actual.saturating_abs());
                        world.clone().call(Call::settle(receipt(&charges), actual), at(now)).ok();
                        let cancelled = world.clone().call(Call::cancel(receipt(&charges)), at(now));
                        prop_assert!(matches!(cancelled, Ok(_) | Err(Error::DoesNotFit { source: FitError::BalanceTooLarge, .. })), "{cancelled:?}");
                    }
                    Ok(Answer::Denied(denied)) => {
                        prop_assert!(!model.allows(&row, at(now), cost, reserving));
                        prop_assert!(denied.retry_at.is_none_or(|at| at >= denied.decided_at));
                        prop_assert!(denied.decided_at >= denied.observed_at);
                    }
                    other => prop_assert!(
                        matches!(other, Err(Error::CostExceedsCapacity { .. } | Error::DoesNotFit { source: FitError::DebtTooDeep, .. })),
                        "{other:?}"
                    ),
                }
            }
            let balance = world.look(request.clone(), at(now));
            prop_assert!(balance.full_at.is_none_or(|at| at >= balance.as_of) && balance.as_of >= balance.observed_at);
            prop_assert!(balance.debt() >= Tokens::ZERO && balance.remaining <= balance.capacity);
            for make in [Call::credit, Call::debit, Call::reset] {
                match world.clone().call(make(request.clone().cost(cost)), at(now)) {
                    Ok(Answer::Done(_)) | Err(Error::DoesNotFit { source: FitError::DebtTooDeep, .. }) => {}
                    other => prop_assert!(false, "{other:?}"),
                }
            }
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
        let debited = world.balance(Call::debit(new.global().cost(micros(1))), now);
        prop_assert_eq!(debited.used.micros(), balance.used.micros().saturating_add(1));
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
