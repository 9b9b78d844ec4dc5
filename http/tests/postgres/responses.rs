//! Charges that depend on the response.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use axum::Router;
use axum::http::{HeaderMap, HeaderName, StatusCode};
use axum::routing::{get, post};
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::Semaphore;
use tollgate::{Gate, Limit, OnFailure};
use tollgate_http::tower::{Rule, TollgateLayer};
use tollgate_http::{Fields, Format};

use crate::served::{Served, field, http_1, left};
use crate::stage::{nowhere, patient, soon};
use crate::world::{World, second};

const GUESSES: Limit = Limit::fixed_window("guesses", 3, Limit::MAX_PERIOD);
const US: (&str, &str) = ("ip", "127.0.0.1");

/// A log-in whose password is "right".
async fn log_in(password: String) -> StatusCode {
    if password == "right" { StatusCode::OK } else { StatusCode::UNAUTHORIZED }
}

async fn served(layer: TollgateLayer) -> Served {
    Served::new(Router::new().route("/login", post(log_in)).layer(layer)).await
}

/// The status, and the tokens left by its fields.
async fn guess(served: &Served, password: &'static str) -> (u16, String) {
    let response = http_1().post(served.url("/login")).body(password).send().await.unwrap();
    let told = field(&response, "ratelimit").split(';').nth(1).unwrap_or_default().to_owned();
    (response.status().as_u16(), told)
}

#[tokio::test]
async fn only_failed_log_ins_are_charged() {
    let world = World::new().await;
    let gate = world.gate();
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
    let gate = world.gate();
    let all_but_good = Rule::new(GUESSES).refund_if(|response| response.status.is_success());
    let served = served(TollgateLayer::new(gate.clone()).limit(all_but_good)).await;
    let story = [("right", 200, "r=3"), ("wrong", 401, "r=2"), ("right", 200, "r=2"), ("wrong", 401, "r=1")];
    for (place, (password, status, told)) in story.into_iter().enumerate() {
        assert_eq!(guess(&served, password).await, (status, told.to_owned()), "at {place}");
    }
    assert_eq!(left(&gate, &GUESSES, US).await, 1);
}

const TOKENS: Limit = Limit::fixed_window("tokens", 100, Limit::MAX_PERIOD);
const HELD: Limit = Limit::concurrency("held", 1_000, tollgate::DAY);

/// A model whose responses report the tokens that they used: the requests say how many.
#[tokio::test]
async fn a_response_tells_what_it_cost() {
    let world = World::new().await;
    let gate = world.gate();
    let used = |response: &http::response::Parts| {
        let used = response.headers.get("x-used")?.to_str().ok()?;
        Some(used.parse().unwrap_or(f64::NAN))
    };
    // Two rules about one bucket are one charge, and the other limit's charge is no part of it.
    let estimate = Rule::new(TOKENS).cost(10).settle_by(used);
    let layer = TollgateLayer::new(gate.clone()).limit(estimate).limit(Rule::new(TOKENS).cost(1)).limit(HELD);
    let answer = |used: String| async move {
        let used = (!used.is_empty()).then(|| (HeaderName::from_static("x-used"), used.parse().unwrap()));
        HeaderMap::from_iter(used)
    };
    let served = Served::new(Router::new().route("/login", post(answer)).layer(layer)).await;
    let story = [("4", "r=95", 95), ("0", "r=94", 94), ("", "r=83", 83), ("-1", "r=72", 72), ("60.5", "r=10", 10)];
    for (said, told, rest) in story {
        assert_eq!(guess(&served, said).await, (200, told.to_owned()), "{said}");
        assert_eq!(left(&gate, &TOKENS, US).await, rest, "{said}");
    }
    assert_eq!(guess(&served, "0").await, (429, "r=10".to_owned()));
    gate.credit(TOKENS.key(US)).await.unwrap();
    assert_eq!(guess(&served, "40").await, (200, "r=0".to_owned()));
    assert_eq!(left(&gate, &TOKENS, US).await, -29, "more than was there is a debt");
}

/// Nobody has computed when the tokens of the answer beyond its charge are back.
#[tokio::test]
async fn a_full_reset_is_left_out_where_an_answer_costs_more_than_its_charge() {
    let world = World::new().await;
    let used = |response: &http::response::Parts| response.headers["x-used"].to_str().ok()?.parse::<u32>().ok();
    let layer = TollgateLayer::new(world.gate())
        .limit(Rule::new(TOKENS).cost(10).settle_by(used))
        .fields(Fields::new(Format::XRateLimit).full_reset());
    let answer = |used: String| async move { [("x-used", used)] };
    let served = Served::new(Router::new().route("/login", post(answer)).layer(layer)).await;
    for (used, is_known) in [("10", true), ("4", true), ("11", false)] {
        let response = http_1().post(served.url("/login")).body(used).send().await.unwrap();
        assert_eq!(response.headers().contains_key("x-ratelimit-reset"), is_known, "{used}");
    }
}

