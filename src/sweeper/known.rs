use std::collections::BTreeMap;
use std::time::Duration;

use crate::algebra::{Terms, Timestamp};
use crate::key::Key;
use crate::limit::{Limit, Storage};
use crate::store::FullRow;
use crate::store::overrides::Numbers;

/// The definitions that a sweeper knows, and its margin.
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

    /// Whether a row that has been full for the margin by the definition that wrote it may go: by all that are known,
    /// it has been as well. So it would be full even where the clock goes back by as much, as a missing row is.
    ///
    /// The same holds for the numbers by which operators override the key: they may fill it up later. Where nobody
    /// knows the definition that they are for, the row stays.
    pub(super) fn agrees(&self, table: Storage, row: &FullRow, now: Timestamp, said: &Numbers) -> bool {
        let (Ok(key), Ok(shard)) = (Key::try_from(row.key.clone()), usize::try_from(row.shard)) else { return true };
        // A stale shard, beyond the number of shards of a definition, is none of that definition's rows.
        let has_row = |limit: &&Limit| limit.storage == table && shard < usize::from(limit.shards);
        let definitions = || self.definitions.get(&row.name).into_iter().flatten().filter(has_row);
        let mut numbers = said.of(&row.name, &key, now).peekable();
        if numbers.peek().is_some() && definitions().next().is_none() {
            return false;
        }
        let others = numbers.flat_map(|said| definitions().filter_map(|limit| said.renumbered(limit)));
        let terms = |limit: &Limit| Terms::of(limit, &key).shard(shard, limit.shards.into());
        let full_at = definitions().cloned().chain(others).map(|limit| terms(&limit).full_at(&row.state)).max();
        full_at.is_none_or(|full_at| full_at.plus(self.margin) <= now)
    }
}

impl Default for Known {
    fn default() -> Self {
        // For so long may a release run beside one whose limit takes so much longer to fill; and so far may the clock
        // step back.
        Self { definitions: BTreeMap::new(), margin: Duration::from_mins(10) }
    }
}
