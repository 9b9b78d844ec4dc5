//! Rows that are raised: no memory of a refusal outlives that.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sqlx::postgres::PgPoolOptions;
use tokio::task::JoinSet;
use tollgate::{HOUR, Limit, MINUTE, SECOND, Source};

use super::stage::{Stage, ones};
use crate::gate::stage::{EVER, patient, pool, soon};
use crate::proxy::Proxy;
use crate::teller::both;
use crate::world::World;

/// Each verb that raises a row clears the memory of it.
#[tokio::test]
async fn credit_reset_settle_and_cancel_go_past_the_memory_and_clear_it() {
    let stage = Stage::new(100).await;
    for limit in ones().into_iter().filter(|limit| limit.name() != "drip") {
        let spent = || async {
            stage.pass(HOUR);
            let grant = stage.gate.consume(limit.key("k")).await.unwrap().granted().unwrap();
            stage.asked(limit.key("k")).await;
            stage.remembered(limit.key("k")).await;
            grant
        };
        spent().await;
        stage.gate.credit(limit.key("k")).await.unwrap();
        stage.ok(limit.key("k")).await;
        spent().await;
        stage.gate.reset(limit.key("k")).await.unwrap();
        stage.ok(limit.key("k")).await;
        let grant = spent().await;
        stage.gate.settle(grant, 0).await.unwrap();
        stage.ok(limit.key("k")).await;
        let grant = spent().await;
        stage.gate.cancel(grant).await.unwrap();
        stage.ok(limit.key("k")).await;
    }
}

/// The same for a call that is decided under a lock, as one over both tables is.
#[tokio::test]
async fn settling_a_receipt_over_both_tables_clears_the_memory() {
    let stage = Stage::new(100).await;
    let limits = [Limit::token_bucket("durable", 1, EVER), Limit::token_bucket("ephemeral", 1, EVER).ephemeral()];
    for _ in 0..2 {
        let grant = stage.gate.consume(limits.each_ref().map(|limit| limit.key("k"))).await;
        let grant = grant.unwrap().granted().unwrap();
        for limit in &limits {
            stage.asked(limit.key("k")).await;
            stage.remembered(limit.key("k")).await;
        }
        stage.gate.settle(grant, 0).await.unwrap();
        for limit in &limits {
            stage.ok(limit.key("k")).await;
            stage.gate.reset(limit.key("k")).await.unwrap();
        }
    }
}

/// The gate looks for lapses by itself; until then the memory refuses.
#[tokio::test]
async fn what_this_gate_gives_back_of_a_lapse_clears_the_memory() {
    let stage = Stage::new(100).await;
    for limit in both(&Limit::token_bucket("bucket", 1, EVER)) {
        stage.ok(limit.key("k").lapses_after(MINUTE)).await;
        stage.asked(limit.key("k")).await;
        let denied = stage.gate.consume(limit.key("k")).await.unwrap().denied().unwrap();
        assert_eq!(denied.source, Source::Memory);
        stage.pass(MINUTE);
        soon(async {
            while !stage.gate.consume(limit.key("k")).await.unwrap().is_granted() {
                tokio::time::sleep(SECOND / 20).await;
            }
        })
        .await;
    }
}

/// A caller that raises a row and then asks is not refused by a row that others read before, in any lane.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_that_is_under_way_does_not_outlive_a_credit() {
    const ROUNDS: u32 = 300;
    let world = World::new().await;
    let pool = pool(&world.url(), 8).await;
    let gate = patient(&pool).lanes(4).remember_refusals(HOUR).build();
    let limit = Limit::stepped_bucket("raced", 10, EVER);
    let spent = Limit::stepped_bucket("spent", 1, EVER);
    for key in 0..4 {
        gate.consume(spent.key(key)).await.unwrap().granted().unwrap();
    }
    let done = Arc::new(AtomicBool::new(false));
    let mut others = JoinSet::new();
    for other in 0..8_u32 {
        let (gate, limit, spent, done) = (gate.clone(), limit.clone(), spent.clone(), done.clone());
        others.spawn(async move {
            let mut from_memory = 0_u32;
            while !done.load(Ordering::SeqCst) {
                // They take nothing: some only look, the others ask too much elsewhere, and so in other lanes.
                let decision = if other % 2 == 0 {
                    gate.check(limit.key("k")).await.unwrap()
                } else {
                    gate.consume([spent.key(other % 4), limit.key("k")]).await.unwrap()
                };
                from_memory += u32::from(decision.denied().is_some_and(|denied| denied.source == Source::Memory));
                tokio::task::yield_now().await;
            }
            from_memory
        });
    }
    let all = || limit.key("k").cost(10);
    for round in 0..ROUNDS {
        let grant = gate.consume(all()).await.unwrap().granted().unwrap_or_else(|denied| panic!("{round}: {denied:?}"));
        // Until it is remembered.
        soon(async { while gate.check(limit.key("k")).await.unwrap().denied().unwrap().source == Source::Database {} })
            .await;
        let raised = match round % 4 {
            0 => gate.reset(all()).await,
            1 => gate.credit(all()).await,
            2 => gate.settle(grant, 0).await.and(gate.balance(all()).await),
            // A grant is ready at once, so it is hardly ever in time.
            _ => gate.cancel(grant).await.map(drop).or(Ok(())).and(gate.balance(all()).await),
        };
        if !raised.unwrap().is_full() {
            gate.reset(all()).await.unwrap();
        }
    }
    done.store(true, Ordering::SeqCst);
    let from_memory: Vec<u32> = soon(others.join_all()).await;
    assert!(from_memory.iter().sum::<u32>() > ROUNDS, "{from_memory:?}");
}

