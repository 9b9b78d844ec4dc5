//! The definitions of the table `tollgate.limits`: read, and inserted.

use std::time::Duration;

use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};

use crate::limit::written::word;
use crate::limit::{Limit, LimitSpec, micros};
use crate::tokens::Tokens;

/// A definition of the table, by its name. It may be one that this release does not know.
pub(crate) type Stored = (String, Result<LimitSpec, sqlx::Error>);

/// Reads all definitions.
pub(crate) async fn read(conn: &mut PgConnection) -> Result<Vec<Stored>, sqlx::Error> {
    let rows = sqlx::raw_sql(include_str!("read.sql")).fetch_all(conn).await?;
    rows.iter().map(|row| Ok((row.try_get("name")?, spec(row)))).collect()
}

/// Inserts a definition, unless there is one of its name.
pub(crate) async fn insert(conn: &mut PgConnection, limit: &Limit) -> Result<(), sqlx::Error> {
    let kind = serde_json::to_value(limit.kind).map_err(decode)?;
    let insert = sqlx::query(include_str!("insert.sql"))
        .persistent(false)
        .bind(limit.name())
        .bind(kind.as_str())
        .bind(limit.rate.micros())
        .bind(micros(limit.period))
        .bind(limit.most().micros())
        .bind(limit.max_reserved.micros())
        .bind(limit.start.and_then(micros))
        .bind(limit.resolution.map(u16::cast_signed))
        .bind(limit.shards.cast_signed())
        .bind(limit.storage.to_string());
    insert.execute(conn).await.map(drop)
}

fn spec(row: &PgRow) -> Result<LimitSpec, sqlx::Error> {
    let tokens = |column| row.try_get(column).map(Tokens::from_micros);
    let span = |micros: i64| u64::try_from(micros).map(Duration::from_micros).map_err(decode);
    let count = |count: i16| u16::try_from(count).map_err(decode);
    let spec = LimitSpec::new(
        row.try_get::<String, _>("name")?,
        word(row.try_get("kind")?).map_err(decode)?,
        tokens("rate")?,
        span(row.try_get("period")?)?,
    );
    Ok(LimitSpec {
        capacity: Some(tokens("capacity")?),
        start: row.try_get::<Option<_>, _>("start")?.map(span).transpose()?,
        resolution: row.try_get::<Option<_>, _>("resolution")?.map(count).transpose()?,
        max_reserved: tokens("max_reserved")?,
        shards: count(row.try_get("shards")?)?,
        storage: word(row.try_get("storage")?).map_err(decode)?,
        ..spec
    })
}

fn decode(error: impl std::error::Error + Send + Sync + 'static) -> sqlx::Error {
    sqlx::Error::Decode(error.into())
}
