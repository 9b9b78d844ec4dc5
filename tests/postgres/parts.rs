//! Parts of a cost, and tokens that must stay behind, where many ask at once.

use fastrand::Rng;
use tokio::task::JoinSet;
use tollgate::{Decision, Gate, Limit, MINUTE, OnFailure, Reason, SECOND, Source, Tokens};

use crate::gate::stage::{EVER, nowhere, patient, pool};
use crate::teller::tokens;
use crate::world::{World, limiter};

/// Claims until nothing is left that it may have, and returns how much it got. Every second caller asks in transactions
/// of its own.
async fn claim(gate: Gate, pool: sqlx::PgPool, limit: Limit, leaving: u32, seed: u64) -> i64 {
    let (mut dice, mut got) = (Rng::with_seed(seed), 0);
    loop {
        let request = limit.global().cost(dice.u32(7..60)).up_to(dice.u32(1..7)).leaving(leaving);
        let decision = if seed.is_multiple_of(2) {
            gate.consume(request).await.unwrap()
        } else {
            let mut tx = pool.begin().await.unwrap();
            let decision = limiter().consume(&mut tx, request).await.unwrap();
            tx.commit().await.unwrap();
            decision
        };
        match decision {
            Decision::Granted(grant) => {
                assert!(grant.remaining >= Tokens::new(leaving));
                got += grant.amount.micros();
            }
            Decision::Denied(denied) if denied.remaining == Tokens::new(leaving) => return got,
            Decision::Denied(denied) => assert!(denied.remaining < Tokens::new(leaving + 7)),
        }
    }
}

/// The callers that leave a fifth of a budget stop there, to the token, and the others get the rest.
#[tokio::test]
async fn many_who_claim_parts_get_all_of_it_and_no_more() {
    let world = World::new().await;
    let gate = patient(&pool(&world.url(), 4).await).remember_refusals(SECOND).build();
    for limit in [
        Limit::token_bucket("budget", 1_000, EVER),
        Limit::token_bucket("spread", 1_000, EVER).shards(4).ephemeral(),
        Limit::sliding_window("sliding", 1_000, EVER),
    ] {
        for (leaving, expected) in [(200, 800), (0, 200)] {
            let mut claims = JoinSet::new();
            for seed in 0..6 {
                claims.spawn(claim(gate.clone(), world.pool.clone(), limit.clone(), leaving, seed));
            }
            let got: i64 = claims.join_all().await.into_iter().sum();
            assert_eq!(
                (got, gate.balance(limit.global()).await.unwrap().remaining),
                (expected * 1_000_000, Tokens::new(leaving))
            );
        }
    }
}

/// By the database and by the memory of a gate, of windows, leases and wallets, and once more under an id.
#[tokio::test]
async fn a_part_is_granted_and_repeated_by_either_of_the_two() {
    let world = World::new().await;
    let gate = patient(&pool(&world.url(), 2).await).build();
    for limit in
        [Limit::concurrency("slots", 10, MINUTE), Limit::fixed_window("window", 10, EVER), Limit::wallet("wallet")]
    {
        if limit == Limit::wallet("wallet") {
            gate.credit(limit.global().cost(10)).await.unwrap();
        }
        gate.consume(limit.global().cost(3)).await.unwrap().granted().unwrap();
        let ask = || limit.global().cost(9).up_to(2).leaving(1).once("job");
        let first = gate.consume(ask()).await.unwrap().granted().unwrap();
        assert_eq!((first.amount, first.remaining, first.source), (tokens(6), tokens(1), Source::Database));
        let mut tx = world.begin().await;
        let again = limiter().consume(&mut tx, ask()).await.unwrap().granted().unwrap();
        assert_eq!((again.amount, again.source, &again.receipt), (tokens(6), Source::Repeated, &first.receipt));
        tx.commit().await.unwrap();
        let none = || limit.global().cost(9).up_to(1).leaving(1);
        assert!(gate.check(none()).await.unwrap().denied().is_some());
        assert!(!gate.wait(none(), std::time::Duration::ZERO).await.unwrap().is_granted());
        if limit.lease().is_some() {
            gate.release(first.receipt).await.unwrap();
        } else {
            gate.settle(first.receipt, 2).await.unwrap();
        }
        assert!(gate.consume(none()).await.unwrap().granted().unwrap().amount >= tokens(4));
    }
    let limit = Limit::token_bucket("local", 10, EVER);
    for (policy, amount) in [(OnFailure::Open, 9), (OnFailure::Local(0.5), 4)] {
        let gate = patient(&nowhere()).on_failure(policy).build();
        let grant = gate.consume(limit.global().cost(9).up_to(2).leaving(1)).await.unwrap().granted().unwrap();
        assert_eq!((grant.amount, grant.source), (tokens(amount), Source::Degraded));
    }
}

#[tokio::test]
async fn whoever_refuses_says_why() {
    let world = World::new().await;
    let gate = patient(&world.pool).remember_refusals(EVER).build();
    let local = patient(&nowhere()).on_failure(OnFailure::Local(1.0)).build();
    let limit = Limit::fixed_window("window", 10, EVER);
    for gate in [&gate, &local] {
        gate.consume(limit.global().cost(5)).await.unwrap().granted().unwrap();
    }
    for (request, reason) in [
        (limit.global().cost(6), Reason::Short),
        (limit.global().cost(5).leaving(1), Reason::HeldBack),
        (limit.global().cost(9).up_to(6).leaving(1), Reason::Short),
        (limit.global().cost(9).up_to(5).leaving(1), Reason::HeldBack),
    ] {
        let mut tx = world.begin().await;
        let mut told = vec![limiter().consume(&mut tx, request.clone()).await.unwrap().denied().unwrap()];
        // Also from memory, at the latest the second time.
        for gate in [&gate, &gate, &local] {
            told.push(gate.consume(request.clone()).await.unwrap().denied().unwrap());
        }
        assert!(told.iter().all(|denied| denied.reason == reason), "{reason:?} {told:?}");
        let sources = told.iter().map(|denied| denied.source).skip(2).collect::<Vec<_>>();
        assert_eq!(sources, [Source::Memory, Source::Degraded]);
    }
    let slots = Limit::concurrency("slots", 1, MINUTE);
    gate.consume(slots.global()).await.unwrap().granted().unwrap();
    assert_eq!(gate.consume(slots.global()).await.unwrap().denied().unwrap().reason, Reason::Leased);
}
