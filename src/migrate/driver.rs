use refinery_core::Migration;
use refinery_core::traits::r#async::{AsyncMigrate, AsyncQuery, AsyncTransaction};
use sqlx::{AssertSqlSafe, PgConnection, Row};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::HISTORY;

/// Refinery's driver traits over a sqlx connection. The caller holds the transaction.
pub(super) struct OverSqlx<'c>(pub(super) &'c mut PgConnection);

/// Refinery's statement, which must not take a table that somebody else has made.
pub(super) fn create_history() -> String {
    OverSqlx::assert_migrations_table_query(HISTORY).replace("IF NOT EXISTS ", "")
}

impl AsyncTransaction for OverSqlx<'_> {
    type Error = sqlx::Error;

    async fn execute<'a, T: Iterator<Item = &'a str> + Send + 'a>(
        &'a mut self,
        queries: T,
    ) -> Result<usize, sqlx::Error> {
        let mut count = 0;
        // The history table is made before, and each `if not exists` would be a notice in the log.
        let made = Self::assert_migrations_table_query(HISTORY);
        for query in queries.filter(|query| *query != made) {
            // The text is that of our own migrations, and of refinery's statements about our own history table; none of
            // it comes from a user.
            sqlx::raw_sql(AssertSqlSafe(query.to_owned())).execute(&mut *self.0).await?;
            count += 1;
        }
        Ok(count)
    }
}

impl AsyncQuery<Vec<Migration>> for OverSqlx<'_> {
    async fn query(&mut self, query: &str) -> Result<Vec<Migration>, sqlx::Error> {
        let rows = sqlx::raw_sql(AssertSqlSafe(query.to_owned())).fetch_all(&mut *self.0).await?;
        rows.iter()
            .map(|row| {
                let applied_on = row.try_get::<&str, _>("applied_on")?;
                let checksum = row.try_get::<&str, _>("checksum")?;
                Ok(Migration::applied(
                    row.try_get::<i64, _>("version")?.try_into().map_err(decode)?,
                    row.try_get("name")?,
                    OffsetDateTime::parse(applied_on, &Rfc3339).map_err(decode)?,
                    checksum.parse().map_err(decode)?,
                ))
            })
            .collect()
    }
}

impl AsyncMigrate for OverSqlx<'_> {
    /// Reads the version as `int8`: its column is `int4` or `int8`, depending on who created the table.
    fn get_applied_migrations_query(history: &str) -> String {
        format!("select version::int8, name, applied_on, checksum from {history} order by version")
    }
}

fn decode(error: impl std::error::Error + Send + Sync + 'static) -> sqlx::Error {
    sqlx::Error::Decode(Box::new(error))
}
