//! Whether there is a pooler in between that hands each transaction to another session, and whether it follows named statements.

use std::time::Duration;

use sqlx::{Connection, PgConnection};

use super::finding::Finding;
use crate::connect::DatabaseArgs;
use crate::error::CommandError;

/// Asks one connection twice which server process it talks to, by a named statement; and in between lets another connection take
/// the process that the first one had.
pub(super) async fn check(database: &DatabaseArgs) -> Result<Option<Finding>, CommandError> {
    let (mut one, mut other) = (database.connect().await?, database.connect().await?);
    let asked = tokio::time::timeout(PATIENCE, async {
        let first = process(&mut one).await?;
        // By the simple protocol, which knows no names.
        let tx = other.begin().await?;
        let second = process(&mut one).await?;
        tx.rollback().await?;
        Ok(first != second)
    });
    match asked.await {
        Ok(Ok(false)) => Ok(None),
        Ok(Ok(true)) => Ok(Some(follows())),
        Ok(Err(error)) if is_about_names(&error) => Ok(Some(does_not_follow(&error))),
        Ok(Err(error)) => Err(error.into()),
        Err(_) => Ok(Some(too_few())),
    }
}

fn follows() -> Finding {
    Finding::note("pooler", "there is a pooler in transaction mode, and it follows named statements")
        .means("That suits: nothing of a decision outlives its transaction.")
        .remedy("Run migrations over a direct connection.")
}

fn does_not_follow(error: &sqlx::Error) -> Finding {
    let reason = error.as_database_error().map_or_else(|| error.to_string(), |error| error.message().to_owned());
    Finding::error("pooler", format!("there is a pooler that does not follow named statements: {reason}"))
        .means("Decisions fail now and then, whenever the pooler switches the session below them.")
        .remedy("Say `unnamed_statements()` to Limiter and Gate, or set PgBouncer's max_prepared_statements (1.21 or newer).")
}

fn too_few() -> Finding {
    Finding::warning("pooler", "a second connection did not get a session of its own in time")
        .means("A pooler with a single session lets all callers wait for one another.")
        .remedy("Give the pooler more sessions (PgBouncer: default_pool_size).")
}

async fn process(conn: &mut PgConnection) -> Result<i32, sqlx::Error> {
    sqlx::query_scalar("select pg_backend_pid()").fetch_one(conn).await
}

/// A prepared statement is not there (26000), or already there from somebody else (42P05), or has other parameters (08P01).
fn is_about_names(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(sqlx::error::DatabaseError::code);
    matches!(code.as_deref(), Some("26000" | "42P05" | "08P01"))
}

const PATIENCE: Duration = Duration::from_secs(5);
