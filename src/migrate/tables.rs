use sqlx::PgConnection;

use super::{MigrateError, rows};
use crate::values::schema;

/// Refuses tables that lack a column, or are not logged as they should be.
pub(super) async fn refuse_damaged(conn: &mut PgConnection) -> Result<(), MigrateError> {
    let present = rows(conn, schema::PRESENT.to_owned(), "read the catalogue").await?;
    match schema::missing(&present) {
        Some((table, column)) => Err(MigrateError::Damaged { table, column }),
        None => Ok(()),
    }
}
