//! Overrides of limits: other numbers, slower, deny or unlimited, for a key or for every key. `precedence.rs` says
//! which one counts, and `Operation::under` in `plan` applies it.

#![cfg_attr(
    feature = "postgres",
    expect(clippy::disallowed_methods, reason = "the monotonic clock says how long ago the database's clock was read")
)]

#[cfg(feature = "postgres")]
mod fault;
#[cfg(feature = "postgres")]
mod known;
#[cfg(feature = "postgres")]
mod precedence;
#[cfg(feature = "postgres")]
mod report;
#[cfg(feature = "postgres")]
mod row;
mod ruling;
#[cfg(feature = "postgres")]
mod set;
mod slow_down;
mod slowed_rate;
#[cfg(feature = "postgres")]
mod table;
#[cfg(feature = "postgres")]
mod watch;

#[cfg(feature = "postgres")]
pub use fault::{OverrideError, SlowDownFault};
#[cfg(feature = "postgres")]
pub use row::{Effect, Override};
pub(crate) use ruling::OverrideOf;
pub use ruling::{AppliedOverride, Ruling};
#[cfg(feature = "postgres")]
pub use set::{NewOverride, OverrideSet};
pub use slow_down::SlowDown;
pub use slowed_rate::SlowedRate;
#[cfg(feature = "postgres")]
pub use watch::Overrides;
