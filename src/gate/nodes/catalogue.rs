//! The nodes of Citus, and where the parts lie.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use sqlx::postgres::PgRow;
use sqlx::{Error, PgConnection, PgPool, Row as _};

use crate::parts::Parts;

/// A node, and its address.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub(super) struct Node {
    group: i32,
    host: Arc<str>,
    port: u16,
}

impl Node {
    /// The node of each part.
    pub(super) async fn of_parts(entry: &mut PgConnection, parts: Parts) -> Result<HashMap<u16, Self>, Error> {
        let numbers: Vec<_> = parts.all().map(u16::cast_signed).collect();
        let asked = sqlx::query(include_str!("of_parts.sql")).persistent(false).bind(numbers);
        asked.fetch_all(entry).await?.iter().map(Self::of_part).collect()
    }

    fn of_part(row: &PgRow) -> Result<(u16, Self), Error> {
        let port = u16::try_from(row.try_get::<i32, _>(3)?).map_err(|error| Error::Decode(error.into()))?;
        let node = Self { group: row.try_get(1)?, host: row.try_get::<String, _>(2)?.into(), port };
        Ok((row.try_get::<i16, _>(0)?.cast_unsigned(), node))
    }

    /// Connections to its address, with all other settings of the entry.
    pub(super) fn pool(&self, entry: &PgPool) -> PgPool {
        let address = entry.connect_options().as_ref().clone().host(&self.host).port(self.port);
        entry.options().clone().min_connections(0).connect_lazy_with(address)
    }

    /// Whether a connection leads to this node: its address may lead somewhere else from here than from the entry.
    pub(super) async fn is_reached(&self, over: &mut PgConnection, entry: &mut PgConnection) -> Result<bool, Error> {
        let asked = sqlx::query_scalar(include_str!("identity_of_node.sql")).persistent(false).bind(self.group);
        let identity: Option<String> = asked.fetch_optional(entry).await?;
        let asked = sqlx::query_as(include_str!("identity.sql")).persistent(false);
        let found: (i32, String) = asked.fetch_one(over).await?;
        Ok(identity.is_some_and(|identity| found == (self.group, identity)))
    }
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}
