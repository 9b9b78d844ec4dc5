#![expect(
    clippy::disallowed_methods,
    reason = "measures how long calls wait on this machine's monotonic clock; no decision depends on it"
)]

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;

use super::batch::Batch;
use super::connection::Connection;
use super::reply::QueuedCall;
use super::shared::Shared;
use crate::error::Error;
use crate::plan::{Plan, Row};

/// Where calls wait whose rows somebody else holds for longer than a moment, so that the lanes go on.
///
/// One task tries them in turn: calls that share rows in a short transaction, which gives up soon. Between two turns it
/// holds no row. A call that asks for one of these rows meanwhile, and would wait for it, queues behind those who do.
pub(super) struct WaitingRoom {
    shared: Arc<Shared>,
    parties: Mutex<Parties>,
}

#[derive(Default)]
struct Parties {
    waiting: VecDeque<Party>,
    /// How many keys the calls ask for that wait for their turn.
    keys: usize,
    /// Whether a task works on them.
    attended: bool,
}

/// Calls that share rows.
struct Party {
    rows: HashSet<Row>,
    calls: VecDeque<QueuedCall>,
    /// Whether it is its turn: some of its calls are being decided.
    tried: bool,
    /// When somebody was last seen to hold one of the rows.
    held_at: Instant,
}

impl WaitingRoom {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, parties: Mutex::default() }
    }

    /// Lets calls wait whose rows somebody holds.
    pub(super) fn admit(self: &Arc<Self>, calls: Vec<QueuedCall>) {
        if calls.is_empty() {
            return;
        }
        let mut parties = self.parties();
        for call in calls {
            parties.admit(call, self.shared.settings.queue);
        }
        if parties.next().is_some() && !std::mem::replace(&mut parties.attended, true) {
            drop(parties);
            self.attend();
        }
    }

    /// Starts the task that works on the parties, where there is a runtime to run it.
    fn attend(self: &Arc<Self>) {
        let usher = Usher { room: Some(self.clone()) };
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(work(usher));
        }
    }

    /// Divides calls of a plan into those that ask a row which somebody was seen to hold a moment ago, and the others.
    pub(super) fn divide(&self, plan: &Plan, calls: Vec<usize>) -> (Vec<usize>, Vec<usize>) {
        let mut parties = self.parties();
        let is_held = |party: &Party| party.held_at.elapsed() < REMEMBERED;
        parties.waiting.retain(|party| party.tried || !party.calls.is_empty() || is_held(party));
        calls.into_iter().partition(|call| plan.call(*call).first_rows().any(|row| parties.of(row).is_some()))
    }

    /// The calls of the next party, and how long to wait for their rows; `None`, and nobody attends any longer, if
    /// there are none. Those whose patience has ended are told.
    fn take(&self) -> Option<(Vec<QueuedCall>, Duration)> {
        let (settings, mut parties) = (&self.shared.settings, self.parties());
        while let Some(place) = parties.next() {
            let mut party = parties.waiting.remove(place)?;
            let (mut calls, mut patience) = (Vec::new(), Duration::ZERO);
            while let Some(call) = party.calls.pop_front_if(|_| calls.len() < settings.max_batch) {
                parties.keys -= call.call.keys();
                let waited = call.held_since.map_or(Duration::ZERO, |since| since.elapsed());
                let left = settings.lock_timeout.saturating_sub(waited);
                if left.is_zero() {
                    let limit = call.reply.limit().clone().into();
                    call.reply.send(Err(Error::Locked { limit }));
                } else if !call.reply.is_abandoned() {
                    patience = patience.max(left);
                    calls.push(call);
                }
            }
            party.tried = !calls.is_empty();
            parties.waiting.push_back(party);
            if !calls.is_empty() {
                return Some((calls, patience.min(TURN)));
            }
        }
        parties.attended = false;
        None
    }

    /// Ends a party's turn. Somebody still holds the rows of these calls.
    fn put_back(&self, held: Vec<QueuedCall>) {
        let mut parties = self.parties();
        let Some(place) = parties.waiting.iter().position(|party| party.tried) else { return };
        parties.keys += held.iter().map(|call| call.call.keys()).sum::<usize>();
        let party = &mut parties.waiting[place];
        party.tried = false;
        if !held.is_empty() {
            party.held_at = Instant::now();
            held.into_iter().rev().for_each(|call| party.calls.push_front(call));
        }
        // Those of calls that are gone are forgotten.
        party.rows = party.calls.iter().flat_map(|call| call.call.first_rows()).cloned().collect();
        if party.calls.is_empty() {
            parties.waiting.remove(place);
        }
    }

    fn parties(&self) -> MutexGuard<'_, Parties> {
        // Nothing that runs under the lock leaves the parties half changed.
        self.parties.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Parties {
    /// Lets a call wait, behind those who ask for one of its rows; all of them for so many keys at most.
    fn admit(&mut self, mut call: QueuedCall, most: usize) {
        let keys = call.call.keys();
        if self.keys > 0 && self.keys + keys > most {
            return call.reply.refuse();
        }
        self.keys += keys;
        let now = Instant::now();
        call.held_since.get_or_insert(now);
        let place = call.call.first_rows().find_map(|row| self.of(row)).unwrap_or_else(|| {
            let (rows, calls) = (HashSet::new(), VecDeque::new());
            self.waiting.push_back(Party { rows, calls, tried: false, held_at: now });
            self.waiting.len() - 1
        });
        let party = &mut self.waiting[place];
        party.rows.extend(call.call.first_rows().cloned());
        party.calls.push_back(call);
    }

    /// The place of the party of a row.
    fn of(&self, row: &Row) -> Option<usize> {
        self.waiting.iter().position(|party| party.rows.contains(row))
    }

    /// The place of the next party that has calls.
    fn next(&self) -> Option<usize> {
        self.waiting.iter().position(|party| !party.calls.is_empty())
    }
}

