//! The command on a real PostgreSQL, each test in a database of its own, all in parallel.
//!
//! The server is started from the programs found on the machine, unless `DATABASE_URL` names one.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

mod command;
#[allow(dead_code, reason = "the library's tests need the rest of it")]
#[path = "../../../tests/postgres/pgbouncer.rs"]
mod pgbouncer;
mod simulate;
mod sweep;
mod terminal;
mod top;
#[allow(dead_code, reason = "the library's tests need the rest of it")]
#[path = "../../../tests/postgres/world/mod.rs"]
mod world;

/// Where the sources are.
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
