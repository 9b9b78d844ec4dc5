use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::time::sleep;

use super::{Batch, Wait};
use crate::error::Error;
use crate::gate::connection::Connection;
use crate::gate::reply::QueuedCall;
use crate::gate::server::Server;
use crate::gate::shared::Shared;
use crate::gate::worker::Worker;
use crate::plan::{Plan, RowId};
use crate::values::lock::lock;

/// Calls whose rows another transaction locks for longer than a moment. They are set aside so that the lanes go on.
///
/// One worker tries them in turn: calls that share rows are tried together in a short transaction, which soon gives up.
/// Between two turns it locks no row, so a locked row costs the callers of other rows six milliseconds a second. If a
/// new call asks for one of these rows, and would have to wait for it, it queues behind the calls that wait.
///
/// A turn waits in the server's queue at first. Otherwise the transactions in that queue, such as those of limiters,
/// would come first again and again. Each wait that fails leaves an error in the server's log, so most turns of a row
/// that is locked for long only try.
pub(crate) struct Blocked {
    shared: Arc<Shared>,
    server: Server,
    turns: Mutex<Turns>,
}

#[derive(Default)]
struct Turns {
    groups: VecDeque<Group>,
    /// The number of keys of the calls that wait for their turn.
    keys: usize,
    has_worker: bool,
}

/// Calls that share rows.
struct Group {
    rows: HashSet<RowId>,
    calls: VecDeque<QueuedCall>,
    /// Whether it is this group's turn: some of its calls are being decided.
    is_tried: bool,
    /// When another transaction was last seen to lock one of the rows.
    locked_at: Instant,
}

impl Blocked {
    pub(crate) fn new(shared: Arc<Shared>, server: Server) -> Self {
        Self { shared, server, turns: Mutex::default() }
    }

    /// Sets calls aside whose rows another transaction locks.
    pub(crate) fn add(self: &Arc<Self>, calls: Vec<QueuedCall>) {
        let mut turns = lock(&self.turns);
        for call in calls {
            turns.add(call, self.shared.settings.queue);
        }
        if turns.next().is_some() && !std::mem::replace(&mut turns.has_worker, true) {
            drop(turns);
            self.start_worker();
        }
    }

    /// Starts a worker, if there is a runtime to run it.
    fn start_worker(self: &Arc<Self>) {
        let blocked = self.clone();
        let worker = Worker::new(move || *lock(&blocked.turns) = Turns::default());
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(work(self.clone(), worker));
        }
    }

    /// Divides calls of a plan into those that ask a row which was seen locked a moment ago, and the others.
    pub(crate) fn divide(&self, plan: &Plan, calls: Vec<usize>) -> (Vec<usize>, Vec<usize>) {
        let mut turns = lock(&self.turns);
        let is_locked = |group: &Group| group.locked_at.elapsed() < REMEMBERED;
        turns.groups.retain(|group| group.is_tried || !group.calls.is_empty() || is_locked(group));
        calls.into_iter().partition(|call| plan.call(*call).first_rows().any(|row| turns.of(row).is_some()))
    }

    /// The calls of the next group, and how to wait for their rows. If there are none, `None`, and the worker ends.
    /// Callers that have waited too long get the error.
    fn take(&self) -> Option<(Vec<QueuedCall>, Wait)> {
        let (settings, mut turns) = (&self.shared.settings, lock(&self.turns));
        while let Some(place) = turns.next() {
            let mut group = turns.groups.remove(place)?;
            let (mut calls, mut patience, mut longest) = (Vec::new(), Duration::ZERO, Duration::ZERO);
            while let Some(call) = group.calls.pop_front_if(|_| calls.len() < settings.max_batch) {
                turns.keys -= call.call.keys();
                let waited = call.blocked_since.map_or(Duration::ZERO, |since| since.elapsed());
                let left = settings.lock_timeout.saturating_sub(waited);
                if left.is_zero() {
                    let limit = call.reply.limit.clone().into();
                    call.reply.send(Err(Error::Locked { limit }));
                } else if !call.reply.is_abandoned() {
                    (patience, longest) = (patience.max(left), longest.max(waited));
                    calls.push(call);
                }
            }
            group.is_tried = !calls.is_empty();
            let is_alone = turns.next().is_none();
            turns.groups.push_back(group);
            if !calls.is_empty() {
                let is_distributed = settings.backend.parts.is_distributed();
                return Some((calls, wait(longest, patience, is_alone, is_distributed)));
            }
        }
        turns.has_worker = false;
        None
    }

    /// How long to wait after a turn that failed: each row is tried about as often, however many are locked.
    fn pause(&self) -> Duration {
        PAUSE / u32::try_from(lock(&self.turns).groups.len()).unwrap_or(u32::MAX).max(1)
    }

    /// Ends a group's turn. The rows of these calls are still locked by another transaction.
    fn put_back(&self, still: Vec<QueuedCall>) {
        let mut turns = lock(&self.turns);
        let Some(place) = turns.groups.iter().position(|group| group.is_tried) else { return };
        turns.keys += still.iter().map(|call| call.call.keys()).sum::<usize>();
        let group = &mut turns.groups[place];
        group.is_tried = false;
        if !still.is_empty() {
            group.locked_at = Instant::now();
            still.into_iter().rev().for_each(|call| group.calls.push_front(call));
        }
        // Rows of calls that are gone are forgotten.
        group.rows = group.calls.iter().flat_map(|call| call.call.first_rows()).cloned().collect();
        if group.calls.is_empty() {
            turns.groups.remove(place);
        }
    }
}

