use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use tokio::sync::Notify;

use super::hand_over::{LAST_PAUSE, pause};
use crate::algebra::{Ask, Flow, Terms};
use crate::answer::decision::{Denied, Grant, span};
use crate::answer::standing::Standing;
use crate::key::Key;
use crate::plan::{Item, Operation, RowId};
use crate::tokens::Tokens;

/// The callers that wait for one row. The last answer of the database paces them.
pub(super) struct Line {
    /// The callers, by their numbers.
    callers: BTreeMap<u64, Arc<Notify>>,
    /// How many callers have a place, including those that are asking.
    pub(super) places: usize,
    /// The last caller that asked, while the line waits for its answer.
    asker: Option<u64>,
    /// The tokens that the next callers will find after the last grant, less those for which they ask. `None` after a
    /// refusal.
    left: Option<Tokens>,
    /// A balance, and when the row will hold it; `None` for never.
    next: (Tokens, Option<Instant>),
    /// When the first caller asks, whatever the row is known to hold.
    asks_at: Option<Instant>,
    /// When the first caller asks whether others have raised the row, unless its tokens come at about that time.
    looks_at: Instant,
    /// The balance and the instant of the last refusal, and when the row has changed.
    told: (Tokens, Option<DateTime<Utc>>),
    changed: Instant,
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
    /// A line whose first caller asks at an instant.
    pub(super) fn asking_at(asks_at: Instant) -> Self {
        Self {
            callers: BTreeMap::new(),
            places: 0,
            asker: None,
            left: None,
            next: (Tokens::ZERO, None),
            asks_at: Some(asks_at),
            looks_at: asks_at,
            told: (Tokens::ZERO, None),
            changed: Instant::now(),
        }
    }

    pub(super) fn is_first(&self, number: u64) -> bool {
        self.callers.first_key_value().is_none_or(|(first, _)| *first == number)
    }

    /// Whether the line goes by the answer to this caller: it was the last one that asked, or it is the first one and
    /// nobody is asking.
    pub(super) fn goes_by(&self, number: u64) -> bool {
        self.asker.map_or_else(|| self.is_first(number), |asker| asker == number)
    }

    /// Whether the line waits for the answer to this caller.
    pub(super) fn awaits(&self, number: u64) -> bool {
        self.asker == Some(number)
    }

    /// Lets a caller wait at its place.
    pub(super) fn enter(&mut self, number: u64, woken: &Arc<Notify>) {
        self.callers.insert(number, woken.clone());
    }

    /// Removes a caller, and lets the next one come forward.
    pub(super) fn leave(&mut self, number: u64) {
        self.callers.remove(&number);
        self.call_first();
    }

    /// How long the first caller sleeps: until the row holds its tokens, and until it asks whether it does.
    pub(super) fn sleep(&self, place: &Place) -> Sleep {
        let until = |at: Instant| at.saturating_duration_since(Instant::now());
        let asks = self.asks_at.map(until);
        let needs = place.needs();
        let (tokens, at) = self.next;
        let due = if self.left.is_some_and(|left| needs <= left) {
            Duration::ZERO
        } else if self.asker.is_some() || place.is_leased() {
            return Sleep { due: None, asks: asks.unwrap_or(Duration::MAX) };
        } else if needs == tokens && (self.left.is_none() || place.others.is_empty()) {
            at.map_or(Duration::MAX, until)
        } else {
            return Sleep { due: None, asks: asks.unwrap_or_default() };
        };
        let (asks, looks) = (asks.unwrap_or(Duration::MAX), until(self.looks_at));
        // A question that is close to its instant would make it miss the instant.
        Sleep { due: Some(due), asks: if due < looks + NEAR { asks } else { asks.min(looks) } }
    }

    /// Lets the first caller ask. The next one asks, too, if the last grant has left tokens for both. If not, it goes
    /// by the answer.
    pub(super) fn ask(&mut self, place: &Place, number: u64) {
        self.left = self.left.and_then(|left| left.checked_sub(place.takes(left)));
        (self.asker, self.asks_at) = (Some(number), Some(Instant::now() + LAST_PAUSE));
        self.leave(number);
    }

