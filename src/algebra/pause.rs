use super::list::List;
use super::state::State;
use super::terms::{Flow, Terms};
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

impl Terms {
    /// The terms of a limit that is or was paused.
    #[must_use]
    pub fn paused(self, pause: Option<Pause>) -> Self {
        Self { pause, ..self }
    }

    /// The row of a token bucket as if the pause had taken no time, so far as it has passed; `None` if the row counts as
    /// it is. A window and a stepped bucket bring their tokens at their own instants, whatever lies between them.
    pub(super) fn stood_still(&self, row: &State, now: Timestamp) -> Option<State> {
        let Pause { from, until } = self.pause?;
        let still = until.min(now).micros() - from.max(row.ts).micros();
        let is_bucket = self.flow == Flow::Continuous && row.list == List::None;
        (is_bucket && still > 0 && !row.is_over(from)).then(|| State {
            ts: row.ts.after(still),
            full_at: row.full_at.after(still),
            ..row.clone()
        })
    }
}
