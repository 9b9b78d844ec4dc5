use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::PgPool;
use tokio::sync::watch;

use super::Gate;
use super::memory::{Ages, Memories, Prefetch, Refusals};
use super::merge::Width;
use super::outage::{Fallback, OnFailure};
use super::server::Server;
use super::shared::{Settings, Shared};
use super::wait::Waiters;
use crate::HOUR;
use crate::limit::Limit;
use crate::overrides::Overrides;
use crate::parts::Parts;
use crate::prepare::MAX_KEYS;
use crate::store::Backend;
use crate::values::clock::Clock;

/// The settings of a gate; made by [`Gate::builder`]. Every setting has a default that suits most services.
#[derive(Debug)]
#[must_use = "nothing is built until `build` is called"]
pub struct GateBuilder {
    pool: PgPool,
    lanes: Option<usize>,
    by_node: bool,
    settings: Settings,
    staleness: Option<Duration>,
    remembered_keys: usize,
    ages: Ages,
    on_failure: OnFailure,
    overrides: Option<Overrides>,
}

impl GateBuilder {
    pub(super) fn new(pool: PgPool) -> Self {
        let settings = Settings {
            max_batch: 256,
            max_keys: MAX_KEYS,
            queue: 10_000,
            lock_timeout: Duration::from_secs(1),
            statement_timeout: Duration::from_secs(5),
            acquire_timeout: Duration::from_secs(5),
            jitter: Duration::ZERO,
            backend: Backend::PLAIN,
            clock: Clock::default(),
        };
        Self {
            pool,
            lanes: None,
            by_node: false,
            settings,
            staleness: None,
            remembered_keys: 10_000,
            ages: Ages::default(),
            on_failure: OnFailure::Closed,
            overrides: None,
        }
    }

    /// Sets the number of lanes that work side by side, each on one connection while it has work; 1 to 64, and never
    /// more than the pool has connections.
    ///
    /// More lanes make smaller batches, and a gate is fast because its callers share statements. By default one lane
    /// serves all callers until its batches are large. Then more lanes open: up to one more than this machine has
    /// cores, but at most four, and at most half of the pool. With [`parts`][Self::parts] there is one more lane, for
    /// calls over several parts.
    pub fn lanes(mut self, lanes: usize) -> Self {
        self.lanes = Some(lanes);
        self
    }

    /// Sets how many calls share a batch at most; 256 by default, at least 1.
    pub fn max_batch(mut self, calls: usize) -> Self {
        self.settings.max_batch = calls.max(1);
        self
    }

    /// Bounds the keys of one call; 2 000 by default, at least 1. A call of more fails with
    /// [`CallError::TooManyKeys`](crate::CallError::TooManyKeys) before any SQL: it would keep its rows from others for
    /// seconds. Calls that share a batch count each by itself.
    pub fn max_keys(mut self, keys: usize) -> Self {
        self.settings.max_keys = keys.max(1);
        self
    }

    /// Bounds the keys of all calls that wait in one lane, and the keys of all calls that wait for rows which others
    /// have locked; 10 000 by default. A call that has others before it, and would exceed the bound, gets
    /// [`Error::Overloaded`](crate::Error::Overloaded) at once. Without the bound, a few calls of thousands of keys
    /// would delay all others for seconds. A call that waits for longer than [`acquire_timeout`](Self::acquire_timeout)
    /// gets that error, too, within twice that time.
    pub fn queue(mut self, keys: usize) -> Self {
        self.settings.queue = keys;
        self
    }

    /// Remembers refusals in this process. While a remembered row must refuse a call, `consume`, `check`, `wait`,
    /// `acquire` and their variants refuse it without asking the database, with
    /// [`Source::Memory`](crate::Source::Memory). Off by default.
    ///
    /// A refusal lapses at the instant at which the row would grant the cost. A smaller cost is refused from memory
    /// only if the remembered row must refuse it, too; else the gate asks the database. When this gate carries out a
    /// credit, a reset, a settlement, a cancellation or a lapse, it forgets the rows concerned. It sees those of other
    /// processes after `staleness` at the latest, so choose a short span, such as a second. The refusal of a call with
    /// several limits names only the remembered limits.
    pub fn remember_refusals(mut self, staleness: Duration) -> Self {
        self.staleness = Some(staleness);
        self
    }

    /// Sets how many keys are remembered at most; 10 000 by default. Calls of other keys ask the database.
    pub fn remembered_keys(mut self, keys: usize) -> Self {
        self.remembered_keys = keys;
        self
    }

