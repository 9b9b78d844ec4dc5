use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::plan::RowId;
use crate::values::hash::local_hash;
use crate::values::lock::lock;

/// Decides who gets the released tokens of a concurrency limit. The next caller of the same process hears of a release
/// at once, and callers of other processes can only ask. Ten callers of one gate, or one that took again what it had
/// released, kept the only slot from another gate forever. So now and then a release is left to other processes for a
/// while, by all callers that wait here or come. The length of that while, and how often waiters ask, depend on the
/// time since the row has changed. So a question meets such a release, however long the slots are held. A row that
/// lists the waiters would need a write for each refusal.
#[derive(Default)]
pub(super) struct HandOvers {
    /// The cells, by the row's hash. Rows that share a cell count together, which does no harm.
    cells: Mutex<HashMap<usize, HandOver>>,
}

struct HandOver {
    releases: u32,
    last: Instant,
    left_until: Instant,
}

impl HandOvers {
    /// Counts a release.
    pub(super) fn count(&self, row: &RowId) {
        let (mut cells, now) = (lock(&self.cells), Instant::now());
        let cell = cells.entry(local_hash(row) % CELLS).or_insert(HandOver { releases: 0, last: now, left_until: now });
        cell.releases = cell.releases.wrapping_add(1);
        cell.left_until = if cell.releases.is_multiple_of(TURNS) { now + pause(now - cell.last) } else { now };
        cell.last = now;
    }

    /// Until when the row is left to other processes, if it is.
    pub(super) fn left_until(&self, row: &RowId) -> Option<Instant> {
        let left_until = lock(&self.cells).get(&(local_hash(row) % CELLS))?.left_until;
        Some(left_until).filter(|until| *until > Instant::now())
    }
}

/// How long to wait for a release before asking again, if the row has not changed for so long. A caller that asks so
/// often meets a release that others leave to it for as long. The pause is random, so that callers spread.
pub(super) fn pause(unchanged: Duration) -> Duration {
    (unchanged / 4).clamp(FIRST_PAUSE, LAST_PAUSE).mul_f64(0.5 + fastrand::f64() / 2.0)
}

/// The shortest and the longest of these pauses.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
pub(super) const LAST_PAUSE: Duration = Duration::from_secs(1);

/// One of so many releases is left to other processes. If there are none, this costs about a fiftieth of the time.
const TURNS: u32 = 8;

const CELLS: usize = 256;
