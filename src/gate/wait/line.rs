use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use tokio::sync::Notify;

use super::hand_over::{LAST_PAUSE, pause};
use crate::algebra::{Account, Ask, Flow, State, Timestamp};
use crate::decision::Denied;
use crate::plan::Item;
use crate::tokens::Tokens;

/// The callers that wait for one row.
pub(super) struct Line {
    expected: Expected,
    /// The callers, by their numbers.
    callers: BTreeMap<u64, Arc<Notify>>,
    /// The balance and the instant of the last refusal, and when a caller first heard them.
    told: (Tokens, Option<DateTime<Utc>>),
    changed: Instant,
    /// How many callers have a place, including those that are asking.
    pub(super) places: usize,
}

/// The row, as far as it is known, after the callers that are asking have got their tokens.
struct Expected {
    state: State,
    /// The balance that the last refused call needed, and the instant at which it will be granted, until a caller takes
    /// tokens.
    refused: Option<(Tokens, Timestamp)>,
    /// Whether the instants of other costs follow from the state. They do not if the refusal names another instant than
    /// the state gives, as with listed grants or leases. Then callers with smaller costs ask.
    is_known: bool,
    /// The database's time at an instant of our clock.
    read: (Timestamp, Instant),
    /// When the first caller asks, whatever the row is known to hold.
    asks_at: Option<Instant>,
    /// When the first caller asks whether others have raised the row, unless its tokens come at about that time.
    looks_at: Instant,
    /// Whether a caller is asking, and the next one goes by the answer.
    awaits_answer: bool,
}

/// How long the first caller of a line sleeps.
#[derive(Clone, Copy)]
pub(super) struct Sleep {
    /// Until its tokens are there; `None` if that is not known.
    pub(super) due: Option<Duration>,
    /// Until it asks whether its tokens are there.
    pub(super) asks: Duration,
}

impl Line {
    /// The line of a row that has refused a caller.
    pub(super) fn behind(item: &Item<Ask>, denied: &Denied) -> Self {
        Self::new(Expected::after(item, denied, Duration::ZERO), (denied.remaining, denied.retry_at))
    }

    /// The line of a row that is left to other processes until an instant.
    pub(super) fn left_until(until: Instant) -> Self {
        Self::new(Expected::nothing(until), (Tokens::ZERO, None))
    }

    fn new(expected: Expected, told: (Tokens, Option<DateTime<Utc>>)) -> Self {
        Self { expected, callers: BTreeMap::new(), told, changed: Instant::now(), places: 0 }
    }

    pub(super) fn is_first(&self, number: u64) -> bool {
        self.callers.first_key_value().is_none_or(|(first, _)| *first == number)
    }

    pub(super) fn holds(&self, number: u64) -> bool {
        self.callers.contains_key(&number)
    }

    /// Lets a caller wait at its place. Returns whether it waited there before.
    pub(super) fn enter(&mut self, number: u64, woken: &Arc<Notify>) -> bool {
        self.callers.insert(number, woken.clone()).is_some()
    }

    /// Removes a caller, and lets the next one come forward.
    pub(super) fn leave(&mut self, number: u64) {
        self.callers.remove(&number);
        self.call_first();
    }

    pub(super) fn sleep(&self, item: &Item<Ask>) -> Sleep {
        self.expected.sleep(item)
    }

    /// Lets the first caller ask. The next one goes by the balance that it leaves, if that is known.
    pub(super) fn ask(&mut self, item: &Item<Ask>, is_known: bool, number: u64) {
        self.expected.take(item, is_known);
        self.leave(number);
    }

    /// Notes that a caller was refused. If the row was raised meanwhile, the first caller asks once more.
    pub(super) fn hear(&mut self, item: &Item<Ask>, denied: &Denied, asks_at: Option<Instant>) {
        let told = (denied.remaining, denied.retry_at);
        if told != self.told {
            (self.told, self.changed) = (told, Instant::now());
        }
        self.expected = Expected::after(item, denied, pause(self.changed.elapsed()));
        if asks_at.is_some() {
            self.expected.asks_at = asks_at;
        }
    }

    /// Notes that the row was raised, so the first caller asks. If a caller is already asking, no other overtakes it:
    /// it asks once more if it is refused, and else the next one does.
    pub(super) fn raise(&mut self, asks_at: Instant) {
        self.changed = Instant::now();
        if self.callers.len() == self.places {
            self.expected.asks_at = Some(asks_at);
            self.call_first();
        }
    }

    /// Notes that the balance after the last question is not known, so the next caller asks.
    pub(super) fn forget(&mut self, asks_at: Instant) {
        (self.expected.asks_at, self.expected.looks_at) = (Some(asks_at), asks_at);
        self.expected.awaits_answer = false;
    }

