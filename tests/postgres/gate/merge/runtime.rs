//! Runtimes that end and batches that panic: every waiting caller gets an answer or an error, and the gate serves
//! again.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;
use tollgate::{Decision, Error, Limit, SECOND};

use crate::gate::stage::{EVER, one_connection, patient, pool, soon};
use crate::proxy::Proxy;
use crate::world::{World, second};

const LIMIT: Limit = Limit::stepped_bucket("shared", 1_000, EVER);

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// The lane's task and its connection live on the first runtime; the callers of the second wait for it.
#[test]
fn callers_of_one_runtime_are_told_when_another_that_worked_for_them_ends() {
    for busy in [0, 1, 2] {
        for abrupt in [false, true] {
            let (first, second, wire) = (runtime(), runtime(), runtime());
            // The wire must outlast both.
            let (world, proxy) = wire.block_on(async {
                let world = World::new().await;
                let proxy = Proxy::new(&world.url());
                (world, proxy)
            });
            let pool = first.block_on(one_connection(proxy.options()));
            let gate = patient(&pool).build();
            first.block_on(gate.consume(LIMIT.key("k"))).unwrap().granted().unwrap();
            // Held while it waits for a connection, after it has read, and never mind where.
            proxy.hold_after(busy);
            let asked = gate.clone();
            let own = first.spawn(async move { asked.consume(LIMIT.key("k")).await });
            second.block_on(soon(proxy.until_held()));
            let mut callers = JoinSet::new();
            for _ in 0..50 {
                let gate = gate.clone();
                callers.spawn_on(async move { soon(gate.consume(LIMIT.key("k"))).await }, second.handle());
            }
            // They are queued once each was polled, and each is polled before this one.
            second.block_on(second.spawn(async {})).unwrap();
            if abrupt {
                first.shutdown_background();
            } else {
                drop(first);
            }
            proxy.release();
            let answers = second.block_on(soon(callers.join_all()));
            let mut granted = 1;
            for answer in &answers {
                match answer {
                    Ok(Decision::Granted(_)) => granted += 1,
                    Err(Error::Stopped | Error::OutcomeUnknown { .. } | Error::Database { .. }) => {}
                    other => panic!("{other:?}"),
                }
            }
            let own = second.block_on(soon(own));
            assert!(!matches!(own, Ok(Ok(Decision::Denied(_)))), "{own:?}");
            // The gate, and its pool, serve again from where there still is a runtime.
            let left = second.block_on(async {
                // A task that ends in the background may take over a call until it has ended.
                let served = async {
                    loop {
                        match gate.consume(LIMIT.key("k")).await {
                            Err(Error::Stopped) => tokio::task::yield_now().await,
                            answer => break answer,
                        }
                    }
                };
                soon(served).await.unwrap().granted().unwrap();
                soon(gate.balance(LIMIT.key("k"))).await.unwrap().remaining.micros() / 1_000_000
            });
            let taken = 1_000 - left - 1;
            assert!((granted..=granted + 1).contains(&taken), "{taken} taken, {granted} granted: {answers:?}");
            drop(world);
        }
    }
}

#[test]
fn a_gate_asked_outside_of_a_runtime_says_so() {
    let runtime = runtime();
    let world = runtime.block_on(World::new());
    let gate = world.gate();
    // Polled by hand, on a thread that belongs to no runtime.
    let mut call = Box::pin(gate.consume(LIMIT.key("k")));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let answer = call.as_mut().poll(&mut context);
    assert!(matches!(answer, std::task::Poll::Ready(Err(Error::Stopped))), "{answer:?}");
    drop(call);
    runtime.block_on(gate.consume(LIMIT.key("k"))).unwrap().granted().unwrap();
}

