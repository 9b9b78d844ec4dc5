use tollgate::{Gate, Limit, MINUTE, Tokens};

use crate::world::World;

#[tokio::test]
async fn it_decides() {
    let world = World::new().await;
    let gate = Gate::new(world.pool.clone());
    for limit in [Limit::token_bucket("ten", 10, MINUTE), Limit::token_bucket("ten", 10, MINUTE).ephemeral()] {
        for left in (0..10).rev() {
            let grant = gate.consume(limit.key("ada")).await.unwrap().granted().unwrap();
            assert!(grant.remaining >= Tokens::new(left));
        }
        gate.consume(limit.key("ada")).await.unwrap().granted().unwrap_err();
        gate.reset(limit.key("ada")).await.unwrap();
        gate.consume(limit.key("ada").cost(10)).await.unwrap().granted().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_callers_share_a_few_connections() {
    let world = World::new().await;
    let gate = Gate::new(world.pool.clone());
    let limit = Limit::token_bucket("hundred", 100, Limit::MAX_PERIOD);
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..1000 {
        let (gate, request) = (gate.clone(), limit.key("ada"));
        callers.spawn(async move { gate.consume(request).await.unwrap().is_granted() });
    }
    assert_eq!(callers.join_all().await.into_iter().filter(|granted| *granted).count(), 100);
}
