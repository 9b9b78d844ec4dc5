//! Statements about all rows that a limit has for a key, and about those that another number of shards has left.

use sqlx::Row as _;
use sqlx::postgres::PgRow;
use sqlx::query_file;

use super::columns::{Columns, Written};
use super::found::Shards;
use super::{Store, by_table, failed, first_of_each_key, unwritten};
use crate::algebra::{State, Timestamp};
use crate::error::{Error, Step};
use crate::limit::Storage;
use crate::plan::{Change, Row, Stranger};
use crate::tokens::Tokens;

impl Store<'_> {
    /// Reads rows without a lock, and strangers beside them, table by table: a standby has only one of the two.
    pub(crate) async fn read_shards(&mut self, rows: &[Row]) -> Result<Shards, Error> {
        if self.routed {
            return self.route_read(rows).await;
        }
        let mut all = Shards::none();
        for rows in by_table(rows) {
            let Columns { names, keys, .. } = Columns::of(first_of_each_key(rows).map(|first| &rows[first]));
            let at = self.at;
            let read = fetch!(
                self,
                rows[0].storage(),
                "src/store/sql/read_keys_of_buckets.sql",
                "src/store/sql/read_keys_of_rate_limits.sql",
                &names as &[&str],
                &keys as &[&str],
                at as Option<Timestamp>
            );
            all.append(Shards::read(rows, read)?);
        }
        Ok(all)
    }

    /// Locks the strangers beside rows of both tables, in order.
    pub(crate) async fn lock_strangers(&mut self, rows: &[Row]) -> Result<Vec<Stranger>, Error> {
        if self.routed {
            return self.route_lock_strangers(rows).await;
        }
        let mut strangers = Vec::new();
        let firsts: Vec<_> = first_of_each_key(rows).collect();
        for firsts in firsts.chunk_by(|one, other| rows[*one].storage() == rows[*other].storage()) {
            let first = &rows[firsts[0]];
            let Columns { names, keys, shards } = Columns::of(firsts.iter().map(|place| &rows[*place]));
            let locked = fetch!(
                self,
                first.storage(),
                "src/store/sql/lock_strangers_of_buckets.sql",
                "src/store/sql/lock_strangers_of_rate_limits.sql",
                &names as &[&str],
                &keys as &[&str],
                &shards
            );
            for row in locked.map_err(failed(Step::Lock, first))? {
                strangers.push(stranger(&row, firsts).map_err(failed(Step::Lock, first))?);
            }
        }
        Ok(strangers)
    }

    /// Writes what changed so that rows stand for strangers, and deletes those; transaction `xid` holds both.
    pub(crate) async fn take_over(
        &mut self,
        rows: &[Row],
        changes: &[Change],
        strangers: &[Stranger],
        xid: i64,
    ) -> Result<(), Error> {
        if self.routed {
            return self.route_take_over(rows, changes, strangers).await;
        }
        for strangers in strangers.chunk_by(|one, other| rows[one.beside].storage() == rows[other.beside].storage()) {
            let first = &rows[strangers[0].beside];
            let written = Written::of(first.storage(), rows, changes);
            let gone: Vec<_> = strangers
                .iter()
                .map(|stranger| Row { shard: stranger.shard, ..rows[stranger.beside].clone() })
                .collect();
            let Columns { names, keys, shards } = Columns::of(&gone);
            let done = fetch!(
                self,
                first.storage(),
                "src/store/sql/take_over_buckets.sql",
                "src/store/sql/take_over_rate_limits.sql",
                &written.at.names as &[&str],
                &written.at.keys as &[&str],
                &written.at.shards,
                &written.values,
                &written.instants as &[Timestamp],
                &written.full_at as &[Timestamp],
                &names as &[&str],
                &keys as &[&str],
                &shards,
                xid
            );
            let touched = done.and_then(|rows| rows.first().ok_or(sqlx::Error::RowNotFound)?.try_get(0));
            let touched: i64 = touched.map_err(failed(Step::Save, first))?;
            if usize::try_from(touched) != Ok(written.values.len() + gone.len()) {
                return Err(unwritten(first));
            }
        }
        Ok(())
    }

    /// Writes the first of these changes, of rows of one key, whose row nobody holds and is still what it was found as,
    /// in the transaction that began then.
    pub(crate) async fn swap_shard(
        &mut self,
        rows: &[Row],
        found: &[Option<State>],
        changes: &[Change],
        began: Timestamp,
    ) -> Result<Option<Swap>, Error> {
        let changes: Vec<_> = changes.iter().filter_map(|change| Some((*change, found[change.row]?))).collect();
        let [(first, _), ..] = changes.as_slice() else { return Ok(None) };
        let first = &rows[first.row];
        if self.routed {
            return self.route_hold(rows, &changes).await;
        }
        let (name, key) = (first.name(), first.key().as_str());
        let Columns { shards, .. } = Columns::of(changes.iter().map(|(change, _)| &rows[change.row]));
        let old_values: Vec<_> = changes.iter().map(|(_, old)| old.value.micros()).collect();
        let old_instants: Vec<_> = changes.iter().map(|(_, old)| old.ts).collect();
        let values: Vec<_> = changes.iter().map(|(change, _)| change.state.value.micros()).collect();
        let instants: Vec<_> = changes.iter().map(|(change, _)| change.state.ts).collect();
        let full_at: Vec<_> = changes.iter().map(|(change, _)| change.full_at).collect();
        let swapped = fetch!(
            self,
            first.storage(),
            "src/store/sql/swap_shard_of_buckets.sql",
            "src/store/sql/swap_shard_of_rate_limits.sql",
            name,
            key,
            &shards,
            &old_values,
            &old_instants as &[Timestamp],
            &values,
            &instants as &[Timestamp],
            &full_at as &[Timestamp],
            began as Timestamp
        );
        let places: Vec<_> = changes.iter().map(|(change, _)| change.row).collect();
        let swap = swapped.and_then(|rows| rows.first().map(|row| Swap::read(row, &places)).transpose());
        let Some(swap) = swap.map_err(failed(Step::Save, first))? else {
            // Every row is held or changed; or there is no transaction, and whoever forgot to begin one should hear it.
            return self.expect_transaction(name).await.map(|()| None);
        };
        if swap.changed.is_none() && !swap.written {
            return Err(unwritten(first));
        }
        Ok(Some(swap))
    }
}

