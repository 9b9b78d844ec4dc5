use crate::algebra::State;
use crate::key::Key;
use crate::limit::{Limit, Storage};
use crate::text::Text;

/// One row: a limit's name, a key and a shard, in one of the two tables. Rows order as they are locked.
///
/// Its number says how many rows it is one of ([`Limit::shard_numbers`]), and one that was left by a definition of another number of shards, a *stranger*, is never
/// taken for ours.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Row {
    // The derived order is the lock order: do not move a field.
    pub(crate) storage: Storage,
    pub(crate) name: Text,
    pub(crate) key: Key,
    pub(crate) shard: u16,
}

impl Row {
    /// The first of the rows that a limit has for a key.
    pub(crate) fn first(limit: &Limit, key: &Key) -> Self {
        Self::nth(limit, key, 0)
    }

    /// Any of them, by its index, which is less than their number.
    pub(crate) fn nth(limit: &Limit, key: &Key, index: u16) -> Self {
        let shard = limit.shard_numbers().start + index;
        Self { storage: limit.storage, name: limit.name.clone(), key: key.clone(), shard }
    }

    /// The row of a charge.
    #[cfg(feature = "postgres")]
    pub(crate) fn of(charge: &crate::receipt::Charge) -> Self {
        let crate::receipt::Charge { limit, key, shard, .. } = charge;
        Self { storage: limit.storage, name: limit.name.clone(), key: key.clone(), shard: *shard }
    }

    /// So many rows on.
    pub(super) fn after(&self, rows: usize) -> Self {
        // A limit has so few that the fallback is never taken.
        Self { shard: self.shard + u16::try_from(rows).unwrap_or_default(), ..self.clone() }
    }

    /// Whether another row is of the same limit's name and key, in the same table, whatever the number of shards.
    pub(crate) fn is_beside(&self, other: &Self) -> bool {
        (self.storage, &self.name, &self.key) == (other.storage, &other.name, &other.key)
    }

    /// Which table it is in.
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

    /// Which of the limit's rows for this key; 0 where there is one.
    #[must_use]
    pub fn shard(&self) -> u16 {
        self.shard
    }
}

/// How many rows a row is one of, and which of them it is.
pub(crate) fn place_of(number: u16) -> (u16, u16) {
    // The last number of shards whose first row comes no later.
    let number_of = |shards: u32| shards * (shards - 1) / 2;
    let shards = (1..=MOST).rev().find(|shards| number_of(*shards) <= u32::from(number)).unwrap_or(1);
    // Both are small: a row's number is, and no more shards have it.
    let narrow = |number: u32| u16::try_from(number).unwrap_or_default();
    (narrow(shards), number - narrow(number_of(shards)))
}

/// Beyond the numbers that the column holds.
const MOST: u32 = 362;

/// A row that a definition of another number of shards has left.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Stranger {
    /// The place in the plan's rows of one of the same name and key.
    pub beside: usize,
    /// Its number, which says of how many it was one.
    pub shard: u16,
    /// What it holds.
    pub state: State,
}
