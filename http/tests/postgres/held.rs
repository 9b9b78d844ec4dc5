//! Who holds a slot of a concurrency limit, and for how long.

use std::convert::Infallible;
use std::future::{pending, ready};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use axum::Router;
use axum::body::{Bytes, HttpBody};
use axum::routing::any;
use futures_util::stream::repeat_with;
use http::{Request, Response};
use http_body::Frame;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc::unbounded_channel;
use tollgate::{Gate, HOUR, Limit};
use tollgate_http::NotServed;
use tollgate_http::tower::{Body, TollgateLayer};
use tower::{Layer, ServiceExt, service_fn};

use crate::served::Served;
use crate::services::request;
use crate::stage::{patient, soon};
use crate::world::World;

const US: (&str, &str) = ("ip", "192.0.2.1");

/// Two at once, with a lease of so many seconds.
fn slots(seconds: u64) -> Limit {
    Limit::concurrency("slots", 2, Duration::from_secs(seconds))
}

/// A body without an end. A silent one never has a frame.
#[derive(Clone, Copy, Debug)]
struct Endless {
    is_silent: bool,
}

impl HttpBody for Endless {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.is_silent { Poll::Pending } else { Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"more"))))) }
    }
}

/// A response without an end.
async fn served(gate: &Gate, limit: &Limit, is_silent: bool) -> Body<Endless> {
    let inner = service_fn(move |_: Request<()>| ready(Ok::<_, Infallible>(Response::new(Endless { is_silent }))));
    let respond = |_: &NotServed| -> Response<Endless> { panic!("refused") };
    let layer = TollgateLayer::new(gate.clone()).limit(limit.clone()).respond_with(respond);
    layer.layer(inner).oneshot(request(())).await.unwrap().into_body()
}

/// Asks for one more frame; whether there is one.
fn read(body: &mut Body<Endless>) -> bool {
    Pin::new(body).poll_frame(&mut Context::from_waker(Waker::noop())).is_ready()
}

/// Waits until both slots are free.
async fn until_free(gate: &Gate, limit: &Limit, key: (&str, &str)) {
    soon(gate.acquire_within(limit.key(key).cost(2), HOUR)).await.unwrap().granted().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_body_that_nobody_reads_holds_its_slot_no_longer() {
    let world = World::new().await;
    let gate = patient(&world.pool).build();
    let limit = slots(1);
    let never_read = served(&gate, &limit, false).await;
    let mut read_once = served(&gate, &limit, false).await;
    assert!(read(&mut read_once));
    until_free(&gate, &limit, US).await;
    // The response itself goes on.
    assert!(read(&mut read_once));
    drop(never_read);
}

#[tokio::test]
async fn a_client_that_never_reads_holds_its_slot_no_longer() {
    let world = World::new().await;
    let gate = patient(&world.pool).build();
    let limit = slots(1);
    let endless = || async { axum::body::Body::from_stream(repeat_with(|| Ok::<_, Infallible>(vec![0_u8; 65_536]))) };
    let router = Router::new().fallback(any(endless)).layer(TollgateLayer::new(gate.clone()).limit(limit.clone()));
    let served = Served::new(router).await;
    let mut clients = Vec::new();
    for _ in 0..2 {
        let mut client = TcpStream::connect(served.url("").trim_start_matches("http://")).await.unwrap();
        client.write_all(b"GET / HTTP/1.1\r\nhost: test\r\n\r\n").await.unwrap();
        let mut status = [0; 12];
        client.read_exact(&mut status).await.unwrap();
        assert_eq!(&status, b"HTTP/1.1 200");
        clients.push(client);
    }
    until_free(&gate, &limit, ("ip", "127.0.0.1")).await;
}

/// Waits until the only lease was renewed; `false` if it has ended.
async fn is_renewed(world: &World) -> bool {
    let end = async || -> Option<i64> {
        let sql = "select list[2], extract(epoch from clock_timestamp())::float8 from tollgate.durable";
        let row: Option<(Option<i64>, f64)> = sqlx::query_as(sql).fetch_optional(&world.pool).await.unwrap();
        let (ends_at, now) = row?;
        ends_at.filter(|ends_at| Duration::from_micros(ends_at.unsigned_abs()).as_secs_f64() > now)
    };
    let Some(first) = end().await else { return false };
    soon(async {
        loop {
            match end().await {
                Some(next) if next == first => {}
                next => return next.is_some(),
            }
        }
    })
    .await
}

/// Whether the only lease is renewed for six times its length.
async fn is_kept(world: &World, mut at_renewal: impl FnMut(usize)) -> bool {
    for renewal in 0..18 {
        at_renewal(renewal);
        if !is_renewed(world).await {
            return false;
        }
    }
    true
}

/// In seconds. On a machine that cannot renew in time, with a longer lease.
const LEASES: [u64; 3] = [1, 5, 25];

#[tokio::test]
async fn a_body_that_is_read_slowly_keeps_its_slot() {
    for seconds in LEASES {
        let world = World::new().await;
        let mut body = served(&patient(&world.pool).build(), &slots(seconds), false).await;
        // Each second length of the lease.
        if is_kept(&world, |renewal| assert!(renewal % 6 > 0 || read(&mut body))).await {
            return;
        }
    }
    panic!("never kept");
}

#[tokio::test]
async fn a_body_whose_reader_waits_for_the_service_keeps_its_slot() {
    for seconds in LEASES {
        let world = World::new().await;
        let mut body = served(&patient(&world.pool).build(), &slots(seconds), true).await;
        assert!(!read(&mut body));
        if is_kept(&world, |_| {}).await {
            return;
        }
    }
    panic!("never kept");
}

#[tokio::test]
async fn a_handler_that_takes_its_time_keeps_its_slot() {
    for seconds in LEASES {
        let world = World::new().await;
        let (begun, mut has_begun) = unbounded_channel();
        let inner = service_fn(move |_: Request<()>| {
            begun.send(()).unwrap();
            pending::<Result<Response<String>, Infallible>>()
        });
        let layer = TollgateLayer::new(patient(&world.pool).build()).limit(slots(seconds));
        let client = tokio::spawn(layer.layer(inner).oneshot(request(())));
        soon(has_begun.recv()).await.unwrap();
        let is_kept = is_kept(&world, |_| {}).await;
        client.abort();
        if is_kept {
            return;
        }
    }
    panic!("never kept");
}
