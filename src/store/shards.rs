//! The tables of single shards on Citus. At the node that has a shard, PostgreSQL plans a statement about its table
//! once for each session, as on a plain server, where Citus would plan it anew each time.
//!
//! A statement reads and writes nothing where the shard does not lie. A reading looks into Citus's catalogue, by its
//! own snapshot. A write first takes the lock for which moves and splits wait, and looks after that
//! (`V13__shards.sql`): before it has the lock, it locks and writes no row. So a gate that asks a node which a shard
//! has left learns so, and asks by Citus's names.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock};

use sqlx::error::DatabaseError;
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, Row as _, ValueRef as _};

use super::columns::{self, Columns, Found};
use super::fault::is_of_a_split;
use super::swap::SwapRows;
use super::{Store, table_of};
use crate::limit::Storage;
use crate::plan::RowId;
use crate::values::lock::{read, write};

/// The shards on a node of Citus whose own tables a gate asks.
#[derive(Debug)]
pub(crate) struct Shards {
    known: RwLock<HashMap<(Storage, u16), Arc<ShardTable>>>,
    /// Whether a shard did not lie where it was known to lie, or could not be held; at first, as none is known.
    missed: AtomicBool,
}

impl Default for Shards {
    fn default() -> Self {
        Self { known: RwLock::default(), missed: AtomicBool::new(true) }
    }
}

/// A shard, and the statements about its table.
#[derive(Debug)]
pub(super) struct ShardTable {
    id: i64,
    node: i32,
    peek: Arc<str>,
    swap: Arc<str>,
    swap_groups: Arc<str>,
}

impl Shards {
    /// Replaces what was known: the shard of each part that lies on this node.
    pub(crate) fn know(&self, node: i32, shards: &[(Storage, u16, i64)]) {
        let mut known = write(&self.known);
        let before = std::mem::take(&mut *known);
        known.extend(shards.iter().map(|(storage, part, id)| {
            let shard = before.get(&(*storage, *part)).filter(|shard| shard.id == *id).cloned();
            ((*storage, *part), shard.unwrap_or_else(|| Arc::new(ShardTable::new(*storage, *id, node))))
        }));
    }

    /// Whether nothing is known.
    pub(crate) fn is_empty(&self) -> bool {
        read(&self.known).is_empty()
    }

    /// Whether a shard was missed since this was last taken.
    pub(crate) fn take_missed(&self) -> bool {
        self.missed.swap(false, Ordering::Relaxed)
    }

    pub(crate) fn has_missed(&self) -> bool {
        self.missed.load(Ordering::Relaxed)
    }

    fn of(&self, row: &RowId) -> Option<Arc<ShardTable>> {
        read(&self.known).get(&(row.storage, row.part)).cloned()
    }

    /// From here on the gate asks the rows of this shard by Citus's names.
    fn miss(&self, row: &RowId) {
        write(&self.known).remove(&(row.storage, row.part));
        self.missed.store(true, Ordering::Relaxed);
    }
}

impl ShardTable {
    fn new(storage: Storage, id: i64, node: i32) -> Self {
        let of_shard = |text: &str, condition: &str| -> Arc<str> {
            let text = text.replace("tollgate.ephemeral", &format!("{}_{id}", table_of(storage)));
            // Nothing is looked up, locked or written until this has been found true.
            let (asked, rest) = text.split_once(" offset 0) p) w").expect("each statement begins with its arrays");
            format!("{asked} and {condition} offset 0) p) w{rest}").into()
        };
        Self {
            id,
            node,
            peek: of_shard(include_str!("sql/ephemeral/peek.sql"), LIES_HERE),
            swap: of_shard(include_str!("sql/ephemeral/swap.sql"), "tollgate.hold_shard($9::int8, $10::int4)"),
            swap_groups: of_shard(
                include_str!("sql/ephemeral/swap_groups.sql"),
                "tollgate.hold_shard($13::int8, $14::int4)",
            ),
        }
    }
}

impl Store<'_> {
    /// The shard of these rows, if the gate asks its own table.
    pub(super) fn shard(&self, row: &RowId) -> Option<Arc<ShardTable>> {
        self.shards.as_ref()?.of(row)
    }

    /// Reads rows of one part from the table of their shard; `None` if the gate knows no such table, or the shard does
    /// not lie here.
    pub(super) async fn peek_shard(&mut self, rows: &[RowId]) -> Result<Option<Found>, sqlx::Error> {
        let Some(shard) = self.shard(&rows[0]) else { return Ok(None) };
        let Columns { names, keys, shards } = Columns::of(rows);
        let peek = sqlx::query(AssertSqlSafe(shard.peek.clone())).bind(columns::part(&rows[0]));
        let peek = peek.bind(names).bind(keys).bind(shards).bind(self.at).bind(shard.id).bind(shard.node);
        let found = match self.fetch(peek).await {
            Err(error) if is_missed(&error) => Vec::new(),
            found => found?,
        };
        if found.first().is_some_and(|row| row.try_get_raw(1).is_ok_and(|values| !values.is_null())) {
            return Found::peeked(&found).map(Some);
        }
        self.miss(&rows[0]);
        Ok(None)
    }

    /// Writes the rows of a swap to the table of their shard, with the arrays that only groups have. If the shard does
    /// not lie here, nothing is written, as if the rows had changed.
    pub(super) async fn swap_shard(
        &mut self,
        shard: &ShardTable,
        rows: &SwapRows<'_>,
        sizes: Option<&[i64]>,
    ) -> Result<Vec<PgRow>, sqlx::Error> {
        let text = if sizes.is_some() { &shard.swap_groups } else { &shard.swap };
        let values = &rows.values;
        let swap = sqlx::query(AssertSqlSafe(text.clone())).bind(columns::part(rows.first));
        let swap = swap.bind(&rows.tids).bind(&rows.writers).bind(&values.amounts).bind(&values.instants);
        let swap = swap.bind(&values.full_at).bind(&rows.groups);
        let swap = match sizes {
            Some(sizes) => {
                swap.bind(sizes).bind(&values.lists.numbers).bind(&values.lists.firsts).bind(&values.lists.lasts)
            }
            None => swap,
        };
        match self.fetch(swap.bind(rows.began).bind(shard.id).bind(shard.node)).await {
            Err(error) if is_missed(&error) => {
                self.miss(rows.first);
                Ok(Vec::new())
            }
            written => written,
        }
    }

    fn miss(&self, row: &RowId) {
        if let Some(shards) = &self.shards {
            shards.miss(row);
        }
    }
}

/// Whether the table of a shard is gone, or the shard, or the right to hold it.
fn is_missed(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(DatabaseError::code);
    matches!(code.as_deref(), Some("42P01" | "42501" | "42883")) || is_of_a_split(error)
}

const LIES_HERE: &str = "exists (select from pg_catalog.pg_dist_placement d
                                  where d.shardid = $6::int8 and d.groupid = $7::int4)";
