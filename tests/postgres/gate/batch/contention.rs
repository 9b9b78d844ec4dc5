//! Many callers of several gates at once: nobody is granted too much, nobody deadlocks, nobody fails.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex};

use fastrand::Rng;
use sqlx::{Connection, PgConnection};
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tollgate::{Call, Decision, Limit, Limiter, Request};

use crate::contention::bounds::{capacities, narrow};
use crate::contention::some;
use crate::gate::stage::{EVER, deadlocks, patient, pool, soon, until_alone};
use crate::judge::balances;
use crate::sweeper::quick;
use crate::world::{World, is_pooled, limiter};

static LIMITER: LazyLock<Limiter> = LazyLock::new(limiter);

/// Rows of five limits over both tables, asked in every order by two gates, and by others in transactions of their
/// own, while two sweepers are at work.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_gates_and_third_parties_never_deadlock_and_balance_to_the_token() {
    const CALLERS: u64 = 32;
    const ROUNDS: u64 = 16;
    const KEYS: usize = 4;
    let world = World::new().await;
    let pools = [pool(&world.url(), 4).await, pool(&world.url(), 4).await];
    let gates = [patient(&pools[0]).lanes(4).build(), patient(&pools[1]).build()];
    let limits = [
        Limit::token_bucket("a", 12, EVER),
        Limit::stepped_bucket("b", 12, EVER),
        Limit::token_bucket("c", 12, EVER).ephemeral(),
        Limit::token_bucket("d", 12, EVER).shards(4),
        Limit::fixed_window("e", 12, EVER).shards(3).ephemeral(),
    ];
    let rows = limits.len() * KEYS;
    let taken: Arc<Vec<AtomicI64>> = Arc::new((0..rows).map(|_| AtomicI64::new(0)).collect());
    let (granted, done) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let request = {
        let limits = limits.clone();
        move |row: usize| limits[row % limits.len()].key(row / limits.len())
    };

    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        let gate = gates[usize::try_from(caller).unwrap() % 2].clone();
        let (request, taken, granted) = (request.clone(), taken.clone(), granted.clone());
        callers.spawn(async move {
            let mut dice = Rng::with_seed(caller);
            for round in 0..ROUNDS {
                let (rows, cost) = (some(&mut dice, 1..=6, rows), dice.u32(1..=3));
                let count = |sign: i64| {
                    for row in &rows {
                        taken[*row].fetch_add(sign * i64::from(cost), Ordering::SeqCst);
                    }
                };
                let asks = || rows.iter().map(|row| request(*row).cost(cost));
                if dice.u32(..4) == 0 {
                    // Changes that succeed on any balance, and looks. A credit may go to other shards than it came
                    // from.
                    for ask in asks().filter(|ask| ask.limit().shards == 1) {
                        gate.debit(ask.clone()).await.unwrap();
                        let _ = gate.check(ask.clone()).await.unwrap();
                        gate.balance(ask.clone()).await.unwrap();
                        gate.credit(ask).await.unwrap();
                    }
                    continue;
                }
                let Decision::Granted(grant) = gate.consume(asks().collect::<Call>()).await.unwrap() else { continue };
                granted.fetch_add(1, Ordering::SeqCst);
                count(1);
                // All is given back until near the end, so that rows fill up, vanish and are made anew.
                if round < ROUNDS - 4 || dice.bool() {
                    gate.settle(grant, 0).await.unwrap();
                    count(-1);
                }
            }
        });
    }
    let mut others = JoinSet::new();
    for seed in 1000..1003 {
        others.spawn(join_in(world.url(), rows, request.clone(), done.clone(), Rng::with_seed(seed)));
    }
    let mut sweepers = JoinSet::new();
    for _ in 0..2 {
        let (pool, done, sweeper) = (world.pool.clone(), done.clone(), quick().batch(5));
        sweepers.spawn(async move {
            let mut deleted = 0;
            while !done.load(Ordering::SeqCst) {
                deleted += sweeper.sweep(&pool).await.unwrap().rows();
            }
            deleted
        });
    }

    soon(callers.join_all()).await;
    done.store(true, Ordering::SeqCst);
    let deleted: u64 = soon(sweepers.join_all()).await.into_iter().sum();
    let others: Vec<u32> = soon(others.join_all()).await;
    assert!(others.iter().sum::<u32>() > 10, "{others:?}");
    assert!(deleted > 0, "the rows never vanished");
    assert!(granted.load(Ordering::SeqCst) > CALLERS * ROUNDS / 8, "{granted:?} grants");
    balances(&world, &limits, &taken, 12).await;

    if is_pooled() {
        // A pooler stays.
        return;
    }
    // A gate's own retries show nowhere else.
    let mut conn = world.connect().await;
    for pool in &pools {
        pool.close().await;
    }
    world.pool.close().await;
    until_alone(&mut conn).await;
    assert_eq!(deadlocks(&mut conn).await, 0);
}

