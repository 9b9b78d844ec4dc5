use std::collections::BTreeMap;

use sqlx::PgConnection;

use super::{Limits, LimitsError};
use crate::definitions;
use crate::limit::{Limit, LimitSpec};

impl Limits {
    /// Reads the definitions of the table `tollgate.limits`. The SQL functions and the command read the same table, so
    /// all callers share one set of definitions. `tollgate limits push FILE` fills it, and so does a
    /// [`Tollgate`](crate::Tollgate) where the role may.
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
        let stored = definitions::read(conn).await;
        let specs = stored.and_then(|stored| stored.into_iter().map(|(_, spec)| spec).collect::<Result<Vec<_>, _>>());
        let specs = specs.map_err(|source| LimitsError::Table { source })?;
        let named = |spec: LimitSpec| Ok((spec.name().to_owned(), Limit::try_from(spec)?));
        let by_name = specs.into_iter().map(named).collect::<Result<BTreeMap<_, _>, _>>();
        Ok(Self { by_name: by_name.map_err(LimitsError::Stored)?, file: None })
    }
}
