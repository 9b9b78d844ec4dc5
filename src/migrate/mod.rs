//! The tables of tollgate, and the migrations that make them. The migrations are part of this library.
//!
//! The tables live in the schema `tollgate`, with their own history table. [refinery](https://docs.rs/refinery) applies
//! the migrations over a sqlx connection: all in one transaction, one runner at a time, so all processes of a fleet may
//! start at once. Migrations only add. So an older release works on a newer schema, during a rolling deploy and after a
//! rollback.
//!
//! Run them from the command line (`tollgate migrate up`), or from a service when it starts up
//! (`tollgate::migrate::run(&mut *pool.acquire().await?).await?`). Or give the SQL to your own migration tool
//! ([`sql`]).
//!
//! All run in one transaction under an advisory lock, because two runners of refinery collide. They prepare no
//! statement, and the lock ends with the transaction, so they run through poolers, too.
//!
//! They also make functions for callers without this library, such as `tollgate.consume('send_message', 'ada')`. Nobody
//! but the owner may call them before [`grants`].

mod distribute;
mod driver;
mod error;
mod functions;
mod rights;
mod script;
mod tables;

use std::hash::{Hash, Hasher};

use refinery_core::traits::r#async::{AsyncMigrate, AsyncQuery};
use siphasher::sip::SipHasher13;
use sqlx::error::DatabaseError;
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, Connection, FromRow, PgConnection, Postgres, Row, Transaction};
use time::format_description::well_known::Rfc3339;

pub use distribute::{Buckets, DEFAULT_PARTS, distribute, part_numbers, parts, undistribute};
use driver::OverSqlx;
pub use error::MigrateError;
use error::failed;
pub use functions::{Callers, grants};
pub use rights::{Rights, rights};
pub use script::sql;
use script::take_lock;

/// Applies the missing migrations, and returns them. On a schema that is up to date, or newer, it applies nothing.
///
/// Each run revokes the rights that nobody should have. PUBLIC loses all its rights in the schema, because after a
/// restore without rights it may call every function. Only the owner keeps the right to make objects, and to call the
/// functions that only other functions call. [`rights`] lists who has which of the other rights.
///
/// On a connection it opens a transaction of its own; in a sqlx transaction it works in a savepoint. A
/// transaction-level advisory lock makes other runners wait, and after that they find nothing to do. They wait for up
/// to a minute, or for the session's `lock_timeout` if it has one.
///
/// # Errors
///
/// [`MigrateError`]; then nothing is applied.
pub async fn run(conn: &mut PgConnection) -> Result<Vec<Migration>, MigrateError> {
    let (tx, applied) = apply(conn).await?;
    tx.commit().await.map_err(failed("commit"))?;
    Ok(applied)
}

/// Applies the missing migrations, rolls them back, and returns them. So it shows what [`run`] would do, and that it
/// would succeed.
///
/// # Errors
///
/// Those of [`run`].
pub async fn dry_run(conn: &mut PgConnection) -> Result<Vec<Migration>, MigrateError> {
    let (tx, applied) = apply(conn).await?;
    tx.rollback().await.map_err(failed("roll back"))?;
    Ok(applied)
}

/// The migrations that are applied, those that are missing, and those that this release does not know.
///
/// # Errors
///
/// [`MigrateError::Database`] if the history cannot be read.
pub async fn status(conn: &mut PgConnection) -> Result<Status, MigrateError> {
    let known: Vec<_> = runner().get_migrations().iter().map(Migration::of).collect();
    let is_in = |list: &[Migration], one: &Migration| list.iter().any(|other| other.version == one.version);
    let (applied, newer): (Vec<_>, _) = history(conn).await?.into_iter().partition(|one| is_in(&known, one));
    let pending = known.into_iter().filter(|one| !is_in(&applied, one)).collect();
    Ok(Status { applied, pending, newer })
}

