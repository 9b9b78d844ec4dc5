use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::{PgConnection, PgPool};

use super::fallback::Fallback;
use super::refusals::Refusals;
use super::width::Width;
use crate::algebra::Timestamp;
use crate::store::Store;

/// What all lanes of a gate work with.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) pool: PgPool,
    pub(super) settings: Settings,
    pub(super) refusals: Option<Refusals>,
    pub(super) fallback: Fallback,
    pub(super) width: Width,
}

impl Shared {
    /// The tables, over a connection, by the gate's clock.
    pub(super) fn store<'c>(&self, connection: &'c mut PgConnection) -> Store<'c> {
        let Settings { clock, named_statements, distributed, .. } = &self.settings;
        Store::new(connection, clock.at(), *named_statements).routed(*distributed).wrapping()
    }
}

/// How a gate works.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    /// How many calls one batch takes at most.
    pub(super) max_batch: usize,
    /// How many calls wait in one lane at most.
    pub(super) queue: usize,
    pub(super) lock_timeout: Duration,
    pub(super) statement_timeout: Duration,
    pub(super) acquire_timeout: Duration,
    /// How much longer than needed a waiting caller sleeps, at most.
    pub(super) jitter: Duration,
    pub(super) named_statements: bool,
    pub(super) distributed: bool,
    pub(super) clock: Clock,
}

impl Settings {
    /// How long a statement about so many rows may take: one, or one for each where tables are distributed.
    pub(super) fn patience(&self, rows: usize) -> Duration {
        let statements = if self.distributed { u32::try_from(rows).unwrap_or(u32::MAX) } else { 1 };
        self.statement_timeout.saturating_mul(statements)
    }
}

/// Who says what time it is.
#[derive(Clone)]
pub(super) enum Clock {
    Database,
    Injected(Arc<dyn Fn() -> DateTime<Utc> + Send + Sync>),
}

impl Clock {
    /// The instant to take for now, unless the database says.
    pub(super) fn at(&self) -> Option<Timestamp> {
        match self {
            Self::Database => None,
            Self::Injected(clock) => Some(clock().into()),
        }
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Database => "Database",
            Self::Injected(_) => "Injected",
        })
    }
}
