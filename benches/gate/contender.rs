//! The contenders that the bench measures.

use std::time::Duration;

use sqlx::PgPool;
use tollgate::{Decision, Error, Gate, GateBuilder, Limiter, Request, SECOND, Storage};
use tollgate_embedded::Server;

use crate::redis::{Calls, Redis};
use crate::scene::{Requests, Scene, Workload};
use crate::support::cpu::Meter;
use crate::support::{Fault, far, pool_to};

/// A contender answers calls. A turn opens a session with it, makes calls on that from many tasks at once, and closes
/// it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Contender {
    /// `Gate`, as it is by default: callers of one process share transactions.
    Gate,
    /// Two of them, each with connections of its own, as in two processes; each call asks one.
    TwoGates,
    /// A `Gate` that remembers refusals.
    GateRemembering,
    /// A `Gate` that takes tokens ahead, for a second,
    GateAhead,
    /// and for a tenth of one.
    GateAheadShortly,
    /// Two gates that take ahead of the same keys.
    TwoGatesAhead,
    /// Baseline (a): a transaction for each call, with `Limiter` in it and nothing else.
    Transaction,
    /// Baseline (b): one `update` of the row by its primary key for each call, in autocommit. It decides nothing, and
    /// does the least that a writer without batches can do.
    Update,
    /// Baseline (c): one `INCRBY` of a Redis that keeps no log, whose answer the caller compares with the capacity. It
    /// never refills: it is the least that a fixed window in Redis can do.
    Counter,
    /// A token bucket as a script in a Redis that keeps no log.
    Redis,
    /// The same in a Redis that flushes its log to the disk before it answers.
    RedisSynced,
}

impl Contender {
    pub(crate) const ALL: [Self; 11] = [
        Self::Gate,
        Self::TwoGates,
        Self::GateRemembering,
        Self::GateAhead,
        Self::GateAheadShortly,
        Self::TwoGatesAhead,
        Self::Transaction,
        Self::Update,
        Self::Counter,
        Self::Redis,
        Self::RedisSynced,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Gate => "gate",
            Self::TwoGates => "two gates",
            Self::GateRemembering => "gate, remembering",
            Self::GateAhead => "gate, ahead",
            Self::GateAheadShortly => "gate, ahead 100 ms",
            Self::TwoGatesAhead => "two gates, ahead",
            Self::Transaction => "transaction (a)",
            Self::Update => "update (b)",
            Self::Counter => "redis, INCRBY (c)",
            Self::Redis => "redis",
            Self::RedisSynced => "redis, synced",
        }
    }

    pub(crate) const fn is_redis(self) -> bool {
        matches!(self, Self::Counter | Self::Redis | Self::RedisSynced)
    }

    /// Whether its server runs, and the scene says something about it.
    pub(crate) fn enters(self, scene: &Scene, servers: &Servers) -> bool {
        let is_near_enough = |redis: &Redis| redis.is_private() || scene.workload.round_trip().is_none();
        let runs = match self {
            Self::Counter | Self::Redis => servers.redis.as_ref().is_some_and(is_near_enough),
            Self::RedisSynced => scene.storage == Storage::Durable && servers.redis_synced.is_some(),
            _ => true,
        };
        runs && match scene.workload {
            // Nobody else lets callers of other rows wait.
            Workload::Held => self == Self::Gate,
            // A contender that decides nothing has no latency to compare.
            Workload::Open => self.is_redis() || matches!(self, Self::Gate | Self::Transaction),
            // From memory more calls are answered than can be made due.
            Workload::Quarter | Workload::Half | Workload::ThreeQuarters => {
                matches!(self, Self::Gate | Self::Transaction | Self::Redis | Self::RedisSynced)
            }
            Workload::Near | Workload::Far => {
                matches!(self, Self::Gate | Self::GateAhead | Self::Transaction | Self::Redis | Self::RedisSynced)
            }
            Workload::Shared => matches!(self, Self::Gate | Self::GateAhead | Self::Transaction),
            // A refusal writes nothing.
            Workload::Refused => {
                self.is_redis() || matches!(self, Self::Gate | Self::GateRemembering | Self::Transaction)
            }
            // Three rows are more than one.
            Workload::Three => !matches!(self, Self::GateRemembering | Self::Update) && !self.is_two(),
            Workload::One | Workload::Zipf => self != Self::GateRemembering && !self.is_two(),
            Workload::Uniform | Workload::Hot => self != Self::GateRemembering,
        }
    }

    const fn is_two(self) -> bool {
        matches!(self, Self::TwoGates | Self::TwoGatesAhead)
    }

    pub(crate) async fn open(self, scene: &Scene, servers: &Servers) -> Result<Session, Fault> {
        // The wire is needed until the pools have connected.
        let (server, _wire) = match scene.workload.round_trip() {
            Some(round_trip) => far(servers.postgres.url(), round_trip).map(|(server, wire)| (server, Some(wire)))?,
            None => (servers.postgres.url().parse()?, None),
        };
        let pool = || pool_to(server.clone(), CONNECTIONS);
        let gate = async |with: fn(GateBuilder) -> GateBuilder| {
            let pool = pool().await?;
            Ok::<_, Fault>((with(Gate::builder(pool.clone())).build(), pool))
        };
        let ahead = |gate: GateBuilder| gate.prefetch(SECOND);
        let calls = async |redis: &Option<Redis>| match redis {
            Some(redis) => Ok(Session::Redis(redis.open(scene, self == Self::Counter).await?)),
            None => Err(Fault::from("there is no such server")),
        };
        match self {
            Self::Gate => Ok(Session::Gates(vec![gate(|gate| gate).await?])),
            Self::TwoGates => Ok(Session::Gates(vec![gate(|gate| gate).await?, gate(|gate| gate).await?])),
            Self::GateRemembering => Ok(Session::Gates(vec![gate(|gate| gate.remember_refusals(SECOND)).await?])),
            Self::GateAhead => Ok(Session::Gates(vec![gate(ahead).await?])),
            Self::GateAheadShortly => Ok(Session::Gates(vec![gate(|gate| gate.prefetch(SECOND / 10)).await?])),
            Self::TwoGatesAhead => Ok(Session::Gates(vec![gate(ahead).await?, gate(ahead).await?])),
            Self::Transaction => Ok(Session::Transaction(pool().await?)),
            Self::Update => Ok(Session::Update(pool().await?)),
            Self::Counter | Self::Redis => calls(&servers.redis).await,
            Self::RedisSynced => calls(&servers.redis_synced).await,
        }
    }

    /// How long callers call before they are timed, beside the time that connections take: slices grow from one to the
    /// next.
    pub(crate) fn warm_up(self) -> Duration {
        match self {
            Self::GateAhead | Self::TwoGatesAhead => 2 * SECOND,
            Self::GateAheadShortly => SECOND / 5,
            _ => Duration::ZERO,
        }
    }

    /// Tells the processor time of this process and of the contender's server.
    pub(crate) fn meter(self, servers: &Servers) -> Meter {
        let redis = |redis: &Option<Redis>| redis.as_ref().and_then(Redis::process_id);
        Meter::of(match self {
            Self::Counter | Self::Redis => redis(&servers.redis),
            Self::RedisSynced => redis(&servers.redis_synced),
            _ => Some(servers.postmaster),
        })
    }
}

