//! Limits with several rows for each key: one limit, however it is asked.

mod bad_input;
mod cancellation;
mod conformance;
mod contention;
mod cost;
mod stage;
mod takeover;
