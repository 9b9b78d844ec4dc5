//! Callers that wait for a lease.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tollgate::{DAY, Gate, HOUR, Limit, Source};

use super::{ONE, acquired, waited};
use crate::gate::stage::{one_connection, patient, pool, soon, until_asked};
use crate::proxy::Proxy;
use crate::world::World;

/// Returns once the wire has seen more than so many statements, and the caller was refused and waits.
async fn until_refused(gate: &Gate, proxy: &Proxy, asked: u64) {
    until_asked(proxy, asked).await;
    // Its answer has arrived before this one.
    gate.balance(ONE.key("fence")).await.unwrap();
}

#[tokio::test]
async fn those_who_wait_are_served_in_their_order_and_wake_each_other() {
    let world = World::new().await;
    let gate = patient(&pool(&world.url(), 2).await).build();
    let first = acquired(&gate, &ONE).await;
    let served = Arc::new(AtomicUsize::new(0));
    let mut callers = JoinSet::new();
    for place in 0..20 {
        let (gate, served) = (gate.clone(), served.clone());
        callers.spawn(async move {
            let lease = waited(&gate, &ONE).await;
            assert_eq!(served.fetch_add(1, Ordering::SeqCst), place);
            drop(lease);
        });
        // Each is in line before the next one comes.
        tokio::task::yield_now().await;
    }
    drop(first);
    soon(callers.join_all()).await;
}

/// One is free, which is enough for who comes later.
#[tokio::test]
async fn who_waits_for_much_is_not_overtaken() {
    let world = World::new().await;
    let proxy = Proxy::new(&world.url());
    let gate = patient(&one_connection(proxy.options()).await).build();
    let two = Limit::concurrency("two", 2, DAY);
    let [first, second] = [acquired(&gate, &two).await, acquired(&gate, &two).await];
    let served = Arc::new(AtomicUsize::new(0));
    let wait = |cost: u32, place: usize| {
        let (gate, two, served) = (gate.clone(), two.clone(), served.clone());
        tokio::spawn(async move {
            let lease = soon(gate.acquire_within(two.global().cost(cost), HOUR)).await.unwrap().granted().unwrap();
            assert_eq!(served.fetch_add(1, Ordering::SeqCst), place);
            lease.release().await.unwrap();
        })
    };
    let asked = proxy.statements();
    let much = wait(2, 0);
    until_refused(&gate, &proxy, asked).await;
    let little = wait(1, 1);
    tokio::task::yield_now().await;
    first.release().await.unwrap();
    until_refused(&gate, &proxy, proxy.statements()).await;
    second.release().await.unwrap();
    much.await.unwrap();
    little.await.unwrap();
}

#[tokio::test]
async fn who_has_it_already_does_not_wait_for_those_who_have_not() {
    let world = World::new().await;
    let proxy = Proxy::new(&world.url());
    let gate = patient(&one_connection(proxy.options()).await).build();
    let mine = || gate.acquire_within(ONE.global().once("job"), HOUR);
    let lease = mine().await.unwrap().granted().unwrap();
    let asked = proxy.statements();
    let stranger = tokio::spawn({
        let gate = gate.clone();
        async move { waited(&gate, &ONE).await.release().await.unwrap() }
    });
    until_refused(&gate, &proxy, asked).await;
    let again = soon(mine()).await.unwrap().granted().unwrap();
    assert_eq!(again.grant().source, Source::Repeated);
    drop(again.into_receipt());
    drop(lease);
    soon(stranger).await.unwrap();
}

#[tokio::test]
async fn what_another_process_releases_is_found() {
    let world = World::new().await;
    let [ours, theirs] = [pool(&world.url(), 2).await, pool(&world.url(), 2).await].map(|pool| {
        // A refusal that is remembered says nothing of a release.
        patient(&pool).remember_refusals(HOUR).build()
    });
    for _ in 0..3 {
        let held = acquired(&theirs, &ONE).await;
        assert!(ours.acquire(ONE.global()).await.unwrap().denied().is_some());
        let (next, released) = tokio::join!(waited(&ours, &ONE), held.release());
        released.unwrap();
        next.release().await.unwrap();
    }
    let _held = acquired(&theirs, &ONE).await;
    let denied = ours.acquire_within(ONE.global(), Duration::from_millis(120)).await.unwrap();
    assert!(denied.denied().is_some(), "the wait has an end");
}

/// Two gates are two processes: in the one each release wakes the next caller, and the other can only ask.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_that_hands_over_within_its_process_does_not_starve_others() {
    let world = World::new().await;
    let hold = async |gate: &Gate| {
        let lease = waited(gate, &ONE).await;
        // The work that the slot is for.
        tokio::time::sleep(Duration::from_millis(100)).await;
        lease.release().await.unwrap();
    };
    let [theirs, ours] = [pool(&world.url(), 2).await, pool(&world.url(), 2).await].map(|pool| patient(&pool).build());
    let (served, mut crowded) = watch::channel(0);
    let mut crowd = JoinSet::new();
    for _ in 0..10 {
        let (gate, served) = (theirs.clone(), served.clone());
        crowd.spawn(async move {
            loop {
                hold(&gate).await;
                served.send_modify(|served| *served += 1);
            }
        });
    }
    soon(crowded.wait_for(|served| *served > 0)).await.unwrap();
    let us = async {
        for _ in 0..3 {
            hold(&ours).await;
        }
    };
    tokio::select! {
        () = soon(us) => {}
        crowd = crowded.wait_for(|served| *served > 200) => {
            panic!("{} of theirs, and not three of ours", *crowd.unwrap())
        }
    }
}

/// Each caller that gives up looks once at the refusal that it would get. The first one does not ask because of them.
#[tokio::test]
async fn who_gives_up_behind_others_does_not_make_the_first_one_ask() {
    const OTHERS: u64 = 100;
    let world = World::new().await;
    let proxy = Proxy::new(&world.url());
    let gate = patient(&one_connection(proxy.options()).await).build();
    let held = acquired(&gate, &ONE).await;
    let asked = proxy.statements();
    let first = tokio::spawn({
        let gate = gate.clone();
        async move { waited(&gate, &ONE).await }
    });
    until_refused(&gate, &proxy, asked).await;
    let asked = proxy.statements();
    for _ in 0..OTHERS {
        let refused = gate.acquire_within(ONE.global(), Duration::from_millis(20)).await.unwrap();
        assert!(refused.denied().is_some());
    }
    // The first one's own statements depend on the time that passes, and become ever rarer.
    let asked = proxy.statements() - asked;
    assert!(asked < OTHERS + OTHERS / 2, "{asked} statements");
    held.release().await.unwrap();
    soon(first).await.unwrap().release().await.unwrap();
}
