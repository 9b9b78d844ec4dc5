//! Responses as a client sees them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use chrono::DateTime;
use reqwest::Client;
use serde_json::json;
use sqlx::postgres::PgPoolOptions;
use tollgate::{Gate, HOUR, Limit, MINUTE, SECOND};
use tollgate_http::tower::{Rule, TollgateLayer};
use tollgate_http::{Fields, Format};

use crate::served::{Served, field, http_1, http_2, json as body};
use crate::stage::patient;
use crate::world::World;

#[tokio::test]
async fn a_burst_a_429_and_after_retry_after_a_200_at_the_first_try() {
    bursts(&http_1()).await;
}

#[tokio::test]
async fn the_same_through_http_2() {
    bursts(&http_2()).await;
}

async fn bursts(client: &Client) {
    const BURST: Limit = Limit::token_bucket("burst", 3, Duration::from_secs(9));

    let world = World::new().await;
    // The gate goes by a clock that the test turns.
    let passed = Arc::new(AtomicU64::new(0));
    let clock = {
        let passed = passed.clone();
        move || DateTime::UNIX_EPOCH + Duration::from_secs(passed.load(Ordering::SeqCst))
    };
    let gate = patient(&world.pool).clock(clock).build();
    let served = Served::behind(TollgateLayer::new(gate).limit(BURST)).await;
    let get = || async { client.get(served.url("/")).send().await.unwrap() };
    for left in (0..3).rev() {
        let response = get().await;
        assert_eq!(response.status(), 200);
        assert_eq!(field(&response, "ratelimit-policy"), r#""burst";q=3;w=9"#);
        assert!(field(&response, "ratelimit").starts_with(&format!(r#""burst";r={left};t="#)), "{response:?}");
        assert_eq!(field(&response, "retry-after"), "");
        assert_eq!(response.text().await.unwrap(), "served", "the body is untouched");
    }
    let refused = get().await;
    assert_eq!(refused.status(), 429);
    let retry_after: u64 = field(&refused, "retry-after").parse().unwrap();
    assert_eq!(retry_after, 3);
    assert!(field(&refused, "ratelimit").starts_with(r#""burst";r=0;t="#), "{refused:?}");
    let problem = body(refused).await;
    assert_eq!(problem["type"], "https://iana.org/assignments/http-problem-types#quota-exceeded");
    assert_eq!(problem["violated-policies"], json!(["burst"]));
    assert!(problem["retry_at"].is_string());

    passed.fetch_add(retry_after, Ordering::SeqCst);
    assert_eq!(get().await.status(), 200, "at the first try");
}

/// The clock stands still, so that all of them wait for one instant.
#[tokio::test]
async fn clients_that_are_refused_at_once_are_told_different_instants_if_asked_for() {
    let world = World::new().await;
    let gate = || patient(&world.pool).clock(|| DateTime::UNIX_EPOCH);
    let away = PgPoolOptions::new().acquire_timeout(Duration::ZERO);
    let away = Gate::new(away.connect_lazy("postgres://nobody@127.0.0.1:1/none").unwrap());
    let fields = Fields::default().jitter(Duration::from_secs(100_000));
    for (gate, served_first, status, wait) in
        [(gate().build(), 1, 429, 60), (gate().remember_refusals(MINUTE).build(), 0, 429, 60), (away, 0, 503, 5)]
    {
        let limit = Limit::token_bucket("one", 1, MINUTE);
        let served = Served::behind(TollgateLayer::new(gate).limit(limit).fields(fields)).await;
        assert_eq!(served.statuses("/", served_first).await, vec![200; served_first]);
        let mut told = BTreeSet::new();
        for _ in 0..5 {
            let refused = served.get("/").await;
            assert_eq!(refused.status(), status);
            let retry_after: u64 = field(&refused, "retry-after").parse().unwrap();
            assert!((wait..=100_000 + wait).contains(&retry_after), "{retry_after}");
            if status == 429 {
                assert_eq!(field(&refused, "ratelimit"), format!(r#""one";r=0;t={retry_after}"#));
            }
            told.insert(retry_after);
        }
        assert!(told.len() > 1, "{told:?}");
    }
}

#[tokio::test]
async fn every_policy_is_told_though_memory_remembers_one() {
    let [total, one] = [("total", 100), ("one", 1)].map(|(name, rate)| Limit::token_bucket(name, rate, HOUR));
    let world = World::new().await;
    let gate = patient(&world.pool).remember_refusals(HOUR).build();
    let layer = TollgateLayer::new(gate).limit(Rule::new(total).global()).limit(one).fields(Fields::default().all());
    let served = Served::behind(layer).await;
    assert_eq!(served.statuses("/", 3).await, [200, 429, 429]);
    let refused = served.get("/").await;
    assert_eq!(field(&refused, "ratelimit-policy"), r#""total";q=100;w=3600, "one";q=1;w=3600"#);
    assert!(field(&refused, "ratelimit").starts_with(r#""one";r=0;t="#), "{refused:?}");
}

#[tokio::test]
async fn layers_inside_of_each_other_tell_of_all_their_limits() {
    let [outer, inner] = [("outer", MINUTE), ("inner", SECOND)].map(|(name, per)| Limit::token_bucket(name, 1, per));
    let world = World::new().await;
    let gate = world.gate();
    let router = axum::Router::new()
        .fallback(axum::routing::any(|| async { "served" }))
        .layer(TollgateLayer::new(gate.clone()).limit(inner.capacity(2)))
        .layer(TollgateLayer::new(gate).limit(outer.capacity(2)));
    let served = Served::new(router).await;
    let response = served.get("/").await;
    let all = |name| response.headers().get_all(name).iter().map(|value| value.to_str().unwrap()).collect::<Vec<_>>();
    assert_eq!(all("ratelimit-policy"), [r#""inner";q=2;w=2"#, r#""outer";q=2;w=120"#]);
    assert_eq!(all("ratelimit").len(), 2);
}

#[tokio::test]
async fn older_clients_get_older_fields() {
    const LIMIT: Limit = Limit::token_bucket("some", 10, HOUR);

    let world = World::new().await;
    let layer = |format| TollgateLayer::new(world.gate()).limit(LIMIT).fields(Fields::new(format));
    let response = Served::behind(layer(Format::XRateLimit)).await.get("/").await;
    assert_eq!([field(&response, "x-ratelimit-limit"), field(&response, "x-ratelimit-remaining")], ["10", "9"]);
    let response = Served::behind(layer(Format::Draft6)).await.get("/").await;
    assert_eq!([field(&response, "ratelimit-limit"), field(&response, "ratelimit-remaining")], ["10", "8"]);
}
