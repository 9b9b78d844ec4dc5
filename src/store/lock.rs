//! Statements that lock rows, and insert missing ones.

use std::time::Duration;

use sqlx::Row as _;
use sqlx::postgres::PgRow;
use tokio::time::Instant;

use super::columns::{self, Columns, Hint};
use super::fault::failed;
use super::found::{Found, index};
use super::{Store, by_table_and_part};
use crate::algebra::Timestamp;
use crate::error::{Error, Step};
use crate::plan::{Need, Row};

impl Store<'_> {
    /// Locks one row, unless it is evidently short of what is needed.
    pub(crate) async fn lock_one(&mut self, row: &Row, need: Option<&Need>) -> Result<Found, Error> {
        if self.backend.parts.is_distributed() {
            let found = match need {
                Some(_) => self.read_on_fast_path(row).await?,
                None => self.lock_on_fast_path(row).await?,
            };
            if let Some(found) = found {
                return Ok(found);
            }
        }
        let Hint { balance, rate, period, stepped, phase } = Hint::of(need);
        let at = self.at;
        let rows = fetch!(
            self,
            row.storage(),
            "src/store/sql/lock_one.sql",
            "src/store/sql/ephemeral/lock_one.sql",
            columns::part(row),
            row.name(),
            row.key().as_str(),
            columns::shard(row),
            balance as Option<i64>,
            rate,
            period,
            stepped,
            phase as Option<f64>,
            at as Option<Timestamp>
        );
        rows.and_then(|rows| Found::one(&rows)).map_err(failed(Step::Lock, row))
    }

    /// Reads one row without a lock; `None` where it is missing. Citus plans this statement once, and not at each call.
    async fn read_on_fast_path(&mut self, row: &Row) -> Result<Option<Found>, Error> {
        let at = self.at;
        let rows = fetch!(
            self,
            row.storage(),
            "src/store/sql/read_fast_path.sql",
            "src/store/sql/ephemeral/read_fast_path.sql",
            columns::part(row),
            row.name(),
            row.key().as_str(),
            columns::shard(row),
            at as Option<Timestamp>
        );
        rows.and_then(|rows| Found::at_most_one(&rows)).map_err(failed(Step::Lock, row))
    }

    /// Locks one row; `None` where it is missing. The clock is read at most a moment before the lock.
    async fn lock_on_fast_path(&mut self, row: &Row) -> Result<Option<Found>, Error> {
        let (at, asked) = (self.at, Instant::now());
        let rows = fetch!(
            self,
            row.storage(),
            "src/store/sql/lock_fast_path.sql",
            "src/store/sql/ephemeral/lock_fast_path.sql",
            columns::part(row),
            row.name(),
            row.key().as_str(),
            columns::shard(row),
            at as Option<Timestamp>
        );
        let found = rows.and_then(|rows| Found::at_most_one(&rows)).map_err(failed(Step::Lock, row))?;
        if found.is_none() || at.is_some() || asked.elapsed() <= A_MOMENT {
            return Ok(found);
        }
        let later = self.read_on_fast_path(row).await?;
        Ok(found.zip(later).map(|(found, later)| Found { now: later.now, ..found }))
    }

    /// Inserts one row as a full one; whether it was missing.
    pub(crate) async fn insert_one(&mut self, row: &Row, capacity: i64) -> Result<bool, Error> {
        let at = self.at;
        let rows = fetch!(
            self,
            row.storage(),
            "src/store/sql/insert_one.sql",
            "src/store/sql/ephemeral/insert_one.sql",
            columns::part(row),
            row.name(),
            row.key().as_str(),
            columns::shard(row),
            capacity,
            at as Option<Timestamp>
        );
        rows.map(|rows| !rows.is_empty()).map_err(failed(Step::Insert, row))
    }

    /// Inserts the missing ones of some rows, given in lock order, as full ones, and locks and reads the others.
    /// Inserted rows stay `None`; they are returned beside what was found.
    pub(crate) async fn claim(&mut self, rows: &[Row], capacities: &[i64]) -> Result<(Found, Vec<Row>), Error> {
        if self.backend.parts.is_distributed() {
            // Citus takes no insert inside of a CTE.
            let inserted = self.place(rows, capacities).await?;
            return Ok((self.lock_beside(rows, &inserted).await?, inserted));
        }
        let (mut found, mut inserted) = (Found::none(), Vec::new());
        for (piece, capacities) in with_capacities(rows, capacities) {
            let Columns { names, keys, shards } = Columns::of(piece);
            let at = self.at;
            let claimed = fetch!(
                self,
                piece[0].storage(),
                "src/store/sql/claim.sql",
                "src/store/sql/ephemeral/claim.sql",
                columns::part(&piece[0]),
                &names as &[&str],
                &keys as &[&str],
                &shards,
                capacities,
                at as Option<Timestamp>
            );
            let read = |rows: Vec<PgRow>| {
                let numbers: Option<Vec<i32>> = rows.first().ok_or(sqlx::Error::RowNotFound)?.try_get(6)?;
                let places = numbers.into_iter().flatten().map(index).collect::<Result<Vec<_>, _>>()?;
                Ok((Found::locked(&rows, piece.len())?, places))
            };
            let (claimed, places) = claimed.and_then(read).map_err(failed(Step::Insert, &piece[0]))?;
            found.append(claimed);
            inserted.extend(places.into_iter().map(|place| piece[place].clone()));
        }
        if rows.iter().zip(&found.states).any(|(row, state)| state.is_none() && !inserted.contains(row)) {
            // Somebody else inserted one meanwhile: it is locked by now, and seen by the next statement.
            found = self.lock_beside(rows, &inserted).await?;
        }
        Ok((found, inserted))
    }

    /// Locks rows of which some were inserted: these stay `None`.
    async fn lock_beside(&mut self, rows: &[Row], inserted: &[Row]) -> Result<Found, Error> {
        let mut found = self.lock(rows).await?;
        for (row, state) in rows.iter().zip(&mut found.states) {
            *state = state.take().filter(|_| !inserted.contains(row));
        }
        Ok(found)
    }

    /// Inserts the missing ones of some rows, given in lock order, and locks the others; the inserted ones.
    async fn place(&mut self, rows: &[Row], capacities: &[i64]) -> Result<Vec<Row>, Error> {
        let mut placed = Vec::new();
        for (piece, capacities) in with_capacities(rows, capacities) {
            let Columns { names, keys, shards } = Columns::of(piece);
            let at = self.at;
            let inserted = fetch!(
                self,
                piece[0].storage(),
                "src/store/sql/place.sql",
                "src/store/sql/ephemeral/place.sql",
                columns::part(&piece[0]),
                &names as &[&str],
                &keys as &[&str],
                &shards,
                capacities,
                at as Option<Timestamp>
            );
            for inserted in inserted.map_err(failed(Step::Insert, &piece[0]))? {
                let read = || Ok((inserted.try_get(0)?, inserted.try_get(1)?, inserted.try_get(2)?));
                let (name, key, shard): (String, String, i16) = read().map_err(failed(Step::Insert, &piece[0]))?;
                let is_it =
                    |row: &&Row| row.name() == name && row.key().as_str() == key && columns::shard(row) == shard;
                placed.extend(piece.iter().find(is_it).cloned());
            }
        }
        Ok(placed)
    }

    /// Locks rows, given in lock order, and reads them.
    pub(crate) async fn lock(&mut self, rows: &[Row]) -> Result<Found, Error> {
        let mut found = Found::none();
        for piece in by_table_and_part(rows) {
            let Columns { names, keys, shards } = Columns::of(piece);
            let at = self.at;
            let locked = fetch!(
                self,
                piece[0].storage(),
                "src/store/sql/lock.sql",
                "src/store/sql/ephemeral/lock.sql",
                columns::part(&piece[0]),
                &names as &[&str],
                &keys as &[&str],
                &shards,
                at as Option<Timestamp>
            );
            let locked = locked.and_then(|rows| Found::locked(&rows, piece.len()));
            found.append(locked.map_err(failed(Step::Lock, &piece[0]))?);
        }
        Ok(found)
    }

    /// Deletes rows that transaction `xid` has inserted in vain.
    pub(crate) async fn remove(&mut self, rows: &[Row], xid: i64) -> Result<(), Error> {
        let xid = self.provable(xid);
        for piece in by_table_and_part(rows) {
            let Columns { names, keys, shards } = Columns::of(piece);
            let removed = fetch!(
                self,
                piece[0].storage(),
                "src/store/sql/remove.sql",
                "src/store/sql/ephemeral/remove.sql",
                columns::part(&piece[0]),
                &names as &[&str],
                &keys as &[&str],
                &shards,
                xid as Option<i64>
            );
            removed.map_err(failed(Step::Remove, &piece[0]))?;
        }
        Ok(())
    }

    /// Deletes the rows behind the last shard of each key: `rows` are the first ones that are stale.
    pub(crate) async fn remove_stale(&mut self, rows: &[Row]) -> Result<(), Error> {
        for piece in by_table_and_part(rows) {
            let Columns { names, keys, shards } = Columns::of(piece);
            let removed = fetch!(
                self,
                piece[0].storage(),
                "src/store/sql/remove_stale.sql",
                "src/store/sql/ephemeral/remove_stale.sql",
                columns::part(&piece[0]),
                &names as &[&str],
                &keys as &[&str],
                &shards
            );
            removed.map_err(failed(Step::Remove, &piece[0]))?;
        }
        Ok(())
    }
}

/// The rows that one statement takes, and their capacities, statement by statement.
fn with_capacities<'r>(rows: &'r [Row], mut capacities: &'r [i64]) -> impl Iterator<Item = (&'r [Row], &'r [i64])> {
    by_table_and_part(rows).map(move |piece| {
        let (own, rest) = capacities.split_at(piece.len());
        capacities = rest;
        (piece, own)
    })
}

/// A lock that took longer may have been waited for.
const A_MOMENT: Duration = Duration::from_millis(5);
