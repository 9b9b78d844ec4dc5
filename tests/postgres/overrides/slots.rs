//! Concurrency limits that follow the other side: reports leave a share of their `n`.

use std::time::Duration;

use tollgate::{DAY, Error, Gate, HOUR, Lease, Limit, Limiter, Overrides, Receipt, SECOND, SlowDown, Tokens};

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
    let limiter = Limiter::new().parts(parts()).overrides(&overrides).at(second(0.0));
    let much = limiter.consume(&mut tx, SLOTS.key("k").cost(2)).await;
    assert!(matches!(much, Err(Error::CostExceedsCapacity { .. })), "{much:?}");
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