/// A row is read as too low in one lane, and raised in another before the first comes to remember it.
#[tokio::test]
async fn what_was_read_before_a_reset_is_not_remembered_after_it() {
    let world = World::new().await;
    let proxy = Proxy::new(&world.url());
    // So many lanes that the two rows are in different ones.
    let pool = PgPoolOptions::new()
        .max_connections(64)
        .acquire_timeout(5 * MINUTE)
        .connect_with(proxy.options())
        .await
        .unwrap();
    let gate = patient(&pool).lanes(64).remember_refusals(HOUR).build();
    let limit = Limit::stepped_bucket("raced", 1000, EVER);
    let [low, busy] = ["low", "busy"].map(|key| limit.key(key));
    let idle = || {
        soon(async {
            while pool.num_idle() < 1 {
                tokio::task::yield_now().await;
            }
        })
    };
    gate.consume(low.clone().cost(1000)).await.unwrap().granted().unwrap();
    for other in 0..4 {
        // From now on, calls of several rows go where the busy one is.
        idle().await;
        gate.consume([busy.clone(), limit.key(other)]).await.unwrap().granted().unwrap();
    }
    idle().await;
    // One connection over the wire, and all others past it.
    assert_eq!(pool.size(), 1);
    pool.set_connect_options(world.url().parse().unwrap());
    proxy.hold_after(1);
    let (granted, denied, ()) =
        tokio::join!(soon(gate.consume(busy.clone())), soon(gate.consume([low.clone(), busy.clone()])), async {
            soon(proxy.until_held()).await;
            assert!(soon(gate.reset(low.clone())).await.unwrap().is_full());
            proxy.release();
        });
    granted.unwrap().granted().unwrap();
    assert_eq!(denied.unwrap().denied().unwrap().source, Source::Database);
    soon(gate.consume(low.cost(1000))).await.unwrap().granted().unwrap();
}

/// Seen when the memory is stale; a gate that remembers for an hour goes on refusing.
#[tokio::test]
async fn what_another_gate_gave_is_seen_within_the_staleness() {
    let world = World::new().await;
    let pool = pool(&world.url(), 4).await;
    let remembering = |staleness| patient(&pool).remember_refusals(staleness).build();
    let (never, shortly, for_long) =
        (remembering(Duration::ZERO), remembering(Duration::from_millis(20)), remembering(HOUR));
    let limit = Limit::token_bucket("elsewhere", 1, EVER);
    for _ in 0..3 {
        never.consume(limit.key("k")).await.unwrap().granted().unwrap();
        for gate in [&never, &shortly, &for_long] {
            gate.consume(limit.key("k")).await.unwrap().granted().unwrap_err();
        }
        let other = patient(&pool).build();
        other.reset(limit.key("k")).await.unwrap();
        let still = for_long.check(limit.key("k")).await.unwrap().denied().unwrap();
        assert_eq!(still.source, Source::Memory);
        assert!(never.check(limit.key("k")).await.unwrap().is_granted());
        soon(async { while !shortly.check(limit.key("k")).await.unwrap().is_granted() {} }).await;
        // Its own changes it knows.
        for_long.reset(limit.key("k")).await.unwrap();
        assert!(for_long.check(limit.key("k")).await.unwrap().is_granted());
    }
}
