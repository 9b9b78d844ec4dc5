//! Facts about what HTTP clients are told, and about whom a request comes from: no database, no socket.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod fields;
mod formats;
mod keys;
mod parser;
mod problems;
mod proxies;
mod world;
