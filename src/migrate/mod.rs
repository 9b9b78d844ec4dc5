//! The tables of tollgate, and the migrations that make them, which are part of this library.
//!
//! The tables live in the schema `tollgate`, with their own history table. [refinery](https://docs.rs/refinery) applies
//! the migrations over a sqlx connection: all in one transaction, one runner at a time, so a fleet may start up all at
//! once. Migrations only add. So an older release works on a newer schema, during a rolling deploy and after going
//! back.
//!
//! Run them from the command line (`tollgate migrate up`), from a service at start-up
//! (`tollgate::migrate::run(&mut *pool.acquire().await?).await?`), or take the SQL to the migration tool that you have
//! ([`sql`]).
//!
//! All run in one transaction under an advisory lock, because two runners of refinery collide. They prepare nothing,
//! and the lock ends with the transaction, so they run through poolers, too.
//!
//! They also make functions for callers without this library, such as `tollgate.consume('send_message', 'ada')`. Nobody
//! but the owner may call them before [`grants`].

mod distribute;
mod driver;
mod functions;
mod rights;

use std::hash::{Hash, Hasher};

use refinery_core::traits::r#async::{AsyncMigrate, AsyncQuery};
use siphasher::sip::SipHasher13;
use sqlx::error::DatabaseError;
use sqlx::{AssertSqlSafe, Connection, FromRow, PgConnection, Postgres, Row, Transaction};
use time::format_description::well_known::Rfc3339;

pub use distribute::{Buckets, DEFAULT_PARTS, distribute, part_numbers, parts, undistribute};
use driver::OverSqlx;
pub use functions::{Callers, grants};
pub use rights::{Rights, rights};

/// Applies what is missing, and returns it. On a schema that is up to date, or newer, it applies nothing.
///
/// Each run takes back the rights that nobody should have. PUBLIC loses all that it has in the schema: after a restore
/// without rights it may call every function. Nobody but the owner keeps a right to make objects, or to call the
/// functions that only other functions call. [`rights`] tells who has which of the other rights.
///
/// Given a connection, it opens a transaction of its own; given a sqlx transaction, it works in a savepoint of that. A
/// transaction-level advisory lock makes other runners wait; then they find nothing to do. They wait for a minute, or
/// for the session's `lock_timeout` if it has one.
///
/// # Errors
///
/// [`MigrateError`]; nothing is applied then.
pub async fn run(conn: &mut PgConnection) -> Result<Vec<Migration>, MigrateError> {
    let (tx, applied) = apply(conn).await?;
    tx.commit().await.map_err(failed("commit"))?;
    Ok(applied)
}

/// Applies what is missing, rolls it back, and returns it: shows what [`run`] would do, and that it would succeed.
///
/// # Errors
///
/// As [`run`].
pub async fn dry_run(conn: &mut PgConnection) -> Result<Vec<Migration>, MigrateError> {
    let (tx, applied) = apply(conn).await?;
    tx.rollback().await.map_err(failed("roll back"))?;
    Ok(applied)
}

/// The migrations that are applied, those that are missing, and those that this release does not know.
///
/// # Errors
///
/// [`MigrateError::Database`] where the history cannot be read.
pub async fn status(conn: &mut PgConnection) -> Result<Status, MigrateError> {
    let known: Vec<_> = runner().get_migrations().iter().map(Migration::from).collect();
    let is_in = |list: &[Migration], one: &Migration| list.iter().any(|other| other.version == one.version);
    let (applied, newer): (Vec<_>, _) = history(conn).await?.into_iter().partition(|one| is_in(&known, one));
    let pending = known.into_iter().filter(|one| !is_in(&applied, one)).collect();
    Ok(Status { applied, pending, newer })
}

/// Checks that the schema is what this release needs: nothing missing, nothing edited, each table, column and function
/// in place, and no right in hands where [`run`] takes it back.
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
    let present = sqlx::raw_sql(COLUMNS_PRESENT).fetch_all(&mut *conn).await;
    let present = present.and_then(|rows| rows.iter().map(<(String, String, String)>::from_row).collect());
    let present: Vec<_> = present.map_err(failed("read the catalogue"))?;
    for (table, persistence, columns) in TABLES {
        let found = |column: &&str| present.iter().any(|(t, c, p)| t == table && c == column && p == persistence);
        if let Some(column) = columns.iter().find(|&column| !found(column)) {
            return Err(MigrateError::Damaged { table, column });
        }
    }
    // A newer release may have given them another text.
    if newer.is_empty() {
        functions::refuse_edited(conn).await?;
    }
    rights::refuse_wrong(conn).await
}

