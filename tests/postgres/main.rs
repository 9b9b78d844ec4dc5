//! Facts about the limiter on a real PostgreSQL, each in a database of its own, all in parallel.
//!
//! The server is started from the programs found on the machine, unless `DATABASE_URL` names one.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

mod bad_input;
mod calls;
mod cancellation;
mod conformance;
mod consume;
mod contention;
mod cost;
mod crash;
mod distributed;
mod each;
mod first_of;
mod functions;
mod gate;
mod handle;
mod judge;
mod leases;
mod logs;
#[allow(dead_code, reason = "the tests of the plan need the rest")]
#[path = "../pure/world.rs"]
mod memory;
mod meter;
mod metrics;
mod migrate;
mod odds;
mod orders;
mod overrides;
mod owners;
mod parts;
mod pgbouncer;
mod plans;
mod pooler;
mod proxy;
mod receipts;
mod regressions;
mod replay;
mod rewritten;
mod row_security;
mod sessions;
mod shards;
mod sliding;
mod standby;
mod storm;
mod strangers;
mod sweeper;
mod tables;
mod teller;
mod thresholds;
mod traced;
mod transactions;
mod upgrade;
mod world;

/// Where the sources are.
const ROOT: &str = env!("CARGO_MANIFEST_DIR");
