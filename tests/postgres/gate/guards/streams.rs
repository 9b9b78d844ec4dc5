//! Streams: which are none, whose settlement finds no answer, and which are settled when their gate is closed.

use std::time::Duration;

use sqlx::PgPool;
use tokio::task::yield_now;
use tollgate::{
    Call, CallError, DAY, Error, HOUR, Limit, MINUTE, NewOverride, Overrides, SetupFault, Tokens, first_of, split,
};

use crate::calls::{left, stored};
use crate::gate::stage::{EVER, one_connection, patient, pool, soon, until_asked};
use crate::proxy::Proxy;
use crate::traced::traced;
use crate::world::{ON_CALL, World};

const LIMIT: Limit = Limit::token_bucket("streamed", 100, EVER);
const ORG: Limit = Limit::fixed_window("org", 1_000, DAY).start(Duration::ZERO);

/// Each answer is lost in turn. The gate repeats a statement that only read; it does not repeat a settlement.
#[test]
fn a_stream_that_is_not_stored_is_settled_once_at_most_and_an_event_says_so() {
    let mut unknown = 0;
    let log = traced(async {
        let world = World::new().await;
        let proxy = Proxy::new(&world.url());
        let gate = patient(&one_connection(proxy.options()).await).build();
        for statement in 1.. {
            let stream = gate.stream([LIMIT.global().cost(40)]).await.unwrap().granted().unwrap();
            stream.add(10);
            let asked = proxy.statements();
            proxy.cut_after(statement);
            let settled = soon(stream.settle()).await;
            proxy.hear();
            let asked = proxy.statements() - asked;
            let over = left(&world.pool, LIMIT.global()).await;
            match settled {
                Err(Error::OutcomeUnknown { .. }) => {
                    assert_eq!(asked, statement, "nobody asks again");
                    assert!([60, 90].contains(&over), "after {statement}: {over}");
                    unknown += 1;
                }
                settled => {
                    settled.unwrap();
                    assert_eq!(over, 90, "after {statement}");
                }
            }
            if asked < statement {
                break;
            }
            gate.reset(LIMIT.global()).await.unwrap();
        }
    });
    assert!(unknown > 0);
    assert_eq!(log.matches("could not settle a stream").count(), unknown);
}

/// All that a cost may be, rounded against the caller.
#[test]
fn a_stream_counts_what_a_cost_may_be() {
    let log = traced(async {
        let world = World::new().await;
        let gate = world.gate();
        let stream = gate.stream([LIMIT.global().cost(90)]).await.unwrap().granted().unwrap();
        stream.add(300);
        stream.add(7_u64);
        stream.add(5_usize);
        stream.add(0.5);
        stream.add(Tokens::from_micros(250_000));
        assert_eq!(stream.used().to_string(), "312.75");
        stream.add(1e-9);
        assert_eq!(stream.used().to_string(), "312.750001");
        for nothing in [-1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            stream.add(nothing);
        }
        stream.add(-5);
        stream.add(Tokens::from_micros(-1));
        assert_eq!(stream.used().to_string(), "312.750001");
        stream.add(u64::MAX);
        assert_eq!(stream.used(), Tokens::MAX);
        let _ = stream.into_receipt();
    });
    assert_eq!(log.matches("what a stream has used is no amount").count(), 6, "{log}");
}

/// The wire breaks at each statement in turn, when the server has answered it or before it comes there.
#[tokio::test]
async fn a_stored_stream_is_settled_once_whatever_is_lost_also_where_it_was_dropped() {
    let world = World::new().await;
    let proxy = Proxy::new(&world.url());
    let gate = patient(&one_connection(proxy.options()).await).build();
    let mut conn = world.connect().await;
    for is_dropped in [false, true] {
        for (statement, is_answered) in [(0, true), (1, true), (1, false), (2, true), (2, false)] {
            // It does not lapse: the gate's reaper would ask beside the settlement, and be counted.
            let stream = gate.stream(LIMIT.global().cost(40).tracked_for(HOUR)).await.unwrap().granted().unwrap();
            stream.add(10);
            let (asked, lost) = (proxy.statements(), proxy.lost_answers());
            match (statement, is_answered) {
                (0, _) => {}
                (_, true) => proxy.cut_after(statement),
                (_, false) => proxy.hold_after(statement - 1),
            }
            let settling =
                tokio::spawn(async move { if is_dropped { drop(stream) } else { stream.settle().await.unwrap() } });
            match (statement, is_answered) {
                (0, _) => {}
                (_, true) => {
                    soon(async {
                        while proxy.lost_answers() == lost {
                            yield_now().await;
                        }
                    })
                    .await;
                    // The settling task asks again, as it does not know whether the settlement was written.
                    until_asked(&proxy, asked + statement).await;
                }
                (_, false) => {
                    proxy.until_held().await;
                    proxy.cut().await;
                    proxy.release();
                }
            }
            soon(settling).await.unwrap();
            soon(async { while stored(&mut conn).await > 0 {} }).await;
            if statement == 0 {
                assert_eq!(proxy.statements() - asked, 2, "each is lost in turn");
            }
            // Calls under way are answered before the fence.
            gate.consume(LIMIT.key("fence")).await.unwrap().granted().unwrap();
            assert_eq!(left(&world.pool, LIMIT.global()).await, 90, "{statement}");
            gate.reset(LIMIT.global()).await.unwrap();
        }
    }
}

