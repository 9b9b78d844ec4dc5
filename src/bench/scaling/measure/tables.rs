#![expect(clippy::disallowed_methods, reason = "how long a statement takes is told by the monotonic clock")]

use std::time::Instant;

use sqlx::{AssertSqlSafe, Connection as _, PgConnection, PgPool};

use crate::HOUR;
use crate::bench::error::BenchError;
use crate::bench::scaling::{Figures, Keys, Quantity, Subject};
use crate::limit::{Limit, Storage};
use crate::limiter::Limiter;
use crate::migrate;
use crate::sweeper::Sweeper;

/// What a table of durable rows takes, freezing it, sweeping every second row, and the vacuum after that.
pub(super) async fn measure(url: &str, keys: Keys, rows: u32) -> Result<Vec<(Subject, Figures)>, BenchError> {
    let mut conn = PgConnection::connect(url).await.map_err(BenchError::Connect)?;
    migrate::run(&mut conn).await?;
    sqlx::raw_sql("truncate tollgate.rate_limits").execute(&mut conn).await?;
    match load(keys) {
        Some(sql) => {
            sqlx::query(AssertSqlSafe(sql)).bind(i64::from(rows)).execute(&mut conn).await?;
        }
        None => call(&mut conn, rows).await?,
    }
    sqlx::raw_sql("analyze tollgate.rate_limits").execute(&mut conn).await?;
    let (heap, index): (f64, f64) = sqlx::query_as(SIZES).fetch_one(&mut conn).await?;
    let whole = f64::from(rows);
    let table = Figures::from([(Quantity::HeapBytes, heap / whole), (Quantity::IndexBytes, index / whole)]);
    if keys == Keys::Called {
        return Ok(vec![(Subject::Rows { keys, rows }, table)]);
    }

    let freeze = Work::begin(&mut conn).await?;
    sqlx::raw_sql("vacuum (freeze) tollgate.rate_limits").execute(&mut conn).await?;
    let freeze = freeze.end(&mut conn, whole).await?;

    let sweep = Work::begin(&mut conn).await?;
    let pool = PgPool::connect(url).await.map_err(BenchError::Connect)?;
    let swept = Sweeper::new().only(Storage::Durable).share(100).sweep(&pool).await?;
    pool.close().await;
    #[expect(clippy::cast_precision_loss, reason = "fewer rows than that")]
    let swept = swept.rows() as f64;
    let sweep = sweep.end(&mut conn, swept).await?;

    let vacuum = Work::begin(&mut conn).await?;
    sqlx::raw_sql("vacuum tollgate.rate_limits").execute(&mut conn).await?;
    let vacuum = vacuum.end(&mut conn, swept).await?;
    conn.close().await?;
    Ok(vec![
        (Subject::Rows { keys, rows }, table),
        (Subject::Freeze { keys, rows }, freeze),
        (Subject::Sweep { keys, rows }, sweep),
        (Subject::Vacuum { keys, rows }, vacuum),
    ])
}

/// Something that is done to many rows, right after a checkpoint: so each page that it changes is logged as a whole.
struct Work {
    began: Instant,
    log: f64,
}

impl Work {
    async fn begin(conn: &mut PgConnection) -> Result<Self, BenchError> {
        sqlx::raw_sql("checkpoint").execute(&mut *conn).await?;
        Ok(Self { log: sqlx::query_scalar(LOG).fetch_one(conn).await?, began: Instant::now() })
    }

    async fn end(self, conn: &mut PgConnection, rows: f64) -> Result<Figures, BenchError> {
        let micros = self.began.elapsed().as_secs_f64() * 1e6;
        let log: f64 = sqlx::query_scalar(LOG).fetch_one(conn).await?;
        Ok(Figures::from([(Quantity::RowMicros, micros / rows), (Quantity::WalBytes, (log - self.log) / rows)]))
    }
}

/// Makes rows as callers do.
async fn call(conn: &mut PgConnection, rows: u32) -> Result<(), BenchError> {
    let limit = Limit::token_bucket("bench_per_user", 10, HOUR);
    let requests: Vec<_> = (0..rows).map(|user| limit.key(user)).collect();
    for some in requests.chunks(100) {
        let mut tx = conn.begin().await?;
        Limiter::new().consume_all(&mut tx, some.iter().cloned()).await?.granted()?;
        tx.commit().await?;
    }
    Ok(())
}

/// The statement that fills the table, every second row of which is full again; none where calls do.
fn load(keys: Keys) -> Option<String> {
    let (name, key, order) = match keys {
        Keys::Called => return None,
        Keys::Sorted => ("send_message", "'user:' || n", "key"),
        Keys::Pairs => ("per_user", "hashint8(n) & 1023 || '|' || n", "hashint8(n)"),
        Keys::Uuids => ("requests_per_api_key", "md5(n::text)::uuid::text", "n"),
    };
    Some(format!(
        "insert into tollgate.rate_limits (name, key, shard, value, ts, full_at)
         select '{name}', ({key}) collate \"C\" as key, 0, 1000000, clock_timestamp() - interval '2 hours',
                clock_timestamp() + case when n % 2 = 0 then interval '-1 hour' else interval '1 day' end
           from generate_series(1, $1) as n (n)
          order by {order}"
    ))
}

const SIZES: &str = "
    select pg_relation_size('tollgate.rate_limits')::float8, pg_indexes_size('tollgate.rate_limits')::float8";

const LOG: &str = "select (pg_current_wal_insert_lsn() - '0/0')::float8";
