//! The only code that knows tables. Each statement is a file under `sql/`, which says what it locks and what it
//! returns, and is checked at compile time against `sqlx-data.json`.
//!
//! A statement about one table is written once, for `tollgate.durable`. `./dev sqlx` generates the same statement for
//! `tollgate.ephemeral` into `sql/ephemeral/`, and a macro chooses between the two. Every statement names one part, so
//! Citus sends it to one node; on plain PostgreSQL all rows are in part 0.
//!
//! Arrays are unnested from a sub-select with `offset 0`. PostgreSQL estimates the length of a bare parameter and plans
//! again for each length, which takes longer than the call (1.3 ms). If arrays are unnested in a select list, they do
//! not each need a tuple store.
//!
//! # Plans that hold
//!
//! A session keeps the plan of a named statement, and PostgreSQL makes it by the size that the table has at that
//! moment. A plan for sixty rows reads the whole table for each row once there are 100 000. So the tables begin with an
//! empty megabyte that vacuum leaves, which makes a look-up by the index the cheapest plan at every size. The
//! statements help, too. Arrays count as ten rows, while `generate_subscripts` would count as a thousand. Statements
//! that write by place have a condition that always holds and counts as one row in two hundred. A crash takes the
//! megabyte of `tollgate.ephemeral` with it; then the plans hold once the table has grown and autovacuum has analyzed
//! it, which may take a minute.
//!
//! # Names that nobody shadows
//!
//! Functions are qualified, and operands are cast until `pg_catalog` has an operator for exactly these types: an
//! operator that fits better would be found in any schema of the search path. Operators are not qualified: only a path
//! that names `pg_catalog` late could shadow them, and with such a path every statement of the application is shadowed,
//! too.
//!
//! # Rows that are hidden
//!
//! A statement that may find no row fails if row security hides rows, because a hidden row is not a missing one. Its
//! condition is then no boolean but a text that says so, which PostgreSQL reports as an error. The condition names no
//! row, so it is evaluated once. A write needs no such proof: it counts its rows, or PostgreSQL refuses it.
//!
//! The tables of operators, `tollgate.limits` and `tollgate.overrides`, belong to `definitions` and `overrides`.

mod calls;
mod columns;
mod fault;
mod pooler;
pub(crate) mod session;

use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sqlx::error::BoxDynError;
use sqlx::postgres::PgRow;
use sqlx::{Connection as _, Execute, Executor, PgConnection, Postgres, Row as _, SqlStr, Transaction};

use crate::algebra::Timestamp;
use crate::call::StoredCall;
use crate::error::{Error, SetupFault, Step};
use crate::limit::Storage;
use crate::parts::Parts;
use crate::plan::{Plan, RowId};
pub(crate) use columns::Found;
use fault::corrupt;
pub(crate) use fault::{database, setup_fault, timed_out, unreaped, unswept, unwritten};
use session::Right;

/// Runs a statement on the table of a storage, and yields its rows.
macro_rules! fetch {
    ($store:ident, $storage:expr, $durable:literal, $ephemeral:literal, $($bind:tt)*) => {
        match $storage {
            $crate::limit::Storage::Durable => $store.fetch(sqlx::query_file!($durable, $($bind)*)).await,
            $crate::limit::Storage::Ephemeral => $store.fetch(sqlx::query_file!($ephemeral, $($bind)*)).await,
        }
    };
}

/// Runs a statement on rows of one table and part, which it binds before anything else, and yields its rows.
macro_rules! on_rows {
    ($store:ident, $rows:expr, $durable:literal, $ephemeral:literal $(, $($bind:tt)*)?) => {{
        let rows: &[$crate::plan::RowId] = $rows;
        let part = $crate::store::columns::part(&rows[0]);
        let $crate::store::columns::Columns { names, keys, shards } = $crate::store::columns::Columns::of(rows);
        fetch!(
            $store, rows[0].storage(), $durable, $ephemeral,
            part, &names as &[&str], &keys as &[&str], &shards $(, $($bind)*)?
        )
    }};
}

// These modules come after the macros, because they use them.
mod lock;
mod save;
mod shards;
mod swap;
mod sweep;

pub(crate) use save::Held;
pub(crate) use shards::Shards;
pub(crate) use swap::{Grouped, Swap};
pub(crate) use sweep::{Ctid, FullRow, FullRows};

/// The tables, over one connection.
pub(crate) struct Store<'c> {
    conn: &'c mut PgConnection,
    /// The instant to use instead of the clock.
    at: Option<Timestamp>,
    backend: Backend,
    /// The settings of the transaction that each statement gets for itself; `None` if it gets none.
    wraps: Option<String>,
    /// The shards on the node that the connection leads to, if the caller asks their tables.
    shards: Option<Arc<Shards>>,
}

