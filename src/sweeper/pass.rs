#![expect(
    clippy::disallowed_methods,
    reason = "how long a step takes is told by the monotonic clock; what time it is, by the database, and this \
              machine's clock tells whether that one is far off"
)]

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use sqlx::{PgConnection, PgPool};

use super::Sweeper;
use super::walk::Walk;
use crate::algebra::Timestamp;
use crate::error::Error;
use crate::limit::Storage;
use crate::store::session::{self, Right};
use crate::store::{Ctid, FullRow, FullRows, Store, defaults, table_of, unreaped, unswept};
use crate::values::lock::lock;

/// One walk over the tables, step by step; made by [`Sweeper::pass`].
///
/// It can be dropped at any point: it deletes only whole batches.
#[derive(Debug)]
#[must_use = "a pass deletes nothing until it steps"]
pub struct SweepPass {
    sweeper: Sweeper,
    pool: PgPool,
    /// One walk for each table of limits, in order; the first step makes them.
    walks: Option<Vec<(Storage, Walk)>>,
    /// The walk through the table of calls, after the others.
    calls: Option<Walk>,
    swept: Swept,
    rest: Duration,
}

/// The work of a sweep.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Swept {
    /// Rows deleted from `tollgate.ephemeral`, or to be deleted in a dry run.
    pub ephemeral: u64,
    /// Rows deleted from `tollgate.durable`, or to be deleted in a dry run.
    pub durable: u64,
    /// Calls whose ids were forgotten; in a dry run none.
    pub calls: u64,
    /// Calls that had lapsed, whose charges were given back; in a dry run none.
    pub lapsed: u64,
    /// Rows that a transaction held, or changed in between; another sweep will see them.
    pub missed: u64,
    /// Statements that deleted.
    pub batches: u64,
    /// Pages that were looked at.
    pub pages: u64,
    /// Whether another sweeper was at work, and this one left the rest to it.
    pub yielded: bool,
    /// Whether the rest was left because of the clock. The database's clock ran away from this process's monotonic
    /// clock by more than a minute, or at the first look differed from this machine's clock by more than that. And
    /// since then they have not agreed for a [margin](Sweeper::margin).
    pub clock_stepped: bool,
    /// Whether at least ten passes of this sweeper in a row, this one included, did nothing because another session
    /// held the lock. A sweeper holds it only for milliseconds at a time, so this is something else: any role that may
    /// log in can hold it.
    pub shut_out: bool,
}

impl Swept {
    /// Rows deleted from both tables.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.ephemeral + self.durable
    }

    /// Adds the work of another sweep.
    pub(super) fn add(&mut self, more: Self) {
        let Self { ephemeral, durable, calls, lapsed, missed, batches, pages, yielded, clock_stepped, shut_out } = more;
        self.ephemeral += ephemeral;
        self.durable += durable;
        self.calls += calls;
        self.lapsed += lapsed;
        self.missed += missed;
        self.batches += batches;
        self.pages += pages;
        self.yielded |= yielded;
        self.clock_stepped |= clock_stepped;
        self.shut_out |= shut_out;
    }
}

impl SweepPass {
    pub(super) fn new(sweeper: Sweeper, pool: PgPool) -> Self {
        Self { sweeper, pool, walks: None, calls: None, swept: Swept::default(), rest: Duration::ZERO }
    }

    /// Rests, then looks at some pages and deletes the full rows in them, over a connection that goes back to the pool.
    /// Returns whether there is more to do.
    ///
    /// # Errors
    ///
    /// Those of [`Sweeper::sweep`]. The same step may be tried again.
    pub async fn step(&mut self) -> Result<bool, Error> {
        tokio::time::sleep(self.take_rest()).await;
        self.work().await
    }

    /// The work so far.
    #[must_use]
    pub fn swept(&self) -> Swept {
        self.swept
    }

    /// The number of pages that are done, and the number of all pages; zeros before the first step.
    #[must_use]
    pub fn progress(&self) -> (u64, u64) {
        let walks = self.walks.iter().flatten().map(|(_, walk)| walk).chain(&self.calls);
        walks.fold((0, 0), |(done, all), walk| (done + u64::from(walk.done()), all + u64::from(walk.pages())))
    }

    /// How long to rest before the next step.
    pub(super) fn take_rest(&mut self) -> Duration {
        std::mem::take(&mut self.rest)
    }

    /// A step without the rest before it.
    pub(super) async fn work(&mut self) -> Result<bool, Error> {
        let began = Instant::now();
        if self.walks.is_none() {
            self.set_out().await?;
        }
        let Some((table, range)) = self.next() else { return self.forget_calls(began).await };
        let mut conn =
            session::take(&self.pool, Right::STORE).await.map_err(|source| unswept(table_of(table), source))?;
        let Sweeper { batch, margin, .. } = self.sweeper;
        let found = self.store(&mut conn).find_full(table, range, batch, margin).await?;
        self.note(&found);
        if self.swept.clock_stepped || self.swept.yielded {
            conn.finished();
            return Ok(false);
        }
        self.clear(&mut conn, table, &found.rows).await?;
        conn.finished();
        self.rest = rest_after(began.elapsed(), self.sweeper.share);
        Ok(self.next().is_some() || self.calls.is_some())
    }

