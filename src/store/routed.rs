//! The same by statements that each name one key, for tables that Citus has spread over nodes by their keys.
//!
//! Citus sends such a statement to the node that has the key. It cannot lock rows of several keys by one statement, nor insert
//! from a query or compute in an update without asking all nodes. So rows are read and locked key by key, in lock order, and
//! written one by one.
//!
//! A transaction has another number on each node: nothing here is conditioned on it, and the caller sees to it that there is one.

use std::ops::Range;

use sqlx::{Row as _, query_file};

use super::columns::{self, Columns};
use super::found::{Found, Shards};
use super::shards::Swap;
use super::{Store, failed, first_of_each_key, unwritten};
use crate::algebra::{State, Timestamp};
use crate::error::{Error, Step};
use crate::limit::Storage;
use crate::plan::{Change, Need, Row, Stranger, place_of};
use crate::receipt::Charge;
use crate::tokens::Tokens;

impl Store<'_> {
    /// Reads rows key by key, and strangers beside them.
    pub(super) async fn route_read(&mut self, rows: &[Row]) -> Result<Shards, Error> {
        let mut all = Shards::none();
        for key in keys(rows) {
            let rows = &rows[key];
            let (name, key, at) = (rows[0].name(), rows[0].key().as_str(), self.at);
            let read = fetch!(
                self,
                rows[0].storage(),
                "src/store/sql/routed/read_buckets.sql",
                "src/store/sql/routed/read_rate_limits.sql",
                name,
                key,
                at as Option<Timestamp>
            );
            all.append(Shards::of_key(rows, Step::Read, read)?);
        }
        Ok(all)
    }

    /// Reads rows key by key; whether strangers are beside them that matter.
    pub(super) async fn route_peek(&mut self, rows: &[Row]) -> Result<Found, Error> {
        let Shards { found, strangers, .. } = self.route_read(rows).await?;
        let strange = matter(&strangers, rows, &found.states);
        Ok(Found { held: false, strange, ..found })
    }

    /// Locks rows key by key, in order.
    pub(super) async fn route_lock(&mut self, rows: &[Row]) -> Result<Found, Error> {
        let mut found = Found::none();
        for key in keys(rows) {
            let rows = &rows[key];
            let mut held = self.lock_key(rows).await?;
            if minds_strangers(rows, &held.states) {
                held.strange = !self.route_read(rows).await?.strangers.is_empty();
            }
            found.append(held);
        }
        Ok(found)
    }

    /// Locks rows key by key, in order, and inserts those that are absent where capacities are given; unless one is short of
    /// what is needed, or strangers are there: then reads without a lock.
    pub(super) async fn route_claim(
        &mut self,
        rows: &[Row],
        needs: Option<&[Need]>,
        capacities: Option<&[i64]>,
        wary: bool,
    ) -> Result<Found, Error> {
        let Shards { found: seen, strangers, .. } = self.route_read(rows).await?;
        let strange = wary && matter(&strangers, rows, &seen.states);
        if strange || needs.is_some_and(|needs| is_short(needs, &seen)) {
            return Ok(Found { held: false, strange, ..seen });
        }
        let Some(capacities) = capacities else { return self.route_lock(rows).await };
        let mut found = Found::none();
        for key in keys(rows) {
            let (states, capacities) = (&seen.states[key.clone()], &capacities[key.clone()]);
            found.append(self.claim_key(&rows[key], states, capacities, seen.now).await?);
        }
        Ok(found)
    }

    /// Locks rows of one key, and inserts what is absent of them, as of an instant.
    ///
    /// Up to the last one that was seen to be absent they are inserted or locked one by one, for what is inserted after others
    /// are locked is out of order. That is left to the rows that a sweeper took meanwhile: there a deadlock is a lost race.
    async fn claim_key(
        &mut self,
        rows: &[Row],
        seen: &[Option<State>],
        capacities: &[i64],
        now: Timestamp,
    ) -> Result<Found, Error> {
        let mut inserted = vec![None; rows.len()];
        let in_order = seen.iter().rposition(Option::is_none).map_or(0, |last| last + 1);
        for place in 0..in_order {
            inserted[place] = self.place(&rows[place], capacities[place], now).await?;
        }
        let mut found = self.lock_key(rows).await?;
        if found.states.contains(&None) {
            for place in in_order..rows.len() {
                inserted[place] = self.place(&rows[place], capacities[place], now).await?;
            }
            found = self.lock_key(rows).await?;
        }
        for (state, _) in found.states.iter_mut().zip(&inserted).filter(|(_, inserted)| inserted.is_some()) {
            *state = None;
        }
        Ok(Found { inserted, ..found })
    }

    /// Locks rows key by key, in order, wherever they are: quicker than by one statement for all where there are few keys.
    pub(crate) async fn lock_keys(&mut self, rows: &[Row]) -> Result<Found, Error> {
        let mut found = Found::none();
        for key in keys(rows) {
            found.append(self.lock_key(&rows[key]).await?);
        }
        Ok(found)
    }

    /// Locks rows of one key.
    async fn lock_key(&mut self, rows: &[Row]) -> Result<Found, Error> {
        let (name, key, at) = (rows[0].name(), rows[0].key().as_str(), self.at);
        let Columns { shards, .. } = Columns::of(rows);
        let locked = fetch!(
            self,
            rows[0].storage(),
            "src/store/sql/routed/lock_buckets.sql",
            "src/store/sql/routed/lock_rate_limits.sql",
            name,
            key,
            &shards,
            at as Option<Timestamp>
        );
        let found = Shards::of_key(rows, Step::Lock, locked)?.found;
        let xid = if self.routed { Some(THE_CALLERS) } else { found.xid };
        Ok(Found { xid, ..found })
    }

    /// Inserts a row as a full one, or locks it if it is there; the instant, if it inserted it.
    async fn place(&mut self, row: &Row, capacity: i64, now: Timestamp) -> Result<Option<Timestamp>, Error> {
        let (name, key, shard) = (row.name(), row.key().as_str(), columns::shard(row));
        let placed = execute!(
            self,
            row.storage(),
            "src/store/sql/routed/place_bucket.sql",
            "src/store/sql/routed/place_rate_limit.sql",
            name,
            key,
            shard,
            capacity,
            now as Timestamp
        );
        Ok((placed.map_err(failed(Step::Claim, row))?.rows_affected() > 0).then_some(now))
    }

    /// Writes what changed in rows that the transaction holds, and uses up tracked charges. Says whether there are no strangers,
    /// where some of the rows are `fresh`.
    pub(super) async fn route_save(
        &mut self,
        rows: &[Row],
        changes: &[Change],
        used: &[(Row, i64)],
        fresh: bool,
    ) -> Result<bool, Error> {
        if fresh && !self.route_read(rows).await?.strangers.is_empty() {
            return Ok(false);
        }
        // First all are looked for: a receipt that was used before changes nothing.
        for (row, id) in used {
            let (name, key) = (row.name(), row.key().as_str());
            let locked = self.fetch(query_file!("src/store/sql/routed/lock_charge.sql", name, key, *id)).await;
            if locked.map_err(failed(Step::Save, row))?.is_empty() {
                return Err(Error::ReceiptUsed);
            }
        }
        for (row, id) in used {
            let (name, key) = (row.name(), row.key().as_str());
            let deleted = self.execute(query_file!("src/store/sql/routed/use_charge.sql", name, key, *id)).await;
            deleted.map_err(failed(Step::Save, row))?;
        }
        for change in changes {
            self.write(&rows[change.row], change).await?;
        }
        Ok(true)
    }

    async fn write(&mut self, row: &Row, change: &Change) -> Result<(), Error> {
        let (name, key, shard) = (row.name(), row.key().as_str(), columns::shard(row));
        let written = execute!(
            self,
            row.storage(),
            "src/store/sql/routed/write_bucket.sql",
            "src/store/sql/routed/write_rate_limit.sql",
            name,
            key,
            shard,
            change.state.value.micros(),
            change.state.ts as Timestamp,
            change.full_at as Timestamp
        );
        let is_written = written.map_err(failed(Step::Save, row))?.rows_affected() == 1;
        if is_written { Ok(()) } else { Err(unwritten(row)) }
    }

    /// Writes a row that still is as it was found, and that nobody holds; whether it did.
    pub(super) async fn route_swap(&mut self, row: &Row, old: State, change: &Change) -> Result<bool, sqlx::Error> {
        let (name, key, shard) = (row.name(), row.key().as_str(), columns::shard(row));
        let done = execute!(
            self,
            row.storage(),
            "src/store/sql/routed/swap_bucket.sql",
            "src/store/sql/routed/swap_rate_limit.sql",
            name,
            key,
            shard,
            old.value.micros(),
            old.ts as Timestamp,
            change.state.value.micros(),
            change.state.ts as Timestamp,
            change.full_at as Timestamp
        )?;
        Ok(done.rows_affected() == 1)
    }

    /// Locks the first of these rows of one key, with what each was found as, that nobody holds and nobody has changed.
    pub(super) async fn route_hold(
        &mut self,
        rows: &[Row],
        changes: &[(Change, State)],
    ) -> Result<Option<Swap>, Error> {
        let places: Vec<_> = changes.iter().map(|(change, _)| change.row).collect();
        let first = &rows[places[0]];
        let (name, key) = (first.name(), first.key().as_str());
        self.expect_transaction(name).await?;
        let Columns { shards, .. } = Columns::of(places.iter().map(|place| &rows[*place]));
        let old_values: Vec<_> = changes.iter().map(|(_, old)| old.value.micros()).collect();
        let old_instants: Vec<_> = changes.iter().map(|(_, old)| old.ts).collect();
        let held = fetch!(
            self,
            first.storage(),
            "src/store/sql/routed/hold_shard_of_buckets.sql",
            "src/store/sql/routed/hold_shard_of_rate_limits.sql",
            name,
            key,
            &shards,
            &old_values,
            &old_instants as &[Timestamp]
        );
        let swap = held.and_then(|rows| rows.first().map(|row| Swap::held(row, &places, THE_CALLERS)).transpose());
        swap.map_err(failed(Step::Lock, first))
    }

    /// Locks the strangers beside rows, key by key.
    pub(super) async fn route_lock_strangers(&mut self, rows: &[Row]) -> Result<Vec<Stranger>, Error> {
        let mut seen = self.route_read(rows).await?.strangers;
        seen.sort_unstable_by_key(|stranger| (stranger.beside, stranger.shard));
        let mut strangers = Vec::new();
        for seen in seen.chunk_by(|one, other| one.beside == other.beside) {
            let rows: Vec<_> = seen.iter().map(|stranger| row_of(stranger, rows)).collect();
            let held = self.lock_key(&rows).await?;
            let still =
                seen.iter().zip(held.states).filter_map(|(seen, state)| Some(Stranger { state: state?, ..*seen }));
            strangers.extend(still);
        }
        Ok(strangers)
    }

    /// Writes what changed so that rows stand for strangers, and deletes those; the transaction holds both.
    pub(super) async fn route_take_over(
        &mut self,
        rows: &[Row],
        changes: &[Change],
        strangers: &[Stranger],
    ) -> Result<(), Error> {
        for change in changes {
            self.write(&rows[change.row], change).await?;
        }
        for stranger in strangers {
            let row = row_of(stranger, rows);
            if !self.remove(&row, stranger.state).await? {
                return Err(unwritten(&row));
            }
        }
        Ok(())
    }

    /// Deletes rows that were inserted in vain, given what was inserted: each row, its capacity, and the instant.
    pub(super) async fn route_release(&mut self, inserted: &[(&Row, i64, Timestamp)]) -> Result<(), Error> {
        for (row, capacity, ts) in inserted {
            self.remove(row, State { value: Tokens::from_micros(*capacity), ts: *ts }).await?;
        }
        Ok(())
    }

    /// Deletes a row that still is what it was; whether it did.
    async fn remove(&mut self, row: &Row, state: State) -> Result<bool, Error> {
        let (name, key, shard) = (row.name(), row.key().as_str(), columns::shard(row));
        let removed = execute!(
            self,
            row.storage(),
            "src/store/sql/routed/remove_bucket.sql",
            "src/store/sql/routed/remove_rate_limit.sql",
            name,
            key,
            shard,
            state.value.micros(),
            state.ts as Timestamp
        );
        Ok(removed.map_err(failed(Step::Release, row))?.rows_affected() == 1)
    }

    /// Keeps a charge until its receipt is used; its number.
    pub(super) async fn route_track(&mut self, charge: &Charge, parts: &[i64]) -> Result<i64, sqlx::Error> {
        let (name, key, ready_at) = (charge.limit.name(), charge.key.as_str(), Timestamp::from(charge.ready_at));
        let cost: i64 = parts.iter().sum();
        let query = query_file!("src/store/sql/routed/keep_charge.sql", name, key, parts, cost, ready_at as Timestamp);
        self.fetch(query).await?.first().ok_or(sqlx::Error::RowNotFound)?.try_get(0)
    }
}

