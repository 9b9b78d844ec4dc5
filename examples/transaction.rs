//! A limit inside the transaction of the work: both commit, or neither does.
//!
//! `cargo run --example transaction`

use sqlx::PgPool;
use tollgate::{HOUR, Limit, Limiter, migrate};
use tollgate_embedded::Server;

/// Ten messages an hour on average, three at once.
const SEND_MESSAGE: Limit = Limit::token_bucket("send_message", 10, HOUR).capacity(3);

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = Server::start()?;
    let pool = PgPool::connect(server.url()).await?;
    migrate::run(&mut *pool.acquire().await?).await?;
    sqlx::raw_sql("create table messages (author bigint not null, body text not null)").execute(&pool).await?;

    for body in ["one", "two", "three", "four"] {
        match send(&pool, 42, body).await {
            Ok(()) => println!("sent {body:?}"),
            Err(refused) => println!("not sent {body:?}: {refused}"),
        }
    }
    let sent: i64 = sqlx::query_scalar("select count(*) from messages").fetch_one(&pool).await?;
    println!("{sent} messages in the table");
    assert_eq!(sent, 3, "the refused one left nothing behind");
    Ok(())
}

async fn send(pool: &PgPool, author: i64, body: &str) -> Result<(), Box<dyn std::error::Error>> {
    let mut tx = pool.begin().await?;
    sqlx::query("insert into messages (author, body) values ($1, $2)")
        .bind(author)
        .bind(body)
        .execute(&mut *tx)
        .await?;
    // Last before the commit: the row of this author stays locked until the transaction ends. A refusal returns by `?`,
    // which drops the transaction and rolls the message back.
    Limiter::new().consume(&mut tx, SEND_MESSAGE.key(author)).await?.granted()?;
    tx.commit().await?;
    Ok(())
}
