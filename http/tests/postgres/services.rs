//! The layer as any tower service sees it.

use std::convert::Infallible;
use std::future::{pending, ready};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use chrono::DateTime;
use futures_util::future::BoxFuture;
use http::{Request, Response, StatusCode};
use sqlx::{Postgres, Transaction};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::JoinSet;
use tollgate::{Gate, HOUR, Limit};
use tollgate_http::NotServed;
use tollgate_http::tower::{Body, Grpc, PeerAddr, Rule, TollgateLayer};
use tower::util::BoxCloneService;
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::served::left;
use crate::stage::{nowhere, patient, soon};
use crate::world::World;

const ONE: Limit = Limit::token_bucket("one", 1, HOUR);
const GUESSES: Limit = Limit::fixed_window("guesses", 3, Limit::MAX_PERIOD);
const US: (&str, &str) = ("ip", "192.0.2.1");

/// A body that comes from nowhere, as tonic's.
#[derive(Debug, Default)]
struct Opaque;

pub(crate) fn request<B>(body: B) -> Request<B> {
    let mut request = Request::new(body);
    request.extensions_mut().insert(PeerAddr(SocketAddr::from(([192, 0, 2, 1], 4711))));
    request
}

#[tokio::test]
async fn any_body_will_do_and_grpc_is_refused_in_its_own_words() {
    let world = World::new().await;
    let gate = patient(&world.pool).clock(|| DateTime::UNIX_EPOCH).build();
    let layer = TollgateLayer::new(gate).limit(ONE).respond_with(Grpc);
    let inner = service_fn(|_: Request<Opaque>| ready(Ok::<_, Infallible>(Response::new(Opaque))));
    let service = layer.layer(inner);
    let served = service.clone().oneshot(request(Opaque)).await.unwrap();
    assert_eq!(served.headers().get("grpc-status"), None);
    assert_eq!(served.headers().get("cache-control"), None, "whether a grant may be stored the service says");
    let refused = service.oneshot(request(Opaque)).await.unwrap();
    assert_eq!(refused.status(), 200);
    let headers = refused.headers();
    assert_eq!(
        [&headers["grpc-status"], &headers["retry-after"], &headers["content-type"], &headers["cache-control"]],
        ["8", "3600", "application/grpc", "no-store"]
    );
    assert!(headers["grpc-message"].to_str().unwrap().starts_with("limit \"one\" exhausted"));
}

#[tokio::test]
async fn whatever_is_not_served_stays_out_of_caches_unless_its_response_says_otherwise() {
    for (retry_after, own, expected) in
        [(None, None, "no-store"), (Some("9"), None, "no-store"), (Some("9"), Some("max-age=9"), "max-age=9")]
    {
        let respond = move |_: &NotServed| {
            let fields = [("retry-after", retry_after), ("cache-control", own)];
            let told = fields.into_iter().filter_map(|(name, value)| Some((name, value?)));
            told.fold(Response::builder(), |response, (name, value)| response.header(name, value)).body(Opaque).unwrap()
        };
        // Nobody answers there.
        let layer = TollgateLayer::new(patient(&nowhere()).build()).limit(ONE).respond_with(respond);
        let inner = service_fn(|_: Request<Opaque>| ready(Ok::<_, Infallible>(Response::new(Opaque))));
        let refused = layer.layer(inner).oneshot(request(Opaque)).await.unwrap();
        assert_eq!(refused.headers()["cache-control"], expected, "{retry_after:?}");
    }
}

/// A service that is ready only after a poll; each clone has to be polled anew.
#[derive(Debug, Default)]
struct Once {
    ready: bool,
}

impl Clone for Once {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl Service<Request<()>> for Once {
    type Response = Response<String>;
    type Error = &'static str;
    type Future = std::future::Ready<Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        ready(if self.ready { Ok(Response::default()) } else { Err("not ready") })
    }
}

#[tokio::test]
async fn the_service_that_is_called_is_the_one_that_was_ready() {
    let world = World::new().await;
    let layer = TollgateLayer::new(world.gate()).limit(GUESSES);
    let mut service = layer.layer(Once::default());
    for _ in 0..2 {
        let response = service.ready().await.unwrap().call(request(())).await.unwrap();
        assert_eq!(response.status(), 200);
    }
}

/// Returns once the gate has counted so much.
async fn until_left(gate: &Gate, expected: i64) {
    soon(async { while left(gate, &GUESSES, US).await != expected {} }).await;
}

