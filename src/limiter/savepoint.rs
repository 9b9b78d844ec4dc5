//! A savepoint around locks that may have to be given up: after a wait that was too long, or because others are due.

use std::time::Duration;

use sqlx::{AssertSqlSafe, PgConnection, Row};

use super::Limiter;
use crate::error::{Error, Step};
use crate::execution::Answers;
use crate::parts::Parts;
use crate::plan::{Answer, Plan};
use crate::store::{database, millis, set_local};

/// A savepoint in the caller's transaction, and the statements that put the settings of before back.
pub(super) struct Savepoint {
    before: Option<String>,
}

impl Limiter {
    /// Sets a savepoint, and the lock timeout if there is one, in one round trip; on Citus, on its nodes, too.
    pub(super) async fn savepoint(
        &self,
        conn: &mut PgConnection,
        plan: &Plan,
        timeout: Option<Duration>,
    ) -> Result<Savepoint, Error> {
        let before = match timeout {
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
    /// Leaves it as the answers demand: undone, and its locks given up, where all are refusals or errors; else kept.
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
            // PostgreSQL has aborted the transaction: it is the caller's to roll back.
            Err(error) if error.is_of_the_database() => Err(error),
            Err(error) => self.undo(conn).await.and(Err(error)),
            Ok(answers) => self.keep(conn).await.map(|()| answers),
        }
    }

    /// Goes on within it, with the lock timeout of before.
    ///
    /// A caller that waits for a row of a released savepoint waits for the whole transaction, even where an outer
    /// savepoint is rolled back meanwhile and the row is free. If that transaction asks for the row again, it queues
    /// behind such callers: a deadlock. So the savepoint ends with what is around it.
    async fn keep(self, conn: &mut PgConnection) -> Result<(), Error> {
        match self.before {
            Some(before) => run(conn, before).await,
            None => Ok(()),
        }
    }

    /// Undoes what was done since, locks and the lock timeout included.
    pub(super) async fn undo(self, conn: &mut PgConnection) -> Result<(), Error> {
        run(conn, "rollback to savepoint tollgate; release savepoint tollgate".to_owned()).await
    }
}

/// Sets both; returns what puts the settings of before back.
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

/// The settings of before. Without Citus its own setting is null, or empty once it was set.
const BEFORE: &str = "select pg_catalog.current_setting('lock_timeout'),
    coalesce(nullif(pg_catalog.current_setting('citus.propagate_set_commands', true), ''::text), 'none'::text)";
