mod known;
mod pass;
mod swept;
mod task;
mod walk;

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::PgPool;

use crate::algebra::Timestamp;
use crate::error::Error;
use crate::limit::{Limit, Storage};
use known::Known;
pub use pass::SweepPass;
pub use swept::Swept;
pub use task::Sweeping;

/// Deletes rows that are full again: they say what their absence says.
///
/// Without it nothing is wrong but the size of the tables, which hold a row for every key that was ever asked. Run it as a
/// [task](Self::spawn) of each service, as one of your own [in steps](Self::pass), or as `tollgate sweep`.
///
/// # How it works
///
/// A pass walks the pages of a table once, a few at a time: no index on a column that changes is needed, so updates stay
/// cheap, and a step has bounded work even where nothing is to be deleted. Each step finds rows without a lock, and
/// deletes by one statement those that are still the same and that nobody holds. It waits for no row, so it never
/// deadlocks with those who decide, and whoever asks a key whose row is going waits for that one statement at most, not
/// for the disk. Between two steps it rests, so that it is at work for a [share](Self::share) of the time only.
///
/// The clock is the database's. Two sweepers that meet get out of each other's way: the one that finds another at work
/// [leaves it the rest](Swept::yielded).
///
/// # When a row goes
///
/// Each row says when it is full by the definition that wrote it. A limit that the sweeper [knows](Self::knows) is
/// computed anew under what it knows, and its row goes when **both** say so; so a debt is never forgiven, a lowered rate
/// or a raised capacity is seen, and neither the row's going nor its staying changes a decision (on the grid of a first
/// use, the grid may start anew, later and never earlier). Of a limit that it does not know the row goes a
/// [margin](Self::margin) after the instant that the row says.
///
/// While two definitions of one limit are live, say during a rolling deploy that changes its capacity, let the sweeper
/// know both, or neither and a margin in which the larger one fills up: a row that is full under the smaller only, and
/// goes, would come back full under the larger.
///
/// # Example
///
/// ```
/// use tollgate::{Limit, MINUTE, Sweeper};
///
/// const SEND_MESSAGE: Limit = Limit::token_bucket("send_message", 10, MINUTE).capacity(20);
///
/// async fn serve(pool: sqlx::PgPool) {
///     let sweeping = Sweeper::new().knows([SEND_MESSAGE]).spawn(pool, MINUTE);
///     // … until the service is to end:
///     let swept = sweeping.stop().await;
///     println!("{} rows were swept", swept.rows());
/// }
/// # let _ = serve;
/// ```
#[derive(Clone, Debug)]
#[must_use = "a sweeper deletes nothing until it is asked"]
pub struct Sweeper {
    known: Known,
    tables: Vec<Storage>,
    batch: u32,
    share: u8,
    deletes: bool,
    named_statements: bool,
    at: Option<Timestamp>,
}

impl Sweeper {
    /// A sweeper of both tables, by the database's clock, that knows no limit.
    pub fn new() -> Self {
        Self {
            known: Known::default(),
            tables: vec![Storage::Ephemeral, Storage::Durable],
            batch: 500,
            share: 25,
            deletes: true,
            named_statements: true,
            at: None,
        }
    }

    /// Lets it know limits. Of one name it may know several definitions: a row is full when it is under each.
    pub fn knows(mut self, limits: impl IntoIterator<Item = Limit>) -> Self {
        self.known.add(limits);
        self
    }

    /// How long a row stays after it said to be full, if its limit is none that the sweeper [knows](Self::knows); ten
    /// minutes by default, in whole microseconds.
    ///
    /// Zero is right where every limit has had one definition for as long as it takes to fill up.
    pub fn margin(mut self, margin: Duration) -> Self {
        self.known.margin = margin;
        self
    }

    /// How many rows one statement deletes at most; 500 by default, at least 1.
    pub fn batch(mut self, rows: u32) -> Self {
        self.batch = rows.max(1);
        self
    }

    /// Which share of the time it may be at work, in percent; 25 by default, 1 to 100. After a statement that took long it
    /// rests long, for at most a second: so it makes way where the database is busy.
    pub fn share(mut self, percent: u8) -> Self {
        self.share = percent.clamp(1, 100);
        self
    }

    /// Sweeps one table only: that of durable limits, or that of ephemeral ones.
    pub fn only(mut self, table: Storage) -> Self {
        self.tables = vec![table];
        self
    }

    /// Deletes nothing, and counts what it would delete.
    pub fn dry_run(mut self) -> Self {
        self.deletes = false;
        self
    }

    /// As [`Limiter::unnamed_statements`](crate::Limiter::unnamed_statements).
    pub fn unnamed_statements(mut self) -> Self {
        self.named_statements = false;
        self
    }

    /// Speaks over the database's clock: for tests and replays.
    pub fn at(mut self, now: DateTime<Utc>) -> Self {
        self.at = Some(now.into());
        self
    }

    /// Sweeps once.
    ///
    /// # Errors
    ///
    /// [`Error::Sweep`]; what was deleted until then stays deleted. [`Error::Schema`] where the tables are missing.
    pub async fn sweep(&self, pool: &PgPool) -> Result<Swept, Error> {
        let mut pass = self.pass(pool);
        while pass.step().await? {}
        Ok(pass.swept())
    }

    /// A pass to be made step by step, for whoever shows how far it is, or wants to end it early.
    pub fn pass(&self, pool: &PgPool) -> SweepPass {
        SweepPass::new(self.clone(), pool.clone())
    }

    /// Sweeps in a task of its own, again and again, until the handle is [stopped](Sweeping::stop) or dropped.
    ///
    /// Passes begin about `every` so often, each time up to a tenth earlier or later, and the first within a minute, so
    /// that many processes that were started together do not sweep together. An error ends a pass, is told as a `tracing`
    /// event, and the next pass begins in its time.
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
