//! An exact rate limiter for services that already have PostgreSQL. A limiter decides inside the caller's own
//! transaction, so that a decision and the work that it pays for commit or roll back together. A gate merges the
//! callers of a process, and decides for them in transactions of its own.
//!
//! ```
//! # #[cfg(feature = "postgres")]
//! use tollgate::Tollgate;
//! use tollgate::{Limit, MINUTE};
//!
//! /// Ten messages a minute on average, twenty at once after a rest. A wrong limit does not compile.
//! const SEND_MESSAGE: Limit = Limit::token_bucket("send_message", 10, MINUTE).capacity(20);
//!
//! # #[cfg(feature = "postgres")]
//! async fn serve(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
//!     // Looks at the tables, hears what operators say, and cleans up in the background.
//!     let tollgate = Tollgate::start(pool.clone()).await?;
//!
//!     let mut tx = pool.begin().await?;
//!     let insert = sqlx::query("insert into messages (author, body) values ($1, $2)").bind(42).bind("hello");
//!     insert.execute(&mut *tx).await?;
//!     // A refusal is an answer. `granted()` turns it into an error, and `?` rolls the message back.
//!     tollgate.limiter().consume(&mut tx, SEND_MESSAGE.key(42)).await?.granted()?;
//!     tx.commit().await?;
//!
//!     tollgate.stop().await;
//!     Ok(())
//! }
//! ```
//!
//! # The parts of a call
//!
//! - A [`Limit`] is a name, a kind and its numbers, such as a rate, a period and a capacity. Limits are constants, or
//!   come from a [`LimitSpec`] or a file (`Limits`). Amounts are [`Tokens`], exact to a millionth.
//! - A [`Request`] is a limit, a key and a cost: `LIMIT.key((tenant, user)).cost(12)`, `LIMIT.global()`. Every
//!   [`ToKey`] can be a key.
//! - A `Tollgate` is what a service starts: a limiter and a gate under the same overrides, and their clean-up.
//! - A `Limiter` decides in the caller's transaction, a `Gate` in transactions of its own. They have almost the same
//!   verbs.
//! - A [`Decision`] is granted, or [`Denied`] with the first microsecond at which the same call would be granted, where
//!   waiting helps.
//! - A [`Receipt`] holds the charges of a call: store it with the job that it pays for.
//! - A `Sweeper` deletes rows that are full again, and gives back calls that have lapsed.
//!
//! | verb | does | locks |
//! | --- | --- | --- |
//! | `consume` | takes tokens, if all of them are there | the rows, unless a committed balance refuses |
//! | `reserve` | takes tokens for now or later, and names the instant | likewise |
//! | `consume_each`, and `reserve_each` of a limiter | does so for many calls, each by itself | likewise |
//! | `check`, `balance` | looks | nothing |
//! | `credit`, `debit`, `reset` | changes a balance, whatever it is | the rows |
//! | `settle`, `settle_each`, `cancel` | brings a receipt to its actual cost, or gives it back | the rows |
//! | `renew`, `release` | lets what a concurrency limit granted last longer, or ends it | the rows |
//!
//! A gate also waits (`wait`), holds the tokens of a concurrency limit as long as a guard lives (`acquire`,
//! `acquire_within`), and counts the tokens that a call uses until it ends (`stream`). `close` ends it.
//!
//! The [guides](_guide) say how to choose a limit, put it in front of HTTP, reserve, test and operate. They include the
//! design notes, which follow a decision step by step.
//!
//! # Features
//!
//! - *none*: the values. The dependencies include no driver, no runtime and no clock, so the crate also builds for a
//!   browser.
//! - **`postgres`** (default): `Tollgate`, `Limiter`, `Gate` and `Sweeper`.
//! - **`migrate`** (default): the `migrate` module, with the migrations of the tables embedded.
//! - **`metrics`**: counters and histograms of limiter, gate and sweeper, through the facade of that name
//!   (`describe_metrics`).
//! - **`limits-file`**: `Limits`, read from TOML or JSON. The first fault is reported with its line and column.
//! - **`uuid`**: [`ToKey`] for `uuid::Uuid`.
//! - **`unstable`**: the pure modules `algebra` and `plan`, which decide without a database. Any release may change
//!   them, so name the exact version of this crate: `version = "=0.1.0"`.
//!
//! # Packages
//!
//! - **`tollgate-http`**: a layer over a gate for axum, hyper, tonic and everything else that speaks tower. It also has
//!   an error type for axum's handlers, header fields, problem documents, and the addresses of clients behind proxies.
//! - **`tollgate-cli`**: the command `tollgate`.
//! - **`tollgate-embedded`**: a private PostgreSQL server for tests and development.
//! - **`tollgate-simulation`**: limits tried on made-up traffic.

