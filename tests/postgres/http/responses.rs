//! Charges that depend on the response.

use axum::Router;
use axum::http::StatusCode;
use axum::routing::post;
use tollgate::tower::{Rule, TollgateLayer};
use tollgate::{Gate, Limit, OnFailure};

use super::served::{Served, field, http_1, json, left};
use crate::world::World;

const GUESSES: Limit = Limit::fixed_window("guesses", 3, Limit::MAX_PERIOD);
const US: (&str, &str) = ("ip", "127.0.0.1");

/// A log-in whose password is "right".
async fn log_in(password: String) -> StatusCode {
    if password == "right" { StatusCode::OK } else { StatusCode::UNAUTHORIZED }
}

async fn served(layer: TollgateLayer) -> Served {
    Served::new(Router::new().route("/login", post(log_in)).layer(layer)).await
}

/// The status, and what is told to be left.
async fn guess(served: &Served, password: &'static str) -> (u16, String) {
    let response = http_1().post(served.url("/login")).body(password).send().await.unwrap();
    let told = field(&response, "ratelimit").split(';').nth(1).unwrap_or_default().to_owned();
    (response.status().as_u16(), told)
}

#[tokio::test]
async fn only_failed_log_ins_are_charged() {
    let world = World::new().await;
    let gate = Gate::new(world.pool.clone());
    let failed = Rule::new(GUESSES).charge_if(|response| response.status == StatusCode::UNAUTHORIZED);
    let served = served(TollgateLayer::new(gate.clone()).limit(failed)).await;
    let story = [
        ("right", 200, "r=3"),
        ("right", 200, "r=3"),
        ("wrong", 401, "r=2"),
        ("right", 200, "r=2"),
        ("wrong", 401, "r=1"),
        ("wrong", 401, "r=0"),
        ("right", 429, "r=0"),
        ("wrong", 429, "r=0"),
    ];
    for (place, (password, status, told)) in story.into_iter().enumerate() {
        assert_eq!(guess(&served, password).await, (status, told.to_owned()), "at {place}");
    }
    assert_eq!(left(&gate, &GUESSES, US).await, 0);
}

#[tokio::test]
async fn what_deserves_no_charge_is_given_back() {
    let world = World::new().await;
    let gate = Gate::new(world.pool.clone());
    let all_but_good = Rule::new(GUESSES).refund_if(|response| response.status.is_success());
    let served = served(TollgateLayer::new(gate.clone()).limit(all_but_good)).await;
    let story = [("right", 200, "r=3"), ("wrong", 401, "r=2"), ("right", 200, "r=2"), ("wrong", 401, "r=1")];
    for (place, (password, status, told)) in story.into_iter().enumerate() {
        assert_eq!(guess(&served, password).await, (status, told.to_owned()), "at {place}");
    }
    assert_eq!(left(&gate, &GUESSES, US).await, 1);
}

#[tokio::test]
async fn those_under_way_at_once_pass_and_are_all_charged() {
    let world = World::new().await;
    let gate = Gate::new(world.pool.clone());
    let failed = Rule::new(GUESSES).charge_if(|response| response.status == StatusCode::UNAUTHORIZED);
    // Five look before any of them fails.
    let crowd = std::sync::Arc::new(tokio::sync::Barrier::new(5));
    let handler = move || {
        let crowd = crowd.clone();
        async move {
            crowd.wait().await;
            StatusCode::UNAUTHORIZED
        }
    };
    let layer = TollgateLayer::new(gate.clone()).limit(failed);
    let served = Served::new(Router::new().route("/login", post(handler)).layer(layer)).await;
    let requests = (0..5).map(|_| http_1().post(served.url("/login")).send());
    let statuses = futures_util::future::join_all(requests).await;
    assert!(statuses.into_iter().all(|response| response.unwrap().status() == 401));
    assert_eq!(left(&gate, &GUESSES, US).await, -2, "a debt, which time has to pay first");
    assert_eq!(guess(&served, "wrong").await.0, 429);
}

#[tokio::test]
async fn a_guess_that_cannot_be_counted_is_not_answered_unless_the_gate_is_open() {
    for (policy, expected) in [(OnFailure::Closed, 503), (OnFailure::Open, 401)] {
        let world = World::new().await;
        // The database goes away after the look, and before the charge.
        let pool = sqlx::PgPool::connect(&world.url()).await.unwrap();
        let gate = Gate::builder(pool.clone()).on_failure(policy).build();
        let failed = Rule::new(GUESSES).charge_if(|response| response.status == StatusCode::UNAUTHORIZED);
        let handler = move || {
            let pool = pool.clone();
            async move {
                pool.close().await;
                StatusCode::UNAUTHORIZED
            }
        };
        let layer = TollgateLayer::new(gate).limit(failed);
        let served = Served::new(Router::new().route("/login", post(handler)).layer(layer)).await;
        let response = http_1().post(served.url("/login")).send().await.unwrap();
        assert_eq!(response.status(), expected);
        if expected == 503 {
            assert_eq!(field(&response, "retry-after"), "5");
            assert_eq!(json(response).await["status"], 503);
        }
    }
}
