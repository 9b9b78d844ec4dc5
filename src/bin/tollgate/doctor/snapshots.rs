use std::time::Duration;

use sqlx::{FromRow, PgConnection};

use super::finding::Finding;
use crate::error::CommandError;
use crate::output::{printable, span};

pub(super) async fn check(conn: &mut PgConnection, from: Duration) -> Result<Vec<Finding>, CommandError> {
    let old: Vec<Snapshot> = sqlx::query_as(include_str!("sql/snapshots.sql"))
        .bind(from.as_secs_f64())
        .persistent(false)
        .fetch_all(&mut *conn)
        .await?;
    let sees_all: bool = sqlx::query_scalar("select pg_has_role(current_user, 'pg_read_all_stats', 'usage')")
        .persistent(false)
        .fetch_one(conn)
        .await?;
    Ok(oldest(&old).into_iter().chain((!sees_all).then(unseen)).collect())
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
    let finding = format!("a transaction is open for {age} (process {who}, {application}, {state}){others}");
    Some(
        Finding::warning("snapshots", finding)
            .means(
                "While it is open no old version of any row can be removed: a hot limit becomes up to 27 times slower, and its table \
                 grows.",
            )
            .remedy(format!(
                "End it (select pg_terminate_backend({who}), or rollback prepared), and set \
                 idle_in_transaction_session_timeout."
            )),
    )
}

fn unseen() -> Finding {
    Finding::note("snapshots", "this role cannot see what the sessions of others do")
        .means("Old transactions of others, which make hot limits slow, go unnoticed here.")
        .remedy("Run the doctor as a member of pg_read_all_stats (or pg_monitor).")
}
