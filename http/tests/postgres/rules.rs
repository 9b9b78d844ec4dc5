//! Which requests are charged, to whom, and how much.

use std::collections::HashSet;

use axum::http::{Response, StatusCode};
use axum::routing::any;
use axum::{Router, body::Body};
use chrono::DateTime;
use http::header::HeaderName;
use tollgate::{Limit, MINUTE};
use tollgate_http::tower::{ClientAddress, Credential, ExtractKey, MissingKey, Rule, TollgateLayer};
use tollgate_http::{NotServed, TrustedProxies};

use crate::served::{Served, field, http_1, json, left};
use crate::stage::patient;
use crate::traced::traced;
use crate::world::World;

const TEN: Limit = Limit::fixed_window("ten", 10, Limit::MAX_PERIOD);
const ONE: Limit = Limit::fixed_window("one", 1, Limit::MAX_PERIOD);

#[tokio::test]
async fn a_key_of_ones_own_is_used_as_it_is() {
    let world = World::new().await;
    let gate = world.gate();
    let key = |request: &http::request::Parts| Some(request.headers.get("x-api-key")?.to_str().ok()?.to_owned());
    let layer = TollgateLayer::new(gate.clone()).limit(Rule::new(TEN).key(key));
    let served = Served::behind(layer).await;
    let response = http_1().get(served.url("/")).header("x-api-key", "test-key-123").send().await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(left(&gate, &TEN, "test-key-123").await, 9, "at the default cost of 1");
}

