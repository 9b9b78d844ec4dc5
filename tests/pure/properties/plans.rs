//! Several calls in one plan, and several limits in one call.

use proptest::collection::vec;
use proptest::prelude::*;
use tollgate::plan::{Answer, Verb};
use tollgate::{Charge, Error, FitError, Request};

use crate::story::{Amount, EPOCH, amounts, any_kind, call, config, limits, named, places};
use crate::world::{World, at};

proptest! {
    #![proptest_config(config())]

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
                0 => Verb::consume(asking(false)),
                1 => Verb::reserve(asking(true)),
                2 => Verb::credit(asking(false).remove(0)),
                3 => Verb::debit(asking(false).remove(0)),
                _ => Verb::Reset(asking(false).remove(0)),
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
                Ok(Answer::Granted { grant, ready_at, .. }),
                Ok(Answer::Granted { grant: g, ready_at: a, .. }),
            ) => {
                prop_assert_eq!((grant.remaining, ready_at), (g.remaining, a));
                // Every row gave its charge, and each was charged once.
                let names: Vec<_> = grant.receipt.charges.iter().map(Charge::limit).collect();
                prop_assert!(names.iter().enumerate().all(|(n, name)| !names[..n].contains(name)), "{names:?}");
                for charge in &grant.receipt.charges {
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
}
