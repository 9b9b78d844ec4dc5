mod lane;
mod queue;
mod width;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::batch::Blocked;
use super::memory::hash;
use super::shared::Shared;
use crate::plan::CheckedCall;
use lane::Lane;
pub(super) use width::Width;

/// Sends calls to lanes, so that calls for one row meet in one lane as far as possible.
///
/// A call of one row goes to the row's own lane. A call of several rows goes to the lane of the row that most other
/// calls ask: there it meets its competitors, and a collision on its other rows is unlikely. Every lane decides it all
/// or nothing; the choice is about speed alone.
///
/// On Citus a call of one part goes to the part's lane. A statement names one part, so its calls share more of them
/// there. Calls over several parts have a lane of their own: each of their batches is a transaction of several nodes,
/// for which nobody else should wait.
pub(super) struct Switchboard {
    shared: Arc<Shared>,
    lanes: Vec<Arc<Lane>>,
    /// For calls over several parts.
    crossing: Arc<Lane>,
    /// How often rows were asked in calls of several, by their hash. Roughly: hashes collide, and updates may be lost.
    heat: Vec<AtomicU32>,
}

impl Switchboard {
    pub(super) fn new(shared: &Arc<Shared>, lanes: usize) -> Self {
        let blocked = Arc::new(Blocked::new(shared.clone()));
        let lane = || Arc::new(Lane::new(shared.clone(), blocked.clone()));
        let heat = (0..CELLS).map(|_| AtomicU32::new(0)).collect();
        Self { shared: shared.clone(), lanes: (0..lanes).map(|_| lane()).collect(), crossing: lane(), heat }
    }

    pub(super) fn lane(&self, call: &CheckedCall) -> &Arc<Lane> {
        match call.part() {
            Some(0) => {}
            Some(part) => return &self.lanes[usize::from(part) % self.shared.width.lanes()],
            None => return &self.crossing,
        }
        let mut rows = call.first_rows().map(hash);
        let first = rows.next().expect("every call asks a row");
        let mut hottest = (first, None);
        for other in rows {
            let (row, heat) = hottest;
            let (heat, others) = (heat.unwrap_or_else(|| self.warm(row)), self.warm(other));
            hottest = if others > heat { (other, Some(others)) } else { (row, Some(heat)) };
        }
        let (row, _) = hottest;
        &self.lanes[row % self.shared.width.lanes()]
    }

    /// Counts a row, and says how often it was counted.
    fn warm(&self, row: usize) -> u32 {
        let cell = &self.heat[row % CELLS];
        let heat = cell.fetch_add(1, Ordering::Relaxed);
        if heat >= COOL_AT {
            // What was hot yesterday should not be so for ever.
            self.heat.iter().for_each(|cell| cell.store(cell.load(Ordering::Relaxed) / 2, Ordering::Relaxed));
        }
        heat
    }
}

const CELLS: usize = 1024;
const COOL_AT: u32 = 1 << 16;
