use std::collections::BTreeMap;
use std::time::Duration;

use crate::algebra::{Terms, Timestamp};
use crate::key::Key;
use crate::limit::{Limit, Storage};
use crate::plan::place_of;
use crate::store::FullRow;

/// The definitions that a sweeper knows, and how careful it is where it knows none.
#[derive(Clone, Debug)]
pub(super) struct Known {
    /// By name; several of one name while a release with another definition is live.
    definitions: BTreeMap<String, Vec<Limit>>,
    pub(super) margin: Duration,
}

impl Known {
    pub(super) fn add(&mut self, limits: impl IntoIterator<Item = Limit>) {
        for limit in limits {
            self.definitions.entry(limit.name().to_owned()).or_default().push(limit);
        }
    }

    /// Whether a row that says it is full may go.
    pub(super) fn agrees(&self, table: Storage, row: &FullRow, now: Timestamp) -> bool {
        self.full_at(table, row).unwrap_or_else(|| row.full_at.plus(self.margin)) <= now
    }

    /// When a row is full under all that is known of its limit; `None` where nothing is.
    fn full_at(&self, table: Storage, row: &FullRow) -> Option<Timestamp> {
        // Of a limit that was given another storage, rows of the old one may be left, under a definition that is not known.
        let definitions = self.definitions.get(&row.name)?.iter().filter(|limit| limit.storage == table);
        let key = Key::try_from(row.key.clone()).ok()?;
        // One of several rows for a key holds a part of the limit, and says itself which.
        let (shards, index) = place_of(u16::try_from(row.shard).ok()?);
        let terms = |limit| Terms::of(limit, &key).shard(index.into(), shards.into());
        definitions.map(|limit| terms(limit).full_at(row.state)).max()
    }
}

impl Default for Known {
    fn default() -> Self {
        // So long may a release with a smaller capacity live beside one that takes ten minutes more to fill.
        Self { definitions: BTreeMap::new(), margin: Duration::from_mins(10) }
    }
}
