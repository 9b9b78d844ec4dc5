//! Statements that lock rows, and insert missing ones.
//!
//! `lock_one.sql` takes one row. `claim.sql` takes several, and inserts those that are missing; `lock.sql` takes
//! several and inserts none. `lock_any.sql` takes the first of several that no transaction holds. `claim_free.sql`
//! takes all of them, unless another transaction holds one.
//!
//! # The clock
//!
//! A statement reads the clock after its last lock, over an aggregate of the locked rows. Three forms that look right
//! are wrong. `select …, clock_timestamp() … for update` reads the clock before it waits, if the holder did not change
//! the row. If a count stands beside the clock as a scalar sub-select, it is evaluated after the clock, or not at all.
//! `now()` is the start of the transaction.
//!
//! On Citus one row takes `lock_citus.sql`, which has the first of these forms. An instant that is too early never
//! grants too many tokens, but a reservation that is ready could still be cancelled, and a lease would begin before it
//! is held. So if the lock took more than five milliseconds, `lock_one.sql` follows, which reads the clock once more.
//!
//! # Missing rows
//!
//! `claim.sql` inserts a missing row at its place in the lock order. To lock the existing rows and insert the others
//! afterwards would be a second lock order, which deadlocks.

use std::time::Duration;

use sqlx::Row as _;
use sqlx::postgres::PgRow;
use tokio::time::Instant;

use super::columns::{self, Columns, Found, Hint, index};

use super::{Store, by_table_and_part, failed, failed_among};
use crate::algebra::Timestamp;
use crate::error::{Error, Step};
use crate::plan::{Need, RowId};

