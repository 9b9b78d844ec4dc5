//! Calls meet here: each joins a lane, and a lane decides the calls that wait in it as one batch.

#![expect(
    clippy::disallowed_methods,
    reason = "the monotonic clock measures how long calls wait; the database tells the time"
)]

mod queue;

use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::{Either, select};
use sqlx::Connection as _;
use tokio::runtime::Handle;

use crate::error::Error;
use crate::gate::batch::{Batch, Blocked, ConnectionAfter};
use crate::gate::connection::{Connection, cut_off};
use crate::gate::reply::QueuedCall;
use crate::gate::server::Server;
use crate::gate::shared::Shared;
use crate::gate::worker::Worker;
use crate::meter;
use crate::plan::Operation;
use crate::values::hash::local_hash;
use crate::values::lock::lock;
use crate::values::text::Text;
use queue::Queue;

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
        let mut rows = call.first_rows().map(local_hash);
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

/// The number of lanes over which calls are spread: few while batches are small, because calls that share a batch share
/// its cost, and more as batches grow.
///
/// When the width changes, calls of one row may be under way in two lanes at once: one of them loses the race, and is
/// decided again. So the width changes by one, and only if batches are far from their size at the last change.
pub(crate) struct Width {
    lanes: AtomicUsize,
    /// The most lanes that there may be.
    most: usize,
    /// Batches of so many calls call for one lane more.
    many: usize,
    /// Batches of so few calls call for one lane less.
    few: usize,
    /// The average number of calls in the last batches at this width, in sixteenths. It is an average because large and
    /// small batches take turns.
    mean: AtomicUsize,
}

impl Width {
    /// Starts with one lane, and grows up to `most` as batches of at most `max_batch` calls demand.
    pub(crate) fn growing(most: usize, max_batch: usize) -> Self {
        let many = max_batch.min(MANY);
        Self { lanes: AtomicUsize::new(1), most, many, few: (many / 6).max(1), mean: AtomicUsize::new(0) }
    }

    /// A fixed number of lanes.
    pub(crate) fn fixed(lanes: usize) -> Self {
        Self { lanes: AtomicUsize::new(lanes), most: lanes, many: 0, few: 0, mean: AtomicUsize::new(0) }
    }

    /// Another with the same bounds, which has seen nothing.
    pub(crate) fn afresh(&self) -> Self {
        let Self { most, many, few, .. } = *self;
        let lanes = if many == 0 { most } else { 1 };
        Self { lanes: AtomicUsize::new(lanes), most, many, few, mean: AtomicUsize::new(0) }
    }

    fn lanes(&self) -> usize {
        self.lanes.load(Ordering::Relaxed)
    }