/// Another runtime works for it, so it would be granted, and nobody could keep the lease.
#[test]
fn a_lease_that_is_asked_for_outside_of_a_runtime_is_not_granted() {
    const SLOTS: Limit = Limit::concurrency("slots", 1, EVER);
    let runtime = runtime();
    let (world, proxy, gate) = runtime.block_on(async {
        let world = World::new().await;
        let proxy = Proxy::new(&world.url());
        let gate = patient(&one_connection(proxy.options()).await).build();
        (world, proxy, gate)
    });
    proxy.hold_after(0);
    let working = runtime.spawn({
        let gate = gate.clone();
        async move { gate.consume(LIMIT.key("k")).await }
    });
    runtime.block_on(soon(proxy.until_held()));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let now = Box::pin(gate.acquire(SLOTS.global())).as_mut().poll(&mut context).map_ok(drop);
    let waiting = Box::pin(gate.acquire_within(SLOTS.global(), SECOND)).as_mut().poll(&mut context).map_ok(drop);
    proxy.release();
    runtime.block_on(working).unwrap().unwrap().granted().unwrap();
    for answer in [now, waiting] {
        assert!(matches!(answer, std::task::Poll::Ready(Err(Error::Stopped))), "{answer:?}");
    }
    assert_eq!(runtime.block_on(world.rows()), 1);
}

/// The clock of a test panics while a batch is decided: its callers hear that nobody knows, and those behind are
/// served.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_in_a_batch_reaches_its_callers_and_spares_those_behind_it() {
    let world = World::new().await;
    let panics = Arc::new(AtomicBool::new(false));
    let clock = {
        let panics = panics.clone();
        move || {
            assert!(!panics.swap(false, Ordering::SeqCst), "as the test demands");
            second(0.0)
        }
    };
    let gate = patient(&pool(&world.url(), 1).await).max_batch(4).clock(clock).build();
    gate.consume(LIMIT.key("k")).await.unwrap().granted().unwrap();
    let (mut granted, mut unknown) = (1, 0);
    for round in 1..=5 {
        panics.store(true, Ordering::SeqCst);
        let mut callers = JoinSet::new();
        for _ in 0..40 {
            let gate = gate.clone();
            callers.spawn(async move { soon(gate.consume(LIMIT.key("k"))).await });
        }
        for answer in soon(callers.join_all()).await {
            match answer {
                Ok(Decision::Granted(_)) => granted += 1,
                Err(Error::OutcomeUnknown { source: None, .. }) => unknown += 1,
                other => panic!("{other:?}"),
            }
        }
        assert!((round..=4 * round).contains(&unknown), "{unknown} unknown");
    }
    assert_eq!(granted + unknown, 201);
    let left = gate.balance(LIMIT.key("k")).await.unwrap().remaining.micros() / 1_000_000;
    assert!((granted..=granted + unknown).contains(&(1_000 - left)), "{left} left, {granted} granted");
}

/// The thread that runs everything panics, as tests do, and its runtime ends while the panic unwinds.
#[test]
fn a_panic_that_ends_the_runtime_is_a_panic_and_no_more() {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["gate::merge::runtime::panic_with_a_gate_at_work", "--exact", "--ignored", "--nocapture"]);
    let output = command.env(PANIC, "1").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", output.status);
    assert!(said.contains("as the test demands"), "{said}");
}

/// The other process of the test above.
#[ignore = "a part of another test"]
#[test]
fn panic_with_a_gate_at_work() {
    if std::env::var(PANIC).is_err() {
        return;
    }
    let runtime = runtime();
    let world = runtime.block_on(World::new());
    for polls in 1..6 {
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let current = Builder::new_current_thread().enable_all().build().unwrap();
            current.block_on(async {
                let gate = patient(&pool(&world.url(), 1).await).build();
                let call = tokio::spawn(async move { gate.consume(LIMIT.key("k")).await });
                for _ in 0..polls {
                    tokio::task::yield_now().await;
                }
                assert!(call.is_finished() && polls > 5, "as the test demands");
            });
        }));
        assert!(panicked.is_err());
    }
    assert!(runtime.block_on(world.rows()) <= 1);
}

const PANIC: &str = "TOLLGATE_TEST_PANIC";
