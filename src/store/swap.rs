//! Statements that read rows without a lock, and write those that still are the version that was read.

use std::iter;

use sqlx::Row as _;
use sqlx::postgres::PgRow;

use super::columns::{self, Columns, Values};
use super::fault::{failed, failed_among};
use super::found::{Found, Version};
use super::{Store, by_table_and_part};
use crate::algebra::Timestamp;
use crate::error::{Error, Step};
use crate::plan::{Change, Row};

/// A change of a row that was read without a lock, and the group that it stands or falls with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GroupedChange<'c> {
    pub(crate) change: &'c Change,
    pub(crate) group: usize,
}

impl Store<'_> {
    /// Reads rows, given in lock order, without a lock.
    pub(crate) async fn peek(&mut self, rows: &[Row]) -> Result<Found, Error> {
        let mut found = Found::none();
        for piece in by_table_and_part(rows) {
            let Columns { names, keys, shards } = Columns::of(piece);
            let at = self.at;
            let peeked = fetch!(
                self,
                piece[0].storage(),
                "src/store/sql/peek.sql",
                "src/store/sql/ephemeral/peek.sql",
                columns::part(&piece[0]),
                &names as &[&str],
                &keys as &[&str],
                &shards,
                at as Option<Timestamp>
            );
            found.append(peeked.and_then(|rows| Found::peeked(&rows)).map_err(failed_among(Step::Read, piece))?);
        }
        Ok(found)
    }

    /// Writes what changed in rows of one table and part that still are as they were found, group by group; the groups
    /// that are written.
    ///
    /// `changes` must not be empty. It holds all changes of each of its groups, group by group, of rows that are there.
    pub(crate) async fn swap(
        &mut self,
        rows: &[Row],
        found: &Found,
        changes: &[GroupedChange<'_>],
    ) -> Result<Vec<usize>, Error> {
        let first = &rows[changes[0].change.row];
        let (tids, xmins) = versions(found, changes.iter().map(|grouped| grouped.change));
        let Values { amounts, instants, full_at, holds } = Values::of(changes.iter().map(|grouped| grouped.change));
        let group = |grouped: &GroupedChange<'_>| i32::try_from(grouped.group).expect("no batch has 2^31 groups");
        let groups: Vec<_> = changes.iter().map(group).collect();
        let has_none = |GroupedChange { change, .. }: &GroupedChange<'_>| {
            change.state.holds.is_none() && found.states[change.row].as_ref().is_none_or(|state| state.holds.is_none())
        };
        let each_stands_alone = groups.windows(2).all(|pair| pair[0] != pair[1]);
        let written = if each_stands_alone && changes.iter().all(has_none) {
            fetch!(
                self,
                first.storage(),
                "src/store/sql/swap.sql",
                "src/store/sql/ephemeral/swap.sql",
                columns::part(first),
                &tids as &[&str],
                &xmins as &[&str],
                &amounts,
                &instants as &[Timestamp],
                &full_at as &[Timestamp],
                &groups
            )
        } else {
            let size = |group: &[i32]| {
                iter::repeat_n(i64::try_from(group.len()).expect("a batch fits in memory"), group.len())
            };
            let sizes: Vec<_> = groups.chunk_by(i32::eq).flat_map(size).collect();
            fetch!(
                self,
                first.storage(),
                "src/store/sql/swap_groups.sql",
                "src/store/sql/ephemeral/swap_groups.sql",
                columns::part(first),
                &tids as &[&str],
                &xmins as &[&str],
                &amounts,
                &instants as &[Timestamp],
                &full_at as &[Timestamp],
                &groups,
                &sizes,
                &holds.numbers,
                &holds.firsts as &[Option<i32>],
                &holds.lasts as &[Option<i32>]
            )
        };
        let group = |row: &PgRow| row.try_get::<i32, _>(0).map(i32::unsigned_abs).map(|group| group as usize);
        let groups = written.and_then(|rows| rows.iter().map(group).collect());
        groups.map_err(failed(Step::Save, first))
    }
}

/// The versions of rows that are to be written. Each of them was found.
fn versions<'f>(found: &'f Found, changes: impl Iterator<Item = &'f Change>) -> (Vec<&'f str>, Vec<&'f str>) {
    let version = |change: &Change| found.versions[change.row].as_ref().expect("only rows that are there are swapped");
    changes.map(version).map(|Version { tid, xmin }| (tid.as_str(), xmin.as_str())).unzip()
}