    /// Looks at some pages of the table of calls. The walks before it have checked the clock.
    async fn forget_calls(&mut self, began: Instant) -> Result<bool, Error> {
        let Some(range) = self.calls.as_ref().and_then(Walk::next) else { return Ok(false) };
        if self.sweeper.deletes {
            let mut conn = session::take(&self.pool, Right::STORE).await.map_err(unreaped)?;
            self.swept.calls += self.store(&mut conn).forget_calls(range, self.sweeper.margin).await?;
            conn.finished();
        }
        let calls = self.calls.as_mut().expect("the line above has asked it");
        let before = calls.done();
        calls.advance(None);
        self.swept.pages += u64::from(calls.done() - before);
        self.rest = rest_after(began.elapsed(), self.sweeper.share);
        Ok(calls.next().is_some())
    }

    /// Notes whether the clock of a reading can be trusted, and whether the rows were left to another sweeper.
    fn note(&mut self, found: &FullRows) {
        let Sweeper { at, trusting, watch, margin, .. } = &self.sweeper;
        let shown = if *trusting { found.now } else { this_machine() };
        let mut watch = lock(watch);
        self.swept.clock_stepped = at.is_none() && !watch.trusts(found.now, Instant::now(), shown, *margin);
        self.swept.yielded = !found.alone;
        self.swept.shut_out = watch.is_shut_out(found.alone);
    }

    /// Gives back lapsed calls, and counts the pages.
    async fn set_out(&mut self) -> Result<(), Error> {
        if self.sweeper.deletes && self.sweeper.forgets {
            self.swept.lapsed += self.sweeper.reap(&self.pool).await?;
        }
        let mut conn = session::take(&self.pool, Right::STORE).await.map_err(unreaped)?;
        let [ephemeral, durable, calls] = self.store(&mut conn).count_pages().await?;
        conn.finished();
        let walk = |table| Walk::new(if table == Storage::Durable { durable } else { ephemeral });
        self.walks = Some(self.sweeper.tables.iter().map(|table| (*table, walk(*table))).collect());
        self.calls = self.sweeper.forgets.then(|| Walk::new(calls));
        Ok(())
    }

    /// The current table, and the places to look at next.
    fn next(&self) -> Option<(Storage, [Ctid; 2])> {
        self.walks.iter().flatten().find_map(|(table, walk)| Some((*table, walk.next()?)))
    }

    /// Deletes those found rows that may go, and advances.
    async fn clear(&mut self, conn: &mut PgConnection, table: Storage, rows: &[FullRow]) -> Result<(), Error> {
        // If there may be more rows than the step asked for, the next step goes on behind the last one.
        let last = rows.last().map(|row| row.place).filter(|_| rows.len() >= self.sweeper.batch as usize);
        let gone = self.delete(conn, table, rows).await?;
        match table {
            Storage::Ephemeral => self.swept.ephemeral += gone,
            Storage::Durable => self.swept.durable += gone,
        }
        self.swept.missed += (rows.len() as u64).saturating_sub(gone);
        self.advance(table, last);
        Ok(())
    }

    /// Deletes the rows. Returns how many of them were deleted.
    async fn delete(&mut self, conn: &mut PgConnection, table: Storage, rows: &[FullRow]) -> Result<u64, Error> {
        if rows.is_empty() || !self.sweeper.deletes {
            return Ok(rows.len() as u64);
        }
        self.swept.batches += 1;
        match self.store(conn).delete_full(table, rows).await {
            // If sessions are not at READ COMMITTED by default, a row that was changed in between is an error.
            Err(error) if error.is_lost_race() => Ok(0),
            gone => gone,
        }
    }

    fn advance(&mut self, table: Storage, last: Option<Ctid>) {
        for (_, walk) in self.walks.iter_mut().flatten().filter(|(of, _)| *of == table) {
            let before = walk.done();
            walk.advance(last);
            self.swept.pages += u64::from(walk.done() - before);
        }
    }

    fn store<'c>(&self, conn: &'c mut PgConnection) -> Store<'c> {
        Store::new(conn, self.sweeper.at, self.sweeper.backend).wrapping(defaults(self.sweeper.backend))
    }
}

/// The time of this machine's clock.
fn this_machine() -> Timestamp {
    Timestamp::from_micros(0).plus(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

/// A rest of such a length that the work is this share of the time.
fn rest_after(work: Duration, percent: u8) -> Duration {
    (work * u32::from(100 - percent) / u32::from(percent)).min(LONGEST_REST)
}

/// A statement may have waited for an hour, for example for a locked table; that is no reason to rest for three hours.
const LONGEST_REST: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_at_work_for_its_share_of_the_time() {
        let work = Duration::from_millis(10);
        assert_eq!(rest_after(work, 100), Duration::ZERO);
        assert_eq!(rest_after(work, 50), work);
        assert_eq!(rest_after(work, 25), 3 * work);
        assert_eq!(rest_after(Duration::from_hours(1), 1), LONGEST_REST);
    }
}
