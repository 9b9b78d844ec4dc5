//! Facts about simulations: no database, no clock. Builds with the feature `simulate` alone.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

mod figures;
mod outcome;
mod presets;
mod properties;
mod retries;
mod trace;
mod traffic;
mod words;
