//! Calls to another service, which follow its answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::any;
use tollgate::migrate::{Callers, grants};
use tollgate::{DAY, Effect, Gate, HOUR, Key, Limit, Overrides, SECOND, SlowDown};
use tollgate_http::NotServed;
use tollgate_http::tower::{OutgoingError, OutgoingLayer};
use tower::{Service, ServiceBuilder, ServiceExt, service_fn};

use crate::served::{Served, http_1};
use crate::traced::traced;
use crate::world::{SERVICE, World};

const THEIRS: Limit = Limit::token_bucket("theirs", 1_000, SECOND);

/// Another service, which counts its calls and answers `/429?3600` by this status and `Retry-After`.
async fn theirs(calls: &Arc<AtomicUsize>) -> Served {
    let calls = calls.clone();
    let answer = any(async move |request: axum::extract::Request| {
        calls.fetch_add(1, Ordering::SeqCst);
        let status: u16 = request.uri().path()[1..].parse().unwrap();
        let retry_after =
            request.uri().query().map(|seconds| ("retry-after".parse().unwrap(), seconds.parse().unwrap()));
        (StatusCode::from_u16(status).unwrap(), HeaderMap::from_iter(retry_after))
    });
    Served::new(Router::new().fallback(answer)).await
}

/// Sends a call through the layer, as a client that speaks HTTP would.
async fn send(layer: OutgoingLayer, url: String) -> Result<u16, OutgoingError<reqwest::Error>> {
    let client = service_fn(async |url: String| http_1().get(url).send().await.map(http::Response::from));
    let mut client = ServiceBuilder::new().layer(layer).service(client);
    client.ready().await?.call(url).await.map(|response| response.status().as_u16())
}

async fn layer(world: &World) -> (OutgoingLayer, Overrides) {
    let overrides = Overrides::watch(world.pool.clone()).await.unwrap();
    let gate = Gate::builder(world.pool.clone()).overrides(&overrides).build();
    let layer = OutgoingLayer::new(gate, overrides.clone(), THEIRS.global()).timeout(SECOND);
    (layer.slow_down(SlowDown::new().recovers(DAY)), overrides)
}

#[tokio::test]
async fn trouble_slows_everybody_down_and_retry_after_pauses_everybody() {
    let world = World::new().await;
    world.sql(&grants(SERVICE, Callers::Reporters)).await;
    let calls = Arc::default();
    let theirs = theirs(&calls).await;
    let (layer, overrides) = layer(&world).await;
    for well in [200, 404, 500, 502] {
        assert_eq!(send(layer.clone(), theirs.url(&format!("/{well}?60"))).await.unwrap(), well);
    }
    assert!(overrides.all().is_empty());

    assert_eq!(send(layer.clone(), theirs.url("/503")).await.unwrap(), 503);
    let slowed = overrides.all();
    assert!(matches!(slowed[..], [ref said] if said.effect == Effect::Slowed { share: 700_000 }), "{slowed:?}");
    assert_eq!(send(layer.clone(), theirs.url("/429?3600")).await.unwrap(), 429);
    let [pause, _] = &overrides.all()[..] else { panic!("{:?}", overrides.all()) };
    assert_eq!((&*pause.label, pause.effect), ("pause", Effect::Deny));
    assert!(pause.ends_at.is_some_and(|end| end > pause.starts_at + HOUR - SECOND));

    // Another process has heard of it, and does not even call.
    let (other, heard) = self::layer(&world).await;
    assert!(heard.applied(&THEIRS, &Key::GLOBAL).is_some_and(|applied| applied.ruling.is_some()));
    let before = calls.load(Ordering::SeqCst);
    let paused = send(other, theirs.url("/200")).await;
    assert!(matches!(paused, Err(OutgoingError::NotSent(NotServed::Denied(_)))), "{paused:?}");
    assert_eq!((before, calls.load(Ordering::SeqCst)), (6, 6));
}

/// The answer of the other service is there, whether it could be reported or not.
#[test]
fn an_answer_is_returned_even_if_nobody_may_report() {
    let events = traced(async {
        let world = World::new().await;
        let calls = Arc::default();
        let theirs = theirs(&calls).await;
        let (layer, overrides) = layer(&world).await;
        assert_eq!(send(layer.clone(), theirs.url("/429?1")).await.unwrap(), 429);
        assert!(overrides.all().is_empty());
        let nowhere = send(layer, "http://127.0.0.1:9/".to_owned()).await;
        assert!(matches!(nowhere, Err(OutgoingError::Client(_))), "{nowhere:?}");
    });
    assert!(events.contains("trouble of another service is not reported"), "{events}");
}
