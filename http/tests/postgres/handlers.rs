//! `?` in handlers.

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::routing::post;
use chrono::DateTime;
use sqlx::PgPool;
use tollgate::{Denied, Error, HOUR, Limit, Limiter};
use tollgate_http::NotServed;

use crate::served::{Served, field, http_1, json};
use crate::stage::patient;
use crate::world::World;

const MESSAGES: Limit = Limit::token_bucket("messages", 2, HOUR);

async fn send(State(pool): State<PgPool>, body: String) -> Result<StatusCode, NotServed> {
    let mut tx = pool.begin().await?;
    sqlx::query("insert into messages values ($1)").bind(body).execute(&mut *tx).await?;
    Limiter::new().consume(&mut tx, MESSAGES.global()).await?.granted()?;
    tx.commit().await?;
    Ok(StatusCode::CREATED)
}

#[tokio::test]
async fn a_refusal_inside_of_a_transaction_is_a_429_and_rolls_it_back() {
    let world = World::new().await;
    world.sql("create table messages (body text)").await;
    let served = Served::new(Router::new().route("/", post(send)).with_state(world.pool.clone())).await;
    let mut statuses = Vec::new();
    for body in ["one", "two", "three"] {
        statuses.push(http_1().post(served.url("/")).body(body).send().await.unwrap().status().as_u16());
    }
    assert_eq!(statuses, [201, 201, 429]);
    let refused = http_1().post(served.url("/")).send().await.unwrap();
    assert_eq!(field(&refused, "ratelimit-policy"), r#""messages";q=2;w=3600"#);
    assert_eq!(json(refused).await["violated-policies"][0], "messages");
    let sent: i64 = sqlx::query_scalar("select count(*) from messages").fetch_one(&world.pool).await.unwrap();
    assert_eq!(sent, 2);
}

/// The handler needs no error type of its own, and the limiter gets no blame for what is not its fault.
#[tokio::test]
async fn a_duplicate_key_inside_of_a_transaction_is_a_500_and_takes_no_token() {
    let world = World::new().await;
    world.sql("create table messages (body text primary key)").await;
    let served = Served::new(Router::new().route("/", post(send)).with_state(world.pool.clone())).await;
    let mut answers = Vec::new();
    for body in ["one", "one", "two"] {
        answers.push(http_1().post(served.url("/")).body(body).send().await.unwrap());
    }
    assert_eq!(answers.iter().map(|answer| answer.status().as_u16()).collect::<Vec<_>>(), [201, 500, 201]);
    let twice = answers.swap_remove(1);
    assert!(!twice.headers().contains_key("retry-after"));
    let body = json(twice).await.to_string();
    assert!(!body.contains("limit") && !body.contains("messages"), "{body}");
}

/// To try again is of no use until somebody has migrated the database.
#[tokio::test]
async fn a_limiter_without_its_tables_is_a_500() {
    let world = World::new().await;
    world.sql("create table messages (body text); alter schema tollgate rename to away").await;
    let served = Served::new(Router::new().route("/", post(send)).with_state(world.pool.clone())).await;
    let answer = http_1().post(served.url("/")).body("one").send().await.unwrap();
    assert_eq!((answer.status().as_u16(), answer.headers().get("retry-after")), (500, None));
}

#[tokio::test]
async fn a_refusal_and_an_error_are_responses_once_they_are_not_served() {
    let world = World::new().await;
    let gate = patient(&world.pool).clock(|| DateTime::UNIX_EPOCH).build();
    gate.debit(MESSAGES.global().cost(2)).await.unwrap();
    let denied: Denied = gate.consume(MESSAGES.global()).await.unwrap().granted().unwrap_err();
    let response = NotServed::from(denied).into_response();
    assert_eq!(response.status(), 429);
    assert_eq!(response.headers()["retry-after"], "1800");
    let error: Error = gate.consume(MESSAGES.global().cost(3)).await.unwrap_err();
    assert_eq!(NotServed::from(error).into_response().status(), 400, "three are never there at once");
}
