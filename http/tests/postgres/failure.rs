//! Responses while the database is away, and after the gate is closed.

use std::time::Duration;

use sqlx::postgres::PgPoolOptions;
use tollgate::{Gate, GateBuilder, HOUR, Limit, OnFailure};
use tollgate_http::tower::{Rule, TollgateLayer};

use crate::served::{Served, field, json};
use crate::world::World;

const LIMIT: Limit = Limit::token_bucket("some", 10, HOUR);
const SLOTS: Limit = Limit::concurrency("slots", 4, HOUR);

/// A gate whose database refuses connections.
fn away() -> GateBuilder {
    let pool = PgPoolOptions::new().acquire_timeout(Duration::from_millis(50));
    Gate::builder(pool.connect_lazy("postgres://nobody@127.0.0.1:1/none").unwrap())
}

#[tokio::test]
async fn a_closed_gate_is_503_with_retry_after_and_words() {
    let served = Served::behind(TollgateLayer::new(away().build()).limit(LIMIT)).await;
    let response = served.get("/").await;
    assert_eq!((response.status().as_u16(), field(&response, "retry-after")), (503, "5"));
    assert_eq!(field(&response, "ratelimit-policy"), r#""some";q=10;w=3600"#, "the policy holds all the same");
    let problem = json(response).await;
    assert_eq!(problem["type"], "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity");
    assert!(!problem.to_string().contains("nobody"), "{problem}");
}

#[tokio::test]
async fn an_open_gate_serves_and_tells_nothing_that_it_does_not_know() {
    let gate = away().on_failure(OnFailure::Open).build();
    let served = Served::behind(TollgateLayer::new(gate).limit(LIMIT)).await;
    let response = served.get("/").await;
    assert_eq!((response.status().as_u16(), field(&response, "ratelimit")), (200, ""));
    assert_eq!(field(&response, "ratelimit-policy"), r#""some";q=10;w=3600"#);
}

#[tokio::test]
async fn a_local_share_serves_while_it_lasts_and_tells_of_itself() {
    let gate = away().on_failure(OnFailure::Local(0.2)).build();
    let served = Served::behind(TollgateLayer::new(gate).limit(LIMIT)).await;
    let first = served.get("/").await;
    assert_eq!((first.status().as_u16(), field(&first, "ratelimit")), (200, r#""some";r=1;t=1800"#));
    assert_eq!(field(&first, "ratelimit-policy"), r#""some";q=2;w=3600"#);
    assert_eq!(served.statuses("/", 2).await, [200, 429]);
    let retry_after: u64 = field(&served.get("/").await, "retry-after").parse().unwrap();
    assert!((1_700..=1_800).contains(&retry_after), "{retry_after}");
}

#[tokio::test]
async fn a_crowd_is_503_and_soon_over() {
    let world = World::new().await;
    let pool = PgPoolOptions::new().max_connections(1).connect(&world.url()).await.unwrap();
    let _in_use = pool.acquire().await.unwrap();
    let gate = Gate::builder(pool).acquire_timeout(Duration::from_millis(50)).build();
    let response = Served::behind(TollgateLayer::new(gate).limit(LIMIT)).await.get("/").await;
    assert_eq!((response.status().as_u16(), field(&response, "retry-after")), (503, "1"));
    assert_eq!(json(response).await["title"], "Request cannot be satisfied as too many ask at once");
}

#[tokio::test]
async fn after_its_gate_is_closed_a_service_that_goes_on_serves_what_holds_nothing() {
    let world = World::new().await;
    let gate = world.gate();
    gate.close().await;
    let slots = Rule::new(SLOTS).when(|request| request.uri.path() == "/slot");
    let served = Served::behind(TollgateLayer::new(gate).limit(LIMIT).limit(slots)).await;
    assert_eq!(served.get("/").await.status(), 200);
    assert_eq!(served.get("/slot").await.status(), 503);
}
