//! Sessions that others have used before. A pool hands out what its last user left: an open transaction, which our
//! commit would commit and our work would be lost in, or settings. Behind a pooler they may be another client's.
//!
//! Everything of ours that works outside of a caller's transaction begins here. [`take`] takes a connection that is
//! idle. [`begin`] and [`alone`] open with one message that proves the same, and bring their own settings, at no round
//! trip more. Only a gate's two statements outside of a transaction do without: `peek.sql` and `swap.sql` say how they
//! find an open one. If a setting fails them, the gate goes on in a transaction.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};

use sqlx::pool::PoolConnection;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, PgPool, Postgres, Transaction};

use crate::error::{Error, chain};

/// A connection of a pool that never goes back in the middle of a statement. It is closed if it is dropped after a use
/// that did not [end](Self::finished), even by a panic or by the end of the runtime.
pub(crate) struct Session {
    inner: PoolConnection<Postgres>,
    is_sound: bool,
}

/// Takes a connection from the pool. Those that somebody left in a transaction are closed. So are those under a role
/// that lacks a right, but for the last try: a hook of the pool may set that role.
pub(crate) async fn take(pool: &PgPool, needs: Right) -> Result<Session, sqlx::Error> {
    let mut tries = tries(pool);
    loop {
        let mut session = Session::of(pool.acquire().await?);
        match expect_sound(&mut session, needs).await {
            Err(error) if (is_left(&error) || error.as_database_error().is_some()) && tries > 0 => {
                tries -= 1;
                if is_left(&error) {
                    tell();
                }
            }
            Err(error) if !is_role(&error) => return Err(error),
            Ok(()) | Err(_) => return Ok(session),
        }
    }
}

/// How many connections may be closed until one is new.
pub(crate) fn tries(pool: &PgPool) -> usize {
    idle(pool) + 1
}

/// How many connections of the pool are idle, at most all of them. sqlx counts one out before it counts it in. So for a
/// moment its number may be below zero, which reads as the largest.
pub(crate) fn idle(pool: &PgPool) -> usize {
    pool.num_idle().min(usize::try_from(pool.size()).unwrap_or_default())
}

impl Session {
    pub(crate) fn of(inner: PoolConnection<Postgres>) -> Self {
        Self { inner, is_sound: true }
    }

    /// Marks that the use has ended, and left the connection as good as before.
    pub(crate) fn finished(&mut self) {
        self.is_sound = true;
    }

    /// Gives it back to the pool, and waits until the pool has it.
    ///
    /// The pool asks, without a timeout, whether the server is there, and meanwhile counts the connection as in use.
    /// When a connection is dropped, a task of sqlx does this. The method called here is hidden, but public: it is the
    /// only way to bound that question. If the future is dropped in the middle, the connection is closed, and its place
    /// in the pool is free.
    pub(crate) async fn give_back(mut self) {
        self.inner.return_to_pool().await;
    }
}

impl Deref for Session {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.inner
    }
}

impl DerefMut for Session {
    fn deref_mut(&mut self) -> &mut PgConnection {
        self.is_sound = false;
        &mut self.inner
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if !self.is_sound {
            self.inner.close_on_drop();
        }
    }
}

/// Fails if somebody left the session in a transaction, or under a role that lacks a right.
pub(crate) async fn expect_sound(conn: &mut PgConnection, needs: Right) -> Result<(), sqlx::Error> {
    if conn.is_in_transaction() {
        return Err(sqlx::Error::InvalidSavePointStatement);
    }
    let role = format!("select where not case when {} then '{ROLE}' else 'on' end::bool", needs.is_lacking());
    // A new process of the server takes milliseconds for the first look at its catalogue.
    let patience = "set local statement_timeout to default;";
    sqlx::raw_sql(AssertSqlSafe(format!("{patience} {IDLE} {role}"))).execute(conn).await.map(drop)
}

/// Begins a transaction of our own, under these settings, which begin with its mode. If it fails, the session is not to
/// be used again.
pub(crate) async fn begin<'c>(
    conn: &'c mut PgConnection,
    settings: &str,
) -> Result<Transaction<'c, Postgres>, sqlx::Error> {
    conn.begin_with(AssertSqlSafe(format!("begin isolation level read committed {settings} {IDLE}"))).await
}

