//! Alternatives, against the exact model.

use num_bigint::BigInt;
use proptest::collection::vec;
use proptest::prelude::*;
use tollgate::algebra::Timestamp;
use tollgate::plan::{Answer, Verb};
use tollgate::{Call, CallError, DAY, Error, Grant, Limit, MINUTE, Request, Source, first_of, split};

use crate::model::Model;
use crate::parts::{Asking, Sum, asked, parts};
use crate::story::{EPOCH, amounts, any_kind, capacity, config, gaps, limits, named, places};
use crate::world::{World, at, due, sec, terms_of, tokens};

/// A call of alternatives, over some limits.
struct Alternatives {
    limits: Vec<Request>,
    each: Vec<Asking>,
}

impl Alternatives {
    fn call(&self) -> Verb {
        Verb::consume(first_of(self.each.iter().map(|asking| asking.requests.clone())))
    }

    /// Whether an alternative can ever be granted.
    fn is_possible(&self, asking: &Asking) -> bool {
        let fits = |(which, limit): (usize, &Request)| {
            !asking.is_asked(which) || asking.needs(which) <= capacity(limit.limit()).micros().into()
        };
        self.limits.iter().enumerate().all(fits)
    }

    /// The alternative that these balances grant, and the number that each of its parts is.
    fn granted(&self, balances: &[BigInt]) -> Option<(usize, BigInt)> {
        let mut possible = self.each.iter().enumerate().filter(|(_, asking)| self.is_possible(asking));
        possible.find_map(|(number, asking)| Some((number, asking.part(balances)?)))
    }

    fn balances(&self, world: &World, now: Timestamp) -> Vec<BigInt> {
        let balance = |request: &Request| {
            let row = world.state(request).unwrap_or_else(|| terms_of(request).full(now));
            Model::of(request).balance(&row, now).floor().to_integer()
        };
        self.limits.iter().map(balance).collect()
    }

    /// Compares an answer with the one that the balances demand: the alternative, and the charges.
    fn compare(&self, world: &World, now: Timestamp) -> Result<Option<(usize, BigInt)>, TestCaseError> {
        let (mut after, balances) = (world.clone(), self.balances(world, now));
        let expected = self.granted(&balances);
        match (after.call(self.call(), now), &expected) {
            (
                Ok(Answer::Granted { grant: Grant { alternative, amount, receipt, standings, .. }, .. }),
                Some((number, part)),
            ) => {
                prop_assert_eq!(alternative, *number);
                let asking = &self.each[*number];
                for (which, limit) in self.limits.iter().enumerate() {
                    let Sum { whole, parts, .. } = &asking.sums[which];
                    let left = &balances[which] - whole - parts * part;
                    prop_assert_eq!(BigInt::from(after.look(limit.clone(), now).remaining.micros()), left);
                    let names = |limit: &Request, name: &str| limit.limit().name() == name;
                    let is_charged = receipt.charges.iter().any(|charge| names(limit, charge.limit()));
                    let stands = standings.iter().any(|standing| names(limit, standing.limit.name()));
                    prop_assert_eq!([is_charged, stands], [asking.is_asked(which); 2]);
                }
                if asking.takes_part() {
                    prop_assert_eq!(BigInt::from(amount.micros()), part.clone());
                }
            }
            (Ok(Answer::Denied(_)), None) => prop_assert_eq!(&after, world, "a refusal changes nothing"),
            (answer, expected) => return Err(TestCaseError::fail(format!("{answer:?} for {expected:?}"))),
        }
        Ok(expected)
    }
}

