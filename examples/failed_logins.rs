//! Failed log-ins count, successful ones do not: check, attempt, then consume or reset. A failure must count even if the
//! handler's own work is rolled back, so a gate decides, in transactions of its own.
//!
//! `cargo run --features embedded --example failed_logins`

use std::time::Duration;

use sqlx::PgPool;
use tollgate::{Decision, Denied, Gate, Limit, embedded, migrate};

/// Three guesses at once, and three more each quarter of an hour.
const FAILED_LOGINS: Limit = Limit::stepped_bucket("failed_logins", 3, Duration::from_mins(15));

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = embedded::Server::start()?;
    let pool = PgPool::connect(server.url()).await?;
    migrate::run(&mut *pool.acquire().await?).await?;
    let gate = Gate::new(pool);

    for password in ["1234", "letmein", "correct horse", "hunter2", "hunter3", "hunter4", "correct horse"] {
        println!("{password:?}: {}", log_in(&gate, "ada", password).await?);
    }
    // Support lifts it.
    gate.reset(FAILED_LOGINS.key("ada")).await?;
    let answer = log_in(&gate, "ada", "correct horse").await?;
    println!("after a reset: {answer}");
    assert_eq!(answer, "welcome");
    Ok(())
}

async fn log_in(gate: &Gate, user: &str, password: &str) -> Result<String, tollgate::Error> {
    // A look first: who is locked out does not even learn whether this guess was right.
    if let Decision::Denied(Denied { retry_at, .. }) = gate.check(FAILED_LOGINS.key(user)).await? {
        return Ok(format!("locked until {retry_at}"));
    }
    if password == "correct horse" {
        gate.reset(FAILED_LOGINS.key(user)).await?;
        return Ok("welcome".to_owned());
    }
    Ok(match gate.consume(FAILED_LOGINS.key(user)).await? {
        Decision::Granted(grant) => format!("wrong; guesses left: {}", grant.remaining),
        Decision::Denied(denied) => format!("wrong, and {denied}"),
    })
}
