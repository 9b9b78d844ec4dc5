//! Brings rows to an instant, and computes when they are full. A full row equals a missing one, for every reader.
//!
//! # When a row is full
//!
//! A write under one definition sets `full_at` to the instant at which the row is full by it. A faster definition may
//! have used the row before, with a `full_at` before the instant at which the writer's definition would have filled the
//! row. Then the write sets `min(own, max(full_at, ts) + span)`, where `span` is the time in which its definition
//! brings back the tokens that it takes now. Four other rules fail, each by a short story:
//!
//! - *Nothing but refill forgives.* 9 000 used of 10 000 a month, then 1 000 a month: refused for nine months.
//! - *At an edge the reader forgets a debt that it could not have made.* If a key changes between 10 000 a month and
//!   100 a day, it gets 300 000 in the month.
//! - *`full_at` of the last writer alone.* One call of the small plan moves it from the month's end to eight months
//!   later.
//! - *The row stores the capacity beside the balance.* A key that goes from the large plan to the small one and back
//!   gets 9 000 more each time.

use super::months;
use super::period::longest;
use super::state::{Entry, List, State, div_ceil, saturate, wide};
use super::terms::{Flow, Pause, Terms};
use crate::tokens::Tokens;
use crate::values::timestamp::Timestamp;

impl Terms {
    /// The balance of a row at `now`.
    #[must_use]
    pub fn balance(&self, row: &State, now: Timestamp) -> Tokens {
        self.left_of(wide(self.refill(row, now).value))
    }

    /// The balance of a value.
    fn left_of(&self, value: i128) -> Tokens {
        saturate(i128::from(self.top()) + value)
    }

    /// The row at `now`. If `now` lies before the row's own instant, time stands still.
    #[must_use]
    pub fn refill(&self, row: &State, now: Timestamp) -> State {
        let now = now.max(row.ts);
        if row.is_over(now) {
            return self.or_full(Some(row), now);
        }
        if self.flow.keeps_list() && !self.stands_still(row) {
            return self.recounted(row, now);
        }
        let (gained, ts) = self.gained(row, now);
        let value = wide(row.value) + gained;
        let value = if self.flow == Flow::Wallet { value } else { value.min(0) };
        // A list of another kind ends here, and a mark with its period.
        let is_marked = row.list.period_end().is_some() && ts == row.ts;
        let list = if is_marked { row.list.clone() } else { self.no_list() };
        State { value: saturate(value), ts, full_at: row.full_at, list }
    }

    /// The row of a token bucket as if the pause had taken no time, so far as it has passed; `None` if the row counts
    /// as it is. Windows and stepped buckets bring their tokens at their own instants.
    pub(super) fn stood_still(&self, row: &State, now: Timestamp) -> Option<State> {
        let Pause { from, until } = self.pause?;
        let still = until.min(now).micros() - from.max(row.ts).micros();
        let is_bucket = self.flow == Flow::Continuous && row.list == List::None;
        (is_bucket && still > 0 && !row.is_over(from)).then(|| State {
            ts: row.ts.after(still),
            full_at: row.full_at.after(still),
            ..row.clone()
        })
    }

    /// The row at an instant, of a limit that counts its grants.
    fn recounted(&self, row: &State, now: Timestamp) -> State {
        // No entry is of a grant after the row's instant. So no entry counts for longer than a period from there,
        // whatever definition wrote it. Tokens that another kind of limit used count until the row is full. If they
        // counted for a period of these terms, a bucket of 10 000 a month that takes turns with a limit of 100 a minute
        // would be full every minute.
        let last = self.leaves_at(row.ts);
        let mut entries = match (&row.list, self.flow) {
            (List::Grants(entries), Flow::Sliding { .. }) | (List::Leases(entries), Flow::Leased) => {
                let mut entries = entries.clone();
                for entry in entries.iter_mut().filter(|entry| entry.lease.is_none()) {
                    entry.ends_at = entry.ends_at.min(last);
                }
                entries
            }
            _ => {
                let used = saturate(-wide(row.value));
                let of_others = Entry::of(row.says_full_at().unwrap_or(last), used);
                Vec::from_iter((used > Tokens::ZERO).then_some(of_others))
            }
        };
        entries.retain(|entry| entry.is_live(now));
        self.counted(entries, now)
    }

