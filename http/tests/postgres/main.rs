//! Facts about the layer on a real PostgreSQL, over real sockets where a client can tell the difference. Each test has
//! a database of its own, all in parallel.
//!
//! The server is started from the programs found on the machine, unless `DATABASE_URL` names one.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

mod bad_input;
mod charged;
mod clients;
mod failure;
mod handlers;
mod held;
#[allow(dead_code, reason = "the library's tests need the rest of it")]
#[path = "../../../tests/postgres/gate/kind.rs"]
mod kind;
mod kinds;
mod load;
mod outgoing;
#[allow(dead_code, reason = "the library's tests need the rest of it")]
#[path = "../../../tests/postgres/pgbouncer.rs"]
mod pgbouncer;
#[allow(dead_code, reason = "the library's tests need the rest of it")]
#[path = "../../../tests/postgres/proxy.rs"]
mod proxy;
mod responses;
mod rules;
mod served;
mod services;
#[allow(dead_code, reason = "the library's tests need the rest of it")]
#[path = "../../../tests/postgres/gate/stage.rs"]
mod stage;
mod told;
#[path = "../../../tests/postgres/traced.rs"]
mod traced;
#[allow(dead_code, reason = "the library's tests need the rest of it")]
#[path = "../../../tests/postgres/world/mod.rs"]
mod world;

/// Where the sources are.
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
