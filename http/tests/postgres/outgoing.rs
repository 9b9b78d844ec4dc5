//! Calls to another service, which follow its answers.

use std::error::Error;
use std::future::ready;
use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::http::request::Parts;
use axum::http::{HeaderMap, Request, Response, StatusCode};
use axum::routing::any;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use sqlx::AssertSqlSafe;
use tollgate::migrate::{Callers, grants};
use tollgate::{
    DAY, Effect, Gate, HOUR, Key, Limit, MINUTE, NewOverride, Override, OverrideError, Overrides, SECOND, SlowDown,
};
use tollgate_http::NotServed;
use tollgate_http::tower::{OutgoingError, OutgoingLayer, Rule};
use tower::{Service, ServiceBuilder, ServiceExt, service_fn};

use crate::served::{Served, http_1};
use crate::traced::traced;
use crate::world::{OWNER, SERVICE, World, one_connection, soon};

const THEIRS: Limit = Limit::token_bucket("theirs", 1_000, SECOND);

/// Another service, which counts its calls and answers `/403?3600` by this status and `Retry-After`.
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
    let client =
        service_fn(async |call: Request<()>| http_1().get(call.uri().to_string()).send().await.map(Response::from));
    let mut client = ServiceBuilder::new().layer(layer).service(client);
    let call = Request::get(url).body(()).unwrap();
    client.ready().await?.call(call).await.map(|response| response.status().as_u16())
}

/// Reports go over one connection, so one comes after another.
async fn layer(world: &World) -> (OutgoingLayer, Overrides) {
    let overrides = Overrides::watch(one_connection(world.url().parse().unwrap()).await).await.unwrap();
    let gate = Gate::builder(world.pool.clone()).overrides(&overrides).build();
    let layer = OutgoingLayer::new(gate, overrides.clone(), THEIRS).timeout(SECOND);
    (layer.slow_down(SlowDown::new().percent(70).recovers(DAY).forgets(Duration::ZERO)), overrides)
}

/// Sends calls until the report of one is known. A machine that is busy may give one up.
async fn heard(layer: &OutgoingLayer, url: &str, overrides: &Overrides, label: &str) -> Override {
    until(async || {
        let _ = send(layer.clone(), url.to_owned()).await;
        overrides.all().into_iter().find(|said| said.label == label)
    })
    .await
}

