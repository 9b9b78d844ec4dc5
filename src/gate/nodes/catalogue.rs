//! The nodes of Citus, and where the parts lie.

use std::fmt;
use std::sync::Arc;

use sqlx::postgres::PgRow;
use sqlx::{Connection as _, Error, PgConnection, PgPool, Row as _};

use crate::limit::Storage;
use crate::parts::Parts;
use crate::store::Backend;

/// A shard, and the node that has it.
pub(super) struct Placement {
    pub(super) storage: Storage,
    pub(super) part: u16,
    pub(super) shard: i64,
    pub(super) node: Node,
}

impl Placement {
    /// Those of each part, in both tables.
    pub(super) async fn all(entry: &mut PgConnection, parts: Parts) -> Result<Vec<Self>, Error> {
        let numbers: Vec<_> = parts.all().map(u16::cast_signed).collect();
        let asked = sqlx::query(include_str!("of_parts.sql")).persistent(false).bind(numbers);
        asked.fetch_all(entry).await?.iter().map(Self::from_row).collect()
    }

    fn from_row(row: &PgRow) -> Result<Self, Error> {
        let port = u16::try_from(row.try_get::<i32, _>(5)?).map_err(|error| Error::Decode(error.into()))?;
        Ok(Self {
            storage: if row.try_get(0)? { Storage::Durable } else { Storage::Ephemeral },
            part: row.try_get::<i16, _>(1)?.cast_unsigned(),
            shard: row.try_get(2)?,
            node: Node { group: row.try_get(3)?, host: row.try_get::<String, _>(4)?.into(), port },
        })
    }
}

/// A node, and its address.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub(super) struct Node {
    pub(super) group: i32,
    host: Arc<str>,
    port: u16,
}

impl Node {
    /// Whether this node, which a connection leads to, holds a shard for us as Citus does for its own writes.
    pub(super) async fn holds(&self, over: &mut PgConnection, shard: i64) -> Result<bool, Error> {
        let mut tx = over.begin().await?;
        let asked = sqlx::query_scalar(include_str!("holds.sql")).persistent(false).bind(shard).bind(self.group);
        let holds = asked.fetch_one(&mut *tx).await?;
        tx.rollback().await?;
        Ok(holds)
    }

    /// Connections to its address, with all other settings of the entry.
    pub(super) fn pool(&self, entry: &PgPool, backend: Backend) -> PgPool {
        let mut address = entry.connect_options().as_ref().clone().host(&self.host).port(self.port);
        if !backend.unnamed {
            // Three statements for each shard, of two tables, beside the 100 that sqlx keeps.
            address = address.statement_cache_capacity(100 + 6 * usize::from(backend.parts.count()));
            // A session keeps the plan that it made while the table of a shard was small. PgBouncer refuses this
            // parameter, but before a node it mostly gets statements without names, which keep no plan.
            address = address.options([("enable_seqscan", "off")]);
        }
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
