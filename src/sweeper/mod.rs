mod pass;
mod task;
mod walk;
mod watch;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::PgPool;

use crate::algebra::Timestamp;
use crate::error::Error;
use crate::limit::{Limit, Storage};
use crate::parts::Parts;
use crate::reaper::Reaper;
use crate::store::Backend;
pub use pass::{SweepPass, Swept};
pub use task::Sweeping;
use watch::Watch;

/// Deletes rows that are full again: a missing row means the same.
///
/// Without a sweeper the tables hold a row for every key that was ever asked, and only gates that make calls with a
/// lapse give lapsed calls back. A [`Tollgate`](crate::Tollgate) has one. Else run it as a [task](Self::spawn) of each
/// service, [in steps](Self::pass) of your own, or as `tollgate sweep`.
///
/// # How it works
///
/// A pass walks the pages of a table once, a few at a time. It needs no index on a column that changes, so updates stay
/// cheap, and each step has bounded work. A step finds rows without a lock. Then one statement deletes those rows that
/// still are the same version and that no transaction holds. It waits for no row, so it never deadlocks with a
/// decision. A caller of a key whose row is being deleted waits for that one statement at most, not for the disk.
/// Between two steps the sweeper rests, so it works only for a [share](Self::share) of the time.
///
/// A sweeper that finds another at work [leaves it the rest](Swept::yielded). Each statement tries an advisory lock,
/// which any role that may log in can hold. If the lock is held all along, the sweeper [reports that](Swept::shut_out).
/// A sweeper looks at the pages of the server that it is connected to: on Citus, which keeps the rows on other servers,
/// it finds nothing.
///
/// # Calls
///
/// A sweeper gives back the charges of calls that have [lapsed](crate::Call::lapses_after): as a task each second,
/// else when a sweep begins. When a call need no longer be known, the sweeper forgets its id, a [margin](Self::margin)
/// later.
///
/// # When a row goes
///
/// Each row holds the instant from which on every caller reads it as a missing one, whatever definition or override
/// counts by then. The row is deleted a [margin](Self::margin) after that instant. So no debt is forgiven, and no
/// later decision changes. While a pause of its limit counts, the row stays: the pause brings a bucket nothing. Only
/// the grid of a stepped bucket, which counts from the first use, may start again, later and never earlier.
///
/// # Steps of the clock
///
/// The clock is the database's. A row keeps time from going back for its key, and a deleted row cannot. If the clock
/// steps back by no more than the margin, the row would still be full, and nothing changes. A sweeper compares the
/// clock with this process's monotonic clock, over all of its passes and those of its clones. It compares the first
/// reading with this machine's clock. If two clocks have run apart by more than a minute, it [deletes
/// nothing](Swept::clock_stepped) until they have agreed for a margin.
///
/// So a sweep does harm in one case only. When the sweep began, the clocks of the database and of this machine were
/// both ahead by more than the margin, and the database's clock then went back. On one host the two are the same clock.
/// In this case a swept key starts full, once, and its debt is forgiven.
///
/// # Example
///
/// ```
/// use tollgate::{MINUTE, Sweeper};
///
/// async fn serve(pool: sqlx::PgPool) {
///     let sweeping = Sweeper::new().spawn(pool, MINUTE);
///     // … until the service is to end:
///     let swept = sweeping.stop().await;
///     println!("{} rows were swept", swept.rows());
/// }
/// # let _ = serve;
/// ```
#[derive(Clone, Debug)]
#[must_use = "a sweeper deletes nothing until it is asked"]
pub struct Sweeper {
    margin: Duration,
    tables: Vec<Storage>,
    /// Whether it also gives back and forgets calls.
    forgets: bool,
    batch: u32,
    share: u8,
    deletes: bool,
    backend: Backend,
    at: Option<Timestamp>,
    /// Whether the first reading of the database's clock is trusted without a comparison.
    trusting: bool,
    watch: Arc<Mutex<Watch>>,
}

impl Sweeper {
    /// A sweeper of all tables, by the database's clock.
    pub fn new() -> Self {
        Self {
            margin: MARGIN,
            tables: vec![Storage::Ephemeral, Storage::Durable],
            forgets: true,
            batch: 500,
            share: 25,
            deletes: true,
            backend: Backend::PLAIN,
            at: None,
            trusting: false,
            watch: Arc::default(),
        }
    }

