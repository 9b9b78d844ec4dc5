//! Verdicts, and the waits that they name.

use std::time::Duration;

use num_bigint::BigInt;
use num_rational::BigRational;
use num_traits::Zero;
use proptest::collection::vec;
use proptest::prelude::*;
use tollgate::algebra::{State, Timestamp};
use tollgate::plan::{Answer, Verb};
use tollgate::{Error, FitError, Grant, Tokens};

use crate::model::Model;
use crate::story::{
    EPOCH, amounts, any_kind, call, capacity, config, extreme_limits, extremes, limits, named, places, retell, stories,
    tell,
};
use crate::world::{World, at, due, micros, receipt, terms_of};

proptest! {
    #![proptest_config(config())]

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
                    Ok(Answer::Granted { grant: Grant { remaining, .. }, .. }) => {
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
            let (Some((cost, _)), Ok(Answer::Granted { grant, ready_at, .. })) = (event.asked(), &event.answer)
            else { continue };
            if cost == Tokens::ZERO || *ready_at == Timestamp::MAX {
                continue; // Nothing is written, or it is ready beyond the end of time.
            }
            let row = event.after.clone().unwrap();
            prop_assert!(model.balance(&row, *ready_at) >= BigRational::zero(), "{event:?}");
            if *ready_at == grant.decided_at.into() {
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
            world.call(Verb::consume(request.clone().cost(0)), between).unwrap();
            world.call(Verb::reserve(request.clone().cost(0)), between).ok();
            let fits = |more: &Tokens| *more <= capacity(&limit) && *more > Tokens::ZERO;
            if let Some(more) = left.checked_add(micros(1)).filter(fits) {
                let answer = world.call(Verb::consume(request.cost(more)), between);
                assert!(matches!(answer, Ok(Answer::Denied(_))), "{answer:?}");
            }
        });
        prop_assert_eq!(again.answers(), told.answers());
        prop_assert_eq!(again.world, told.world);
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
                    Ok(Answer::Granted { grant, ready_at, .. }) => {
                        prop_assert!(model.allows(&row, at(now), cost, reserving));
                        prop_assert!(ready_at >= at(now) && grant.decided_at >= grant.observed_at);
                        prop_assert_eq!(grant.observed_at, at(now).into());
                        let actual = micros(actual.saturating_abs());
                        world.clone().call(Verb::Settle(receipt(&grant.receipt.charges), actual), at(now)).ok();
                        let cancelled = world.clone().call(Verb::Cancel(receipt(&grant.receipt.charges)), at(now));
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
            for make in [Verb::credit, Verb::debit, Verb::Reset] {
                match world.clone().call(make(request.clone().cost(cost)), at(now)) {
                    Ok(Answer::Done(_)) | Err(Error::DoesNotFit { source: FitError::DebtTooDeep, .. }) => {}
                    other => prop_assert!(false, "{other:?}"),
                }
            }
        }
    }
}
