//! Statements that read rows without a lock, and write them if they still are the version that was read.
//!
//! A version is the place of the row, the transaction that wrote it, and the file of its table (`ctid`, `xmin`,
//! `pg_relation_filenode`). They identify a version only from a read to a write on one connection, milliseconds later,
//! so nothing keeps them longer. The file is among them for `vacuum full`: it moves rows and keeps their `xmin`, so
//! where a row was, another that the same transaction wrote may lie.
//!
//! A statement that writes whole groups locks their rows in a CTE. Without the CTE, PostgreSQL plans for a table of one
//! row, and runs the sub-query once for each row that is there by then. Each run then counts other rows. A row that
//! stands alone is written once under any plan, so the text of `swap.sql` has no CTE.

use std::collections::BTreeMap;
use std::iter;

use sqlx::Row as _;
use sqlx::postgres::PgRow;

use super::calls::CallColumns;
use super::columns::{self, Found, Values, Version};

use super::{Store, by_table_and_part, failed, failed_among};
use crate::algebra::{List, Timestamp};
use crate::call::StoredCall;
use crate::error::{Error, Step};
use crate::plan::{CallWrite, RowId, RowWrite};

/// The changes that one statement writes: of rows of one table and part, and of calls, group by group.
#[derive(Debug, Default)]
pub(crate) struct Swap<'c> {
    pub(crate) rows: Vec<Grouped<&'c RowWrite>>,
    pub(crate) calls: Vec<Grouped<&'c CallWrite>>,
}

/// A change of a row or a call that was read without a lock, and the group with which it is written or lost. The group
/// is named by one of its rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grouped<C> {
    pub(crate) change: C,
    pub(crate) group: usize,
}

/// The rows of a swap, as the arrays that statements bind.
pub(super) struct SwapRows<'f> {
    pub(super) first: &'f RowId,
    pub(super) tids: Vec<&'f str>,
    pub(super) writers: Vec<&'f str>,
    pub(super) values: Values,
    pub(super) groups: Vec<i32>,
    pub(super) began: Option<Timestamp>,
}

/// Runs a statement that writes the rows of a swap, which it binds before anything else, and yields what it wrote.
macro_rules! swap {
    ($store:ident, $rows:ident, $durable:literal, $ephemeral:literal $(, $($bind:tt)*)?) => {
        fetch!(
            $store, $rows.first.storage(), $durable, $ephemeral,
            columns::part($rows.first), &$rows.tids as &[&str], &$rows.writers as &[&str], &$rows.values.amounts,
            &$rows.values.instants as &[Timestamp], &$rows.values.full_at as &[Timestamp], &$rows.groups
            $(, $($bind)*)?
        )
    };
}

