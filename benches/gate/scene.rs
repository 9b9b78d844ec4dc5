//! The scenes: which limits callers ask, and which user calls next.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tollgate::{Key, Limit, Request, SECOND, Storage};

/// A workload, the table that holds its limits, and the number of callers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Scene {
    pub(crate) workload: Workload,
    pub(crate) storage: Storage,
    /// Each makes its next call as soon as its last one is answered; in an open load, as soon as one is due, too.
    pub(crate) callers: usize,
}

/// What the callers ask. Every row exists before the first call.
#[derive(Clone, Copy, Debug, Eq, PartialEq, clap::ValueEnum)]
pub(crate) enum Workload {
    /// One limit of 10 000 users, and one caller alone.
    One,
    /// One limit of 10 000 users, each of whom calls as often as any other.
    Uniform,
    /// As uniform, while a transaction holds the row of another user, for whom one task asks in a loop.
    Held,
    /// As uniform, but the n-th user calls in proportion to n^-1.1.
    Zipf,
    /// One limit for everybody, hence one row.
    Hot,
    /// As hot, but open: a thousand calls per second are due, whether or not those before are answered.
    Open,
    /// As uniform, but open: a quarter of the calls are due that this contender answered at most in uniform,
    Quarter,
    /// a half of them,
    Half,
    /// and three quarters.
    ThreeQuarters,
    /// As uniform, over a wire whose round trip takes 0.3 ms, as between two machines of a data centre,
    Near,
    /// and 1 ms, as between two data centres of a region.
    Far,
    /// As uniform, while 16 tasks do other work over the same pool.
    Shared,
    /// Three limits at once: the user's, the tenant's (of 100) and one for everybody.
    Three,
    /// One limit for everybody, exhausted for a thousand years. The only workload whose calls are refused.
    Refused,
}

impl Scene {
    /// The requests of a call of this user.
    pub(crate) fn requests(&self, user: u32) -> Requests {
        let per_user = || stored(PER_USER, self.storage).key(user);
        let per_tenant = || stored(PER_TENANT, self.storage).key(user % TENANTS);
        let total = || stored(TOTAL, self.storage).global();
        match self.workload {
            Workload::Hot | Workload::Open => Requests::One(total()),
            Workload::Three => Requests::All(vec![per_user(), per_tenant(), total()]),
            Workload::Refused => Requests::One(stored(EXHAUSTED, self.storage).global()),
            _ => Requests::One(per_user()),
        }
    }

    /// The name and key of the row that a call of one limit asks.
    pub(crate) fn row(&self, user: u32) -> (&'static str, String) {
        match self.workload {
            Workload::Hot | Workload::Open => ("total", Key::GLOBAL.as_str().to_owned()),
            _ => ("per_user", user.to_string()),
        }
    }

    /// A request for the row that a transaction may hold meanwhile: both that transaction and the task in a loop make
    /// it.
    pub(crate) fn held(&self) -> Request {
        stored(PER_USER, self.storage).key(HELD)
    }

    pub(crate) fn is_granted(&self) -> bool {
        self.workload != Workload::Refused
    }
}

impl Workload {
    /// How many calls are due, of those that a contender answered at most while callers waited for their answers.
    pub(crate) const fn share(self) -> Option<f64> {
        match self {
            Self::Quarter => Some(0.25),
            Self::Half => Some(0.5),
            Self::ThreeQuarters => Some(0.75),
            _ => None,
        }
    }

    pub(crate) const fn round_trip(self) -> Option<Duration> {
        match self {
            Self::Near => Some(Duration::from_micros(300)),
            Self::Far => Some(Duration::from_millis(1)),
            _ => None,
        }
    }
}

impl fmt::Display for Scene {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { workload, storage, callers } = self;
        let plural = if *callers == 1 { "" } else { "s" };
        write!(f, "{workload}, {storage}, {callers} caller{plural}")
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::One => "one",
            Self::Uniform => "uniform",
            Self::Held => "held",
            Self::Zipf => "zipf",
            Self::Hot => "hot",
            Self::Open => "open",
            Self::Quarter => "open, at 25 % of its best",
            Self::Half => "open, at 50 % of its best",
            Self::ThreeQuarters => "open, at 75 % of its best",
            Self::Near => "0.3 ms away",
            Self::Far => "1 ms away",
            Self::Shared => "a shared pool",
            Self::Three => "three",
            Self::Refused => "refused",
        })
    }
}

/// The requests of one call.
pub(crate) enum Requests {
    One(Request),
    All(Vec<Request>),
}

/// Every request of every scene: their rows are made before the first turn. The exhausted limit has one token, which
/// this takes.
pub(crate) fn all_requests() -> impl Iterator<Item = Request> {
    [Storage::Ephemeral, Storage::Durable].into_iter().flat_map(|storage| {
        let users = (0..=HELD).map(move |user| stored(PER_USER, storage).key(user));
        let tenants = (0..TENANTS).map(move |tenant| stored(PER_TENANT, storage).key(tenant));
        users.chain(tenants).chain([stored(TOTAL, storage).global(), stored(EXHAUSTED, storage).global()])
    })
}

fn stored(limit: Limit, storage: Storage) -> Limit {
    if storage == Storage::Ephemeral { limit.ephemeral() } else { limit }
}

/// Draws the user of the next call.
#[derive(Clone, Debug)]
pub(crate) enum Users {
    Uniform,
    /// Holds, for each n, the share of calls that the first n users make together.
    Zipf(Arc<[f64]>),
}

impl Users {
    pub(crate) fn of(workload: Workload) -> Self {
        if workload != Workload::Zipf {
            return Self::Uniform;
        }
        let weights = (1..=USERS).map(|rank| f64::from(rank).powf(-1.1));
        let total: f64 = weights.clone().sum();
        let shares = weights.scan(0.0, |sum, weight| {
            *sum += weight / total;
            Some(*sum)
        });
        Self::Zipf(shares.collect())
    }

    pub(crate) fn draw(&self, random: &mut fastrand::Rng) -> u32 {
        match self {
            Self::Uniform => random.u32(..USERS),
            Self::Zipf(shares) => {
                let share = random.f64();
                #[expect(clippy::cast_possible_truncation, reason = "there are no more than USERS")]
                let user = shares.partition_point(|first| *first <= share) as u32;
                // The last share may be a little less than 1.
                user.min(USERS - 1)
            }
        }
    }
}

const USERS: u32 = 10_000;
/// The user whose row somebody holds.
const HELD: u32 = USERS;
const TENANTS: u32 = 100;

/// More than any machine spends, so that a refusal is a fault.
const PLENTY: u64 = 1_000_000_000;
const PER_USER: Limit = Limit::token_bucket("per_user", PLENTY, SECOND);
const PER_TENANT: Limit = Limit::token_bucket("per_tenant", PLENTY, SECOND);
const TOTAL: Limit = Limit::token_bucket("total", PLENTY, SECOND);
const EXHAUSTED: Limit = Limit::token_bucket("exhausted", 1, Limit::MAX_PERIOD);
