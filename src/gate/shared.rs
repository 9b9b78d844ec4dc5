use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use sqlx::{PgConnection, PgPool};

use super::clock::Clock;
use super::fallback::Fallback;
use super::prefetch::Prefetch;
use super::refusals::Refusals;
use super::tally::Tally;
use super::width::Width;
use crate::store::overrides::Overrides;
use crate::store::{Backend, Store};

/// What all lanes of a gate work with.
pub(super) struct Shared {
    pub(super) pool: PgPool,
    pub(super) settings: Settings,
    pub(super) refusals: Option<Refusals>,
    pub(super) prefetch: Option<Arc<Prefetch>>,
    pub(super) fallback: Fallback,
    pub(super) tally: Option<Tally>,
    pub(super) overrides: Option<Overrides>,
    pub(super) width: Width,
    /// Whether the tables were seen to have the parts that the settings say.
    pub(super) has_parts: AtomicBool,
}

impl Shared {
    /// A connection broke, or cannot be made.
    pub(super) fn broke(&self) {
        if let Some(prefetch) = &self.prefetch {
            prefetch.broke();
        }
    }

    /// The tables, over a connection, by the gate's clock.
    pub(super) fn store<'c>(&self, connection: &'c mut PgConnection) -> Store<'c> {
        Store::new(connection, self.settings.clock.at(), self.settings.backend).wrapping()
    }
}

/// How a gate works.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    /// How many calls one batch takes at most.
    pub(super) max_batch: usize,
    /// For how many keys calls wait in one lane at most, and for rows that others lock.
    pub(super) queue: usize,
    pub(super) lock_timeout: Duration,
    pub(super) statement_timeout: Duration,
    pub(super) acquire_timeout: Duration,
    /// How much longer than needed a waiting caller sleeps, at most.
    pub(super) jitter: Duration,
    pub(super) backend: Backend,
    pub(super) clock: Clock,
}