#[tokio::test]
async fn a_response_that_never_came_is_not_given_back() {
    let world = World::new().await;
    let gate = world.gate();
    let layer = TollgateLayer::new(gate.clone()).limit(Rule::new(GUESSES).refund_if(|_| true));

    let (begun, mut has_begun) = unbounded_channel();
    let never = layer.layer(service_fn(move |_: Request<()>| {
        begun.send(()).unwrap();
        pending::<Result<Response<String>, Infallible>>()
    }));
    let client = tokio::spawn(never.oneshot(request(())));
    has_begun.recv().await.unwrap();
    client.abort();
    assert!(client.await.unwrap_err().is_cancelled());
    assert_eq!(left(&gate, &GUESSES, US).await, 2);

    let fails = layer.layer(service_fn(|_: Request<()>| ready(Err::<Response<String>, _>("broken"))));
    assert_eq!(fails.oneshot(request(())).await.unwrap_err(), "broken");
    assert_eq!(left(&gate, &GUESSES, US).await, 1);
}

/// A service whose responses are given back, and leave the row held: by transactions that arrive at the channel.
fn holding(world: &World, gate: &Gate) -> (Holding, UnboundedReceiver<Transaction<'static, Postgres>>) {
    let (hold, transactions) = unbounded_channel();
    let pool = world.pool.clone();
    let inner = move |_: Request<()>| -> BoxFuture<'static, Result<Response<String>, Infallible>> {
        let (pool, hold) = (pool.clone(), hold.clone());
        Box::pin(async move {
            let mut tx = pool.begin().await.unwrap();
            sqlx::query("select from tollgate.durable for update").execute(&mut *tx).await.unwrap();
            hold.send(tx).unwrap();
            Ok(Response::default())
        })
    };
    let layer = TollgateLayer::new(gate.clone()).limit(Rule::new(GUESSES).refund_if(|_| true));
    (BoxCloneService::new(layer.layer(service_fn(inner))), transactions)
}

type Holding = BoxCloneService<Request<()>, Response<Body<String>>, Infallible>;

#[tokio::test]
async fn what_is_given_back_outlives_the_client() {
    let world = World::new().await;
    let gate = patient(&world.pool).build();
    let (service, mut held) = holding(&world, &gate);
    let client = tokio::spawn(service.oneshot(request(())));
    let tx = soon(held.recv()).await.unwrap();
    world.until_anyone_is_blocked().await;
    client.abort();
    // Unless it did not wait until then.
    if let Err(gone) = client.await {
        assert!(gone.is_cancelled());
    }
    tx.rollback().await.unwrap();
    until_left(&gate, 3).await;
}

#[tokio::test]
async fn what_cannot_be_given_back_at_once_is_tried_again_and_the_response_does_not_wait() {
    let world = World::new().await;
    let gate = patient(&world.pool).lock_timeout(Duration::from_millis(1)).build();
    let (service, mut held) = holding(&world, &gate);
    let response = soon(service.oneshot(request(()))).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    soon(held.recv()).await.unwrap().rollback().await.unwrap();
    until_left(&gate, 3).await;
}

/// Two processes, as it were, and two thousand guesses at the same time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_thousand_guesses_at_once_no_more_are_verified_than_the_limit_allows() {
    let world = World::new().await;
    let verified = Arc::new(AtomicU32::new(0));
    let services = [(); 2].map(|()| {
        let failed = Rule::new(GUESSES).charge_if(|response| response.status == StatusCode::UNAUTHORIZED);
        let verified = verified.clone();
        TollgateLayer::new(patient(&world.pool).build()).limit(failed).layer(service_fn(move |_: Request<()>| {
            verified.fetch_add(1, Ordering::SeqCst);
            let mut response = Response::new(String::new());
            *response.status_mut() = StatusCode::UNAUTHORIZED;
            ready(Ok::<_, Infallible>(response))
        }))
    });
    let mut guesses = JoinSet::new();
    for service in services.iter().cycle().take(2_000) {
        guesses.spawn(service.clone().oneshot(request(())));
    }
    let statuses = guesses.join_all().await.into_iter().map(|response| response.unwrap().status());
    let refused = statuses.filter(|status| *status == StatusCode::TOO_MANY_REQUESTS).count();
    assert_eq!((verified.load(Ordering::SeqCst), refused), (3, 1_997));
}