/// Tokens that came back with the next window are not given back once more.
#[tokio::test]
async fn a_window_that_is_over_gives_nothing_back() {
    let world = World::new().await;
    let seconds = Arc::new(AtomicU32::new(0));
    let now = seconds.clone();
    let gate = patient(&world.pool).clock(move || second(now.load(Ordering::SeqCst).into())).build();
    let per_minute = Limit::fixed_window("per_minute", 3, tollgate::MINUTE);
    let layer = TollgateLayer::new(gate.clone()).limit(Rule::new(per_minute.clone()).refund_if(|_| true));
    let (others, all) = (gate.clone(), per_minute.key(US).cost(3));
    let handler = move || async move {
        seconds.store(60, Ordering::SeqCst);
        others.consume(all).await.unwrap().granted().unwrap();
    };
    let served = Served::new(Router::new().route("/login", post(handler)).layer(layer)).await;
    assert_eq!(guess(&served, "").await.0, 200);
    assert_eq!(left(&gate, &per_minute, US).await, 0);
}

/// Fails where the first five all pass, on the last three tokens.
#[tokio::test]
async fn requests_that_are_under_way_count() {
    let world = World::new().await;
    let gate = world.gate();
    let failed = Rule::new(GUESSES).charge_if(|response| response.status == StatusCode::UNAUTHORIZED);
    let end = Arc::new(Semaphore::new(0));
    let handler = {
        let end = end.clone();
        move || async move {
            end.acquire().await.unwrap().forget();
            StatusCode::UNAUTHORIZED
        }
    };
    let layer = TollgateLayer::new(gate.clone()).limit(failed);
    let served = Served::new(Router::new().route("/login", post(handler)).layer(layer)).await;
    let mut guesses: FuturesUnordered<_> = (0..5).map(|_| guess(&served, "wrong")).collect();
    for _ in 0..2 {
        assert_eq!(soon(guesses.next()).await.unwrap().0, 429, "three are under way, and nobody has been told");
    }
    end.add_permits(3);
    assert_eq!(guesses.map(|(status, _)| status).collect::<Vec<_>>().await, [401; 3]);
    assert_eq!(left(&gate, &GUESSES, US).await, 0, "and no debt");
}

/// A database that is not there: nobody guesses, unless the gate is open.
#[tokio::test]
async fn a_guess_that_cannot_be_charged_is_not_tried_unless_the_gate_is_open() {
    for (policy, expected) in [(OnFailure::Closed, 503), (OnFailure::Open, 401)] {
        let gate = patient(&nowhere()).on_failure(policy).build();
        let failed = Rule::new(GUESSES).refund_if(|response| response.status.is_success());
        let served = served(TollgateLayer::new(gate).limit(failed)).await;
        assert_eq!(guess(&served, "wrong").await.0, expected);
    }
}

/// The work is done: an answer that says otherwise would have it done twice.
#[tokio::test]
async fn a_response_is_sent_though_its_charge_cannot_be_given_back() {
    let world = World::new().await;
    let pool = world.pool.clone();
    let layer = TollgateLayer::new(world.gate()).limit(Rule::new(GUESSES).refund_if(|_| true));
    let handler = move || {
        let pool = pool.clone();
        async move { pool.close().await }
    };
    let served = Served::new(Router::new().route("/login", post(handler)).layer(layer)).await;
    assert_eq!(guess(&served, "right").await.0, 200);
}

/// Two at once, and nothing lapses while the test runs.
const AT_ONCE: Limit = Limit::concurrency("at_once", 2, tollgate::DAY);

/// A service that begins to answer at once, and ends when the semaphore lets it.
async fn streaming(gate: &Gate) -> (Served, Arc<Semaphore>) {
    let end = Arc::new(Semaphore::new(0));
    let handler = {
        let end = end.clone();
        move || async move {
            let rest = async move {
                end.acquire_owned().await.unwrap().forget();
                Ok::<_, std::io::Error>("rest")
            };
            let begin = futures_util::stream::iter([Ok("begin, ")]);
            axum::body::Body::from_stream(begin.chain(futures_util::stream::once(rest)))
        }
    };
    let limits = Rule::new(AT_ONCE).refund_if(|_| true);
    let layer = TollgateLayer::new(gate.clone()).limit(limits);
    (Served::new(Router::new().route("/stream", get(handler)).layer(layer)).await, end)
}

#[tokio::test]
async fn what_is_held_is_released_when_the_response_is_sent_to_its_end() {
    let world = World::new().await;
    let gate = patient(&world.pool).build();
    let (served, end) = streaming(&gate).await;
    let [first, second] = [served.get("/stream").await, served.get("/stream").await];
    assert_eq!([first.status(), second.status()], [StatusCode::OK; 2]);
    assert_eq!(field(&second, "ratelimit-policy"), r#""at_once";q=2"#);
    let refused = served.get("/stream").await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    end.add_permits(1);
    assert_eq!(soon(first.text()).await.unwrap(), "begin, rest");
    // Nothing else would let it in.
    let lease = soon(gate.acquire_within(AT_ONCE.key(US), tollgate::HOUR)).await.unwrap().granted().unwrap();
    lease.release().await.unwrap();
    // A client that goes away.
    drop(second);
    let both = gate.acquire_within(AT_ONCE.key(US).cost(2), tollgate::HOUR);
    soon(both).await.unwrap().granted().unwrap().release().await.unwrap();
}
