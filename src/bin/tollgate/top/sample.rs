use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use sqlx::PgConnection;

use crate::transaction::read_only;

/// One look at the tables, at one instant or as near as several statements come.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    /// The database's clock, in microseconds since the Unix epoch.
    pub(super) now: i64,
    pub(super) tables: Vec<TableSample>,
}

/// What was seen of one table.
#[derive(Clone, Debug)]
pub(super) struct TableSample {
    pub(super) name: String,
    /// The share of its pages that was looked at, in percent.
    pub(super) percent: f32,
    pub(super) counts: Counts,
    pub(super) totals: Totals,
    pub(super) rows: BTreeMap<RowId, RowSample>,
}

/// What PostgreSQL counts; `written` and the like since its statistics were reset.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) bytes: i64,
    pub(super) live: i64,
    pub(super) dead: i64,
    pub(super) written: i64,
    pub(super) updated: i64,
    pub(super) updated_hot: i64,
    pub(super) deleted: i64,
}

/// What the rows add up to that were looked at.
#[derive(Clone, Copy, Debug, Default, Serialize, sqlx::FromRow)]
pub(super) struct Totals {
    /// Rows that are not full by their own word.
    pub(super) wanting: i64,
    /// Of those, rows with less than one token when they were written.
    pub(super) low: i64,
    /// Of those, rows below zero.
    pub(super) owing: i64,
    /// What they owe together, in micro-tokens.
    pub(super) owed: f64,
}

#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct RowId {
    pub(super) name: String,
    pub(super) key: String,
    pub(super) shard: i16,
}

/// A row, with instants in microseconds since the Unix epoch.
#[derive(Clone, Debug)]
pub(super) struct RowSample {
    pub(super) micros: i64,
    pub(super) since: i64,
    pub(super) full_at: i64,
    /// The transaction that wrote it.
    pub(super) version: String,
}

impl Sample {
    /// Looks, in a transaction that writes nothing and whose statements take two seconds at most.
    pub(super) async fn take(conn: &mut PgConnection, most: u32) -> Result<Self, LookError> {
        let mut tx = read_only(conn, LONGEST).await?;
        let (mut tables, mut now) = (Vec::new(), 0);
        for found in query_as::<Table>(include_str!("sql/tables.sql")).fetch_all(&mut *tx).await? {
            now = found.now;
            let [rows, totals] = match found.name.as_str() {
                "buckets" => [include_str!("sql/rows_buckets.sql"), include_str!("sql/totals_buckets.sql")],
                _ => [include_str!("sql/rows_rate_limits.sql"), include_str!("sql/totals_rate_limits.sql")],
            };
            let percent = percent_of(found.pages);
            let rows = query_as::<FoundRow>(rows).bind(percent).bind(i64::from(most)).fetch_all(&mut *tx).await?;
            let totals = query_as(totals).bind(percent).fetch_one(&mut *tx).await?;
            tables.push(found.into_sample(percent, rows, totals));
        }
        tx.rollback().await?;
        if tables.is_empty() { Err(LookError::NoTables) } else { Ok(Self { now, tables }) }
    }
}

/// Why nothing can be seen.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LookError {
    #[error("could not look at the tables: {0}")]
    Database(#[from] sqlx::Error),
    #[error("the tables of tollgate are not there (run `tollgate migrate up`)")]
    NoTables,
    #[error("there is no terminal to draw on (print one frame with --once)")]
    NoTerminal,
}

/// A statement without a name, so that any pooler will do.
fn query_as<T: for<'r> sqlx::FromRow<'r, sqlx::postgres::PgRow>>(
    sql: &'static str,
) -> sqlx::query::QueryAs<'static, sqlx::Postgres, T, sqlx::postgres::PgArguments> {
    sqlx::query_as(sql).persistent(false)
}

#[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "a share of pages, in percent")]
fn percent_of(pages: i64) -> f32 {
    (100.0 * MOST_PAGES / (pages.max(1) as f64)).min(100.0) as f32
}

#[derive(sqlx::FromRow)]
struct Table {
    name: String,
    pages: i64,
    bytes: i64,
    live: i64,
    dead: i64,
    written: i64,
    updated: i64,
    updated_hot: i64,
    deleted: i64,
    now: i64,
}

impl Table {
    fn into_sample(self, percent: f32, rows: Vec<FoundRow>, totals: Totals) -> TableSample {
        let Self { name, bytes, live, dead, written, updated, updated_hot, deleted, .. } = self;
        let counts = Counts { bytes, live, dead, written, updated, updated_hot, deleted };
        let rows = rows.into_iter().map(FoundRow::into_sample).collect();
        TableSample { name, percent, counts, totals, rows }
    }
}

#[derive(sqlx::FromRow)]
struct FoundRow {
    name: String,
    key: String,
    shard: i16,
    micros: i64,
    since: i64,
    full_at: i64,
    version: String,
}

impl FoundRow {
    fn into_sample(self) -> (RowId, RowSample) {
        let Self { name, key, shard, micros, since, full_at, version } = self;
        (RowId { name, key, shard }, RowSample { micros, since, full_at, version })
    }
}

/// A look that takes longer costs too much.
const LONGEST: Duration = Duration::from_secs(2);

/// Eight megabytes of each table, some ninety thousand rows: tens of milliseconds for each look at most.
const MOST_PAGES: f64 = 1024.0;