/// Checks that the schema is as this release needs it. No migration may be missing or edited, each table, column and
/// function must be in place, and no role may have a right that [`run`] would revoke.
///
/// # Errors
///
/// [`MigrateError`] with the first fault.
pub async fn validate(conn: &mut PgConnection) -> Result<(), MigrateError> {
    let Status { applied, pending, newer } = status(conn).await?;
    refuse_edited(&applied)?;
    if let Some(missing) = pending.into_iter().next() {
        return Err(MigrateError::Missing(missing));
    }
    tables::refuse_damaged(conn).await?;
    // A function of somebody else beside one of ours would count as an edit of it.
    rights::refuse_wrong(conn).await?;
    // A newer release may have given the functions another text.
    if newer.is_empty() { functions::refuse_edited(conn).await } else { Ok(()) }
}

/// One migration.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Migration {
    /// Its number, counting from 1.
    pub version: i64,
    /// Its title.
    pub name: String,
    /// When it was applied, in RFC 3339; `None` if it was not.
    pub applied_on: Option<String>,
    checksum: u64,
}

impl std::fmt::Display for Migration {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "V{}__{}", self.version, self.name)
    }
}

impl Migration {
    // No `From`: it would be a promise about a crate that nobody else sees.
    fn of(migration: &refinery_core::Migration) -> Self {
        Self {
            version: migration.version().into(),
            name: migration.name().to_owned(),
            applied_on: migration.applied_on().and_then(|instant| instant.format(&Rfc3339).ok()),
            checksum: migration.checksum(),
        }
    }
}

/// The state of the schema, as seen by this release.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Status {
    /// Applied, and known to this release.
    pub applied: Vec<Migration>,
    /// Known to this release, and not applied: run `tollgate migrate up`.
    pub pending: Vec<Migration>,
    /// Applied by a newer release; migrations only add, so this release works with them.
    pub newer: Vec<Migration>,
}

impl Status {
    /// Whether no migration is missing.
    #[must_use]
    pub fn is_current(&self) -> bool {
        self.pending.is_empty()
    }
}

/// A savepoint of the caller's transaction, or a transaction of our own. At READ COMMITTED it reads the history as it
/// stands after the wait for other runners.
async fn begin(conn: &mut PgConnection) -> Result<Transaction<'_, Postgres>, MigrateError> {
    if conn.is_in_transaction() {
        return Connection::begin(conn).await.map_err(failed("set a savepoint"));
    }
    // Our commit would commit a transaction that was begun by hand, with everything that it did before. Only in such a
    // transaction does the id outlive the statement that takes it.
    sqlx::raw_sql("select pg_catalog.txid_current()")
        .execute(&mut *conn)
        .await
        .map_err(failed("look for a transaction"))?;
    if ask(conn, "select pg_catalog.txid_current_if_assigned() is not null", "look for a transaction").await? {
        return Err(MigrateError::BegunByHand);
    }
    Connection::begin_with(conn, "begin isolation level read committed").await.map_err(failed("begin a transaction"))
}

async fn apply(conn: &mut PgConnection) -> Result<(Transaction<'_, Postgres>, Vec<Migration>), MigrateError> {
    let mut tx = begin(conn).await?;
    let lock = format!("do $tollgate$ begin {} end $tollgate$", take_lock());
    sqlx::raw_sql(AssertSqlSafe(lock)).execute(&mut *tx).await.map_err(|error| {
        let is_locked = error.as_database_error().and_then(DatabaseError::code).as_deref() == Some("55P03");
        if is_locked { MigrateError::Locked } else { failed("take the migration lock")(error) }
    })?;
    // It asks before it creates, because `if not exists` still demands the right to create schemas.
    if !ask(&mut tx, "select pg_catalog.to_regnamespace('tollgate') is not null", "look for the schema").await? {
        sqlx::raw_sql("create schema tollgate").execute(&mut *tx).await.map_err(failed("create the schema"))?;
    }
    refuse_edited(&history(&mut tx).await?)?;
    let report = runner().run_async(&mut OverSqlx(&mut tx)).await;
    let report = report.map_err(|error| MigrateError::Failed(error.into()))?;
    let applied = report.applied_migrations().iter().map(Migration::of).collect();
    rights::mend(&mut tx).await?;
    Ok((tx, applied))
}

