//! Shows what the limiter does on a real server. Each scene prints its calls, the answers, and the balance.
//!
//! `./dev demo`, or `cargo run --example demo [-- --database-url URL]`. The URL names a database to run in, instead of
//! a private one: the demo migrates it, and removes what it wrote itself.

use std::env;

use chrono::{DateTime, TimeDelta, Utc};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tollgate::{Balance, Decision, HOUR, Limit, Limiter, MINUTE, Receipt, SECOND, Tokens, migrate};
use tollgate_embedded::Server;

type Error = Box<dyn std::error::Error + Send + Sync>;

const LIMITER: Limiter = Limiter::new();

const DASHBOARD: Limit = Limit::token_bucket("demo_dashboard", 5, SECOND).capacity(10);
const PER_USER: Limit = Limit::token_bucket("demo_per_user", 5, MINUTE);
const PER_TENANT: Limit = Limit::stepped_bucket("demo_per_tenant", 2, HOUR);
const ALL_TRAFFIC: Limit = Limit::token_bucket("demo_all_traffic", 1_000, SECOND).ephemeral();
const LLM_TOKENS: Limit = Limit::token_bucket("demo_llm_tokens", 1_000, SECOND).max_reserved(5_000);

const LIMITS: [Limit; 5] = [DASHBOARD, PER_USER, PER_TENANT, ALL_TRAFFIC, LLM_TOKENS];

#[tokio::main]
async fn main() -> Result<(), Error> {
    let args: Vec<_> = env::args().skip(1).collect();
    match &args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => {
            let server = Server::start()?;
            println!("tollgate demo, on a private PostgreSQL that is gone when this ends");
            play(server.url()).await
        }
        ["--database-url", url] => {
            println!("tollgate demo, in the database given");
            play(url).await
        }
        _ => Err("usage: ./dev demo [--database-url URL]".into()),
    }
}

async fn play(url: &str) -> Result<(), Error> {
    let pool = PgPoolOptions::new().max_connections(12).connect(url).await?;
    let mut open = Vec::new();
    // Opened now: the first scene is about ten calls at once.
    for _ in 0..10 {
        open.push(pool.acquire().await?);
    }
    drop(open);
    let applied = migrate::run(&mut *pool.acquire().await?).await?;
    println!("migrated the schema tollgate: {} applied", applied.len());
    // The demo's own tables: what a user's service would have.
    let set_up = "
        create schema tollgate_demo;
        create table tollgate_demo.orders (id bigint generated always as identity primary key, customer text not null);
        create table tollgate_demo.jobs (run_at timestamptz not null, prompt text not null, receipt text not null);";
    sqlx::raw_sql(set_up).execute(&pool).await?;
    let played = scenes(&pool).await;
    sqlx::raw_sql("drop schema tollgate_demo cascade").execute(&pool).await?;
    let clean_up = "with gone as (delete from tollgate.ephemeral where name = any($1))
                    delete from tollgate.durable where name = any($1)";
    let names: Vec<_> = LIMITS.iter().map(|limit| limit.name().to_owned()).collect();
    sqlx::query(clean_up).bind(names).execute(&pool).await?;
    played
}

async fn scenes(pool: &PgPool) -> Result<(), Error> {
    burst(pool).await?;
    all_or_none(pool).await?;
    reservation(pool).await?;
    println!("\nA row says what is used, since when and until when, whatever the load. Next: the README's example.");
    Ok(())
}