/// A shard that was taken from, or only locked.
pub(crate) struct Swap {
    /// Its place in the plan.
    pub(crate) row: usize,
    /// The transaction that holds it.
    pub(crate) xid: i64,
    /// What it holds, if it is not written: somebody may have changed it.
    pub(crate) changed: Option<State>,
    written: bool,
}

impl Swap {
    fn read(row: &PgRow, places: &[usize]) -> Result<Self, sqlx::Error> {
        let changed: bool = row.try_get(1)?;
        let state = State { value: Tokens::from_micros(row.try_get(2)?), ts: row.try_get(3)? };
        let (written, xid): (i64, i64) = (row.try_get(4)?, row.try_get(5)?);
        Ok(Self { row: place(row, places)?, xid, changed: changed.then_some(state), written: written == 1 })
    }

    /// One that is only locked, by the transaction `xid`.
    pub(super) fn held(row: &PgRow, places: &[usize], xid: i64) -> Result<Self, sqlx::Error> {
        let state = State { value: Tokens::from_micros(row.try_get(1)?), ts: row.try_get(2)? };
        Ok(Self { row: place(row, places)?, xid, changed: Some(state), written: false })
    }
}

/// A stranger as it was locked, beside one of the places that were asked.
fn stranger(row: &PgRow, places: &[usize]) -> Result<Stranger, sqlx::Error> {
    let state = State { value: Tokens::from_micros(row.try_get(2)?), ts: row.try_get(3)? };
    // Shards are never negative: the fallback is not taken.
    let shard = u16::try_from(row.try_get::<i16, _>(1)?).unwrap_or_default();
    Ok(Stranger { beside: place(row, places)?, shard, state })
}

/// Which of the places that were asked a row is about: they count from 1, in the order in which they were given.
fn place(row: &PgRow, places: &[usize]) -> Result<usize, sqlx::Error> {
    let place: i64 = row.try_get(0)?;
    let place = usize::try_from(place - 1).ok().and_then(|place| places.get(place).copied());
    place.ok_or(sqlx::Error::RowNotFound)
}
