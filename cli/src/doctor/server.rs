//! The server, its settings, and a pooler between it and this command.

use std::time::Duration;

use sqlx::postgres::PgDatabaseError;
use sqlx::{Connection, FromRow, PgConnection};

use super::finding::Finding;
use crate::database::DatabaseArgs;
use crate::error::CommandError;
use crate::output::{counted, printable, span};

pub(super) async fn check(conn: &mut PgConnection) -> Result<Vec<Finding>, sqlx::Error> {
    let server: Server = sqlx::query_as(include_str!("sql/server.sql")).persistent(false).fetch_one(conn).await?;
    Ok(server.findings())
}

#[derive(FromRow)]
struct Server {
    version: String,
    number: i32,
    is_standby: bool,
    is_read_only: bool,
    isolation: String,
    forgets_commits: bool,
    /// Settings that are off without which a crash of the machine destroys data.
    unsafe_settings: String,
    standbys: i64,
}

impl Server {
    fn findings(&self) -> Vec<Finding> {
        let Self { version, isolation, unsafe_settings, standbys, .. } = self;
        let found = [
            (self.number < 150_000).then(|| {
                let what = format!("PostgreSQL {version} is older than 15");
                Finding::error("version", what, "Statements may fail.", "Upgrade the server.")
            }),
            self.is_standby.then(|| {
                let what = "this server is a standby";
                Finding::error("standby", what, "Every decision writes.", "Connect to the primary.")
            }),
            self.is_read_only.then(|| {
                let remedy = "Set default_transaction_read_only = off for the service's role.";
                Finding::error("read_only", "transactions are read-only by default", "No decision can be made.", remedy)
            }),
            (isolation != "read committed").then(|| {
                let meaning =
                    "Callers of one key get serialization failures (40001) instead of waiting for each other.";
                let remedy = "Set default_transaction_isolation = 'read committed' for the service's role, or retry.";
                Finding::warning("isolation", format!("transactions are {isolation} by default"), meaning, remedy)
            }),
            self.forgets_commits.then(|| {
                let meaning = "A crash forgets the last grants and reservations, also of durable limits.";
                let remedy = "Set synchronous_commit = on for the service's role, unless such a loss is fine.";
                Finding::warning("synchronous_commit", "synchronous_commit is off", meaning, remedy)
            }),
            (!unsafe_settings.is_empty()).then(|| {
                let meaning = "A crash of the machine may destroy the whole database.";
                let remedy = "Switch them on, unless all data here may be lost.";
                Finding::warning("durability", format!("these settings are off: {unsafe_settings}"), meaning, remedy)
            }),
            (*standbys > 0).then(|| {
                let what = format!("{} of this server", counted(standbys, "standby server"));
                let meaning = "They lack the rows of ephemeral limits: after a failover all of those are full.";
                Finding::warning("failover", what, meaning, "Make limits durable whose count must survive a failover.")
            }),
        ];
        found.into_iter().flatten().collect()
    }
}

/// Whether there is a pooler that hands each transaction to another session and does not follow named statements.
///
/// Asks one connection twice by a named statement. In between, it lets another connection take the session that the
/// first one had.
pub(super) async fn pooler(database: &DatabaseArgs) -> Result<Option<Finding>, CommandError> {
    let (mut one, mut other) = (database.connect().await?, database.connect().await?);
    let asked = tokio::time::timeout(PATIENCE, async {
        ask(&mut one).await?;
        // By the simple protocol, which knows no names.
        let tx = other.begin().await?;
        ask(&mut one).await?;
        tx.rollback().await
    });
    Ok(match asked.await {
        Ok(Ok(())) if one.cached_statements_size() == 0 => {
            let what =
                "the URL says statement-cache-capacity=0: the driver leaves a statement in the server at each call";
            let meaning = "A service with this URL fills the memory of its sessions, and of the pooler behind it.";
            let remedy =
                "Remove it, and say `unnamed_statements()` to Limiter, Gate and Sweeper if a pooler needs that.";
            Some(Finding::warning("statements", what, meaning, remedy))
        }
        Ok(Ok(())) => None,
        Ok(Err(error)) if is_about_names(&error) => {
            let error = CommandError::from(error);
            let what = format!("there is a pooler that does not follow named statements: {error}");
            let meaning = "Decisions fail whenever the pooler switches the session below them.";
            let remedy = "Say `unnamed_statements()` to Limiter and Gate, or set PgBouncer's max_prepared_statements.";
            Some(Finding::error("pooler", what, meaning, remedy))
        }
        Ok(Err(error)) => return Err(error.into()),
        Err(_) => {
            let what = "a second connection did not get a session of its own in time";
            let meaning = "A pooler with a single session lets all callers wait for one another.";
            let remedy = "Give the pooler more sessions (PgBouncer: default_pool_size).";
            Some(Finding::warning("pooler", what, meaning, remedy))
        }
    })
}