/// Tries the parties in turn until nobody waits.
async fn work(mut usher: Usher) {
    let Some(room) = usher.room.clone() else { return };
    let shared = &room.shared;
    while let Some((calls, patience)) = room.take() {
        let limit = calls[0].reply.limit().clone();
        let held = match Connection::acquire(shared, limit.as_str()).await {
            Ok(connection) => Batch::new(calls).run_locked(shared, connection, patience).await,
            Err(error) => {
                for call in calls {
                    call.reply.send(Err(error.clone()));
                }
                Vec::new()
            }
        };
        room.put_back(held);
    }
    usher.room = None;
}

/// Keeps callers from waiting for a task whose runtime has ended, or that has panicked.
struct Usher {
    /// `None` once nobody waits, and the next call is another task's affair.
    room: Option<Arc<WaitingRoom>>,
}

impl Drop for Usher {
    fn drop(&mut self) {
        if let Some(room) = self.room.take() {
            *room.parties() = Parties::default();
        }
    }
}

/// How long a turn waits for rows, at most: well below the `deadlock_timeout` of PostgreSQL.
const TURN: Duration = Duration::from_millis(20);

/// How long a row that was held is taken for one that still is: who would wait for it does so here at once.
const REMEMBERED: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gate::Gate;
    use crate::gate::reply::Reply;
    use crate::plan::Call;
    use crate::{Limit, MINUTE};

    const LIMIT: Limit = Limit::token_bucket("one", 1, MINUTE);

    fn call(keys: &[i64]) -> QueuedCall {
        let call = Call::consume(keys.iter().map(|key| LIMIT.key(*key))).checked().unwrap();
        let (reply, answer) = Reply::new("one".to_owned().into());
        std::mem::forget(answer);
        QueuedCall { call, reply, held_since: None }
    }

    #[tokio::test]
    async fn a_row_leaves_with_the_last_call_that_asks_for_it() {
        let pool = sqlx::PgPool::connect_lazy("postgres://nobody@localhost/none").unwrap();
        let room = WaitingRoom::new(Gate::new(pool).inner.shared.clone());
        for keys in [&[1][..], &[1, 2], &[1, 3]] {
            room.parties().admit(call(keys), 10);
        }
        let knows = || [1, 2, 3].map(|key| room.parties().of(call(&[key]).call.first_rows().next().unwrap()).is_some());
        let (mut tried, _) = room.take().unwrap();
        assert_eq!((tried.len(), knows()), (3, [true; 3]));
        tried.pop();
        room.put_back(tried);
        assert_eq!(knows(), [true, true, false]);
        assert_eq!(room.parties().keys, 3);
        let (tried, _) = room.take().unwrap();
        drop(tried);
        room.put_back(Vec::new());
        assert_eq!(knows(), [false; 3]);
    }
}
