#![expect(
    clippy::disallowed_methods,
    reason = "how long ago an answer came is told by the monotonic clock; what time it was, by the database"
)]

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};
use std::time::{Duration, Instant};

use super::shared::Clock;
use crate::algebra::{Ask, State, Terms, Timestamp, Verdict, decide};
use crate::decision::{Denied, Refusal, Source};
use crate::plan::{Checked, Row};

/// Rows that refused somebody, as they were read then.
///
/// A row only gains by time, which is reckoned with, or by a credit or reset. This gate's own are noted here; those of
/// others are what the bounded staleness is for. So as long as the remembered row refuses a call, the database does too.
#[derive(Debug)]
pub(super) struct Refusals {
    staleness: Duration,
    bound: usize,
    rows: RwLock<Rows>,
}

#[derive(Debug)]
struct Rows {
    entries: HashMap<Row, Entry>,
    swept: Instant,
}

#[derive(Clone, Copy, Debug)]
enum Entry {
    /// It was too low for somebody.
    Short(State, Reading),
    /// It was raised then: what was read before counts no more.
    Raised(Instant),
}

/// When a row was read, by the database's clock and by ours: some time between the question and the answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading {
    pub(super) now: Timestamp,
    pub(super) asked: Instant,
    pub(super) answered: Instant,
}

impl Reading {
    pub(super) fn new(now: Timestamp, asked: Instant) -> Self {
        Self { now, asked, answered: Instant::now() }
    }
}

impl Refusals {
    pub(super) fn new(staleness: Duration, bound: usize) -> Self {
        Self { staleness, bound, rows: RwLock::new(Rows { entries: HashMap::new(), swept: Instant::now() }) }
    }

    /// The refusal of a call, if one of its rows is remembered as too low for it.
    pub(super) fn refuse(&self, call: &Checked, clock: &Clock) -> Option<Denied> {
        let asks = call.asks()?;
        let (now, rows) = (Instant::now(), self.rows.read().unwrap_or_else(PoisonError::into_inner));
        if rows.entries.is_empty() {
            return None;
        }
        let (mut refusals, mut decided_at) = (Vec::new(), Timestamp::MIN);
        for (row, terms, ask) in asks {
            let Some(Entry::Short(state, reading)) = rows.entries.get(row) else { continue };
            if now.saturating_duration_since(reading.answered) > self.staleness {
                continue;
            }
            let Some((at, refusal)) = refusal(row, *state, reading, now, clock, terms, ask) else { continue };
            decided_at = decided_at.max(at);
            refusals.push(refusal);
        }
        Denied::among(refusals, decided_at.into(), Source::Memory)
    }

    /// Remembers a row that refused somebody.
    pub(super) fn note(&self, row: &Row, state: State, reading: Reading) {
        let raised_since = |entry: &Entry| matches!(entry, Entry::Raised(at) if *at >= reading.asked);
        self.insert(row, Entry::Short(state, reading), |old| !old.is_some_and(raised_since));
    }

    /// Forgets a row that was raised.
    pub(super) fn forget(&self, row: &Row) {
        self.insert(row, Entry::Raised(Instant::now()), |_| true);
    }

    fn insert(&self, row: &Row, entry: Entry, unless: impl Fn(Option<&Entry>) -> bool) {
        let mut rows = self.rows.write().unwrap_or_else(PoisonError::into_inner);
        let old = rows.entries.get(row);
        if !unless(old) {
            return;
        }
        if old.is_none() && rows.entries.len() >= self.bound {
            rows.sweep(self.staleness);
            if rows.entries.len() >= self.bound {
                return;
            }
        }
        rows.entries.insert(row.clone(), entry);
    }
}

impl Rows {
    /// Drops what is too old to be used; not every time, for it looks at every entry.
    fn sweep(&mut self, staleness: Duration) {
        let now = Instant::now();
        if now.saturating_duration_since(self.swept) < staleness / 8 {
            return;
        }
        self.swept = now;
        self.entries.retain(|_, entry| {
            let (Entry::Short(_, Reading { answered: at, .. }) | Entry::Raised(at)) = entry;
            now.saturating_duration_since(*at) <= staleness
        });
    }
}

/// What a remembered row says to a call, if it refuses it for certain, and when it says so.
///
/// Whether it refuses is judged by the latest instant that it may be by the database's clock, so that nobody is refused
/// whom the database would let through. The answer speaks of the earliest, so that nobody who waits as long as it says
/// comes too early.
fn refusal(
    row: &Row,
    state: State,
    reading: &Reading,
    now: Instant,
    clock: &Clock,
    terms: &Terms,
    ask: Ask,
) -> Option<(Timestamp, Refusal)> {
    let latest = clock.at().unwrap_or_else(|| reading.now.plus(now.saturating_duration_since(reading.asked)));
    let Ok(Verdict::Denied { .. }) = decide(terms, Some(state), latest, ask) else { return None };
    let earliest = clock.at().unwrap_or_else(|| reading.now.plus(now.saturating_duration_since(reading.answered)));
    let Ok(Verdict::Denied { remaining, retry_at }) = decide(terms, Some(state), earliest, ask) else { return None };
    let limit = row.name.clone().into();
    let refusal = Refusal { limit, key: row.key.clone(), remaining, retry_at: retry_at.into() };
    Some((earliest.max(state.ts), refusal))
}
