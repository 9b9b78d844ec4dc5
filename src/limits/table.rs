use std::collections::BTreeMap;
use std::time::Duration;

use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};

use super::{Limits, LimitsError};
use crate::limit::written::word;
use crate::limit::{Limit, LimitSpec};
use crate::tokens::Tokens;

impl Limits {
    /// Reads the definitions of the table `tollgate.limits`. The SQL functions read the same table, so all callers
    /// share one set of definitions. `tollgate limits push FILE` fills it.
    ///
    /// A change there reaches this process when it reads the table again. Until then two definitions are live.
    ///
    /// # Errors
    ///
    /// [`LimitsError::Table`], and [`LimitsError::Stored`] for a definition that this release does not know.
    ///
    /// # Example
    ///
    /// ```
    /// # async fn example(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
    /// let limits = tollgate::Limits::from_table(&mut *pool.acquire().await?).await?;
    /// let request = limits.get("send_message")?.key("ada");
    /// # let _ = request; Ok(()) }
    /// ```
    pub async fn from_table(conn: &mut PgConnection) -> Result<Self, LimitsError> {
        let rows = sqlx::raw_sql(include_str!("table.sql")).fetch_all(conn).await;
        let specs = rows.and_then(|rows| rows.iter().map(spec).collect::<Result<Vec<_>, _>>());
        let specs = specs.map_err(|source| LimitsError::Table { source })?;
        let named = |spec: LimitSpec| Ok((spec.name().to_owned(), Limit::try_from(spec)?));
        let by_name = specs.into_iter().map(named).collect::<Result<BTreeMap<_, _>, _>>();
        Ok(Self { by_name: by_name.map_err(LimitsError::Stored)?, file: None })
    }
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
