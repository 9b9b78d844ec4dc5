//! Two libraries on the same rows: `rolling OTHER` is the judge, and a program without arguments is a client.

use std::error::Error;
use std::process::Command;

use sqlx::PgPool;
use sqlx::types::Json;
use tollgate::{Gate, Limit, Limiter, Receipt, migrate};
use tollgate_embedded::Server;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Nothing comes back by itself, so each token is somewhere.
const WALLET: Limit = Limit::wallet("wallet");
const KEYS: [&str; 3] = ["a", "b", "c"];
const ROUNDS: i64 = 200;

#[tokio::main]
async fn main() -> Result<()> {
    match std::env::args().nth(1) {
        Some(other) => judge(&other).await,
        None => client(&std::env::var("DATABASE_URL")?).await,
    }
}

/// A deploy and the way back. Every credit counts once, and each token of it was spent or is left.
async fn judge(other: &str) -> Result<()> {
    let server = Server::start()?;
    let pool = PgPool::connect(server.url()).await?;
    migrate::run(&mut *pool.acquire().await?).await?;
    let tables = "create table held (key text, cost int8, receipt jsonb); create table spent (key text, cost int8)";
    sqlx::raw_sql(tables).execute(&pool).await?;
    let this = std::env::current_exe()?;
    let this = this.to_str().ok_or("a path that is no text")?;
    for crew in [&[other][..], &[other, this], &[this], &[this, other], &[other]] {
        let start = |program| Command::new(program).env("DATABASE_URL", server.url()).spawn();
        for mut client in crew.iter().map(start).collect::<std::io::Result<Vec<_>>>()? {
            assert!(client.wait()?.success(), "a client failed");
        }
    }
    let credited: i64 = (0..ROUNDS).filter(|round| is_kept(*round)).map(|_| 5).sum();
    for key in KEYS {
        let sum = "select sum(cost)::int8, count(*) from (select * from spent union all
                   select key, cost from held) calls where key = $1";
        let (spent, calls): (i64, i64) = sqlx::query_as(sum).bind(key).fetch_one(&pool).await?;
        let left = Limiter::new().balance(&mut *pool.acquire().await?, WALLET.key(key)).await?.remaining.to_string();
        println!("{key}: {calls} calls spent {spent} of {credited} and left {left}");
        assert_eq!(left, (credited - spent).to_string(), "{key}");
    }
    Ok(())
}

/// Every client gives up the same transactions, so that none of them credits for another.
fn is_kept(round: i64) -> bool {
    round % 7 != 0
}

async fn client(url: &str) -> Result<()> {
    let pool = PgPool::connect(url).await?;
    let gate = Gate::new(pool.clone());
    let workers: Vec<_> = KEYS.map(|key| tokio::spawn(work(pool.clone(), gate.clone(), key))).into();
    for worker in workers {
        worker.await??;
    }
    Ok(())
}

async fn work(pool: PgPool, gate: Gate, key: &'static str) -> Result<()> {
    let limiter = Limiter::new();
    let hold = "insert into held values ($1, $2, $3)";
    for round in 0..ROUNDS {
        // The other client credits the same one.
        let mut tx = pool.begin().await?;
        limiter.credit(&mut tx, WALLET.key(key).cost(5).once(round)).await?;
        if let Ok(grant) = limiter.consume(&mut tx, WALLET.key(key).cost(3)).await?.granted() {
            sqlx::query(hold).bind(key).bind(3).bind(Json(Receipt::from(grant))).execute(&mut *tx).await?;
        }
        if round % 7 == 0 {
            tx.rollback().await?
        } else {
            tx.commit().await?
        }
        let decision = match gate.consume(WALLET.key(key).cost(2)).await {
            // The machine is busy: nothing was taken.
            Err(tollgate::Error::Locked { .. } | tollgate::Error::PoolExhausted { .. }) => continue,
            decision => decision?,
        };
        if let Ok(grant) = decision.granted() {
            sqlx::query(hold).bind(key).bind(2).bind(Json(Receipt::from(grant))).execute(&pool).await?;
        }
        // Most receipts are the other client's.
        let mut tx = pool.begin().await?;
        let any = "delete from held where ctid = (select ctid from held where key <> $1 limit 1 for update skip locked)
                   returning key, receipt";
        let found = sqlx::query_as(any).bind(key).fetch_optional(&mut *tx).await?;
        if let Some((key, Json(receipt))) = found as Option<(String, Json<Receipt>)> {
            limiter.settle(&mut tx, receipt, 1).await?;
            sqlx::query("insert into spent values ($1, 1)").bind(key).execute(&mut *tx).await?;
        }
        tx.commit().await?;
    }
    Ok(())
}
