//! Applies, checks and prints the migrations.

use sqlx::error::DatabaseError;
use sqlx::{AssertSqlSafe, Connection, PgConnection, Postgres, Transaction};

use super::driver::{OverSqlx, create_history};
use super::error::failed;
use super::quoted::{ENTER, LEAVE, of_transaction};
use super::script::take_lock;
use super::strangers::Leftover;
use super::{
    HISTORY, MigrateError, Migration, Status, ask, block, functions, history, refuse_damaged, refuse_edited, rights,
    runner, strangers,
};

/// Applies, checks and prints the migrations, for whom the schema belongs to.
///
/// The schema and everything in it must belong to the role that migrates, to a role that it is a member of, or to an
/// administrator. Otherwise whoever made the schema first, or left a function there, would get the rights of whoever
/// migrates.
#[derive(Clone, Debug, Default)]
pub struct Migrator {
    pub(super) owner: Option<String>,
}

impl Migrator {
    /// Migrations of a schema that belongs to the role that runs them.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Also trusts this role: what it owns in the schema may run with the rights of the role that migrates.
    #[must_use]
    pub fn owner(self, role: impl Into<String>) -> Self {
        Self { owner: Some(role.into()) }
    }

    /// Applies the missing migrations, and returns them. On a schema that is up to date, or newer, it applies nothing.
    ///
    /// Each run revokes the rights that nobody should have, first, and even if the migrations then fail (but for a
    /// transaction of yours, which rolls back as a whole). PUBLIC loses
    /// all its rights in the schema, because after a restore without rights it may call every function. Only the owner
    /// keeps the right to make objects, and to call the functions that only other functions call. What the run makes is
    /// its owner's alone, whatever default privileges say. [`rights`](super::rights) lists who has which of the other
    /// rights, and [`left`](Self::left) what only a person can put right.
    ///
    /// On a connection it opens transactions of its own; in a sqlx transaction it works in a savepoint. A
    /// transaction-level advisory lock makes other runners wait, and after that they find nothing to do. They wait for
    /// up to a minute, or for the session's `lock_timeout` if it has one.
    ///
    /// # Errors
    ///
    /// [`MigrateError`]; then nothing is applied.
    pub async fn run(&self, conn: &mut PgConnection) -> Result<Vec<Migration>, MigrateError> {
        if !conn.is_in_transaction() {
            let (tx, ()) = within(conn, async |tx| rights::take_back(tx, self).await).await?;
            tx.commit().await.map_err(failed("commit"))?;
        }
        let (tx, applied) = self.apply(conn).await?;
        tx.commit().await.map_err(failed("commit"))?;
        Ok(applied)
    }

    /// Applies the missing migrations, rolls them back, and returns them. So it shows what [`run`](Self::run) would do,
    /// and that it would succeed.
    ///
    /// # Errors
    ///
    /// Those of [`run`](Self::run).
    pub async fn dry_run(&self, conn: &mut PgConnection) -> Result<Vec<Migration>, MigrateError> {
        let (tx, applied) = self.apply(conn).await?;
        tx.rollback().await.map_err(failed("roll back"))?;
        Ok(applied)
    }

    /// The migrations that are applied, those that are missing, and those that this release does not know.
    ///
    /// # Errors
    ///
    /// [`MigrateError::Database`] if the history cannot be read, [`MigrateError::Strangers`] if it must not be.
    pub async fn status(&self, conn: &mut PgConnection) -> Result<Status, MigrateError> {
        strangers::refuse(conn, self).await?;
        let known: Vec<_> = runner().get_migrations().iter().map(Migration::of).collect();
        let is_in = |list: &[Migration], one: &Migration| list.iter().any(|other| other.version == one.version);
        let (applied, newer): (Vec<_>, _) = history(conn).await?.into_iter().partition(|one| is_in(&known, one));
        let pending = known.into_iter().filter(|one| !is_in(&applied, one)).collect();
        Ok(Status { applied, pending, newer })
    }

    /// Checks that the schema is as this release needs it. No migration may be missing or edited, each table, column
    /// and function must be in place and belong to nobody else, and no role may have a right that [`run`](Self::run)
    /// would revoke.
    ///
    /// # Errors
    ///
    /// [`MigrateError`] with the first fault.
    pub async fn validate(&self, conn: &mut PgConnection) -> Result<(), MigrateError> {
        let Status { applied, pending, newer } = self.status(conn).await?;
        refuse_edited(&applied)?;
        if let Some(missing) = pending.into_iter().next() {
            return Err(MigrateError::Missing(missing));
        }
        refuse_damaged(conn).await?;
        // A function of somebody else beside one of ours would count as an edit of it.
        rights::refuse_wrong(conn, self).await?;
        // A newer release may have given the functions another text.
        if newer.is_empty() { functions::refuse_edited(conn).await } else { Ok(()) }
    }