async fn burst(pool: &PgPool) -> Result<(), Error> {
    scene(
        "1. A dashboard fires ten calls at once, then an eleventh",
        &["demo_dashboard: token bucket, 5 per second, capacity 10"],
    );
    let calls: Vec<_> = (0..10).map(|_| tokio::spawn(one_call(pool.clone()))).collect();
    let mut granted = 0;
    for call in calls {
        granted += u32::from(call.await??.is_granted());
    }
    say("ten calls on ten connections", &format!("{granted} granted"));
    let Decision::Denied(denied) = one_call(pool.clone()).await? else {
        say("the eleventh", "granted: this machine was too slow for the burst");
        return Ok(());
    };
    let (Some(wait), Some(retry_at)) = (denied.retry_after(), denied.retry_at) else {
        return Err("a bucket fills up".into());
    };
    let answer = format!("refused: retry in {wait:?}, at {}", clock(retry_at));
    say("the eleventh", &answer);
    let mut tx = pool.begin().await?;
    for (asked, at) in
        [("one microsecond before that", retry_at - TimeDelta::microseconds(1)), ("at that microsecond", retry_at)]
    {
        let decision = LIMITER.at(at).check(&mut tx, DASHBOARD.global()).await?;
        say(asked, if decision.is_granted() { "would be granted" } else { "would be refused" });
    }
    drop(tx);
    tokio::time::sleep(wait).await;
    let answer =
        one_call(pool.clone()).await?.granted().map(|grant| format!("granted, {} left", short(grant.remaining)));
    say("after sleeping so long, for real", &answer.unwrap_or_else(|denied| denied.to_string()));
    Ok(())
}

async fn one_call(pool: PgPool) -> Result<Decision, Error> {
    let mut tx = pool.begin().await?;
    let decision = LIMITER.consume(&mut tx, DASHBOARD.global()).await?;
    tx.commit().await?;
    Ok(decision)
}

async fn all_or_none(pool: &PgPool) -> Result<(), Error> {
    scene(
        "2. An order asks three limits together; the third order is refused, and leaves no trace",
        &[
            "demo_per_user: token bucket, 5 per minute",
            "demo_per_tenant: stepped bucket, 2 per hour; a tenant's hours start with its first order",
            "demo_all_traffic: token bucket, 1000 per second, ephemeral",
        ],
    );
    for order in 1..=3 {
        let placed = match place_order(pool).await? {
            Decision::Granted(grant) => format!("granted, least left: {}; order committed", short(grant.remaining)),
            Decision::Denied(denied) => format!("{denied}; order rolled back"),
        };
        say(&format!("order {order} of ada at acme"), &placed);
    }
    let orders: i64 =
        sqlx::query_scalar("select pg_catalog.count(*) from tollgate_demo.orders").fetch_one(pool).await?;
    say("orders in the table", &orders.to_string());
    let mut conn = pool.acquire().await?;
    for request in [PER_USER.key(("acme", "ada")), PER_TENANT.key("acme")] {
        let balance = LIMITER.balance(&mut conn, request).await?;
        show(&balance);
    }
    Ok(())
}

/// A handler: it makes its own insert and asks the limits in one transaction, which is rolled back unless it commits.
async fn place_order(pool: &PgPool) -> Result<Decision, Error> {
    let mut tx = pool.begin().await?;
    sqlx::query("insert into tollgate_demo.orders (customer) values ('ada')").execute(&mut *tx).await?;
    let limits = [PER_USER.key(("acme", "ada")), PER_TENANT.key("acme"), ALL_TRAFFIC.global()];
    let decision = LIMITER.consume(&mut tx, limits).await?;
    if decision.is_granted() {
        tx.commit().await?;
    }
    Ok(decision)
}

async fn reservation(pool: &PgPool) -> Result<(), Error> {
    scene(
        "3. A language model job of 1200 tokens: not now, but soon, and it is yours",
        &["demo_llm_tokens: token bucket, 1000 per second, reservations down to -5000"],
    );
    let mut tx = pool.begin().await?;
    let grant = LIMITER.consume(&mut tx, LLM_TOKENS.global().cost(600)).await?.granted()?;
    say("somebody else takes 600", &format!("granted, {} left", short(grant.remaining)));
    let booked = LIMITER.reserve(&mut tx, LLM_TOKENS.global().cost(1_200)).await?.granted()?;
    let (ready_at, wait) = (booked.ready_at, booked.wait());
    sqlx::query(
        "insert into tollgate_demo.jobs (run_at, prompt, receipt) values ($1::timestamptz, 'write a poem', $2)",
    )
    .bind(ready_at.to_rfc3339())
    .bind(serde_json::to_string(&Receipt::from(booked))?)
    .execute(&mut *tx)
    .await?;
    tx.commit().await?;
    say("the job reserves 1200", &format!("reserved: ready in {wait:?}, at {}", clock(ready_at)));
    println!("   its row, with that instant as run_at and its receipt, commits with the reservation");
    tokio::time::sleep(wait).await;
    run_due_job(pool).await
}

