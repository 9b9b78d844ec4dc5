//! A cost that several limits share, against the exact model.

use num_bigint::BigInt;
use num_traits::Zero;
use proptest::collection::vec;
use proptest::prelude::*;
use tollgate::algebra::Timestamp;
use tollgate::plan::{Answer, Verb};
use tollgate::{
    Call, CallError, DAY, Error, Grant, Limit, LimitKind, MINUTE, Reason, Receipt, Request, SECOND, Source, Tokens,
    first_of, split,
};

use crate::model::Model;
use crate::story::{Amount, EPOCH, amounts, any_kind, capacity, config, limits, named, places};
use crate::world::{World, at, due, micros, sec, terms_of, tokens};

/// A call that splits a cost over limits, each of which keeps something back.
struct Splitting {
    limits: Vec<Request>,
    leaving: Vec<Option<i64>>,
    cost: i64,
}

impl Splitting {
    fn call(&self) -> Verb {
        let each = self.limits.iter().zip(&self.leaving);
        let leave = |(limit, leaving): (&Request, &Option<i64>)| match leaving {
            Some(leaving) => limit.clone().leaving(micros(*leaving)),
            None => limit.clone(),
        };
        Verb::consume(split(micros(self.cost), each.map(leave)))
    }

    /// The tokens that a limit with this balance can give.
    fn spare(&self, which: usize, balance: &BigInt) -> BigInt {
        let spec = self.limits[which].limit().spec();
        let overdraft = if spec.kind == LimitKind::Wallet { -spec.max_reserved.micros() } else { 0 };
        let spare = (balance - self.leaving[which].unwrap_or(overdraft)).max(BigInt::zero());
        let token = BigInt::from(1_000_000);
        if self.cost % 1_000_000 == 0 { &spare / &token * &token } else { spare }
    }

    /// The tokens that each limit gives: all that it has, one limit after another.
    fn given(&self, balances: &[BigInt]) -> Option<Vec<BigInt>> {
        let mut left = BigInt::from(self.cost);
        let given = balances.iter().enumerate().map(|(which, balance)| {
            let given = self.spare(which, balance).min(left.clone());
            left -= &given;
            given
        });
        let given = given.collect();
        left.is_zero().then_some(given)
    }

    /// Compares an answer with the one that the balances demand, and returns the receipt of a grant.
    fn compare(&self, world: &World, balances: &[BigInt], now: Timestamp) -> Result<Option<Receipt>, TestCaseError> {
        let mut after = world.clone();
        match (after.call(self.call(), now), self.given(balances)) {
            (Ok(Answer::Granted { grant: Grant { receipt, amount, remaining, standings, .. }, .. }), Some(given)) => {
                for ((which, given), limit) in given.iter().enumerate().zip(&self.limits) {
                    let left = &balances[which] - given;
                    prop_assert_eq!(BigInt::from(after.look(limit.clone(), now).remaining.micros()), left);
                    prop_assert_eq!(BigInt::from(standings[which].cost.micros()), given.clone());
                }
                prop_assert_eq!(amount, micros(self.cost));
                let spare: BigInt =
                    balances.iter().enumerate().map(|(which, balance)| self.spare(which, balance)).sum();
                prop_assert_eq!(BigInt::from(remaining.micros()), spare - self.cost);
                prop_assert_eq!(receipt.by_request().count(), 1, "a split is one request");
                Ok(Some(receipt))
            }
            (Ok(Answer::Denied(_)), None) => {
                prop_assert_eq!(&after, world, "a refusal changes nothing");
                Ok(None)
            }
            (answer, given) => Err(TestCaseError::fail(format!("{answer:?} for {given:?}"))),
        }
    }

