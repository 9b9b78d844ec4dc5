//! The only code that knows tables. Each statement is a file under `sql/`, which says what it locks and what it returns, and
//! is checked at compile time against `sqlx-data.json` (`./dev sqlx` rewrites it).
//!
//! Arrays are unnested from sub-selects (`unnest((select $1::text[]))`): PostgreSQL believes to know how many elements a bare
//! parameter has, plans for that number, and so plans every call anew, which takes longer than the call.

mod columns;
mod found;
mod wire;

use std::slice;
use std::time::Duration;

use sqlx::error::DatabaseError;
use sqlx::postgres::{PgDatabaseError, PgQueryResult, PgRow};
use sqlx::{Connection as _, Execute, Executor, PgConnection, Postgres, Row as _, query_file};

use crate::algebra::Timestamp;
use crate::error::{Error, Step};
use crate::limit::Storage;
use crate::plan::{Need, Row};
use columns::{Columns, Hint, Hints};
pub(crate) use found::{Found, Shards};
pub(crate) use shards::Swap;
use wire::{Infinite, Statement};

/// Runs a statement's twins, one for each table, and yields the rows of the one that was asked.
macro_rules! fetch {
    ($store:ident, $storage:expr, $buckets:literal, $rate_limits:literal, $($bind:tt)*) => {
        match $storage {
            Storage::Ephemeral => $store.fetch(query_file!($buckets, $($bind)*)).await,
            Storage::Durable => $store.fetch(query_file!($rate_limits, $($bind)*)).await,
        }
    };
}

/// Likewise, for statements without a result.
macro_rules! execute {
    ($store:ident, $storage:expr, $buckets:literal, $rate_limits:literal, $($bind:tt)*) => {
        match $storage {
            Storage::Ephemeral => $store.execute(query_file!($buckets, $($bind)*)).await,
            Storage::Durable => $store.execute(query_file!($rate_limits, $($bind)*)).await,
        }
    };
}

// Below the macros, which they use.
mod routed;
mod save;
mod shards;
mod swap;
mod sweep;

pub(crate) use sweep::{FullRow, FullRows, Place, unswept};

/// The tables, over one connection.
pub(crate) struct Store<'c> {
    conn: &'c mut PgConnection,
    /// What to take for now instead of the clock.
    at: Option<Timestamp>,
    named: bool,
    /// Whether a statement outside of a transaction is given one of its own.
    wraps: bool,
    /// Whether each statement is to name one key, for tables that are spread over nodes.
    routed: bool,
}

impl<'c> Store<'c> {
    pub(crate) fn new(conn: &'c mut PgConnection, at: Option<Timestamp>, named: bool) -> Self {
        Self { conn, at, named, wraps: false, routed: false }
    }

    /// Gives each unnamed statement outside of a transaction one of its own, on a connection on which nobody begins one by
    /// hand. The driver prepares and executes in two round trips, and outside of a transaction a pooler may send the second
    /// to another server, where whatever was prepared there last would be executed.
    pub(crate) fn wrapping(mut self) -> Self {
        self.wraps = !self.named;
        self
    }

    /// Says only what Citus sends to one node. What is locked then is locked whether there is a transaction or not.
    pub(crate) fn routed(mut self, routed: bool) -> Self {
        self.routed = routed;
        self
    }

    /// Locks one row, unless it is evidently short of what is needed. Inserts it with this capacity if it is absent.
    pub(crate) async fn lock_one(
        &mut self,
        row: &Row,
        need: Option<&Need>,
        insert: Option<i64>,
    ) -> Result<Found, Error> {
        if self.routed {
            let (row, needs) = (slice::from_ref(row), need.map(slice::from_ref));
            return self.route_claim(row, needs, insert.as_ref().map(slice::from_ref), true).await;
        }
        let Hint { balance, rate, period, stepped, phase } = Hint::of(need);
        let (name, key, shard) = (row.name(), row.key().as_str(), columns::shard(row));
        let at = self.at;
        let rows = fetch!(
            self,
            row.storage(),
            "src/store/sql/lock_bucket.sql",
            "src/store/sql/lock_rate_limit.sql",
            name,
            key,
            shard,
            balance as Option<i64>,
            rate,
            period,
            stepped,
            phase as Option<f64>,
            insert as Option<i64>,
            at as Option<Timestamp>
        );
        Found::read(slice::from_ref(row), Step::Lock, rows)
    }