/// The servers of a run.
pub(crate) struct Servers {
    pub(crate) postgres: Server,
    /// The process of that server whose children are its sessions.
    pub(crate) postmaster: i32,
    pub(crate) redis: Option<Redis>,
    pub(crate) redis_synced: Option<Redis>,
}

/// A contender during a turn.
pub(crate) enum Session {
    Gates(Vec<(Gate, PgPool)>),
    Transaction(PgPool),
    Update(PgPool),
    Redis(Calls),
}

impl Session {
    /// Asks a gate.
    pub(crate) async fn ask(&self, request: Request) -> Result<Decision, Error> {
        let Self::Gates(gates) = self else { unreachable!("only gates enter the scene") };
        gates[0].0.consume(request).await
    }

    /// Answers one call: whether it is granted.
    pub(crate) async fn decide(&self, scene: &Scene, user: u32) -> Result<bool, Fault> {
        match self {
            Self::Gates(gates) => {
                let (gate, _) = &gates[fastrand::usize(..gates.len())];
                let decision = match scene.requests(user) {
                    Requests::One(request) => gate.consume(request).await?,
                    Requests::All(requests) => gate.consume(requests).await?,
                };
                Ok(decision.is_granted())
            }
            Self::Transaction(pool) => {
                let mut tx = pool.begin().await?;
                let decision = match scene.requests(user) {
                    Requests::One(request) => Limiter::new().consume(&mut tx, request).await?,
                    Requests::All(requests) => Limiter::new().consume(&mut tx, requests).await?,
                };
                tx.commit().await?;
                Ok(decision.is_granted())
            }
            Self::Update(pool) => {
                let (name, key) = scene.row(user);
                let update = if scene.storage == Storage::Ephemeral { UPDATE_BUCKET } else { UPDATE_RATE_LIMIT };
                Ok(sqlx::query(update).bind(name).bind(key).execute(pool).await?.rows_affected() == 1)
            }
            Self::Redis(calls) => calls.decide(scene, user).await,
        }
    }

    /// The pool over which it asks.
    pub(crate) fn pool(&self) -> &PgPool {
        match self {
            Self::Gates(gates) => &gates[0].1,
            Self::Transaction(pool) | Self::Update(pool) => pool,
            Self::Redis(_) => unreachable!("Redis does not enter the scene"),
        }
    }

    /// Ends the sessions with PostgreSQL, so that the next turn has the machine for itself.
    pub(crate) async fn close(&self) {
        match self {
            Self::Gates(gates) => {
                for (gate, pool) in gates {
                    gate.close().await;
                    pool.close().await;
                }
            }
            Self::Transaction(pool) | Self::Update(pool) => pool.close().await,
            Self::Redis(_) => {}
        }
    }
}

/// Connections in the pool that each contender has for itself.
const CONNECTIONS: u32 = 16;

const UPDATE_BUCKET: &str =
    "update tollgate.ephemeral set value = value - 1000000 where part = 0 and name = $1 and key = $2 and shard = 0";
const UPDATE_RATE_LIMIT: &str =
    "update tollgate.durable set value = value - 1000000 where part = 0 and name = $1 and key = $2 and shard = 0";
