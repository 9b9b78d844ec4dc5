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
mod migrator;
mod quoted;
mod rights;
mod script;
mod strangers;

use std::hash::{Hash, Hasher};

use refinery::Runner;
use refinery_core::traits::r#async::{AsyncMigrate, AsyncQuery};
use siphasher::sip::SipHasher13;
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, FromRow, PgConnection, Row};
use time::format_description::well_known::Rfc3339;

use crate::values::schema;
pub use distribute::{Buckets, DEFAULT_PARTS, distribute, part_numbers, parts, undistribute};
use driver::OverSqlx;
pub use error::MigrateError;
use error::failed;
pub use functions::{Callers, grants};
pub use migrator::Migrator;
use quoted::in_our_path;
pub use rights::{Rights, rights};
pub use strangers::Leftover;

/// Applies the missing migrations, and returns them ([`Migrator::run`]).
///
/// # Errors
///
/// [`MigrateError`]; then nothing is applied.
pub async fn run(conn: &mut PgConnection) -> Result<Vec<Migration>, MigrateError> {
    Migrator::new().run(conn).await
}

/// Applies the missing migrations, rolls them back, and returns them ([`Migrator::dry_run`]).
///
/// # Errors
///
/// Those of [`run`].
pub async fn dry_run(conn: &mut PgConnection) -> Result<Vec<Migration>, MigrateError> {
    Migrator::new().dry_run(conn).await
}

/// The migrations that are applied, those that are missing, and those that this release does not know
/// ([`Migrator::status`]). A role that the schema does not belong to says whom it trusts: `Migrator::new().owner(…)`.
///
/// # Errors
///
/// [`MigrateError::Database`] if the history cannot be read, [`MigrateError::Strangers`] if it must not be.
pub async fn status(conn: &mut PgConnection) -> Result<Status, MigrateError> {
    Migrator::new().status(conn).await
}

/// Checks that the schema is as this release needs it ([`Migrator::validate`]). A role that the schema does not belong
/// to says whom it trusts: `Migrator::new().owner(…)`.
///
/// # Errors
///
/// [`MigrateError`] with the first fault.
pub async fn validate(conn: &mut PgConnection) -> Result<(), MigrateError> {
    Migrator::new().validate(conn).await
}

/// All migrations as one SQL text, for psql or another migration tool ([`Migrator::sql`]).
#[must_use]
pub fn sql() -> String {
    Migrator::new().sql()
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

/// The migrations that are applied, oldest first; nothing if there is no history yet.
async fn history(conn: &mut PgConnection) -> Result<Vec<Migration>, MigrateError> {
    // Hidden rows would count as pending migrations.
    let is_there = format!(
        "select case when h.id is null then 'off'
                     when not exists (select from pg_catalog.pg_class c
                                       where c.oid = h.id and c.relkind = 'r'::\"char\")
                     then '{HISTORY} is no table, or another session makes it now (look at it)'
                     when pg_catalog.row_security_active(h.id) then 'row security hides rows of {HISTORY} (disable it)'
                     else 'on' end::bool
           from (select pg_catalog.to_regclass('{HISTORY}')::oid as id) h"
    );
    if !ask(conn, &is_there, "look for the history table").await? {
        return Ok(Vec::new());
    }
    let query = in_our_path(&OverSqlx::get_applied_migrations_query(HISTORY));
    let applied = OverSqlx(conn).query(&query).await.map_err(failed("read the history table"))?;
    Ok(applied.iter().map(Migration::of).collect())
}

/// The rows of a query. Its text comes from this module and from the names of our own tables.
async fn rows<T>(conn: &mut PgConnection, query: String, step: &'static str) -> Result<Vec<T>, MigrateError>
where
    T: for<'r> FromRow<'r, PgRow>,
{
    let rows = sqlx::raw_sql(AssertSqlSafe(in_our_path(&query))).fetch_all(conn).await;
    rows.and_then(|rows| rows.iter().map(T::from_row).collect()).map_err(failed(step))
}

/// Asks for a yes or no. The simple protocol prepares nothing, so that all statements here also go through poolers that
/// do not follow prepared statements.
async fn ask(conn: &mut PgConnection, question: &str, step: &'static str) -> Result<bool, MigrateError> {
    let answer = sqlx::raw_sql(AssertSqlSafe(in_our_path(question))).fetch_one(conn).await;
    answer.and_then(|row| row.try_get(0)).map_err(failed(step))
}

/// Runs statements of PL/pgSQL.
async fn block(conn: &mut PgConnection, block: &str) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(AssertSqlSafe(format!("do $tollgate$ begin {block} end $tollgate$"))).execute(conn).await.map(drop)
}

/// Refuses tables that lack a column, or are not logged as they should be.
async fn refuse_damaged(conn: &mut PgConnection) -> Result<(), MigrateError> {
    let present = rows(conn, schema::PRESENT.to_owned(), "read the catalogue").await?;
    match schema::missing(&present) {
        Some((table, column)) => Err(MigrateError::Damaged { table, column }),
        None => Ok(()),
    }
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

fn runner() -> Runner {
    // They are embedded by the names of their files, where V10 comes before V2.
    let mut by_version = embedded::migrations::runner().get_migrations().clone();
    by_version.sort();
    // `refuse_edited` checks for edits. An applied migration that is unknown comes from a newer release, which may be
    // rolled out while this one still runs.
    let mut runner = Runner::new(&by_version).set_abort_divergent(false).set_abort_missing(false);
    runner.set_migration_table_name(HISTORY);
    runner
}

mod embedded {
    refinery::embed_migrations!("migrations");
}

const HISTORY: &str = "tollgate.schema_history";
/// The eight letters of "tollgate", read as a number.
const ADVISORY_LOCK: i64 = i64::from_be_bytes(*b"tollgate");
