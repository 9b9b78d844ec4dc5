use std::fmt;
use std::sync::Arc;

use chrono::{DateTime, Utc};

use crate::algebra::Timestamp;

/// The clock by which a gate decides, if it is not the database's.
#[derive(Clone, Default)]
pub(super) struct Clock(pub(super) Option<Arc<dyn Fn() -> DateTime<Utc> + Send + Sync>>);

impl Clock {
    /// The instant to take for now; `None` for the database's clock.
    pub(super) fn at(&self) -> Option<Timestamp> {
        self.0.as_ref().map(|clock| clock().into())
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Injected" } else { "Database" })
    }
}
