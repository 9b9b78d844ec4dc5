//! **Unstable**: any release may change this module. The algebra of limits: pure functions over integers, without IO
//! and without a clock.
//!
//! A row is a [`State`]: a balance, which may be negative, an instant, and for some kinds
//! a [`List`]: what comes back by itself. [`Terms`] are
//! the numbers of a limit for one key: [`Terms::refill`] brings a row to an instant. A [`Pool`] is a limit's rows for
//! one key: it decides what a call takes, and gives tokens back. A missing row means a full one.
//!
//! The same functions run in the server, in a simulation and in a browser: with `--no-default-features` this crate has
//! no driver, no runtime and no clock in its tree.
//!
//! # Rounding
//!
//! Amounts are integer micro-tokens and instants integer microseconds, with `i128` in between. Every division rounds
//! against the caller: refill down, waiting up. A write loses less than one micro-token, and never gains one. A wait is
//! computed from the row as it was read, not as it was refilled. So it is exact to the microsecond: at that instant the
//! same call is granted, and one microsecond earlier it is refused.
//!
//! # Source
//!
//! Continuous refill is the token bucket as a meter (J. Turner, "New directions in communications", 1986; equal to the
//! generic cell rate algorithm of ITU-T I.371). It is stored as in Convex's rate limiter: value and instant instead of
//! a theoretical arrival time. So one row serves every kind of refill, and a debt is a value below zero.
//!
//! # Example
//!
//! ```
//! use std::time::Duration;
//! use tollgate::algebra::{Ask, Pool, State, Terms, Timestamp, Verdict};
//! use tollgate::{Key, Limit, Tokens};
//!
//! // Five tokens every ten seconds, at most twenty: 20 → 15 → 20 → 2 → 7.
//! let limit = Limit::stepped_bucket("uploads", 5, Duration::from_secs(10)).capacity(20);
//! let terms = Terms::of(&limit, &Key::GLOBAL);
//! let second = |n: i64| Timestamp::from_micros(n * 1_000_000);
//!
//! let take = |row: Option<State>, at, cost| {
//!     match Pool::new(&terms, &[row], at).decide(Ask::consume(Tokens::new(cost))) {
//!         Ok(Verdict::Granted { portions, .. }) => Some(portions[0].next.clone()),
//!         other => panic!("{other:?}"),
//!     }
//! };
//! let row = take(None, second(0), 5);
//! assert_eq!(row, Some(State::new(Tokens::new(15), second(0))));
//! let row = take(row, second(10), 18);
//! assert_eq!(row, Some(State::new(Tokens::new(2), second(10))));
//! assert_eq!(terms.refill(&row.unwrap(), second(20)).value, Tokens::new(7));
//! ```

mod ask;
mod list;
mod pool;
mod rest;
mod settle;
mod shard;
mod split;
mod state;
mod terms;

pub use crate::timestamp::Timestamp;
pub use ask::Ask;
pub use list::{Entry, List};
pub use pool::{Pool, TooDeep, Verdict};
pub use rest::Rest;
pub(crate) use settle::{Settled, Unsettled};
pub use shard::Portion;
pub(crate) use split::{Lacking, Piece, most, split};
pub use state::{FullAt, State};
pub(crate) use terms::Flow;
pub use terms::Terms;
#[cfg(feature = "http")]
pub(crate) use terms::div_ceil;
