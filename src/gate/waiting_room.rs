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
use super::shared::{Settings, Shared};
use crate::error::Error;
use crate::plan::Row;

/// Where calls wait whose rows somebody else holds for longer than a moment, so that the lanes go on.
///
/// One task tries them in turn: calls that share rows in a short transaction, which gives up soon. Between two turns it
/// holds no row. A call that asks for one of these rows meanwhile, and would wait for it, queues behind those who do.
#[derive(Debug)]
pub(super) struct WaitingRoom {
    shared: Arc<Shared>,
    parties: Mutex<Parties>,
}

#[derive(Debug, Default)]
struct Parties {
    waiting: VecDeque<Party>,
    /// Whether a task works on them.
    attended: bool,
}

/// Calls that share rows.
#[derive(Debug)]
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
            parties.admit(call, &self.shared.settings);
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

    /// The rows that somebody was seen to hold a moment ago.
    pub(super) fn held_rows(&self) -> HashSet<Row> {
        let mut parties = self.parties();
        let is_held = |party: &Party| party.held_at.elapsed() < REMEMBERED;
        parties.waiting.retain(|party| party.tried || !party.calls.is_empty() || is_held(party));
        parties.waiting.iter().flat_map(|party| party.rows.iter().cloned()).collect()
    }

    /// The calls of the next party, and how long to wait for their rows; `None`, and nobody attends any longer, if
    /// there are none. Those whose patience has ended are told.
    fn take(&self) -> Option<(Vec<QueuedCall>, Duration)> {
        let (settings, mut parties) = (&self.shared.settings, self.parties());
        while let Some(place) = parties.next() {
            let mut party = parties.waiting.remove(place)?;
            let (mut calls, mut patience) = (Vec::new(), Duration::ZERO);
            while let Some(call) = party.calls.pop_front_if(|_| calls.len() < settings.max_batch) {
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
        let party = &mut parties.waiting[place];
        party.tried = false;
        if !held.is_empty() {
            party.held_at = Instant::now();
            held.into_iter().rev().for_each(|call| party.calls.push_front(call));
        } else if party.calls.is_empty() {
            parties.waiting.remove(place);
        }
    }

    fn parties(&self) -> MutexGuard<'_, Parties> {
        // Nothing that runs under the lock leaves the parties half changed.
        self.parties.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Parties {
    /// Lets a call wait, behind those who ask for one of its rows.
    fn admit(&mut self, mut call: QueuedCall, settings: &Settings) {
        if self.waiting.iter().map(|party| party.calls.len()).sum::<usize>() >= settings.queue {
            let limit = call.reply.limit().clone().into();
            return call.reply.send(Err(Error::Overloaded { limit }));
        }
        let now = Instant::now();
        call.held_since.get_or_insert(now);
        let rows: Vec<Row> = call.call.first_rows().cloned().collect();
        match self.waiting.iter_mut().find(|party| rows.iter().any(|row| party.rows.contains(row))) {
            Some(party) => {
                party.rows.extend(rows);
                party.calls.push_back(call);
            }
            None => self.waiting.push_back(Party {
                rows: rows.into_iter().collect(),
                calls: VecDeque::from([call]),
                tried: false,
                held_at: now,
            }),
        }
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
            Ok(connection) => Batch::new(calls, HashSet::new()).run_locked(shared, connection, patience).await,
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
