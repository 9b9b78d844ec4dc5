//! Limits that are tried out, against the exact model: nobody can tell that they are there, but by the calls that they
//! would deny.

use num_bigint::BigInt;
use num_traits::Zero;
use proptest::collection::vec;
use proptest::prelude::*;
use tollgate::plan::{Answer, Call};
use tollgate::{CallError, Denied, DeniedBy, Error, Limit, MINUTE, Request, Source};

use crate::model::Model;
use crate::story::{Amount, EPOCH, amounts, any_kind, call, capacity, config, limits, named, places};
use crate::world::{World, at, due, micros, sec, terms_of, tokens};

#[derive(Clone, Debug)]
struct Asked {
    which: usize,
    takes_part: bool,
    cost: Amount,
    leaving: Option<Amount>,
    is_shadow: bool,
}

fn asked() -> impl Strategy<Value = Asked> {
    (0_usize..4, any::<bool>(), amounts(), prop::option::of(amounts()), any::<bool>())
        .prop_map(|(which, takes_part, cost, leaving, is_shadow)| Asked { which, takes_part, cost, leaving, is_shadow })
}

/// The parts of an answer about the limits that are not tried out.
fn told(answer: &Result<Answer, Error>) -> String {
    match answer {
        Ok(Answer::Granted { amount, remaining, ready_at, standings, source, .. }) => {
            format!("{amount} {remaining} {ready_at:?} {standings:?} {source:?}")
        }
        Ok(Answer::Denied(Denied { limit, remaining, retry_at, others, standings, .. })) => {
            format!("{limit} {remaining} {retry_at:?} {others:?} {standings:?}")
        }
        other => format!("{other:?}"),
    }
}

fn would_deny(answer: &Result<Answer, Error>) -> Vec<DeniedBy> {
    match answer {
        Ok(Answer::Granted { would_deny, .. } | Answer::Denied(Denied { would_deny, .. })) => would_deny.to_vec(),
        _ => Vec::new(),
    }
}

proptest! {
    #![proptest_config(config())]

    /// Shadows among requests of any kind, also of rows that these charge: the answer is that of the call without them.
    /// Each shadow is decided on the balance that the rest and the shadows before it left, and charged if that is
    /// enough.
    #[test]
    fn a_shadow_hides_nothing_and_is_decided_on_what_the_others_leave(
        limits in vec(limits(any_kind()), 1..4),
        rows in vec(prop::option::of(places()), 3),
        asked in vec(asked(), 1..6),
        most in amounts(),
        share in 0_i64..=1_000,
        reserving: bool,
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
        let most = amount(&most, &limits[0]).max(1);
        let least = i64::try_from(1 + i128::from(most - 1) * i128::from(share) / 1_000).unwrap();
        let is_whole = [most, least].iter().all(|amount| amount % 1_000_000 == 0);
        let request = |Asked { which, takes_part, cost, leaving, is_shadow }: &Asked| {
            let limit = &limits[which % limits.len()];
            let mut request = limit.clone().cost(micros(amount(cost, limit)));
            if *takes_part && !reserving {
                request = request.cost(micros(most)).up_to(micros(least));
            }
            if let (Some(leaving), false) = (leaving, reserving) {
                request = request.leaving(micros(amount(leaving, limit)));
            }
            if *is_shadow { request.shadow() } else { request }
        };
        let of_kind = |is_shadow: bool| asked.iter().filter(move |asked| asked.is_shadow == is_shadow);
        let (mut with, mut without) = (world.clone(), world.clone());
        let answer = with.call(call(reserving, asked.iter().map(request)), now);
        if of_kind(false).next().is_some() {
            let alone = without.call(call(reserving, of_kind(false).map(request)), now);
            prop_assert_eq!(told(&answer), told(&alone));
        }
        let Ok(answer) = answer else { return Ok(()) };
        let granted = match &answer {
            Answer::Granted { amount, receipt, .. } => Some((*amount, receipt)),
            _ => None,
        };
        if granted.is_none() {
            prop_assert_eq!(&with, &world, "a refusal charges no shadow");
        }
        let charged = granted.map_or(0, |(_, receipt)| receipt.by_request().count());
        let mut kept = charged;
        let would = would_deny(&Ok(answer.clone()));
        let mut denied = would.iter();
        let takes_part = of_kind(false).any(|asked| asked.takes_part) && !reserving;
        let part = granted.filter(|_| takes_part).map(|(amount, _)| amount);
        // The balance of the model, less the tokens taken by then.
        let balance = |request: &Request, taken: &BigInt| {
            let row = world.state(request).unwrap_or_else(|| terms_of(request).full(now));
            Model::of(request).balance(&row, now).floor().to_integer() - taken
        };
        let mut taken: Vec<_> = limits.iter().map(|limit| {
            let left = |world: &World| BigInt::from(world.look(limit.clone(), now).remaining.micros());
            left(&world) - left(&without)
        }).collect();
        for asked in of_kind(true) {
            let which = asked.which % limits.len();
            let limit = &limits[which];
            let holds = balance(limit, &taken[which]);
            let leaving = asked.leaving.as_ref().filter(|_| !reserving).map(|leaving| amount(leaving, limit));
            let floor = leaving.map_or_else(
                || if reserving { -Model::of(limit).max_reserved } else { BigInt::zero() },
                BigInt::from,
            );
            let takes_part = asked.takes_part && !reserving;
            let needs: BigInt = match part {
                Some(part) if takes_part => part.micros().into(),
                None if takes_part => least.into(),
                _ => amount(&asked.cost, limit).into(),
            };
            let is_possible = &needs + &floor <= capacity(limit.limit()).micros().into();
            if is_possible && holds >= &needs + &floor && (&holds - &needs) > i64::MIN.into() {
                let mut cost = needs;
                if takes_part && part.is_none() {
                    cost = (&holds - &floor).min(most.into());
                    cost = if is_whole { &cost / 1_000_000 * 1_000_000 } else { cost };
                }
                if granted.is_some() {
                    taken[which] += cost;
                    kept -= 1;
                }
            } else {
                let refusal = denied.next();
                let is_of_limit = refusal.is_some_and(|refusal| refusal.limit == limit.limit().name());
                prop_assert!(is_of_limit, "{refusal:?} {asked:?}");
                let refusal = refusal.unwrap();
                prop_assert_eq!(BigInt::from(refusal.remaining.micros()), holds);
                prop_assert!(is_possible || refusal.retry_at.is_none());
            }
        }
        prop_assert!(denied.next().is_none(), "{answer:?}");
        let enforced: std::collections::BTreeSet<_> = of_kind(false).map(|asked| asked.which % limits.len()).collect();
        prop_assert!(granted.is_none() || kept == enforced.len(), "{kept} of {charged}");
        for (limit, taken) in limits.iter().zip(&taken).filter(|_| granted.is_some()) {
            prop_assert_eq!(BigInt::from(with.look(limit.clone(), now).remaining.micros()), balance(limit, taken));
        }
    }
}

