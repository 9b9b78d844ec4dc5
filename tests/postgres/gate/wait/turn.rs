//! Waiting for tokens: until the very instant, without spinning, and without holding anything.

use std::pin::pin;
use std::time::Duration;

use sqlx::PgPool;
use tokio::task::JoinSet;
use tollgate::{Decision, Error, HOUR, Limit, MINUTE, Reason, SECOND, Source, Storage, Tokens};

use crate::gate::stage::{EVER, one_connection, patient, pool, soon, until_asked};
use crate::proxy::Proxy;
use crate::world::World;

/// A database behind a wire that counts.
async fn counted() -> (World, Proxy, PgPool) {
    let world = World::new().await;
    let proxy = Proxy::new(&world.url());
    let pool = one_connection(proxy.options()).await;
    (world, proxy, pool)
}

/// One statement for the refusal, two for the grant: it comes neither too early nor more than once.
#[tokio::test]
async fn a_waiter_sleeps_until_the_instant_that_the_refusal_names_and_asks_once_more() {
    let (_world, proxy, pool) = counted().await;
    let gates = [patient(&pool).build(), patient(&pool).remember_refusals(HOUR).build()];
    for kind in 0..3 {
        for gate in &gates {
            let (mut waited, mut period) = (0, Duration::from_millis(50));
            while waited < 10 {
                let limit = match kind {
                    0 => Limit::fixed_window("window", 1, period),
                    1 => Limit::stepped_bucket("steps", 1, period).ephemeral(),
                    _ => Limit::token_bucket("drip", 1, period),
                };
                gate.reset(limit.key("k")).await.unwrap();
                gate.consume(limit.key("k")).await.unwrap().granted().unwrap();
                let Some(denied) = gate.consume(limit.key("k")).await.unwrap().denied() else {
                    // The token was back before the machine asked for the second time, or a period began.
                    period *= 2;
                    assert!(period < HOUR, "nothing is refused");
                    continue;
                };
                waited += 1;
                let before = proxy.statements();
                let grant = soon(gate.wait(limit.key("k"), HOUR)).await.unwrap().granted().unwrap();
                assert_eq!(grant.source, Source::Database);
                assert!(grant.decided_at >= denied.retry_at.unwrap(), "{grant:?}, {denied:?}");
                let asked = proxy.statements() - before;
                assert!(asked <= 3, "{asked} statements");
            }
        }
    }
}

/// One that slept would be here in a hundred years.
#[tokio::test]
async fn an_instant_beyond_the_timeout_is_refused_at_once() {
    let (_world, proxy, pool) = counted().await;
    let gate = patient(&pool).build();
    let limit = Limit::token_bucket("spent", 1, EVER);
    gate.consume(limit.key("k")).await.unwrap().granted().unwrap();
    for timeout in [Duration::ZERO, Duration::from_millis(500), 100 * HOUR] {
        let before = proxy.statements();
        let denied = soon(gate.wait(limit.key("k"), timeout)).await.unwrap().denied().unwrap();
        assert!(denied.retry_after().unwrap() > timeout);
        assert_eq!(proxy.statements() - before, 1);
    }
    // Tokens that are there are granted, under any timeout.
    for timeout in [Duration::ZERO, Duration::MAX] {
        soon(gate.wait(limit.key(format!("{timeout:?}")), timeout)).await.unwrap().granted().unwrap();
    }
}

