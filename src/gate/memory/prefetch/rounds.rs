use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;

use super::Prefetch;
use crate::gate::reply::QueuedCall;
use crate::gate::worker::Worker;
use crate::values::lock::lock;

/// When to look at which key again. One task gives idle slices back, and forgets keys that no call has asked within the
/// last two `max_age`.
pub(super) struct Rounds {
    every: Duration,
    visits: Mutex<Visits>,
    outlet: OnceLock<(Weak<Prefetch>, Outlet)>,
}

/// Sends a call that no caller waits for. The lanes depend on this memory, so it does not depend on them.
type Outlet = Arc<dyn Fn(QueuedCall) + Send + Sync>;

#[derive(Debug, Default)]
struct Visits {
    due: BinaryHeap<Reverse<Visit>>,
    has_task: bool,
}

/// A visit to a slice of a key, or without a number to the key itself.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct Visit {
    at: Instant,
    hash: u64,
    slice: u64,
    /// How many calls the slice had served at the visit before.
    hits: u32,
}

impl Rounds {
    pub(super) fn new(shortest: Option<Duration>) -> Self {
        // Slices that are due together are given back together.
        let every = (shortest.unwrap_or_default() / 16).max(Duration::from_millis(1));
        Self { every, visits: Mutex::default(), outlet: OnceLock::new() }
    }

    /// Looks at a slice of a key at an instant, or at the key.
    pub(super) fn look_at(&self, at: Instant, hash: u64, slice: u64) {
        self.plan(Visit { at, hash, slice, hits: 0 });
    }

    fn plan(&self, visit: Visit) {
        let mut visits = lock(&self.visits);
        visits.due.push(Reverse(visit));
        if visits.has_task {
            return;
        }
        if let (Some((prefetch, outlet)), Ok(runtime)) = (self.outlet.get(), Handle::try_current()) {
            visits.has_task = true;
            runtime.spawn(keep(prefetch.clone(), outlet.clone(), self.every));
        }
    }

    /// Queues a call that no caller waits for.
    pub(super) fn send(&self, call: QueuedCall) {
        if let Some((_, outlet)) = self.outlet.get() {
            outlet(call);
        }
    }

    /// The visits that are due by now. If none is planned, `None`, and the task ends.
    fn due(&self, now: Instant) -> Option<Vec<Visit>> {
        let (mut visits, mut due) = (lock(&self.visits), Vec::new());
        while visits.due.peek().is_some_and(|Reverse(next)| next.at <= now) {
            due.extend(visits.due.pop().map(|Reverse(visit)| visit));
        }
        visits.has_task = !(due.is_empty() && visits.due.is_empty());
        visits.has_task.then_some(due)
    }
}

impl Prefetch {
    /// Sets the outlet over which it gives tokens back.
    pub(crate) fn send_over(self: &Arc<Self>, outlet: Outlet) {
        assert!(self.rounds.outlet.set((Arc::downgrade(self), outlet)).is_ok(), "a gate is built once");
    }

    /// Looks at a key. Returns the call that gives back a slice that lies idle, or will soon be too old.
    fn visit(&self, visit: Visit, now: Instant) -> Option<QueuedCall> {
        let mut shard = self.keys.write(visit.hash);
        let known = shard.get_mut(&visit.hash)?;
        if visit.slice == 0 {
            let end = known.demand.since + 2 * known.max_age;
            if known.slice.is_some() || known.is_pending || now < end {
                self.rounds.plan(Visit { at: end.max(now + known.max_age), ..visit });
            } else {
                self.keys.forget(&mut shard, visit.hash);
            }
            return None;
        }
        let slice = known.slice.as_ref().filter(|slice| slice.id == visit.slice)?;
        let (hits, end) = (slice.hits.load(Ordering::Relaxed), slice.ends());
        if hits == visit.hits || now >= end {
            return self.detach(known);
        }
        self.rounds.plan(Visit { at: end.min(now + known.demand.quiet), hits, ..visit });
        None
    }
}

/// Gives slices back and forgets keys, until no key is known or the gate is gone.
async fn keep(prefetch: Weak<Prefetch>, outlet: Outlet, every: Duration) {
    // If the task's runtime ends, the next slice starts another task.
    let here = prefetch.clone();
    let worker = Worker::new(move || {
        if let Some(prefetch) = here.upgrade() {
            lock(&prefetch.rounds.visits).has_task = false;
        }
    });
    loop {
        tokio::time::sleep(every).await;
        let now = Instant::now();
        let Some(prefetch) = prefetch.upgrade() else { return worker.done() };
        let Some(due) = prefetch.rounds.due(now) else { return worker.done() };
        due.into_iter().filter_map(|visit| prefetch.visit(visit, now)).for_each(&*outlet);
    }
}
