use std::fmt;
use std::sync::Arc;

use chrono::{DateTime, Utc};

use crate::values::timestamp::Timestamp;

/// The clock by which a limiter or a gate decides.
#[derive(Clone, Default)]
pub(crate) enum Clock {
    #[default]
    Database,
    /// It stands still.
    At(Timestamp),
    Given(Arc<dyn Fn() -> DateTime<Utc> + Send + Sync>),
}

impl Clock {
    pub(crate) fn given(clock: impl Fn() -> DateTime<Utc> + Send + Sync + 'static) -> Self {
        Self::Given(Arc::new(clock))
    }

    /// This clock, stopped at the instant that it shows now; `None` if there is nothing to stop.
    pub(crate) fn stopped(&self) -> Option<Self> {
        if let Self::Given(clock) = self { Some(Self::At(clock().into())) } else { None }
    }

    /// The instant to take for now; `None` for the database's clock.
    pub(crate) fn at(&self) -> Option<Timestamp> {
        match self {
            Self::Database => None,
            Self::At(now) => Some(*now),
            Self::Given(clock) => Some(clock().into()),
        }
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Database => "Database",
            Self::At(_) | Self::Given(_) => "Injected",
        })
    }
}
