//! Months, and periods that callers name, against an exact model that counts their steps.

mod storm;
mod traces;

use std::time::Duration;

use chrono::{DateTime, Utc};
use num_bigint::BigInt;
use num_rational::BigRational;
use num_traits::One;
use proptest::collection::vec;
use proptest::prelude::*;
use tollgate::algebra::{State, Timestamp};
use tollgate::plan::{Answer, Verb};
use tollgate::{CallError, DAY, Error, Grant, Limit, LimitKind, LimitSpec, MINUTE, Request, Source};

use crate::model::span;
use crate::story::{EPOCH, amounts, capacity, config, limits, steps};
use crate::world::{World, at, due, left, micros, tokens};

pub(crate) const DAY_MICROS: i64 = 86_400_000_000;

pub(crate) fn named(request: Request, (start, end): (Timestamp, Timestamp)) -> Request {
    request.period(DateTime::<Utc>::from(start), DateTime::<Utc>::from(end))
}

/// The balance of a row at an instant by a named period, in whole micro-tokens.
fn held(limit: &Limit, row: Option<&State>, (start, end): (Timestamp, Timestamp), now: Timestamp) -> BigInt {
    let capacity = BigInt::from(capacity(limit).micros());
    let Some(row) = row else { return capacity };
    let now = now.max(row.ts);
    let mut steps = BigInt::from(0);
    if now >= start {
        let periods = |from, to| BigRational::new(span(from, to), span(start, end));
        let half = BigRational::new(1.into(), 2.into());
        steps = periods(start, now).floor().to_integer();
        steps += if row.ts < start {
            (periods(row.ts, start) + half).floor().to_integer().max(BigInt::one())
        } else {
            -periods(start, row.ts).floor().to_integer()
        };
    }
    (&capacity + row.value.micros() + steps * limit.spec().rate.micros()).min(capacity)
}

/// Months from an instant on: of 28 to 31 days, or cut short by a renewal.
fn months() -> impl Strategy<Value = Vec<(Timestamp, Timestamp)>> {
    vec((28_i64..=31, prop::option::weighted(0.2, 1_i64..28)), 4..9).prop_map(|days| {
        let mut start = EPOCH;
        let month = |(days, renewed): (i64, Option<i64>)| {
            let month = (at(start), at(start + days * DAY_MICROS));
            start += renewed.unwrap_or(days) * DAY_MICROS;
            month
        };
        days.into_iter().map(month).collect()
    })
}

fn billing(rate: i64, most: i64) -> Limit {
    let spec = LimitSpec::new("billing", LimitKind::Billing, micros(rate), Duration::ZERO);
    spec.with(|spec| spec.capacity = Some(micros(most))).try_into().unwrap()
}

