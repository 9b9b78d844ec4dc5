//! Concurrency limits: the holders of their slots, and how long they hold them.

mod waiters;

use std::time::Duration;

use chrono::{DateTime, Utc};
use fastrand::Rng;
use sqlx::PgPool;
use tokio::task::JoinSet;
use tollgate::{DAY, Error, Gate, HOUR, Lease, Limit, OnFailure, Receipt};

use crate::gate::stage::{nowhere, one_connection, patient, pool, soon};
use crate::proxy::Proxy;
use crate::world::{World, limiter};

/// Only released slots are free: nothing lapses while a test runs.
static ONE: Limit = Limit::concurrency("one", 1, DAY);

async fn acquired(gate: &Gate, limit: &Limit) -> Lease {
    gate.acquire(limit.global()).await.unwrap().granted().unwrap()
}

async fn waited(gate: &Gate, limit: &Limit) -> Lease {
    soon(gate.acquire_within(limit.global(), HOUR)).await.unwrap().granted().unwrap()
}

/// When the only lease of a limit lapses, as its row says.
async fn lapse(pool: &PgPool) -> Option<i64> {
    sqlx::query_scalar("select list[2] from tollgate.durable").fetch_one(pool).await.unwrap()
}

#[tokio::test]
async fn a_lease_that_is_dropped_or_released_is_free_for_the_next() {
    let world = World::new().await;
    let gate = patient(&pool(&world.url(), 2).await).build();
    let lease = acquired(&gate, &ONE).await;
    assert!(gate.acquire(ONE.global()).await.unwrap().denied().is_some());
    drop(lease);
    let lease = waited(&gate, &ONE).await;
    lease.release().await.unwrap();
    let lease = acquired(&gate, &ONE).await;
    // A future that was never polled holds nothing, and a receipt outlives its guard.
    drop(gate.acquire(ONE.global()));
    let receipt = lease.into_receipt();
    assert!(gate.acquire(ONE.global()).await.unwrap().denied().is_some());
    let receipt = gate.renew(&receipt).await.unwrap();
    gate.release(receipt.clone()).await.unwrap();
    for again in [gate.renew(&receipt).await.map(drop), gate.release(receipt).await.map(drop)] {
        assert!(matches!(again, Err(Error::ReceiptUsed { .. })), "{again:?}");
    }
    acquired(&gate, &ONE).await.release().await.unwrap();
}

#[tokio::test]
async fn a_transaction_holds_renews_and_releases() {
    let world = World::new().await;
    let gate = patient(&pool(&world.url(), 2).await).build();
    let mut tx = world.begin().await;
    let receipt = Receipt::from(limiter().consume(&mut tx, ONE.global()).await.unwrap().granted().unwrap());
    tx.commit().await.unwrap();
    assert!(gate.acquire(ONE.global()).await.unwrap().denied().is_some());
    let mut tx = world.begin().await;
    let renewed = limiter().renew(&mut tx, &receipt).await.unwrap();
    assert!(renewed.charges[0].lease_ends_at() > receipt.charges[0].lease_ends_at());
    limiter().release(&mut tx, renewed).await.unwrap();
    assert_eq!(limiter().balance(&mut tx, ONE.global()).await.unwrap().remaining, tollgate::Tokens::ONE);
    tx.rollback().await.unwrap();
    // A release that was rolled back leaves the slot held.
    assert!(gate.acquire(ONE.global()).await.unwrap().denied().is_some());
    gate.release(receipt).await.unwrap();
    acquired(&gate, &ONE).await.release().await.unwrap();
}

/// On a machine that cannot renew in time, with a longer lease.
#[tokio::test]
async fn a_lease_is_renewed_as_long_as_its_guard_lives() {
    let world = World::new().await;
    let gate = patient(&pool(&world.url(), 2).await).build();
    for seconds in [3, 15, 60] {
        let limit = Limit::concurrency("one", 1, Duration::from_secs(seconds));
        let lease = waited(&gate, &limit).await;
        let first = lapse(&world.pool).await;
        let renewed = async { while lapse(&world.pool).await == first {} };
        tokio::select! {
            () = soon(renewed) => return,
            () = lease.lapsed() => {}
        }
    }
    panic!("never renewed");
}