/// A worker: the job leaves its table and its receipt is settled in one transaction, so both happen once.
async fn run_due_job(pool: &PgPool) -> Result<(), Error> {
    let mut tx = pool.begin().await?;
    let (prompt, receipt, now): (String, String, String) = sqlx::query_as(
        "delete from tollgate_demo.jobs where run_at <= pg_catalog.clock_timestamp()
         returning prompt, receipt,
           pg_catalog.to_char(pg_catalog.clock_timestamp() at time zone 'UTC', 'HH24:MI:SS.US')",
    )
    .fetch_one(&mut *tx)
    .await?;
    say(&format!("a worker runs '{prompt}'"), &format!("at {now} UTC"));
    let receipt: Receipt = serde_json::from_str(&receipt)?;
    LIMITER.settle(&mut tx, receipt, 950).await?;
    let balance = LIMITER.balance(&mut tx, LLM_TOKENS.global()).await?;
    tx.commit().await?;
    say("the job took 950, so 250 come back", "settled");
    show(&balance);
    Ok(())
}

/// A new scene: what happens, and the limits that it is about.
fn scene(title: &str, limits: &[&str]) {
    println!("\n{title}");
    for limit in limits {
        println!("   limit    {limit}");
    }
}

/// Prints a call and its answer.
fn say(asked: &str, answer: &str) {
    println!("   {asked:<36} {answer}");
}

/// A balance as a number and a bar.
fn show(balance: &Balance) {
    let Balance { limit, remaining, capacity, .. } = balance;
    let filled = remaining.micros().max(0) / (capacity.micros() / BAR_WIDTH).max(1);
    let bar: String = (0..BAR_WIDTH).map(|place| if place < filled { '█' } else { '·' }).collect();
    say(&format!("balance of {limit}"), &format!("▕{bar}▏ {:>7} of {capacity}", short(*remaining)));
}

/// The time of day, to the microsecond.
fn clock(instant: DateTime<Utc>) -> String {
    instant.format("%H:%M:%S%.6f UTC").to_string()
}

/// Tokens to two decimals, rounded down: for people to look at.
fn short(tokens: Tokens) -> Tokens {
    Tokens::from_micros(tokens.micros().div_euclid(10_000) * 10_000)
}

const BAR_WIDTH: i64 = 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn it_leaves_nothing_behind_but_the_tables_and_the_rows_of_others() {
        let server = Server::start().unwrap();
        let pool = PgPool::connect(server.url()).await.unwrap();
        migrate::run(&mut pool.acquire().await.unwrap()).await.unwrap();
        let mut tx = pool.begin().await.unwrap();
        let other = Limit::token_bucket("demo_accounts_sms", 5, HOUR);
        LIMITER.debit(&mut tx, other.key("ada").cost(8)).await.unwrap();
        tx.commit().await.unwrap();

        play(server.url()).await.unwrap();
        let rows = "select name from tollgate.durable union all select name from tollgate.ephemeral";
        let names: Vec<String> = sqlx::query_scalar(rows).fetch_all(&pool).await.unwrap();
        assert_eq!(names, ["demo_accounts_sms"]);
        let schemas: i64 = sqlx::query_scalar("select count(*) from pg_namespace where nspname like '%demo%'")
            .fetch_one(&pool)
            .await
            .unwrap();
        assert_eq!(schemas, 0);
    }
}
