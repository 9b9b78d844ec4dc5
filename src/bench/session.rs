use std::time::Duration;

use sqlx::PgConnection;
use sqlx::postgres::PgConnectOptions;

/// A session whose doings the server counts, and whose end can be waited for.
pub(super) fn options(url: &str) -> Result<PgConnectOptions, sqlx::Error> {
    Ok(url.parse::<PgConnectOptions>()?.application_name(APPLICATION_NAME))
}

/// Returns when all such sessions have ended, and the server shows all that they did.
pub(super) async fn all_ended(conn: &mut PgConnection) -> Result<(), sqlx::Error> {
    // A session hands its counts over before it leaves this view.
    while sqlx::query_scalar(HAS_SESSIONS).bind(APPLICATION_NAME).fetch_one(&mut *conn).await? {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    if conn.server_version_num().is_some_and(|version| version < 150_000) {
        // Before 15 it hands them to a collector, which shows them half a second later at most.
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    Ok(())
}

const APPLICATION_NAME: &str = "tollgate bench";

const HAS_SESSIONS: &str = "
    select exists (select from pg_stat_activity where application_name = $1 and datname = current_database())";