/// Takes from the same rows in transactions of its own, and leaves no trace; how often.
async fn join_in(
    url: String,
    rows: usize,
    request: impl Fn(usize) -> Request,
    done: Arc<AtomicBool>,
    mut dice: Rng,
) -> u32 {
    let (mut conn, mut rounds) = (PgConnection::connect(&url).await.unwrap(), 0);
    while !done.load(Ordering::SeqCst) {
        let asks: Vec<Request> = some(&mut dice, 1..=6, rows).into_iter().map(&request).collect();
        let mut tx = conn.begin().await.unwrap();
        match LIMITER.consume(&mut tx, asks).await.unwrap() {
            Decision::Granted(grant) if dice.bool() => {
                tx.commit().await.unwrap();
                let mut tx = conn.begin().await.unwrap();
                LIMITER.settle(&mut tx, grant, 0).await.unwrap();
                tx.commit().await.unwrap();
            }
            _ => tx.rollback().await.unwrap(),
        }
        rounds += 1;
    }
    rounds
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_key_grants_the_callers_of_two_gates_its_capacity_and_no_more() {
    const CALLERS: usize = 64;
    const KEYS: usize = 9;
    let world = World::new().await;
    let gates =
        [patient(&pool(&world.url(), 16).await).build(), patient(&pool(&world.url(), 16).await).lanes(16).build()];
    let limits = narrow();
    let (start, granted) = (Arc::new(Barrier::new(CALLERS)), Arc::new(Mutex::new(BTreeMap::new())));
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        let (gate, limits, start, granted) =
            (gates[caller % 2].clone(), limits.clone(), start.clone(), granted.clone());
        callers.spawn(async move {
            for (which, limit) in limits.iter().enumerate() {
                for key in 0..KEYS {
                    start.wait().await;
                    if gate.consume(limit.key(key)).await.unwrap().is_granted() {
                        *granted.lock().unwrap().entry((which, key)).or_default() += 1;
                    }
                }
            }
        });
    }
    soon(callers.join_all()).await;
    assert_eq!(*granted.lock().unwrap(), capacities(KEYS));
}

/// The row vanishes between any two statements of a batch: after it was read, and while it is inserted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_of_two_gates_beside_resets_and_sweeps_never_fail_and_get_what_the_resets_allow() {
    for limit in [Limit::token_bucket("swept", 5, EVER), Limit::stepped_bucket("swept", 5, EVER).ephemeral()] {
        let world = World::new().await;
        let gates = [patient(&pool(&world.url(), 4).await).build(), patient(&pool(&world.url(), 4).await).build()];
        let (done, granted) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let mut callers = JoinSet::new();
        for caller in 0..16 {
            let (gate, limit) = (gates[caller % 2].clone(), limit.clone());
            let (done, granted) = (done.clone(), granted.clone());
            callers.spawn(async move {
                while !done.load(Ordering::SeqCst) {
                    let decision = gate.consume(limit.key("k")).await.unwrap();
                    granted.fetch_add(decision.is_granted().into(), Ordering::SeqCst);
                }
            });
        }
        let mut conn = world.connect().await;
        let sweep = format!("delete from tollgate.{} where full_at <= now()", limit.storage);
        let (mut resets, mut deleted) = (0, 0);
        let reset_until_enough_was_seen = async {
            while granted.load(Ordering::SeqCst) < 100 || deleted < 10 {
                assert!(gates[0].reset(limit.key("k")).await.unwrap().is_full());
                resets += 1;
                let swept = sqlx::query(sqlx::AssertSqlSafe(sweep.clone())).execute(&mut conn).await.unwrap();
                deleted += swept.rows_affected();
            }
        };
        soon(reset_until_enough_was_seen).await;
        done.store(true, Ordering::SeqCst);
        soon(callers.join_all()).await;
        let granted = granted.load(Ordering::SeqCst);
        assert!(granted <= 5 * (resets + 1), "{granted} granted of a capacity of 5 with {resets} resets");
    }
}
