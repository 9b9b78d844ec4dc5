//! A gate that is closed comes to its end and owes nothing, with any call under way.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join;
use tokio::task::yield_now;
use tollgate::{DAY, Error, Gate, GateBuilder, HOUR, Limit, MINUTE, SECOND, Tokens, first_of};

use crate::gate::stage::{EVER, one_connection, patient, pool, soon};
use crate::proxy::Proxy;
use crate::world::World;

/// Nothing comes back while a test runs, and enough in an hour to take ahead.
const HOT: Limit = Limit::stepped_bucket("hot", 99_999, DAY).capacity(100_000);
const SPENT: Limit = Limit::token_bucket("spent", 1, EVER);
const SLOTS: Limit = Limit::concurrency("slots", 4, HOUR);
const FENCE: Limit = Limit::fixed_window("fence", 1_000_000, EVER);

/// A gate that takes ahead, over a wire.
struct Stage {
    world: World,
    proxy: Proxy,
    gate: Gate,
}

impl Stage {
    async fn new(with: impl FnOnce(GateBuilder) -> GateBuilder) -> Self {
        let world = World::new().await;
        let proxy = Proxy::new(&world.url());
        let gate = with(patient(&one_connection(proxy.options()).await).prefetch(HOUR)).build();
        Self { world, proxy, gate }
    }

    /// Calls until tokens lie in memory, and returns how many were asked for.
    async fn fill(&self) -> i64 {
        let mut asked = 0;
        while self.gate.prefetched(&HOT.key("k")) < Tokens::new(5) {
            self.gate.consume(HOT.key("k")).await.unwrap().granted().unwrap();
            asked += 1;
            assert!(asked < 100, "nothing is taken ahead");
        }
        asked
    }

    /// Checks that nobody is charged for tokens that were not asked for, and that no slot is held.
    async fn expect_owes_nothing(&self, asked: i64) {
        assert_eq!(self.gate.prefetched(&HOT.key("k")), Tokens::ZERO);
        let others = patient(&self.world.pool).build();
        let left = others.balance(HOT.key("k")).await.unwrap();
        assert_eq!(left.remaining.micros() / 1_000_000, 100_000 - asked);
        assert!(others.balance(SLOTS.key("k")).await.unwrap().is_full());
    }
}

/// Returns once every earlier caller has an answer: a lane takes all calls in turn.
async fn fence(gate: &Gate) {
    for _ in 0..3 {
        yield_now().await;
        gate.balance(FENCE.key("k")).await.unwrap();
    }
}

#[tokio::test]
async fn whoever_would_wait_at_a_closed_gate_or_hold_a_lease_is_refused_with_a_name() {
    let stage = Stage::new(|gate| gate).await;
    let gate = &stage.gate;
    gate.close().await;
    let asked = stage.proxy.statements();
    let waits = [
        gate.wait(HOT.key("k"), HOUR).await.map(drop),
        gate.wait([HOT.key("k"), SPENT.key("k")], Duration::ZERO).await.map(drop),
        gate.wait(first_of([SPENT.key("k"), SLOTS.key("k")]), HOUR).await.map(drop),
        gate.acquire(SLOTS.key("k")).await.map(drop),
        gate.acquire([HOT.key("k"), SLOTS.key("k")]).await.map(drop),
        gate.acquire_within(SLOTS.key("k"), HOUR).await.map(drop),
        gate.acquire_within([HOT.key("k")], HOUR).await.map(drop),
    ];
    for wait in waits {
        assert!(matches!(wait, Err(Error::Stopped)), "{wait:?}");
        assert!(!wait.unwrap_err().is_retryable());
    }
    assert_eq!(stage.proxy.statements(), asked);
    // All else is answered by the database.
    gate.consume(HOT.key("k")).await.unwrap().granted().unwrap();
    drop(gate.acquire(HOT.key("k")).await.unwrap().granted().unwrap());
    let held = gate.consume(SLOTS.key("k")).await.unwrap().granted().unwrap();
    let renewed = gate.renew(&held.receipt).await.unwrap();
    gate.release(renewed).await.unwrap();
    gate.stream([HOT.key("k").cost(5)]).await.unwrap().granted().unwrap().settle().await.unwrap();
    stage.expect_owes_nothing(2).await;
}

