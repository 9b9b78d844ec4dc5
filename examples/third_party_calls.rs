//! Two hundred workers call a third party's service, which allows fifty calls a second and twenty at once. Each waits
//! for its turn, over a pool of four connections.
//!
//! `cargo run --example third_party_calls`

use std::time::Duration;

use sqlx::postgres::PgPoolOptions;
use tokio::task::JoinSet;
use tollgate::{Gate, Limit, MINUTE, SECOND, migrate};
use tollgate_embedded::Server;

const THEIR_SERVICE: Limit = Limit::token_bucket("their_service", 50, SECOND).capacity(20).ephemeral();

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = Server::start()?;
    let pool = PgPoolOptions::new().max_connections(4).connect(server.url()).await?;
    migrate::run(&mut *pool.acquire().await?).await?;
    // Workers that wait for the same instant come back spread over a fifth of a second.
    let gate = Gate::builder(pool).jitter(Duration::from_millis(200)).build();

    let mut workers = JoinSet::new();
    for worker in 0..200 {
        let gate = gate.clone();
        workers.spawn(async move {
            let turn = gate.wait(THEIR_SERVICE.global(), 5 * MINUTE).await?;
            Ok::<_, tollgate::Error>((worker, turn))
        });
    }
    let (mut first, mut last, mut calls) = (None, None, 0);
    while let Some(turn) = workers.join_next().await {
        let (worker, turn) = turn??;
        let at = turn.granted()?.decided_at;
        first = first.min(Some(at)).or(Some(at));
        last = last.max(Some(at));
        calls += 1;
        if calls % 50 == 0 {
            println!("{calls:>3} calls made, the last by worker {worker} at {at}");
        }
    }
    let (Some(first), Some(last)) = (first, last) else { return Err("nobody got a turn".into()) };
    println!("{calls} calls in {:?}", (last - first).to_std()?);
    // Twenty at once, and a hundred and eighty more at fifty a second.
    assert!(last - first >= chrono::Duration::milliseconds(3_600));
    Ok(())
}