/// Stands for the number of the caller's transaction, which the caller has seen to.
const THE_CALLERS: i64 = 0;

/// Rows in lock order come key by key.
fn keys(rows: &[Row]) -> impl Iterator<Item = Range<usize>> {
    first_of_each_key(rows).map(|first| key_at(rows, first))
}

/// The places of all rows of the key whose first is this.
fn key_at(rows: &[Row], first: usize) -> Range<usize> {
    let more = rows[first..].iter().take_while(|row| row.is_beside(&rows[first])).count();
    first..first + more
}

/// Whether one of the strangers matters.
fn matter(strangers: &[Stranger], rows: &[Row], states: &[Option<State>]) -> bool {
    let is_minded = |stranger: &Stranger| {
        let key = key_at(rows, stranger.beside);
        minds_strangers(&rows[key.clone()], &states[key])
    };
    strangers.iter().any(is_minded)
}

/// Whether strangers beside rows of one key would matter: where one of ours is absent, or several are asked as one.
fn minds_strangers(rows: &[Row], states: &[Option<State>]) -> bool {
    let (shards, index) = place_of(rows[0].shard());
    shards > 1 && index == 0 || states.contains(&None)
}

/// Whether a row that is there has too little.
fn is_short(needs: &[Need], seen: &Found) -> bool {
    let short = |(need, state): (&Need, &Option<State>)| {
        state.is_some_and(|state| need.terms.refill(state, seen.now).value < need.balance)
    };
    needs.iter().zip(&seen.states).any(short)
}

/// The row of a stranger beside some rows.
fn row_of(stranger: &Stranger, rows: &[Row]) -> Row {
    Row { shard: stranger.shard, ..rows[stranger.beside].clone() }
}