/// The statements before one of the simple protocol, with which they are a transaction of their own.
pub(crate) fn alone(settings: &str) -> String {
    format!("{settings} {IDLE}")
}

/// A right without which our statements fail.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Right {
    table: &'static str,
    right: &'static str,
}

impl Right {
    /// To decide, and to clean up.
    pub(crate) const STORE: Self = Self { table: "tollgate.durable", right: "update" };
    /// To read overrides, and to report.
    pub(crate) const OVERRIDES: Self = Self { table: "tollgate.overrides", right: "select" };

    /// A setting for the rest of the transaction: no role instead of one that lacks the right. Behind a pooler another
    /// client may have left it, and a new connection may lead to the same session.
    pub(crate) fn own_role(self) -> String {
        let is_lacking = self.is_lacking();
        format!(
            "select where case when {is_lacking} then pg_catalog.set_config('role', 'none', true) is null \
                               else false end;"
        )
    }

    fn is_lacking(self) -> String {
        let Self { table, right } = self;
        format!(
            "pg_catalog.current_setting('role') <> 'none' \
             and not (pg_catalog.has_schema_privilege('tollgate', 'usage') \
                      and pg_catalog.has_table_privilege('{table}', '{right}'))"
        )
    }
}

/// Whether the error says that somebody left the session in a transaction, or under a role.
pub(crate) fn is_left(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Database(told) => match told.code().as_deref() {
            Some("25001" | "25P01" | "25P02") => true,
            Some("22P02") => told.message().contains(LEFT) || is_role(error),
            _ => false,
        },
        sqlx::Error::BeginFailed | sqlx::Error::InvalidSavePointStatement => true,
        _ => false,
    }
}

/// Whether the session is under a role without rights. All sessions of a pool may be.
pub(crate) fn is_role(error: &sqlx::Error) -> bool {
    error
        .as_database_error()
        .is_some_and(|told| told.code().as_deref() == Some("22P02") && told.message().contains(ROLE))
}

/// Warns once of a session that somebody left so.
#[cold]
pub(crate) fn tell() {
    static IS_TOLD: AtomicBool = AtomicBool::new(false);
    if !IS_TOLD.swap(true, Ordering::Relaxed) {
        tracing::warn!(
            "somebody left a connection of the pool in a transaction, or under a role without rights, and it is closed \
             (a cancelled `begin` of sqlx 0.9.0 leaves one, and so does raw SQL; say `set local role`)"
        );
    }
}

/// Warns once of an error that a setting of the session may cause. A lock timeout is our own, and a missing right has a
/// remedy of its own.
pub(crate) fn tell_of(error: &Error) {
    static IS_TOLD: AtomicBool = AtomicBool::new(false);
    let is_setting = error.may_be_a_setting() && !error.is_lock_timeout() && !error.is_setup();
    if is_setting && !IS_TOLD.swap(true, Ordering::Relaxed) {
        tracing::warn!(
            error = chain(error),
            "a setting that somebody left in a session may fail a gate's statements, which then take more round trips \
             (say `set local`, or set statement_timeout, role and default_transaction_read_only for the whole pool)"
        );
    }
}

/// The settings that a session began with, for work without bounds of its own. A timeout for statements that was left
/// counts from the beginning of the message until the statement behind the one that ends it, so that one comes first.
pub(crate) const DEFAULTS: &str = "set local statement_timeout to default; set local lock_timeout to default; \
                                   set local idle_in_transaction_session_timeout to default;";

/// Yields no row, and fails in a transaction that is older than this message of the simple protocol. In a prepared
/// statement the two instants always differ.
const IDLE: &str = "select where not case when pg_catalog.now() operator(pg_catalog.=) pg_catalog.statement_timestamp()
                                          then 'on' else 'somebody left this session in a transaction' end::bool;";
const LEFT: &str = "somebody left this session in a transaction";
const ROLE: &str = "somebody left this session under a role without rights";
