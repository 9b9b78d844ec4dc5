//! Stories of budgets that were forgiven, or kept for too long, before rows were marked with their periods.

use std::time::Duration;

use chrono::{TimeZone, Utc};
use tollgate::algebra::{List, State, Timestamp};
use tollgate::plan::Verb;
use tollgate::{DAY, Limit, Receipt, Request, SECOND, Tokens};

use crate::periods::named;
use crate::world::{World, due, tokens};

const LLM: Limit = Limit::billing("llm", 200);

/// Noon of a day, in months from January 2026.
fn day(month: u32, day: u32) -> Timestamp {
    midnight(month, day).plus(DAY / 2)
}

fn midnight(month: u32, day: u32) -> Timestamp {
    let year = 2026 + i32::try_from((month - 1) / 12).unwrap();
    Utc.with_ymd_and_hms(year, (month - 1) % 12 + 1, day, 0, 0, 0).unwrap().into()
}

fn of_month(limit: &Limit, month: u32) -> Request {
    named(limit.key("k"), (midnight(month, 1), midnight(month + 1, 1)))
}

fn row(world: &World) -> State {
    world.state(&LLM.key("k")).unwrap()
}

/// When the row's period ends, and when the row is full.
fn ends(world: &World) -> (Option<Timestamp>, Timestamp) {
    (row(world).list.period_end(), row(world).full_at)
}

/// T1: a caller that lags names a month that is over. A refusal writes nothing, so the row keeps the guess.
#[test]
fn a_month_that_is_named_late_is_not_forgiven_before_it_ends() {
    let mut world = World::default();
    world.granted(of_month(&LLM, 2).cost(200), day(3, 2));
    assert_eq!(ends(&world), (Some(day(4, 1)), day(4, 1)));
    for at in [day(3, 5), day(3, 30)] {
        assert_eq!(due(world.denied(of_month(&LLM, 3), at).retry_at), midnight(4, 1));
    }
    world.granted(of_month(&LLM, 3).cost(200), midnight(4, 1));
}

/// A caller that lags by months takes all. A month that began before that call brings no second capacity, the next one
/// does.
#[test]
fn a_month_that_began_before_a_late_call_does_not_refill_behind_it() {
    let mut world = World::default();
    world.granted(of_month(&LLM, 2).cost(100), day(2, 2));
    world.granted(of_month(&LLM, 2).cost(200), day(6, 20));
    world.denied(of_month(&LLM, 6), day(6, 21));
    world.granted(of_month(&LLM, 7).cost(200), midnight(7, 1));
}

/// T2: tokens beyond the plan come back one period after the others, and no sooner.
#[test]
fn use_beyond_the_charge_goes_by_the_mark() {
    let mut world = World::default();
    let receipt = world.taken(Verb::consume(of_month(&LLM, 2).cost(200)), day(2, 2));
    settle(&mut world, &receipt, 201);
    assert_eq!(ends(&world), (Some(midnight(3, 1)), day(4, 1)));
    let mut world = World::default();
    let receipt = world.taken(Verb::consume(of_month(&LLM, 2).cost(150)), day(2, 2));
    settle(&mut world, &receipt, 151);
    assert_eq!(ends(&world), (Some(midnight(3, 1)), midnight(3, 1)));
    // A plan that was lowered since is granted at the end, too.
    let lowered = Limit::billing("llm", 100);
    assert_eq!(due(world.denied(of_month(&lowered, 2), day(2, 20)).retry_at), midnight(3, 1));
    world.granted(of_month(&lowered, 3).cost(100), midnight(3, 1));
}

fn settle(world: &mut World, receipt: &Receipt, actual: i64) {
    world.settled(Verb::Settle(receipt.clone(), tokens(actual)), day(2, 3)).unwrap();
}

/// T4: the row says when its period ends, whatever its balance is.
#[test]
fn the_mark_has_the_end_where_full_at_has_it_not() {
    let key = || LLM.key("k");
    for verb in [Verb::credit(key().cost(200)), Verb::Reset(key())] {
        let mut world = World::default();
        world.granted(of_month(&LLM, 11).cost(100), day(11, 3));
        world.balance(verb, day(11, 4));
        assert_eq!(row(&world).list.period_end(), Some(midnight(12, 1)));
        assert!(row(&world).is_over(day(11, 4)));
    }
    let large = Limit::try_from(LLM.spec().with(|spec| spec.capacity = Some(tokens(600)))).unwrap();
    for (cost, periods) in [(350, 1), (450, 2)] {
        let mut world = World::default();
        world.balance(Verb::debit(of_month(&large, 11).cost(cost)), day(11, 3));
        let full_at = midnight(12, 1).plus(periods * Duration::from_hours(30 * 24 * 9 / 8));
        assert_eq!(ends(&world), (Some(midnight(12, 1)), full_at));
    }
    // A debt that is made before the named period begins is repaid by whole periods.
    for cost in [100, 450] {
        let mut world = World::default();
        world.balance(Verb::debit(of_month(&LLM, 12).cost(cost)), day(11, 28));
        assert_eq!(row(&world).list.period_end(), Some(midnight(12, 1)));
        assert_eq!(row(&world).full_at >= midnight(14, 1), cost > 400, "{cost}");
    }
}

