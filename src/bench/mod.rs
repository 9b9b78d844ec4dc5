//! How fast the gate is beside what it replaces, on a real PostgreSQL: the load program behind `tollgate bench`.
//!
//! ```no_run
//! use tollgate::bench::{Bench, Settings, server};
//!
//! # async fn measure() -> Result<(), tollgate::bench::BenchError> {
//! let server = server().await?;
//! let report = Bench::new(server.url(), Settings::quick()).run(|contender, scene| eprintln!("{contender}: {scene}")).await?;
//! println!("{report}");
//! # Ok(()) }
//! ```
//!
//! # What is measured
//!
//! [`Contender`]s take turns in [`Scene`]s. In a turn a number of callers, each a task that makes its next call when its
//! last is answered, call for a while; a call counts if its answer comes in the timed part. The gate is measured beside
//! three baselines, each over a pool of its own with 16 connections:
//!
//! - (a) [`PLAIN`], a transaction for each call, with [`Limiter`](crate::Limiter) in it;
//! - (b) [`UPDATE`], one bare `update` of the row for each call, which decides nothing;
//! - (c) [`ROUND_TRIP`], `select 1` for each call.
//!
//! The ratios between contenders of one run are the result. They take turns in each round, so all have the same share of
//! what else the machine does, and the median of the rounds counts. Absolute figures are the machine's.
//!
//! An error ends the run, and so does a grant of what is exhausted or a refusal of what is there.
//!
//! # What is not measured
//!
//! A network: client and server share one machine and its processors. Open load: a closed loop of callers slows down with
//! the server, so its percentiles do not show what a queue does at a given rate of arrivals. Other work in the database.
//! Hours: no turn lasts long enough to meet checkpoints and autovacuum regularly.
#![cfg(unix)]

mod contender;
mod counters;
mod error;
mod figures;
mod machine;
mod processors;
mod report;
mod rows;
mod run;
pub mod scaling;
mod scene;
mod server;
mod session;
mod settings;
mod table;
mod target;
mod turn;
mod users;
mod workload;

pub use contender::{Contender, Fault, GATE, GATE_REMEMBERING, PLAIN, ROUND_TRIP, Session, UPDATE};
pub use error::BenchError;
pub use figures::Figures;
pub use machine::Machine;
pub use report::{Cell, Report};
pub use run::Bench;
pub use scene::{Scene, TENANTS, USERS};
pub use server::server;
pub use settings::Settings;
pub use target::{Measure, Target};
pub use workload::{UnknownWorkload, Workload};
