//! Nobody is granted too much.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use chrono::{DateTime, Utc};
use fastrand::Rng;
use sqlx::{Connection, PgConnection};
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tollgate::{Decision, Limit, SECOND, Tokens};

use super::{EVER, LIMITER, take};
use crate::gate::stage::soon;
use crate::judge::{Spent, never_over};
use crate::proxy::Proxy;
use crate::world::{World, pid};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_key_grants_sixty_four_callers_its_capacity_and_no_more() {
    const CALLERS: usize = 64;
    const KEYS: usize = 4;
    let world = World::new().await;
    let limits = narrow();
    let (start, granted) = (Arc::new(Barrier::new(CALLERS)), Arc::new(Mutex::new(BTreeMap::new())));
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS {
        let (url, limits, start, granted) = (world.url(), limits.clone(), start.clone(), granted.clone());
        callers.spawn(async move {
            let mut conn = PgConnection::connect(&url).await.unwrap();
            for (which, limit) in limits.iter().enumerate() {
                for key in 0..KEYS {
                    start.wait().await;
                    if take(&mut conn, limit.key(key)).await.is_some() {
                        *granted.lock().unwrap().entry((which, key)).or_default() += 1;
                    }
                }
            }
        });
    }
    callers.join_all().await;
    assert_eq!(*granted.lock().unwrap(), capacities(KEYS));
}

/// Of each kind, in both tables.
pub(crate) fn narrow() -> [Limit; 6] {
    let [drips, steps, windows] = [
        Limit::token_bucket("continuous", 10, EVER),
        Limit::stepped_bucket("stepped", 10, EVER).capacity(20),
        Limit::fixed_window("window", 10, EVER),
    ];
    [drips.clone(), steps.clone(), windows.clone(), drips.ephemeral(), steps.ephemeral(), windows.ephemeral()]
}

/// How much so many new keys of each of these limits hold.
pub(crate) fn capacities(keys: usize) -> BTreeMap<(usize, usize), u32> {
    let each = (0..narrow().len()).flat_map(|which| (0..keys).map(move |key| (which, key)));
    each.map(|at| (at, if at.0 % 3 == 1 { 20 } else { 10 })).collect()
}

/// Judged by the instants that the grants themselves record, in whole micro-tokens, without a tolerance.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn never_over_between_any_two_grants_of_a_continuous_limit() {
    for limit in [
        Limit::token_bucket("busy", 200, SECOND).capacity(20),
        Limit::token_bucket("busy", 200, SECOND).capacity(20).ephemeral(),
    ] {
        let world = World::new().await;
        let grants = spend(&world, &limit).await;
        // 200 tokens a second are 200 micro-tokens each microsecond.
        never_over(&grants, 20_000_000, |instant| 200 * instant, "busy");
        assert!(grants.len() > 40, "only {} grants", grants.len());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn never_over_between_any_two_grants_of_a_stepped_limit() {
    const PERIOD: i64 = 100_000;
    for limit in [
        Limit::stepped_bucket("busy", 15, Duration::from_millis(100)).capacity(20),
        Limit::fixed_window("busy", 15, Duration::from_millis(100)).ephemeral(),
    ] {
        let world = World::new().await;
        let grants = spend(&world, &limit).await;
        let (_, step) = world.row(limit.spec().storage, "busy", "k").await.unwrap();
        let step = step.timestamp_micros();
        let capacity = limit.spec().capacity.unwrap_or(Tokens::new(15)).micros();
        never_over(&grants, capacity, |instant| 15_000_000 * (instant - step).div_euclid(PERIOD), "busy");
        assert!(grants.len() > 40, "only {} grants", grants.len());
    }
}

/// The grants of sixteen callers in about a second, or in as long as enough grants take, in commit order.
async fn spend(world: &World, limit: &Limit) -> Vec<Spent> {
    world.sql("create sequence commits").await;
    let sql = "select clock_timestamp() + interval '1 second'";
    let end: DateTime<Utc> = sqlx::query_scalar(sql).fetch_one(&world.pool).await.unwrap();
    let (mut callers, granted) = (JoinSet::new(), Arc::new(AtomicU64::new(0)));
    for caller in 0..16 {
        let (url, limit, granted) = (world.url(), limit.clone(), granted.clone());
        callers.spawn(async move {
            let (mut conn, mut dice) = (PgConnection::connect(&url).await.unwrap(), Rng::with_seed(caller));
            let mut spent = Vec::new();
            loop {
                let cost = Tokens::from_micros(dice.i64(100_000..2_100_000));
                let mut tx = conn.begin().await.unwrap();
                let decided_at = match LIMITER.consume(&mut tx, limit.key("k").cost(cost)).await.unwrap() {
                    Decision::Granted(grant) => {
                        // The row is locked: the next caller commits later.
                        let commit = sqlx::query_scalar::<_, i64>("select nextval('commits')").persistent(false);
                        let commit = commit.fetch_one(&mut *tx).await.unwrap();
                        granted.fetch_add(1, Ordering::SeqCst);
                        spent.push((commit, (grant.decided_at.timestamp_micros(), cost.micros())));
                        grant.decided_at
                    }
                    Decision::Denied(denied) => denied.decided_at,
                };
                tx.commit().await.unwrap();
                if decided_at >= end && granted.load(Ordering::SeqCst) > 40 {
                    return spent;
                }
            }
        });
    }
    let mut spent = soon(callers.join_all()).await.concat();
    spent.sort_unstable();
    spent.into_iter().map(|(_, spent)| spent).collect()
}

/// The first statement of a call inserts the row that it finds absent. Were it free until the second, others could
/// spend it, and the row refill and be swept in between: twice the capacity within a moment.
#[tokio::test]
async fn never_over_a_row_that_was_absent_is_held_between_the_statements_of_a_call() {
    let world = World::new().await;
    let limit = Limit::token_bucket("slow", 10, EVER);
    let proxy = Proxy::new(&world.url());
    let (mut slow, mut quick) = (proxy.connect().await, world.connect().await);
    let quick_pid = pid(&mut quick).await;
    // Prepares the statements: from here on each is one round trip.
    take(&mut slow, limit.key("warm")).await.unwrap();
    let mut tx = slow.begin().await.unwrap();
    // After the insert.
    proxy.hold_after(2);
    let first = async {
        let decision = LIMITER.consume(&mut tx, limit.key("k").cost(10)).await.unwrap();
        tx.commit().await.unwrap();
        decision.granted().unwrap().remaining
    };
    let second = async {
        proxy.until_held().await;
        let release = async {
            world.until_blocked(quick_pid).await;
            proxy.release();
        };
        tokio::join!(take(&mut quick, limit.key("k")), release).0
    };
    let (first, second) = tokio::join!(first, second);
    assert_eq!(first, Tokens::ZERO);
    assert!(second.is_none(), "{second:?}");
}
