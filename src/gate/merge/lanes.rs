use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::lane::Lane;
use super::width::Width;
use crate::error::Error;
use crate::gate::batch::Blocked;
use crate::gate::raised::hash;
use crate::gate::reply::QueuedCall;
use crate::gate::server::Server;
use crate::gate::shared::Shared;
use crate::plan::Operation;

/// The lanes of a gate. Calls are spread over them so that calls for one row meet in one lane as far as possible.
///
/// A call of one row goes to the row's own lane. A call of several rows goes to the lane of the row that most other
/// calls ask: there it meets its competitors, and a collision on its other rows is unlikely. Every lane decides it all
/// or nothing, so the choice only affects speed.
///
/// On Citus a call of one part goes to the part's lane. A statement names one part, so the calls of a part share more
/// statements in one lane. Calls over several parts have a lane of their own: each of their batches is a transaction
/// over several nodes, for which no other call should wait. Citus plans both statements of each batch on the
/// coordinator and on the node, which costs more than their rows do. Batches over all of 8 parts paid that cost for
/// each part.
pub(in crate::gate) struct Lanes {
    width: Arc<Width>,
    /// For calls of one part.
    of_rows: Vec<Arc<Lane>>,
    /// For calls over several parts.
    crossing: Arc<Lane>,
    /// How often calls of several rows have asked each row, by the row's hash. The counts are rough: hashes collide,
    /// and updates may be lost.
    heat: Vec<AtomicU32>,
}

impl Lanes {
    pub(in crate::gate) fn new(shared: &Arc<Shared>, server: &Server, width: Width) -> Self {
        let blocked = Arc::new(Blocked::new(shared.clone(), server.clone()));
        let width = Arc::new(width);
        let lane = |width| Arc::new(Lane::new(shared.clone(), server.clone(), blocked.clone(), width));
        let of_rows = (0..width.most).map(|_| lane(Some(width.clone()))).collect();
        let heat = (0..CELLS).map(|_| AtomicU32::new(0)).collect();
        Self { width, of_rows, crossing: lane(None), heat }
    }

    /// Queues a call. Fails if the queue is full or the server is silent.
    pub(in crate::gate) fn submit(&self, call: QueuedCall) -> Result<(), Error> {
        self.lane(&call.call).submit(call)
    }

    /// The lane of a call.
    fn lane(&self, call: &Operation) -> &Arc<Lane> {
        match call.part() {
            Some(0) => {}
            Some(part) => return &self.of_rows[usize::from(part) % self.width.lanes()],
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
        &self.of_rows[row % self.width.lanes()]
    }

    /// Counts a row, and returns how often it was counted.
    fn warm(&self, row: usize) -> u32 {
        let cell = &self.heat[row % CELLS];
        let heat = cell.fetch_add(1, Ordering::Relaxed);
        if heat >= COOL_AT {
            // A row that was hot yesterday should not stay hot forever.
            self.heat.iter().for_each(|cell| cell.store(cell.load(Ordering::Relaxed) / 2, Ordering::Relaxed));
        }
        heat
    }
}

const CELLS: usize = 1024;
const COOL_AT: u32 = 1 << 16;
