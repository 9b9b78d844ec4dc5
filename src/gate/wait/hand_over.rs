#![expect(
    clippy::disallowed_methods,
    reason = "this machine's monotonic clock measures how long a row was held; no decision depends on it"
)]

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::gate::raised::hash;
use crate::plan::Row;

/// The tokens that a concurrency limit has released, and who gets them. The next caller of the same process hears of it
/// at once, and those of other processes can only ask. Ten callers of one gate, or one that took back what it had
/// released, kept the only slot from another gate for good. So now and then a release is left to others for a while, by
/// all that wait here or come. For how long, and how often waiters ask, goes by the time since the row has changed, so
/// the two meet for however long the slots are held. A row that says who waits would be a write for each refusal.
#[derive(Default)]
pub(super) struct HandOvers {
    /// By the row's hash: rows that share one count together, which does no harm.
    cells: Mutex<HashMap<usize, HandOver>>,
}

struct HandOver {
    releases: u32,
    last: Instant,
    left_until: Instant,
}

impl HandOvers {
    /// Counts a release.
    pub(super) fn count(&self, row: &Row) {
        let (mut cells, now) = (self.cells(), Instant::now());
        let cell = cells.entry(hash(row) % CELLS).or_insert(HandOver { releases: 0, last: now, left_until: now });
        cell.releases = cell.releases.wrapping_add(1);
        cell.left_until = if cell.releases.is_multiple_of(TURNS) { now + pause(now - cell.last) } else { now };
        cell.last = now;
    }

    /// Until when the row is left to other processes, if it is.
    pub(super) fn left_until(&self, row: &Row) -> Option<Instant> {
        let left_until = self.cells().get(&(hash(row) % CELLS))?.left_until;
        Some(left_until).filter(|until| *until > Instant::now())
    }

    fn cells(&self) -> MutexGuard<'_, HashMap<usize, HandOver>> {
        self.cells.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How long to wait for a release before asking once more, where the row has not changed for so long. A caller that
/// asks so often meets a release that others leave to it for as long. At random, so that they spread.
pub(super) fn pause(unchanged: Duration) -> Duration {
    (unchanged / 4).clamp(FIRST_PAUSE, LAST_PAUSE).mul_f64(0.5 + fastrand::f64() / 2.0)
}

/// How long that is, at least and at most.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
pub(super) const LAST_PAUSE: Duration = Duration::from_secs(1);

/// Of so many releases one is left to others: where there are none, it costs about a fiftieth of the time.
const TURNS: u32 = 8;

const CELLS: usize = 256;