    /// The row with these entries, of a limit that counts its grants.
    pub(super) fn counted(&self, mut entries: Vec<Entry>, ts: Timestamp) -> State {
        let list = if self.flow == Flow::Leased {
            entries.sort_by_key(|entry| entry.ends_at);
            List::Leases(entries)
        } else {
            List::grants(entries, self.period)
        };
        let sum: i128 = list.entries().iter().map(|entry| wide(entry.amount)).sum();
        State { list, ..State::new(saturate(-sum), ts) }.ending_with_list()
    }

    /// Until when a row with steps takes a charge of an instant back: as long as nothing was refilled since, and for
    /// tokens that are booked ahead, until they are ready.
    pub(crate) fn same_step_until(&self, charged: &State, now: Timestamp) -> Timestamp {
        let owes = self.left_of(wide(charged.value)).is_negative();
        if owes { self.repaid_at(charged).after(-1).max(now) } else { now }
    }

    /// When a grant of an instant leaves the window, or when a lease of it ends if it is not renewed.
    pub(crate) fn leaves_at(&self, granted_at: Timestamp) -> Timestamp {
        let tick = if let Flow::Sliding { tick } = self.flow { tick } else { 1 };
        let end = i128::from(Timestamp::from_micros(granted_at.micros() + 1).round_up(tick).micros()) - 1;
        Timestamp::saturating(end + i128::from(self.period))
    }

    /// Whether these terms bring no tokens to a row, because it is marked with a period of other terms.
    pub(super) fn stands_still(&self, row: &State) -> bool {
        match (&row.list, self.flow) {
            (List::Month { offset, .. }, Flow::Month { offset: own }) => *offset != own,
            (List::Period { .. }, Flow::Named { .. }) => false,
            (list, _) => list.period_end().is_some(),
        }
    }

    /// The tokens that a refill brings from one instant to a later one, and the instant that the row then stands at.
    pub(super) fn gained(&self, row: &State, now: Timestamp) -> (i128, Timestamp) {
        let ts = row.ts;
        // A call often asks a row again at the instant at which it was just written. This saves a slow division.
        if now == ts || self.stands_still(row) {
            return (0, ts);
        }
        let (rate, period) = (i128::from(self.rate), i128::from(self.period));
        let elapsed = i128::from(now.micros()) - i128::from(ts.micros());
        match self.flow {
            Flow::Continuous => (rate * elapsed / period, now),
            Flow::Sliding { .. } | Flow::Leased | Flow::Wallet => (0, now),
            Flow::FirstUse => {
                let steps = elapsed / period;
                (steps * rate, Timestamp::saturating(i128::from(ts.micros()) + steps * period))
            }
            Flow::Unnamed => (0, ts),
            Flow::Month { offset } => {
                let last = months::number(now, offset);
                let steps = last - months::number(ts, offset);
                (steps * rate, if steps > 0 { months::step(last, offset) } else { ts })
            }
            Flow::Named { start } if ts < start.into() => {
                let steps = self.step_number(start, now) + self.steps_at_start(start, ts);
                if now < start.into() { (0, ts) } else { (steps * rate, self.full(now).ts) }
            }
            Flow::Named { start } => {
                let end = self.named_end(start, row);
                let steps = (i128::from(now.micros()) - i128::from(end.micros())).div_euclid(period) + 1;
                let is_within = now < end || end == Timestamp::MAX;
                if is_within { (0, ts) } else { (steps * rate, self.stands_after(start, end, now)) }
            }
            Flow::Grid { phase } => {
                let last = self.step_number(phase, now);
                let steps = last - self.step_number(phase, ts);
                (steps * rate, if steps > 0 { self.step(phase, last) } else { ts })
            }
        }
    }

    /// The first instant at which `row` has a balance of `target`, if nobody spends. The target is taken to be within
    /// the capacity.
    #[must_use]
    pub fn first_instant(&self, row: &State, target: Tokens) -> Timestamp {
        let value = wide(target) - i128::from(self.top());
        let at = self.grown_at(row, value);
        row.says_full_at().filter(|_| value <= 0).map_or(at, |full_at| at.min(full_at))
    }

