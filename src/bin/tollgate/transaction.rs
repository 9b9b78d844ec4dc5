//! Transactions in which the command looks, and changes nothing: not even settings, which a pooler would hand on to others.

use std::time::Duration;

use sqlx::{Connection, PgConnection, Postgres, Transaction};

/// A transaction that cannot write, and whose statements take no longer than `timeout`.
pub(crate) async fn read_only(
    conn: &mut PgConnection,
    timeout: Duration,
) -> Result<Transaction<'_, Postgres>, sqlx::Error> {
    let mut tx = conn.begin_with("begin read only").await?;
    let millis = timeout.as_millis().clamp(1, i32::MAX.unsigned_abs().into());
    sqlx::query("select set_config('statement_timeout', $1, true)")
        .bind(millis.to_string())
        .persistent(false)
        .execute(&mut *tx)
        .await?;
    Ok(tx)
}
