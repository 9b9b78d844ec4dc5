use std::time::Duration;

use chrono::{DateTime, FixedOffset, TimeDelta, Utc};
use sqlx::{PgConnection, PgPool};
use tollgate::{DAY, Decision, HOUR, Limit, Limiter, MINUTE, Receipt, SECOND};

use super::screen::{Screen, clock, local, short};
use crate::error::CommandError;

const LIMITER: Limiter = Limiter::new();

const DASHBOARD: Limit = Limit::token_bucket("demo_dashboard", 5, SECOND).capacity(10);
const PER_USER: Limit = Limit::token_bucket("demo_per_user", 5, MINUTE);
const PER_TENANT: Limit = Limit::fixed_window("demo_per_tenant", 2, HOUR);
const ALL_TRAFFIC: Limit = Limit::token_bucket("demo_all_traffic", 1_000, SECOND).ephemeral();
const LLM_TOKENS: Limit = Limit::token_bucket("demo_llm_tokens", 1_000, SECOND).max_reserved(5_000);
/// Midnight in India, UTC+05:30, is 18:30 UTC.
const EXPORTS: Limit = Limit::fixed_window("demo_exports", 3, DAY).start(Duration::from_mins(18 * 60 + 30));
const FAILED_LOGINS: Limit = Limit::stepped_bucket("demo_failed_logins", 3, Duration::from_mins(15));

/// All of them, for cleaning up.
pub(super) const LIMITS: [Limit; 7] =
    [DASHBOARD, PER_USER, PER_TENANT, ALL_TRAFFIC, LLM_TOKENS, EXPORTS, FAILED_LOGINS];

pub(super) async fn play(screen: &mut Screen, pool: &PgPool) -> Result<(), CommandError> {
    burst(screen, pool).await?;
    all_or_none(screen, pool).await?;
    reservation(screen, pool).await?;
    midnight(screen, pool).await?;
    failed_logins(screen, pool).await?;
    tables(screen, pool).await
}

async fn burst(screen: &mut Screen, pool: &PgPool) -> Result<(), CommandError> {
    screen.scene(
        "A dashboard fires ten calls at once, then an eleventh",
        &["demo_dashboard: token bucket, 5 per second, capacity 10"],
    )?;
    let calls: Vec<_> = (0..10).map(|_| tokio::spawn(one_call(pool.clone()))).collect();
    let mut granted = 0;
    for call in calls {
        granted += u32::from(call.await??.is_granted());
    }
    screen.answer("ten calls on ten connections", &format!("{granted} granted"))?;
    let Decision::Denied(denied) = one_call(pool.clone()).await? else {
        return screen.answer("the eleventh", "granted: this machine was too slow for the burst");
    };
    let answer = format!("refused: retry in {:?}, at {}", denied.retry_after(), clock(denied.retry_at));
    screen.answer("the eleventh", &answer)?;
    let mut tx = pool.begin().await?;
    screen.outlook(&mut tx, DASHBOARD.global(), 3 * SECOND).await?;
    for (asked, at) in [
        ("one microsecond before that", denied.retry_at - TimeDelta::microseconds(1)),
        ("at that microsecond", denied.retry_at),
    ] {
        let decision = LIMITER.at(at).check(&mut tx, DASHBOARD.global()).await?;
        screen.answer(asked, if decision.is_granted() { "would be granted" } else { "would be refused" })?;
    }
    drop(tx);
    tokio::time::sleep(denied.retry_after()).await;
    let answer =
        one_call(pool.clone()).await?.granted().map(|grant| format!("granted, {} left", short(grant.remaining)));
    screen.answer("after sleeping so long, for real", &answer.unwrap_or_else(|denied| denied.to_string()))
}

async fn one_call(pool: PgPool) -> Result<Decision, CommandError> {
    let mut tx = pool.begin().await?;
    let decision = LIMITER.consume(&mut tx, DASHBOARD.global()).await?;
    tx.commit().await?;
    Ok(decision)
}

