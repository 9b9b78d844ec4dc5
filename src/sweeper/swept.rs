use serde::{Deserialize, Serialize};

/// What a sweep did.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Swept {
    /// Rows deleted from `tollgate.buckets`, or to be deleted in a dry run.
    pub buckets: u64,
    /// Rows deleted from `tollgate.rate_limits`, or to be deleted in a dry run.
    pub rate_limits: u64,
    /// Rows that say they are full and are not under what the sweeper knows, or are within the margin.
    pub kept: u64,
    /// Rows that somebody held or changed in between; another sweep will see them.
    pub missed: u64,
    /// Statements that deleted.
    pub batches: u64,
    /// Pages that were looked at.
    pub pages: u64,
    /// Whether another sweeper was at work, and the rest was left to it.
    pub yielded: bool,
}

impl Swept {
    /// Rows deleted from both tables.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.buckets + self.rate_limits
    }

    /// Adds what a further sweep did.
    pub(super) fn add(&mut self, more: Self) {
        let Self { buckets, rate_limits, kept, missed, batches, pages, yielded } = more;
        self.buckets += buckets;
        self.rate_limits += rate_limits;
        self.kept += kept;
        self.missed += missed;
        self.batches += batches;
        self.pages += pages;
        self.yielded |= yielded;
    }
}
