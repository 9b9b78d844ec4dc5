#![expect(
    clippy::disallowed_methods,
    reason = "the monotonic clock measures the age of an answer; the database told its time"
)]

use std::collections::HashMap;
use std::sync::RwLock;
use std::time::{Duration, Instant};

use crate::algebra::{Account, Ask, State, Timestamp, Verdict};
use crate::answer::decision::{Denied, DeniedBy, Source};
use crate::answer::standing::Standing;
use crate::gate::raised::RaisedRows;
use crate::plan::{Item, Operation, RowId};
use crate::values::clock::Clock;
use crate::values::lock::{read, write};

/// Rows that refused a caller, in their last known state.
///
/// A row gains tokens by time, which is computed, and by credits and resets. Those of this gate are noted here; for
/// those of other processes the staleness is bounded. So while the remembered row refuses a call, the database would
/// refuse it, too.
///
/// A row may be raised while a batch that has read it is under way. The instant of that is noted by the row's hash. So
/// the notes take constant room, however many rows are raised, but a few readings of other rows are forgotten with
/// them.
pub(crate) struct Refusals {
    staleness: Duration,
    bound: usize,
    clock: Clock,
    rows: RwLock<ShortRows>,
}

#[derive(Default)]
struct ShortRows {
    short: HashMap<RowId, Short>,
    /// When rows were raised. An earlier reading of such a row no longer counts.
    raised: RaisedRows,
    swept: Option<Instant>,
}

/// A row that was too low for a caller, and the instant at which the refusal lets that caller come back.
struct Short {
    state: State,
    reading: Reading,
    retry_at: Timestamp,
}

/// When a row was read: an instant of the database's clock, which lay between the question and the answer by our clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    pub(crate) now: Timestamp,
    pub(crate) asked: Instant,
    pub(crate) answered: Instant,
}

impl Reading {
    fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.answered)
    }

    /// The latest time that the database's clock may show.
    fn latest(&self, now: Instant, clock: &Clock) -> Timestamp {
        clock.at().unwrap_or_else(|| self.now.plus(now.saturating_duration_since(self.asked)))
    }

    /// The earliest time that the database's clock may show.
    fn earliest(&self, now: Instant, clock: &Clock) -> Timestamp {
        clock.at().unwrap_or_else(|| self.now.plus(self.age(now)))
    }
}

impl Refusals {
    pub(crate) fn new(staleness: Duration, bound: usize, clock: Clock) -> Self {
        Self { staleness, bound, clock, rows: RwLock::default() }
    }

    /// The refusal of a call, if in each of its alternatives a row is remembered as too low for it.
    pub(crate) fn refuse(&self, call: &Operation) -> Option<Denied> {
        let mut alternatives = refusable(call).peekable();
        alternatives.peek()?;
        let (now, rows) = (Instant::now(), read(&self.rows));
        if rows.short.is_empty() {
            return None;
        }
        let mut soonest = None;
        for items in alternatives {
            soonest = Some(Denied::soonest(soonest, self.refuse_alternative(items, &rows, now)?));
        }
        soonest
    }

