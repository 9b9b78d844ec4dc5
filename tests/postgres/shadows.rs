//! Limits that are tried out, and thresholds, where many ask at once.

use tokio::task::JoinSet;
use tollgate::{DAY, Decision, Error, Limit, OnFailure, Source};

use crate::gate::stage::{EVER, nowhere, patient, pool};
use crate::teller::tokens;
use crate::world::{World, limiter};

/// The enforced limit decides as if the other were not there; the other grants the tokens that it has, and reports the
/// rest.
#[tokio::test]
async fn a_shadow_refuses_nobody_and_counts_whom_it_would_have() {
    let world = World::new().await;
    let gate = patient(&pool(&world.url(), 4).await).build();
    for (enforced, tried) in [
        (Limit::token_bucket("enforced", 40, EVER), Limit::token_bucket("tried", 10, EVER)),
        (Limit::sliding_window("window", 40, DAY), Limit::token_bucket("spread", 10, EVER).shards(3).ephemeral()),
        (Limit::token_bucket("jobs", 40, EVER), Limit::concurrency("slots", 10, DAY)),
    ] {
        let mut callers = JoinSet::new();
        for caller in 0..60 {
            let (gate, pool, limits) = (gate.clone(), world.pool.clone(), [enforced.global(), tried.global().shadow()]);
            callers.spawn(async move {
                if caller % 2 == 0 {
                    return gate.consume(limits).await.unwrap();
                }
                let mut tx = pool.begin().await.unwrap();
                let decision = limiter().consume(&mut tx, limits).await.unwrap();
                tx.commit().await.unwrap();
                decision
            });
        }
        let (mut granted, mut would_deny) = (0, 0);
        for decision in callers.join_all().await {
            if let Decision::Granted(grant) = decision {
                granted += 1;
                would_deny += grant.would_deny.len();
                assert_eq!(
                    (grant.standings.len(), grant.receipt.by_request().count()),
                    (1, 2 - grant.would_deny.len())
                );
            }
        }
        assert_eq!((granted, would_deny), (40, 30));
        for limit in [&enforced, &tried] {
            assert_eq!(gate.balance(limit.global()).await.unwrap().remaining, tokens(0));
        }
    }
}

#[tokio::test]
async fn a_repeat_tells_what_a_shadow_told_and_memory_tries_nothing_out() {
    let world = World::new().await;
    let gate = patient(&pool(&world.url(), 2).await).build();
    let (limit, tried) = (Limit::token_bucket("limit", 10, EVER), Limit::token_bucket("tried", 1, EVER));
    let ask = || [tried.global().cost(2).shadow(), limit.global().once("job")];
    for source in [Source::Database, Source::Repeated] {
        let grant = gate.consume(ask()).await.unwrap().granted().unwrap();
        assert_eq!((grant.source, &*grant.would_deny[0].limit, grant.would_deny[0].retry_at), (source, "tried", None));
    }
    let mut tx = world.begin().await;
    let again = limiter().consume(&mut tx, ask()).await.unwrap().granted().unwrap();
    assert_eq!((again.source, again.would_deny.len()), (Source::Repeated, 1));
    let denied = limiter().consume(&mut tx, [limit.global().cost(10), tried.global().cost(2).shadow()]).await.unwrap();
    assert_eq!(denied.denied().unwrap().would_deny.len(), 1);
    tx.commit().await.unwrap();
    let reserved = gate.reserve(ask().map(|request| request.cost(1))).await.unwrap_err();
    assert!(matches!(reserved, Error::OnceMismatch { .. }), "{reserved}");
    let waited = gate.wait(tried.global().cost(9).shadow(), DAY).await.unwrap().granted().unwrap();
    assert_eq!(waited.would_deny.len(), 1);
    for policy in [OnFailure::Open, OnFailure::Local(1.0)] {
        let gate = patient(&nowhere()).on_failure(policy).build();
        for asked in [Vec::from(ask()), vec![tried.global().cost(9).shadow()]] {
            let grant = gate.consume(asked).await.unwrap().granted().unwrap();
            assert!(grant.would_deny.is_empty());
        }
    }
}

/// Exactly one of all callers hears of the fall, whether it asks the gate or a limiter.
#[tokio::test]
async fn one_caller_is_told_of_a_fall() {
    let world = World::new().await;
    let gate = patient(&pool(&world.url(), 4).await).build();
    for limit in [Limit::token_bucket("limit", 100, EVER), Limit::sliding_window("window", 100, DAY)] {
        let mut callers = JoinSet::new();
        for caller in 0..100 {
            let (gate, pool, request) = (gate.clone(), world.pool.clone(), limit.global());
            callers.spawn(async move {
                let grant = if caller % 2 == 0 {
                    gate.consume(request).await.unwrap().granted().unwrap()
                } else {
                    let mut tx = pool.begin().await.unwrap();
                    let decision = limiter().consume(&mut tx, request).await.unwrap();
                    tx.commit().await.unwrap();
                    decision.granted().unwrap()
                };
                usize::from(grant.standings[0].crossed(0.2).unwrap())
            });
        }
        assert_eq!(callers.join_all().await.into_iter().sum::<usize>(), 1);
    }
    let limit = Limit::token_bucket("settled", 10, EVER);
    let grant = gate.consume(limit.global().cost(4)).await.unwrap().granted().unwrap();
    assert_eq!(gate.settle(grant, 6).await.unwrap().crossed(&limit, 0.5), Ok(true));
    assert_eq!(gate.debit(limit.global()).await.unwrap().crossed(&limit, 0.4), Ok(true));
    assert_eq!(gate.debit(limit.global()).await.unwrap().crossed(&limit, 0.4), Ok(false));
}