    /// Whether the next caller waits for the answer to the one that is asking.
    pub(super) fn awaits_answer(&self) -> bool {
        self.expected.awaits_answer
    }

    pub(super) fn call_all(&self) {
        self.callers.values().for_each(|woken| woken.notify_one());
    }

    fn call_first(&self) {
        if let Some((_, first)) = self.callers.first_key_value() {
            first.notify_one();
        }
    }
}

impl Expected {
    /// The row, as far as a refusal describes it. A caller that waits for a release asks again after the pause.
    fn after(item: &Item<Ask>, denied: &Denied, pause: Duration) -> Self {
        let now = Timestamp::from(denied.decided_at);
        let retry_at = denied.retry_at.map_or(Timestamp::MAX, Timestamp::from);
        let ts = match item.target.terms.flow {
            // The steps of the row lie whole periods before the one at which it would grant.
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
        let state = State::new(Tokens::from_micros(denied.remaining.micros().saturating_sub(terms.top())), ts);
        // The refusal rounds the balance in each of the rows.
        let rounding =
            (terms.period / terms.rate.max(1) + 1).saturating_mul(i64::try_from(item.target.rows.count).unwrap_or(1));
        let later = terms.first_instant(&state, needs).micros() - retry_at.micros();
        // If the call is granted sooner than these terms bring its tokens, the row is full by then.
        let is_full_by_then = later > rounding && !terms.flow.keeps_list();
        let state = if is_full_by_then { state.full_at(retry_at) } else { state };
        let (is_known, now) = (is_full_by_then || later.unsigned_abs() <= rounding.unsigned_abs(), Instant::now());
        let pause = denied.retry_after().map_or(pause, |wait| pause.min(wait));
        Self {
            state,
            refused: Some((needs, retry_at)),
            is_known,
            read: (denied.observed_at.into(), now),
            asks_at: (terms.flow == Flow::Leased).then(|| now + pause),
            looks_at: now + look(),
            awaits_answer: false,
        }
    }

    /// Nothing is known of the row, so the first caller asks at that instant.
    fn nothing(asks_at: Instant) -> Self {
        let start = Timestamp::from_micros(0);
        Self {
            state: State::new(Tokens::ZERO, start),
            refused: None,
            is_known: false,
            read: (start, Instant::now()),
            asks_at: Some(asks_at),
            looks_at: asks_at,
            awaits_answer: false,
        }
    }

    /// How long the first caller sleeps: until the row holds its tokens, and until it asks whether it does.
    fn sleep(&self, item: &Item<Ask>) -> Sleep {
        let until = |at: Instant| at.saturating_duration_since(Instant::now());
        let asks = self.asks_at.map_or(Duration::MAX, until);
        if self.awaits_answer || item.target.terms.flow == Flow::Leased {
            return Sleep { due: None, asks };
        }
        let needs = item.action.needs(&item.target.terms);
        let instant = match self.refused {
            Some((refused, retry_at)) if needs == refused || needs > refused && !self.is_known => retry_at,
            _ if self.is_known => item.target.terms.first_instant(&self.state, needs),
            _ => self.now(),
        };
        let due = instant.micros().saturating_sub(self.now().micros()).try_into().unwrap_or(0);
        let (due, looks) = (Duration::from_micros(due), until(self.looks_at));
        // A question that is close to its instant would make it miss the instant.
        let asks = if due < looks + NEAR { asks } else { asks.min(looks) };
        Sleep { due: Some(due), asks }
    }

    fn take(&mut self, item: &Item<Ask>, is_known: bool) {
        if !is_known || !self.is_known || item.target.terms.flow == Flow::Leased {
            (self.asks_at, self.awaits_answer) = (Some(Instant::now() + LAST_PAUSE), true);
            return;
        }
        self.refused = None;
        let terms = &item.target.terms;
        let row = [Some(self.state.clone())];
        let account = Account::new(terms, &row, self.now());
        let taken = item.action.of_balance(account.balance().micros().into(), terms).cost();
        let portions = account.debit(taken).unwrap_or_default();
        self.state = portions.into_iter().next().map_or(self.state.clone(), |portion| portion.next);
    }

    fn now(&self) -> Timestamp {
        let (now, at) = self.read;
        now.plus(at.elapsed())
    }
}

/// How long until the first caller asks whether others have raised the row. It is random, so that callers do not all
/// ask together.
pub(super) fn look() -> Duration {
    Duration::from_secs(4).mul_f64(0.5 + fastrand::f64() / 2.0)
}

/// No caller asks in this span before its instant. So no sleep is longer than five seconds.
const NEAR: Duration = Duration::from_secs(1);