async fn ask(conn: &mut PgConnection) -> Result<(), sqlx::Error> {
    sqlx::query("select 1").execute(conn).await.map(drop)
}

/// A prepared statement is not there (26000), or already there from somebody else (42P05), or has other parameters
/// (08P01, which poolers use for everything else, too).
fn is_about_names(error: &sqlx::Error) -> bool {
    let Some(error) = error.as_database_error() else { return false };
    let routine = error.try_downcast_ref::<PgDatabaseError>().and_then(PgDatabaseError::routine);
    match error.code().as_deref() {
        Some("26000" | "42P05") => true,
        Some("08P01") => routine == Some("exec_bind_message"),
        _ => false,
    }
}

/// Transactions that have been open for long.
pub(super) async fn snapshots(conn: &mut PgConnection, from: Duration) -> Result<Vec<Finding>, sqlx::Error> {
    let old = sqlx::query_as(include_str!("sql/snapshots.sql")).bind(from.as_secs_f64()).persistent(false);
    let old: Vec<Snapshot> = old.fetch_all(&mut *conn).await?;
    let sees_all = sqlx::query_scalar("select pg_has_role(current_user, 'pg_read_all_stats', 'usage')");
    let sees_all: bool = sees_all.persistent(false).fetch_one(conn).await?;
    let unseen = (!sees_all).then(|| {
        let what = "this role cannot see what the sessions of others do";
        let meaning = "Old transactions of others, which make hot limits slow, go unnoticed here.";
        Finding::note("snapshots", what, meaning, "Run the doctor as a member of pg_read_all_stats (or pg_monitor).")
    });
    Ok(oldest(&old).into_iter().chain(unseen).collect())
}

#[derive(FromRow)]
struct Snapshot {
    who: String,
    application: String,
    state: String,
    age: f64,
}

/// One finding for all: while the oldest is open, it does not help to end the others.
fn oldest(old: &[Snapshot]) -> Option<Finding> {
    let Snapshot { who, application, state, age } = old.first()?;
    let age = span(Duration::try_from_secs_f64(age.max(0.0)).unwrap_or_default());
    let (application, state, who) = (printable(application), printable(state), printable(who));
    let others = if old.len() > 1 { format!(", and {} more are old", old.len() - 1) } else { String::new() };
    let what = format!("a transaction is open for {age} (process {who}, {application}, {state}){others}");
    let meaning = "It keeps every old version of every row: a hot limit becomes up to 27 times slower.";
    let end = format!("End it (select pg_terminate_backend({who}), or rollback prepared)");
    Some(Finding::warning("snapshots", what, meaning, end + ", and set idle_in_transaction_session_timeout."))
}

const PATIENCE: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_major_that_has_ended_is_an_error() {
        let found = [149_999, 150_000].map(|number| {
            let (version, isolation) = (String::new(), "read committed".to_owned());
            let (is_standby, is_read_only, forgets_commits, unsafe_settings) = (false, false, false, String::new());
            let server = Server {
                version,
                number,
                is_standby,
                is_read_only,
                isolation,
                forgets_commits,
                unsafe_settings,
                standbys: 0,
            };
            server.findings().len()
        });
        assert_eq!(found, [1, 0]);
    }
}
