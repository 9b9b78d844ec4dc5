//! Statements that write rows which the transaction holds, and keep and use up tracked charges.

use sqlx::{Row as _, query_file};

use super::columns::{self, Columns, Written};
use super::{Store, database, failed, unwritten};
use crate::algebra::Timestamp;
use crate::error::{Error, Step};
use crate::limit::Storage;
use crate::plan::{Answer, Change, Row, place_of};
use crate::receipt::Charge;

impl Store<'_> {
    /// Writes what changed in rows that transaction `xid` holds, and uses up tracked charges, whole or not at all.
    /// Where some of them are `fresh`, that is inserted, strangers may have come while it waited; says whether there
    /// are none.
    pub(crate) async fn save(
        &mut self,
        rows: &[Row],
        changes: &[Change],
        used: &[(Row, i64)],
        xid: i64,
        fresh: bool,
    ) -> Result<bool, Error> {
        if self.routed {
            return self.route_save(rows, changes, used, fresh).await;
        }
        let saved = match changes {
            [change] if used.is_empty() => self.save_one(&rows[change.row], change, xid, fresh).await,
            _ => self.save_rows(rows, changes, used, xid, fresh).await,
        };
        let Saved { joined, unused, strange, written } = saved.map_err(failed(Step::Save, &rows[0]))?;
        if !joined {
            // Nothing was written: in another transaction than the one that holds the rows, beside strangers, or in
            // vain.
            self.expect_transaction(rows[0].name()).await?;
            if fresh { Ok(false) } else { Err(unwritten(&rows[0])) }
        } else if strange {
            Ok(false)
        } else if !unused {
            Err(Error::ReceiptUsed)
        } else if written != changes.len() {
            Err(unwritten(&rows[0]))
        } else {
            Ok(true)
        }
    }

    async fn save_one(&mut self, row: &Row, change: &Change, xid: i64, fresh: bool) -> Result<Saved, sqlx::Error> {
        let (name, key, shard) = (row.name(), row.key().as_str(), columns::shard(row));
        let (value, ts, full_at) = (change.state.value.micros(), change.state.ts, change.full_at);
        let done = execute!(
            self,
            row.storage(),
            "src/store/sql/save_bucket.sql",
            "src/store/sql/save_rate_limit.sql",
            name,
            key,
            shard,
            value,
            ts as Timestamp,
            full_at as Timestamp,
            xid,
            fresh
        )?;
        Ok(Saved { joined: done.rows_affected() == 1, unused: true, strange: false, written: 1 })
    }

    async fn save_rows(
        &mut self,
        rows: &[Row],
        changes: &[Change],
        used: &[(Row, i64)],
        xid: i64,
        fresh: bool,
    ) -> Result<Saved, sqlx::Error> {
        let [buckets, rate_limits] =
            [Storage::Ephemeral, Storage::Durable].map(|table| Written::of(table, rows, changes));
        let Columns { names, keys, .. } = Columns::of(used.iter().map(|(row, _)| row));
        let ids: Vec<_> = used.iter().map(|(_, id)| *id).collect();
        let query = query_file!(
            "src/store/sql/save_rows.sql",
            &buckets.at.names as &[&str],
            &buckets.at.keys as &[&str],
            &buckets.at.shards,
            &buckets.values,
            &buckets.instants as &[Timestamp],
            &buckets.full_at as &[Timestamp],
            &rate_limits.at.names as &[&str],
            &rate_limits.at.keys as &[&str],
            &rate_limits.at.shards,
            &rate_limits.values,
            &rate_limits.instants as &[Timestamp],
            &rate_limits.full_at as &[Timestamp],
            &names as &[&str],
            &keys as &[&str],
            &ids,
            xid,
            fresh
        );
        let rows = self.fetch(query).await?;
        let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
        let written: i64 = row.try_get(2)?;
        Ok(Saved {
            joined: row.try_get(0)?,
            unused: row.try_get(1)?,
            strange: row.try_get(3)?,
            written: usize::try_from(written).unwrap_or_default(),
        })
    }

    /// Deletes rows that were inserted in vain, given what was inserted: each row, its capacity, and the instant.
    pub(crate) async fn release(&mut self, inserted: &[(&Row, i64, Timestamp)]) -> Result<(), Error> {
        if self.routed {
            return self.route_release(inserted).await;
        }
        for table in inserted.chunk_by(|(one, ..), (other, ..)| one.storage() == other.storage()) {
            let Columns { names, keys, shards } = Columns::of(table.iter().map(|(row, ..)| *row));
            let values: Vec<_> = table.iter().map(|(_, value, _)| *value).collect();
            let instants: Vec<_> = table.iter().map(|(.., instant)| *instant).collect();
            let released = execute!(
                self,
                table[0].0.storage(),
                "src/store/sql/release_buckets.sql",
                "src/store/sql/release_rate_limits.sql",
                &names as &[&str],
                &keys as &[&str],
                &shards,
                &values,
                &instants as &[Timestamp]
            );
            released.map_err(failed(Step::Release, table[0].0))?;
        }
        Ok(())
    }

    /// Keeps those charges of an answer that are to be tracked until their receipt is used.
    pub(crate) async fn track(&mut self, answer: &mut Answer, xid: Option<i64>) -> Result<(), Error> {
        let Answer::Granted { charges, .. } = answer else { return Ok(()) };
        for (charge, _) in charges.iter_mut().filter(|(_, tracked)| *tracked) {
            charge.tracked = Some(self.track_charge(charge, xid.ok_or(Error::NotInTransaction)?).await?);
        }
        Ok(())
    }

    async fn track_charge(&mut self, charge: &Charge, xid: i64) -> Result<i64, Error> {
        let (_, shard) = place_of(charge.shard);
        let mut parts = vec![0; usize::from(shard)];
        parts.push(charge.cost.micros());
        let (name, key, ready_at) = (charge.limit.name(), charge.key.as_str(), Timestamp::from(charge.ready_at));
        if self.routed {
            let kept = self.route_track(charge, &parts).await;
            return kept.map_err(|source| database(Step::Track, name, source));
        }
        let query = query_file!("src/store/sql/track_charge.sql", name, key, &parts, ready_at as Timestamp, xid);
        let rows = self.fetch(query).await.map_err(|source| database(Step::Track, name, source))?;
        let row = rows.first().ok_or(Error::NotInTransaction)?;
        row.try_get(0).map_err(|source| database(Step::Track, name, source))
    }
}

/// What became of a save.
struct Saved {
    /// Whether the transaction is the one that holds the rows.
    joined: bool,
    /// Whether no charge to be used up was used before.
    unused: bool,
    /// Whether nothing was written, for there are strangers.
    strange: bool,
    /// How many rows were written.
    written: usize,
}
