//! Facts about header fields, problem documents and keys: no database, no socket.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod fields;
mod formats;
mod keys;
mod parser;
mod problems;
mod proxies;
mod trouble;
mod world;
