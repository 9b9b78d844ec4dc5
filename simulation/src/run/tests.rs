use std::num::NonZeroU64;

use tollgate::{HOUR, Limit, SECOND, SlowDown};

use super::*;
use crate::traffic::{Arrivals, Traffic};
use crate::trial::{Asking, EndedBy};

#[test]
fn work_that_ends_gives_its_place_to_the_next_call() {
    let trial = Trial { work: Some(2 * SECOND), ..of([Limit::concurrency("renders", 1, 30 * SECOND)]) };
    assert_eq!(granted(&trial, [(0, 1), (1, 1), (2, 1), (3, 1), (4, 1)]), [true, false, true, false, true]);
}

#[test]
fn what_was_not_used_is_there_when_work_ends() {
    let used = |used| Trial { work: Some(2 * SECOND), used, ..of([TEN]) };
    let calls = [(0, 6), (1, 6), (2, 6), (3, 6)];
    assert_eq!(granted(&used(None), calls), [true, false, false, false]);
    assert_eq!(granted(&used(Some(Tokens::new(4))), calls), [true, false, true, false]);
    // Of ten, eight were used: more than the six that were charged.
    let beyond = used(Some(Tokens::new(8)));
    assert_eq!(granted(&beyond, [(0, 6), (2, 4)]), [true, false]);
    assert_eq!(granted(&beyond, [(0, 6), (1, 4)]), [true, true], "not before");
    let shards = Limit::token_bucket("ten", 10, HOUR).shards(4);
    assert_eq!(granted(&Trial { rules: of([shards]).rules, ..beyond }, [(0, 0), (2, 10)]), [true, false]);
}

#[test]
fn the_work_of_a_reservation_begins_when_it_is_ready() {
    let limit = Limit::token_bucket("jobs", 1, SECOND).capacity(10).max_reserved(10);
    let trial = Trial { reserve: true, work: Some(SECOND), used: Some(Tokens::ZERO), ..of([limit]) };
    assert_eq!(granted(&trial, [(0, 20), (2, 10), (11, 20)]), [true, false, true], "ready at ten, settled at eleven");
}

#[test]
fn every_so_many_th_client_dies_and_what_it_took_comes_back_at_the_lapse() {
    let trial = |lapses_after| Trial { rules: of([TEN]).rules, dies: NonZeroU64::new(2), lapses_after, ..FREE };
    let calls = [(0, 10), (2, 10), (4, 10), (6, 10), (8, 10), (10, 10)];
    assert_eq!(granted(&trial(None), calls), [true, true, false, false, false, false]);
    assert_eq!(granted(&trial(Some(3 * SECOND)), calls), [true, true, false, true, false, true]);
}

#[test]
fn calls_end_in_the_order_of_their_ends() {
    let limit = Limit::sliding_window("twenty", 20, HOUR);
    let trial = Trial { dies: NonZeroU64::new(2), lapses_after: Some(10 * SECOND), rules: of([limit]).rules, ..FREE };
    let calls = [(0, 10), (1, 10), (2, 10), (3, 10), (4, 10), (11, 10)];
    assert_eq!(granted(&trial, calls), [true, true, true, true, false, true]);
}

#[test]
fn who_comes_after_the_lapse_settles_nothing() {
    let limit = Limit::wallet("credits").overdraft(10);
    let work = |span| Trial { work: Some(span), used: Some(Tokens::new(4)), ..of([limit.clone()]) };
    let trial = |span| Trial { lapses_after: Some(2 * SECOND), ..work(span) };
    assert_eq!(granted(&trial(3 * SECOND), [(0, 10), (1, 1), (2, 1), (4, 16)]), [true, false, true, false]);
    assert_eq!(granted(&trial(2 * SECOND), [(0, 10), (2, 7), (2, 6)]), [true, false, true], "at that instant it does");
}

#[test]
fn a_lease_runs_out_by_itself_and_with_it_the_right_to_settle_but_for_a_call_that_lapses() {
    let rules = of([TEN, Limit::concurrency("streams", 10, 30 * SECOND)]).rules;
    let dead = Trial { rules, dies: NonZeroU64::new(1), lapses_after: Some(2 * SECOND), ..FREE };
    assert_eq!(granted(&dead, [(0, 10), (3, 10), (30, 10)]), [true, false, true]);
    let slow = Trial { work: Some(40 * SECOND), dies: None, lapses_after: Some(50 * SECOND), ..dead };
    assert_eq!(granted(&slow, [(0, 10), (39, 10), (40, 10)]), [true, false, true]);
    assert_eq!(granted(&Trial { lapses_after: None, ..slow }, [(0, 10), (60, 10)]), [true, false]);
}

