//! Concurrency limits that follow the other side: reports leave a share of their `n`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tollgate::{
    Call, DAY, Error, Gate, HOUR, Lease, Limit, Limiter, Overrides, Reason, Receipt, SECOND, SlowDown, Tokens, split,
};

use super::slow_down::{SLOWLY, reporters, slowed};
use crate::gate::stage::soon;
use crate::world::{OWNER, World, parts, patient, second};

const SLOTS: Limit = Limit::concurrency("theirs", 4, DAY);

async fn held(gate: &Gate) -> Option<Lease> {
    gate.acquire(SLOTS.global()).await.unwrap().granted().ok()
}

#[tokio::test]
async fn a_smaller_n_refuses_new_leases_and_keeps_those_that_are_held() {
    let (world, overrides) = reporters().await;
    let gate = patient(&world.pool).overrides(&overrides).build();
    let mut leases = Vec::new();
    for _ in 0..3 {
        leases.push(held(&gate).await.unwrap());
    }
    overrides.slow_down(SLOTS.global(), &SLOWLY.percent(60)).await.unwrap();
    let denied = gate.acquire(SLOTS.global()).await.unwrap().denied().unwrap();
    let standing = &denied.standings[0];
    assert_eq!((standing.limit.capacity, &*standing.override_label), (Some(Tokens::new(2)), "slowdown"));
    // The third of two goes on.
    let third = leases.pop().unwrap().into_receipt();
    let third = gate.renew(&third).await.unwrap();
    gate.release(third).await.unwrap();
    assert!(held(&gate).await.is_none());
    leases.pop().unwrap().release().await.unwrap();
    let second = held(&gate).await.unwrap();
    assert!(held(&gate).await.is_none());
    second.release().await.unwrap();
}

/// It is rounded down to whole slots, of which one stays.
#[tokio::test]
async fn slots_come_back_one_by_one() {
    let world = World::new().await;
    let mut conn = world.connect_as(OWNER).await;
    slowed(&world, "", 10_000, second(0.0), second(99.0)).await;
    let overrides = Overrides::read(&mut conn).await.unwrap();
    let mut tx = world.begin().await;
    let mut granted = Vec::new();
    for at in [0.0, 48.0, 49.0, 73.0, 74.0, 98.0, 99.0] {
        let limiter = Limiter::new().parts(parts()).overrides(&overrides).at(second(at));
        let mut leases = 0;
        while let Ok(grant) = limiter.consume(&mut tx, SLOTS.global()).await.unwrap().granted() {
            drop(Receipt::from(grant));
            leases += 1;
        }
        granted.push(leases);
    }
    assert_eq!(granted, [1, 0, 1, 0, 1, 0, 1]);
}

/// The limit can grant it again when the rate has grown back, so it is no error.
#[tokio::test]
async fn a_call_that_costs_more_than_the_smaller_n_waits_for_the_whole() {
    let world = World::new().await;
    slowed(&world, "", 500_000, second(0.0), second(99.0)).await;
    slowed(&world, "k", 900_000, second(0.0), second(199.0)).await;
    let overrides = Overrides::read(&mut world.connect_as(OWNER).await).await.unwrap();
    let at = |at| Limiter::new().parts(parts()).overrides(&overrides).at(second(at));
    let window = Limit::sliding_window("theirs", 4, DAY);
    let calls = |cost: u32| -> [(_, _, Call); 5] {
        [
            (Reason::Leased, 99.0, SLOTS.key("other").cost(cost).into()),
            (Reason::Leased, 199.0, SLOTS.key("k").cost(cost).into()),
            (Reason::Short, 199.0, window.key("k").cost(cost).into()),
            (Reason::Short, 199.0, split(cost, [window.key("k")])),
            (Reason::Leased, 99.0, SLOTS.key("other").cost(cost).once("id")),
        ]
    };
    for (reason, ends_at, call) in calls(4) {
        let mut tx = world.begin().await;
        let denied = at(0.0).consume(&mut tx, call.clone()).await.unwrap().denied().unwrap();
        assert_eq!((denied.reason, denied.retry_at), (reason, Some(second(ends_at))), "{call:?}");
        at(ends_at).consume(&mut tx, call).await.unwrap().granted().unwrap();
    }
    for (.., call) in calls(5) {
        let much = at(0.0).consume(&mut world.begin().await, call).await;
        assert!(matches!(much, Err(Error::CostExceedsCapacity { max, .. }) if max == Tokens::new(4)), "{much:?}");
    }
}

#[tokio::test]
async fn whoever_waits_gets_a_slot_that_comes_back() {
    let (world, overrides) = reporters().await;
    let gate = patient(&world.pool).overrides(&overrides).build();
    let brief = SlowDown::new().percent(1).least_percent(1).recovers(2 * SECOND).forgets(Duration::ZERO);
    overrides.slow_down(SLOTS.global(), &brief).await.unwrap();
    let _first = held(&gate).await.unwrap();
    drop(soon(gate.acquire_within(SLOTS.global(), HOUR)).await.unwrap().granted().unwrap());
}

/// Each holder waits for another one, so two hold a slot at once.
#[tokio::test]
async fn waiters_of_several_processes_share_the_smaller_n() {
    let (world, overrides) = reporters().await;
    overrides.slow_down(SLOTS.global(), &SLOWLY.percent(50)).await.unwrap();
    let (held, two) = (Arc::new(AtomicUsize::new(0)), Arc::new(Barrier::new(2)));
    let mut holders = JoinSet::new();
    for _ in 0..2 {
        let overrides = Overrides::watch(world.pool.clone()).await.unwrap();
        let gate = patient(&world.pool).overrides(&overrides).build();
        for _ in 0..3 {
            let (gate, held, two) = (gate.clone(), held.clone(), two.clone());
            holders.spawn(async move {
                let lease = gate.acquire_within(SLOTS.global(), HOUR).await.unwrap().granted().unwrap();
                let most = held.fetch_add(1, Ordering::SeqCst) + 1;
                two.wait().await;
                held.fetch_sub(1, Ordering::SeqCst);
                lease.release().await.unwrap();
                most
            });
        }
    }
    let most = soon(holders.join_all()).await;
    assert_eq!(most.iter().max(), Some(&2), "{most:?}");
}
