//! Limits with several rows for each key: they act as one limit to every kind of call.

mod bad_input;
mod changed;
mod conformance;
mod contention;
mod cost;
mod last_moment;
mod stage;