    fn refuse_alternative<'i>(
        &self,
        items: impl Iterator<Item = &'i Item<Ask>>,
        rows: &ShortRows,
        now: Instant,
    ) -> Option<Denied> {
        let (mut refusals, mut standings) = (Vec::new(), Vec::new());
        let (mut observed_at, mut decided_at) = (Timestamp::MIN, Timestamp::MIN);
        for item in items {
            let Some(Short { state, reading, .. }) = rows.short.get(&item.target.rows.first) else { continue };
            if reading.age(now) > self.staleness {
                continue;
            }
            let earliest = reading.earliest(now, &self.clock);
            let Some((at, refusal, standing)) = refusal(item, state, earliest, reading.latest(now, &self.clock)) else {
                continue;
            };
            (observed_at, decided_at) = (observed_at.max(earliest), decided_at.max(at));
            refusals.push(refusal);
            standings.push(standing);
        }
        Denied::among(refusals, || standings.into(), observed_at.into(), decided_at.into(), Source::Memory)
    }

    /// Remembers the rows that refused a call, in their last known state.
    pub(crate) fn remember<'s>(
        &self,
        call: &Operation,
        denied: &Denied,
        state: impl Fn(&RowId) -> Option<&'s State>,
        reading: Reading,
    ) {
        if denied.others.len() >= MANY {
            return;
        }
        // A refusal names the limits of one alternative, and the others refuse as well.
        let has_alternatives = call.alternatives().nth(1).is_some();
        let rows = refusable(call).flatten().map(|item| &item.target.rows.first);
        let retry_at = denied.retry_at.map_or(Timestamp::MAX, Timestamp::from);
        for row in rows.filter(|row| has_alternatives || names(denied, row)) {
            if let Some(state) = state(row) {
                self.note(row, state.clone(), reading, retry_at);
            }
        }
    }

    /// Remembers a row that refused a caller until `retry_at`.
    fn note(&self, row: &RowId, state: State, reading: Reading, retry_at: Timestamp) {
        let mut rows = write(&self.rows);
        let is_raised = rows.raised.is_since(row, reading.asked);
        let fits = match rows.short.get(row) {
            Some(Short { reading: last, .. }) => last.asked <= reading.asked,
            None => self.has_room(&mut rows),
        };
        if !is_raised && fits {
            rows.short.insert(row.clone(), Short { state, reading, retry_at });
        }
    }

    /// Updates remembered rows that this gate has written.
    pub(crate) fn follow<'r>(&self, written: impl IntoIterator<Item = (&'r RowId, State)>, reading: Reading) {
        if read(&self.rows).short.is_empty() {
            return;
        }
        let mut rows = write(&self.rows);
        for (row, written) in written {
            if let Some(Short { state, reading: last, .. }) = rows.short.get_mut(row)
                && last.asked <= reading.asked
            {
                (*state, *last) = (written, reading);
            }
        }
    }

    /// Forgets a row that was raised, or written in an unknown way, and every reading of it that is still under way.
    pub(crate) fn forget(&self, row: &RowId) {
        let mut rows = write(&self.rows);
        rows.short.remove(row);
        rows.raised.note(row);
    }

    /// Whether one more entry fits, after useless entries are dropped.
    fn has_room(&self, rows: &mut ShortRows) -> bool {
        if rows.short.len() >= self.bound {
            self.sweep(rows);
        }
        rows.short.len() < self.bound
    }

    /// Drops entries that are too old, and those whose instant has come. It does not run every time, because it looks
    /// at every entry.
    fn sweep(&self, rows: &mut ShortRows) {
        let now = Instant::now();
        let pause = PAUSE_PER_ENTRY.saturating_mul(u32::try_from(rows.short.len()).unwrap_or(u32::MAX));
        if rows.swept.is_some_and(|last| now.saturating_duration_since(last) < pause) {
            return;
        }
        rows.swept = Some(now);
        rows.short.retain(|_, Short { reading, retry_at, .. }| {
            reading.age(now) <= self.staleness && *retry_at > reading.latest(now, &self.clock)
        });
    }
}

/// The refusal of a call by a remembered row, if the row refuses it for certain, and the instant of the refusal.
///
/// The latest instant that the database's clock may show decides whether the row refuses, so that no caller is refused
/// whom the database would grant. The answer is dated by the earliest instant, so that no caller who waits as long as
/// it says comes too early.
fn refusal(
    item: &Item<Ask>,
    state: &State,
    earliest: Timestamp,
    latest: Timestamp,
) -> Option<(Timestamp, DeniedBy, Standing)> {
    let (target, row) = (&item.target, [Some(state.clone())]);
    let account = |now| Account::new(&target.terms, &row, now);
    let Ok(Verdict::Denied { .. }) = account(latest).decide(item.action) else { return None };
    let earliest = account(earliest);
    let Ok(Verdict::Denied { reason, remaining, retry_at }) = earliest.decide(item.action) else { return None };
    let more_at = earliest.more_at().map_or(retry_at, |more_at| more_at.min(retry_at));
    let standing = target.standing(item.action.cost(), remaining, [more_at, earliest.full_at()]);
    Some((earliest.now(), target.refusal(reason, remaining, retry_at), standing))
}