    /// A lane has decided so many calls at once.
    fn saw(&self, calls: usize) {
        let lanes = self.lanes();
        // It is rounded up, so that for a constant batch size it comes to within seven sixteenths of that size.
        let mean = (self.mean.load(Ordering::Relaxed) * 7 + calls * 16).div_ceil(8);
        let wanted = if mean >= self.many * 16 {
            (lanes + 1).min(self.most)
        } else if mean <= self.few * 16 + 7 && mean * lanes < self.many * 16 * (lanes - 1) {
            lanes - 1
        } else {
            lanes
        };
        // The same calls make smaller batches in more lanes.
        self.mean.store(mean * lanes / wanted, Ordering::Relaxed);
        if wanted != lanes {
            // If another lane was quicker, it has seen the same.
            let _ = self.lanes.compare_exchange(lanes, wanted, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

/// A queue of calls, and the worker that takes them while there are any.
///
/// The worker takes all queued calls as one batch; on Citus, all queued calls of one part. Callers that come meanwhile
/// form the next batch: no caller waits for a timer, and a lone caller is a batch of one. An idle lane has no worker
/// and no connection.
struct Lane {
    shared: Arc<Shared>,
    server: Server,
    blocked: Arc<Blocked>,
    /// The number of lanes, if this is one of those that open and close.
    width: Option<Arc<Width>>,
    queue: Mutex<Queue>,
}

impl Lane {
    fn new(shared: Arc<Shared>, server: Server, blocked: Arc<Blocked>, width: Option<Arc<Width>>) -> Self {
        Self { shared, server, blocked, width, queue: Mutex::default() }
    }

    /// Queues a call. Fails if the queue is full or the server is silent.
    fn submit(self: &Arc<Self>, call: QueuedCall) -> Result<(), Error> {
        let mut queue = lock(&self.queue);
        // This is checked under the lock, so that a call that is queued before an outage is known is refused when it
        // is.
        if let Some(error) = self.server.outage.known() {
            return Err(error.concerning(&call.reply.limit));
        }
        if !queue.has_room(&call, self.shared.settings.queue) {
            return Err(call.reply.overloaded());
        }
        queue.push(call);
        let has_worker = std::mem::replace(&mut queue.has_worker, true);
        drop(queue);
        if !has_worker {
            self.start_worker();
        }
        Ok(())
    }

    /// Starts a worker, if there is a runtime to run it.
    fn start_worker(self: &Arc<Self>) {
        let lane = self.clone();
        let worker = Worker::new(move || {
            // All callers that wait are dismissed, once the lock is free.
            let dismissed = std::mem::take(&mut *lock(&lane.queue));
            drop(dismissed);
        });
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(work(self.clone(), worker));
        }
    }

    /// The limit of the next call. If there is none, `None`, and the worker ends.
    fn next_limit(&self) -> Option<Text> {
        let mut queue = lock(&self.queue);
        let limit = queue.first().map(|next| next.reply.limit.clone());
        queue.has_worker = limit.is_some();
        limit
    }

    /// The next calls to be decided together. Calls that have waited too long, and are not among them, get the error.
    fn next_batch(&self, connection: Connection) -> Batch<'_> {
        let settings = &self.shared.settings;
        let mut queue = lock(&self.queue);
        let batch = queue.take_batch(settings.max_batch, MAX_ROWS);
        let late = queue.take_late(Instant::now(), settings.acquire_timeout);
        meter::queued(queue.len());
        drop(queue);
        for call in late {
            call.reply.refuse();
        }
        let prefetch = &self.shared.memories.prefetch;
        let batch = if prefetch.is_on { prefetch.accompany(batch) } else { batch };
        Batch::new(&self.shared, connection, batch)
    }

    /// Gives an error to all callers that wait. None of their calls was begun.
    fn refuse(&self, error: &Error) {
        let refused = lock(&self.queue).take_all();
        for waiting in refused {
            waiting.reply.send(Err(error.clone()));
        }
    }

    /// Decides queued calls over this connection, or over a new one. Returns the connection if it is still usable.
    async fn decide(&self, idle: Option<Connection>, limit: &Text) -> Option<Connection> {
        // It gets the connection before it takes the batch, so that callers that come while it waits for the connection
        // are in the batch.
        let connection = match idle {
            Some(connection) => Ok(connection),
            // There the statement that reads and the one that writes tell the begin of a transaction apart by two
            // clocks.
            None if self.shared.settings.backend.parts.is_distributed() => {
                Connection::acquire_sound(&self.shared, &self.server, limit.as_str()).await
            }
            None => Connection::acquire(&self.shared, &self.server, limit.as_str()).await,
        };
        let connection = match connection {
            Ok(connection) => connection,
            // This error is the answer to all callers that wait, so that none of them waits as long again for the same
            // error.
            Err(error) => {
                self.shared.memories.prefetch.broke();
                self.refuse(&error);
                return None;
            }
        };
        let decided = self.decide_next(connection);
        // When a batch panics, its callers get an answer as it is dropped. The calls behind it go on.
        let decided = AssertUnwindSafe(decided).catch_unwind().await;
        let (after, blocked) = decided.unwrap_or((ConnectionAfter::Gone, Vec::new()));
        if !blocked.is_empty() {
            self.blocked.add(blocked);
        }
        match after {
            ConnectionAfter::Sound(connection) => connection.unless_wanted(&self.shared).await,
            ConnectionAfter::Silent(connection, since, error) => self.wait_out(connection, since, &error).await,
            ConnectionAfter::Gone => None,
        }
    }

    /// Decides the next batch. Returns the state of the connection, and the calls whose rows another transaction locks.
    async fn decide_next(&self, connection: Connection) -> (ConnectionAfter, Vec<QueuedCall>) {
        let batch = self.next_batch(connection);
        let callers = (!batch.is_empty()).then(|| batch.callers());
        let decided = batch.run(&self.blocked).await;
        if let (Some(width), Some(callers)) = (&self.width, callers) {
            width.saw(callers);
        }
        decided
    }

    /// Runs the future, and refuses the calls that are queued meanwhile if an outage becomes known.
    async fn unless_silent<T>(&self, mut decided: Pin<&mut impl Future<Output = T>>) -> T {
        let mut outage = self.server.outage.listen();
        loop {
            match select(decided.as_mut(), pin!(outage.known())).await {
                Either::Left((decided, _)) => return decided,
                Either::Right((error, _)) => self.refuse(&error),
            }
        }
    }

    /// Waits for a server that did not answer in time. If the connection were closed, the server would stay at work,
    /// and the next connection would wait as well: a table that is locked for an hour would use up all connections.
    /// Callers that come meanwhile get the error. Only a connection that is cut off is abandoned at once.
    async fn wait_out(&self, mut connection: Connection, since: Instant, error: &Error) -> Option<Connection> {
        let timeout = self.shared.settings.statement_timeout;
        let patience = timeout.min(GIVE_UP);
        let until = Instant::now() + GIVE_UP;
        while Instant::now() < until {
            let answer = tokio::time::timeout(patience, connection.ping());
            let answer = match select(pin!(answer), pin!(cut_off(&self.server, timeout, since))).await {
                Either::Left((answer, _)) => answer,
                Either::Right(((), _)) => return None,
            };
            match answer {
                Ok(Ok(())) => {
                    connection.finished();
                    return connection.unless_wanted(&self.shared).await;
                }
                Ok(Err(_)) => return None,
                Err(_) => self.refuse(error),
            }
        }
        None
    }
}

/// Works on a lane until its queue is empty.
async fn work(lane: Arc<Lane>, worker: Worker<impl FnMut()>) {
    let mut idle = None;
    while let Some(limit) = lane.next_limit() {
        let decided = pin!(lane.decide(idle.take(), &limit));
        idle = lane.unless_silent(decided).await;
        // Callers with an answer run before the next batch, so if they ask again, they are in it. One yield is not
        // enough, because another thread of the runtime may have taken some of them over. Of 64 callers of one key, all
        // 64 are in the next batch after two yields, and 46 after one.
        tokio::task::yield_now().await;
        tokio::task::yield_now().await;
    }
    worker.done();
    if let Some(connection) = idle {
        connection.give_back(&lane.shared).await;
    }
}

const CELLS: usize = 1024;
const COOL_AT: u32 = 1 << 16;

/// How many rows one batch asks for at most, unless a single call asks for more. So a batch takes only a fraction of
/// the statement timeout.
const MAX_ROWS: usize = 8_192;

/// How long to wait for a server that does not answer, before it counts as gone.
const GIVE_UP: Duration = Duration::from_mins(1);

/// A batch of so many calls makes each of them cheap. Beyond that, another lane, which works while the first waits,
/// helps more than a larger batch, up to one lane for each core and one to spare. That also holds for durable limits.
/// If a flush takes 0.5 or 1.6 ms, 64 callers get as many grants in two lanes as in three; if it takes 0.1 ms, they get
/// a fifth more in two. And in two lanes each grant costs less processor time.
const MANY: usize = 36;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_grows_with_the_batches_and_does_not_sway() {
        let width = Width::growing(4, 256);
        for (callers, lanes) in [(1, 1), (16, 1), (64, 2), (256, 4), (40, 4), (20, 2), (9, 1), (1, 1)] {
            for _ in 0..100 {
                width.saw(callers / width.lanes());
            }
            assert_eq!(width.lanes(), lanes, "{callers}");
        }
    }

    #[test]
    fn small_batches_that_are_full_ask_for_lanes() {
        let width = Width::growing(2, 4);
        (0..100).for_each(|_| width.saw(4));
        assert_eq!(width.lanes(), 2);
        (0..100).for_each(|_| width.saw(1));
        assert_eq!(width.lanes(), 1);
    }

    #[test]
    fn batches_of_one_by_order_keep_all_lanes_open() {
        let width = Width::growing(3, 1);
        for calls in 1..200 {
            width.saw(1);
            assert!(calls < 100 || width.lanes() == 3, "{calls}");
        }
    }
}