/// One cost settles all that is counted, and no other verb can once the guard is gone.
#[tokio::test]
async fn a_stream_of_different_costs_is_an_error_before_any_sql() {
    let world = World::new().await;
    let gate = patient(&pool(&world.url(), 1).await).build();
    world.sql("drop schema tollgate cascade").await;
    let lease = Limit::concurrency("leases", 2, MINUTE);
    let bad = [
        Call::from([LIMIT.global(), ORG.global().cost(5)]),
        Call::from([LIMIT.global().cost(0), ORG.global().cost(5)]),
        Call::from([LIMIT.global().cost(5).up_to(1), ORG.global().cost(5)]),
        Call::from([LIMIT.global(), LIMIT.global(), ORG.global()]),
        first_of([vec![LIMIT.global()], vec![LIMIT.key(1), ORG.global().cost(5)]]),
        split(5, [LIMIT.global(), ORG.global()]).and(LIMIT.key(1).cost(4)),
    ];
    for call in bad {
        let error = gate.stream(call.clone()).await.unwrap_err();
        assert!(
            matches!(error, Error::Call { source: CallError::MixedCosts, .. }) && error.is_bad_input(),
            "{call:?}: {error:?}"
        );
    }
    let good = [
        Call::from([LIMIT.global().flat(), ORG.global().cost(5)]),
        Call::from([lease.global(), ORG.global().cost(5)]),
        Call::from([LIMIT.global().cost(5).up_to(1), ORG.global().cost(5).up_to(1)]),
        first_of([LIMIT.global().cost(2), ORG.global().cost(5)]),
        split(5, [LIMIT.global(), ORG.global()]).and(LIMIT.key(1).cost(5)),
    ];
    for call in good {
        let error = gate.stream(call.clone()).await.unwrap_err();
        assert!(matches!(error, Error::Setup { fault: SetupFault::Schema, .. }), "{call:?}: {error:?}");
    }
}

/// Returns once the pool's only connection lies idle in it, and the lane that had it has ended.
async fn until_idle(pool: &PgPool) {
    soon(async {
        while pool.num_idle() == 0 {
            yield_now().await;
        }
    })
    .await;
    for _ in 0..100 {
        yield_now().await;
    }
}

/// A stream is settled once the gate is closed. Where the server is gone it stays unsettled, and nobody waits for it.
#[tokio::test]
async fn a_gate_that_is_closed_has_settled_the_streams_that_were_dropped() {
    let world = World::new().await;
    let proxy = Proxy::new(&world.url());
    for (key, is_gone) in [("there", false), ("gone", true)] {
        let wire = one_connection(proxy.options()).await;
        let gate = patient(&wire).build();
        let stream = gate.stream([LIMIT.key(key).cost(40)]).await.unwrap().granted().unwrap();
        stream.add(10);
        // Else the gate waits for the lane.
        until_idle(&wire).await;
        if is_gone {
            proxy.lead_to("postgres://nobody@localhost/none?host=/nowhere");
            proxy.cut().await;
        }
        let asked = proxy.statements();
        drop(stream);
        soon(gate.close()).await;
        assert_eq!(proxy.statements() > asked, !is_gone);
        assert_eq!(left(&world.pool, LIMIT.key(key)).await, if is_gone { 60 } else { 90 });
        proxy.lead_to(&world.url());
    }
    // A stream that nobody has dropped holds nothing up, and can be settled.
    let gate = patient(&one_connection(proxy.options()).await).build();
    let stream = gate.stream([LIMIT.key("open").cost(40)]).await.unwrap().granted().unwrap();
    soon(gate.close()).await;
    soon(stream.settle()).await.unwrap();
    assert_eq!(left(&world.pool, LIMIT.key("open")).await, 100);
}

/// It was not charged, so there is nothing to settle; but its stored call is used up.
#[tokio::test]
async fn a_stream_of_what_is_unlimited_settles_no_more_than_its_stored_call() {
    let world = World::new().await;
    let proxy = Proxy::new(&world.url());
    let said = NewOverride::unlimited(&LIMIT).lasting(HOUR).reason("a test");
    said.set(&mut world.connect_as(ON_CALL).await).await.unwrap();
    let overrides = Overrides::read(&mut world.connect().await).await.unwrap();
    let gate = patient(&one_connection(proxy.options()).await).overrides(&overrides).build();
    let stream = gate.stream([LIMIT.global().cost(40)]).await.unwrap().granted().unwrap();
    stream.add(10_u32);
    stream.settle().await.unwrap();
    assert_eq!((proxy.statements(), world.rows().await), (0, 0));
    let stream = gate.stream(LIMIT.global().cost(40).tracked_for(HOUR)).await.unwrap().granted().unwrap();
    let mut conn = world.connect().await;
    assert_eq!(stored(&mut conn).await, 1);
    stream.settle().await.unwrap();
    assert_eq!((stored(&mut conn).await, left(&world.pool, LIMIT.global()).await), (0, 100));
}
