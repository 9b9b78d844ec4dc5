//! Thresholds that many callers cross at once.

use tokio::task::JoinSet;
use tollgate::{DAY, Limit};

use crate::gate::stage::{EVER, patient, pool};
use crate::world::{World, limiter};

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