/// Each future is polled once, and then left alone for as long as the gate takes to close.
#[tokio::test]
async fn callers_that_nobody_polls_hold_nothing_up() {
    let stage = Stage::new(|gate| gate.lanes(1)).await;
    let gate = &stage.gate;
    let asked = stage.fill().await;
    gate.consume(SPENT.key("k")).await.unwrap().granted().unwrap();
    let held = gate.acquire(SLOTS.key("k").cost(4)).await.unwrap().granted().unwrap();
    std::mem::forget(held);
    let mut waits = pin!(gate.wait(SPENT.key("k"), Duration::MAX));
    let mut behind = pin!(gate.wait(SPENT.key("k"), Duration::MAX));
    let mut leased = pin!(gate.acquire_within(SLOTS.key("k"), Duration::MAX));
    let mut either = pin!(gate.wait(first_of([SPENT.key("k"), SLOTS.key("k")]), Duration::MAX));
    let mut consumes = pin!(gate.consume(SPENT.key("other")));
    let mut never = pin!(gate.wait(SPENT.key("k"), Duration::MAX));
    for _ in 0..20 {
        assert!(waits.as_mut().now_or_never().is_none());
        assert!(behind.as_mut().now_or_never().is_none());
        assert!(leased.as_mut().now_or_never().is_none());
        assert!(either.as_mut().now_or_never().is_none());
        fence(gate).await;
    }
    assert!(consumes.as_mut().now_or_never().is_none());
    let stream = gate.stream([SPENT.key("open")]).await.unwrap().granted().unwrap();
    soon(gate.close()).await;
    stage.expect_owes_nothing(asked).await;
    // They are answered when they are polled again.
    assert!(!soon(&mut waits).await.unwrap().is_granted());
    assert!(!soon(&mut behind).await.unwrap().is_granted());
    assert!(!soon(&mut either).await.unwrap().is_granted());
    assert!(!soon(leased.as_mut()).await.unwrap().is_granted());
    assert!(soon(&mut consumes).await.unwrap().is_granted());
    assert!(matches!(soon(&mut never).await, Err(Error::Stopped)));
    drop(stream);
}

#[tokio::test]
async fn a_gate_is_closed_by_several_at_once() {
    let stage = Stage::new(|gate| gate).await;
    let asked = stage.fill().await;
    let lease = stage.gate.acquire(SLOTS.key("k")).await.unwrap().granted().unwrap();
    let other = stage.gate.clone();
    let both = join(stage.gate.close(), async {
        other.close().await;
        stage.expect_owes_nothing(asked).await;
    });
    soon(both).await;
    soon(stage.gate.close()).await;
    stage.expect_owes_nothing(asked).await;
    soon(lease.lapsed()).await;
}

/// Each batch under way is held at each of its statements: it charges ahead, grants a lease, or settles.
#[tokio::test]
async fn a_batch_that_is_under_way_is_waited_for() {
    for statements in 0..4 {
        let stage = Stage::new(|gate| gate.lanes(1)).await;
        let gate = &stage.gate;
        for _ in 0..2 {
            gate.consume(HOT.key("k")).await.unwrap().granted().unwrap();
        }
        let stream = gate.stream([HOT.key("k").cost(7)]).await.unwrap().granted().unwrap();
        stage.proxy.hold_after(statements);
        drop(stream);
        let mut tasks = Vec::new();
        for _ in 0..20 {
            let gate = gate.clone();
            tasks.push(tokio::spawn(async move { gate.consume(HOT.key("k")).await.unwrap().granted().unwrap() }));
        }
        let leased = tokio::spawn({
            let gate = gate.clone();
            async move { gate.acquire(SLOTS.key("k")).await }
        });
        soon(stage.proxy.until_held()).await;
        let closing = tokio::spawn({
            let gate = gate.clone();
            async move { gate.close().await }
        });
        yield_now().await;
        stage.proxy.release();
        soon(closing).await.unwrap();
        for task in tasks {
            soon(task).await.unwrap();
        }
        // The lease was asked for before, so it may have been granted; it is over by now.
        if let Ok(decision) = soon(leased).await.unwrap() {
            soon(decision.granted().unwrap().lapsed()).await;
        }
        stage.expect_owes_nothing(22).await;
    }
}

