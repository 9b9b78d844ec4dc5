//! Limits with several rows for each key: one limit, however it is asked.

mod bad_input;
mod cancellation;
mod changed;
mod conformance;
mod contention;
mod cost;
mod last_moment;
mod stage;
mod storm;