impl Turns {
    /// Adds a call, behind those that ask for one of its rows. All waiting calls together ask for at most so many keys.
    fn add(&mut self, mut call: QueuedCall, most: usize) {
        let keys = call.call.keys();
        if self.keys > 0 && self.keys + keys > most {
            return call.reply.refuse();
        }
        self.keys += keys;
        let now = Instant::now();
        call.blocked_since.get_or_insert(now);
        let place = call.call.first_rows().find_map(|row| self.of(row)).unwrap_or_else(|| {
            let (rows, calls) = (HashSet::new(), VecDeque::new());
            self.groups.push_back(Group { rows, calls, is_tried: false, locked_at: now });
            self.groups.len() - 1
        });
        let group = &mut self.groups[place];
        group.rows.extend(call.call.first_rows().cloned());
        group.calls.push_back(call);
    }

    /// The place of the group of a row.
    fn of(&self, row: &RowId) -> Option<usize> {
        self.groups.iter().position(|group| group.rows.contains(row))
    }

    /// The place of the next group that has calls.
    fn next(&self) -> Option<usize> {
        self.groups.iter().position(|group| !group.calls.is_empty())
    }
}

/// Tries the groups in turn until no call waits.
async fn work(blocked: Arc<Blocked>, worker: Worker<impl FnMut()>) {
    let shared = &blocked.shared;
    while let Some((calls, wait)) = blocked.take() {
        let limit = calls[0].reply.limit.clone();
        let still = match Connection::acquire(shared, &blocked.server, limit.as_str()).await {
            Ok(connection) => Batch::new(shared, connection, calls).run_locked(wait).await,
            Err(error) => {
                shared.memories.prefetch.broke();
                for call in calls {
                    call.reply.send(Err(error.clone()));
                }
                Vec::new()
            }
        };
        let has_failed = !still.is_empty();
        blocked.put_back(still);
        if has_failed && matches!(wait, Wait::Apart(_)) {
            sleep(blocked.pause()).await;
        }
    }
    worker.done();
}

/// How calls wait in their turn, after they have waited for so long. On Citus they always wait in the queue.
fn wait(waited: Duration, left: Duration, is_alone: bool, is_distributed: bool) -> Wait {
    let in_round = Duration::from_millis((waited.subsec_millis() % ROUND).into());
    match IN_QUEUE.checked_sub(in_round) {
        Some(rest) if is_alone && !is_distributed => Wait::InQueue(left.min(rest.max(TURN))),
        None if !is_distributed => Wait::Apart(Duration::ZERO),
        _ => Wait::InQueue(left.min(TURN)),
    }
}

/// How long a turn waits in the queue if the calls of other locked rows wait for their turns.
const TURN: Duration = Duration::from_millis(20);

/// For so long of each round, of so many milliseconds, calls wait in the queue. Then they only try. It is well below
/// the `deadlock_timeout` of PostgreSQL.
const IN_QUEUE: Duration = Duration::from_millis(100);
const ROUND: u32 = 500;

/// How often a row that is locked for long is tried.
const PAUSE: Duration = Duration::from_millis(10);

/// How long a row that was locked is assumed to be locked still. A call that would wait for it is set aside at once.
const REMEMBERED: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::Call;
    use crate::gate::Gate;
    use crate::gate::reply::Reply;
    use crate::plan::{Operation, Under, Verb};
    use crate::{Limit, MINUTE, SECOND};

    const LIMIT: Limit = Limit::token_bucket("one", 1, MINUTE);

    fn call(keys: &[i64]) -> QueuedCall {
        let call =
            Operation::of(Verb::consume(keys.iter().map(|key| LIMIT.key(*key)).collect::<Call>()), &Under::NOTHING)
                .unwrap();
        let (reply, answer) = Reply::new("one".to_owned().into());
        std::mem::forget(answer);
        QueuedCall { call, reply, blocked_since: None }
    }

    #[tokio::test]
    async fn a_row_leaves_with_the_last_call_that_asks_for_it() {
        let pool = sqlx::PgPool::connect_lazy("postgres://nobody@localhost/none").unwrap();
        let shared = Gate::new(pool).inner.shared.clone();
        let blocked = Blocked::new(shared.clone(), shared.entry.clone());
        for keys in [&[1][..], &[1, 2], &[1, 3]] {
            lock(&blocked.turns).add(call(keys), 10);
        }
        let knows =
            || [1, 2, 3].map(|key| lock(&blocked.turns).of(call(&[key]).call.first_rows().next().unwrap()).is_some());
        let (mut tried, _) = blocked.take().unwrap();
        assert_eq!((tried.len(), knows()), (3, [true; 3]));
        tried.pop();
        blocked.put_back(tried);
        assert_eq!(knows(), [true, true, false]);
        assert_eq!(lock(&blocked.turns).keys, 3);
        let (tried, _) = blocked.take().unwrap();
        drop(tried);
        blocked.put_back(Vec::new());
        assert_eq!(knows(), [false; 3]);
    }

    /// A row that is locked for a second leaves two errors in the server's log.
    #[test]
    fn calls_wait_in_the_queue_at_the_begin_of_each_round() {
        let after = |waited, is_alone| wait(Duration::from_millis(waited), MINUTE, is_alone, false);
        assert_eq!(
            [after(0, true), after(540, true)],
            [100, 60].map(|span| Wait::InQueue(Duration::from_millis(span)))
        );
        assert_eq!(after(540, false), Wait::InQueue(TURN));
        assert_eq!([after(101, true), after(999, false)], [Wait::Apart(Duration::ZERO); 2]);
        assert_eq!(wait(Duration::from_millis(300), MINUTE, true, true), Wait::InQueue(TURN));
        assert_eq!(wait(Duration::ZERO, SECOND / 1_000, true, false), Wait::InQueue(SECOND / 1_000));
    }
}
