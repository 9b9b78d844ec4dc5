//! The service answers as it promises, over HTTP.

use std::net::SocketAddr;

use sqlx::postgres::PgPoolOptions;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tollgate::Balance;

use super::*;

/// The status and the body of the answer to a request.
async fn post(to: SocketAddr, path: &str, body: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(to).await.unwrap();
    let head = format!("POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n");
    let length = body.len();
    let request = format!("{head}content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}");
    stream.write_all(request.as_bytes()).await.unwrap();
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
    assert_eq!((&sent[..20], sent[20]), (&[201; 20][..], 429));
    assert_eq!(statuses(to, "/orgs/1/users/2/messages", "hello", 1).await, [201], "another user of the organisation");
    let stored: i64 = sqlx::query_scalar("select count(*) from messages").fetch_one(&ours).await.unwrap();
    assert_eq!(stored, 21, "the refused message was rolled back");

    let (wrong, right) = (r#"["ada", "letmein"]"#, r#"["ada", "hunter2"]"#);
    assert_eq!(statuses(to, "/log-ins", wrong, 2).await, [401; 2]);
    assert_eq!(statuses(to, "/log-ins", right, 1).await, [204]);
    assert_eq!(statuses(to, "/log-ins", wrong, 4).await, [401, 401, 401, 429], "the right one forgot those before it");
    assert_eq!(statuses(to, "/log-ins", right, 1).await, [429], "whether it was right is not told");

    assert_eq!(statuses(to, "/weather", "", 1).await, [200]);

    let (status, answer) = post(to, "/orgs/1/model", "haiku").await;
    assert_eq!(status, 200);
    let used = i64::try_from(answer.len()).unwrap();
    #[expect(clippy::disallowed_methods, reason = "it says which month it is; limits go by the database's clock")]
    let now = DateTime::<Utc>::from(SystemTime::now());
    assert_eq!(balance(MODEL_BILL.key((now.format("%Y-%m").to_string(), 1))).await.used.whole(), used);
    assert_eq!(balance(MODEL.key(1)).await.remaining.whole(), 100_000 - used);
    watched.gate().debit(MODEL.key(1).cost(99_000)).await.unwrap();
    assert_eq!(statuses(to, "/orgs/1/model", "haiku", 1).await, [429]);

    let defined: i64 = sqlx::query_scalar("select count(*) from tollgate.limits").fetch_one(&ours).await.unwrap();
    assert_eq!(usize::try_from(defined).unwrap(), LIMITS.len(), "the command knows what the service knows");
    end.send(()).unwrap();
    service.await.unwrap().unwrap();
    assert!(its.is_closed());
    watched.stop().await;
}
