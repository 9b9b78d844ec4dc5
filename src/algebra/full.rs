//! Computes when a row is full. A full row equals a missing one, for every reader.
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
use super::refill::div_ceil;
use super::state::State;
use super::terms::{Flow, Terms};
use crate::tokens::Tokens;
use crate::values::timestamp::Timestamp;

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
                let later = wide_at(full_at.max(next.ts)) + self.span_of(taken.max(0));
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

fn wide_at(at: Timestamp) -> i128 {
    i128::from(at.micros())
}