async fn until<T>(mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    soon(async {
        loop {
            if let Some(told) = ask().await {
                return told;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await
}

#[tokio::test]
async fn trouble_slows_everybody_down_and_retry_after_pauses_everybody() {
    let world = World::new().await;
    world.sql(&grants(SERVICE, Callers::Reporters)).await;
    let calls = Arc::default();
    let theirs = theirs(&calls).await;
    let (layer, overrides) = layer(&world).await;
    for well in ["200?60", "301?60", "404", "500", "502"] {
        send(layer.clone(), theirs.url(&format!("/{well}"))).await.unwrap();
    }
    assert!(overrides.all().is_empty());

    assert_eq!(
        heard(&layer, &theirs.url("/503"), &overrides, "slowdown").await.effect,
        Effect::Slowed { share: 700_000 }
    );
    let pause = heard(&layer, &theirs.url("/403?3600"), &overrides, "pause").await;
    assert_eq!(pause.effect, Effect::Deny);
    let lasts = pause.ends_at.unwrap() - pause.starts_at;
    assert!(
        (4 * MINUTE..=5 * MINUTE + SECOND).contains(&lasts.to_std().unwrap()),
        "no longer than five minutes: {lasts}"
    );

    // Another process has heard of it, and does not even call.
    let (other, heard) = self::layer(&world).await;
    assert!(heard.applied(&THEIRS, &Key::GLOBAL).is_some_and(|applied| applied.ruling.is_some()));
    let before = calls.load(Ordering::SeqCst);
    let paused = send(other, theirs.url("/200")).await;
    assert!(matches!(paused, Err(OutgoingError::NotSent(NotServed::Denied(_)))), "{paused:?}");
    assert_eq!(before, calls.load(Ordering::SeqCst));
}

/// The reports of a layer come in order: one that should not be there would leave a share of 5 %, or a pause.
#[tokio::test]
async fn each_sign_of_trouble_can_be_off_or_on() {
    let world = World::new().await;
    world.sql(&grants(SERVICE, Callers::Reporters)).await;
    let theirs = theirs(&Arc::default()).await;
    let (layer, overrides) = layer(&world).await;
    let deaf = layer
        .clone()
        .slow_down(SlowDown::new().forgets(Duration::ZERO).percent(1))
        .heed_answers(false)
        .heed_errors(false);
    let fails = |layer: &OutgoingLayer, kind: ErrorKind| {
        let client = service_fn(move |_: Request<()>| ready(Err::<Response<()>, _>(std::io::Error::from(kind))));
        ServiceBuilder::new().layer(layer.clone()).service(client).oneshot(Request::default())
    };
    send(deaf.clone(), theirs.url("/503?60")).await.unwrap();
    for kind in [ErrorKind::TimedOut, ErrorKind::ConnectionReset] {
        assert!(matches!(fails(&deaf, kind).await, Err(OutgoingError::Client(_))));
    }
    assert!(
        fails(
            &layer.clone().slow_down(SlowDown::new().forgets(Duration::ZERO).percent(1)),
            ErrorKind::NetworkUnreachable
        )
        .await
        .is_err()
    );
    let forgets = async || {
        assert!(NewOverride::remove(&mut world.connect_as(OWNER).await, "theirs", None, "slowdown").await.unwrap());
        until(async || overrides.all().is_empty().then_some(())).await;
    };
    let slowed = async |call: &dyn Fn() -> BoxFuture<'static, ()>| {
        let said = until(async || {
            call().await;
            overrides.all().pop()
        });
        assert_eq!(said.await.effect, Effect::Slowed { share: 700_000 });
        forgets().await;
    };
    let also = deaf
        .clone()
        .slow_down(SlowDown::new().percent(70).forgets(Duration::ZERO))
        .trouble_if(|answer| answer.status == 500);
    let url = theirs.url("/500");
    slowed(&|| send(also.clone(), url.clone()).map(drop).boxed()).await;
    for kind in [ErrorKind::ConnectionRefused, ErrorKind::BrokenPipe] {
        slowed(&|| fails(&layer, kind).map(drop).boxed()).await;
    }
    // The answer comes once the others know that it is late.
    let (late, known) = (
        deaf.slow_down(SlowDown::new().percent(70).forgets(Duration::ZERO)).heed_latency(Duration::ZERO),
        overrides.clone(),
    );
    let client = service_fn(move |_: Request<()>| {
        let known = known.clone();
        async move {
            while known.all().is_empty() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Ok::<_, std::io::Error>(Response::new(()))
        }
    });
    let client = ServiceBuilder::new().layer(late).service(client);
    slowed(&|| client.clone().oneshot(Request::default()).map(|answer| drop(answer.unwrap())).boxed()).await;
}

#[tokio::test]
async fn a_call_has_keys_and_costs_and_several_limits() {
    const AT_ONCE: Limit = Limit::concurrency("at_once", 2, HOUR);
    const SPENT: Limit = Limit::token_bucket("spent", 100, DAY);
    let world = World::new().await;
    world.sql(&grants(SERVICE, Callers::Reporters)).await;
    let (gate, overrides) = (world.gate(), Overrides::watch(world.pool.clone()).await.unwrap());
    let account = |call: &Parts| Some(call.headers.get("account")?.to_str().ok()?.to_owned());
    let spent = Rule::new(SPENT)
        .cost_by(|call| if call.uri.path() == "/search" { 5 } else { 1 })
        .refund_if(|answer| answer.status == StatusCode::SERVICE_UNAVAILABLE);
    let layer =
        OutgoingLayer::new(gate.clone(), overrides.clone(), Rule::new(THEIRS).key(account)).limit(spent).limit(AT_ONCE);
    let client = service_fn(|call: Request<()>| {
        let status = if call.uri().path() == "/503" { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
        ready(Ok::<_, std::io::Error>(Response::builder().status(status).body(String::new()).unwrap()))
    });
    let client = ServiceBuilder::new().layer(layer).service(client);
    let send = |account: &str, path: &str| {
        let call = Request::get(path).header("account", account).body(()).unwrap();
        client.clone().oneshot(call)
    };
    let left = async |limit: Limit| gate.balance(limit.global()).await.unwrap().remaining.whole();
    let answer = send("ada", "/search").await.unwrap();
    assert_eq!((left(SPENT).await, left(AT_ONCE).await), (95, 1));
    drop(answer);
    until(async || (left(AT_ONCE).await == 2).then_some(())).await;

    let said = until(async || {
        assert_eq!(send("ada", "/503").await.unwrap().status(), 503);
        overrides.all().pop()
    });
    let said = said.await;
    assert_eq!((&*said.limit, said.key), ("theirs", Some(Key::new("ada").unwrap())));
    // A machine that is busy may give a charge back behind the answer.
    until(async || (left(SPENT).await == 95).then_some(())).await;
    let nobody = client.clone().oneshot(Request::default()).await;
    assert!(matches!(nobody, Err(OutgoingError::NotSent(NotServed::NoKey(_)))), "{nobody:?}");
}

/// Somebody holds the lock of the limit's reports meanwhile.
#[test]
fn an_answer_does_not_wait_for_its_report_which_gives_up() {
    let events = traced(async {
        let world = World::new().await;
        world.sql(&grants(SERVICE, Callers::Reporters)).await;
        let theirs = theirs(&Arc::default()).await;
        let (layer, overrides) = layer(&world).await;
        let (mut holder, turn) = (
            world.connect_as(OWNER).await,
            "pg_catalog.hash_record_extended(row('tollgate.overrides'::text, \
                                   'theirs'::text, 'reports'::text), 0)",
        );
        let sql = |function| AssertSqlSafe(format!("select pg_catalog.pg_advisory_{function}({turn})"));
        sqlx::query(sql("lock")).execute(&mut holder).await.unwrap();
        assert_eq!(send(layer.clone(), theirs.url("/503")).await.unwrap(), 503);
        tracing::info!("the caller has his answer");
        tokio::task::yield_now().await;
        let given_up = overrides.slow_down(THEIRS.global(), &SlowDown::new()).await.unwrap_err();
        assert!(given_up.source().is_some_and(|error| error.to_string().contains("lock timeout")), "{given_up:?}");
        sqlx::query(sql("unlock")).execute(&mut holder).await.unwrap();
        heard(&layer, &theirs.url("/503"), &overrides, "slowdown").await;
    });
    let place = |event| events.find(event).unwrap();
    assert!(place("the caller has his answer") < place("trouble of another service is not reported"), "{events}");
}

/// The answer of the other service is there, whether it could be reported or not.
#[test]
fn an_answer_is_returned_even_if_nobody_may_report() {
    let events = traced(async {
        let world = World::new().await;
        let theirs = theirs(&Arc::default()).await;
        let (layer, overrides) = layer(&world).await;
        assert_eq!(send(layer.clone(), theirs.url("/429?1")).await.unwrap(), 429);
        tokio::task::yield_now().await;
        let denied = overrides.slow_down(THEIRS.global(), &SlowDown::new()).await;
        assert!(matches!(denied, Err(OverrideError::Setup { .. })), "{denied:?}");
        assert!(overrides.all().is_empty());
        let nowhere = send(layer, "http://127.0.0.1:9/".to_owned()).await;
        assert!(matches!(nowhere, Err(OutgoingError::Client(_))), "{nowhere:?}");
    });
    assert!(events.contains("trouble of another service is not reported"), "{events}");
}