proptest! {
    #![proptest_config(config())]

    /// For any row and period, the balance, the verdict and the wait of a caller that names the period again are those
    /// of the model.
    #[test]
    fn a_named_period_is_counted_exactly(
        limit in limits(steps()),
        value in -3_000_i64..=1_000,
        ts in -6_000_i64..2_000,
        length in prop_oneof![Just(1_000_000_i64), 1_000_000_i64..100_000_000, Just(30 * DAY_MICROS)],
        start in -3_000_i64..1_500,
        off in -1_i64..2,
        cost in amounts(),
        is_missing: bool,
    ) {
        let limit = billing(limit.spec().rate.micros(), capacity(&limit).micros());
        let now = at(EPOCH);
        let part = |thousandths: i64| i64::try_from(i128::from(length) * i128::from(thousandths) / 1_000).unwrap();
        let start = at(EPOCH + part(start) + off);
        let period = (start, at(start.micros() + length));
        let most = i128::from(capacity(&limit).micros());
        let value = micros(i64::try_from(most * i128::from(value) / 1_000).unwrap());
        let row = left(&limit.global(), value, at(EPOCH + part(ts)));
        let row = (!is_missing).then_some(row);
        let request = named(limit.global(), period);
        let world = row.clone().map_or_else(World::default, |row| World::holding(&limit.global(), row));
        let cost = cost.resolve(&world, &limit.global(), now, false);
        let asked_at = |now| world.clone().call(Verb::consume(request.clone().cost(cost)), now).unwrap();
        let holds = |now| held(&limit, row.as_ref(), period, now) >= cost.micros().into();
        let remaining = BigInt::from(world.look(request.clone(), now).remaining.micros());
        prop_assert_eq!(remaining, held(&limit, row.as_ref(), period, now));
        match asked_at(now) {
            Answer::Granted { .. } => prop_assert!(holds(now)),
            Answer::Denied(denied) => {
                prop_assert!(!holds(now));
                let retry_at = due(denied.retry_at);
                if retry_at < Timestamp::MAX {
                    let early = at(retry_at.micros() - 1);
                    prop_assert!(holds(retry_at) && !holds(early), "{retry_at:?}");
                    prop_assert!(matches!(asked_at(retry_at), Answer::Granted { .. }), "then");
                    prop_assert!(matches!(asked_at(early), Answer::Denied(_)), "early");
                }
            }
            other => panic!("{other:?}"),
        }
    }

    /// Callers name the true periods, renewals in mid-period among them. No period of a window gets more than its
    /// capacity, and nobody can tell whether rows are swept, with debts of several periods or without.
    #[test]
    fn true_periods_are_kept_and_sweeps_are_not_seen(
        months in months(),
        rate in 1_i64..4,
        times in 1_i64..4,
        is_window: bool,
        debt in 0_i64..9,
        story in vec((0_i64..20, 1_i64..9), 1..20),
    ) {
        let most = if is_window { rate } else { rate * times };
        let limit = billing(rate, most);
        let (mut kept, mut swept) = (World::default(), World::default());
        let (mut now, mut granted) = (EPOCH, vec![0; months.len()]);
        if !is_window {
            for world in [&mut kept, &mut swept] {
                world.balance(Verb::debit(named(limit.global(), months[0]).cost(micros(debt))), at(now));
            }
        }
        for (days, cost) in story {
            now += days * DAY_MICROS + 7;
            let Some(month) = (0..months.len()).rev().find(|month| months[*month].0 <= at(now)) else { break };
            if at(now) >= months[month].1 {
                break;
            }
            let call = || Verb::consume(named(limit.global(), months[month]).cost(micros(cost.min(most))));
            swept.sweep(at(now));
            let [one, other] = [&mut kept, &mut swept].map(|world| world.call(call(), at(now)).unwrap());
            match (&one, &other) {
                (Answer::Granted { grant: one, .. }, Answer::Granted { grant: other, .. }) => {
                    prop_assert_eq!(one.remaining, other.remaining);
                    granted[month] += cost.min(most);
                }
                (Answer::Denied(one), Answer::Denied(other)) => {
                    prop_assert_eq!((one.remaining, one.retry_at), (other.remaining, other.retry_at));
                    prop_assert!(!is_window || due(one.retry_at) == months[month].1, "{one:?}");
                }
                other => prop_assert!(false, "{other:?}"),
            }
            prop_assert!(!is_window || granted[month] <= most, "{granted:?}");
        }
    }

    /// A webhook that comes late by less than the shortest month: callers go on in the month of before, and no month
    /// gets more than the capacity.
    #[test]
    fn a_month_that_is_named_late_costs_nothing(
        days in vec((28_i64..=31, 0_i64..28), 6),
        most in 1_i64..5,
        story in vec((0_i64..15, 1_i64..5), 1..25),
    ) {
        let (limit, mut world) = (billing(most, most), World::default());
        let mut starts = vec![EPOCH];
        starts.extend(days.iter().scan(EPOCH, |start, (days, _)| {
            *start += days * DAY_MICROS;
            Some(*start)
        }));
        let (mut now, mut granted) = (EPOCH, vec![0; starts.len()]);
        for (days_on, cost) in story {
            now += days_on * DAY_MICROS;
            let Some(month) = (0..days.len()).find(|month| now < starts[month + 1]) else { break };
            let is_known = |known: &usize| *known == 0 || starts[*known] + days[*known].1 * DAY_MICROS <= now;
            let known = (0..=month).rev().find(is_known).unwrap();
            let period = (at(starts[known]), at(starts[known + 1]));
            let request = named(limit.global(), period).cost(micros(cost.min(most)));
            if let Answer::Granted { .. } = world.call(Verb::consume(request), at(now)).unwrap() {
                granted[month] += cost.min(most);
            }
            prop_assert!(granted[month] <= most, "{granted:?} in {starts:?}");
        }
    }

    /// The mistake that the first sentence of the documentation warns of.
    #[test]
    fn a_start_that_is_computed_from_the_present_refills_at_each_call(gaps in vec(1_i64..1_000_000, 1..9)) {
        let limit = billing(1_000_000, 1_000_000);
        let (mut world, mut now) = (World::default(), EPOCH);
        for gap in gaps {
            now += gap;
            world.granted(named(limit.global(), (at(now), at(now + 30 * DAY_MICROS))), at(now));
        }
    }
}