#[test]
fn each_end_of_a_call_is_told() {
    let rules = of([TEN, Limit::concurrency("streams", 10, 2 * SECOND)]).rules;
    let dies = NonZeroU64::new(2);
    let mut simulation = Simulation::new(Trial { rules, dies, lapses_after: Some(5 * SECOND), ..FREE });
    for second in [0, 0] {
        simulation.call(&arrival(second, 1), |_, _, _| ()).unwrap();
    }
    let by = Timestamp::from_micros(9_000_000);
    let ends = std::iter::from_fn(|| simulation.end_next(by, |_, _, _| ()).unwrap());
    let ends: Vec<_> = ends.map(|Ended { at, call, by }| (at.micros() / 1_000_000, call, by)).collect();
    assert_eq!(ends, [(1, 1, EndedBy::Work), (2, 2, EndedBy::Lease), (5, 2, EndedBy::Lapse)]);
}

#[test]
fn rows_are_shown_before_and_after_whatever_changes_them() {
    let trial = Trial { rules: of([Limit::token_bucket("any", 1, HOUR)]).rules, ..FREE };
    let look = trial.rules[0].look(&Key::GLOBAL).unwrap();
    let (mut simulation, mut seen) = (Simulation::new(trial), Vec::new());
    for second in [0, 0, 3] {
        let show = |rows: &RowMap, at: Timestamp, granted_at: Option<Timestamp>| {
            let is_full = rows.balance(&look, at) >= Tokens::ONE;
            seen.push((at.micros() / 1_000_000, is_full, granted_at.map(Timestamp::micros)));
        };
        simulation.call(&arrival(second, 1), show).unwrap();
    }
    let first = [(0, true, None), (0, false, None)];
    let refused = [(0, false, None)];
    let after_its_end = [(1, false, None), (1, true, Some(0)), (3, true, None), (3, false, None)];
    assert_eq!(seen, [&first[..], &refused, &after_its_end].concat());
}

/// The example of the design: 100 a second for ten tenants, one of which asks for 500.
#[test]
fn guaranteed_shares_refuse_nobody_within_his_own_and_lend_the_rest() {
    let tokens = Tokens::new;
    let own = Limit::token_bucket("own", 10, SECOND).capacity(20);
    let shared = Limit::token_bucket("shared", 100, SECOND).capacity(300);
    let rules = [(own, false), (shared, true)].map(|(limit, is_global)| Rule { limit, is_global, follows: None });
    let trial = Trial { rules: rules.into(), asking: Asking::Lending(tokens(200)), ..Trial::default() };
    let traffic = ["poisson rate=4 per=1s clients=9 key=quiet", "burst size=10 every=20s clients=9 key=quiet"];
    let traffic = traffic.into_iter().chain(["poisson rate=500 per=1s key=noisy"]).map(|text| text.parse().unwrap());
    let traffic: Vec<Traffic> = traffic.collect();
    let mut counts = [0, 0];
    let mut simulation = Simulation::new(trial);
    for call in Arrivals::new(&traffic, 1) {
        let answer = simulation.call(&call, |_, _, _| ()).unwrap().unwrap();
        let is_granted = matches!(answer, Answer::Granted { .. });
        assert!(is_granted || call.key.as_str() == "noisy", "{call:?}");
        counts[usize::from(is_granted)] += 1;
    }
    let [refused, granted] = counts;
    assert!(refused > 0 && granted >= 6_000, "{granted} in a minute");
}

/// 60 calls a second for two minutes. The service takes 50 a second, and 15 from the tenth second to the seventieth.
#[test]
fn a_limit_that_follows_its_service_fails_little_and_leaves_little_of_it() {
    let fixed = faltering(None);
    assert!(fixed.failed > 0.3 && fixed.used > 0.98, "{fixed:?}");
    let follows = faltering(Some(SlowDown::new().recovers(30 * SECOND)));
    assert!(follows.failed < 0.04 && follows.used > 0.87, "{follows:?}");
    let slower = faltering(Some(SlowDown::new().recovers(120 * SECOND)));
    assert!(slower.failed < follows.failed && slower.used < follows.used, "a longer recovery tries less: {slower:?}");
}