    /// Charges tokens in advance for keys with many calls. This process's memory then grants their calls in
    /// microseconds, with [`Source::Prefetched`](crate::Source::Prefetched), within `max_age` of the instant of the
    /// charge. Off (zero) by default, else from 10 ms to an hour: a value beyond these bounds is set to the bound.
    ///
    /// It pays off for a key with three calls or more within `max_age`: memory grants two thirds of three calls, and
    /// nineteen of twenty where there are ten. It grants hardly any call of a key that is at its limit, because no
    /// tokens are there to take. No call waits for tokens that are charged in advance. The one that spends the last of
    /// them makes the gate charge the next ones. Calls that come before these are there ask the database. The gate
    /// takes at most a sixteenth of the tokens that are there, and seven tenths of those that it expects to spend. It
    /// takes no more than the limit's rate brings back in ten seconds, or in `max_age` if that is longer. So it takes
    /// nothing from a slow limit: if a limit has 100 000 tokens and a rate of one a minute, a single slice could take
    /// days to come back. The gate gives the rest back in time, less the tokens that have come back to the key
    /// meanwhile. It charges a key fewer than 1.5 times per `max_age`, and more often if slices are used up sooner.
    ///
    /// # What is promised
    ///
    /// The bound of each limit holds for spent tokens, dated at [`Grant::decided_at`](crate::Grant::decided_at). If you
    /// date them by the instants of the answers, add `max_age` to each span. A crash or a lost answer costs each key
    /// one slice at most, which comes back within ten seconds or `max_age`. While tokens lie in memory, calls of other
    /// processes may be refused for lack of them. The wait in such a refusal may be too long, by these tokens divided
    /// by the rate. A [`reset`](Gate::reset) or a credit by this gate counts at once; one that is made elsewhere counts
    /// within `max_age`. The guide *guarantees* lists everything else that can add to this, and how much.
    ///
    /// # What is served
    ///
    /// Memory serves [`consume`](Gate::consume), [`wait`](Gate::wait) and the verbs that are built on them. It serves
    /// token buckets, and stepped buckets whose capacity is above their rate, if they have one row. All other calls ask
    /// the database: calls with other kinds of limits, and calls for more tokens than lie in memory. So does a call
    /// with an id, a lapse, a part, a named period, or tokens that stay behind. Such a call first gives back
    /// the tokens in memory for its keys, in the same batch. A key that mostly gets such calls gains nothing.
    ///
    /// Close such a gate before the process ends ([`Gate::close`]). If it is dropped instead, the tokens in its memory
    /// stay charged.
    pub fn prefetch(mut self, max_age: Duration) -> Self {
        self.ages.of_all = bounded(max_age);
        self
    }

    /// Sets [`prefetch`](Self::prefetch) for one limit, by its name, in place of the setting for all. Zero takes none
    /// of its tokens ahead.
    pub fn prefetch_of(mut self, limit: &Limit, max_age: Duration) -> Self {
        self.ages.by_limit.insert(limit.name.clone(), bounded(max_age));
        self
    }

    /// Goes by overrides, as [`Limiter::overrides`](crate::Limiter::overrides) does. If an override denies a call, a
    /// gate denies it even while the database is away, whatever the failure policy.
    pub fn overrides(mut self, overrides: &Overrides) -> Self {
        self.overrides = Some(overrides.clone());
        self
    }

    /// Sets the answer during an outage of the database; by default the error.
    pub fn on_failure(mut self, policy: OnFailure) -> Self {
        self.on_failure = policy;
        self
    }

    /// Sets how long to wait for a row that another transaction has locked; a second by default, in whole milliseconds,
    /// rounded up. After that, the callers that wait for it get [`Error::Locked`](crate::Error::Locked).
    ///
    /// Calls of other rows go on meanwhile. The waiting calls take one more connection, and none of them locks a row.
    /// They wait in the server's queue for a tenth of a second at most, twice a second, and only try in between. If the
    /// row is not free by then, the server's log has an error, "canceling statement due to lock timeout". A row that
    /// other gates write leaves none.
    pub fn lock_timeout(mut self, timeout: Duration) -> Self {
        self.settings.lock_timeout = timeout;
        self
    }

    /// Sets how long a statement may take; five seconds by default, at least a millisecond. The gate and the server
    /// both watch it.
    ///
    /// If the server is silent for so long, the gate asks it over a second connection. If the server says there that it
    /// is not at work on the statement, the first connection is cut off, for example by a router that forgot it. Then
    /// the gate abandons that connection, and closes the idle ones in the pool. If the server is at work, the gate
    /// waits for it for up to a minute, and the callers get the error meanwhile. If the server does not answer there
    /// either, the outage is known ([`OnFailure`]).
    pub fn statement_timeout(mut self, timeout: Duration) -> Self {
        self.settings.statement_timeout = timeout.max(Duration::from_millis(1));
        self
    }

