//! The layer as any tower service sees it.

use std::convert::Infallible;
use std::future::{pending, ready};
use std::net::SocketAddr;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response, StatusCode};
use tollgate::tower::{Grpc, PeerAddr, Rule, TollgateLayer};
use tollgate::{Gate, HOUR, Limit};
use tower::{Layer, Service, ServiceExt, service_fn};

use super::served::left;
use crate::world::World;

const ONE: Limit = Limit::token_bucket("one", 1, HOUR);
const GUESSES: Limit = Limit::fixed_window("guesses", 3, Limit::MAX_PERIOD);
const US: (&str, &str) = ("ip", "192.0.2.1");

/// A body that comes from nowhere, as tonic's.
#[derive(Debug, Default)]
struct Opaque;

fn request<B>(body: B) -> Request<B> {
    let mut request = Request::new(body);
    request.extensions_mut().insert(PeerAddr(SocketAddr::from(([192, 0, 2, 1], 4711))));
    request
}

#[tokio::test]
async fn any_body_will_do_and_grpc_is_refused_in_its_own_words() {
    let world = World::new().await;
    let layer = TollgateLayer::new(Gate::new(world.pool.clone())).limit(ONE).refuse_with(Grpc);
    let inner = service_fn(|_: Request<Opaque>| ready(Ok::<_, Infallible>(Response::new(Opaque))));
    let service = layer.layer(inner);
    let served = service.clone().oneshot(request(Opaque)).await.unwrap();
    assert_eq!(served.headers().get("grpc-status"), None);
    let refused = service.oneshot(request(Opaque)).await.unwrap();
    assert_eq!(refused.status(), 200);
    let headers = refused.headers();
    assert_eq!(
        [&headers["grpc-status"], &headers["retry-after"], &headers["content-type"]],
        ["8", "3600", "application/grpc"]
    );
    assert!(headers["grpc-message"].to_str().unwrap().starts_with("limit \"one\" exhausted"));
}

/// Is ready once it was asked, and each clone has to be asked anew.
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
    let layer = TollgateLayer::new(Gate::new(world.pool.clone())).limit(GUESSES);
    let mut service = layer.layer(Once::default());
    for _ in 0..2 {
        let response = service.ready().await.unwrap().call(request(())).await.unwrap();
        assert_eq!(response.status(), 200);
    }
}

/// Returns once the gate has counted so much.
async fn until_left(gate: &Gate, expected: i64) {
    let counted = async { while left(gate, &GUESSES, US).await != expected {} };
    tokio::time::timeout(Duration::from_mins(1), counted).await.unwrap();
}

#[tokio::test]
async fn a_response_that_never_came_counts() {
    let world = World::new().await;
    let gate = Gate::new(world.pool.clone());
    let failed = Rule::new(GUESSES).charge_if(|response| response.status == StatusCode::UNAUTHORIZED);
    let layer = TollgateLayer::new(gate.clone()).limit(failed);

    let (begun, mut has_begun) = tokio::sync::mpsc::unbounded_channel();
    let never = layer.layer(service_fn(move |_: Request<()>| {
        begun.send(()).unwrap();
        pending::<Result<Response<String>, Infallible>>()
    }));
    let client = tokio::spawn(never.oneshot(request(())));
    has_begun.recv().await.unwrap();
    client.abort();
    until_left(&gate, 2).await;

    let fails = layer.layer(service_fn(|_: Request<()>| ready(Err::<Response<String>, _>("broken"))));
    assert_eq!(fails.oneshot(request(())).await.unwrap_err(), "broken");
    until_left(&gate, 1).await;
}

#[tokio::test]
async fn what_is_never_answered_is_not_given_back() {
    let world = World::new().await;
    let gate = Gate::new(world.pool.clone());
    let layer = TollgateLayer::new(gate.clone()).limit(Rule::new(GUESSES).refund_if(|_| true));
    let fails = layer.layer(service_fn(|_: Request<()>| ready(Err::<Response<String>, _>("broken"))));
    assert_eq!(fails.oneshot(request(())).await.unwrap_err(), "broken");
    assert_eq!(left(&gate, &GUESSES, US).await, 2);
}
