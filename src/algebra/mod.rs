//! **Unstable**: any release may change this module. The algebra of limits: pure functions over integers, without IO
//! and without a clock.
//!
//! A row is a [`State`]: how many tokens are used, since which instant and until when, and for some kinds a [`List`] of
//! the tokens that come back by themselves. It counts from a full row and names no capacity. So a limit that is raised
//! or lowered counts at once, and a missing row is full under every definition. [`Terms`] are the numbers of a limit
//! for one key: [`Terms::refill`] brings a row to an instant, and [`Terms::balance`] returns its balance. An
//! [`Account`] is all rows of a limit for one key: it decides the tokens that a call takes, and gives tokens back.
//!
//! # When a row is forgotten
//!
//! From [`State::full_at`] on a row counts as a missing one, for every reader. A write under one definition sets it to
//! the instant at which the row is full by that definition. If a faster definition has used the row before, that use
//! ends no later than under the faster definition, and the tokens taken now add the time in which they come back. So
//! use under a large plan ends when that plan would have ended it, even if the key has a smaller plan by then.
//!
//! # When a limit was paused
//!
//! The span of a [`Pause`] brings a bucket nothing: its row counts as if it was written so much later. So a bucket that
//! was empty when the pause began is empty when the pause ends.
//!
//! The same functions run in the server, in a simulation and in a browser: with `--no-default-features` the
//! dependencies of this crate include no driver, no runtime and no clock.
//!
//! # Rounding
//!
//! Amounts are integer micro-tokens and instants integer microseconds, with `i128` in between. Every division rounds
//! against the caller: refill down, waiting up. A write loses less than one micro-token, and never gains one. A wait is
//! computed from the row as it was read, not from the refilled row. So it is exact to the microsecond: at that instant
//! the same call is granted, and one microsecond earlier it is refused.
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
//! use tollgate::algebra::{Ask, Account, State, Terms, Timestamp, Verdict};
//! use tollgate::{Key, Limit, Tokens};
//!
//! // Five tokens every ten seconds, at most twenty: 20 → 15 → 20 → 2 → 7.
//! let limit = Limit::stepped_bucket("uploads", 5, Duration::from_secs(10)).capacity(20);
//! let terms = Terms::of(&limit, &Key::GLOBAL);
//! let second = |n: i64| Timestamp::from_micros(n * 1_000_000);
//!
//! let take = |row: Option<State>, at, cost| {
//!     match Account::new(&terms, &[row], at).decide(Ask::consume(Tokens::new(cost))) {
//!         Ok(Verdict::Granted { portions, .. }) => Some(portions[0].next.clone()),
//!         other => panic!("{other:?}"),
//!     }
//! };
//! let row = take(None, second(0), 5);
//! let used = |tokens: i64| Tokens::from_micros(-tokens * 1_000_000);
//! assert_eq!(row, Some(State::new(used(5), second(0)).full_at(second(10))));
//! let row = take(row, second(10), 18);
//! assert_eq!(row, Some(State::new(used(18), second(10)).full_at(second(50))));
//! assert_eq!(terms.balance(&row.unwrap(), second(20)), Tokens::new(7));
//! ```

mod account;
mod adjust;
mod ask;
mod charge;
mod debt;
mod decide;
mod months;
mod period;
mod refill;
mod split;
mod state;
mod terms;

pub use crate::values::timestamp::Timestamp;
pub use account::{Account, Portion};
pub use adjust::Rest;
pub use ask::Ask;
pub(crate) use ask::Position;
pub(crate) use charge::Settled;
pub use decide::{TooDeep, Verdict};
pub(crate) use period::longest;
pub(crate) use split::{Lacking, Piece, most, split};
pub use state::{Entry, List, State};
pub(crate) use terms::Flow;
pub use terms::{Pause, Terms};
