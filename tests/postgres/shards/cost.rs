//! The cost of a call of a limit with shards.

use sqlx::Connection;
use tollgate::Limit;

use super::stage::{EVER, clear, put};
use crate::proxy::Proxy;
use crate::world::{World, limiter, second};

const ONE: i64 = 1_000_000;

#[tokio::test]
async fn each_path_takes_so_many_round_trips() {
    let world = World::new().await;
    let proxy = Proxy::new(&world.url());
    let (mut conn, mut others) = (proxy.connect().await, world.connect().await);
    let limit = Limit::token_bucket("cost", 40, EVER).shards(4);
    let single = Limit::token_bucket("single", 40, EVER);
    let mut counts = Vec::new();
    for round in ["cold", "warm"] {
        counts.clear();
        macro_rules! trips {
            ($path:literal, $values:expr, $call:ident($argument:expr)) => {{
                let values: &[i64] = &$values;
                put(&mut others, &limit, values, second(0.0)).await;
                clear(&mut others, &single).await;
                let mut tx = conn.begin().await.unwrap();
                let before = proxy.trips();
                let _ = limiter().$call(&mut tx, $argument).await.unwrap();
                counts.push(($path, proxy.trips() - before));
                tx.rollback().await.unwrap();
            }};
        }
        let ask = |cost: u32| limit.global().cost(cost);
        trips!("granted", [10 * ONE; 4], consume(ask(1)));
        trips!("refused", [ONE; 4], consume(ask(9)));
        trips!("granted, absent", [], consume(ask(1)));
        trips!("granted, with the last tokens of a shard", [0, ONE, 0, 0], consume(ask(1)));
        trips!("granted by several", [ONE; 4], consume(ask(3)));
        trips!("granted by several, absent", [], consume(ask(11)));
        trips!("with another limit", [10 * ONE; 4], consume([ask(1), single.global()]));
        trips!("check", [10 * ONE; 4], check(ask(1)));
        trips!("balance", [10 * ONE; 4], balance(ask(1)));
        trips!("credit", [ONE; 4], credit(ask(1)));
        trips!("credit, absent", [ONE], credit(ask(1)));
        trips!("debit", [ONE; 4], debit(ask(1)));
        assert!(!round.is_empty());
    }
    assert_eq!(
        counts,
        [
            ("granted", 4),
            ("refused", 1),
            ("granted, absent", 4),
            ("granted, with the last tokens of a shard", 4),
            ("granted by several", 3),
            // Two of the four rows that are placed are not needed, and are deleted again.
            ("granted by several, absent", 4),
            ("with another limit", 4),
            ("check", 1),
            ("balance", 1),
            ("credit", 2),
            // The rows that are not needed are deleted again.
            ("credit, absent", 3),
            ("debit", 2),
        ]
    );
}