/// The servers behind the connections.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backend {
    /// Whether a pooler does not follow named statements.
    pub(crate) unnamed: bool,
    pub(crate) parts: Parts,
}

impl Backend {
    /// PostgreSQL itself, or a pooler that follows named statements.
    pub(crate) const PLAIN: Self = Self { unnamed: false, parts: Parts::new(0) };
}

impl<'c> Store<'c> {
    pub(crate) fn new(conn: &'c mut PgConnection, at: Option<Timestamp>, backend: Backend) -> Self {
        Self { conn, at, backend, wraps: None, shards: None }
    }

    /// Gives each statement a transaction of its own, under these settings. Unnamed statements need one: the driver
    /// prepares and executes in two round trips. Outside of a transaction a pooler may send the second to another
    /// server, which would execute the statement that was prepared there last.
    pub(crate) fn wrapping(mut self, settings: String) -> Self {
        self.wraps = Some(settings);
        self
    }

    /// Asks the tables of these shards, where they are known.
    pub(crate) fn on_shards(mut self, shards: Arc<Shards>) -> Self {
        self.shards = Some(shards);
        self
    }

    /// Fails if the connection is in no transaction. Asks the server only where sqlx did not begin one.
    pub(crate) async fn expect_transaction(&mut self, limit: &str) -> Result<(), Error> {
        if self.conn.is_in_transaction() { Ok(()) } else { self.prove_transaction(limit).await }
    }

    /// Fails if the connection is in no transaction, by two questions to the server: a transaction still has the mark
    /// that the first one sets.
    ///
    /// It uses the simple protocol, which a pooler never takes apart: there may be no transaction that would prevent
    /// that.
    async fn prove_transaction(&mut self, limit: &str) -> Result<(), Error> {
        let mark = sqlx::raw_sql(include_str!("sql/mark_transaction.sql"));
        let is_marked = sqlx::raw_sql(include_str!("sql/is_marked.sql"));
        let failed = |source| database(Step::Begin, limit, source);
        self.conn.execute(mark).await.map_err(failed)?;
        let marked = self.conn.fetch_one(is_marked).await.and_then(|row| row.try_get(0)).map_err(failed)?;
        if marked { Ok(()) } else { Err(Error::NotInTransaction) }
    }

    /// Fails if the tables have other parts than the backend says. A call that asks the wrong part finds no row there,
    /// and its insert is refused. If a row is missing and is not to be inserted, only this check finds the fault.
    ///
    /// It uses the simple protocol, too.
    pub(crate) async fn expect_parts(&mut self, limit: &str) -> Result<(), Error> {
        let parts = self.conn.fetch_one(sqlx::raw_sql(include_str!("sql/parts.sql"))).await;
        let parts: i32 = parts.and_then(|row| row.try_get(0)).map_err(|source| database(Step::Read, limit, source))?;
        if parts == i32::from(self.backend.parts.count()) {
            return Ok(());
        }
        let source = sqlx::Error::Configuration(format!("they have {parts} parts").into());
        Err(Error::Setup { fault: SetupFault::WrongParts, source: source.into() })
    }

    pub(crate) fn is_distributed(&self) -> bool {
        self.backend.parts.is_distributed()
    }

    /// The stored calls that a plan must know, read under locks or without; `None` for a missing one.
    pub(crate) async fn known_calls(&mut self, plan: &Plan, locks: bool) -> Result<Vec<Option<StoredCall>>, Error> {
        match (plan.names(), locks) {
            ([], _) => Ok(Vec::new()),
            (_, true) => self.lock_calls(plan).await,
            (_, false) => self.peek_calls(plan).await,
        }
    }

    async fn fetch<'q>(&mut self, query: impl Execute<'q, Postgres> + 'q) -> Result<Vec<PgRow>, sqlx::Error> {
        let statement = Statement { query, named: !self.backend.unnamed };
        let Some(settings) = &self.wraps else {
            let rows = self.conn.fetch_all(statement).await;
            if !self.backend.unnamed && rows.is_ok() && self.conn.cached_statements_size() == 0 {
                tell_of_leak();
            }
            return rows;
        };
        let mut tx = session::begin(self.conn, settings).await?;
        let rows = tx.fetch_all(statement).await?;
        tx.commit().await?;
        Ok(rows)
    }
}

/// A statement that is prepared under a name and kept, or under none, as poolers in transaction mode need it.
struct Statement<E> {
    query: E,
    named: bool,
}