#[tokio::test]
async fn a_lease_is_renewed_no_longer_than_its_holder_says() {
    let world = World::new().await;
    let gate = patient(&pool(&world.url(), 2).await).build();
    let limit = Limit::concurrency("one", 1, Duration::from_secs(3));
    let lease = waited(&gate, &limit).await;
    for span in [Duration::ZERO, Duration::MAX, Duration::from_nanos(1)] {
        lease.keep_for(span);
    }
    let next = waited(&gate, &limit).await;
    soon(lease.lapsed()).await;
    // It is over already.
    lease.keep_for(HOUR);
    lease.release().await.unwrap();
    assert!(gate.acquire(limit.global()).await.unwrap().denied().is_some(), "the slot is another's");
    next.keep_for(HOUR);
    next.release().await.unwrap();
    waited(&gate, &limit).await.release().await.unwrap();
}

#[tokio::test]
async fn whoever_has_lost_a_lease_is_told() {
    let world = World::new().await;
    let gate = patient(&pool(&world.url(), 2).await).build();
    let limit = Limit::concurrency("lost", 1, Duration::from_secs(3)).ephemeral();
    let lease = acquired(&gate, &limit).await;
    // As a crash does with this table.
    world.sql("truncate tollgate.ephemeral").await;
    soon(lease.lapsed()).await;
    let lost = lease.release().await.unwrap_err();
    assert!(matches!(lost, Error::ReceiptUsed { .. } | Error::Lapsed { .. }), "{lost:?}");
}

#[tokio::test]
async fn of_several_leases_the_others_are_released_when_one_is_lost() {
    let world = World::new().await;
    let gate = patient(&pool(&world.url(), 2).await).build();
    let lost = Limit::concurrency("lost", 1, Duration::from_secs(3)).ephemeral();
    let lease = gate.acquire([lost.global(), ONE.global()]).await.unwrap().granted().unwrap();
    world.sql("truncate tollgate.ephemeral").await;
    soon(lease.lapsed()).await;
    assert!(gate.acquire(ONE.global()).await.unwrap().denied().is_some());
    drop(lease);
    waited(&gate, &ONE).await.release().await.unwrap();
}

/// Wherever the connection is cut: a release whose answer is lost is tried again, and has succeeded.
#[tokio::test]
async fn a_release_survives_a_lost_connection() {
    let world = World::new().await;
    let proxy = Proxy::new(&world.url());
    let gate = patient(&one_connection(proxy.options()).await).build();
    for statement in 1..=6 {
        let lease = acquired(&gate, &ONE).await;
        proxy.cut_after(statement);
        soon(lease.release()).await.unwrap_or_else(|error| panic!("after {statement}: {error:?}"));
        proxy.hear();
        assert_eq!(lapse(&world.pool).await, None, "after {statement}");
    }
}

#[tokio::test]
async fn a_runtime_that_ends_leaves_its_lease_to_lapse() {
    let world = World::new().await;
    let limit = Limit::concurrency("brief", 1, Duration::from_millis(500));
    let url = world.url();
    let (limit, lease) = std::thread::spawn(move || {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let lease = runtime.block_on(async {
            let gate = patient(&pool(&url, 1).await).build();
            acquired(&gate, &limit).await
        });
        (limit, lease)
    })
    .join()
    .unwrap();
    soon(lease.lapsed()).await;
    let gate = patient(&pool(&world.url(), 1).await).build();
    let next = waited(&gate, &limit).await;
    assert!(matches!(lease.release().await, Err(Error::Stopped)));
    drop(next);
}

#[tokio::test]
async fn a_rate_and_a_lease_are_taken_together_or_not_at_all() {
    const RATE: Limit = Limit::token_bucket("rate", 1, DAY);
    let world = World::new().await;
    let gate = patient(&pool(&world.url(), 2).await).build();
    let both = || [ONE.global(), RATE.global()];
    let lease = gate.acquire(both()).await.unwrap().granted().unwrap();
    lease.release().await.unwrap();
    assert_eq!(gate.acquire(both()).await.unwrap().denied().unwrap().limit, "rate");
    acquired(&gate, &ONE).await.release().await.unwrap();
}