proptest! {
    #![proptest_config(config())]

    /// Each alternative is a group of requests, with parts and with tokens that must stay behind, and one limit may
    /// stand in several alternatives. The first alternative that can be granted is charged, and no other; a refusal
    /// names the first instant at which one is granted. Alternatives that can never be granted are left out. More time
    /// never gives a later alternative, and never less of the same one.
    #[test]
    fn the_first_alternative_that_is_granted_is_charged(
        limits in vec(limits(any_kind()), 1..4),
        rows in vec(prop::option::of(places()), 3),
        each in vec((vec(asked(amounts().boxed()), 1..4), parts()), 1..5),
        rest in gaps(),
    ) {
        let now = at(EPOCH);
        let mut world = World::default();
        let limits: Vec<_> = limits.iter().enumerate().map(|(n, limit)| named(limit, n)).collect();
        let requests: Vec<_> = limits.iter().map(Limit::global).collect();
        for (request, place) in requests.iter().zip(&rows) {
            if let Some(place) = place {
                world.put(request, place.state(request, now));
            }
        }
        let asking = |(asked, parts): &(Vec<_>, _)| {
            Asking::of(&requests, asked, parts, |amount, request| amount.resolve(&world, request, now, false).micros())
        };
        let call = Alternatives { limits: requests.clone(), each: each.iter().map(asking).collect() };
        if !call.each.iter().any(|asking| call.is_possible(asking)) {
            let error = world.call(call.call(), now).unwrap_err();
            prop_assert!(matches!(error, Error::CostExceedsCapacity { .. }), "{error}");
            return Ok(());
        }
        let first = call.compare(&world, now)?;
        let then = call.compare(&world, rest.after(&limits[0], now, &[]))?;
        if let Some((number, part)) = &first {
            let Some((later, later_part)) = then else { return Err(TestCaseError::fail("later refused")) };
            prop_assert!(later < *number || later == *number && later_part >= *part);
        }
        let Ok(Answer::Denied(denied)) = world.clone().call(call.call(), now) else { return Ok(()) };
        let retry_at = due(denied.retry_at);
        if retry_at == Timestamp::MAX {
            return Ok(()); // Beyond the end of time.
        }
        prop_assert!(call.compare(&world, retry_at)?.is_some());
        prop_assert!(call.compare(&world, at(retry_at.micros() - 1))?.is_none());
    }
}

const PLAN: Limit = Limit::token_bucket("plan", 2, MINUTE);
const DAILY: Limit = Limit::fixed_window("daily", 3, DAY).start(std::time::Duration::ZERO);
const CREDITS: Limit = Limit::wallet("credits");
const SLOTS: Limit = Limit::concurrency("slots", 2, MINUTE);

#[test]
fn a_plan_pays_before_the_wallet_does() {
    let mut world = World::default();
    let call = || Verb::consume(first_of([PLAN.key(1), CREDITS.key(1)]));
    world.balance(Verb::credit(CREDITS.key(1)), sec(0));
    let mut told = Vec::new();
    for now in [0, 0, 0, 0, 30, 30] {
        told.push(match world.call(call(), sec(now)).unwrap() {
            Answer::Granted { grant: Grant { alternative, standings, .. }, .. } => {
                Ok((alternative, standings[0].limit.name().to_owned()))
            }
            Answer::Denied(denied) => Err((denied.limit.into_owned(), due(denied.retry_at))),
            other => panic!("{other:?}"),
        });
    }
    let (plan, credits) = (Ok((0, "plan".to_owned())), Ok((1, "credits".to_owned())));
    // A wallet never gains: the wait is the plan's.
    let refusal = |second| Err(("plan".to_owned(), sec(second)));
    assert_eq!(told, [plan.clone(), plan.clone(), credits, refusal(30), plan, refusal(60)]);
}

#[test]
fn a_repeat_says_which_alternative_was_charged() {
    let mut world = World::default();
    let ask = |id: u32| {
        Verb::consume(
            first_of([vec![PLAN.key(1).cost(2), DAILY.key(1).cost(2)], vec![DAILY.key(1).cost(3).up_to(1).leaving(0)]])
                .once(id),
        )
    };
    let mut told = Vec::new();
    for (id, now) in [(1, 0), (2, 0), (1, 0), (2, 60), (2, 86_400)] {
        let Answer::Granted { grant: Grant { alternative, amount, source, receipt, standings, .. }, .. } =
            world.call(ask(id), sec(now)).unwrap()
        else {
            panic!("refused")
        };
        told.push((alternative, amount, source == Source::Repeated, receipt.charges.len(), standings.len()));
    }
    let (plan, daily) = (|repeated| (0, tokens(2), repeated, 2, 2), |repeated| (1, tokens(1), repeated, 1, 1));
    assert_eq!(told, [plan(false), daily(false), plan(true), daily(true), daily(true)]);
    // In another order, or with other alternatives, it is another call.
    let other = |call| matches!(world.clone().call(call, sec(60)), Err(Error::OnceMismatch { .. }));
    let whole = || vec![PLAN.key(1).cost(2), DAILY.key(1).cost(2)];
    let part = || DAILY.key(1).cost(3).up_to(1).leaving(0);
    assert!(other(Verb::consume(first_of([whole(), vec![PLAN.key(1)]]).once(2))));
    assert!(other(Verb::consume(first_of([whole()]).once(2))));
    assert!(other(Verb::consume(Call::from(whole()).and(part()).once(2))));
}

