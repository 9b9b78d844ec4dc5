use std::collections::HashMap;
use std::time::Duration;

use crate::limit::{Limit, LimitKind};
use crate::values::text::Text;

/// How long slices may be spent: for limits with a setting of their own, and for all others.
#[derive(Debug, Default)]
pub(crate) struct Ages {
    pub(crate) of_all: Duration,
    pub(crate) by_limit: HashMap<Text, Duration>,
}

impl Ages {
    pub(super) fn of(&self, limit: &Limit) -> Duration {
        self.by_limit.get(&limit.name).copied().unwrap_or(self.of_all)
    }

    /// The shortest setting that is not zero, if there is one.
    pub(crate) fn shortest(&self) -> Option<Duration> {
        self.by_limit.values().chain([&self.of_all]).filter(|age| !age.is_zero()).min().copied()
    }

    /// Whether slices are taken of a limit. It must have one row, which refills in smaller steps than its capacity. A
    /// slice of another limit would carry tokens over the edge of a window.
    pub(super) fn serve(&self, limit: &Limit) -> bool {
        let is_bucket = match limit.kind {
            LimitKind::TokenBucket => true,
            LimitKind::SteppedBucket => limit.most() > limit.rate,
            _ => false,
        };
        is_bucket && limit.shards == 1 && !self.of(limit).is_zero()
    }
}