impl Store<'_> {
    /// Locks one row, unless it is evidently short of what is needed.
    pub(crate) async fn lock_one(&mut self, row: &RowId, need: Option<&Need>) -> Result<Found, Error> {
        if self.is_distributed()
            && let Some(found) = self.lock_on_citus(row, need).await?
        {
            return Ok(found);
        }
        let Hint { value, rate, period, stepped, phase } = Hint::of(need);
        let rows = fetch!(
            self,
            row.storage(),
            "src/store/sql/lock_one.sql",
            "src/store/sql/ephemeral/lock_one.sql",
            columns::part(row),
            row.name(),
            row.key().as_str(),
            columns::shard(row),
            value as Option<i64>,
            rate,
            period,
            stepped,
            phase as Option<f64>,
            self.at as Option<Timestamp>
        );
        let found = rows.and_then(|rows| Found::at_most_one(&rows)?.ok_or(sqlx::Error::RowNotFound));
        found.map_err(failed(Step::Lock, row))
    }

    /// Locks one row by statements that Citus plans once, and not at each call. `None` if the row is missing, or if the
    /// clock may have been read before a wait for the row, which is then locked.
    async fn lock_on_citus(&mut self, row: &RowId, need: Option<&Need>) -> Result<Option<Found>, Error> {
        macro_rules! fast_path {
            ($durable:literal, $ephemeral:literal) => {{
                let (part, shard) = (columns::part(row), columns::shard(row));
                let (name, key) = (row.name(), row.key().as_str());
                let rows = fetch!(
                    self,
                    row.storage(),
                    $durable,
                    $ephemeral,
                    part,
                    name,
                    key,
                    shard,
                    self.at as Option<Timestamp>
                );
                rows.and_then(|rows| Found::at_most_one(&rows)).map_err(failed(Step::Lock, row))?
            }};
        }
        if let Some(need) = need {
            let seen = fast_path!("src/store/sql/read_citus.sql", "src/store/sql/ephemeral/read_citus.sql");
            if seen.as_ref().is_none_or(|seen| need.is_missed(seen.states[0].as_ref(), seen.now)) {
                return Ok(seen);
            }
        }
        let asked = Instant::now();
        let found = fast_path!("src/store/sql/lock_citus.sql", "src/store/sql/ephemeral/lock_citus.sql");
        Ok(found.filter(|_| self.at.is_some() || asked.elapsed() <= A_MOMENT))
    }

    /// Locks the first of some rows of one table and part that no other transaction holds. Returns its place among
    /// them, and its state; `None` if all are held or missing.
    pub(crate) async fn lock_any(&mut self, rows: &[&RowId]) -> Result<Option<(usize, Found)>, Error> {
        let Columns { names, keys, shards } = Columns::of(rows.iter().copied());
        let locked = fetch!(
            self,
            rows[0].storage(),
            "src/store/sql/lock_any.sql",
            "src/store/sql/ephemeral/lock_any.sql",
            columns::part(rows[0]),
            &names as &[&str],
            &keys as &[&str],
            &shards,
            self.at as Option<Timestamp>
        );
        let read = |locked: Vec<PgRow>| {
            let Some(found) = Found::at_most_one(&locked)? else { return Ok(None) };
            Ok(Some((index(locked[0].try_get(7)?)?, found)))
        };
        locked.and_then(read).map_err(failed(Step::Lock, rows[0]))
    }

    /// Inserts those of the rows, given in lock order, that are missing, and locks and reads the others.
    pub(crate) async fn claim(&mut self, rows: &[RowId]) -> Result<Found, Error> {
        if self.is_distributed() {
            // Citus accepts no insert inside of a CTE.
            let inserted = self.insert_on_citus(rows).await?;
            return self.lock_beside(rows, inserted).await;
        }
        let mut found = Found::none();
        for piece in by_table_and_part(rows) {
            let claimed = on_rows!(
                self,
                piece,
                "src/store/sql/claim.sql",
                "src/store/sql/ephemeral/claim.sql",
                self.at as Option<Timestamp>
            );
            let claimed = claimed.and_then(|rows| Found::claimed(&rows, piece.len()));
            found.append(claimed.map_err(failed_among(Step::Insert, piece))?);
        }
        if !found.is_whole() {
            // Another transaction inserted one meanwhile. It is locked by now, and the next statement sees it.
            return self.lock_beside(rows, found.inserted).await;
        }
        Ok(found)
    }

    /// Locks rows, given in lock order, and inserts the missing ones if `inserts` says so. Fails with
    /// [`Error::Locked`] if another transaction holds one of them, and does not wait for it. A wait that a timeout cuts
    /// short would leave an error in the server's log each time.
    ///
    /// On Citus it waits, because Citus accepts no insert inside of a CTE.
    pub(crate) async fn claim_free(&mut self, rows: &[RowId], inserts: bool) -> Result<Found, Error> {
        if self.is_distributed() {
            return if inserts { self.claim(rows).await } else { self.lock(rows).await };
        }
        let mut found = Found::none();
        for piece in by_table_and_part(rows) {
            let mut claimed = self.claim_free_piece(piece, inserts).await?;
            if inserts && !claimed.is_whole() {
                // Another transaction inserted one meanwhile, and has committed it: the next statement sees it.
                let inserted = claimed.inserted;
                claimed = self.claim_free_piece(piece, inserts).await?.beside(inserted);
                if !claimed.is_whole() {
                    return Err(Error::Locked { limit: piece[0].name.clone().into() });
                }
            }
            found.append(claimed);
        }
        Ok(found)
    }

    /// Does so once, for the rows of one table and part. A row that another transaction inserted meanwhile is absent.
    async fn claim_free_piece(&mut self, piece: &[RowId], inserts: bool) -> Result<Found, Error> {
        let claimed = on_rows!(
            self,
            piece,
            "src/store/sql/claim_free.sql",
            "src/store/sql/ephemeral/claim_free.sql",
            self.at as Option<Timestamp>,
            inserts
        );
        let claimed = claimed.and_then(|rows| Found::claimed_free(&rows, piece.len()));
        claimed
            .map_err(failed_among(Step::Insert, piece))?
            .ok_or_else(|| Error::Locked { limit: piece[0].name.clone().into() })
    }

    /// Locks rows, of which some were inserted.
    async fn lock_beside(&mut self, rows: &[RowId], inserted: Vec<usize>) -> Result<Found, Error> {
        Ok(self.lock(rows).await?.beside(inserted))
    }

    /// Inserts those of the rows, given in lock order, that are missing, and locks the others. Returns the places of
    /// the inserted ones.
    async fn insert_on_citus(&mut self, rows: &[RowId]) -> Result<Vec<usize>, Error> {
        let (mut placed, mut before) = (Vec::new(), 0);
        for piece in by_table_and_part(rows) {
            let inserted = on_rows!(
                self,
                piece,
                "src/store/sql/insert_citus.sql",
                "src/store/sql/ephemeral/insert_citus.sql",
                self.at as Option<Timestamp>
            );
            for inserted in inserted.map_err(failed(Step::Insert, &piece[0]))? {
                let read = || Ok((inserted.try_get(0)?, inserted.try_get(1)?, inserted.try_get(2)?));
                let (name, key, shard): (String, String, i16) = read().map_err(failed(Step::Insert, &piece[0]))?;
                let id = |row: &RowId| (row.name(), row.key().as_str(), columns::shard(row)).cmp(&(&name, &key, shard));
                placed.extend(piece.binary_search_by(id).map(|place| before + place));
            }
            before += piece.len();
        }
        Ok(placed)
    }

    /// Locks rows, given in lock order, and reads them.
    pub(crate) async fn lock(&mut self, rows: &[RowId]) -> Result<Found, Error> {
        let mut found = Found::none();
        for piece in by_table_and_part(rows) {
            let locked = on_rows!(
                self,
                piece,
                "src/store/sql/lock.sql",
                "src/store/sql/ephemeral/lock.sql",
                self.at as Option<Timestamp>
            );
            let locked = locked.and_then(|rows| Found::locked(&rows, piece.len()));
            found.append(locked.map_err(failed_among(Step::Lock, piece))?);
        }
        Ok(found)
    }

    /// Deletes rows that transaction `xid` has inserted for a refusal.
    pub(crate) async fn remove(&mut self, rows: &[RowId], xid: i64) -> Result<(), Error> {
        let xid = self.provable(xid);
        for piece in by_table_and_part(rows) {
            let removed = on_rows!(
                self,
                piece,
                "src/store/sql/remove.sql",
                "src/store/sql/ephemeral/remove.sql",
                xid as Option<i64>
            );
            removed.map_err(failed(Step::Remove, &piece[0]))?;
        }
        Ok(())
    }

    /// Deletes the rows behind the last shard of each key. `rows` are the first stale ones.
    pub(crate) async fn remove_stale(&mut self, rows: &[RowId]) -> Result<(), Error> {
        for piece in by_table_and_part(rows) {
            let removed =
                on_rows!(self, piece, "src/store/sql/remove_stale.sql", "src/store/sql/ephemeral/remove_stale.sql");
            removed.map_err(failed(Step::Remove, &piece[0]))?;
        }
        Ok(())
    }
}

/// If a lock took longer, the statement may have waited for it.
const A_MOMENT: Duration = Duration::from_millis(5);