    /// Sets how long to wait for a connection; five seconds by default, and never longer than the pool's own timeout.
    ///
    /// If the server is away, the first callers wait so long, because sqlx tries to connect until then. If the server
    /// does not even refuse connections, they wait up to half as long again, because the gate tries a connection beside
    /// the pool. After that the outage is known, and no caller waits ([`OnFailure`]). If the pool is only in full use,
    /// the error is [`Error::PoolExhausted`](crate::Error::PoolExhausted). With another policy than
    /// [`OnFailure::Closed`] a fraction of a second may be the better timeout.
    ///
    /// The pool asks an idle connection whether it is alive before it hands it out. If there is no answer within a
    /// second, or within a quarter of this time, the gate tries a connection beside the pool. If that works, the gate
    /// closes the idle connections, and the pool opens another.
    pub fn acquire_timeout(mut self, timeout: Duration) -> Self {
        self.settings.acquire_timeout = timeout;
        self
    }

    /// Lets [`Gate::wait`] sleep up to so much longer than needed, at random, so that callers that wait for the same
    /// instant do not all come back together. None by default.
    pub fn jitter(mut self, jitter: Duration) -> Self {
        self.settings.jitter = jitter;
        self
    }

    /// Prepares each statement at each use, without a name: for poolers in transaction mode that do not follow named
    /// statements (PgBouncer before 1.21, or with `max_prepared_statements = 0`).
    ///
    /// Each of a batch's two statements then costs four round trips: one for preparing, one for executing, and two for
    /// the transaction around them. Without the transaction a pooler could send the two to different servers.
    ///
    /// Set this on every limiter and gate of a pool: a connection goes on using a statement that it has prepared under
    /// a name.
    pub fn unnamed_statements(mut self) -> Self {
        self.settings.backend.unnamed = true;
        self
    }

    /// Sets the number of parts over which Citus distributes the tables. It is the number given to
    /// `tollgate distribute`, 8 by default. 0, the default here, is plain PostgreSQL.
    ///
    /// A batch is then about the keys of one part, and runs its two statements on one node. A call about keys in
    /// several parts is decided in a transaction that locks, which Citus commits in two phases. Such calls have a lane
    /// of their own. See [`Limiter::parts`](crate::Limiter::parts).
    ///
    /// # Panics
    ///
    /// Unless the number is 0 or a power of two, at most 2048.
    #[track_caller]
    pub fn parts(mut self, parts: u16) -> Self {
        self.settings.backend.parts = Parts::new(parts);
        self
    }

    /// Sends the calls of each [part](Self::parts) to the node of Citus on which it lies, over connections of the
    /// gate's own. Without parts it does nothing.
    ///
    /// Then the coordinator gets only calls over several parts. At the node the gate asks the tables of shards, which
    /// Citus does not plan, if the role may hold shards there (`tollgate.hold_shard`). Otherwise an event at `warn`
    /// says so, and Citus plans each batch once, instead of twice with a network between two servers. The gate reads
    /// from Citus's catalogue where the parts lie, and reads it again after ten seconds. It connects to each node with
    /// the pool's options, but for host, port and a larger cache of statements, and with `enable_seqscan = off` unless
    /// statements have no names. So the nodes must be reachable from here under the names in `pg_dist_node`, and let
    /// the role in. Each node gets a pool of its own of the same size, which closes with yours, and
    /// [`lanes`](Self::lanes) of its own. A connection of it prepares up to three statements for each part and storage,
    /// of about 100 kB each in the server.
    ///
    /// The pool's server serves the parts of a node that the gate cannot connect to, and an event at `warn` names the
    /// node. It serves all parts until the catalogue is read. If a part moves, its old node passes the calls on
    /// meanwhile. If a node falls silent later, the calls of its parts get the error of an outage ([`OnFailure`]), and
    /// those of other parts go on.
    pub fn by_node(mut self) -> Self {
        self.by_node = true;
        self
    }

    /// Takes this clock instead of the database's: for tests and replays. The gate asks it for each statement.
    pub fn clock(mut self, clock: impl Fn() -> DateTime<Utc> + Send + Sync + 'static) -> Self {
        self.settings.clock = Clock::given(clock);
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
        let by_node = self.by_node && parts.is_distributed();
        let memories = Memories {
            refusals: self.staleness.map(|age| Refusals::new(age, self.remembered_keys, self.settings.clock.clone())),
            prefetch: Arc::new(Prefetch::new(
                self.ages,
                parts,
                self.overrides.clone(),
                self.settings.clock.clone(),
                closed.clone(),
            )),
        };
        let shared = Shared {
            entry: Server::new(self.pool, self.settings.statement_timeout),
            settings: self.settings,
            memories,
            fallback: Fallback::of(self.on_failure),
            overrides: self.overrides,
            waiters: Waiters::default(),
            has_parts: AtomicBool::new(false),
            closed,
        };
        Gate::with(shared, width, by_node)
    }
}

/// The span within its bounds: long enough that tokens can be given back in it, and that a slice is worth its charge.
fn bounded(max_age: Duration) -> Duration {
    if max_age.is_zero() { max_age } else { max_age.clamp(Duration::from_millis(10), HOUR) }
}

const DEFAULT_LANES: usize = 4;
const MAX_LANES: usize = 64;