/// T5: one capacity for each other period that is named, and then nothing more.
#[test]
fn two_periods_that_overlap_grant_one_capacity_each() {
    let mut world = World::default();
    let [one, other] = [1, 15].map(|first| named(LLM.key("k"), (midnight(11, first), midnight(12, first))).cost(200));
    world.granted(one.clone(), day(11, 2));
    world.granted(other.clone(), day(11, 15));
    for request in [one, other] {
        world.denied(request, day(11, 20));
    }
}

/// T6: a period that ends now has no later start than the row.
#[test]
fn a_period_that_is_computed_back_from_the_present_refills_nothing() {
    let mut world = World::default();
    let back = |at: Timestamp| named(LLM.key("k"), (Timestamp::from_micros(at.micros() - MONTH), at)).cost(200);
    world.granted(back(day(11, 3)), day(11, 3));
    for date in 4..30 {
        world.denied(back(day(11, date)), day(11, date));
    }
}

const MONTH: i64 = 30 * 86_400_000_000;

/// T7: a door with another definition of the name charges the row, and forgives nothing.
#[test]
fn a_definition_of_another_kind_forgives_nothing_of_the_period() {
    let strangers = [
        Limit::fixed_window("llm", 200, 30 * DAY),
        Limit::fixed_window("llm", 200, SECOND),
        Limit::token_bucket("llm", 200, SECOND),
        Limit::stepped_bucket("llm", 200, SECOND),
        Limit::sliding_window("llm", 200, SECOND),
        Limit::concurrency("llm", 200, SECOND),
        Limit::monthly("llm", 200),
    ];
    for stranger in strangers {
        let mut world = World::default();
        world.granted(of_month(&LLM, 11).cost(199), day(11, 3));
        assert_eq!(world.look(stranger.key("k"), day(11, 20)).remaining, tokens(1), "{stranger:?}");
        if stranger.lease().is_none() {
            world.balance(Verb::debit(stranger.key("k")), day(11, 20));
        } else {
            world.granted(stranger.key("k"), day(11, 20));
        }
        let held = State { value: tokens(-200), ..row(&world) };
        assert_eq!(held, row(&world), "{stranger:?}");
        assert_eq!(ends(&world), (Some(midnight(12, 1)), midnight(12, 1)), "{stranger:?}");
        assert_eq!(due(world.denied(stranger.key("k"), day(11, 29)).retry_at), midnight(12, 1), "{stranger:?}");
        world.denied(of_month(&LLM, 11), day(11, 30));
        world.granted(of_month(&LLM, 12).cost(200), midnight(12, 1));
        // Tokens that a stranger took come back until the period ends.
        let receipt = world.taken(Verb::consume(Limit::token_bucket("llm", 300, SECOND).key("k").cost(90)), day(12, 3));
        world.settled(Verb::Settle(receipt.clone(), tokens(0)), day(12, 4)).unwrap();
        assert_eq!(world.look(LLM.key("k"), day(12, 5)).remaining, Tokens::ZERO);
    }
}

#[test]
fn a_monthly_limit_turns_with_the_month_whatever_its_length() {
    let monthly = Limit::monthly("llm", 200).max_reserved(1_000);
    let on_the_31st = monthly.clone().start(30 * DAY);
    for (limit, turns) in [
        (&monthly, [midnight(2, 1), midnight(3, 1), midnight(4, 1), midnight(26, 1)]),
        (&on_the_31st, [midnight(2, 28), midnight(3, 31), midnight(4, 30), midnight(26, 28)]),
    ] {
        let mut world = World::default();
        for turn in turns {
            world.granted(limit.key("k").cost(200), turn);
            let List::Month { end, .. } = row(&world).list else { panic!("{:?}", row(&world)) };
            assert_eq!(row(&world).full_at, end);
            world.denied(limit.key("k"), Timestamp::from_micros(end.micros() - 1));
            assert!(world.clone().granted(limit.key("k"), end) < tokens(200));
        }
    }
    // Reservations cross as many months as they need, exactly; 2028 is a leap year.
    let mut world = World::default();
    let (_, ready_at) = world.reserved(monthly.key("k").cost(450), day(25, 20));
    assert_eq!(ready_at, midnight(27, 1));
    assert_eq!(ends(&world), (Some(midnight(26, 1)), midnight(28, 1)));
    let receipt = world.taken(Verb::reserve(monthly.key("k").cost(100)), day(26, 3));
    world.settled(Verb::Cancel(receipt), day(26, 29)).unwrap();
    assert_eq!(world.look(monthly.key("k"), day(26, 29)).remaining, tokens(-50));
    assert_eq!(world.look(monthly.key("k"), midnight(27, 1)).remaining, tokens(150));
}

/// Months to repay are bounded by the end of time alone.
#[test]
fn the_deepest_debt_of_a_month_is_repaid_at_the_end_of_time() {
    let deep = Limit::try_from(LLM.spec().with(|spec| {
        (spec.kind, spec.rate, spec.capacity) = (tollgate::LimitKind::Monthly, Tokens::from_micros(1), Some(tokens(1)));
    }));
    let (deep, mut world) = (deep.unwrap().unbounded_reservations(), World::default());
    let most = Tokens::from_micros(i64::MAX - 1_000_000);
    assert_eq!(world.reserved(deep.key("k").cost(most), day(1, 1)).1, Timestamp::MAX);
    assert_eq!(ends(&world), (Some(midnight(2, 1)), Timestamp::MAX));
}