    /// A settlement below the cost gives back to the last limit first; one above it charges the last limit with the
    /// rest.
    fn settles(&self, world: &World, receipt: Receipt, actual: i64, now: Timestamp) -> Result<(), TestCaseError> {
        let mut world = world.clone();
        let taken: Vec<_> = receipt.charges.iter().map(|charge| charge.cost.micros()).collect();
        world.call(self.call(), now).unwrap();
        let settled = world.settled(Verb::Settle(receipt, micros(actual)), now).unwrap();
        let kept: Vec<_> = settled.charges.iter().map(|charge| charge.cost.micros()).collect();
        prop_assert_eq!(kept.iter().sum::<i64>(), actual);
        let given_back = taken.iter().zip(&kept).position(|(taken, kept)| kept < taken);
        if let Some(first) = given_back {
            prop_assert!(kept[first + 1..].iter().all(Zero::is_zero), "{taken:?} {kept:?}");
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(config())]

    /// The tokens that each of some limits gives, in their order; the refusal, and its instant; and the tokens that go
    /// back to each.
    #[test]
    fn each_limit_gives_what_it_has_and_the_next_one_the_rest(
        limits in vec(limits(any_kind()), 1..4),
        rows in vec(prop::option::of(places()), 3),
        leaving in vec(prop::option::weighted(0.3, amounts()), 3),
        cost in (amounts(), 0_i64..1_500, any::<bool>()),
        actual in 0_i64..1_200,
    ) {
        let now = at(EPOCH);
        let mut world = World::default();
        let limits: Vec<_> = limits.iter().enumerate().map(|(n, limit)| named(limit, n).global()).collect();
        for (request, place) in limits.iter().zip(&rows) {
            if let Some(place) = place {
                world.put(request, place.state(request, now));
            }
        }
        let amount = |amount: &Amount, request: &Request| amount.resolve(&world, request, now, false).micros();
        let leaving = limits.iter().zip(&leaving);
        let leaving = leaving.map(|(limit, leaving)| leaving.as_ref().map(|some| amount(some, limit))).collect();
        let mut call = Splitting { leaving, cost: 1, limits: limits.clone() };
        let balances = |now| {
            let balance = |request: &Request| {
                let row = world.state(request).unwrap_or_else(|| terms_of(request).full(now));
                Model::of(request).balance(&row, now).floor().to_integer()
            };
            limits.iter().map(balance).collect::<Vec<_>>()
        };
        // About the sum of their balances.
        let (one, share, is_whole) = cost;
        let spare: BigInt = balances(now).iter().enumerate().map(|(which, balance)| call.spare(which, balance)).sum();
        let cost = i64::try_from(spare * share / 1_000 + amount(&one, &limits[0])).unwrap_or(i64::MAX / 2).max(1);
        call.cost = if is_whole { cost / 1_000_000 * 1_000_000 + 1_000_000 } else { cost };
        let spare = |(which, limit): (usize, &Request)| call.spare(which, &capacity(limit.limit()).micros().into());
        let most: BigInt = limits.iter().enumerate().map(spare).sum();
        if most < call.cost.into() {
            let error = world.call(call.call(), now).unwrap_err();
            prop_assert!(matches!(error, Error::CostExceedsCapacity { .. }), "{error}");
            return Ok(());
        }
        if let Some(receipt) = call.compare(&world, &balances(now), now)? {
            // Within what their debts can bear.
            let actual = i128::from(call.cost) * i128::from(actual) / 1_000;
            call.settles(&world, receipt, i64::try_from(actual).unwrap().min(i64::MAX / 4), now)?;
            return Ok(());
        }
        let Ok(Answer::Denied(denied)) = world.clone().call(call.call(), now) else { panic!("it was refused") };
        prop_assert_eq!(denied.limit.as_ref(), "limit-0");
        let retry_at = due(denied.retry_at);
        if retry_at == Timestamp::MAX {
            return Ok(()); // Beyond the end of time.
        }
        prop_assert!(call.compare(&world, &balances(retry_at), retry_at)?.is_some());
        let early = at(retry_at.micros() - 1);
        prop_assert!(call.compare(&world, &balances(early), early)?.is_none());
    }

    /// The same for limits with lists, several rows, or an overdraft, by the balances that they report.
    #[test]
    fn windows_shards_and_wallets_give_what_they_have(
        before in vec((0_usize..3, 0_i64..9_000_000, 0_i64..2_000_000), 0..12),
        leaving in vec(prop::option::weighted(0.3, 0_i64..5_000_000), 3),
        cost in prop_oneof![1_i64..30_000_000, (1_i64..30).prop_map(|whole| whole * 1_000_000)],
        actual in 0_i64..1_200,
        order in Just([0, 1, 2]).prop_shuffle(),
    ) {
        let limits = [
            Limit::sliding_window("limit-0", 8, SECOND),
            Limit::token_bucket("limit-1", 6, SECOND).capacity(9).shards(4),
            Limit::wallet("limit-2").overdraft(2),
        ];
        let requests = limits.each_ref().map(Limit::global);
        let (mut world, mut now) = (World::default(), at(EPOCH));
        world.balance(Verb::credit(requests[2].clone().cost(10)), now);
        for (which, cost, gap) in before {
            now = at(now.micros() + gap);
            let most = world.look(requests[which].clone(), now).remaining.max(Tokens::ZERO);
            world.call(Verb::consume(requests[which].clone().cost(micros(cost).min(most))), now).unwrap();
        }
        let call = Splitting { limits: order.map(|which| requests[which].clone()).into(), leaving, cost };
        let balances = |now| {
            let look = |request: &Request| BigInt::from(world.look(request.clone(), now).remaining.micros());
            call.limits.iter().map(look).collect::<Vec<_>>()
        };
        if let Some(receipt) = call.compare(&world, &balances(now), now)? {
            return call.settles(&world, receipt, cost * actual / 1_000, now);
        }
        if let Ok(Answer::Denied(denied)) = world.clone().call(call.call(), now)
            && let Some(retry_at) = denied.retry_at.map(Timestamp::from)
        {
            prop_assert!(call.compare(&world, &balances(retry_at), retry_at)?.is_some());
            let early = at(retry_at.micros() - 1);
            prop_assert!(call.compare(&world, &balances(early), early)?.is_none());
        }
    }
}

const PLAN: Limit = Limit::fixed_window("plan", 10, DAY).start(std::time::Duration::ZERO);
const CREDITS: Limit = Limit::wallet("credits");
const RATE: Limit = Limit::token_bucket("rate", 100, MINUTE);

fn both(cost: u32) -> Call {
    split(cost, [PLAN.key(1), CREDITS.key(1)])
}

#[test]
fn a_split_stands_beside_other_requests_and_is_settled_as_one() {
    let mut world = World::default();
    world.balance(Verb::credit(CREDITS.key(1).cost(5)), sec(0));
    let call = |cost: u32| Verb::consume(both(cost).and(RATE.key(1).cost(cost)));
    let receipt = world.taken(call(12), sec(0));
    assert_eq!(receipt.charges.iter().map(|charge| charge.cost).collect::<Vec<_>>(), [10, 2, 12].map(tokens));
    assert_eq!(receipt.by_request().count(), 2);
    let held = |world: &World| [PLAN, CREDITS, RATE].map(|limit| world.look(limit.key(1), sec(0)).remaining);
    assert_eq!(held(&world), [0, 3, 88].map(tokens));
    world.settled(Verb::Settle(receipt, tokens(11)), sec(0)).unwrap();
    assert_eq!(held(&world), [0, 4, 89].map(tokens), "credits come back first");
    // An empty plan is charged nothing, so the wallet pays the whole cost.
    let receipt = world.taken(call(3), sec(0));
    assert_eq!(receipt.charges.iter().map(tollgate::Charge::limit).collect::<Vec<_>>(), ["credits", "rate"]);
    world.settled(Verb::SettleEach(receipt, vec![tokens(4), tokens(0)]), sec(0)).unwrap();
    assert_eq!(held(&world), [0, 0, 89].map(tokens), "what lies above is the last one's");
    let receipt = world.taken(call(0), sec(0));
    assert_eq!(receipt.charges.len(), 2, "a cost of nothing is charged to the first");
    let Answer::Denied(denied) = world.call(call(1), sec(0)).unwrap() else { panic!("granted") };
    assert_eq!((denied.limit.as_ref(), due(denied.retry_at)), ("plan", sec(86_400)));
}

/// Ten of the plan and two of the wallet are there, and four of them must stay.
#[test]
fn a_split_is_held_back_if_its_limits_have_the_cost_together() {
    let mut world = World::default();
    world.balance(Verb::credit(CREDITS.key(1).cost(2)), sec(0));
    for (cost, reason) in [(9, Reason::HeldBack), (12, Reason::HeldBack), (13, Reason::Short)] {
        let leaving = split(cost, [PLAN.key(1).leaving(4), CREDITS.key(1)]);
        let Answer::Denied(denied) = world.call(Verb::consume(leaving), sec(0)).unwrap() else { panic!("granted") };
        assert_eq!((denied.reason, denied.remaining), (reason, tokens(8)), "{cost}");
    }
}

#[test]
fn a_repeat_of_a_split_says_what_each_limit_gave() {
    let mut world = World::default();
    world.balance(Verb::credit(CREDITS.key(1).cost(5)), sec(0));
    let call = || {
        let both = split(12, [PLAN.key(1), CREDITS.key(1)]);
        Verb::consume(first_of([both]).once("job").lapses_after(MINUTE))
    };
    for expected in [Source::Database, Source::Repeated] {
        let Answer::Granted { grant: Grant { standings, source, amount, .. }, .. } =
            world.call(call(), sec(0)).unwrap()
        else {
            panic!("refused")
        };
        let costs: Vec<_> = standings.iter().map(|standing| standing.cost).collect();
        assert_eq!((costs, source, amount), (vec![tokens(10), tokens(2)], expected, tokens(12)));
    }
    // Other alternatives are another call.
    let [plan, credits] = [PLAN.key(1), CREDITS.key(1)];
    let turned = first_of([split(12, [plan.clone(), credits]), split(12, [plan])]).once("job").lapses_after(MINUTE);
    assert!(matches!(world.call(Verb::consume(turned), sec(0)), Err(Error::OnceMismatch { .. })));
    world.reap(sec(60));
    assert_eq!([PLAN, CREDITS].map(|limit| world.look(limit.key(1), sec(60)).remaining), [10, 5].map(tokens));
}

#[test]
fn what_cannot_be_split_is_an_error_before_anything_is_taken() {
    let slots = Limit::concurrency("slots", 2, MINUTE);
    for (call, expected) in [
        (Verb::consume(split(1, [PLAN.key(1), PLAN.key(1)])), CallError::SplitTwice),
        (Verb::consume(both(1).and(PLAN.key(1))), CallError::SplitTwice),
        (Verb::consume(split(1, [slots.key(1)])), CallError::SplitLease),
        (Verb::consume(split(1, [])), CallError::NothingAsked),
        (Verb::consume(split(1, []).and(PLAN.key(1))), CallError::NothingAsked),
        (Verb::consume(split(2, [PLAN.key(1).up_to(1)])), CallError::SplitPart),
        (Verb::consume(split(2, [PLAN.key(1), CREDITS.key(1).flat()])), CallError::FlatDiffers),
        (Verb::reserve(both(2)), CallError::WrongVerb { option: "split" }),
        (Verb::debit(both(2)), CallError::WrongVerb { option: "split" }),
    ] {
        let error = World::default().call(call, sec(0)).unwrap_err();
        assert!(matches!(&error, Error::Call { source, .. } if *source == expected), "{error} {expected}");
        assert!(error.is_bad_input());
    }
    let never = split(21, [PLAN.key(1), Limit::fixed_window("other", 10, DAY).key(1)]);
    let error = World::default().call(Verb::consume(never), sec(0)).unwrap_err();
    assert!(matches!(error, Error::CostExceedsCapacity { max, .. } if max == tokens(20)), "{error}");
    let error = World::default().call(Verb::consume(split(-1, [PLAN.key(1)])), sec(0)).unwrap_err();
    assert!(matches!(error, Error::Call { source: CallError::Cost(_), .. }), "{error}");
}