// On docs.rs each item names the feature that it needs.
#![cfg_attr(docsrs, feature(doc_cfg))]
// Without `postgres` some code has no caller, because only the driver uses it; without `unstable`, because only other
// packages do, and what is `pub` is out of reach. The build with all features finds dead code.
#![cfg_attr(not(all(feature = "postgres", feature = "unstable")), allow(dead_code, unused_imports))]
#![cfg_attr(not(feature = "unstable"), allow(unreachable_pub))]

/// Guides: choosing limits, HTTP, reservations, testing, operating, and the design notes.
#[cfg(all(doc, any(not(doctest), feature = "limits-file")))]
pub mod _guide;
#[cfg(feature = "unstable")]
pub mod algebra;
#[cfg(not(feature = "unstable"))]
mod algebra;
mod answer;
pub mod calendar;
mod call;
#[cfg(feature = "postgres")]
mod definitions;
mod error;
#[cfg(feature = "postgres")]
mod execution;
#[cfg(feature = "postgres")]
mod gate;
mod key;
mod limit;
#[cfg(feature = "postgres")]
mod limiter;
#[cfg(feature = "limits-file")]
mod limits;
#[cfg(feature = "postgres")]
mod meter;
#[cfg(feature = "migrate")]
pub mod migrate;
mod overrides;
mod parts;
#[cfg(feature = "unstable")]
pub mod plan;
#[cfg(not(feature = "unstable"))]
mod plan;
#[cfg(feature = "postgres")]
mod prepare;
#[cfg(feature = "postgres")]
mod reaper;
#[cfg(feature = "postgres")]
mod store;
#[cfg(feature = "postgres")]
mod sweeper;
mod tokens;
#[cfg(feature = "postgres")]
mod tollgate;
mod values;

use std::time::Duration;

pub use answer::balance::Balance;
pub use answer::decision::{Decision, Denied, DeniedBy, Grant, Reason, Reservation, Source};
pub use answer::receipt::{Charge, Receipt};
pub use answer::standing::{CrossedError, Standing, Standings};
pub use call::{Call, CallError, Request, first_of, split};
pub use error::{Error, FitError, SetupFault, Step};
#[cfg(feature = "postgres")]
pub use gate::{Gate, GateBuilder, Lease, OnFailure, Stream};
pub use key::{Key, KeyError, KeyWriter, Slash64, ToKey};
pub use limit::{Limit, LimitError, LimitFault, LimitKind, LimitSpec, Storage};
#[cfg(feature = "postgres")]
pub use limiter::{BegunByHand, InTransaction, Limiter};
#[cfg(feature = "limits-file")]
pub use limits::{FileFault, Limits, LimitsError, UnknownLimit};
#[cfg(feature = "metrics")]
pub use meter::describe_metrics;
pub use overrides::SlowDown;
#[cfg(feature = "postgres")]
pub use overrides::{Effect, NewOverride, Override, OverrideError, OverrideSet, Overrides, SlowDownFault};
pub use plan::Settlement;
#[cfg(feature = "postgres")]
pub use sweeper::{SweepPass, Sweeper, Sweeping, Swept};
pub use tokens::{Tokens, TokensError};
#[cfg(feature = "postgres")]
pub use tollgate::{StartError, Tollgate, TollgateBuilder};
pub use values::driver_error::DriverError;
pub use values::span::{Span, SpanError};

/// One second, for periods.
pub const SECOND: Duration = Duration::from_secs(1);
/// Sixty seconds, for periods.
pub const MINUTE: Duration = Duration::from_mins(1);
/// Sixty minutes, for periods.
pub const HOUR: Duration = Duration::from_hours(1);
/// Twenty-four hours, for periods.
pub const DAY: Duration = Duration::from_hours(24);