/// The items of each alternative that the balance of one row can refuse. The call takes or checks without reserving,
/// and cannot be a repeat. The limit has one row, is no concurrency limit, and gives all of the cost.
fn refusable(call: &Operation) -> impl Iterator<Item = impl Iterator<Item = &Item<Ask>>> {
    let reserves = || call.alternatives().flatten().any(|item| item.action.is_reserving());
    let escapes = call.is_once() || call.takes_ahead() || reserves();
    let is_certain = |item: &&Item<Ask>| {
        let is_sole = item.target.rows.count == 1 && !item.action.is_split();
        is_sole && item.target.limit.lease().is_none() && item.target.ruling().is_none()
    };
    call.alternatives().filter(move |_| !escapes).map(move |items| items.iter().filter(is_certain))
}

/// Whether a row is among those that refused.
fn names(denied: &Denied, row: &RowId) -> bool {
    let is = |limit: &str, key| limit == row.name() && key == row.key();
    is(&denied.limit, &denied.key) || denied.others.iter().any(|other| is(&other.limit, &other.key))
}

/// A refusal by so many limits is not worth remembering.
const MANY: usize = 64;

/// The pause between two sweeps, per entry. Sweeps take a hundredth of it, however many entries there are.
const PAUSE_PER_ENTRY: Duration = Duration::from_micros(1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Under, Verb};
    use crate::tokens::Tokens;
    use crate::{HOUR, Limit, SECOND};

    const LIMIT: Limit = Limit::token_bucket("one", 1, SECOND);

    fn call() -> Operation {
        Operation::of(Verb::consume(LIMIT.key("k")), &Under::NOTHING).unwrap()
    }

    fn row() -> RowId {
        call().first_rows().next().unwrap().clone()
    }

    /// A reading with its question and its answer so long ago, when the database's clock showed the epoch.
    fn reading(asked: Duration, answered: Duration) -> Reading {
        let now = Instant::now();
        Reading {
            now: Timestamp::from_micros(0),
            asked: now.checked_sub(asked).unwrap(),
            answered: now.checked_sub(answered).unwrap(),
        }
    }

    fn holds(tokens: i64) -> State {
        State::new(Tokens::from_micros((tokens - 1) * 1_000_000), Timestamp::from_micros(0))
    }

    fn note(refusals: &Refusals, state: State, reading: Reading) {
        refusals.note(&row(), state, reading, Timestamp::MAX);
    }

    fn refuses(refusals: &Refusals) -> bool {
        refusals.refuse(&call()).is_some()
    }

    #[test]
    fn it_refuses_only_what_is_refused_at_the_latest_instant_that_it_may_be() {
        let refusals = Refusals::new(HOUR, 10, Clock::default());
        // The token is there a second after the clock was read, perhaps just after the question.
        note(&refusals, holds(0), reading(2 * SECOND, Duration::ZERO));
        assert!(!refuses(&refusals));
        let refusals = Refusals::new(HOUR, 10, Clock::default());
        note(&refusals, holds(-10), reading(2 * SECOND, SECOND));
        let denied = refusals.refuse(&call()).unwrap();
        // The answer is dated by the earliest instant: eleven seconds in all, of which one has certainly passed.
        assert!((1..=10).contains(&denied.retry_after().unwrap().as_secs()), "{denied:?}");
    }

    #[test]
    fn an_older_reading_never_replaces_a_newer_one() {
        let refusals = Refusals::new(HOUR, 10, Clock::default());
        let (older, newer) = (reading(2 * SECOND, SECOND), reading(SECOND, Duration::ZERO));
        note(&refusals, holds(10), newer);
        note(&refusals, holds(-100), older);
        assert!(!refuses(&refusals));
        refusals.follow([(&row(), holds(-100))], older);
        assert!(!refuses(&refusals));
        refusals.follow([(&row(), holds(-100))], newer);
        assert!(refuses(&refusals));
    }

    #[test]
    fn what_was_read_before_a_row_was_raised_is_not_remembered() {
        let refusals = Refusals::new(HOUR, 10, Clock::default());
        refusals.forget(&row());
        note(&refusals, holds(-100), reading(SECOND, Duration::ZERO));
        assert!(!refuses(&refusals));
        note(&refusals, holds(-100), reading(Duration::ZERO, Duration::ZERO));
        assert!(refuses(&refusals));
    }
}
