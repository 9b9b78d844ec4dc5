//! The gate: the same answers as the limiter's, in transactions of its own, for many callers at once.

mod agreement;
mod alternatives;
mod behind;
mod blocked;
mod cancellation;
mod close;
mod contention;
mod cost;
mod crash;
mod failover;
mod failure;
mod hygiene;
pub(crate) mod kinds;
mod memory;
pub(crate) mod observed;
mod pooler;
mod prefetch;
mod promise;
mod raised;
mod refusal_words;
mod refused;
mod regressions;
mod runtime;
mod silence;
pub(crate) mod stage;
mod wait;
