use crate::values::timestamp::Timestamp;

/// A span in which a limit was paused. It brings a token bucket nothing, so that no burst follows it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Pause {
    /// When it began.
    pub from: Timestamp,
    /// When it ends.
    pub until: Timestamp,
}

impl Pause {
    /// Whether it still counts: while it lasts, and as long again.
    pub(crate) fn is_remembered(self, now: Timestamp) -> bool {
        now >= self.from && now.micros() - self.until.micros() < self.until.micros() - self.from.micros()
    }
}
