//! A lock timeout that leaves the caller's transaction usable: the wait runs in a savepoint.

use std::time::Duration;

use sqlx::{AssertSqlSafe, PgConnection, Row};

use crate::error::{Error, Step};
use crate::store::database;

/// Sets a savepoint and the lock timeout, in one round trip; returns the timeout of before.
pub(super) async fn set(conn: &mut PgConnection, timeout: Duration, limit: &str) -> Result<String, Error> {
    // Zero would be no timeout.
    let millis = timeout.as_nanos().div_ceil(1_000_000).clamp(1, i32::MAX.unsigned_abs().into());
    let sql = format!(
        "savepoint tollgate_lock_timeout; select current_setting('lock_timeout'); set local lock_timeout = {millis}"
    );
    let before = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_one(conn).await.and_then(|row| row.try_get(0));
    before.map_err(|source| match &source {
        sqlx::Error::Database(error) if error.code().as_deref() == Some(NO_TRANSACTION) => Error::NotInTransaction,
        _ => database(Step::Savepoint, limit, source),
    })
}

/// Leaves the savepoint as the answer demands: undone if the lock timeout struck, else kept, with the timeout of before.
pub(super) async fn leave<T>(conn: &mut PgConnection, before: &str, answer: Result<T, Error>) -> Result<T, Error> {
    let (sql, answer) = match answer {
        Err(error) if error.is_lock_timeout() => (
            "rollback to savepoint tollgate_lock_timeout; release savepoint tollgate_lock_timeout".to_owned(),
            Err(Error::Busy),
        ),
        // PostgreSQL has aborted the transaction: it is the caller's to roll back.
        Err(error) if error.is_of_the_database() => return Err(error),
        answer => {
            let before = before.replace('\'', "''");
            (format!("set local lock_timeout = '{before}'; release savepoint tollgate_lock_timeout"), answer)
        }
    };
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(conn).await.map_err(|source| database(Step::Savepoint, "", source))?;
    answer
}

const NO_TRANSACTION: &str = "25P01";
