use sqlx::PgPool;
use tollgate::{Limit, Limiter, MINUTE};

const LIMIT: Limit = Limit::token_bucket("downstream", 10, MINUTE);

async fn handler(pool: &PgPool) -> Result<(), Box<dyn std::error::Error>> {
    let mut tx = pool.begin().await?;
    Limiter::new().consume(&mut tx, LIMIT.key(42)).await?.granted()?;
    tx.commit().await?;
    Ok(())
}

fn main() {
    let _ = handler;
}
