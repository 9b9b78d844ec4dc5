use std::fmt;

use serde::Serialize;

use super::Workload;
use crate::SECOND;
use crate::limit::{Limit, Storage};
use crate::request::Request;

/// What is measured in one go: a workload, the table that its limits live in, and how many callers there are.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
pub struct Scene {
    /// What the callers ask.
    pub workload: Workload,
    /// Where the balances are kept.
    pub storage: Storage,
    /// How many calls there are at any time: each caller makes its next as soon as it has the answer to its last.
    pub callers: usize,
}

impl Scene {
    /// What a call of a user asks.
    pub(super) fn ask(&self, user: u32) -> Ask {
        let per_user = || stored(PER_USER, self.storage).key(user);
        let per_tenant = || stored(PER_TENANT, self.storage).key(user % TENANTS);
        let total = || stored(TOTAL, self.storage).global();
        match self.workload {
            Workload::Uniform | Workload::Zipf => Ask::One(per_user()),
            Workload::Hot => Ask::One(total()),
            Workload::Refused => Ask::One(stored(EXHAUSTED, self.storage).global()),
            Workload::Three => Ask::All(vec![per_user(), per_tenant(), total()]),
        }
    }
}

impl fmt::Display for Scene {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { workload, storage, callers } = self;
        let plural = if *callers == 1 { "" } else { "s" };
        write!(f, "{workload}, {}, {callers} caller{plural}", storage_name(*storage))
    }
}

/// What one call asks.
#[derive(Debug)]
pub(super) enum Ask {
    /// One limit.
    One(Request),
    /// All of these limits, or none.
    All(Vec<Request>),
}

/// The limits of the load program: per user, per tenant, for everybody, and one that is exhausted.
pub(super) fn limits(storage: Storage) -> [Limit; 4] {
    [PER_USER, PER_TENANT, TOTAL, EXHAUSTED].map(|limit| stored(limit, storage))
}

fn stored(limit: Limit, storage: Storage) -> Limit {
    match storage {
        Storage::Ephemeral => limit.ephemeral(),
        Storage::Durable => limit,
    }
}

/// What the tables and the command call it.
pub(super) const fn storage_name(storage: Storage) -> &'static str {
    match storage {
        Storage::Ephemeral => "ephemeral",
        Storage::Durable => "durable",
    }
}

/// How many users there are.
pub const USERS: u32 = 10_000;
/// How many tenants the users belong to.
pub const TENANTS: u32 = 100;

/// More than any machine spends, so that a call which is refused is a fault.
const PLENTY: u64 = 1_000_000_000;
const PER_USER: Limit = Limit::token_bucket("bench_per_user", PLENTY, SECOND);
const PER_TENANT: Limit = Limit::token_bucket("bench_per_tenant", PLENTY, SECOND);
const TOTAL: Limit = Limit::token_bucket("bench_total", PLENTY, SECOND);
const EXHAUSTED: Limit = Limit::token_bucket("bench_exhausted", 1, Limit::MAX_PERIOD);
