use std::collections::{BTreeSet, HashMap};

use crate::algebra::{State, Timestamp};
use crate::plan::{RowId, RowWrite};

/// A bounded number of rows in this process's memory.
///
/// A forgotten row would be full again, so only full rows make room, and nobody can reset a bucket by inventing keys.
/// Full rows are found without a search. Existing cache crates evict by use; in those that can pin rows, each new key
/// searches all of them.
pub(super) struct LocalBuckets {
    bound: usize,
    rows: HashMap<RowId, State>,
    by_full_at: BTreeSet<(Timestamp, RowId)>,
}

impl LocalBuckets {
    pub(super) fn new(bound: usize) -> Self {
        Self { bound, rows: HashMap::new(), by_full_at: BTreeSet::new() }
    }

    /// The state of each row; `None` for a full one.
    pub(super) fn states(&self, rows: &[RowId]) -> Vec<Option<State>> {
        rows.iter().map(|row| self.rows.get(row).cloned()).collect()
    }

    /// Writes all changes, or none if there is no room for the new ones.
    pub(super) fn write(&mut self, rows: &[RowId], changes: &[RowWrite], now: Timestamp) -> bool {
        while self.rows.len() + self.count_new(rows, changes) > self.bound {
            let soonest = self.by_full_at.first().filter(|(full_at, _)| *full_at <= now);
            let Some(full) = soonest.cloned() else { return false };
            self.by_full_at.remove(&full);
            self.rows.remove(&full.1);
        }
        for RowWrite { row, state } in changes {
            let row = rows[*row].clone();
            if let Some(old) = self.rows.insert(row.clone(), state.clone()) {
                self.by_full_at.remove(&(old.full_at, row.clone()));
            }
            self.by_full_at.insert((state.full_at, row));
        }
        true
    }

    fn count_new(&self, rows: &[RowId], changes: &[RowWrite]) -> usize {
        changes.iter().filter(|change| !self.rows.contains_key(&rows[change.row])).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Operation, Under, Verb};
    use crate::tokens::Tokens;
    use crate::{Limit, SECOND};

    const LIMIT: Limit = Limit::token_bucket("one", 1, SECOND);

    /// Three rows, and room for two of them.
    struct Stage {
        rows: Vec<RowId>,
        buckets: LocalBuckets,
    }

    impl Stage {
        fn new() -> Self {
            let row = |key| {
                Operation::of(Verb::consume(LIMIT.key(key)), &Under::NOTHING)
                    .unwrap()
                    .first_rows()
                    .next()
                    .unwrap()
                    .clone()
            };
            Self { rows: ["a", "b", "c"].map(row).into(), buckets: LocalBuckets::new(2) }
        }

        /// Writes rows that are full at some instants.
        fn write(&mut self, full_at: &[(usize, i64)], now: i64) -> bool {
            let [ts, now] = [0, now].map(Timestamp::from_micros);
            let change = |(row, at): &(usize, i64)| RowWrite {
                row: *row,
                state: State::new(Tokens::ZERO, ts).full_at(Timestamp::from_micros(*at)),
            };
            let changes: Vec<_> = full_at.iter().map(change).collect();
            self.buckets.write(&self.rows, &changes, now)
        }

        /// Which rows are kept.
        fn kept(&self) -> Vec<bool> {
            assert_eq!(self.buckets.rows.len(), self.buckets.by_full_at.len());
            self.buckets.states(&self.rows).iter().map(Option::is_some).collect()
        }
    }

    #[test]
    fn only_a_full_row_makes_room() {
        let mut stage = Stage::new();
        assert!(stage.write(&[(0, 10), (1, 20)], 5));
        assert!(!stage.write(&[(2, 30)], 9));
        assert_eq!(stage.kept(), [true, true, false], "nobody gets a full bucket back");
        assert!(stage.write(&[(0, 15), (1, 20)], 9), "those that are kept go on");
        assert!(!stage.write(&[(2, 30)], 14), "as it was written last");
        assert!(stage.write(&[(2, 30)], 15));
        assert_eq!(stage.kept(), [false, true, true]);
    }

    #[test]
    fn a_call_of_several_rows_finds_room_for_all_or_for_none() {
        let mut stage = Stage::new();
        assert!(!stage.write(&[(0, 10), (1, 10), (2, 10)], 5));
        assert_eq!(stage.kept(), [false; 3]);
        assert!(stage.write(&[(0, 10)], 5));
        assert!(!stage.write(&[(1, 20), (2, 20)], 9));
        assert_eq!(stage.kept(), [true, false, false]);
        assert!(stage.write(&[(1, 20), (2, 20)], 10));
        assert_eq!(stage.kept(), [false, true, true]);
    }
}