    /// Goes by a refusal. If the row was raised meanwhile, the first caller asks once more at `raised`.
    pub(super) fn hear_refusal(&mut self, place: &Place, denied: &Denied, raised: Option<Instant>) {
        let told = (denied.remaining, denied.retry_at);
        if told != self.told {
            (self.told, self.changed) = (told, Instant::now());
        }
        let wait = denied.retry_after();
        let pause = place.is_leased().then(|| pause(self.changed.elapsed()));
        let asks_at = pause.map(|pause| Instant::now() + wait.map_or(pause, |wait| pause.min(wait)));
        self.hear(None, (place.needs(), wait), raised.or(asks_at));
    }

    /// Goes by a grant, which says when the next token is there. `left`: what the next callers will find.
    pub(super) fn hear_grant(&mut self, grant: &Grant, standing: &Standing, left: Tokens) {
        let wait = standing.more_at.map(|more_at| span(grant.observed_at, more_at));
        self.hear(Some(left), (Tokens::ONE, wait), None);
    }

    fn hear(&mut self, left: Option<Tokens>, (tokens, wait): (Tokens, Option<Duration>), asks_at: Option<Instant>) {
        let now = Instant::now();
        let next = (tokens, wait.and_then(|wait| now.checked_add(wait)));
        (self.asker, self.left, self.next) = (None, left, next);
        (self.asks_at, self.looks_at) = (asks_at, now + look());
        self.call_first();
    }

    /// Notes that the row was raised, so the first caller asks. If a caller is already asking, no other overtakes it:
    /// it asks once more if it is refused, and else the next one does.
    pub(super) fn raise(&mut self, asks_at: Instant) {
        self.changed = Instant::now();
        if self.asker.is_none() {
            self.asks_at = Some(asks_at);
            self.call_first();
        }
    }

    /// Notes that the last question has no answer, so the first caller asks.
    pub(super) fn forget(&mut self, asks_at: Instant) {
        (self.asker, self.asks_at, self.looks_at) = (None, Some(asks_at), asks_at);
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

/// The place of a caller in one line.
pub(super) struct Place {
    pub(super) item: Item<Ask>,
    /// The other rows over which its cost is split.
    pub(super) others: Vec<RowId>,
}

impl Place {
    /// The place of an item of a call.
    pub(super) fn of(item: &Item<Ask>, call: &Operation) -> Self {
        let others = call.split_with(item).map(|other| other.target.rows.first.clone()).collect();
        Self { item: item.clone(), others }
    }

    pub(super) fn row(&self) -> &RowId {
        &self.item.target.rows.first
    }

    /// Whether it waits for a lease, which may be released at any time.
    pub(super) fn is_leased(&self) -> bool {
        self.item.target.terms.flow == Flow::Leased
    }

    /// The least balance that grants it.
    pub(super) fn needs(&self) -> Tokens {
        self.item.action.needs(&self.item.target.terms)
    }

    /// The tokens that it takes of a balance.
    pub(super) fn takes(&self, balance: Tokens) -> Tokens {
        self.item.action.of_balance(balance.micros().into(), &self.item.target.terms).cost()
    }

    /// A balance after a span in which nobody takes, with the whole tokens that come evenly.
    pub(super) fn grown(&self, balance: Tokens, span: Duration) -> Tokens {
        let Terms { flow: Flow::Continuous, rate, period, capacity, .. } = self.item.target.terms else {
            return balance;
        };
        let span = i128::try_from(span.as_micros()).unwrap_or(i128::MAX);
        let whole = i128::from(rate).saturating_mul(span) / i128::from(period) / i128::from(Tokens::ONE.micros());
        let came = Tokens::new(u32::try_from(whole).unwrap_or(u32::MAX));
        balance.checked_add(came).unwrap_or(balance).min(Tokens::from_micros(capacity))
    }

    pub(super) fn is_of(&self, limit: &str, key: &Key) -> bool {
        self.item.is_of(limit) && self.item.target.key() == key
    }
}

/// How long until the first caller asks whether others have raised the row. It is random, so that callers do not all
/// ask together.
pub(super) fn look() -> Duration {
    Duration::from_secs(4).mul_f64(0.5 + fastrand::f64() / 2.0)
}

/// No caller asks in this span before its instant. So no sleep is longer than five seconds.
const NEAR: Duration = Duration::from_secs(1);
