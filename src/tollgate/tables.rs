//! Looks at the tables before a service asks them. The service may not read their history.

use sqlx::{PgConnection, Row};

use super::StartError;
use crate::error::SetupFault;
use crate::parts::Parts;
use crate::values::schema;

/// Fails if the tables lack a column. Returns the number of their parts. By the simple protocol, which no pooler takes
/// apart.
pub(super) async fn read(conn: &mut PgConnection) -> Result<Parts, StartError> {
    let columns = sqlx::raw_sql(schema::PRESENT).fetch_all(&mut *conn).await?;
    let columns = columns.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?)));
    let columns = columns.collect::<Result<Vec<_>, sqlx::Error>>()?;
    if let Some((table, column)) = schema::missing(&columns) {
        let source = sqlx::Error::ColumnNotFound(format!("tollgate.{table}.{column}"));
        return Err(StartError::Setup { fault: SetupFault::Schema, source: source.into() });
    }
    let parts = sqlx::raw_sql(include_str!("../store/sql/parts.sql")).fetch_one(conn).await?;
    let parts: i32 = parts.try_get(0)?;
    Parts::read(parts).ok_or_else(|| {
        let source = sqlx::Error::Configuration(format!("they have {parts} parts").into());
        StartError::Setup { fault: SetupFault::WrongParts, source: source.into() }
    })
}
