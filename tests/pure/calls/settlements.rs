//! Settlements, cancellations and lapses, one by one.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::json;
use tollgate::algebra::Timestamp;
use tollgate::plan::{Plan, Verb};
use tollgate::{Call, CallError, DAY, Error, FitError, HOUR, Limit, LimitKind, MINUTE, Receipt, SECOND, Tokens};

use super::bounds::limit;
use super::{ORG, USER, left, take};
use crate::story::config;
use crate::world::{World, at, micros, sec, tokens, used};

proptest! {
    #![proptest_config(config())]

    /// In any order each charge of a request comes to at most its cost, but for the last one.
    #[test]
    fn a_request_of_several_rows_is_settled_as_one(cost in 1_i64..40, actual in 0_i64..60, spent in vec(0_i64..10, 4)) {
        let limit = limit(LimitKind::TokenBucket, 40, 1_000_000, None, 0, 0).spec().with(|spec| spec.shards = 4);
        let limit = Limit::try_from(limit).unwrap();
        let mut world = World::default();
        world.call(Verb::debit(limit.global().cost(micros(spent.iter().sum()))), at(0)).unwrap();
        let before = world.look(limit.global(), at(0)).remaining.micros();
        prop_assume!(before > 0);
        let cost = cost.min(before);
        let receipt = world.taken(Verb::consume(limit.global().cost(micros(cost))), at(0));
        prop_assert_eq!(receipt.by_request().count(), 1);
        let settled = world.settled(Verb::Settle(receipt, micros(actual)), at(0)).unwrap();
        let kept: i64 = settled.charges.iter().map(|charge| charge.cost.micros()).sum();
        prop_assert_eq!(kept, actual);
        prop_assert_eq!(world.look(limit.global(), at(0)).remaining.micros(), before - actual);
    }
}

#[test]
fn a_window_takes_back_only_what_the_window_that_runs_was_charged() {
    let day = Limit::fixed_window("day", 1, DAY).start(Duration::ZERO);
    let (mut world, tomorrow) = (World::default(), sec(86_400));
    let first = take(&mut world, day.global(), sec(0));
    world.settled(Verb::Settle(first, tokens(0)), sec(0)).unwrap();
    let second = take(&mut world, day.global(), sec(0));
    let _ = take(&mut world, day.global(), tomorrow);
    // The clock went back, so by the clock the window of the charge runs again; by the row it does not.
    let settled = world.settled(Verb::Settle(second, tokens(0)), sec(1)).unwrap();
    assert_eq!(settled.charges[0].cost, tokens(1), "it counts as charged");
    world.denied(day.global(), sec(1));
}

#[test]
fn what_is_booked_ahead_can_be_cancelled_until_it_is_ready_and_not_later() {
    let day = Limit::fixed_window("day", 1, DAY).start(Duration::ZERO).max_reserved(7);
    let mut world = World::default();
    let _ = take(&mut world, day.global(), sec(0));
    let plain = world.taken(Verb::reserve(day.global().cost(3)), sec(10));
    let lapsing = world.taken(Verb::reserve(day.global().lapses_after(HOUR)), sec(10));
    assert_eq!(Timestamp::from(lapsing.charges[0].ready_at()), sec(4 * 86_400));
    world.settled(Verb::Cancel(plain), sec(2 * 86_400 + 5)).unwrap();
    let late = sec(4 * 86_400 + 5);
    let error = world.settled(Verb::Cancel(lapsing.clone()), late).unwrap_err();
    assert!(matches!(error, Error::TooLateToCancel { .. }), "{error}");
    assert_eq!(world.calls.len(), 1, "it lapses as if nobody had asked");
    world.settled(Verb::Settle(lapsing, tokens(1)), late).unwrap();
    assert!(world.calls.is_empty());
}

/// So a simulation, which knows when each call ends, needs no stored calls.
#[test]
fn a_lapse_is_a_settlement_at_nothing_at_its_instant() {
    let limits = [
        Limit::token_bucket("bucket", 40, MINUTE),
        Limit::token_bucket("spread", 40, MINUTE).shards(4),
        Limit::stepped_bucket("steps", 40, MINUTE),
        Limit::fixed_window("window", 40, MINUTE),
        Limit::sliding_window("sliding", 40, MINUTE),
        Limit::wallet("wallet").overdraft(40),
    ];
    for limit in limits {
        let request = || limit.key("k").cost(9);
        let [mut lapsed, mut settled] = [World::default(), World::default()];
        let _ = take(&mut lapsed, request().lapses_after(10 * SECOND), sec(0));
        let receipt = take(&mut settled, request(), sec(0));
        for world in [&mut lapsed, &mut settled] {
            let _ = take(world, request(), sec(5));
        }
        assert_ne!(lapsed, settled);
        lapsed.reap(sec(10));
        settled.settled(Verb::Settle(receipt, tokens(0)), sec(10)).unwrap();
        assert_eq!(lapsed, settled);
    }
}