const USER: Limit = Limit::token_bucket("user", 10, MINUTE);
const TRIED: Limit = Limit::token_bucket("tried", 2, MINUTE);

#[test]
fn a_repeat_says_what_a_shadow_would_have_denied() {
    let mut world = World::default();
    let ask = |id: u32| Call::consume([TRIED.global().cost(2).shadow(), USER.global().cost(2).once(id)]);
    for (id, expected) in [(1, 0), (2, 1), (1, 0), (2, 1)] {
        let before = world.look(USER.global(), sec(0)).remaining;
        let answer = world.call(ask(id), sec(0));
        let Ok(Answer::Granted { source, receipt, amount, .. }) = &answer else { panic!("{answer:?}") };
        assert_eq!((would_deny(&answer).len(), receipt.charges.len(), *amount), (expected, 2 - expected, tokens(2)));
        let repeats = world.look(USER.global(), sec(0)).remaining == before;
        assert_eq!(*source == Source::Repeated, repeats);
    }
    let enforced = Call::consume([TRIED.global().cost(2), USER.global().cost(2).once(1)]);
    assert!(matches!(world.call(enforced, sec(0)), Err(Error::OnceMismatch { .. })));
    // Alone it always grants, and takes the tokens that are there.
    let alone = || Call::consume([TRIED.global().shadow()]);
    let answers = [sec(30), sec(30)].map(|now| would_deny(&world.call(alone(), now)));
    assert_eq!(answers.each_ref().map(Vec::len), [0, 1]);
    assert_eq!(due(answers[1][0].retry_at), sec(60));
    let receipt = world.taken(ask(3), sec(60));
    assert_eq!(world.settled(Call::settle(receipt, tokens(0)), sec(60)).unwrap().charges.len(), 1);
    for call in [Call::credit(TRIED.global().shadow()), Call::debit(TRIED.global().shadow())] {
        let error = world.call(call, sec(60)).unwrap_err();
        assert!(matches!(error, Error::Call { source: CallError::NotConsumed { option: "shadow" }, .. }), "{error}");
    }
}

#[test]
fn a_shadow_that_takes_a_part_makes_no_part_of_the_others() {
    let asked = [USER.global().cost(5), TRIED.global().cost(2).up_to(1).shadow()];
    let answer = World::default().call(Call::consume(asked), sec(0));
    let Ok(Answer::Granted { amount, .. }) = answer else { panic!("{answer:?}") };
    assert_eq!(amount, tokens(5));
}