#[tokio::test]
async fn a_cost_above_the_capacity_is_an_error_at_once() {
    let (_world, proxy, pool) = counted().await;
    let gate = patient(&pool).build();
    let error = soon(gate.wait(Limit::token_bucket("ten", 10, MINUTE).key("k").cost(11), HOUR)).await.unwrap_err();
    assert!(matches!(&error, Error::CostExceedsCapacity { limit, .. } if limit == "ten"), "{error:?}");
    assert_eq!(proxy.statements(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_waiters_on_one_key_are_let_through_within_the_limit() {
    const WAITERS: usize = 100;
    let world = World::new().await;
    for (limit, jitter) in [
        (Limit::token_bucket("drip", 200, SECOND).capacity(5), Duration::from_millis(5)),
        (Limit::token_bucket("drip", 200, SECOND).capacity(5).ephemeral(), Duration::ZERO),
    ] {
        let gate = patient(&pool(&world.url(), 4).await).jitter(jitter).build();
        let mut waiters = JoinSet::new();
        for _ in 0..WAITERS {
            let (gate, limit) = (gate.clone(), limit.clone());
            waiters.spawn(async move {
                let decision = soon(gate.wait(limit.key("k"), HOUR)).await.unwrap();
                decision.granted().unwrap().decided_at.timestamp_micros()
            });
        }
        let mut grants = waiters.join_all().await;
        grants.sort_unstable();
        assert_eq!(grants.len(), WAITERS);
        // 200 tokens a second are one each 5000 microseconds.
        for (nth, first) in grants.iter().enumerate() {
            for (more, last) in grants[nth..].iter().enumerate() {
                let most = 5 + (last - first) / 5000;
                assert!(i64::try_from(more + 1).unwrap() <= most, "{} within {} µs", more + 1, last - first);
            }
        }
    }
}

/// Some are served in time, and the others are refused: nobody is forgotten, and nobody is charged for a refusal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_whose_time_is_up_are_refused_and_charged_nothing() {
    let world = World::new().await;
    let gate = patient(&pool(&world.url(), 4).await).build();
    let limit = Limit::fixed_window("window", 7, Duration::from_millis(100));
    let mut waiters = JoinSet::new();
    for _ in 0..100 {
        let (gate, limit) = (gate.clone(), limit.clone());
        waiters.spawn(async move { soon(gate.wait(limit.key("k"), Duration::from_millis(250))).await.unwrap() });
    }
    let (mut instants, mut denied) = (Vec::new(), 0);
    for decision in waiters.join_all().await {
        match decision {
            Decision::Granted(grant) => instants.push(grant.decided_at.timestamp_micros()),
            Decision::Denied(_) => denied += 1,
        }
    }
    assert!(instants.len() >= 7 && denied > 0, "{} granted, {denied} denied", instants.len());
    let (_, step) = world.row(Storage::Durable, "window", "k").await.unwrap();
    let left = world.left(&limit, "k").await.unwrap();
    let window = |instant: i64| (instant - step.timestamp_micros()).div_euclid(100_000);
    let in_last = instants.iter().filter(|instant| window(**instant) == 0).count();
    assert_eq!(left, Tokens::new(7 - u32::try_from(in_last).unwrap()), "granted is what is missing");
    for instant in &instants {
        assert!(instants.iter().filter(|other| window(**other) == window(*instant)).count() <= 7);
    }
}

/// Each is refused once, and asks once more in its turn; were all to wake together, they would ask twenty thousand
/// times.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_for_one_key_ask_in_turn() {
    const WAITERS: u64 = 200;
    let (_world, proxy, pool) = counted().await;
    let gate = patient(&pool).max_batch(1).lanes(1).build();
    let period = Duration::from_millis(10);
    for limit in [Limit::fixed_window("one", 1, period), Limit::sliding_window("slides", 1, period)] {
        gate.consume(limit.key("k")).await.unwrap().granted().unwrap();
        let before = proxy.statements();
        let mut waiters = JoinSet::new();
        for _ in 0..WAITERS {
            let (gate, limit) = (gate.clone(), limit.clone());
            waiters.spawn(async move { soon(gate.wait(limit.key("k"), HOUR)).await.unwrap().is_granted() });
        }
        assert!(waiters.join_all().await.into_iter().all(|granted| granted));
        // A refusal takes one statement, a grant two.
        let asked = proxy.statements() - before;
        assert!(asked <= 6 * WAITERS, "{asked} statements for {}", limit.name());
    }
}

/// The callers that want little come later, and wait until the one that wants much has it.
#[tokio::test]
async fn who_waits_for_much_is_served_in_its_turn() {
    let (_world, proxy, pool) = counted().await;
    let gate = patient(&pool).build();
    let limit = Limit::token_bucket("drip", 500, SECOND).capacity(50);
    gate.consume(limit.key("k").cost(50)).await.unwrap().granted().unwrap();
    let wait = |cost: u32| {
        let (gate, limit) = (gate.clone(), limit.clone());
        tokio::spawn(async move {
            soon(gate.wait(limit.key("k").cost(cost), HOUR)).await.unwrap().granted().unwrap().decided_at
        })
    };
    let asked = proxy.statements();
    let much = wait(50);
    until_asked(&proxy, asked).await;
    // The answer has arrived.
    gate.balance(limit.key("fence")).await.unwrap();
    let little: Vec<_> = (0..100).map(|_| wait(1)).collect();
    let much = much.await.unwrap();
    for little in little {
        assert!(little.await.unwrap() >= much);
    }
}

/// Its tokens are there, but others were before it.
#[tokio::test]
async fn whose_time_is_up_behind_others_takes_nothing() {
    let (_world, proxy, pool) = counted().await;
    let gate = patient(&pool).build();
    let limit = Limit::token_bucket("rare", 1, EVER).capacity(50);
    gate.consume(limit.key("k").cost(30)).await.unwrap().granted().unwrap();
    let asked = proxy.statements();
    let mut much = pin!(gate.wait(limit.key("k").cost(50), Duration::MAX));
    tokio::select! {
        decision = &mut much => panic!("{decision:?}"),
        () = until_asked(&proxy, asked) => {}
    }
    let little = async {
        // The answer has arrived.
        gate.balance(limit.key("fence")).await.unwrap();
        soon(gate.wait(limit.key("k"), Duration::from_millis(50))).await.unwrap()
    };
    tokio::select! {
        decision = &mut much => panic!("{decision:?}"),
        denied = little => {
            let denied = denied.denied().unwrap();
            assert_eq!(denied.reason, Reason::OutOfTurn);
            assert!(!denied.retry_after().unwrap().is_zero());
        }
    }
    assert_eq!(gate.balance(limit.key("k")).await.unwrap().remaining.micros() / 1_000_000, 20);
}

/// The one before it gives up: its tokens are the next one's.
#[tokio::test]
async fn who_gives_up_leaves_its_turn_to_the_next() {
    let (_world, proxy, pool) = counted().await;
    let gate = patient(&pool).build();
    let limit = Limit::token_bucket("drip", 20, SECOND).capacity(1_000_000);
    gate.consume(limit.key("k").cost(1_000_000)).await.unwrap().granted().unwrap();
    let wait = |cost: u32| {
        let (gate, limit) = (gate.clone(), limit.clone());
        tokio::spawn(async move { soon(gate.wait(limit.key("k").cost(cost), 100 * HOUR)).await.unwrap().is_granted() })
    };
    let asked = proxy.statements();
    let much = wait(1_000_000);
    until_asked(&proxy, asked).await;
    gate.balance(limit.key("fence")).await.unwrap();
    let asked = proxy.statements();
    let little = wait(1);
    until_asked(&proxy, asked).await;
    much.abort();
    assert!(much.await.unwrap_err().is_cancelled());
    assert!(little.await.unwrap());
}

/// Dropped while it sleeps, which it does as long as nothing else happens.
#[tokio::test]
async fn a_waiter_that_is_dropped_in_its_sleep_takes_nothing() {
    let (world, proxy, pool) = counted().await;
    let gate = patient(&pool).build();
    let limit = Limit::token_bucket("spent", 1, EVER);
    gate.consume(limit.key("k")).await.unwrap().granted().unwrap();
    let before = world.row(Storage::Durable, "spent", "k").await.unwrap();
    let asked = proxy.statements();
    {
        let mut waiter = pin!(gate.wait(limit.key("k"), Duration::MAX));
        tokio::select! {
            decision = &mut waiter => panic!("{decision:?}"),
            () = async { while proxy.statements() == asked { tokio::task::yield_now().await; } } => {}
        }
        // It sleeps after the answer; the lane is free for others meanwhile.
        tokio::select! {
            decision = &mut waiter => panic!("{decision:?}"),
            other = gate.consume(limit.key("other")) => drop(other.unwrap().granted().unwrap()),
        }
    }
    gate.balance(limit.key("fence")).await.unwrap();
    assert_eq!(world.row(Storage::Durable, "spent", "k").await.unwrap(), before);
    gate.reset(limit.key("k")).await.unwrap();
    gate.consume(limit.key("k")).await.unwrap().granted().unwrap();
}