/// All migrations as one SQL text, for psql or another migration tool.
///
/// It keeps the same history as [`run`], applies only what is missing, takes back the same rights, and is safe to run
/// twice.
#[must_use]
pub fn sql() -> String {
    let history = OverSqlx::assert_migrations_table_query(HISTORY);
    let steps = runner().get_migrations().iter().map(guarded).collect::<String>();
    format!(
        "-- tollgate {}: applies what is missing, all or nothing, and is safe to run again.\n\n\
         do $tollgate$ begin\n\n\
         -- As `tollgate migrate up` does: of several runners one applies, and the others wait.\n\
         {}\n\
         if pg_catalog.to_regnamespace('tollgate') is null then\n    create schema tollgate;\nend if;\n\n\
         {history}\n{steps}\n\
         -- Rights that nobody should have are taken back, however the schema came.\n\
         {}\n\
         end $tollgate$;\n",
        env!("CARGO_PKG_VERSION"),
        take_lock(),
        rights::mending()
    )
}

/// Waits for other runners, in PL/pgSQL, and puts the `lock_timeout` of before back: the migrations are not to fail by
/// ours.
fn take_lock() -> String {
    format!(
        "declare\n    before text := pg_catalog.current_setting('lock_timeout');\n\
         begin\n    \
         if before = '0' then\n        perform pg_catalog.set_config('lock_timeout', '1min', true);\n    end if;\n    \
         perform pg_catalog.pg_advisory_xact_lock({ADVISORY_LOCK});\n    \
         perform pg_catalog.set_config('lock_timeout', before, true);\n\
         exception when lock_not_available then\n    \
         raise exception using errcode = 'lock_not_available', message = $why${LOCKED}$why$;\n\
         end;\n"
    )
}

/// One migration's SQL, for schemas that do not have it.
fn guarded(migration: &refinery_core::Migration) -> String {
    let (version, name, checksum) = (migration.version(), migration.name(), migration.checksum());
    let body = migration.sql().unwrap_or_default().trim_end();
    let now = "pg_catalog.to_char(pg_catalog.now() at time zone 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')";
    format!(
        "\n-- V{version}__{name}\n\
         if not exists (select from {HISTORY} where version = {version}) then\n\n\
         {body}\n\n\
         insert into {HISTORY} (version, name, applied_on, checksum)\n\
         values ({version}, '{name}', {now}, '{checksum}');\n\n\
         end if;\n"
    )
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

impl From<&refinery_core::Migration> for Migration {
    fn from(migration: &refinery_core::Migration) -> Self {
        Self {
            version: migration.version().into(),
            name: migration.name().to_owned(),
            applied_on: migration.applied_on().and_then(|instant| instant.format(&Rfc3339).ok()),
            checksum: migration.checksum(),
        }
    }
}

/// How the schema stands to this release.
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
    /// Whether nothing is missing.
    #[must_use]
    pub fn is_current(&self) -> bool {
        self.pending.is_empty()
    }
}

/// Why the schema is not what it should be, or could not be made so.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MigrateError {
    /// The connection is in a transaction that sqlx did not begin, and could not share.
    #[error("the connection is in a transaction that was begun by hand (begin it with sqlx, or end it first)")]
    BegunByHand,
    /// Migrations are applied, but a table or column of theirs is missing, or is not logged as it should be.
    #[error(
        "tollgate.{table} lacks column {column:?}, or is not logged as it should be (restore it from `tollgate migrate \
         sql`)"
    )]
    Damaged {
        /// The table.
        table: &'static str,
        /// The first column that is not as it should be.
        column: &'static str,
    },
    /// PostgreSQL or the connection failed.
    #[error("could not {step}")]
    Database {
        /// The step that failed.
        step: &'static str,
        /// The report of the driver.
        source: sqlx::Error,
    },
    /// A table is distributed by another column than `part`, or over another number of parts.
    #[error(
        "tollgate.{table} is distributed by another column than part, or over another number of parts (`tollgate \
         distribute --undo`, then try again)"
    )]
    DistributedOtherwise {
        /// The table.
        table: &'static str,
    },
    /// A migration was applied from another text than this release's: one of the two was edited.
    #[error(
        "migration V{version}__{name} was applied from another text (before the first release: `drop schema tollgate \
         cascade`, then `tollgate migrate up`)"
    )]
    Edited {
        /// Its number.
        version: i64,
        /// Its title in this release.
        name: String,
    },
    /// A function is missing, or somebody gave it another text than the migrations.
    #[error("the function tollgate.{name} is missing, or was edited (restore it from `tollgate migrate sql`)")]
    EditedFunction {
        /// Its name.
        name: String,
    },
    /// refinery could not apply a migration.
    #[error("{0}")]
    Failed(#[from] Box<refinery_core::Error>),
    /// Another session held the lock of the migrations for a minute, or for the session's `lock_timeout`.
    #[error("{}", LOCKED)]
    Locked,
    /// A migration is not applied.
    #[error("migration {0} is not applied (run `tollgate migrate up`)")]
    Missing(Migration),
    /// There is nothing to distribute tables over.
    #[error("Citus is not in this database (`create extension citus`, and add its nodes; or go without `distribute`)")]
    NoCitus,
    /// A role has a right that nobody should have, or everybody has it. Or this role may not take it back.
    #[error("{what}, a right that nobody should have (run `tollgate migrate up` as the owner of the schema)")]
    Rights {
        /// The role and its right.
        what: String,
    },
}

