//! The service answers as it promises, over HTTP.

use std::net::SocketAddr;

use sqlx::postgres::PgPoolOptions;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tollgate::Balance;

use super::*;

async fn post(to: SocketAddr, path: &str, body: &str) -> (u16, String) {
    request(to, "POST", path, body).await
}

/// The status and the body of the answer to a request.
async fn request(to: SocketAddr, method: &str, path: &str, body: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(to).await.unwrap();
    let head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n");
    let length = body.len();
    let text = format!("{head}content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}");
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head[9..12].parse().unwrap(), body.to_owned())
}

async fn statuses(to: SocketAddr, path: &str, body: &str, times: usize) -> Vec<u16> {
    let mut statuses = Vec::new();
    for _ in 0..times {
        statuses.push(post(to, path, body).await.0);
    }
    statuses
}

#[tokio::test]
async fn each_endpoint_is_limited_as_it_needs_and_the_end_is_graceful() {
    let server = Server::start().unwrap();
    let pool = || PgPoolOptions::new().max_connections(8).connect_lazy(server.url()).unwrap();
    let (ours, its) = (pool(), pool());
    prepare(&ours).await.unwrap();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let to = listener.local_addr().unwrap();
    let (end, ended) = oneshot::channel::<()>();
    let service = {
        let its = its.clone();
        tokio::spawn(async move {
            serve(its, listener, async { drop(ended.await) }).await.map_err(|error| error.to_string())
        })
    };
    let watched = Tollgate::start(ours.clone()).await.unwrap();
    let balance = async |request| -> Balance { watched.gate().balance(request).await.unwrap() };

    assert_eq!(statuses(to, "/sign-ups", "ada@example.com", 2).await, [201, 409]);
    assert_eq!(balance(SIGN_UPS.global()).await.remaining.whole(), 99, "the duplicate took nothing");

    let sent = statuses(to, "/orgs/1/users/1/messages", "hello", 21).await;
    assert_eq!(sent, [vec![201; 20], vec![429]].concat());
    let stored: i64 = sqlx::query_scalar("select count(*) from messages").fetch_one(&ours).await.unwrap();
    assert_eq!(stored, 20, "the refused message was rolled back");
    assert_eq!(statuses(to, "/orgs/1/users/2/messages", "hello", 1).await, [201], "another user of the organisation");

    let (wrong, right) = (r#"["ada", "letmein"]"#, r#"["ada", "hunter2"]"#);
    assert_eq!(statuses(to, "/log-ins", wrong, 2).await, [401; 2]);
    assert_eq!(statuses(to, "/log-ins", right, 1).await, [204]);
    assert_eq!(statuses(to, "/log-ins", wrong, 4).await, [401, 401, 401, 429], "the right one forgot those before it");
    assert_eq!(statuses(to, "/log-ins", right, 1).await, [429], "whether it was right is not told");
    let guesses = GUESSES.key(("ada", Slash64(Ipv4Addr::LOCALHOST.into())));
    assert!(!watched.gate().check(guesses).await.unwrap().is_granted(), "another process refuses it, too");

    assert_eq!(statuses(to, "/weather", "", 1).await, [200]);

    let (status, answer) = post(to, "/orgs/1/model", "a haiku, please").await;
    assert!(status == 200 && answer.contains("please"), "{answer}");
    watched.gate().debit(MODEL.key(1).cost(99_000)).await.unwrap();
    assert_eq!(statuses(to, "/orgs/1/model", "haiku", 1).await, [429]);

    let (_, metrics) = request(to, "GET", "/metrics", "").await;
    assert!(metrics.contains(r#"limit="messages",outcome="denied",source="database"} 1"#), "{metrics}");

    let defined: i64 = sqlx::query_scalar("select count(*) from tollgate.limits").fetch_one(&ours).await.unwrap();
    assert_eq!(usize::try_from(defined).unwrap(), LIMITS.len(), "the command knows what the service knows");
    end.send(()).unwrap();
    service.await.unwrap().unwrap();
    assert!(its.is_closed());
    assert_eq!(balance(MODEL_BILL.key((this_month(), 1))).await.used.whole(), 3, "the end waits for the stream");
    assert_eq!(balance(MODEL.key(1)).await.remaining.whole(), 1_000 - 3);
    watched.stop().await;
}
