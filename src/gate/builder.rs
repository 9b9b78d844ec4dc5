use std::num::NonZero;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::PgPool;

use super::Gate;
use super::fallback::{Fallback, OnFailure};
use super::refusals::Refusals;
use super::shared::{Clock, Settings, Shared};
use super::width::Width;

/// How a gate is to work; made by [`Gate::builder`]. What is not set has a default that suits most.
#[derive(Debug)]
#[must_use = "nothing is built until `build` is called"]
pub struct GateBuilder {
    pool: PgPool,
    lanes: Option<usize>,
    settings: Settings,
    staleness: Option<Duration>,
    remembered_keys: usize,
    on_failure: OnFailure,
}

impl GateBuilder {
    pub(super) fn new(pool: PgPool) -> Self {
        let settings = Settings {
            max_batch: 256,
            queue: 10_000,
            lock_timeout: Duration::from_secs(1),
            statement_timeout: Duration::from_secs(5),
            acquire_timeout: Duration::from_secs(5),
            jitter: Duration::ZERO,
            named_statements: true,
            distributed: false,
            clock: Clock::Database,
        };
        let (staleness, remembered_keys) = (None, 10_000);
        Self { pool, lanes: None, settings, staleness, remembered_keys, on_failure: OnFailure::Closed }
    }

    /// How many lanes work side by side, each on one connection while it has work; 1 to 64, and never more than the pool has
    /// connections.
    ///
    /// More lanes make smaller batches, and a gate is fast because its callers share statements. So by default one lane serves
    /// all until its batches are large, and then more: one more than this machine has cores, but at most four, and at most
    /// half of the pool.
    pub fn lanes(mut self, lanes: usize) -> Self {
        self.lanes = Some(lanes);
        self
    }

    /// How many calls share a batch at most; 256 by default, at least 1.
    pub fn max_batch(mut self, calls: usize) -> Self {
        self.settings.max_batch = calls.max(1);
        self
    }

    /// How many calls wait in one lane at most; 10 000 by default. Whoever comes then gets [`Error::Busy`](crate::Error::Busy)
    /// at once.
    pub fn queue(mut self, calls: usize) -> Self {
        self.settings.queue = calls;
        self
    }

    /// Remembers refusals in this process: while a row cannot but refuse a call, `consume`, `consume_all`, `check` and `wait`
    /// are refused without asking the database, with [`Source::Memory`](crate::Source::Memory). Off unless asked for.
    ///
    /// A refusal lapses at the very instant at which the row would grant the cost asked; a smaller cost is decided from the
    /// remembered row if that must refuse it too, and else asks. This gate's own credits, resets, settlements and
    /// cancellations forget the row. Those of others are seen after `staleness` at the latest; it should be short, such as a
    /// second. A call of several limits is refused by those that are remembered, and names only them.
    pub fn remember_refusals(mut self, staleness: Duration) -> Self {
        self.staleness = Some(staleness);
        self
    }

    /// How many keys are remembered at most; 10 000 by default. Further ones ask the database.
    pub fn remembered_keys(mut self, keys: usize) -> Self {
        self.remembered_keys = keys;
        self
    }

    /// What to answer while the database cannot be asked; by default the error.
    pub fn on_failure(mut self, policy: OnFailure) -> Self {
        self.on_failure = policy;
        self
    }

    /// How long to wait for a row that a transaction of somebody else holds; a second by default, in whole milliseconds,
    /// rounded up. Then the callers that wait for it get [`Error::Busy`](crate::Error::Busy).
    ///
    /// Other calls in the same lane wait meanwhile.
    pub fn lock_timeout(mut self, timeout: Duration) -> Self {
        self.settings.lock_timeout = timeout;
        self
    }

    /// How long a statement may take; five seconds by default, at least a millisecond. Watched on both sides: a
    /// server that does not answer any more is given up, and its connection closed.
    pub fn statement_timeout(mut self, timeout: Duration) -> Self {
        self.settings.statement_timeout = timeout.max(Duration::from_millis(1));
        self
    }

    /// How long to wait for a connection; five seconds by default, and never longer than the pool itself says.
    ///
    /// So long callers wait for a server that is away, for sqlx tries to connect until then; with another policy than
    /// [`OnFailure::Closed`] a fraction of a second may suit better.
    pub fn acquire_timeout(mut self, timeout: Duration) -> Self {
        self.settings.acquire_timeout = timeout;
        self
    }

    /// Lets [`Gate::wait`] sleep up to so much longer than needed, at random, so that a crowd that waits for one instant
    /// does not come back as one. None by default.
    pub fn jitter(mut self, jitter: Duration) -> Self {
        self.settings.jitter = jitter;
        self
    }

    /// Prepares every statement anew, without a name: for poolers in transaction mode that do not follow named ones (PgBouncer
    /// before 1.21, or with `max_prepared_statements = 0`).
    ///
    /// A batch then pays four round trips for each of its two statements: preparing and executing are one each, with a transaction
    /// around them, for without it a pooler may send them to two servers.
    ///
    /// Say it to every limiter and gate of a pool: a connection goes on using a statement that it has prepared under a name.
    pub fn unnamed_statements(mut self) -> Self {
        self.settings.named_statements = false;
        self
    }

    /// Says only what Citus sends to one node: for tables that are distributed by `key` (`tollgate distribute`).
    ///
    /// A batch then reads each of its keys, and writes each row, by a statement of its own, one after another: calls of one key still
    /// share them, but those of different keys do not. So more lanes are worth having, such as one for each connection
    /// of the pool. Calls of several limits are decided in a transaction that locks, which Citus commits in two phases where
    /// they lie on several nodes. See [`Limiter::distributed`](crate::Limiter::distributed) for the clocks.
    pub fn distributed(mut self) -> Self {
        self.settings.distributed = true;
        self
    }

    /// Speaks over the database's clock: for tests and replays. It is asked for each statement.
    pub fn clock(mut self, clock: impl Fn() -> DateTime<Utc> + Send + Sync + 'static) -> Self {
        self.settings.clock = Clock::Injected(Arc::new(clock));
        self
    }

    /// Builds the gate. It connects when it is first asked.
    pub fn build(self) -> Gate {
        let connections = usize::try_from(self.pool.options().get_max_connections()).unwrap_or(usize::MAX).max(1);
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        let most = self.lanes.unwrap_or((cores + 1).min(connections / 2).min(DEFAULT_LANES));
        let most = most.clamp(1, connections.min(MAX_LANES));
        let width = match self.lanes {
            Some(_) => Width::fixed(most),
            None => Width::growing(most, self.settings.max_batch),
        };
        let shared = Shared {
            width,
            pool: self.pool,
            settings: self.settings,
            refusals: self.staleness.map(|staleness| Refusals::new(staleness, self.remembered_keys)),
            fallback: Fallback::new(self.on_failure),
        };
        Gate::with(shared, most)
    }
}

const DEFAULT_LANES: usize = 4;
const MAX_LANES: usize = 64;
