//! What most tests of shards need.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::{AssertSqlSafe, PgConnection};
use tollgate::{Limit, Storage, Tokens};

/// So long that nothing comes back while a test runs.
pub(super) const EVER: Duration = Limit::MAX_PERIOD;

/// The number of the first of so many rows.
pub(super) fn first(shards: u16) -> u16 {
    shards * (shards - 1) / 2
}

/// The shards of a limit by hand, under the empty key: their values, in micro-tokens.
pub(super) async fn put(conn: &mut PgConnection, limit: &Limit, values: &[i64], ts: DateTime<Utc>) {
    let spec = limit.spec();
    clear(conn, limit).await;
    let sql = match spec.storage {
        Storage::Ephemeral => "insert into tollgate.buckets values ($1, '', $2, $3, $4, $4)",
        Storage::Durable => "insert into tollgate.rate_limits values ($1, '', $2, $3, $4, $4)",
    };
    for (value, shard) in values.iter().zip(first(spec.shards)..) {
        let query = sqlx::query(sql).bind(&spec.name).bind(i16::try_from(shard).unwrap()).bind(value).bind(ts);
        query.execute(&mut *conn).await.unwrap();
    }
}

/// Deletes all rows of a limit.
pub(super) async fn clear(conn: &mut PgConnection, limit: &Limit) {
    let sql = format!("delete from tollgate.{} where name = '{}'", table(limit).0, limit.name());
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut *conn).await.unwrap();
}

/// The rows of a limit, under all keys: number and value in micro-tokens.
pub(super) async fn shards(conn: &mut PgConnection, limit: &Limit) -> Vec<(i16, i64)> {
    let (table, value) = table(limit);
    let sql =
        format!("select shard, {value} from tollgate.{table} where name = '{}' order by key, shard", limit.name());
    sqlx::query_as(AssertSqlSafe(sql)).fetch_all(conn).await.unwrap()
}

/// The versions of the rows of a limit: another where one was written.
pub(super) async fn versions(conn: &mut PgConnection, limit: &Limit) -> Vec<(i16, String)> {
    let sql = format!(
        "select shard, ctid::text from tollgate.{} where name = '{}' order by shard",
        table(limit).0,
        limit.name()
    );
    sqlx::query_as(AssertSqlSafe(sql)).fetch_all(conn).await.unwrap()
}

/// Where rows are, and the column of their values.
fn table(limit: &Limit) -> (&'static str, &'static str) {
    match limit.spec().storage {
        Storage::Ephemeral => ("buckets", "tokens"),
        Storage::Durable => ("rate_limits", "value"),
    }
}

pub(super) fn whole(micros: i64) -> Tokens {
    Tokens::from_micros(micros * 1_000_000)
}