    /// The first instant at which these terms alone have brought `row` to a value.
    pub(super) fn grown_at(&self, row: &State, value: i128) -> Timestamp {
        if !self.flow.keeps_list() || self.stands_still(row) {
            return self.refilled_at(value - wide(row.value), row);
        }
        let row = self.recounted(row, row.ts);
        // The value is cut if a list that was written by hand has more tokens than an amount holds.
        let held: i128 = row.list.entries().iter().map(|entry| wide(entry.amount)).sum();
        let mut missing = value + held;
        if missing <= 0 {
            return row.ts;
        }
        let last = row.list.entries().iter().find(|entry| {
            missing -= wide(entry.amount);
            missing <= 0
        });
        last.map_or(Timestamp::MAX, |entry| entry.ends_at)
    }

    /// The first instant at which `row` is out of debt. A wallet's tokens may be spent at once, even in debt.
    pub(super) fn repaid_at(&self, row: &State) -> Timestamp {
        if self.flow == Flow::Wallet { row.ts } else { self.first_instant(row, Tokens::ZERO) }
    }

    /// The first instant at which so much has come back to a row.
    fn refilled_at(&self, missing: i128, row: &State) -> Timestamp {
        let ts = row.ts;
        if missing <= 0 {
            return ts;
        }
        if self.stands_still(row) {
            return Timestamp::MAX;
        }
        let (rate, period) = (i128::from(self.rate), i128::from(self.period));
        let from = i128::from(ts.micros());
        match self.flow {
            Flow::Continuous => Timestamp::saturating(from + div_ceil(missing * period, rate)),
            Flow::Sliding { .. } | Flow::Leased | Flow::Wallet | Flow::Unnamed => Timestamp::MAX,
            Flow::FirstUse => Timestamp::saturating(from + div_ceil(missing, rate) * period),
            Flow::Grid { phase } => self.step(phase, self.step_number(phase, ts) + div_ceil(missing, rate)),
            Flow::Month { offset } => months::step(months::number(ts, offset) + div_ceil(missing, rate), offset),
            Flow::Named { start } if ts < start.into() => {
                self.step(start, (div_ceil(missing, rate) - self.steps_at_start(start, ts)).max(0))
            }
            Flow::Named { start } => {
                let end = i128::from(self.named_end(start, row).micros());
                Timestamp::saturating(end + (div_ceil(missing, rate) - 1) * period)
            }
        }
    }

    /// The number of steps that the start of a named period brings an earlier row. It is the number of periods since
    /// the row was written, rounded to the nearest, because earlier periods may have had another length.
    ///
    /// This rule (to the nearest, and at least one) is never too low, and seldom one step too high. A rule of one step
    /// only would refuse a deep debt forever: a refusal writes nothing, so the next month begins again from the same
    /// row. A grid that reaches back from `start` would often bring a step too many.
    fn steps_at_start(&self, start: i64, ts: Timestamp) -> i128 {
        let (period, before) = (i128::from(self.period), i128::from(start) - i128::from(ts.micros()));
        ((before + period / 2) / period).max(1)
    }

    /// The number of the last grid step at or before an instant.
    pub(super) fn step_number(&self, phase: i64, at: Timestamp) -> i128 {
        (i128::from(at.micros()) - i128::from(phase)).div_euclid(i128::from(self.period))
    }

    pub(super) fn step(&self, phase: i64, number: i128) -> Timestamp {
        Timestamp::saturating(i128::from(phase) + number * i128::from(self.period))
    }
}

/// # When a row is full
impl Terms {
    /// The meaning of a missing row: a full one, at `now` or at the last step before it; an empty wallet.
    #[must_use]
    pub fn full(&self, now: Timestamp) -> State {
        let ts = match self.flow {
            Flow::Grid { phase } => self.step(phase, self.step_number(phase, now)),
            Flow::Month { offset } => months::step(months::number(now, offset), offset),
            Flow::Named { start } if now < start.into() => now,
            Flow::Named { start } if now < Timestamp::from(start).after(self.period) => start.into(),
            Flow::Named { start } => self.stands_after(start, Timestamp::MIN, now),
            _ => now,
        };
        State { list: self.no_list(), ..State::new(Tokens::ZERO, ts).full_at(ts) }
    }

    /// The balance of a full row.
    pub(crate) fn top(&self) -> i64 {
        if self.flow == Flow::Wallet { 0 } else { self.capacity }
    }

