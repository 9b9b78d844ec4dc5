//! Statements that read rows without a lock, and write those that still are what was read.

use sqlx::{Row as _, query_file};

use super::columns::{self, Columns, Swapped};
use super::found::Found;
use super::{Store, by_table, failed};
use crate::algebra::{State, Timestamp};
use crate::error::{Error, Step};
use crate::limit::Storage;
use crate::plan::{Change, Row};

impl Store<'_> {
    /// Reads rows of both tables without a lock, many at a time.
    pub(crate) async fn peek(&mut self, rows: &[Row]) -> Result<Found, Error> {
        if self.routed {
            return self.route_peek(rows).await;
        }
        let mut found = Found::none();
        for rows in by_table(rows) {
            let Columns { names, keys, shards } = Columns::of(rows);
            let at = self.at;
            let peeked = fetch!(
                self,
                rows[0].storage(),
                "src/store/sql/peek_buckets.sql",
                "src/store/sql/peek_rate_limits.sql",
                &names as &[&str],
                &keys as &[&str],
                &shards,
                at as Option<Timestamp>
            );
            found.append(Found::peeked(rows, peeked)?);
        }
        Ok(found)
    }

    /// Writes what changed in rows of one table that are still as they were found, part by part; the parts that are lost.
    ///
    /// `changes` must not be empty, and says of each change which part it belongs to.
    pub(crate) async fn swap(
        &mut self,
        rows: &[Row],
        found: &Found,
        changes: &[(Change, i32)],
    ) -> Result<Vec<i32>, Error> {
        let first = &rows[changes[0].0.row];
        match changes {
            [(change, part)] => self.swap_one(first, found.states[change.row], change, *part).await,
            // No statement writes several rows: those of a part would not stand or fall together.
            _ if self.routed => Ok(changes.iter().map(|(_, part)| *part).collect()),
            _ => self.swap_table(first.storage(), &Swapped::of(rows, found, changes)).await,
        }
        .map_err(failed(Step::Save, first))
    }

    async fn swap_one(
        &mut self,
        row: &Row,
        old: Option<State>,
        change: &Change,
        part: i32,
    ) -> Result<Vec<i32>, sqlx::Error> {
        let Some(old) = old else { return Ok(vec![part]) };
        if self.routed {
            return self.route_swap(row, old, change).await.map(|done| if done { Vec::new() } else { vec![part] });
        }
        let (name, key, shard) = (row.name(), row.key().as_str(), columns::shard(row));
        let done = execute!(
            self,
            row.storage(),
            "src/store/sql/swap_bucket.sql",
            "src/store/sql/swap_rate_limit.sql",
            name,
            key,
            shard,
            old.value.micros(),
            old.ts as Timestamp,
            change.state.value.micros(),
            change.state.ts as Timestamp,
            change.full_at as Timestamp
        )?;
        Ok(if done.rows_affected() == 1 { Vec::new() } else { vec![part] })
    }

    async fn swap_table(&mut self, table: Storage, swapped: &Swapped<'_>) -> Result<Vec<i32>, sqlx::Error> {
        let Columns { names, keys, shards } = &swapped.at;
        let rows = fetch!(
            self,
            table,
            "src/store/sql/swap_buckets.sql",
            "src/store/sql/swap_rate_limits.sql",
            names as &[&str],
            keys as &[&str],
            shards,
            &swapped.old_values,
            &swapped.old_instants as &[Timestamp],
            &swapped.values,
            &swapped.instants as &[Timestamp],
            &swapped.full_at as &[Timestamp],
            &swapped.parts,
            &swapped.tids as &[&str]
        )?;
        let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
        let lost: Option<Vec<i32>> = row.try_get(0)?;
        Ok(lost.unwrap_or_default())
    }
}
