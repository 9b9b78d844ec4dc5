use std::fmt;
use std::sync::Arc;

use chrono::{DateTime, Utc};

use crate::algebra::Timestamp;

/// The clock by which a gate decides.
#[derive(Clone)]
pub(super) enum Clock {
    Database,
    Injected(Arc<dyn Fn() -> DateTime<Utc> + Send + Sync>),
}

impl Clock {
    /// The instant to take for now; `None` for the database's clock.
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