/// Its callers ask on, so no lane is ever idle.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_gate_is_closed_beside_its_callers() {
    let world = World::new().await;
    let gate = patient(&pool(&world.url(), 2).await).prefetch(HOUR).build();
    let is_over = Arc::new(AtomicBool::new(false));
    let callers: Vec<_> = (0..32)
        .map(|caller| {
            let (gate, is_over) = (gate.clone(), is_over.clone());
            tokio::spawn(async move {
                let mut asked = 0;
                while !is_over.load(Ordering::SeqCst) {
                    gate.consume(HOT.key("k")).await.unwrap().granted().unwrap();
                    drop(gate.acquire(SLOTS.key(caller)).await);
                    drop(gate.wait(HOT.key("other"), MINUTE).await);
                    drop(gate.stream([HOT.key(caller)]).await.unwrap());
                    asked += 1;
                }
                asked
            })
        })
        .collect();
    while gate.prefetched(&HOT.key("k")) == Tokens::ZERO {
        yield_now().await;
    }
    soon(gate.close()).await;
    is_over.store(true, Ordering::SeqCst);
    let mut asked = 0;
    for caller in callers {
        asked += soon(caller).await.unwrap();
    }
    assert_eq!(gate.prefetched(&HOT.key("k")), Tokens::ZERO);
    let left = patient(&world.pool).build().balance(HOT.key("k")).await.unwrap();
    assert_eq!(left.remaining.micros() / 1_000_000, 100_000 - asked);
}

/// A lease lasts for an hour yet, and nobody releases it.
#[tokio::test]
async fn a_gate_whose_server_is_gone_is_closed_when_its_timeouts_have_passed() {
    for is_silent in [false, true] {
        let stage = Stage::new(|gate| {
            let gate = gate.lanes(1).acquire_timeout(SECOND / 2).statement_timeout(SECOND / 2);
            gate.lock_timeout(SECOND / 2)
        })
        .await;
        let gate = &stage.gate;
        // A slow machine says so.
        let lease = soon(async {
            loop {
                match gate.acquire(SLOTS.key("k")).await {
                    Ok(decision) => return decision.granted().unwrap(),
                    Err(error) => drop(error),
                }
            }
        })
        .await;
        drop(gate.consume(SPENT.key("k")).await);
        let mut waits = pin!(gate.wait(SPENT.key("k"), Duration::MAX));
        assert!((&mut waits).now_or_never().is_none());
        while gate.prefetched(&HOT.key("k")) < Tokens::new(5) {
            drop(gate.consume(HOT.key("k")).await);
        }
        let stream = loop {
            if let Ok(decision) = gate.stream(HOT.key("k").cost(20).lapses_after(HOUR)).await {
                break decision.granted().unwrap();
            }
        };
        if is_silent {
            stage.proxy.silence_after(0);
        } else {
            stage.proxy.lead_to("postgres://nobody@localhost/none?host=/nowhere");
            stage.proxy.cut().await;
        }
        drop(stream);
        soon(gate.close()).await;
        soon(lease.lapsed()).await;
        assert_eq!(gate.prefetched(&HOT.key("k")), Tokens::ZERO);
        stage.proxy.hear();
    }
}