#[test]
fn a_lease_of_the_second_choice_ends_by_the_receipt() {
    let mut world = World::default();
    let call = || Verb::consume(first_of([[SLOTS.key("fast")], [SLOTS.key("slow")]]));
    let mut receipts: Vec<_> = (0..4).map(|_| world.taken(call(), sec(0))).collect();
    let denied = match world.call(call(), sec(1)).unwrap() {
        Answer::Denied(denied) => denied,
        other => panic!("{other:?}"),
    };
    assert_eq!((denied.key.to_string(), due(denied.retry_at)), ("fast".to_owned(), sec(60)));
    world.settled(Verb::Release(receipts.pop().unwrap().clone()), sec(2)).unwrap();
    assert_eq!(world.look(SLOTS.key("slow"), sec(2)).remaining, tokens(1));
    assert_eq!(world.taken(call(), sec(2)).charges[0].key.to_string(), "slow");
}

#[test]
fn what_is_no_call_of_alternatives_is_an_error_before_anything_is_taken() {
    let (plan, daily, none) = (|| PLAN.global(), || DAILY.global(), Vec::new);
    let both = || first_of([plan(), daily()]);
    for (call, expected) in [
        (Verb::consume(first_of([none(), vec![plan()]])), CallError::NothingAsked),
        (Verb::consume(first_of([vec![plan()], none(), vec![daily()]])), CallError::NothingAsked),
        (Verb::consume(first_of([vec![plan()], none()])), CallError::NothingAsked),
        (Verb::consume(first_of([none()])), CallError::NothingAsked),
        (Verb::consume(first_of([none(), vec![plan()]]).and([daily()])), CallError::NothingAsked),
        (Verb::consume(first_of([first_of(none()), plan().into()])), CallError::NothingAsked),
        (Verb::consume(first_of([plan().once(1), daily().into()])), CallError::OptionInside),
        (Verb::consume(first_of([plan().into(), both().lapses_after(MINUTE)])), CallError::OptionInside),
        (Verb::reserve(both()), CallError::WrongVerb { option: "first_of" }),
        (Verb::credit(both()), CallError::WrongVerb { option: "first_of" }),
    ] {
        let error = World::default().call(call, sec(0)).unwrap_err();
        assert!(matches!(&error, Error::Call { source, .. } if *source == expected), "{error} {expected}");
        assert!(error.is_bad_input());
    }
    let error = World::default().call(Verb::consume(first_of(none())), sec(0)).unwrap_err();
    assert!(matches!(error, Error::Call { source: CallError::NothingAsked, .. }), "{error}");
    let error = World::default().call(Verb::consume(first_of([plan().cost(3), daily().cost(4)])), sec(0)).unwrap_err();
    assert!(matches!(&error, Error::CostExceedsCapacity { limit, .. } if limit == "plan"), "{error}");
    // An alternative that can never be granted is left out, in the wait as well.
    let mut world = World::default();
    world.granted(DAILY.global(), sec(0));
    let denied = match world.call(Verb::consume(first_of([plan().cost(3), daily().cost(3)])), sec(1)).unwrap() {
        Answer::Denied(denied) => denied,
        other => panic!("{other:?}"),
    };
    assert_eq!((denied.limit.as_ref(), due(denied.retry_at)), ("daily", sec(86_400)));
}

#[test]
fn a_call_of_alternatives_is_stored_as_it_is() {
    let first = first_of([Call::from(PLAN.key(1)), split(2, [DAILY.key(1), CREDITS.key(1)])]);
    let call = first.once("job").lapses_after(MINUTE).and(PLAN.key(2));
    let written = serde_json::to_string(&call).unwrap();
    assert_eq!(serde_json::from_str::<Call>(&written).unwrap(), call);
    let wrong = first_of([PLAN.key(1).once(1)]);
    assert!(serde_json::to_string(&wrong).unwrap_err().to_string().contains("an alternative has an id"));
}

#[test]
fn alternatives_of_alternatives_lie_flat_and_each_gets_what_is_asked_besides() {
    let [a, b, c, d] = ["a", "b", "c", "d"].map(|key| PLAN.key(key));
    let nested = first_of([first_of([a.clone(), b.clone()]), c.clone().into()]).and(d.clone()).once(1);
    assert_eq!(nested, first_of([[a, d.clone()], [b, d.clone()], [c, d]]).once(1));
}