async fn all_or_none(screen: &mut Screen, pool: &PgPool) -> Result<(), CommandError> {
    screen.scene(
        "An order asks three limits together; the third order is refused, and leaves no trace",
        &[
            "demo_per_user: token bucket, 5 per minute",
            "demo_per_tenant: fixed window, 2 per hour; each tenant's hours start at another minute",
            "demo_all_traffic: token bucket, 1000 per second, ephemeral",
        ],
    )?;
    for order in 1..=3 {
        let answer = match place_order(pool).await {
            Ok(remaining) => format!("granted, least left: {remaining}; order committed"),
            Err(CommandError::Denied(denied)) => format!("{denied}; order rolled back"),
            Err(error) => return Err(error),
        };
        screen.answer(&format!("order {order} of ada at acme"), &answer)?;
    }
    let orders: i64 = sqlx::query_scalar("select count(*) from tollgate_demo.orders").fetch_one(pool).await?;
    screen.answer("orders in the table", &orders.to_string())?;
    let mut conn = pool.acquire().await?;
    for request in [PER_USER.key(("acme", "ada")), PER_TENANT.key("acme")] {
        let balance = LIMITER.balance(&mut conn, request).await?;
        screen.balance(&balance)?;
    }
    Ok(())
}

/// What a handler does: its own insert and the limits in one transaction, which `?` rolls back.
async fn place_order(pool: &PgPool) -> Result<tollgate::Tokens, CommandError> {
    let mut tx = pool.begin().await?;
    sqlx::query("insert into tollgate_demo.orders (customer) values ('ada')").execute(&mut *tx).await?;
    let limits = [PER_USER.key(("acme", "ada")), PER_TENANT.key("acme"), ALL_TRAFFIC.global()];
    let grant = LIMITER.consume_all(&mut tx, limits).await?.granted()?;
    tx.commit().await?;
    Ok(short(grant.remaining))
}

async fn reservation(screen: &mut Screen, pool: &PgPool) -> Result<(), CommandError> {
    screen.scene(
        "A language model job of 1200 tokens: not now, but soon, and it is yours",
        &["demo_llm_tokens: token bucket, 1000 per second, reservations down to -5000"],
    )?;
    let mut tx = pool.begin().await?;
    let grant = LIMITER.consume(&mut tx, LLM_TOKENS.global().cost(600)).await?.granted()?;
    screen.answer("somebody else takes 600", &format!("granted, {} left", short(grant.remaining)))?;
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
    screen.answer("the job reserves 1200", &format!("reserved: ready in {wait:?}, at {}", clock(ready_at)))?;
    screen.line("   its row, with that instant as run_at and its receipt, commits with the reservation")?;
    let mut conn = pool.acquire().await?;
    screen.outlook(&mut conn, LLM_TOKENS.global(), 2 * SECOND).await?;
    tokio::time::sleep(wait).await;
    run_due_job(screen, pool).await
}

/// A worker: the job leaves its table and its receipt is settled in one transaction, hence once.
async fn run_due_job(screen: &mut Screen, pool: &PgPool) -> Result<(), CommandError> {
    let mut tx = pool.begin().await?;
    let (prompt, receipt, now): (String, String, String) = sqlx::query_as(
        "delete from tollgate_demo.jobs where run_at <= clock_timestamp()
         returning prompt, receipt, to_char(clock_timestamp() at time zone 'UTC', 'HH24:MI:SS.US')",
    )
    .fetch_one(&mut *tx)
    .await?;
    screen.answer(&format!("a worker runs '{prompt}'"), &format!("at {now} UTC"))?;
    let receipt: Receipt = serde_json::from_str(&receipt)?;
    let balance = LIMITER.settle(&mut tx, receipt, 950).await?;
    tx.commit().await?;
    screen.answer("the job took 950, so 250 come back", "settled")?;
    screen.balance(&balance)
}

