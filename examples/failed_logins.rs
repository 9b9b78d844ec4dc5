//! Failed log-ins count, successful ones do not: check, attempt, then consume or reset.
//!
//! `cargo run --features embedded --example failed_logins`

use std::time::Duration;

use sqlx::PgPool;
use tollgate::{Decision, Denied, Limit, Limiter, embedded, migrate};

/// Three guesses at once, and three more each quarter of an hour.
const FAILED_LOGINS: Limit = Limit::stepped_bucket("failed_logins", 3, Duration::from_mins(15));

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = embedded::Server::start()?;
    let pool = PgPool::connect(server.url()).await?;
    migrate::run(&mut *pool.acquire().await?).await?;

    for password in ["1234", "letmein", "correct horse", "hunter2", "hunter3", "hunter4", "correct horse"] {
        println!("{password:?}: {}", log_in(&pool, "ada", password).await?);
    }
    // Support lifts it.
    let mut tx = pool.begin().await?;
    Limiter::new().reset(&mut tx, FAILED_LOGINS.key("ada")).await?;
    tx.commit().await?;
    let answer = log_in(&pool, "ada", "correct horse").await?;
    println!("after a reset: {answer}");
    assert_eq!(answer, "welcome");
    Ok(())
}

async fn log_in(pool: &PgPool, user: &str, password: &str) -> Result<String, Box<dyn std::error::Error>> {
    let limiter = Limiter::new();
    // A look first, without a lock: who is locked out does not even learn whether this guess was right.
    let mut conn = pool.acquire().await?;
    if let Decision::Denied(Denied { retry_at, .. }) = limiter.check(&mut conn, FAILED_LOGINS.key(user)).await? {
        return Ok(format!("locked until {retry_at}"));
    }
    drop(conn);

    // The failure must count even if the handler's own work is rolled back, so it has a transaction of its own.
    let mut tx = pool.begin().await?;
    let answer = if password == "correct horse" {
        limiter.reset(&mut tx, FAILED_LOGINS.key(user)).await?;
        "welcome".to_owned()
    } else {
        match limiter.consume(&mut tx, FAILED_LOGINS.key(user)).await? {
            Decision::Granted(grant) => format!("wrong; guesses left: {}", grant.remaining),
            Decision::Denied(denied) => format!("wrong, and {denied}"),
        }
    };
    tx.commit().await?;
    Ok(answer)
}
