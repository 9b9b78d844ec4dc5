//! A service of five endpoints, each with the limits that it needs: sign-ups, messages, log-ins, calls to a third
//! party, and a model with a month's budget and a bill.
//!
//! `cargo run --features axum --example service` prints where it listens; `PORT=8080` chooses another port than 3000.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::SystemTime;

use axum::body::Body;
use axum::extract::{ConnectInfo, Path, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use chrono::{DateTime, Utc};
use futures_util::{StreamExt, stream};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use sqlx::PgPool;
use tokio::net::TcpListener;
use tollgate::{Call, DAY, HOUR, Limit, MINUTE, SECOND, Slash64, Tollgate, migrate};
use tollgate_embedded::Server;
use tollgate_http::NotServed;

/// For everybody together: a stranger can make up any key for nothing.
const SIGN_UPS: Limit = Limit::fixed_window("sign_ups", 100, DAY);
const MESSAGES: Limit = Limit::token_bucket("messages", 10, MINUTE).capacity(20);
const MESSAGES_OF_ORG: Limit = Limit::token_bucket("messages_of_org", 1_000, HOUR);
/// From one address at one account: three at once, and three more each hour.
const GUESSES: Limit = Limit::stepped_bucket("guesses", 3, HOUR);
const GUESSES_OF_IP: Limit = Limit::stepped_bucket("guesses_of_ip", 30, HOUR);
/// From everywhere at one account. A stranger can use them up, so they are many.
const ALL_GUESSES: Limit = Limit::stepped_bucket("all_guesses", 100, DAY);
/// The third party takes ten calls in any second, from all processes together.
const THEIR_API: Limit = Limit::sliding_window("their_api", 10, SECOND);
/// The tokens of a month.
const MODEL: Limit = Limit::monthly("model", 100_000);
/// The use that the organisation pays for, by month.
const MODEL_BILL: Limit = Limit::meter("model_bill");
const LIMITS: [&Limit; 9] =
    [&SIGN_UPS, &MESSAGES, &MESSAGES_OF_ORG, &GUESSES, &GUESSES_OF_IP, &ALL_GUESSES, &THEIR_API, &MODEL, &MODEL_BILL];

#[derive(Clone)]
struct Service {
    pool: PgPool,
    tollgate: Tollgate,
}

type Answer<T = StatusCode> = Result<T, NotServed>;
type Done = Result<(), Box<dyn std::error::Error>>;

#[tokio::main]
async fn main() -> Done {
    let server = Server::start()?;
    let pool = PgPool::connect(server.url()).await?;
    prepare(&pool).await?;
    let port = std::env::var("PORT").map_or(Ok(3000), |port| port.parse())?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
    println!("listening on http://{0}; try: curl -i http://{0}/sign-ups -d ada@example.com", listener.local_addr()?);
    serve(pool, listener, async { drop(tokio::signal::ctrl_c().await) }).await
}

async fn prepare(pool: &PgPool) -> Done {
    migrate::run(&mut *pool.acquire().await?).await?;
    let tables = "create table users (email text primary key);
                  create table messages (org int8 not null, author int8 not null, body text not null)";
    sqlx::raw_sql(tables).execute(pool).await?;
    Ok(())
}

/// Serves until the end comes, and then finishes what is under way.
async fn serve(pool: PgPool, listener: TcpListener, end: impl Future<Output = ()> + Send + 'static) -> Done {
    let metrics = PrometheusBuilder::new().install_recorder()?;
    tollgate::describe_metrics(LIMITS);
    let tollgate = Tollgate::builder(pool.clone()).limits(LIMITS).start().await?;
    let service = Service { pool: pool.clone(), tollgate: tollgate.clone() };
    let router = router(service, metrics).into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, router).with_graceful_shutdown(end).await?;
    tollgate.stop().await;
    pool.close().await;
    Ok(())
}

