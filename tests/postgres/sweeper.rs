//! Rows that are full again go, and nobody notices.

mod beside;
mod clock;
mod full;
mod pass;

use std::time::Duration;

use tollgate::Sweeper;

/// At full speed, and without a margin: a row goes at its `full_at`.
pub(crate) fn quick() -> Sweeper {
    Sweeper::new().share(100).margin(Duration::ZERO)
}