    /// Locks rows of both tables, in order.
    pub(crate) async fn lock(&mut self, rows: &[Row]) -> Result<Found, Error> {
        if self.routed {
            return self.route_lock(rows).await;
        }
        let mut found = Found::none();
        for rows in by_table(rows) {
            let Columns { names, keys, shards } = Columns::of(rows);
            let at = self.at;
            let locked = fetch!(
                self,
                rows[0].storage(),
                "src/store/sql/lock_buckets.sql",
                "src/store/sql/lock_rate_limits.sql",
                &names as &[&str],
                &keys as &[&str],
                &shards,
                at as Option<Timestamp>
            );
            found.append(Found::read(rows, Step::Lock, locked)?);
        }
        Ok(found)
    }

    /// Inserts or locks rows of both tables, in order, unless one is evidently short of what is needed: no further row
    /// is locked then, for that would be out of order if the row turned out not to be short. Nor is one if there are
    /// strangers, unless these are the caller's already.
    pub(crate) async fn claim(
        &mut self,
        rows: &[Row],
        needs: Option<&[Need]>,
        capacities: &[i64],
        wary: bool,
    ) -> Result<Found, Error> {
        if self.routed {
            return self.route_claim(rows, needs, Some(capacities), wary).await;
        }
        let mut found = Found::none();
        for rows in by_table(rows) {
            let range = found.len()..found.len() + rows.len();
            let next = if found.held {
                self.claim_table(rows, needs.map(|needs| &needs[range.clone()]), &capacities[range], wary).await?
            } else {
                self.read(rows).await?
            };
            found.append(next);
        }
        Ok(found)
    }

    async fn claim_table(
        &mut self,
        rows: &[Row],
        needs: Option<&[Need]>,
        capacities: &[i64],
        wary: bool,
    ) -> Result<Found, Error> {
        let Columns { names, keys, shards } = Columns::of(rows);
        let Hints { balances, rates, periods, stepped, phases } = Hints::of(rows, needs);
        let at = self.at;
        let claimed = fetch!(
            self,
            rows[0].storage(),
            "src/store/sql/claim_buckets.sql",
            "src/store/sql/claim_rate_limits.sql",
            &names as &[&str],
            &keys as &[&str],
            &shards,
            capacities,
            &balances as &[Option<i64>],
            &rates,
            &periods,
            &stepped,
            &phases as &[Option<f64>],
            at as Option<Timestamp>,
            wary
        );
        Found::read(rows, Step::Claim, claimed)
    }

    /// Reads rows of both tables without a lock.
    pub(crate) async fn read(&mut self, rows: &[Row]) -> Result<Found, Error> {
        if self.routed {
            return self.route_peek(rows).await;
        }
        let ephemeral: Vec<_> = rows.iter().map(|row| row.storage() == Storage::Ephemeral).collect();
        let Columns { names, keys, shards } = Columns::of(rows);
        let at = self.at;
        let query = query_file!(
            "src/store/sql/read_rows.sql",
            &ephemeral,
            &names as &[&str],
            &keys as &[&str],
            &shards,
            at as Option<Timestamp>
        );
        let read = self.fetch(query).await;
        Found::read(rows, Step::Read, read)
    }

    /// Fails if the connection is in no transaction. Asks the server, twice, only where sqlx did not begin one: a transaction
    /// that was begun by hand still has the mark that the first question set.
    ///
    /// In the simple protocol, which a pooler never takes apart: there may be no transaction that keeps it from doing so.
    pub(crate) async fn expect_transaction(&mut self, limit: &str) -> Result<(), Error> {
        if self.conn.is_in_transaction() {
            return Ok(());
        }
        let mark = sqlx::raw_sql(include_str!("sql/mark_transaction.sql"));
        let is_marked = sqlx::raw_sql(include_str!("sql/is_marked.sql"));
        let failed = |source| database(Step::Begin, limit, source);
        self.conn.execute(mark).await.map_err(failed)?;
        let marked = self.conn.fetch_one(is_marked).await.and_then(|row| row.try_get(0)).map_err(failed)?;
        if marked { Ok(()) } else { Err(Error::NotInTransaction) }
    }