async fn midnight(screen: &mut Screen, pool: &PgPool) -> Result<(), CommandError> {
    screen.scene(
        "Three exports a day, and the day starts at midnight in India",
        &["demo_exports: fixed window, 3 per day, start 18:30 UTC"],
    )?;
    let mut tx = pool.begin().await?;
    for export in 1..=4 {
        let answer = match LIMITER.consume(&mut tx, EXPORTS.key("acme")).await? {
            Decision::Granted(grant) => format!("granted, {} left", grant.remaining),
            Decision::Denied(denied) => format!("refused until {}", india(denied.retry_at)),
        };
        screen.answer(&format!("export {export}"), &answer)?;
    }
    screen.outlook(&mut tx, EXPORTS.key("acme"), DAY).await?;
    tx.commit().await?;
    Ok(())
}

fn india(instant: DateTime<Utc>) -> String {
    FixedOffset::east_opt(19_800).map_or_else(|| clock(instant), |zone| local(instant, zone))
}

async fn failed_logins(screen: &mut Screen, pool: &PgPool) -> Result<(), CommandError> {
    screen.scene(
        "Failed log-ins count, successful ones do not: check, attempt, then consume or reset",
        &["demo_failed_logins: stepped bucket, 3 at once, 3 more each 15 minutes after the first"],
    )?;
    let mut conn = pool.acquire().await?;
    for password in ["1234", "qwerty", "hunter2", "correct horse"] {
        let answer = log_in(&mut conn, password).await?;
        screen.answer(&format!("log in with '{password}'"), &answer)?;
    }
    let mut tx = pool.begin().await?;
    LIMITER.reset(&mut tx, FAILED_LOGINS.key("ada")).await?;
    tx.commit().await?;
    screen.answer("support lifts it", "reset")?;
    let answer = log_in(&mut conn, "correct horse").await?;
    screen.answer("log in with 'correct horse'", &answer)?;
    let balance = LIMITER.balance(&mut conn, FAILED_LOGINS.key("ada")).await?;
    screen.balance(&balance)
}

/// Each verb in a transaction of its own: a failure must count even if all else is rolled back.
async fn log_in(conn: &mut PgConnection, password: &str) -> Result<String, CommandError> {
    use sqlx::Connection;

    let user = FAILED_LOGINS.key("ada");
    if let Decision::Denied(denied) = LIMITER.check(conn, user.clone()).await? {
        return Ok(format!("not even tried: locked until {}", clock(denied.retry_at)));
    }
    let mut tx = conn.begin().await?;
    let answer = if password == "correct horse" {
        LIMITER.reset(&mut tx, user).await?;
        "welcome".to_owned()
    } else {
        match LIMITER.consume(&mut tx, user).await? {
            Decision::Granted(grant) => format!("wrong; attempts left: {}", grant.remaining),
            Decision::Denied(denied) => format!("wrong, and {denied}"),
        }
    };
    tx.commit().await?;
    Ok(answer)
}

async fn tables(screen: &mut Screen, pool: &PgPool) -> Result<(), CommandError> {
    screen.scene("What lies in the tables afterwards (select * from tollgate.balances)", &[])?;
    screen
        .line(&format!("   {:<20} {:<10} {:<10} {:>12}   {}", "name", "key", "storage", "last balance", "full in"))?;
    let rows: Vec<(String, String, String, String, String)> = sqlx::query_as(
        "select name, key, storage, round(balance, 2)::text, date_trunc('milliseconds', full_in)::text
           from tollgate.balances
          where name = any($1)
          order by name, key",
    )
    .bind(LIMITS.iter().map(|limit| limit.name().to_owned()).collect::<Vec<_>>())
    .fetch_all(pool)
    .await?;
    for (name, key, storage, balance, full_in) in rows {
        screen.line(&format!("   {name:<20} {key:<10} {storage:<10} {balance:>12}   {full_in}"))?;
    }
    screen.line("\nA row is a balance and an instant, whatever the load. Next: the README's thirty lines.")
}
