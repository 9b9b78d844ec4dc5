//! A real server on loopback, and real clients.

use std::net::SocketAddr;

use axum::Router;
use axum::routing::any;
use reqwest::{Client, Response};
use tokio::task::JoinHandle;
use tollgate::{Gate, Limit, MINUTE};
use tollgate_http::tower::TollgateLayer;

/// A router, served until this is dropped.
pub(crate) struct Served {
    url: String,
    task: JoinHandle<()>,
}

impl Served {
    pub(crate) async fn new(router: Router) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let service = router.into_make_service_with_connect_info::<SocketAddr>();
        let task = tokio::spawn(async move { axum::serve(listener, service).await.unwrap() });
        Self { url, task }
    }

    /// A service that says "served" to everything, behind a layer.
    pub(crate) async fn behind(layer: TollgateLayer) -> Self {
        Self::new(Router::new().fallback(any(|| async { "served" })).layer(layer)).await
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("{}{path}", self.url)
    }

    pub(crate) async fn get(&self, path: &str) -> Response {
        http_1().get(self.url(path)).send().await.unwrap()
    }

    /// The statuses of so many requests, one after another.
    pub(crate) async fn statuses(&self, path: &str, requests: usize) -> Vec<u16> {
        let client = http_1();
        let mut statuses = Vec::new();
        for _ in 0..requests {
            statuses.push(client.get(self.url(path)).send().await.unwrap().status().as_u16());
        }
        statuses
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A client that fails where something hangs.
pub(crate) fn http_1() -> Client {
    Client::builder().http1_only().timeout(10 * MINUTE).build().unwrap()
}

pub(crate) fn http_2() -> Client {
    Client::builder().http2_prior_knowledge().timeout(10 * MINUTE).build().unwrap()
}

/// A header field of a response; empty where there is none.
pub(crate) fn field<'r>(response: &'r Response, name: &str) -> &'r str {
    response.headers().get(name).map_or("", |value| value.to_str().unwrap())
}

pub(crate) async fn json(response: Response) -> serde_json::Value {
    assert_eq!(field(&response, "content-type"), "application/problem+json");
    serde_json::from_str(&response.text().await.unwrap()).unwrap()
}

/// The balance of a limit for a key, in whole tokens.
pub(crate) async fn left(gate: &Gate, limit: &Limit, key: impl tollgate::ToKey) -> i64 {
    gate.balance(limit.key(key)).await.unwrap().remaining.micros() / 1_000_000
}