    async fn fetch<'q>(&mut self, query: impl Execute<'q, Postgres> + 'q) -> Result<Vec<PgRow>, sqlx::Error> {
        let statement = Statement { query, named: self.named };
        if !self.needs_wrapping() {
            return self.conn.fetch_all(statement).await;
        }
        let mut tx = self.conn.begin().await?;
        let rows = tx.fetch_all(statement).await?;
        tx.commit().await?;
        Ok(rows)
    }

    async fn execute<'q>(&mut self, query: impl Execute<'q, Postgres> + 'q) -> Result<PgQueryResult, sqlx::Error> {
        let statement = Statement { query, named: self.named };
        if !self.needs_wrapping() {
            return self.conn.execute(statement).await;
        }
        let mut tx = self.conn.begin().await?;
        let done = tx.execute(statement).await?;
        tx.commit().await?;
        Ok(done)
    }

    fn needs_wrapping(&self) -> bool {
        self.wraps && !self.conn.is_in_transaction()
    }
}

/// A timeout as PostgreSQL takes it, in milliseconds, rounded up; zero would be none.
pub(crate) fn millis(timeout: Duration) -> u128 {
    timeout.as_nanos().div_ceil(1_000_000).clamp(1, i32::MAX.unsigned_abs().into())
}

/// Has Citus pass on to its nodes what is set from here on in the transaction. It waits for rows there, and would wait without
/// end. Says nothing to a server without it.
pub(crate) const PASS_ON: &str = "set local citus.propagate_set_commands = 'local'; ";

/// What PostgreSQL reported, with what was being done; what has a remedy is told apart.
pub(crate) fn database(step: Step, limit: &str, source: sqlx::Error) -> Error {
    let limit = limit.to_owned().into();
    match &source {
        _ if is_missing(&source) => Error::Schema { source: source.into() },
        sqlx::Error::Database(error) if is_read_only(&**error) => Error::ReadOnly { source: source.into() },
        sqlx::Error::Database(error) if is_misprepared(&**error) => Error::NamedStatements { source: source.into() },
        sqlx::Error::ColumnDecode { source: cause, .. } if cause.is::<Infinite>() => {
            Error::CorruptRow { limit, fault: "its instant is infinite" }
        }
        _ => Error::Database { step, limit, source: source.into() },
    }
}

/// Whether the server or the transaction takes no writes. A standby says so in the words of features that it lacks (0A000), as
/// others do for other reasons; which it means, the routine tells in any language: unlogged tables cannot be read there, and
/// transactions not be begun `read write`.
fn is_read_only(error: &(dyn DatabaseError + 'static)) -> bool {
    match error.code().as_deref() {
        Some("25006") => true,
        Some("0A000") => matches!(routine(error), Some("get_relation_info" | "call_bool_check_hook")),
        _ => false,
    }
}

/// Whether a name stands for no statement, or for one that this connection did not prepare.
fn is_misprepared(error: &(dyn DatabaseError + 'static)) -> bool {
    match error.code().as_deref() {
        Some("26000" | "42P05") => true,
        // It has another number of parameters.
        Some("08P01") => routine(error) == Some("exec_bind_message"),
        _ => false,
    }
}

fn routine<'e>(error: &'e (dyn DatabaseError + 'static)) -> Option<&'e str> {
    error.try_downcast_ref::<PgDatabaseError>()?.routine()
}

/// Whether a schema, table or column is undefined.
fn is_missing(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(sqlx::error::DatabaseError::code);
    matches!(code.as_deref(), Some("3F000" | "42P01" | "42703"))
}

fn failed(step: Step, row: &Row) -> impl FnOnce(sqlx::Error) -> Error {
    move |source| database(step, row.name(), source)
}

/// The row is locked, hence there: whatever kept it from being written is not ours.
pub(crate) fn unwritten(row: &Row) -> Error {
    Error::CorruptRow { limit: row.name.clone().into(), fault: "it was not written, as a trigger or a policy demands" }
}

/// Rows in lock order come table by table.
fn by_table(rows: &[Row]) -> impl Iterator<Item = &[Row]> {
    rows.chunk_by(|one, other| one.storage() == other.storage())
}

/// Rows in lock order come key by key: the place of the first of each.
fn first_of_each_key(rows: &[Row]) -> impl Iterator<Item = usize> {
    (0..rows.len()).filter(|place| *place == 0 || !rows[place - 1].is_beside(&rows[*place]))
}
