//! A web service with five limits: by address, by user, on failed log-ins, reserved for later, and inside a
//! transaction.
//!
//! `cargo run --features axum --example axum` prints what to try; `PORT=8080` chooses another port than 3000.

use std::net::{Ipv4Addr, SocketAddr};

use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use sqlx::PgPool;
use tollgate::{Denied, Error, Gate, HOUR, Limit, Limiter, Receipt, SECOND, migrate};
use tollgate_embedded::Server;
use tollgate_http::tower::{Credential, Rule, TollgateLayer};
use tollgate_http::{Fields, NotServed};

/// Thirty requests at once from an address, and then one a second. A crash may forget the count.
const PER_ADDRESS: Limit = Limit::token_bucket("per_address", 1, SECOND).capacity(30).ephemeral();
/// Five requests an hour for each user, from any address. A user's hours start with the first request.
const PER_USER: Limit = Limit::stepped_bucket("per_user", 5, HOUR);
/// Three guesses at once, and three more each hour.
const FAILED_LOGINS: Limit = Limit::stepped_bucket("failed_logins", 3, HOUR);
/// The model's provider allows a hundred tokens a second. Jobs are accepted for at most a minute ahead.
const MODEL_TOKENS: Limit = Limit::token_bucket("model_tokens", 100, SECOND).max_reserved(6_000);
/// Two messages an hour.
const MESSAGES: Limit = Limit::token_bucket("messages", 2, HOUR);

#[derive(Clone)]
struct Service {
    pool: PgPool,
    gate: Gate,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = Server::start()?;
    let pool = PgPool::connect(server.url()).await?;
    migrate::run(&mut *pool.acquire().await?).await?;
    sqlx::raw_sql(
        "create table messages (body text not null);
         create table jobs (prompt text not null, run_at timestamptz not null, receipt jsonb not null)",
    )
    .execute(&pool)
    .await?;

    let port = std::env::var("PORT").map_or(Ok(3000), |port| port.parse())?;
    let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
    print_what_to_try(listener.local_addr()?);
    // The layer reads the client's address from here.
    let service = router(pool).into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, service).await?;
    Ok(())
}

fn router(pool: PgPool) -> Router {
    let gate = Gate::new(pool.clone());
    // Only an issued token gets a bucket. Otherwise every made-up token would be a fresh bucket for its maker.
    let per_user = Rule::new(PER_USER).key(Credential::bearer().known(|token| user(token).is_some()));
    let me = Router::new()
        .route("/me", get(|| async { "it is you\n" }))
        .route_layer(TollgateLayer::new(gate.clone()).limit(per_user))
        .route_layer(axum::middleware::from_fn(authenticated));
    Router::new()
        .route("/", get(|| async { "welcome\n" }))
        .merge(me)
        .route("/login", post(log_in))
        .route("/complete", post(complete))
        .route("/messages", post(send))
        .layer(TollgateLayer::new(gate.clone()).limit(PER_ADDRESS))
        .route("/client", get(client))
        .with_state(Service { pool, gate })
}

/// A page whose requests wait as the header fields of the answers say: `web/ts/client.ts`.
async fn client() -> Result<Html<String>, (StatusCode, &'static str)> {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/playground/client.html");
    std::fs::read_to_string(page).map(Html).map_err(|_| (StatusCode::NOT_FOUND, "build it by `./dev playground`\n"))
}

async fn authenticated(request: axum::extract::Request, next: axum::middleware::Next) -> Response {
    match request.headers().get(header::AUTHORIZATION).map(HeaderValue::as_bytes) {
        Some(value) if value.strip_prefix(b"Bearer ").and_then(user).is_some() => next.run(request).await,
        _ => (StatusCode::UNAUTHORIZED, "who are you?\n").into_response(),
    }
}

fn user(token: &[u8]) -> Option<&'static str> {
    match token {
        b"token-of-ada" => Some("ada"),
        b"token-of-bob" => Some("bob"),
        _ => None,
    }
}

/// A guess is charged before the password is verified, so parallel guesses cannot pass on one token. The token of a
/// right guess is given back.
async fn log_in(State(Service { gate, .. }): State<Service>, password: String) -> Result<&'static str, Failure> {
    let grant = gate.consume(FAILED_LOGINS.key("ada")).await?.granted()?;
    if password != "hunter2" {
        return Err(Failure::WrongPassword);
    }
    gate.settle(grant, 0).await?;
    Ok("welcome, ada\n")
}

/// Stores a job and reserves the tokens that it will take, in one transaction. It runs when they are ready.
async fn complete(State(Service { pool, .. }): State<Service>, prompt: String) -> Result<Response, NotServed> {
    let mut tx = pool.begin().await?;
    let estimate = u32::try_from(prompt.len()).unwrap_or(u32::MAX) * 100;
    let reserved = Limiter::new().reserve(&mut tx, MODEL_TOKENS.global().cost(estimate)).await?.granted()?;
    let answer =
        serde_json::json!({ "run_at": reserved.ready_at, "wait_ms": reserved.wait().as_micros().div_ceil(1_000) });
    sqlx::query("insert into jobs values ($1, $2, $3)")
        .bind(prompt)
        .bind(reserved.ready_at)
        .bind(sqlx::types::Json(Receipt::from(reserved)))
        .execute(&mut *tx)
        .await?;
    tx.commit().await?;
    Ok((StatusCode::ACCEPTED, Json(answer)).into_response())
}

/// A refusal returns by `?`: the message is rolled back, and the response is 429.
async fn send(State(Service { pool, .. }): State<Service>, body: String) -> Result<(StatusCode, HeaderMap), NotServed> {
    let mut tx = pool.begin().await?;
    sqlx::query("insert into messages values ($1)").bind(body).execute(&mut *tx).await?;
    let grant = Limiter::new().consume(&mut tx, MESSAGES.global()).await?.granted()?;
    tx.commit().await?;
    Ok((StatusCode::CREATED, Fields::default().of(&grant)))
}

/// Why a log-in failed. The other handlers return `NotServed` itself.
enum Failure {
    NotServed(NotServed),
    WrongPassword,
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        match self {
            Self::NotServed(reason) => reason.into_response(),
            Self::WrongPassword => (StatusCode::UNAUTHORIZED, "wrong\n").into_response(),
        }
    }
}

impl From<Denied> for Failure {
    fn from(denied: Denied) -> Self {
        Self::NotServed(denied.into())
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::NotServed(error.into())
    }
}

fn print_what_to_try(address: SocketAddr) {
    println!("listening on http://{address}");
    println!(
        "
  by address, thirty at once:      for i in $(seq 31); do curl -si http://{address}/ | grep -i ratelimit:; done
  by user, five an hour:           for i in $(seq 6); do curl -si --oauth2-bearer token-of-ada http://{address}/me; done
  a log-in, and three guesses:     for i in 1 2 3 4; do curl -si http://{address}/login -d letmein; done
  tokens for later:                for i in 1 2 3; do curl -si http://{address}/complete -d haiku; done
  inside its own transaction:      for i in 1 2 3; do curl -si http://{address}/messages -d hello; done
  a client that waits as told:     ./dev playground; then open http://{address}/client
"
    );
}
