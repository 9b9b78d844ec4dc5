//! An exact rate limiter for services that already have PostgreSQL. It decides inside the caller's own transaction, so a
//! decision and the work that it pays for commit or roll back together, or through a gate, which merges the callers of a
//! process and decides in transactions of its own.
//!
//! ```
//! # #[cfg(feature = "postgres")]
//! use tollgate::Limiter;
//! use tollgate::{Limit, MINUTE};
//!
//! /// Ten messages a minute on average, twenty at once after a rest. A wrong limit does not compile.
//! const SEND_MESSAGE: Limit = Limit::token_bucket("send_message", 10, MINUTE).capacity(20);
//!
//! # #[cfg(feature = "postgres")]
//! async fn send(pool: &sqlx::PgPool, user: i64, body: &str) -> Result<(), Box<dyn std::error::Error>> {
//!     let mut tx = pool.begin().await?;
//!     sqlx::query("insert into messages (author, body) values ($1, $2)").bind(user).bind(body).execute(&mut *tx).await?;
//!     // A refusal is an answer; `granted()` makes it an error, and `?` rolls the message back.
//!     Limiter::new().consume(&mut tx, SEND_MESSAGE.key(user)).await?.granted()?;
//!     tx.commit().await?;
//!     Ok(())
//! }
//! ```
//!
//! # Guide
//!
//! **A [`Limit`]** says how much: a rate, a period, a capacity. Limits are constants, or come from a [`LimitSpec`] at run time,
//! or from a file (`Limits`).
//! Amounts are [`Tokens`], exact to a millionth.
//!
//! **A [`Request`]** says who and what: `LIMIT.key(user)`, `LIMIT.key((tenant, user)).cost(12)`, `LIMIT.global()`. Anything
//! that implements [`ToKey`] can be a key.
//!
//! **The `Limiter`** decides, given a connection that is in a transaction. Its answer is a [`Decision`]: granted, or
//! [`Denied`] with the first microsecond at which the same call would be granted. Its verbs:
//!
//! | verb | does | locks |
//! | --- | --- | --- |
//! | `consume`, `consume_all` | take tokens, if all of them are there | the rows, unless evidently refused |
//! | `reserve`, `reserve_all` | take tokens for now or later, and name the instant | the rows, unless evidently refused |
//! | `check`, `balance` | look | nothing |
//! | `credit`, `debit`, `reset` | change a balance, whatever it is | the row |
//! | `settle`, `cancel` | bring a [`Receipt`] to its actual cost, or give it back | its rows |
//!
//! **The `Gate`** has the same verbs without a connection, and `wait`. What it decides stands, whatever becomes of the
//! caller's request; hundreds of callers share two statements, and a few connections.
//!
//! **A [`Receipt`]** is what was charged: a value to store with the job that it pays for.
//!
//! **The `Sweeper`** deletes rows that are full again, as a task of a service or by `tollgate sweep`.
//!
//! # Units and rounding
//!
//! Tokens are integer micro-tokens, instants integer microseconds, and every division rounds against the caller. Waits
//! are spans between two readings of the database's clock, so nobody's own clock matters.
//!
//! # Map
//!
//! [`algebra`] and [`plan`] are pure: no IO, no clock. `Limiter` puts them to work on the tables, which `migrate` makes, and
//! `Gate` on batches of calls. `http` tells clients, and `tower` asks for them. `embedded` starts a private server for tests and
//! development; `bench` measures; `simulate` tries limits on traffic.
//!
//! # Features
//!
//! - *none*: values, [`algebra`], [`plan`]; no driver, no runtime and no clock in the tree, so it builds for a browser too.
//! - **`postgres`** (default): `Limiter`, `Gate` and `Sweeper`.
//! - **`migrate`** (default): the `migrate` module, with the tables' migrations embedded.
//! - **`embedded`**: the `embedded` module.
//! - **`bench`**: the `bench` module.
//! - **`metrics`**: counters and histograms of the gate, through the facade of that name:
//!   `tollgate_decisions_total` (by `limit`, `outcome`, `source`), `tollgate_errors_total` (by `limit`),
//!   `tollgate_batches_total`, `tollgate_batch_calls`, `tollgate_batch_seconds`, `tollgate_locked_calls_total`; and of a sweeper's
//!   task, `tollgate_swept_rows_total` (by `table`).
//! - **`limits-file`**: `Limits`, read from TOML or JSON with all faults by line and column, and typed names for them: `limits!`.
//! - **`simulate`**: the `simulate` module: limits tried on traffic, without a database.
//! - **`http`**: the `http` module: header fields and problem documents from decisions, and clients behind proxies.
//! - **`tower`**: the `tower` module: a layer over a gate for axum, hyper, tonic and whatever else speaks tower.
//! - **`axum`**: both, `IntoResponse` for refusals and errors, and the peer address as axum tells it.
//! - **`uuid`**: [`ToKey`] for `uuid::Uuid`.
//! - **`cli`**: the `tollgate` command, with all that it needs.

pub mod algebra;
mod balance;
#[cfg(feature = "bench")]
pub mod bench;
mod decision;
#[cfg(feature = "embedded")]
pub mod embedded;
mod error;
#[cfg(feature = "postgres")]
mod gate;
#[cfg(feature = "http")]
pub mod http;
mod key;
mod limit;
#[cfg(feature = "postgres")]
mod limiter;
#[cfg(feature = "limits-file")]
mod limits;
#[cfg(feature = "migrate")]
pub mod migrate;
pub mod plan;
mod receipt;
mod request;
#[cfg(feature = "simulate")]
pub mod simulate;
mod spec;
mod standing;
#[cfg(feature = "postgres")]
mod store;
#[cfg(feature = "postgres")]
mod sweeper;
mod text;
mod tokens;
#[cfg(feature = "tower")]
pub mod tower;

use std::time::Duration;

pub use balance::Balance;
pub use decision::{Decision, Denied, Grant, Refusal, Reservation, Source};
pub use error::Error;
#[cfg(feature = "postgres")]
pub use error::Step;
#[cfg(feature = "postgres")]
pub use gate::{Gate, GateBuilder, OnFailure};
pub use key::{Key, KeyError, KeyParts, Slash64, ToKey};
pub use limit::{Limit, LimitError, LimitFault, Storage};
#[cfg(feature = "postgres")]
pub use limiter::Limiter;
#[cfg(feature = "limits-file")]
pub use limits::{
    FileFault, FileFaultKind, FileFaults, LimitName, Limits, LimitsError, NamedLimits, UnknownLimit, is_named_in,
};
pub use receipt::{Charge, Receipt};
pub use request::Request;
pub use spec::{LimitKind, LimitSpec};
pub use standing::{Standing, Standings};
#[cfg(feature = "postgres")]
pub use sweeper::{SweepPass, Sweeper, Sweeping, Swept};
pub use tokens::{Tokens, TokensError};

/// One second, for periods.
pub const SECOND: Duration = Duration::from_secs(1);
/// Sixty seconds, for periods.
pub const MINUTE: Duration = Duration::from_mins(1);
/// Sixty minutes, for periods.
pub const HOUR: Duration = Duration::from_hours(1);
/// Twenty-four hours, for periods.
pub const DAY: Duration = Duration::from_hours(24);

/// The examples of the README compile.
#[cfg(all(doctest, feature = "tower", feature = "limits-file"))]
#[doc = include_str!("../README.md")]
struct Readme;

/// So does that of the guide to Citus.
#[cfg(all(doctest, feature = "postgres"))]
#[doc = include_str!("../docs/citus.md")]
struct Citus;