#[tokio::test]
async fn without_the_database_an_open_gate_holds_nothing_and_the_others_fail() {
    let gates = [OnFailure::Open, OnFailure::Closed, OnFailure::Local(1.0)]
        .map(|policy| Gate::builder(nowhere()).on_failure(policy).build());
    let [open, others @ ..] = gates;
    acquired(&open, &ONE).await.release().await.unwrap();
    for gate in others {
        assert!(matches!(gate.acquire(ONE.global()).await, Err(Error::Database { .. })));
    }
}

const FEW: Limit = Limit::concurrency("few", 5, Duration::from_millis(200));

/// The least span of one lease by the database's clock: it was held for at least as long as this.
struct Held {
    from: DateTime<Utc>,
    until: DateTime<Utc>,
}

/// Two hundred holders: some release, some renew, some die without a word, and connections are cut.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn never_more_is_held_than_the_limit_by_the_clock_of_the_database() {
    let world = World::new().await;
    let mut gates = Vec::new();
    for _ in 0..3 {
        gates.push(patient(&pool(&world.url(), 2).await).build());
    }
    let mut holders = JoinSet::new();
    for seed in 0..200 {
        holders.spawn(hold(gates[seed % 3].clone(), world.pool.clone(), Rng::with_seed(seed as u64)));
    }
    let cut = tokio::spawn({
        let mut admin = world.admin().await;
        async move {
            loop {
                tokio::time::sleep(Duration::from_millis(100)).await;
                let sql = "select pg_terminate_backend(pid) from pg_stat_activity
                            where datname = current_database() and usename <> current_user order by random() limit 1";
                sqlx::query(sql).execute(&mut admin).await.unwrap();
            }
        }
    });
    let held: Vec<Held> = soon(holders.join_all()).await.into_iter().flatten().collect();
    cut.abort();
    assert!(held.len() >= 200, "{}", held.len());
    for Held { from, .. } in &held {
        let live = held.iter().filter(|other| other.from <= *from && *from < other.until).count();
        assert!(live <= 5, "{live} at {from}");
    }
}

/// Holds something twice, by a gate or in transactions.
async fn hold(gate: Gate, pool: PgPool, mut dice: Rng) -> Vec<Held> {
    let mut held = Vec::new();
    while held.len() < 2 {
        let grant = if dice.bool() {
            gate.wait(FEW.global(), HOUR).await.ok().and_then(|decision| decision.granted().ok())
        } else {
            take(&pool).await
        };
        // Nobody knows what became of a call whose connection was cut, or the limit was exhausted.
        let Some(grant) = grant else {
            tokio::time::sleep(Duration::from_millis(dice.u64(1..50))).await;
            continue;
        };
        let (from, mut receipt) = (grant.decided_at, Receipt::from(grant));
        for _ in 0..dice.u32(0..3) {
            tokio::time::sleep(Duration::from_millis(dice.u64(0..150))).await;
            if let Ok(renewed) = gate.renew(&receipt).await {
                receipt = renewed;
            }
        }
        let lapses_at = receipt.charges[0].lease_ends_at().unwrap();
        let until = match dice.u32(0..3) {
            // It dies.
            0 => lapses_at,
            // A release whose answer is lost may have happened as soon as it was sent, at an instant that nobody knows.
            _ => match gate.release(receipt).await {
                Ok(released) => released.observed_at,
                Err(Error::Lapsed { .. }) => lapses_at,
                Err(_) => from,
            },
        };
        held.push(Held { from, until });
    }
    held
}

async fn take(pool: &PgPool) -> Option<tollgate::Grant> {
    let mut tx = pool.begin().await.ok()?;
    let grant = limiter().consume(&mut tx, FEW.global()).await.ok()?.granted().ok()?;
    tx.commit().await.ok()?;
    Some(grant)
}
