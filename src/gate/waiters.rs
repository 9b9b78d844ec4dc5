#![expect(
    clippy::disallowed_methods,
    reason = "measures how long callers sleep on this machine's monotonic clock; what time it is, the database says"
)]

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use tokio::sync::Notify;

use super::hand_over::{HandOvers, LAST_PAUSE, pause};
use crate::algebra::{Ask, Flow, State, Timestamp};
use crate::decision::{Decision, Denied, Grant};
use crate::plan::{Item, Row};
use crate::reason::Reason;
use crate::standing::Each;
use crate::tokens::Tokens;

/// The callers that wait for tokens, row by row, in the order in which they came.
///
/// Only the first one of a row sleeps until its tokens are there. Then it asks, and the next one comes forward, which
/// goes by what the first one leaves: so all whose tokens are there ask at once, and each caller asks once more than it
/// is refused. Who is refused, because others took tokens, goes back to its place.
///
/// Where charges lapse nobody knows what the first one leaves. There the next one asks when the first has its answer.
///
/// What a concurrency limit grants comes back when somebody releases it, and nobody knows when. There the first one
/// asks now and then, and when this gate has released something that it does not leave to other processes.
#[derive(Default)]
pub(super) struct Waiters {
    by_row: Mutex<HashMap<Row, Waiting>>,
    hand_overs: HandOvers,
    /// How many callers have come.
    arrived: AtomicU64,
}

/// One of them. Dropped, it waits no longer.
pub(super) struct Waiter<'w> {
    waiters: &'w Waiters,
    /// What it waits for.
    pub(super) item: &'w Item<Ask>,
    number: u64,
    /// Wakes the one who waits here when it comes first.
    first: Arc<Notify>,
}

/// Those who wait for one row.
struct Waiting {
    expected: Expected,
    /// By their numbers.
    callers: BTreeMap<u64, Arc<Notify>>,
    /// What the last refusal said, and when the row was first seen so.
    told: (Tokens, Option<DateTime<Utc>>),
    changed: Instant,
    /// Whether something was released since somebody asked last.
    is_released: bool,
    /// How many have a place, with those who are asking.
    places: usize,
}

/// What the row holds, as far as is known, when those who are asking have their tokens.
struct Expected {
    state: State,
    /// The balance that was missing last, and the instant at which it will be granted, until somebody takes tokens.
    refused: Option<(Tokens, Timestamp)>,
    /// Whether the instants of other costs follow from the state. Where holds lapse or are in the way they do not, so
    /// those who want less ask.
    is_known: bool,
    /// What time it was by the database's clock at an instant of ours.
    read: (Timestamp, Instant),
    /// When the first one asks, where it waits for a release, or for the answer of the one before it.
    asks_at: Option<Instant>,
}

impl Waiters {
    /// Waits while the row is left to other processes.
    pub(super) async fn leave_to_others(&self, item: &Item<Ask>, deadline: Option<tokio::time::Instant>) {
        if let Some(until) = self.hand_overs.left_until(&item.target.first) {
            let until = tokio::time::Instant::from(until);
            tokio::time::sleep_until(deadline.map_or(until, |deadline| deadline.min(until))).await;
        }
    }

    /// The number of a caller that comes. It is drawn before the caller asks: one that is refused while others begin to
    /// wait comes before those who came later and joined them at once.
    pub(super) fn draw_number(&self) -> u64 {
        self.arrived.fetch_add(1, Ordering::Relaxed)
    }

    /// Whether anybody waits for the row.
    pub(super) fn has_line(&self, item: &Item<Ask>) -> bool {
        self.lock().contains_key(&item.target.first)
    }

    /// A place among those who wait for the row, if there are any.
    pub(super) fn join<'w>(&'w self, item: &'w Item<Ask>, number: u64) -> Option<Waiter<'w>> {
        let mut by_row = self.lock();
        let waiting = by_row.get_mut(&item.target.first)?;
        Some(self.place(waiting, item, number))
    }

    /// A place for somebody who was refused.
    pub(super) fn join_refused<'w>(&'w self, item: &'w Item<Ask>, number: u64, denied: &Denied) -> Waiter<'w> {
        let mut by_row = self.lock();
        let waiting = by_row.entry(item.target.first.clone()).or_insert_with(|| Waiting {
            expected: Expected::after(item, denied, Duration::ZERO),
            callers: BTreeMap::new(),
            told: (denied.remaining, denied.retry_at),
            changed: Instant::now(),
            is_released: false,
            places: 0,
        });
        waiting.hear(item, denied);
        self.place(waiting, item, number)
    }

