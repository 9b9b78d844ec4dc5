//! A global limit on sign-ups for a free trial, inside the transaction that inserts the account: both commit, or
//! neither does. A sign-up that fails for another reason, such as a duplicate address, costs nothing.
//!
//! `cargo run --example sign_ups`

use sqlx::PgPool;
use tollgate::{DAY, Limit, Limiter, migrate};
use tollgate_embedded::Server;

/// Three trials a day for everybody together. The days start with the first sign-up.
const TRIALS: Limit = Limit::stepped_bucket("trials", 3, DAY);

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = Server::start()?;
    let pool = PgPool::connect(server.url()).await?;
    migrate::run(&mut *pool.acquire().await?).await?;
    sqlx::raw_sql("create table accounts (email text primary key)").execute(&pool).await?;

    for email in
        ["ada@example.com", "grace@example.com", "ada@example.com", "edsger@example.com", "barbara@example.com"]
    {
        match sign_up(&pool, email).await {
            Ok(()) => println!("{email}: welcome"),
            Err(error) => println!("{email}: {error}"),
        }
    }
    let accounts: i64 = sqlx::query_scalar("select count(*) from accounts").fetch_one(&pool).await?;
    assert_eq!(accounts, 3, "the duplicate cost nothing, and the last one left nothing behind");
    Ok(())
}

async fn sign_up(pool: &PgPool, email: &str) -> Result<(), Box<dyn std::error::Error>> {
    let mut tx = pool.begin().await?;
    sqlx::query("insert into accounts (email) values ($1)").bind(email).execute(&mut *tx).await?;
    // Last before the commit: all sign-ups share one row, which stays locked until the transaction ends. A refusal
    // returns by `?`, which drops the transaction and rolls the insert back.
    Limiter::new().consume(&mut tx, TRIALS.global()).await?.granted()?;
    tx.commit().await?;
    Ok(())
}
