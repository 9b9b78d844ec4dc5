//! A savepoint around locks that may have to be given up: after a wait that was too long, or because other rows are
//! needed.

use std::time::Duration;

use sqlx::{AssertSqlSafe, PgConnection, Row};

use super::Limiter;
use crate::error::{Error, Step};
use crate::execution::Answers;
use crate::parts::Parts;
use crate::plan::{Answer, Plan};
use crate::store::{database, millis, set_local};

/// A savepoint in the caller's transaction, and the statements that restore the earlier settings.
pub(super) struct Savepoint {
    before: Option<String>,
}

impl Limiter {
    /// Sets a savepoint, and the lock timeout if there is one, in one round trip. On Citus it sets the timeout on the
    /// nodes, too.
    pub(super) async fn savepoint(&self, conn: &mut PgConnection, plan: &Plan) -> Result<Savepoint, Error> {
        let before = match self.lock_timeout {
            Some(timeout) => with_timeout(conn, timeout, self.backend.parts).await.map(Some),
            None => sqlx::raw_sql("savepoint tollgate").execute(conn).await.map(|_| None),
        };
        let before = before.map_err(|source| match &source {
            sqlx::Error::Database(error) if error.code().as_deref() == Some(NO_TRANSACTION) => Error::NotInTransaction,
            _ => database(Step::Savepoint, plan.rows()[0].name(), source),
        })?;
        Ok(Savepoint { before })
    }
}

impl Savepoint {
    /// Ends the savepoint by the answers. If all are refusals or errors, it is undone and its locks are given up; else
    /// it is kept.
    pub(super) async fn leave(
        self,
        conn: &mut PgConnection,
        answers: Result<Answers, Error>,
    ) -> Result<Answers, Error> {
        match answers {
            Ok(refusals) if refusals.iter().all(|answer| matches!(answer, Ok(Answer::Denied(_)) | Err(_))) => {
                self.undo(conn).await.map(|()| refusals)
            }
            Err(error) if error.is_lock_timeout() => self.undo(conn).await.and(Err(error.of_locked_row())),
            // PostgreSQL has aborted the transaction, and the caller must roll it back.
            Err(error) if error.is_of_the_database() => Err(error),
            Err(error) => self.undo(conn).await.and(Err(error)),
            Ok(answers) => self.keep(conn).await.map(|()| answers),
        }
    }

    /// Goes on within the savepoint, with the earlier lock timeout.
    ///
    /// If the savepoint were released, a caller that waits for one of its rows would wait for the whole transaction. It
    /// would wait even if an outer savepoint is rolled back meanwhile, which frees the row. If the transaction then
    /// asks for the row again, it queues behind such callers: a deadlock. So the savepoint stays until the transaction,
    /// or an outer savepoint, ends.
    async fn keep(self, conn: &mut PgConnection) -> Result<(), Error> {
        match self.before {
            Some(before) => run(conn, before).await,
            None => Ok(()),
        }
    }

    /// Undoes everything since the savepoint, including locks and the lock timeout.
    pub(super) async fn undo(self, conn: &mut PgConnection) -> Result<(), Error> {
        run(conn, "rollback to savepoint tollgate; release savepoint tollgate".to_owned()).await
    }
}

/// Sets the savepoint and the lock timeout. Returns the statements that restore the earlier settings.
async fn with_timeout(conn: &mut PgConnection, timeout: Duration, parts: Parts) -> Result<String, sqlx::Error> {
    let set = set_local(parts, &format!("set local lock_timeout = {};", millis(timeout)));
    let sql = format!("savepoint tollgate; {BEFORE}; {set}");
    let row = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_one(conn).await?;
    let (timeout, passed_on): (String, String) = (row.try_get(0)?, row.try_get(1)?);
    let timeout = format!("set local lock_timeout = {}; ", quoted(&timeout));
    let passed_on = format!("set local citus.propagate_set_commands = {}; ", quoted(&passed_on));
    Ok(if parts.is_distributed() { timeout + &passed_on } else { timeout })
}

fn quoted(setting: &str) -> String {
    format!("'{}'", setting.replace('\'', "''"))
}

async fn run(conn: &mut PgConnection, sql: String) -> Result<(), Error> {
    let done = sqlx::raw_sql(AssertSqlSafe(sql)).execute(conn).await;
    done.map(drop).map_err(|source| database(Step::Savepoint, "", source))
}

const NO_TRANSACTION: &str = "25P01";

/// Reads the earlier settings. Without Citus, its setting is null, or empty once it was set.
const BEFORE: &str = "select pg_catalog.current_setting('lock_timeout'),
    coalesce(nullif(pg_catalog.current_setting('citus.propagate_set_commands', true), ''::text), 'none'::text)";