#[test]
fn a_call_over_three_levels_is_settled_once_or_lapses_whole() {
    let team = Limit::token_bucket("team", 50, MINUTE);
    let mut world = World::default();
    let levels =
        || Call::from([ORG.global().cost(8), team.global().cost(8), USER.global().cost(8)]).lapses_after(MINUTE);
    let values = |world: &World, now| [&ORG, &team, &USER].map(|limit| left(world, limit, now));
    let full = values(&world, sec(0));
    let receipt = world.taken(Verb::consume(levels()), sec(0));
    assert_eq!(receipt.lapses_at().map(Timestamp::from), Some(sec(60)));
    world.settled(Verb::Settle(receipt.clone(), tokens(3)), sec(0)).unwrap();
    assert_eq!(values(&world, sec(0)), full.map(|full| full.checked_sub(tokens(3)).unwrap()));
    let used = |world: &mut World, now| world.settled(Verb::Settle(receipt.clone(), tokens(0)), now).unwrap_err();
    assert!(matches!(used(&mut world, sec(1)), Error::ReceiptUsed { .. }));
    assert!(matches!(used(&mut world, sec(60)), Error::Lapsed { .. }));
    // Nobody settles: the charge comes back when it is due, but for the tokens that were reported. A row that is
    // missing gets nothing.
    let receipt = world.taken(Verb::consume(levels()), sec(120));
    world.calls.values_mut().for_each(|row| row.reported = tokens(2));
    world.reap(at(179_999_999));
    assert_eq!(world.calls.len(), 1);
    world.delete(&team.global());
    world.reap(sec(180));
    assert!(world.calls.is_empty());
    assert_eq!(left(&world, &ORG, sec(180)), tokens(95));
    assert!(matches!(world.settled(Verb::Settle(receipt, tokens(2)), sec(180)), Err(Error::Lapsed { .. })));
}

#[test]
fn one_cost_is_for_requests_that_are_counted_and_each_can_have_its_own() {
    let mut world = World::default();
    let requests = || [ORG.global().cost(1).flat(), USER.global().cost(8)];
    let receipt = world.taken(Verb::consume(requests()), sec(0));
    world.settled(Verb::Settle(receipt, tokens(2)), sec(0)).unwrap();
    assert_eq!([&ORG, &USER].map(|limit| left(&world, limit, sec(0))), [tokens(99), tokens(8)]);
    let receipt = world.taken(Verb::consume(requests()), sec(0));
    let error = world.settled(Verb::SettleEach(receipt.clone(), vec![tokens(0)]), sec(0)).unwrap_err();
    assert!(matches!(error, Error::Call { source: CallError::CostsMissing { costs: 1, requests: 2 }, .. }), "{error}");
    world.settled(Verb::SettleEach(receipt, vec![tokens(0), tokens(9)]), sec(0)).unwrap();
    assert_eq!([&ORG, &USER].map(|limit| left(&world, limit, sec(0))), [tokens(99), tokens(-1)]);
}

#[test]
fn a_settlement_whose_debt_no_row_can_hold_changes_nothing() {
    let limit = Limit::token_bucket("ten", 10, Limit::MAX_PERIOD);
    let mut world = World::default();
    let [first, _] = [0, 1].map(|now| world.taken(Verb::consume(limit.global()), sec(now)));
    let deep = world.call(Verb::Settle(first, Tokens::MAX), sec(2));
    assert!(matches!(deep, Err(Error::DoesNotFit { source: FitError::DebtTooDeep, .. })), "{deep:?}");
    assert_eq!(world.look(limit.global(), sec(2)).remaining, tokens(8));
}

#[test]
fn what_was_used_beyond_a_charge_delays_the_sweep_and_counts_on_a_missing_row() {
    let mut world = World::default();
    let receipts = [0, 0, 395].map(|now| take(&mut world, USER.global(), sec(now)));
    let [first, second, third] = receipts;
    world.settled(Verb::Settle(first, tokens(6)), sec(396)).unwrap();
    world.sweep(sec(426));
    assert!(world.state(&USER.global()).is_some(), "six of ten a minute take 36 seconds");
    world.sweep(sec(800));
    let settled = world.settled(Verb::Settle(second, tokens(6)), sec(800)).unwrap();
    assert_eq!((world.state(&USER.global()), settled.charges[0].cost), (Some(used(5, sec(800), sec(860))), tokens(6)));
    world.settled(Verb::Settle(third, tokens(3)), sec(801)).unwrap();
    assert_eq!([800, 830].map(|now| left(&world, &USER, sec(now))), [tokens(3), tokens(8)], "from its settlement on");
}

/// Each row of a settlement is inserted if one is a wallet's: an empty wallet, and any other row full under every
/// definition. A wallet whose call was unlimited counts as one, too.
#[test]
fn a_settlement_inserts_rows_that_mean_the_same_as_missing_ones() {
    let charge = |limit, more: serde_json::Value| {
        let mut charge = json!({ "limit": limit, "key": "", "cost": 1, "ready_at": 0 });
        charge.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        charge
    };
    let charges = [
        charge("bucket", json!({ "refill": 1, "period": 60 })),
        charge("free", json!({ "kind": "free", "period": 60 })),
        charge("free_wallet", json!({ "kind": "free" })),
        charge("wallet", json!({ "kind": "wallet" })),
    ];
    let receipt: Receipt = serde_json::from_value(json!({ "charges": charges })).unwrap();
    let plan = Plan::new([Verb::Settle(receipt, tokens(0))]).unwrap();
    assert!(plan.inserts());
}
