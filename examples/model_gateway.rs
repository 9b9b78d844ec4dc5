//! A gateway to a language model. A request is charged an estimate before its answer streams, and settled to what it
//! used afterwards. A client that dies in mid-stream settles nothing: its estimate lapses, and the budget is whole.
//!
//! `cargo run --example model_gateway`

use std::time::Duration;

use sqlx::PgPool;
use tollgate::{DAY, Decision, Gate, Limit, migrate};
use tollgate_embedded::Server;

type Error = Box<dyn std::error::Error + Send + Sync>;

/// What each customer may use in a day.
const BUDGET: Limit = Limit::fixed_window("model_budget", 10_000, DAY).start(Duration::ZERO);

/// Longer than any answer streams. So long the estimate of a client that died is missing from the budget.
const LONGEST: Duration = Duration::from_secs(5);

#[tokio::main]
async fn main() -> Result<(), Error> {
    let server = Server::start()?;
    let pool = PgPool::connect(server.url()).await?;
    migrate::run(&mut *pool.acquire().await?).await?;
    let gate = Gate::new(pool);
    let left = async || gate.balance(BUDGET.key("acme")).await.map(|balance| balance.value);

    answer(&gate, 6_000, 1_500).await?;
    println!("an answer used 1500 of an estimate of 6000: {} are left", left().await?);

    // The client goes away: its future is dropped while the answer streams.
    let dies = tokio::time::timeout(Duration::from_millis(200), answer(&gate, 8_000, 80_000)).await;
    assert!(dies.is_err(), "it never settles");
    println!("a client died in mid-stream: {} are left", left().await?);

    let Decision::Denied(denied) = gate.consume(BUDGET.key("acme").cost(5_000)).await? else {
        return Err("the estimate is still held".into());
    };
    println!("refused for {:?}, until the estimate lapses", denied.retry_after());
    gate.wait(BUDGET.key("acme").cost(5_000), LONGEST).await?.granted()?;
    println!("granted: the estimate came back, and {} are left", left().await?);
    Ok(())
}

/// Streams one answer, and settles its estimate to what it used.
async fn answer(gate: &Gate, estimate: u32, used: u32) -> Result<(), Error> {
    let estimated = BUDGET.key("acme").cost(estimate).lapses_after(LONGEST);
    let granted = gate.consume(estimated).await?.granted()?;
    // Stands in for the stream: a hundred tokens in a millisecond.
    tokio::time::sleep(Duration::from_millis(u64::from(used) / 100)).await;
    gate.settle(granted, used).await?;
    Ok(())
}