impl Store<'_> {
    /// Reads rows, given in lock order, without a lock.
    pub(crate) async fn peek(&mut self, rows: &[RowId]) -> Result<Found, Error> {
        let mut found = Found::none();
        for piece in by_table_and_part(rows) {
            if let Some(peeked) = self.peek_shard(piece).await.map_err(failed_among(Step::Read, piece))? {
                found.append(peeked);
                continue;
            }
            let at = self.at;
            let peeked = on_rows!(
                self,
                piece,
                "src/store/sql/peek.sql",
                "src/store/sql/ephemeral/peek.sql",
                at as Option<Timestamp>
            );
            found.append(peeked.and_then(|rows| Found::peeked(&rows)).map_err(failed_among(Step::Read, piece))?);
        }
        Ok(found)
    }

    /// Writes the changes of rows and calls that still are as they were found, group by group. Returns the groups that
    /// were written, each as often as it has rows, and at least once.
    ///
    /// A swap is not empty. It holds all changes of each of its groups, and all of their rows exist.
    pub(crate) async fn swap(
        &mut self,
        rows: &[RowId],
        found: &Found,
        known: &[Option<StoredCall>],
        swap: &Swap<'_>,
    ) -> Result<Vec<usize>, Error> {
        let groups: Vec<_> = swap.rows.iter().map(|row| number(row.group)).collect();
        let has_none = |Grouped { change, .. }: &Grouped<&RowWrite>| {
            let was_none = found.states[change.row].as_ref().is_none_or(|state| state.list == List::None);
            was_none && change.state.list == List::None
        };
        let each_stands_alone = groups.windows(2).all(|pair| pair[0] != pair[1]);
        let first = &rows[swap.first()];
        let (tids, writers) = versions(swap.rows.iter().map(|row| found.versions[row.change.row].as_ref()));
        let values = Values::of(swap.rows.iter().map(|row| row.change));
        let rows = SwapRows { first, tids, writers, values, groups, began: found.began };
        let written = if !swap.calls.is_empty() {
            self.swap_calls(&rows, known, swap).await
        } else if each_stands_alone && swap.rows.iter().all(has_none) {
            self.swap_rows(&rows).await
        } else {
            self.swap_groups(&rows).await
        };
        let group = |row: &PgRow| row.try_get::<i32, _>(0).map(i32::unsigned_abs).map(|group| group as usize);
        let groups = written.and_then(|rows| rows.iter().map(group).collect());
        groups.map_err(failed(Step::Save, first))
    }

    /// Writes rows without a list, each by itself.
    async fn swap_rows(&mut self, rows: &SwapRows<'_>) -> Result<Vec<PgRow>, sqlx::Error> {
        if let Some(shard) = self.shard(rows.first) {
            return self.swap_shard(&shard, rows, None).await;
        }
        swap!(self, rows, "src/store/sql/swap.sql", "src/store/sql/ephemeral/swap.sql", rows.began as Option<Timestamp>)
    }

    /// Writes rows group by group, each group as a whole or not at all.
    async fn swap_groups(&mut self, rows: &SwapRows<'_>) -> Result<Vec<PgRow>, sqlx::Error> {
        let sizes = rows.groups.chunk_by(i32::eq).flat_map(|group| iter::repeat_n(count(group.len()), group.len()));
        let sizes: Vec<_> = sizes.collect();
        if let Some(shard) = self.shard(rows.first) {
            return self.swap_shard(&shard, rows, Some(&sizes)).await;
        }
        swap!(
            self,
            rows,
            "src/store/sql/swap_groups.sql",
            "src/store/sql/ephemeral/swap_groups.sql",
            &sizes,
            &rows.values.lists.numbers,
            &rows.values.lists.firsts as &[Option<i32>],
            &rows.values.lists.lasts as &[Option<i32>],
            rows.began as Option<Timestamp>
        )
    }

    /// Writes rows, and the stored calls that belong to them.
    ///
    /// New ids are inserted without `on conflict do nothing`, which would write the rows but not the id, and so charge
    /// one call twice. An id that already exists aborts the statement, and all of its groups are decided again under
    /// locks. This is rare: the call that inserted the id since the peek has nearly always written one of the rows,
    /// too.
    async fn swap_calls(
        &mut self,
        rows: &SwapRows<'_>,
        known: &[Option<StoredCall>],
        swap: &Swap<'_>,
    ) -> Result<Vec<PgRow>, sqlx::Error> {
        let (new, used): (Vec<_>, Vec<_>) = swap.calls.iter().partition(|call| call.change.row().is_some());
        let of_used: Vec<_> = used.iter().map(|call: &&Grouped<_>| number(call.group)).collect();
        let used = CallColumns::of(used.iter().filter_map(|call| known[call.change.name()].as_ref()));
        let of_new: Vec<_> = new.iter().map(|call| number(call.group)).collect();
        let new = CallColumns::of(new.iter().filter_map(|call| call.change.row()));
        let (mut all, mut row_counts, mut call_counts) = (Vec::new(), Vec::new(), Vec::new());
        for (group, Size { rows, used_calls }) in swap.sizes() {
            all.push(number(group));
            row_counts.push(count(rows));
            call_counts.push(count(used_calls));
        }
        swap!(
            self,
            rows,
            "src/store/sql/swap_calls.sql",
            "src/store/sql/ephemeral/swap_calls.sql",
            &rows.values.lists.numbers,
            &rows.values.lists.firsts as &[Option<i32>],
            &rows.values.lists.lasts as &[Option<i32>],
            &all,
            &row_counts,
            &call_counts,
            &of_used,
            &used.names as &[&str],
            &used.keys as &[&str],
            &used.ids as &[&str],
            &used.charges,
            &of_new,
            &new.names as &[&str],
            &new.keys as &[&str],
            &new.ids as &[&str],
            &new.asked,
            &new.charges,
            &new.charged_at as &[Timestamp],
            &new.lapses_at as &[Option<Timestamp>],
            &new.kept_until as &[Timestamp],
            &new.used,
            &new.answers as &[Option<String>],
            rows.began as Option<Timestamp>
        )
    }
}

/// How many rows a group changes, and how many calls it uses up.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Size {
    pub(crate) rows: usize,
    used_calls: usize,
}

impl Swap<'_> {
    /// Its groups.
    pub(crate) fn sizes(&self) -> BTreeMap<usize, Size> {
        let mut sizes: BTreeMap<_, Size> = BTreeMap::new();
        for row in &self.rows {
            sizes.entry(row.group).or_default().rows += 1;
        }
        for call in &self.calls {
            sizes.entry(call.group).or_default().used_calls += usize::from(call.change.row().is_none());
        }
        sizes
    }

    /// A row of one of its groups; all rows are of one table and part.
    pub(crate) fn first(&self) -> usize {
        let groups = self.rows.iter().map(|row| row.group).chain(self.calls.iter().map(|call| call.group));
        groups.min().expect("a swap is not empty")
    }
}

fn number(group: usize) -> i32 {
    i32::try_from(group).expect("no batch has 2^31 groups")
}

fn count(count: usize) -> i64 {
    i64::try_from(count).expect("a batch fits in memory")
}

/// The versions of the rows and calls to be written. All of them were found.
fn versions<'f>(found: impl Iterator<Item = Option<&'f Version>>) -> (Vec<&'f str>, Vec<&'f str>) {
    let version = |version: Option<&'f Version>| version.expect("only what is there is swapped");
    found.map(version).map(|Version { tid, writer }| (tid.as_str(), writer.as_str())).unzip()
}