/// The migrations that are applied, oldest first; nothing if there is no history yet.
async fn history(conn: &mut PgConnection) -> Result<Vec<Migration>, MigrateError> {
    // Hidden rows would count as pending migrations.
    let is_there = format!(
        "select case when h.id is null then 'off'
                     when pg_catalog.row_security_active(h.id) then 'row security hides rows of {HISTORY} (disable it)'
                     else 'on' end::bool
           from (select pg_catalog.to_regclass('{HISTORY}')::oid as id) h"
    );
    if !ask(conn, &is_there, "look for the history table").await? {
        return Ok(Vec::new());
    }
    let query = OverSqlx::get_applied_migrations_query(HISTORY);
    let applied = OverSqlx(conn).query(&query).await.map_err(failed("read the history table"))?;
    Ok(applied.iter().map(Migration::of).collect())
}

/// The rows of a query. Its text comes from this module and from the names of our own tables.
async fn rows<T>(conn: &mut PgConnection, query: String, step: &'static str) -> Result<Vec<T>, MigrateError>
where
    T: for<'r> FromRow<'r, PgRow>,
{
    let rows = sqlx::raw_sql(AssertSqlSafe(query)).fetch_all(conn).await;
    rows.and_then(|rows| rows.iter().map(T::from_row).collect()).map_err(failed(step))
}

/// Asks for a yes or no. The simple protocol prepares nothing, so that all statements here also go through poolers that
/// do not follow prepared statements.
async fn ask(conn: &mut PgConnection, question: &str, step: &'static str) -> Result<bool, MigrateError> {
    let answer = sqlx::raw_sql(AssertSqlSafe(question.to_owned())).fetch_one(conn).await;
    answer.and_then(|row| row.try_get(0)).map_err(failed(step))
}

/// Replaces refinery's own check. Any crate of the host application can turn refinery's feature `int8-versions` on,
/// which changes every checksum; this check accepts both.
fn refuse_edited(applied: &[Migration]) -> Result<(), MigrateError> {
    for known in runner().get_migrations() {
        let (version, name) = (i64::from(known.version()), known.name());
        let checksums = checksums(name, version, known.sql().unwrap_or_default());
        let is_same = |one: &Migration| one.name == name && checksums.contains(&one.checksum);
        if applied.iter().any(|one| one.version == version && !is_same(one)) {
            return Err(MigrateError::Edited { version, name: name.to_owned() });
        }
    }
    Ok(())
}

/// refinery's checksum of a migration, with its version in 32 bits and in 64.
fn checksums(name: &str, version: i64, sql: &str) -> [u64; 2] {
    let mut narrow = SipHasher13::new();
    name.hash(&mut narrow);
    let mut wide = narrow;
    i32::try_from(version).unwrap_or_default().hash(&mut narrow);
    version.hash(&mut wide);
    [narrow, wide].map(|mut hasher| {
        sql.hash(&mut hasher);
        hasher.finish()
    })
}

fn runner() -> refinery::Runner {
    // `refuse_edited` checks for edits. An applied migration that is unknown comes from a newer release, which may be
    // rolled out while this one still runs.
    let mut runner = embedded::migrations::runner().set_abort_divergent(false).set_abort_missing(false);
    runner.set_migration_table_name(HISTORY);
    runner
}

mod embedded {
    refinery::embed_migrations!("migrations");
}

const HISTORY: &str = "tollgate.schema_history";
/// The eight letters of "tollgate", read as a number.
const ADVISORY_LOCK: i64 = i64::from_be_bytes(*b"tollgate");