    fn place<'w>(&'w self, waiting: &mut Waiting, item: &'w Item<Ask>, number: u64) -> Waiter<'w> {
        let first = Arc::new(Notify::new());
        waiting.places += 1;
        waiting.callers.insert(number, first.clone());
        Waiter { waiters: self, item, number, first }
    }

    /// Something was released: the first ones of these rows ask.
    pub(super) fn wake(&self, rows: &[Row]) {
        if rows.is_empty() {
            return;
        }
        let mut by_row = self.lock();
        for row in rows {
            self.hand_overs.count(row);
            if let Some(waiting) = by_row.get_mut(row) {
                waiting.release(self.hand_overs.left_until(row));
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Row, Waiting>> {
        // Nothing that runs under the lock leaves it half changed.
        self.by_row.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiter<'_> {
    /// Waits until this is the first place and its tokens are there, as far as is known, and for up to `late` more.
    /// Then the next place is the first. Returns early, and stays the first, where they will not be there by the
    /// deadline. Whether the deadline has not passed.
    pub(super) async fn turn(&self, deadline: Option<tokio::time::Instant>, late: Duration) -> bool {
        let turn = self.come_first(deadline, late);
        if let Some(deadline) = deadline {
            return tokio::time::timeout_at(deadline, turn).await.is_ok();
        }
        turn.await;
        true
    }

    async fn come_first(&self, deadline: Option<tokio::time::Instant>, late: Duration) {
        loop {
            match self.look() {
                Turn::Ask => return,
                Turn::Queue => self.first.notified().await,
                Turn::Sleep(pause) => {
                    let wake = tokio::time::Instant::now().checked_add(pause);
                    let is_in_time = |wake: &tokio::time::Instant| deadline.is_none_or(|deadline| *wake <= deadline);
                    let Some(wake) = wake.filter(|wake| self.waits_for_release() || is_in_time(wake)) else { return };
                    let wake = wake.checked_add(late).unwrap_or(wake);
                    let _ = tokio::time::timeout_at(wake, self.first.notified()).await;
                }
            }
        }
    }

    /// Goes back to where it was, after a refusal.
    pub(super) fn refused(&self, denied: &Denied) {
        let mut by_row = self.waiters.lock();
        if let Some(waiting) = by_row.get_mut(&self.item.target.first) {
            waiting.hear(self.item, denied);
            waiting.callers.insert(self.number, self.first.clone());
        }
    }

    pub(super) fn is_first(&self) -> bool {
        let by_row = self.waiters.lock();
        by_row.get(&self.item.target.first).is_none_or(|waiting| waiting.is_first(self.number))
    }

    fn waits_for_release(&self) -> bool {
        self.item.target.terms.flow == Flow::Leased
    }

    fn look(&self) -> Turn {
        let mut by_row = self.waiters.lock();
        let Some(waiting) = by_row.get_mut(&self.item.target.first) else { return Turn::Ask };
        if !waiting.is_first(self.number) {
            return Turn::Queue;
        }
        let pause = waiting.expected.pause(self.item);
        if !pause.is_zero() {
            return Turn::Sleep(pause);
        }
        waiting.expected.take(self.item);
        waiting.is_released = false;
        waiting.leave(self.number);
        Turn::Ask
    }
}

/// What somebody who waits does next.
enum Turn {
    Ask,
    Queue,
    Sleep(Duration),
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let mut by_row = self.waiters.lock();
        if let Some(waiting) = by_row.get_mut(&self.item.target.first) {
            let has_asked = !waiting.callers.contains_key(&self.number);
            if let (true, Some(asks_at)) = (has_asked, &mut waiting.expected.asks_at) {
                // It has what it waited for, and more may be there.
                *asks_at = Instant::now();
            }
            waiting.leave(self.number);
            waiting.places -= 1;
            if waiting.places == 0 {
                by_row.remove(&self.item.target.first);
            }
        }
    }
}

impl Waiting {
    fn is_first(&self, number: u64) -> bool {
        self.callers.first_key_value().is_none_or(|(first, _)| *first == number)
    }

    /// Somebody was refused.
    fn hear(&mut self, item: &Item<Ask>, denied: &Denied) {
        let told = (denied.remaining, denied.retry_at);
        if told != self.told {
            (self.told, self.changed) = (told, Instant::now());
        }
        let pause = if self.is_released { Duration::ZERO } else { pause(self.changed.elapsed()) };
        self.expected = Expected::after(item, denied, pause);
    }

    /// Something was released: the first one asks, once it is no longer left to other processes. Where one is asking
    /// already, nobody overtakes it: it asks once more if it is refused, and else the next one does.
    fn release(&mut self, left_until: Option<Instant>) {
        (self.is_released, self.changed) = (left_until.is_none(), Instant::now());
        if self.callers.len() == self.places {
            self.expected.asks_at = Some(left_until.unwrap_or(self.changed));
            self.call_first();
        }
    }

    /// Lets the next one come forward.
    fn leave(&mut self, number: u64) {
        self.callers.remove(&number);
        self.call_first();
    }

    fn call_first(&self) {
        if let Some((_, first)) = self.callers.first_key_value() {
            first.notify_one();
        }
    }
}

impl Expected {
    /// What a refusal tells of the row; who waits for a release asks again after the pause.
    fn after(item: &Item<Ask>, denied: &Denied, pause: Duration) -> Self {
        let now = Timestamp::from(denied.decided_at);
        let retry_at = denied.retry_at.map_or(Timestamp::MAX, Timestamp::from);
        let ts = match item.target.terms.flow {
            // Its steps lie whole periods before the one at which it would grant.
            Flow::FirstUse => {
                let period = item.target.terms.period;
                let until_step = retry_at.micros().saturating_sub(now.micros()).rem_euclid(period);
                Timestamp::from_micros(now.micros().saturating_add(until_step).saturating_sub(period))
            }
            Flow::Continuous
            | Flow::Grid { .. }
            | Flow::Named { .. }
            | Flow::Sliding { .. }
            | Flow::Leased
            | Flow::Wallet => now,
        };
        let terms = &item.target.terms;
        let needs = item.action.needs(terms);
        let state = State::new(denied.remaining, ts);
        // What is left was rounded, in each of the rows.
        let rounding =
            (terms.period / terms.rate.max(1) + 1).saturating_mul(i64::try_from(item.target.rows).unwrap_or(1));
        let difference = terms.first_instant(&state, needs).micros().abs_diff(retry_at.micros());
        let (is_known, now) = (difference <= rounding.unsigned_abs(), Instant::now());
        let asks_at =
            (terms.flow == Flow::Leased).then(|| now + denied.retry_after().map_or(pause, |wait| pause.min(wait)));
        Self { state, refused: Some((needs, retry_at)), is_known, read: (denied.observed_at.into(), now), asks_at }
    }

    /// How long until the row holds what is asked.
    fn pause(&self, item: &Item<Ask>) -> Duration {
        if let Some(at) = self.asks_at {
            return at.saturating_duration_since(Instant::now());
        }
        let needs = item.action.needs(&item.target.terms);
        let instant = match self.refused {
            Some((refused, retry_at)) if needs == refused || needs > refused && !self.is_known => retry_at,
            _ if self.is_known => item.target.terms.first_instant(&self.state, needs),
            _ => return Duration::ZERO,
        };
        Duration::from_micros(instant.micros().saturating_sub(self.now().micros()).try_into().unwrap_or(0))
    }

    fn take(&mut self, item: &Item<Ask>) {
        if self.asks_at.is_some() || !self.is_known {
            // The next one asks when this one has its answer.
            self.asks_at = Some(Instant::now() + LAST_PAUSE);
            return;
        }
        self.refused = None;
        self.state = item.target.terms.refill(&self.state, self.now());
        let taken = item.action.of_balance(self.state.value.micros().into(), &item.target.terms).cost();
        let left = self.state.value.micros().saturating_sub(taken.micros());
        self.state.value = Tokens::from_micros(left);
    }

    fn now(&self) -> Timestamp {
        let (now, at) = self.read;
        now.plus(at.elapsed())
    }
}

/// The refusal of a caller whose timeout ends while others are before it. Where its tokens are there, theirs are too,
/// so it may ask again at once.
pub(super) fn out_of_turn(item: &Item<Ask>, checked: Decision) -> Denied {
    match checked {
        Decision::Denied(denied) => denied,
        Decision::Granted(Grant { remaining, observed_at, decided_at, source, standings, would_deny, .. }) => Denied {
            limit: item.target.limit.name.clone().into(),
            key: item.target.first.key.clone(),
            reason: Reason::OutOfTurn,
            remaining,
            retry_at: Some(observed_at + chrono::TimeDelta::microseconds(1)),
            observed_at,
            decided_at,
            source,
            others: Each::default(),
            standings,
            would_deny,
        },
    }
}