impl<'q, E: Execute<'q, Postgres>> Execute<'q, Postgres> for Statement<E> {
    fn sql(self) -> SqlStr {
        self.query.sql()
    }

    fn statement(&self) -> Option<&<Postgres as sqlx::Database>::Statement> {
        self.query.statement()
    }

    fn take_arguments(&mut self) -> Result<Option<<Postgres as sqlx::Database>::Arguments>, BoxDynError> {
        self.query.take_arguments()
    }

    /// This is not the query's own answer, because a mapped query is persistent only until its arguments are taken,
    /// which happens before the driver asks.
    fn persistent(&self) -> bool {
        self.named
    }
}

/// Warns once that a connection keeps no statement. sqlx 0.9 then prepares a statement under a new name for each call,
/// and never closes it.
#[cold]
fn tell_of_leak() {
    static IS_TOLD: AtomicBool = AtomicBool::new(false);
    if !IS_TOLD.swap(true, Ordering::Relaxed) {
        tracing::warn!(
            "statement_cache_capacity(0) leaves a prepared statement in the server at each call: say \
             unnamed_statements() instead"
        );
    }
}

/// Begins with timeouts for locks and statements, in one round trip.
pub(crate) async fn begin(
    conn: &mut PgConnection,
    backend: Backend,
    lock_timeout: Duration,
    statement_timeout: Duration,
) -> Result<Transaction<'_, Postgres>, sqlx::Error> {
    let settings = timeouts(backend, Some(lock_timeout), statement_timeout);
    session::begin(conn, &format!("read write{settings}")).await
}

/// Settings behind a mode, with timeouts for locks, if they have one, and for statements. If we are cut off from the
/// server, it rolls back by itself, because nothing else could free the rows.
pub(crate) fn timeouts(backend: Backend, lock_timeout: Option<Duration>, statement_timeout: Duration) -> String {
    let (lock, statement) = (lock_timeout.map_or(0, millis), millis(statement_timeout));
    let settings = set_local(
        backend.parts,
        &format!("set local lock_timeout = {lock}; set local statement_timeout = {statement};"),
    );
    // A node of Citus is idle while others work, so it does not get the setting.
    format!("; set local idle_in_transaction_session_timeout = {statement}; {settings}; {}", own_role(backend))
}

/// The settings that a session began with, for work without bounds of its own.
pub(crate) fn defaults(backend: Backend) -> String {
    format!("read write; {} {}", session::DEFAULTS, own_role(backend))
}

fn own_role(backend: Backend) -> String {
    if backend.unnamed { Right::STORE.own_role() } else { String::new() }
}

/// A timeout for PostgreSQL, in milliseconds, rounded up; at least 1, because 0 would mean no timeout.
pub(crate) fn millis(timeout: Duration) -> u128 {
    timeout.as_nanos().div_ceil(1_000_000).clamp(1, i32::MAX.unsigned_abs().into())
}

/// Settings for the rest of the transaction. On Citus they are set on its nodes, too, which otherwise wait for rows
/// forever. Citus sends a node the whole text around a setting, once for each setting. A `begin` in that text makes the
/// node log a warning, and a short transaction took twice as long. Inside of `do` each setting is a text of its own.
pub(crate) fn set_local(parts: Parts, settings: &str) -> String {
    if parts.is_distributed() {
        format!("set local citus.propagate_set_commands = 'local'; do $$ begin {settings} end $$")
    } else {
        settings.to_owned()
    }
}

/// The name of the table of a storage.
pub(crate) fn table_of(storage: Storage) -> &'static str {
    match storage {
        Storage::Ephemeral => "tollgate.ephemeral",
        Storage::Durable => "tollgate.durable",
    }
}

/// Rows in lock order, divided by table and part: one statement for each piece.
pub(crate) fn by_table_and_part(rows: &[RowId]) -> impl Iterator<Item = &[RowId]> {
    rows.chunk_by(|one, other| (one.storage, one.part) == (other.storage, other.part))
}

/// The error of a failed statement on one row, for `map_err`.
fn failed(step: Step, row: &RowId) -> impl FnOnce(sqlx::Error) -> Error {
    failed_among(step, slice::from_ref(row))
}

/// The error of a failed statement on several rows. It names the one that is corrupt, or else the first.
fn failed_among(step: Step, rows: &[RowId]) -> impl FnOnce(sqlx::Error) -> Error {
    move |source| database(step, rows[corrupt(&source).map_or(0, |corrupt| corrupt.place)].name(), source)
}
