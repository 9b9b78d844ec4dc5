//! The helpers of most tests of shards.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::{AssertSqlSafe, PgConnection};
use tollgate::{Limit, Storage, Tokens};

use crate::world::{part, top};

/// So long that nothing comes back while a test runs.
pub(super) const EVER: Duration = Limit::MAX_PERIOD;

/// The shards of a limit by hand, under the empty key: the balance of each, in micro-tokens.
pub(super) async fn put(conn: &mut PgConnection, limit: &Limit, left: &[i64], ts: DateTime<Utc>) {
    clear(conn, limit).await;
    let sql = format!("insert into tollgate.{} values ($1, $2, '', $3, $4, $5, '0001-01-01')", table(limit));
    for (left, shard) in left.iter().zip(0_i16..) {
        let query = sqlx::query(AssertSqlSafe(&*sql)).bind(part("")).bind(limit.name()).bind(shard);
        query.bind(left - share(limit, shard)).bind(ts).execute(&mut *conn).await.unwrap();
    }
}

/// The balance of a full shard, in micro-tokens.
pub(super) fn share(limit: &Limit, shard: i16) -> i64 {
    let (most, shards) = (top(limit), i64::from(limit.spec().shards));
    most / shards + i64::from(i64::from(shard) < most % shards)
}

/// Deletes all rows of a limit.
pub(super) async fn clear(conn: &mut PgConnection, limit: &Limit) {
    let sql = format!("delete from tollgate.{} where name = '{}'", table(limit), limit.name());
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut *conn).await.unwrap();
}

/// The rows of a limit, under all keys: number, and balance in micro-tokens.
pub(super) async fn shards(conn: &mut PgConnection, limit: &Limit) -> Vec<(i16, i64)> {
    let (table, name) = (table(limit), limit.name());
    let sql = format!("select shard, value from tollgate.{table} where name = '{name}' order by key, shard");
    let rows: Vec<(i16, i64)> = sqlx::query_as(AssertSqlSafe(sql)).fetch_all(conn).await.unwrap();
    rows.into_iter().map(|(shard, value)| (shard, value + share(limit, shard))).collect()
}

/// The versions of the rows of a limit: another where one was written.
pub(super) async fn versions(conn: &mut PgConnection, limit: &Limit) -> Vec<(i16, String)> {
    let sql = format!(
        "select shard, ctid::text from tollgate.{} where name = '{}' order by shard",
        table(limit),
        limit.name()
    );
    sqlx::query_as(AssertSqlSafe(sql)).fetch_all(conn).await.unwrap()
}

/// The table of a limit's rows.
pub(super) fn table(limit: &Limit) -> Storage {
    limit.storage
}

pub(super) fn whole(micros: i64) -> Tokens {
    Tokens::from_micros(micros * 1_000_000)
}
