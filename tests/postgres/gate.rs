//! The gate: the same answers as the limiter's, in transactions of its own, for many callers at once.

mod cancellation;
mod contention;
mod crash;
mod hygiene;
mod observed;
mod promise;
mod runtime;
mod stage;
