use std::ops::Sub;

use sqlx::PgConnection;

use super::session;

/// What the server has counted so far, or between two readings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Counters {
    /// Bytes of write-ahead log, of whatever origin.
    pub(super) wal_bytes: f64,
    /// Transactions that wrote, for only those have an id.
    pub(super) writers: f64,
    /// Rows inserted, updated and deleted in both tables.
    pub(super) rows_written: f64,
    /// Rows updated in both tables,
    pub(super) updates: f64,
    /// and those of them whose new version stands beside the old one, without touching an index.
    pub(super) hot_updates: f64,
    /// Statements, `begin` and `commit` included; known only where `pg_stat_statements` is there.
    pub(super) statements: Option<f64>,
    /// How often the log was flushed to the disk; known from PostgreSQL 14 to 17.
    pub(super) flushes: Option<f64>,
    /// Milliseconds that took, where the server takes its time.
    pub(super) flush_ms: Option<f64>,
}

impl Counters {
    /// Reads them when all sessions of the turn have ended: not before does the server know all that they did.
    pub(super) async fn read(conn: &mut PgConnection) -> Result<Self, sqlx::Error> {
        session::all_ended(conn).await?;
        let (wal_bytes, writers, rows_written, updates, hot_updates) =
            sqlx::query_as(COUNTERS).fetch_one(&mut *conn).await?;
        let statements = sqlx::query_scalar(STATEMENTS).fetch_one(&mut *conn).await;
        let flushes = sqlx::query_as(FLUSHES).fetch_one(conn).await;
        // Where the extension is missing, not loaded or not ours to read, the rest is still worth having.
        let (statements, (flushes, flush_ms)) = (statements.ok(), flushes.ok().unzip());
        Ok(Self { wal_bytes, writers, rows_written, updates, hot_updates, statements, flushes, flush_ms })
    }
}

impl Sub for Counters {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        let between = |after: Option<f64>, before: Option<f64>| after.zip(before).map(|(after, before)| after - before);
        Self {
            wal_bytes: self.wal_bytes - before.wal_bytes,
            writers: self.writers - before.writers,
            rows_written: self.rows_written - before.rows_written,
            updates: self.updates - before.updates,
            hot_updates: self.hot_updates - before.hot_updates,
            statements: between(self.statements, before.statements),
            flushes: between(self.flushes, before.flushes),
            flush_ms: between(self.flush_ms, before.flush_ms),
        }
    }
}

const COUNTERS: &str = "
    select (pg_current_wal_insert_lsn() - '0/0')::float8,
           pg_snapshot_xmax(pg_current_snapshot())::text::float8,
           sum(n_tup_ins + n_tup_upd + n_tup_del)::float8,
           sum(n_tup_upd)::float8,
           sum(n_tup_hot_upd)::float8
      from pg_stat_user_tables
     where schemaname = 'tollgate' and relname in ('buckets', 'rate_limits')";

const STATEMENTS: &str = "
    select sum(calls)::float8
      from pg_stat_statements
     where dbid = (select oid from pg_database where datname = current_database())";

const FLUSHES: &str = "select wal_sync::float8, wal_sync_time from pg_stat_wal";
