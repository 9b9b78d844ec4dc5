//! Requests that nobody should send.

use axum::Router;
use axum::routing::any;
use reqwest::header::HeaderValue;
use tollgate::Limit;
use tollgate_http::TrustedProxies;
use tollgate_http::tower::{ClientAddress, Credential, ExtractKey, PathSegment, Rule, TollgateLayer};

use crate::served::{Served, http_1, json};
use crate::world::World;

const TWO: Limit = Limit::fixed_window("two", 2, Limit::MAX_PERIOD);

#[tokio::test]
async fn header_fields_of_any_kind_have_a_defined_result() {
    let world = World::new().await;
    let gate = world.gate();
    let address = ClientAddress::behind(TrustedProxies::networks(["127.0.0.0/8"]).unwrap());
    let key = Credential::bearer().checked().or(address);
    let served = Served::behind(TollgateLayer::new(gate).limit(Rule::new(TWO).key(key))).await;
    let thousand = vec!["127.0.0.1"; 1_000].join(",");
    let long = format!("Bearer {}", "x".repeat(6_000));
    // Each of the first is a bucket of its own; all others are the peer's, which allows two.
    let cases: [(&str, &[u8], u16); 9] = [
        ("authorization", long.as_bytes(), 200),
        ("authorization", b"Bearer \xff\xfe\xfd", 200),
        ("x-forwarded-for", b"203.0.113.9", 200),
        ("authorization", b"", 200),
        ("x-forwarded-for", thousand.as_bytes(), 200),
        ("x-forwarded-for", b"\xff\xff", 429),
        ("x-forwarded-for", b"", 429),
        ("x-forwarded-for", b",,,,", 429),
        ("authorization", b"Bearer", 429),
    ];
    for (field, value, expected) in cases {
        let value = HeaderValue::from_bytes(value).unwrap();
        let status = http_1().get(served.url("/")).header(field, value).send().await.unwrap().status().as_u16();
        assert_eq!(status, expected, "{field}");
    }
}

#[tokio::test]
async fn a_key_that_is_too_long_is_still_a_bucket_of_its_own() {
    let world = World::new().await;
    let rule = Rule::new(TWO).key(PathSegment(0));
    let served = Served::behind(TollgateLayer::new(world.gate()).limit(rule)).await;
    let long = "x".repeat(2_000);
    for last in ["a", "b", "%00", "%FF", "%FE"] {
        assert_eq!(served.statuses(&format!("/{long}{last}"), 3).await, [200, 200, 429], "{last}");
    }
}

#[tokio::test]
async fn costs_that_are_none_are_told_in_words() {
    let world = World::new().await;
    let layer = |rule: Rule| TollgateLayer::new(world.gate()).limit(rule);
    let too_much = Served::behind(layer(Rule::new(TWO).cost(3))).await.get("/").await;
    assert_eq!(too_much.status(), 400);
    assert!(json(too_much).await["detail"].as_str().unwrap().contains("asks 3 tokens of limit"));
    for cost in [f64::NAN, -1.0] {
        let wrong = Served::behind(layer(Rule::new(TWO).cost(cost))).await.get("/").await;
        assert_eq!(wrong.status(), 500);
        assert_eq!(json(wrong).await["title"], "The server asks its limiter wrongly");
    }
    assert_eq!(world.rows().await, 0);
}

#[tokio::test]
async fn a_server_that_does_not_tell_its_peers_addresses_hears_so() {
    let world = World::new().await;
    let layer = TollgateLayer::new(world.gate()).limit(TWO);
    let router: Router = Router::new().fallback(any(|| async {})).layer(layer);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let server = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    let response = http_1().get(url).send().await.unwrap();
    assert_eq!(response.status(), 500);
    assert!(json(response).await["detail"].as_str().unwrap().contains("into_make_service_with_connect_info"));
    assert_eq!(world.rows().await, 0, "rather than one bucket for all");
    server.abort();
}
