//! Workers for a language model. A prompt reserves the most tokens that it may take, and its job runs when they are
//! ready. Afterwards the reservation is settled to the tokens that the model really used.
//!
//! `cargo run --example reservation`

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::PgPool;
use sqlx::types::Json;
use tollgate::{Limit, Limiter, Receipt, SECOND, migrate};
use tollgate_embedded::Server;

type Error = Box<dyn std::error::Error + Send + Sync>;

/// The provider allows 1,000 tokens a second. Jobs are accepted for at most ten seconds ahead.
const MODEL_TOKENS: Limit = Limit::token_bucket("model_tokens", 1_000, SECOND).max_reserved(10_000);

#[tokio::main]
async fn main() -> Result<(), Error> {
    let server = Server::start()?;
    let pool = PgPool::connect(server.url()).await?;
    migrate::run(&mut *pool.acquire().await?).await?;
    let table = "create table jobs (id bigserial primary key, prompt text, run_at timestamptz, receipt jsonb)";
    sqlx::raw_sql(table).execute(&pool).await?;

    for (prompt, most) in [("a haiku", 600), ("a sonnet", 900), ("an essay", 700), ("a novel", 12_000)] {
        match submit(&pool, prompt, most).await {
            Ok(run_at) => println!("{prompt}: will run at {run_at}"),
            Err(refused) => println!("{prompt}: {refused}"),
        }
    }
    let (one, other) = tokio::join!(work(&pool, "one"), work(&pool, "two"));
    assert_eq!(one? + other?, 3, "every job ran once");
    Ok(())
}

/// Reserves the tokens and stores the job with their receipt, in one transaction.
///
/// The job runs up to 200 ms after its tokens are ready. This jitter spreads jobs that become ready together.
async fn submit(pool: &PgPool, prompt: &str, most: u32) -> Result<DateTime<Utc>, Error> {
    let mut tx = pool.begin().await?;
    let reserved = Limiter::new().reserve(&mut tx, MODEL_TOKENS.global().cost(most)).await?.granted()?;
    let insert = "insert into jobs (prompt, run_at, receipt) values ($1, $2 + random() * interval '200 ms', $3)
                  returning run_at";
    let run_at = sqlx::query_scalar(insert)
        .bind(prompt)
        .bind(reserved.ready_at)
        .bind(Json(Receipt::from(reserved)))
        .fetch_one(&mut *tx)
        .await?;
    tx.commit().await?;
    Ok(run_at)
}

/// Runs jobs until there are none, and counts them.
async fn work(pool: &PgPool, worker: &str) -> Result<u32, Error> {
    let mut jobs = 0;
    while let Some((id, prompt, wait)) = lease(pool).await? {
        tokio::time::sleep(Duration::from_secs_f64(wait)).await;
        // No transaction is open while the model works.
        let used = ask_the_model(&prompt).await;
        if finish(pool, id, used).await? {
            println!("{prompt}: worker {worker} used {used} tokens");
            jobs += 1;
        }
    }
    Ok(jobs)
}

/// Takes the next job for a minute: its id, its prompt, and the seconds until it may run.
///
/// If the worker dies, another one takes the job after that minute.
async fn lease(pool: &PgPool) -> Result<Option<(i64, String, f64)>, Error> {
    let next = "with next as (
                    select id, greatest(extract(epoch from run_at - clock_timestamp()), 0)::float8 as wait from jobs
                     where run_at <= clock_timestamp() + interval '10 s' order by run_at limit 1 for update skip locked
                )
                update jobs set run_at = clock_timestamp() + interval '1 min' from next where jobs.id = next.id
                returning jobs.id, prompt, wait";
    Ok(sqlx::query_as(next).fetch_optional(pool).await?)
}

/// Settles the job's reservation to what the model used, and gives the rest back.
///
/// The transaction that settles also deletes the job. So its receipt counts once, however many workers finish the job.
async fn finish(pool: &PgPool, id: i64, used: u32) -> Result<bool, Error> {
    let mut tx = pool.begin().await?;
    let delete = sqlx::query_scalar("delete from jobs where id = $1 returning receipt").bind(id);
    let Some(Json(receipt)) = delete.fetch_optional(&mut *tx).await? else { return Ok(false) };
    let receipt: Receipt = receipt;
    Limiter::new().settle(&mut tx, receipt, used).await?;
    tx.commit().await?;
    Ok(true)
}

/// Stands in for the provider's answer, which tells how many tokens it took.
async fn ask_the_model(prompt: &str) -> u32 {
    tokio::time::sleep(Duration::from_millis(100)).await;
    50 * u32::try_from(prompt.len()).unwrap_or(u32::MAX)
}