#[test]
fn what_is_no_period_is_an_error_and_a_renewal_is_the_same_call() {
    let (window, bucket) = (Limit::billing("billing", 3), Limit::token_bucket("bucket", 3, DAY));
    let period = |length: Duration| (at(EPOCH), at(EPOCH).plus(length));
    let backwards = (at(EPOCH), at(EPOCH - 1));
    for (request, expected) in [
        (named(window.global(), period(Duration::from_micros(999_999))), CallError::PeriodOutOfRange),
        (named(window.global(), backwards), CallError::PeriodOutOfRange),
        (named(window.global(), (Timestamp::MIN, Timestamp::MAX)), CallError::PeriodOutOfRange),
        (named(bucket.global(), period(DAY)), CallError::PeriodOfKind),
        (named(Limit::monthly("monthly", 3).global(), period(DAY)), CallError::PeriodOfKind),
        (named(Limit::fixed_window("window", 3, DAY).global(), period(DAY)), CallError::PeriodOfKind),
        (window.global(), CallError::PeriodMissing),
    ] {
        let verbs = [Verb::consume, Verb::reserve, Verb::check, Verb::debit].map(|verb| verb(request.clone()));
        for verb in verbs {
            let error = World::default().call(verb, at(EPOCH)).unwrap_err();
            assert!(matches!(error, Error::Call { source, .. } if source == expected), "{error}");
        }
    }
    for verb in [Verb::credit(window.global()), Verb::Reset(window.global()), Verb::Look(window.global())] {
        assert_eq!(World::default().balance(verb, at(EPOCH)).remaining, tokens(3));
    }
    let two = [named(window.global(), period(DAY)), named(window.global(), period(2 * DAY))];
    let error = World::default().call(Verb::consume(two), at(EPOCH)).unwrap_err();
    assert!(matches!(error, Error::Call { source: CallError::ConflictingDefinitions, .. }), "{error}");
    let mut world = World::default();
    let sources = [period(DAY), (at(EPOCH + 5), at(EPOCH + 5).plus(DAY))].map(|period| {
        match world.call(Verb::consume(named(window.global(), period).once("job")), at(EPOCH + 9)).unwrap() {
            Answer::Granted { grant: Grant { source, .. }, .. } => source,
            other => panic!("{other:?}"),
        }
    });
    assert_eq!(sources, [Source::Database, Source::Repeated]);
    let request = named(window.key("a"), period(MINUTE));
    assert_eq!(serde_json::from_str::<Request>(&serde_json::to_string(&request).unwrap()).unwrap(), request);
    // A charge of the period before comes back to nobody; one of this period does.
    let mut world = World::default();
    let of_first = world.taken(Verb::consume(named(window.global(), period(DAY)).cost(2)), at(EPOCH));
    let next = (at(EPOCH + DAY_MICROS), at(EPOCH + 2 * DAY_MICROS));
    let of_next = world.taken(Verb::consume(named(window.global(), next).cost(2)), at(next.0.micros() + 5));
    for (receipt, left) in [(of_first, 1), (of_next, 3)] {
        world.settled(Verb::Settle(receipt, tokens(0)), at(next.0.micros() + 9)).unwrap();
        assert_eq!(world.look(named(window.global(), next), at(next.0.micros() + 9)).remaining, tokens(left));
    }
}

#[test]
fn who_names_a_period_before_it_begins_takes_what_is_left_of_the_one_that_runs() {
    let (limit, mut world) = (billing(3, 3), World::default());
    let day = |day: i64| at(EPOCH + day * DAY_MICROS);
    let (running, next) = ((day(0), day(28)), (day(28), day(59)));
    let ask = |period| named(limit.global(), period).cost(micros(3));
    world.granted(ask(next), day(20));
    assert_eq!(due(world.denied(ask(running), day(21)).retry_at), day(28));
    assert_eq!(due(world.denied(ask(next), day(22)).retry_at), day(28));
    world.granted(ask(next), day(28));
}