    /// Sets how long a row stays once it is full; ten minutes by default, in whole microseconds, at most
    /// [`Limit::MAX_PERIOD`].
    ///
    /// The margin makes up for a database clock that steps back by so much.
    pub fn margin(mut self, margin: Duration) -> Self {
        self.margin = margin.min(Limit::MAX_PERIOD);
        self
    }

    /// Sets how many rows one statement deletes at most; 500 by default, at least 1.
    pub fn batch(mut self, rows: u32) -> Self {
        self.batch = rows.max(1);
        self
    }

    /// Sets the share of the time in which it may work, in percent; 25 by default, 1 to 100. After a slow statement it
    /// rests longer, for at most a second, so it makes way when the database is busy.
    pub fn share(mut self, percent: u8) -> Self {
        self.share = percent.clamp(1, 100);
        self
    }

    /// Sweeps only one table, that of durable limits or that of ephemeral ones, and no calls.
    pub fn only(mut self, table: Storage) -> Self {
        (self.tables, self.forgets) = (vec![table], false);
        self
    }

    /// Deletes nothing, and counts what it would delete.
    pub fn dry_run(mut self) -> Self {
        self.deletes = false;
        self
    }

    /// Works as [`Limiter::unnamed_statements`](crate::Limiter::unnamed_statements) does.
    pub fn unnamed_statements(mut self) -> Self {
        self.backend.unnamed = true;
        self
    }

    /// Sets the number of parts, as [`Limiter::parts`](crate::Limiter::parts) does. On Citus, which keeps the rows on
    /// other servers, it serves [`reap`](Self::reap).
    ///
    /// # Panics
    ///
    /// As [`Limiter::parts`](crate::Limiter::parts).
    #[track_caller]
    pub fn parts(mut self, parts: u16) -> Self {
        self.backend.parts = Parts::new(parts);
        self
    }

    /// Goes by the database's clock even if this machine's clock shows another time. Use it on a machine whose clock is
    /// wrong.
    pub fn trusting_the_clock(mut self) -> Self {
        self.trusting = true;
        self
    }

    /// Takes this instant instead of the database's clock: for tests and replays, in which time may step.
    pub fn at(mut self, now: DateTime<Utc>) -> Self {
        self.at = Some(now.into());
        self
    }

    /// Sweeps once.
    ///
    /// # Errors
    ///
    /// [`Error::Database`]: rows that were deleted until then stay deleted. [`Error::Setup`] if the tables are missing.
    pub async fn sweep(&self, pool: &PgPool) -> Result<Swept, Error> {
        let mut pass = self.pass(pool);
        while pass.step().await? {}
        Ok(pass.swept())
    }

    /// Gives back the charges of calls that have [lapsed](crate::Call::lapses_after), and returns the number of
    /// these calls. A [`sweep`](Self::sweep) begins with this, and a [task](Self::spawn) does it each second.
    ///
    /// # Errors
    ///
    /// Those of [`sweep`](Self::sweep).
    pub async fn reap(&self, pool: &PgPool) -> Result<u64, Error> {
        let mut reaper = Reaper::new(pool.clone(), self.backend);
        let mut given_back = reaper.reap(self.at, |_| {}).await?;
        for _ in 0..TRIES {
            if !reaper.is_behind() {
                break;
            }
            tokio::time::sleep(PAUSE).await;
            given_back += reaper.reap(self.at, |_| {}).await?;
        }
        Ok(given_back)
    }

    /// A pass that the caller makes step by step, to show its progress or to end it early.
    pub fn pass(&self, pool: &PgPool) -> SweepPass {
        SweepPass::new(self.clone(), pool.clone())
    }

    /// Sweeps in a task of its own, again and again, until the handle is [stopped](Sweeping::stop) or dropped.
    ///
    /// A pass begins about once per `every`, up to a tenth earlier or later, and the first one begins within a minute.
    /// So processes that were started together do not sweep together. An error ends a pass and leaves a `tracing`
    /// event; the next pass begins in its time.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub fn spawn(self, pool: PgPool, every: Duration) -> Sweeping {
        Sweeping::start(self, pool, every)
    }
}

impl Default for Sweeper {
    fn default() -> Self {
        Self::new()
    }
}

/// How far the database's clock may step back.
const MARGIN: Duration = Duration::from_mins(10);

/// How often, and after which pause, to look again for calls whose rows another transaction held.
const TRIES: u32 = 10;
const PAUSE: Duration = Duration::from_millis(100);