fn router(service: Service, metrics: PrometheusHandle) -> Router {
    Router::new()
        .route("/sign-ups", post(sign_up))
        // Here the path says who asks; a real service has it from a session.
        .route("/orgs/{org}/users/{user}/messages", post(send))
        .route("/log-ins", post(log_in))
        .route("/weather", post(weather))
        .route("/orgs/{org}/model", post(ask))
        .route("/metrics", get(async move || metrics.render()))
        .with_state(service)
}

/// A duplicate takes no token. A refusal rolls the user back.
async fn sign_up(State(service): State<Service>, email: String) -> Answer {
    let mut tx = service.pool.begin().await?;
    let insert = sqlx::query("insert into users values ($1) on conflict do nothing").bind(email);
    if insert.execute(&mut *tx).await?.rows_affected() == 0 {
        return Ok(StatusCode::CONFLICT);
    }
    service.tollgate.limiter().consume(&mut tx, SIGN_UPS.global()).await?.granted()?;
    tx.commit().await?;
    Ok(StatusCode::CREATED)
}

/// Both limits are charged, or none is.
async fn send(State(service): State<Service>, Path((org, user)): Path<(i64, i64)>, body: String) -> Answer {
    let mut tx = service.pool.begin().await?;
    sqlx::query("insert into messages values ($1, $2, $3)").bind(org).bind(user).bind(body).execute(&mut *tx).await?;
    let limits = [MESSAGES.key((org, user)), MESSAGES_OF_ORG.key(org)];
    service.tollgate.limiter().consume(&mut tx, limits).await?.granted()?;
    tx.commit().await?;
    Ok(StatusCode::CREATED)
}

/// A guess is charged before the password is verified, so parallel guesses cannot pass on one token. A right one is
/// given back, and forgets the wrong ones before it from the same address.
async fn log_in(
    State(Service { tollgate, .. }): State<Service>,
    ConnectInfo(client): ConnectInfo<SocketAddr>,
    Json((account, password)): Json<(String, String)>,
) -> Answer {
    let ip = Slash64(client.ip());
    let guesses = [GUESSES.key((&account, ip)), GUESSES_OF_IP.key(ip), ALL_GUESSES.key(&account)];
    let guess = tollgate.gate().consume(guesses).await?.granted()?;
    if password != "hunter2" {
        return Ok(StatusCode::UNAUTHORIZED);
    }
    tollgate.gate().settle(guess, 0).await?;
    tollgate.gate().reset(GUESSES.key((&account, ip))).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Waits for its turn, for two seconds at most.
async fn weather(State(Service { tollgate, .. }): State<Service>) -> Answer<&'static str> {
    tollgate.gate().wait(THEIR_API.global(), 2 * SECOND).await?.granted()?;
    Ok("sunny, says the third party\n")
}

/// Charges an estimate to budget and bill, and settles both at what was streamed, also if the client goes away in the
/// middle. If the process dies, the estimate comes back.
async fn ask(State(Service { tollgate, .. }): State<Service>, Path(org): Path<i64>, prompt: String) -> Answer<Body> {
    let call = [MODEL.key(org), MODEL_BILL.key((this_month(), org))].map(|request| request.cost(2_000));
    let call = Call::from(call).lapses_after(2 * MINUTE);
    let charged = tollgate.gate().stream(call).await?.granted()?;
    let words: Vec<_> = prompt.split_inclusive(' ').map(str::to_owned).collect();
    let answer = stream::iter(words).inspect(move |_| charged.add(1_u32));
    Ok(Body::from_stream(answer.map(Ok::<_, Infallible>)))
}

/// Which month's bill it is. Limits go by the database's clock.
#[expect(clippy::disallowed_methods, reason = "a bill is named by whoever writes it")]
fn this_month() -> String {
    DateTime::<Utc>::from(SystemTime::now()).format("%Y-%m").to_string()
}

#[cfg(test)]
#[path = "service_tests.rs"]
mod tests;
