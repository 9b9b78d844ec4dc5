//! A reservation with a jobs table: "not now, but at 12:00:07, and it is yours".
//!
//! `cargo run --features embedded --example reservation`

use chrono::{DateTime, Utc};
use sqlx::PgPool;
use sqlx::types::Json;
use tollgate::{Decision, Limit, Limiter, Receipt, SECOND, embedded, migrate};

/// A provider allows 1000 tokens a second. We promise at most ten seconds ahead.
const LLM_TOKENS: Limit = Limit::token_bucket("llm_tokens", 1_000, SECOND).max_reserved(10_000);

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = embedded::Server::start()?;
    let pool = PgPool::connect(server.url()).await?;
    migrate::run(&mut *pool.acquire().await?).await?;
    sqlx::raw_sql("create table jobs (prompt text not null, run_at timestamptz not null, receipt jsonb not null)")
        .execute(&pool)
        .await?;

    for (prompt, estimate) in [("a haiku", 600), ("a sonnet", 900), ("a novel", 20_000)] {
        match submit(&pool, prompt, estimate).await {
            Ok(run_at) => println!("{prompt}: will run at {run_at}"),
            Err(refused) => println!("{prompt}: {refused}"),
        }
    }
    while let Some(wait) = run_next(&pool).await? {
        tokio::time::sleep(wait).await;
    }
    Ok(())
}

/// Books the tokens and stores the job that they pay for, in one transaction.
async fn submit(pool: &PgPool, prompt: &str, estimate: u32) -> Result<DateTime<Utc>, Box<dyn std::error::Error>> {
    let mut tx = pool.begin().await?;
    let booked = match Limiter::new().reserve(&mut tx, LLM_TOKENS.global().cost(estimate)).await? {
        Decision::Granted(booked) => booked,
        Decision::Denied(denied) => return Err(denied.into()),
    };
    let run_at = booked.ready_at;
    sqlx::query("insert into jobs (prompt, run_at, receipt) values ($1, $2, $3)")
        .bind(prompt)
        .bind(run_at)
        .bind(Json(Receipt::from(booked)))
        .execute(&mut *tx)
        .await?;
    tx.commit().await?;
    Ok(run_at)
}

/// Runs a job that is due, and settles its estimate for what it took. How long to wait for the next, if there is one.
///
/// Deleting the job in the transaction that settles it is what makes the receipt count once, however many workers there are.
async fn run_next(pool: &PgPool) -> Result<Option<std::time::Duration>, Box<dyn std::error::Error>> {
    let mut tx = pool.begin().await?;
    let due: Option<(String, Json<Receipt>)> = sqlx::query_as(
        "delete from jobs
          where ctid = (select ctid from jobs where run_at <= clock_timestamp() order by run_at limit 1 for update skip locked)
         returning prompt, receipt",
    )
    .fetch_optional(&mut *tx)
    .await?;
    if let Some((prompt, Json(receipt))) = due {
        let balance = Limiter::new().settle(&mut tx, receipt, 500).await?;
        println!("{prompt}: ran, took 500 tokens; balance {}", balance.value);
    }
    let next: Option<f64> = sqlx::query_scalar(
        "select greatest(extract(epoch from run_at - clock_timestamp()), 0)::float8 from jobs order by run_at limit 1",
    )
    .fetch_optional(&mut *tx)
    .await?;
    tx.commit().await?;
    Ok(next.map(std::time::Duration::from_secs_f64))
}