    /// The row that counts at `now`: the row that was found, or a full one if it is missing or over.
    pub(super) fn or_full(&self, row: Option<&State>, now: Timestamp) -> State {
        match row {
            Some(row) if !row.is_over(now) => row.clone(),
            // The grid of the row goes on.
            Some(row) if self.flow == Flow::FirstUse => {
                let (_, ts) = self.gained(row, now);
                State { ts, full_at: ts, ..self.full(now) }
            }
            _ => self.full(now),
        }
    }

    /// When `row` will be full, if nobody spends: from then on it equals a missing row. A wallet equals one when it
    /// holds nothing, and otherwise never does.
    #[must_use]
    pub fn full_at(&self, row: &State) -> Timestamp {
        if row.list.is_wallet() { row.emptied_at() } else { self.first_instant(row, Tokens::from_micros(self.top())) }
    }

    /// The instant from which on a row that is written under these terms counts as a missing one. `read` is the row as
    /// it was read, or a full one if there was none. `taken` are the tokens that the write takes from it.
    ///
    /// If a faster definition has used the row before, that use ends when that definition would have ended it. The
    /// tokens taken now add the time in which these terms bring them back.
    pub(super) fn full_at_after(&self, read: &State, next: &State, taken: i128) -> Timestamp {
        match self.flow {
            Flow::Wallet => return next.emptied_at(),
            _ if self.stands_still(next) => {
                // These terms do not know what each period brings. So they forget nothing sooner than the row says.
                let by_mark = next.full_by_mark(self.top().max(self.rate)).unwrap_or(next.ts);
                return if next.value.is_negative() { by_mark.max(read.full_at) } else { by_mark };
            }
            Flow::Sliding { .. } | Flow::Leased => return next.ended_at(),
            _ => {}
        }
        let own = next.full_by_mark(self.rate).unwrap_or_else(|| self.grown_at(next, 0));
        match read.says_full_at() {
            Some(full_at) if full_at < self.grown_at(read, 0) => {
                let later = i128::from(full_at.max(next.ts).micros()) + self.span_of(taken.max(0));
                own.min(Timestamp::saturating(later)).max(next.ts)
            }
            _ => own,
        }
    }

    /// The time in which so much comes back, in microseconds, or more. Later periods may be longer than a named one.
    fn span_of(&self, tokens: i128) -> i128 {
        let (rate, period) = (i128::from(self.rate), i128::from(self.period));
        match self.flow {
            Flow::Continuous => div_ceil(tokens * period, rate),
            Flow::Named { .. } => div_ceil(tokens, rate) * i128::from(longest(self.period)),
            _ => div_ceil(tokens, rate) * period,
        }
    }
}

impl State {
    /// When a marked row is full, if each period brings so much; `None` if it is not marked.
    pub(super) fn full_by_mark(&self, rate: i64) -> Option<Timestamp> {
        let end = self.list.period_end()?;
        let more = match div_ceil((-wide(self.value)).max(0), rate.max(1).into()) {
            0 => return Some(self.ts),
            1 => return Some(end),
            periods => periods - 1,
        };
        Some(match self.list {
            List::Month { offset, .. } => months::step(months::number(end, offset) + more, offset),
            List::Period { length, .. } => {
                Timestamp::saturating(i128::from(end.micros()) + more * i128::from(longest(length)))
            }
            _ => end,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{State, Terms, Timestamp};
    use crate::MINUTE;
    use crate::key::Key;
    use crate::limit::Limit;
    use crate::tokens::Tokens;

    #[test]
    fn within_a_step_a_row_keeps_its_instant() {
        let second = |n: i64| Timestamp::from_micros(n * 1_000_000);
        let of = |limit| Terms::of(&limit, &Key::GLOBAL);
        let grid = of(Limit::fixed_window("ten", 10, MINUTE).start(Duration::ZERO));
        let named = of(Limit::billing("ten", 10)).named(second(0), second(60));
        for terms in [grid, named, of(Limit::monthly("ten", 10))] {
            let row = State::new(Tokens::from_micros(-1_000_000), second(70)).full_at(second(180));
            assert_eq!(terms.refill(&row, second(80)).ts, second(70));
        }
    }
}
