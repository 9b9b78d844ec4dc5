use std::ops::Range;

use crate::answer::receipt::Charge;
use crate::key::Key;
use crate::limit::{Limit, Storage};
use crate::values::text::Text;

/// One row: a limit's name, a key and a shard, in one of the two tables. Rows order as they are locked.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct RowId {
    // The derived order is the lock order: do not move a field.
    pub(crate) storage: Storage,
    pub(crate) part: u16,
    pub(crate) name: Text,
    pub(crate) key: Key,
    pub(crate) shard: u16,
}

impl RowId {
    /// The first row of its limit and key.
    pub(crate) fn first(&self) -> Self {
        Self { shard: 0, ..self.clone() }
    }

    /// The row that is so many shards further on.
    pub(super) fn after(&self, rows: usize) -> Self {
        let rows = u16::try_from(rows).expect("a limit has at most 64 shards");
        Self { shard: self.shard + rows, ..self.clone() }
    }

    /// Whether another row has the same name and key, in any table and shard.
    pub(super) fn is_of_same_key(&self, other: &Self) -> bool {
        (&self.name, &self.key) == (&other.name, &other.key)
    }

    /// The row as if there were one table: first rows of one name and key are equal.
    pub(super) fn in_one_table(&self) -> Self {
        Self { storage: Storage::Durable, ..self.clone() }
    }

    /// The table that holds it.
    #[must_use]
    pub fn storage(&self) -> Storage {
        self.storage
    }

    /// The limit's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.name.as_str()
    }

    /// The key.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The number of the row among the limit's rows for this key, from 0.
    #[must_use]
    pub fn shard(&self) -> u16 {
        self.shard
    }
}

/// Rows that are asked together: all rows of a limit for a key, or the one row in which a charge is settled.
#[derive(Clone, Debug)]
pub(crate) struct RowRange {
    /// The first row; in lock order the others follow it directly.
    pub(crate) first: RowId,
    pub(crate) count: usize,
    /// The place of the first one in its plan; 0 until it is planned.
    pub(super) place: usize,
}

impl RowRange {
    /// All rows of a limit for a key.
    pub(super) fn of(limit: &Limit, key: Key) -> Self {
        let first = RowId { storage: limit.storage, part: 0, name: limit.name.clone(), key, shard: 0 };
        Self { first, count: limit.shards.into(), place: 0 }
    }

    /// The row that was charged.
    pub(super) fn of_charge(charge: &Charge) -> Self {
        let Charge { storage, shard, .. } = *charge;
        let first = RowId { storage, part: 0, name: charge.limit.clone(), key: charge.key.clone(), shard };
        Self { first, count: 1, place: 0 }
    }

    pub(super) fn each(&self) -> impl Iterator<Item = RowId> {
        (0..self.count).map(|index| self.first.after(index))
    }

    /// Their places in their plan.
    pub(super) fn places(&self) -> Range<usize> {
        self.place..self.place + self.count
    }
}
