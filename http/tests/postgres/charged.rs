//! Charges that depend on the response, granted by the database or from memory: charges are settled, and nothing else.

use axum::Router;
use axum::http::{HeaderMap, HeaderName};
use axum::routing::post;
use tollgate::{DAY, Gate, HOUR, Limit, NewOverride, OnFailure, Overrides, Request, Tokens};
use tollgate_http::tower::{Rule, TollgateLayer};

use crate::proxy::Proxy;
use crate::served::{Served, http_1, left};
use crate::stage::{nowhere, one_connection, patient};
use crate::world::{ON_CALL, World};

/// Buckets that nothing comes back to within a test, and of which some lie in memory after a few calls.
const HOT: Limit = Limit::stepped_bucket("hot", 99_999, DAY).capacity(100_000);
const WARM: Limit = Limit::stepped_bucket("warm", 99_999, DAY).capacity(100_000);
const SLOTS: Limit = Limit::concurrency("slots", 100, HOUR);
const US: (&str, &str) = ("ip", "127.0.0.1");

/// The cost that the response names, if it names one.
fn used(response: &http::response::Parts) -> Option<u32> {
    response.headers.get("x-used")?.to_str().ok()?.parse().ok()
}

/// A service that uses as much as the request says.
async fn served(gate: &Gate, rules: impl IntoIterator<Item = Rule>) -> Served {
    let layer = rules.into_iter().fold(TollgateLayer::new(gate.clone()), TollgateLayer::limit);
    let answer = |used: String| async move {
        let used = (!used.is_empty()).then(|| (HeaderName::from_static("x-used"), used.parse().unwrap()));
        HeaderMap::from_iter(used)
    };
    Served::new(Router::new().route("/", post(answer)).layer(layer)).await
}

async fn call(served: &Served, used: impl ToString) -> u16 {
    http_1().post(served.url("/")).body(used.to_string()).send().await.unwrap().status().as_u16()
}

/// Calls until some tokens of each limit lie in memory, so that the next call is granted from there. Returns how many
/// calls that took.
async fn until_some_lie_in_memory(gate: &Gate, served: &Served, requests: &[Request], used: impl ToString) -> i64 {
    let mut calls = 0;
    while requests.iter().any(|request| gate.prefetched(request) < Tokens::new(50)) {
        assert_eq!(call(served, used.to_string()).await, 200);
        calls += 1;
        assert!(calls < 200, "nothing is taken ahead");
    }
    calls
}

/// The tokens spent of a limit, once those in memory are back.
async fn spent(gate: &Gate, limit: &Limit) -> i64 {
    100_000 - left(gate, limit, US).await
}

#[tokio::test]
async fn what_memory_granted_is_given_back_and_charged_as_what_the_database_granted() {
    let world = World::new().await;
    for (used_before, used_then) in [(0, 0), (1, 7), (7, 1), (5, 5), (0, 1_000)] {
        let gate = patient(&world.pool).prefetch(HOUR).build();
        gate.reset(HOT.key(US)).await.unwrap();
        let served = served(&gate, [Rule::new(HOT).cost(5).settle_by(used)]).await;
        let before = until_some_lie_in_memory(&gate, &served, &[HOT.key(US)], used_before).await;
        let held = gate.prefetched(&HOT.key(US));
        assert_eq!(call(&served, used_then).await, 200);
        assert_eq!(gate.prefetched(&HOT.key(US)), held.checked_sub(Tokens::new(5)).unwrap(), "memory granted it");
        assert_eq!(call(&served, "").await, 200, "its charge stays");
        assert_eq!(spent(&gate, &HOT).await, before * used_before + used_then + 5, "{used_before}, {used_then}");
    }
}

#[tokio::test]
async fn good_log_ins_that_memory_granted_are_not_charged() {
    let world = World::new().await;
    let gate = patient(&world.pool).prefetch(HOUR).build();
    let good = |response: &http::response::Parts| used(response) == Some(0);
    let rules = [Rule::new(HOT).refund_if(good), Rule::new(WARM).charge_if(move |response| !good(response))];
    let served = served(&gate, rules).await;
    until_some_lie_in_memory(&gate, &served, &[HOT.key(US), WARM.key(US)], 0).await;
    for _ in 0..20 {
        assert_eq!(call(&served, 0).await, 200);
    }
    assert_eq!(call(&served, 1).await, 200);
    assert_eq!([spent(&gate, &HOT).await, spent(&gate, &WARM).await], [1, 1]);
}

/// The database decides what holds slots, and memory the next call.
#[tokio::test]
async fn what_is_held_is_no_part_of_what_is_settled_whoever_granted_it() {
    let world = World::new().await;
    let gate = patient(&world.pool).prefetch(HOUR).build();
    let slots = Rule::new(SLOTS).when(|request| request.headers.contains_key("x-slot"));
    let served = served(&gate, [Rule::new(HOT).refund_if(|_| true), slots.refund_if(|_| true)]).await;
    for round in 0..3 {
        until_some_lie_in_memory(&gate, &served, &[HOT.key(US)], "").await;
        let held = http_1().post(served.url("/")).header("x-slot", "1").send().await.unwrap();
        assert_eq!(held.status().as_u16(), 200, "{round}");
        drop(held.bytes().await.unwrap());
    }
    assert_eq!(spent(&gate, &HOT).await, 0);
}

#[tokio::test]
async fn what_was_not_charged_is_not_settled() {
    let world = World::new().await;
    let proxy = Proxy::new(&world.url());
    let said = NewOverride::unlimited(&HOT).lasting(HOUR).reason("a test");
    said.set(&mut world.connect_as(ON_CALL).await).await.unwrap();
    let overrides = Overrides::read(&mut world.connect().await).await.unwrap();
    let unlimited = patient(&one_connection(proxy.options()).await).overrides(&overrides).prefetch(HOUR).build();
    let open = patient(&nowhere()).on_failure(OnFailure::Open).prefetch(HOUR).build();
    let local = patient(&nowhere()).on_failure(OnFailure::Local(1.0)).prefetch(HOUR).build();
    for gate in [unlimited.clone(), open, local] {
        let served = served(&gate, [Rule::new(HOT).cost(5).settle_by(used)]).await;
        for said in ["0", "5", "1000", ""] {
            assert_eq!(call(&served, said).await, 200);
        }
    }
    assert_eq!((proxy.statements(), world.rows().await), (0, 0));
    // Beside an unlimited charge the rest is settled.
    let served = served(&unlimited, [Rule::new(HOT).cost(5).settle_by(used), Rule::new(WARM).settle_by(used)]).await;
    assert_eq!(call(&served, 9).await, 200);
    assert_eq!([left(&unlimited, &HOT, US).await, spent(&unlimited, &WARM).await], [100_000, 9]);
}
