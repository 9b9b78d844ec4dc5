use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::PgPool;
use tokio::sync::watch;

use super::Gate;
use super::clock::Clock;
use super::lanes::Width;
use super::memory::{Ages, Memories, Prefetch, Refusals};
use super::outage::{Fallback, OnFailure, Outage};
use super::shared::{Settings, Shared};
use super::tally::Tally;
use super::wait::Waiters;
use crate::HOUR;
use crate::limit::Limit;
use crate::overrides::Overrides;
use crate::parts::Parts;
use crate::store::Backend;

/// How a gate works; made by [`Gate::builder`]. Every setting has a default that suits most services.
#[derive(Debug)]
#[must_use = "nothing is built until `build` is called"]
pub struct GateBuilder {
    pool: PgPool,
    lanes: Option<usize>,
    settings: Settings,
    staleness: Option<Duration>,
    remembered_keys: usize,
    ages: Ages,
    on_failure: OnFailure,
    counted_keys: usize,
    overrides: Option<Overrides>,
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
            backend: Backend::PLAIN,
            clock: Clock::Database,
        };
        let (staleness, remembered_keys, counted_keys) = (None, 10_000, 0);
        let on_failure = OnFailure::Closed;
        let ages = Ages::default();
        Self {
            pool,
            lanes: None,
            settings,
            staleness,
            remembered_keys,
            ages,
            on_failure,
            counted_keys,
            overrides: None,
        }
    }

    /// How many lanes work side by side, each on one connection while it has work; 1 to 64, and never more than the
    /// pool has connections.
    ///
    /// More lanes make smaller batches, and a gate is fast because its callers share statements. By default one lane
    /// serves all until its batches are large. Then more lanes open: one more than this machine has cores, but at
    /// most four, and at most half of the pool. With [`parts`][Self::parts] there is one more, for calls over several.
    pub fn lanes(mut self, lanes: usize) -> Self {
        self.lanes = Some(lanes);
        self
    }

    /// How many calls share a batch at most; 256 by default, at least 1.
    pub fn max_batch(mut self, calls: usize) -> Self {
        self.settings.max_batch = calls.max(1);
        self
    }

    /// Bounds the keys of all calls that wait in one lane, and of all that wait for rows which others have locked;
    /// 10 000 by default. A call that has others before it, and would pass the bound, gets
    /// [`Error::Overloaded`](crate::Error::Overloaded) at once: a few calls of thousands of keys would delay all others
    /// for seconds. A call that is passed over for longer than [`acquire_timeout`](Self::acquire_timeout) gets that
    /// error, too, within twice that time.
    pub fn queue(mut self, keys: usize) -> Self {
        self.settings.queue = keys;
        self
    }

    /// Remembers refusals in this process. While a remembered row must refuse a call, `consume`, `check`, `wait`,
    /// `acquire` and their variants refuse it without asking the database, with
    /// [`Source::Memory`](crate::Source::Memory). Off unless asked for.
    ///
    /// A refusal lapses at the instant at which the row would grant the cost asked. A smaller cost is refused from the
    /// remembered row if the row must refuse it, too; else the gate asks the database. This gate's own credits, resets,
    /// settlements, cancellations and lapses forget the row. Those of others are seen after `staleness` at the latest;
    /// it should be short, such as a second. A refused call of several limits names only the remembered ones.
    pub fn remember_refusals(mut self, staleness: Duration) -> Self {
        self.staleness = Some(staleness);
        self
    }

    /// How many keys are remembered at most; 10 000 by default. Further ones ask the database.
    pub fn remembered_keys(mut self, keys: usize) -> Self {
        self.remembered_keys = keys;
        self
    }

    /// Charges tokens in advance for keys with many calls. This process's memory grants their calls in microseconds,
    /// with [`Source::Prefetched`](crate::Source::Prefetched), within `max_age` of the instant of the charge. Off
    /// (zero) by default, else from 10 ms to an hour: what is beyond counts as the bound.
    ///
    /// It pays for a key with three calls or more within `max_age`: memory grants six tenths of three calls, and nine
    /// tenths of ten. It grants hardly any call of a key that is at its limit: nothing is there to take. The gate takes
    /// at most a sixteenth of the tokens that are there, and seven tenths of those that it expects to spend. It takes
    /// no more than the limit's rate brings back in ten seconds, or in `max_age` if that is longer. So it takes nothing
    /// of a slow limit: of 100 000 tokens at one a minute a single slice could take days to come back. It gives the
    /// rest back in time, less the tokens that have come back to the key meanwhile. It writes fewer than 1.5 times per
    /// key and `max_age`, and more often where slices are used up sooner.
    ///
    /// # What is promised
    ///
    /// The bound of each limit holds for what was spent, dated at [`Grant::decided_at`](crate::Grant::decided_at). By
    /// the instants of the answers a span counts as longer by `max_age`. A crash or a lost answer costs each key one
    /// slice at most, which comes back within ten seconds or `max_age`. While it lies there, it may refuse other
    /// processes. The wait that they hear may be too long by the tokens that lie there divided by the rate. A
    /// [`reset`](Gate::reset) or a credit of this gate counts at once, one that is made elsewhere within `max_age`. The
    /// guide *guarantees* says what else can add, and how much.
    ///
    /// # What is served
    ///
    /// Memory serves [`consume`](Gate::consume), [`wait`](Gate::wait) and the verbs that are built on them. It serves
    /// token buckets, and stepped buckets whose capacity is above their rate, in one row. Everything else asks the
    /// database: calls with other kinds of limits, and calls for more than lies in memory. So does a call with an id, a
    /// lapse, a part, a named period, a shadow, or tokens that stay behind. Such a call first gives back what lies in
    /// memory for its keys, in the same batch. A key that mostly gets such calls gains nothing.
    ///
    /// Close such a gate before the process ends ([`Gate::close`]): one that is dropped leaves what it holds charged.
    pub fn prefetch(mut self, max_age: Duration) -> Self {
        self.ages.of_all = bounded(max_age);
        self
    }

    /// [`prefetch`](Self::prefetch) for one limit, by its name, whatever holds for all: zero takes nothing of it ahead.
    pub fn prefetch_of(mut self, limit: &Limit, max_age: Duration) -> Self {
        self.ages.by_limit.insert(limit.name.clone(), bounded(max_age));
        self
    }

    /// Counts refusals by key, for [`Gate::most_refused`], of so many keys at once. Off unless asked for.
    ///
    /// A few hundred find whoever has more than a thousandth of all refusals. A key that is not counted yet takes the
    /// place of the one refused least, which a scan over all of them finds. Keys stay in memory as they are.
    pub fn count_refusals(mut self, keys: usize) -> Self {
        self.counted_keys = keys;
        self
    }

    /// Goes by overrides, as [`Limiter::overrides`](crate::Limiter::overrides). A gate denies what an override denies
    /// while the database is away, too, whatever the failure policy.
    pub fn overrides(mut self, overrides: &Overrides) -> Self {
        self.overrides = Some(overrides.clone());
        self
    }

    /// The answer during an outage of the database; by default the error.
    pub fn on_failure(mut self, policy: OnFailure) -> Self {
        self.on_failure = policy;
        self
    }

    /// How long to wait for a row that somebody else's transaction has locked; a second by default, in whole
    /// milliseconds, rounded up. Then the callers that wait for it get [`Error::Locked`](crate::Error::Locked).
    ///
    /// Calls of other rows go on meanwhile. The waiting calls take one more connection, and none of them locks a row.
    pub fn lock_timeout(mut self, timeout: Duration) -> Self {
        self.settings.lock_timeout = timeout;
        self
    }

    /// How long a statement may take; five seconds by default, at least a millisecond. Both sides watch it.
    ///
    /// If the server is silent for so long, the gate asks it over a second connection. If the server is not at work on
    /// the statement, the first connection is cut off, as by a router that forgot it. Then the gate leaves that
    /// connection, and closes those that lie idle in the pool. If the server is at work, the gate waits for it for up
    /// to a minute, and the callers get the error meanwhile. If it does not answer there either, the outage is known
    /// ([`OnFailure`]).
    pub fn statement_timeout(mut self, timeout: Duration) -> Self {
        self.settings.statement_timeout = timeout.max(Duration::from_millis(1));
        self
    }

    /// How long to wait for a connection; five seconds by default, and never longer than the pool itself says.
    ///
    /// If the server is away, the first callers wait so long, because sqlx tries to connect until then. If the server
    /// does not even refuse, they wait up to half as long again: the gate tries a connection beside the pool. A pool in
    /// full use is another error, [`Error::PoolExhausted`](crate::Error::PoolExhausted). Then the outage is known, and
    /// nobody waits ([`OnFailure`]). With another policy than [`OnFailure::Closed`] a fraction of a second may suit
    /// better.
    ///
    /// The pool asks an idle connection whether it is alive before it hands it out. If there is no answer within a
    /// second, or a quarter of this time, and a connection beside the pool works, the gate closes the idle ones, and
    /// the pool opens another.
    pub fn acquire_timeout(mut self, timeout: Duration) -> Self {
        self.settings.acquire_timeout = timeout;
        self
    }

    /// Lets [`Gate::wait`] sleep up to so much longer than needed, at random. Then a crowd that waits for one instant
    /// does not come back as one. None by default.
    pub fn jitter(mut self, jitter: Duration) -> Self {
        self.settings.jitter = jitter;
        self
    }

    /// Prepares every statement anew, without a name: for poolers in transaction mode that do not follow named
    /// statements (PgBouncer before 1.21, or with `max_prepared_statements = 0`).
    ///
    /// Each of a batch's two statements then costs four round trips: preparing and executing are one each, with a
    /// transaction around them. Without the transaction a pooler may send them to two servers.
    ///
    /// Set this on every limiter and gate of a pool: a connection goes on using a statement that it has prepared under
    /// a name.
    pub fn unnamed_statements(mut self) -> Self {
        self.settings.backend.unnamed = true;
        self
    }

    /// Says over how many parts Citus distributes the tables: the number that `tollgate distribute` was given, 8 by
    /// default. 0, the default here, is plain PostgreSQL.
    ///
    /// A batch is then about the keys of one part, and takes its two statements on one node. A call about keys in
    /// several parts is decided in a transaction that locks, which Citus commits in two phases; such calls have one
    /// more lane to themselves. See [`Limiter::parts`](crate::Limiter::parts).
    ///
    /// # Panics
    ///
    /// Unless the number is 0 or a power of two, at most 2048.
    #[track_caller]
    pub fn parts(mut self, parts: u16) -> Self {
        self.settings.backend.parts = Parts::new(parts);
        self
    }

    /// Takes this clock instead of the database's: for tests and replays. The gate asks it for each statement.
    pub fn clock(mut self, clock: impl Fn() -> DateTime<Utc> + Send + Sync + 'static) -> Self {
        self.settings.clock = Clock::Injected(Arc::new(clock));
        self
    }

    /// Builds the gate. It connects when it is first asked.
    pub fn build(self) -> Gate {
        let connections = (self.pool.options().get_max_connections() as usize).max(1);
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        let most = self.lanes.unwrap_or((cores + 1).min(connections / 2).min(DEFAULT_LANES));
        let most = most.clamp(1, connections.min(MAX_LANES));
        let width = match self.lanes {
            Some(_) => Width::fixed(most),
            None => Width::growing(most, self.settings.max_batch),
        };
        let (parts, closed) = (self.settings.backend.parts, watch::Sender::new(false));
        let memories = Memories {
            refusals: self.staleness.map(|staleness| Refusals::new(staleness, self.remembered_keys)),
            prefetch: self.ages.shortest().map(|_| Arc::new(Prefetch::new(self.ages, parts, closed.clone()))),
        };
        let shared = Shared {
            outage: Arc::new(Outage::new(self.pool.clone(), self.settings.statement_timeout)),
            pool: self.pool,
            settings: self.settings,
            memories,
            fallback: Fallback::new(self.on_failure),
            overrides: self.overrides,
            tally: (self.counted_keys > 0).then(|| Tally::new(self.counted_keys)),
            waiters: Waiters::default(),
            has_parts: AtomicBool::new(false),
            closed,
        };
        Gate::with(shared, width)
    }
}

/// A span in which something can be given back, and after which it is worth a charge to ask anew.
fn bounded(max_age: Duration) -> Duration {
    if max_age.is_zero() { max_age } else { max_age.clamp(Duration::from_millis(10), HOUR) }
}

const DEFAULT_LANES: usize = 4;
const MAX_LANES: usize = 64;