/// A savepoint of the caller's transaction, or a transaction of our own. At READ COMMITTED it reads the history as it
/// stands after the wait for other runners.
async fn begin(conn: &mut PgConnection) -> Result<Transaction<'_, Postgres>, MigrateError> {
    if conn.is_in_transaction() {
        return Connection::begin(conn).await.map_err(failed("set a savepoint"));
    }
    // Our commit would commit a transaction that was begun by hand, with all that it did before. Only in such a one
    // does the id outlive the statement that takes it.
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
    // Asks before it creates: `if not exists` still demands the right to create schemas.
    if !ask(&mut tx, "select pg_catalog.to_regnamespace('tollgate') is not null", "look for the schema").await? {
        sqlx::raw_sql("create schema tollgate").execute(&mut *tx).await.map_err(failed("create the schema"))?;
    }
    refuse_edited(&history(&mut tx).await?)?;
    let report = runner().run_async(&mut OverSqlx(&mut tx)).await.map_err(Box::new)?;
    let applied = report.applied_migrations().iter().map(Migration::from).collect();
    rights::mend(&mut tx).await?;
    Ok((tx, applied))
}

/// The migrations that are applied, oldest first; nothing if there is no history yet.
async fn history(conn: &mut PgConnection) -> Result<Vec<Migration>, MigrateError> {
    // Hidden rows would be pending migrations.
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
    Ok(applied.iter().map(Migration::from).collect())
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

fn failed(step: &'static str) -> impl FnOnce(sqlx::Error) -> MigrateError {
    move |source| MigrateError::Database { step, source }
}

mod embedded {
    refinery::embed_migrations!("migrations");
}

const HISTORY: &str = "tollgate.schema_history";
/// The eight letters of "tollgate", read as a number.
const ADVISORY_LOCK: i64 = i64::from_be_bytes(*b"tollgate");

const LOCKED: &str = "another session keeps the lock of the migrations, a runner that hangs or a stranger (find it \
                      with: select pid from pg_locks join pg_stat_activity using (pid) \
                      where datname = current_database() and granted and locktype = 'advisory' \
                      and objid = '1734440037')";

/// The tables that the statements of this release rely on, whether each is logged (`p`) or not (`u`), and their
/// columns.
const TABLES: [(&str, &str, &[&str]); 5] = [
    ("ephemeral", "u", &OF_ROWS),
    ("durable", "p", &OF_ROWS),
    ("calls", "p", &OF_CALLS),
    ("limits", "p", &OF_LIMITS),
    ("overrides", "p", &OF_OVERRIDES),
];
const OF_ROWS: [&str; 8] = ["part", "name", "key", "shard", "value", "ts", "full_at", "list"];
const OF_CALLS: [&str; 12] = [
    "part",
    "name",
    "key",
    "id",
    "asked",
    "charges",
    "answer",
    "charged_at",
    "reported",
    "lapses_at",
    "kept_until",
    "used",
];

const OF_LIMITS: [&str; 11] =
    ["name", "kind", "rate", "period", "capacity", "max_reserved", "start", "resolution", "shards", "storage", "flow"];

const OF_OVERRIDES: [&str; 14] = [
    "name",
    "key",
    "label",
    "effect",
    "kind",
    "rate",
    "period",
    "capacity",
    "max_reserved",
    "starts_at",
    "ends_at",
    "reason",
    "set_by",
    "set_at",
];

const COLUMNS_PRESENT: &str = "
    select c.relname::text, a.attname::text, c.relpersistence::text
      from pg_catalog.pg_class c join pg_catalog.pg_attribute a on a.attrelid = c.oid
     where c.relnamespace = pg_catalog.to_regnamespace('tollgate')::oid and a.attnum > 0 and not a.attisdropped";