/// The shares of a service that falters: how much of what it takes is used, and how many of the granted calls fail.
#[derive(Debug)]
struct Shares {
    used: f64,
    failed: f64,
}

fn faltering(follows: Option<SlowDown>) -> Shares {
    let limit = Limit::token_bucket("theirs", 50, SECOND).capacity(10);
    let service = Some("rate=50 per=1s falters=15 from=10s for=60s".parse().unwrap());
    let rules = vec![Rule { limit, is_global: true, follows }];
    let mut simulation = Simulation::new(Trial { rules, service, ..Trial::default() });
    let (traffic, mut granted) = (["poisson rate=60 per=1s for=120s".parse().unwrap()], 0);
    for call in Arrivals::new(&traffic, 1) {
        let answer = simulation.call(&call, |_, _, _| ()).unwrap();
        granted += u32::from(matches!(answer, Some(Answer::Granted { .. })));
    }
    let failed = f64::from(u32::try_from(simulation.failed()).unwrap());
    let [granted, taken] = [granted, 60 * 50 + 60 * 15].map(f64::from);
    Shares { used: (granted - failed) / taken, failed: failed / granted }
}

#[test]
fn funds_are_in_the_wallets_whichever_limits_these_are() {
    let rule = |limit, is_global| Rule { limit, is_global, follows: None };
    let many = rule(Limit::token_bucket("many", 100, SECOND), false);
    let (own, shared) = (rule(Limit::wallet("own"), false), rule(Limit::wallet("shared"), true));
    for rules in [[many.clone(), own.clone()], [own, many.clone()], [many.clone(), shared.clone()], [shared, many]] {
        let trial = Trial { rules: rules.into(), funds: Tokens::new(4), ..Trial::default() };
        assert_eq!(granted(&trial, [(0, 3), (1, 2), (2, 1)]), [true, false, true], "{trial:?}");
    }
}

#[test]
fn limits_that_are_asked_in_turn_are_charged_only_where_those_before_refuse() {
    let trial = of([Limit::fixed_window("plan", 2, HOUR), Limit::wallet("credits")]);
    let trial = Trial { asking: Asking::InTurn, funds: Tokens::new(3), ..trial };
    let looks: Vec<_> = trial.rules.iter().map(|rule| rule.look(&Key::GLOBAL).unwrap()).collect();
    let mut simulation = Simulation::new(trial);
    let left = [(0, 1), (1, 2), (2, 1), (3, 2), (4, 1)].map(|(second, cost)| {
        let call = arrival(second, cost);
        let answer = simulation.call(&call, |_, _, _| ()).unwrap().unwrap();
        let [plan, credits] =
            [0, 1].map(|place| simulation.rows().balance(&looks[place], call.at).micros() / 1_000_000);
        (matches!(answer, Answer::Granted { .. }), plan, credits)
    });
    assert_eq!(left, [(true, 1, 3), (true, 1, 1), (true, 0, 1), (false, 0, 1), (true, 0, 0)]);
}

/// Which calls are granted; each has a second and a cost.
fn granted<const N: usize>(trial: &Trial, calls: [(i64, u32); N]) -> [bool; N] {
    let mut simulation = Simulation::new(trial.clone());
    calls.map(|(second, cost)| {
        let answer = simulation.call(&arrival(second, cost), |_, _, _| ()).unwrap();
        matches!(answer, Some(Answer::Granted { .. }))
    })
}

fn arrival(second: i64, cost: u32) -> Arrival {
    let at = Timestamp::from_micros(second * 1_000_000);
    Arrival { at, key: Key::GLOBAL, cost: Tokens::new(cost) }
}

fn of(limits: impl IntoIterator<Item = Limit>) -> Trial {
    let rules = limits.into_iter().map(|limit| Rule { limit, is_global: false, follows: None });
    Trial { rules: rules.collect(), ..Trial::default() }
}

/// Nothing comes back by itself while these calls are made.
const TEN: Limit = Limit::sliding_window("ten", 10, HOUR);
/// After a second nothing was used.
const FREE: Trial = Trial {
    rules: Vec::new(),
    asking: Asking::All,
    reserve: false,
    work: Some(SECOND),
    used: Some(Tokens::ZERO),
    dies: None,
    lapses_after: None,
    funds: Tokens::ZERO,
    service: None,
};