    /// The objects and rights that [`run`](Self::run) leaves to a person: objects of strangers that nothing of ours
    /// reaches, and rights that default privileges have given to a role.
    ///
    /// # Errors
    ///
    /// [`MigrateError::Database`] if the catalogue cannot be read.
    pub async fn left(&self, conn: &mut PgConnection) -> Result<Vec<Leftover>, MigrateError> {
        let mut left = strangers::left(conn, self).await?;
        left.extend(rights::left(conn, self).await?);
        Ok(left)
    }

    async fn apply<'c>(
        &self,
        conn: &'c mut PgConnection,
    ) -> Result<(Transaction<'c, Postgres>, Vec<Migration>), MigrateError> {
        within(conn, async |tx| {
            rights::take_back(tx, self).await?;
            // It asks before it creates, because `if not exists` still demands the right to create schemas.
            if !ask(tx, "select pg_catalog.to_regnamespace('tollgate') is not null", "look for the schema").await? {
                step(tx, "create schema tollgate", "create the schema").await?;
            }
            let status = self.status(tx).await?;
            refuse_edited(&status.applied)?;
            block(tx, rights::NOTE_KNOWN).await.map_err(failed("read the catalogue"))?;
            if !status.is_current() {
                self.hold_history(tx).await?;
            }
            let report = runner().run_async(&mut OverSqlx(tx)).await;
            let report = report.map_err(|error| MigrateError::Failed(error.into()))?;
            rights::mend(tx, self).await?;
            Ok(report.applied_migrations().iter().map(Migration::of).collect())
        })
        .await
    }

    /// Makes the history, or locks it against new triggers and looks at it once more. Without `if not exists`, which
    /// would take a table that a stranger has made just now.
    async fn hold_history(&self, conn: &mut PgConnection) -> Result<(), MigrateError> {
        if !ask(conn, &format!("select pg_catalog.to_regclass('{HISTORY}') is not null"), "look for the history")
            .await?
        {
            return step(conn, &create_history(), "create the history table").await;
        }
        step(conn, &format!("lock table {HISTORY} in share row exclusive mode"), "lock the history table").await?;
        strangers::refuse(conn, self).await
    }
}

/// Works in a transaction that has our search path and holds the lock of the migrations. If that fails, the
/// transaction ends at once: a dropped one would hold the lock until somebody uses the connection again.
async fn within<'c, T>(
    conn: &'c mut PgConnection,
    work: impl AsyncFnOnce(&mut PgConnection) -> Result<T, MigrateError>,
) -> Result<(Transaction<'c, Postgres>, T), MigrateError> {
    let mut tx = begin(conn).await?;
    let done = async {
        prepare(&mut tx).await?;
        let done = work(&mut tx).await?;
        block(&mut tx, &of_transaction(LEAVE)).await.map_err(failed("set the search path"))?;
        Ok(done)
    };
    match done.await {
        Ok(done) => Ok((tx, done)),
        Err(error) => {
            // The first error tells more than this one.
            let _ = tx.rollback().await;
            Err(error)
        }
    }
}

/// At READ COMMITTED the transaction reads the history, and who owns what, as they stand after the wait for other
/// runners.
async fn prepare(conn: &mut PgConnection) -> Result<(), MigrateError> {
    block(conn, &of_transaction(ENTER)).await.map_err(failed("set the search path"))?;
    if !ask(conn, IS_READ_COMMITTED, "look at the transaction").await? {
        return Err(MigrateError::Isolation);
    }
    block(conn, &take_lock()).await.map_err(|error| {
        let is_locked = error.as_database_error().and_then(DatabaseError::code).as_deref() == Some("55P03");
        if is_locked { MigrateError::Locked } else { failed("take the migration lock")(error) }
    })
}

/// A savepoint of the caller's transaction, or a transaction of our own.
async fn begin(conn: &mut PgConnection) -> Result<Transaction<'_, Postgres>, MigrateError> {
    if conn.is_in_transaction() {
        return Connection::begin(conn).await.map_err(failed("set a savepoint"));
    }
    // Our commit would commit a transaction that was begun by hand, with everything that it did before.
    let is_idle = "select pg_catalog.now() operator(pg_catalog.=) pg_catalog.statement_timestamp()";
    if !ask(conn, is_idle, "look for a transaction").await? {
        return Err(MigrateError::BegunByHand);
    }
    let begin = "begin isolation level read committed read write; set local statement_timeout to default;
                 set local idle_in_transaction_session_timeout to default";
    Connection::begin_with(conn, begin).await.map_err(failed("begin a transaction"))
}

async fn step(conn: &mut PgConnection, statement: &str, what: &'static str) -> Result<(), MigrateError> {
    sqlx::raw_sql(AssertSqlSafe(statement.to_owned())).execute(conn).await.map(drop).map_err(failed(what))
}

const IS_READ_COMMITTED: &str = "select pg_catalog.current_setting('transaction_isolation') = 'read committed'";