#[tokio::test]
async fn a_refusal_of_ones_own_still_says_when_to_come_back() {
    let world = World::new().await;
    let gate = patient(&world.pool).clock(|| DateTime::UNIX_EPOCH).build();
    let layer = TollgateLayer::new(gate).limit(Limit::token_bucket("one", 1, MINUTE));
    let layer = layer.respond_with(|reason: &NotServed| {
        let mut response = Response::new(Body::from(format!("not now: {reason}")));
        *response.status_mut() = StatusCode::IM_A_TEAPOT;
        response
    });
    let served = Served::new(Router::new().fallback(any(|| async {})).layer(layer)).await;
    assert_eq!(served.statuses("/", 2).await, [200, 418]);
    let refused = served.get("/").await;
    assert_eq!([field(&refused, "retry-after"), field(&refused, "cache-control")], ["60", "no-store"]);
    assert!(field(&refused, "ratelimit").starts_with(r#""one";r=0;t="#));
    assert!(refused.text().await.unwrap().starts_with("not now: limit \"one\" exhausted"));
}

#[tokio::test]
async fn costs_are_numbers_or_come_from_the_request() {
    let world = World::new().await;
    let gate = world.gate();
    let fixed = Served::behind(TollgateLayer::new(gate.clone()).limit(Rule::new(TEN).global().cost(5))).await;
    assert_eq!(fixed.statuses("/", 3).await, [200, 200, 429]);
    gate.reset(TEN.global()).await.unwrap();
    let rule = Rule::new(TEN).global().cost_by(|request| if request.uri.path() == "/heavy" { 10 } else { 1 });
    let by_route = Served::behind(TollgateLayer::new(gate.clone()).limit(rule)).await;
    assert_eq!(by_route.statuses("/heavy", 2).await, [200, 429]);
    gate.reset(TEN.global()).await.unwrap();
    assert_eq!(by_route.statuses("/", 1).await, [200]);
    assert_eq!(by_route.statuses("/heavy", 1).await, [429]);
}

#[tokio::test]
async fn a_billing_limit_is_asked_by_the_period_of_the_request() {
    const PLAN: Limit = Limit::billing("plan", 2);
    let world = World::new().await;
    // Each customer has a month of his own, which began on this day.
    let (start, end) = (DateTime::UNIX_EPOCH, DateTime::UNIX_EPOCH + Limit::MAX_PERIOD);
    let of = move |request: &http::request::Parts| {
        if request.uri.path() == "/renewed" { (start + MINUTE, end) } else { (start, end) }
    };
    let layer = TollgateLayer::new(world.gate()).limit(Rule::new(PLAN).global().period_by(of));
    let served = Served::behind(layer).await;
    assert_eq!(served.statuses("/", 3).await, [200, 200, 429]);
    assert_eq!(served.statuses("/renewed", 1).await, [200]);
    let refused = served.get("/").await;
    assert!(field(&refused, "ratelimit-policy").starts_with(r#""plan";q=2"#));
    assert!(!field(&refused, "ratelimit-policy").contains(";w="), "no period has one length");
}

#[tokio::test]
#[should_panic(expected = "names no period")]
async fn a_billing_limit_without_a_period_is_no_rule() {
    let layer = TollgateLayer::new(World::new().await.gate()).limit(Limit::billing("plan", 2));
    drop(layer);
}

#[tokio::test]
async fn a_limit_is_chosen_by_the_request_and_its_rows_are_shared() {
    let world = World::new().await;
    let pays = |request: &http::request::Parts| request.uri.path() == "/pro";
    let (free, pro) = (TEN, Limit::fixed_window("ten", 12, Limit::MAX_PERIOD));
    let rule = Rule::new(TEN).global().limit_by(move |request| if pays(request) { pro.clone() } else { free.clone() });
    let served = Served::behind(TollgateLayer::new(world.gate()).limit(rule)).await;
    assert_eq!(served.statuses("/pro", 3).await, [200; 3]);
    let response = served.get("/free").await;
    assert!(field(&response, "ratelimit").starts_with(r#""ten";r=6;"#));
    assert!(field(&response, "ratelimit-policy").starts_with(r#""ten";q=10"#));
    assert_eq!(world.rows().await, 1);
}

#[tokio::test]
async fn what_is_skipped_is_served_without_asking() {
    let world = World::new().await;
    let layer = TollgateLayer::new(world.gate()).limit(ONE);
    let served = Served::behind(layer.skip(|request| request.uri.path() == "/health")).await;
    assert_eq!(served.statuses("/health", 3).await, [200; 3]);
    assert_eq!(field(&served.get("/health").await, "ratelimit-policy"), "");
    assert_eq!(world.rows().await, 0);
    assert_eq!(served.statuses("/", 2).await, [200, 429]);
    assert_eq!(served.statuses("/health", 1).await, [200]);
}

/// Its refusal would be no answer to a page: a browser shows an error of CORS instead.
#[tokio::test]
async fn a_preflight_passes_uncounted_unless_told_otherwise() {
    let world = World::new().await;
    let no_key = Rule::new(ONE).key(|_: &http::request::Parts| None::<u8>);
    let served = Served::behind(TollgateLayer::new(world.gate()).limit(ONE).limit(no_key)).await;
    let preflight = |served: &Served, method: &str, fields: &[(&'static str, &'static str)]| {
        let method = method.parse().unwrap();
        let request = fields
            .iter()
            .fold(http_1().request(method, served.url("/")), |request, (name, value)| request.header(*name, *value));
        async { request.send().await.unwrap().status().as_u16() }
    };
    let both = [("origin", "https://page.test"), ("access-control-request-method", "POST")];
    for _ in 0..3 {
        assert_eq!(preflight(&served, "OPTIONS", &both).await, 200);
    }
    assert_eq!(world.rows().await, 0);
    for (method, fields) in [("OPTIONS", &both[..1]), ("OPTIONS", &both[1..]), ("OPTIONS", &[]), ("GET", &both)] {
        assert_eq!(
            preflight(&served, method, fields).await,
            500,
            "{method} {fields:?} is none, and is asked for its key"
        );
    }
    let counted = Served::behind(TollgateLayer::new(world.gate()).limit(ONE).count_preflights()).await;
    assert_eq!(preflight(&counted, "OPTIONS", &both).await, 200);
    assert_eq!(preflight(&counted, "OPTIONS", &both).await, 429);
}

/// The order of the guide: CORS outside, so that a page can read a refusal.
#[tokio::test]
async fn cors_outside_of_the_layer_marks_a_refusal() {
    let world = World::new().await;
    let marks = |mut response: axum::response::Response| async {
        response.headers_mut().insert("access-control-allow-origin", "https://page.test".parse().unwrap());
        response
    };
    let router = Router::new().fallback(any(|| async {})).layer(TollgateLayer::new(world.gate()).limit(ONE));
    let served = Served::new(router.layer(axum::middleware::map_response(marks))).await;
    for status in [200, 429] {
        let response = served.get("/").await;
        assert_eq!(response.status(), status);
        assert_eq!(field(&response, "access-control-allow-origin"), "https://page.test");
    }
}

#[tokio::test]
async fn a_rule_applies_to_the_requests_that_it_is_for() {
    let world = World::new().await;
    let posts = Rule::new(ONE).global().when(|request| request.method == http::Method::POST);
    let layer = TollgateLayer::new(world.gate()).limit(posts).limit(Rule::new(TEN).global());
    let served = Served::behind(layer).await;
    assert_eq!(served.statuses("/", 2).await, [200, 200]);
    assert_eq!(field(&served.get("/").await, "ratelimit-policy").matches(";q=").count(), 1);
    let post = || async { http_1().post(served.url("/")).send().await.unwrap().status().as_u16() };
    assert_eq!((post().await, post().await), (200, 429));
}

#[tokio::test]
async fn of_several_limits_all_are_charged_or_none() {
    let world = World::new().await;
    let gate = world.gate();
    let layer = TollgateLayer::new(gate.clone()).limit(Rule::new(TEN).global()).limit(Rule::new(ONE).global());
    let served = Served::behind(layer).await;
    assert_eq!(served.statuses("/", 4).await, [200, 429, 429, 429]);
    assert_eq!(gate.balance(TEN.global()).await.unwrap().remaining, tollgate::Tokens::new(9));
}

#[tokio::test]
async fn a_spoofed_entry_never_changes_the_bucket() {
    let world = World::new().await;
    let gate = world.gate();
    for (limit, field, added, proxies) in [
        ("hops", "x-forwarded-for", "203.0.113.9", TrustedProxies::hops(1)),
        ("networks", "x-forwarded-for", "203.0.113.9", TrustedProxies::networks(["127.0.0.0/8"]).unwrap()),
        ("forwarded", "forwarded", "for=203.0.113.9", TrustedProxies::hops(1).forwarded()),
    ] {
        let limit = Limit::fixed_window(limit, 3, Limit::MAX_PERIOD);
        let rule = Rule::new(limit).key(ClientAddress::behind(proxies));
        let served = Served::behind(TollgateLayer::new(gate.clone()).limit(rule)).await;
        let mut statuses = Vec::new();
        for spoof in 0..5 {
            let value = format!("10.0.0.{spoof}, for=10.0.0.{spoof}, \", {added}");
            let request = http_1().get(served.url("/")).header(field, value);
            let request = request.header("x-real-ip", spoof).header("x-client-ip", spoof);
            statuses.push(request.send().await.unwrap().status().as_u16());
        }
        assert_eq!(statuses, [200, 200, 200, 429, 429], "{field}");
    }
}

#[tokio::test]
async fn a_proxy_names_its_clients_in_a_field_of_one_address_and_a_stranger_does_not() {
    let world = World::new().await;
    for (field, proxy, expected) in [
        ("cf-connecting-ip", "127.0.0.0/8", [200, 200, 429, 200]),
        ("x-real-ip", "127.0.0.1", [200, 200, 429, 200]),
        ("true-client-ip", "192.0.2.0/24", [200, 429, 429, 429]),
    ] {
        let name = HeaderName::from_static(field);
        let key = ClientAddress::behind(TrustedProxies::single_address(name, [proxy]).unwrap());
        let limit = Limit::fixed_window(field, 1, Limit::MAX_PERIOD);
        let layer = TollgateLayer::new(world.gate()).limit(Rule::new(limit).key(key));
        let served = Served::behind(layer).await;
        let mut statuses = Vec::new();
        // The third is in the second one's /64.
        for client in ["203.0.113.9", "2001:db8:1:2::9", "2001:db8:1:2::a", "2001:db8:1:3::9"] {
            let request = http_1().get(served.url("/")).header(field, client).header("x-forwarded-for", client);
            statuses.push(request.send().await.unwrap().status().as_u16());
        }
        assert_eq!(statuses, expected, "{field}");
    }
}

#[tokio::test]
async fn a_credential_that_nobody_knows_is_charged_to_the_address() {
    let world = World::new().await;
    let gate = world.gate();
    let name = HeaderName::from_static("x-api-key");
    let key = Credential::header(name).known(|key| key == b"alpha").or(ClientAddress::peer());
    let served = Served::behind(TollgateLayer::new(gate.clone()).limit(Rule::new(ONE).key(key))).await;
    let ask = |key: String| {
        let request = http_1().get(served.url("/")).header("x-api-key", key);
        async { request.send().await.unwrap().status().as_u16() }
    };
    assert_eq!(ask("alpha".to_owned()).await, 200);
    assert_eq!(ask("made up".to_owned()).await, 200, "this is the address's one");
    for made_up in 0..3 {
        assert_eq!(ask(made_up.to_string()).await, 429);
    }
    let secrets = "select count(*) from tollgate.durable where key like '%alpha%' or key like '%made%'";
    assert_eq!(sqlx::query_scalar::<_, i64>(secrets).fetch_one(&world.pool).await.unwrap(), 0);
}

/// Tokens are looked up as in the documentation of `known`: two hundred of the right form, none of which was issued.
#[tokio::test]
async fn made_up_tokens_of_the_right_form_share_the_bucket_of_their_address() {
    let world = World::new().await;
    let issued: HashSet<&[u8]> = [b"user-1".as_slice(), b"user-2"].into();
    let key = Credential::bearer().known(move |token| issued.contains(token)).or(ClientAddress::peer());
    let layer = TollgateLayer::new(world.gate()).limit(Rule::new(ONE).key(key));
    let (served, client) = (Served::behind(layer).await, http_1());
    let mut served_tokens = Vec::new();
    for token in 1..=200 {
        let request = client.get(served.url("/")).bearer_auth(format!("user-{token}"));
        if request.send().await.unwrap().status() == StatusCode::OK {
            served_tokens.push(token);
        }
    }
    assert_eq!(served_tokens, [1, 2, 3], "the third is the address's one");
    assert_eq!(world.rows().await, 3);
}

/// Else a client would choose: the service may go by the first of the values, and the limit by none.
#[test]
fn a_credential_that_is_sent_twice_is_the_clients_mistake_and_the_remedy_is_logged() {
    let log = traced(async {
        let world = World::new().await;
        let token = || Credential::bearer().checked();
        let name = HeaderName::from_static("x-api-key");
        let keys: [fn() -> Rule; 4] = [
            || Rule::new(ONE).key(Credential::bearer().checked()),
            || Rule::new(ONE).key((ClientAddress::peer(), Credential::bearer().checked())),
            || Rule::new(ONE).key(Credential::bearer().known(|_| false).or(|_: &_| None::<u8>)),
            || Rule::new(ONE).key((|_: &_| None::<u8>).or(Credential::bearer().checked())),
        ];
        let send = async |rule: Rule, then, name: &'static str, value: &str| {
            let layer = TollgateLayer::new(world.gate()).missing_key(then).limit(rule);
            let served = Served::behind(layer).await;
            http_1().get(served.url("/")).header(name, value).header(name, value).send().await.unwrap()
        };
        for rule in keys {
            for then in [MissingKey::Fail, MissingKey::Pass, MissingKey::Share] {
                let response = send(rule(), then, "authorization", "Bearer secret-1").await;
                assert_eq!(response.status(), 400, "{then:?}");
                let body = json(response).await;
                assert_eq!(body["detail"], "the header field \"authorization\" occurs several times (send it once)");
            }
        }
        let by_header = Rule::new(ONE).key(Credential::header(name).checked());
        assert_eq!(send(by_header, MissingKey::Fail, "x-api-key", "secret-2").await.status(), 400);
        assert_eq!(world.rows().await, 0);
        let by_address = Rule::new(ONE).key(token().or(ClientAddress::peer()));
        assert_eq!(send(by_address, MissingKey::Fail, "authorization", "Bearer secret-3").await.status(), 200);
        assert_eq!(world.rows().await, 1, "another key that the service has named");
    });
    assert!(log.contains(".or(ClientAddress::peer())"), "{log}");
    assert!(!log.contains("secret"), "{log}");
}

#[tokio::test]
async fn a_request_without_a_key_is_treated_as_chosen() {
    let world = World::new().await;
    let layer = || TollgateLayer::new(world.gate()).limit(Rule::new(ONE).key(|_: &_| None::<u8>));
    let rejecting = Served::behind(layer()).await;
    let response = rejecting.get("/").await;
    assert_eq!(response.status(), 500);
    assert!(json(response).await["detail"].as_str().unwrap().contains("missing_key"));
    assert_eq!(Served::behind(layer().missing_key(MissingKey::Pass)).await.statuses("/", 2).await, [200, 200]);
    assert_eq!(Served::behind(layer().missing_key(MissingKey::Share)).await.statuses("/", 2).await, [200, 429]);
}
