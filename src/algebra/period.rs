//! The period in which a row stands, if it is a month or a caller has named it.
//!
//! A row is marked with its period's end, because only its own terms know when tokens come back. Until the row is full,
//! other terms take from it and give to it at its own instant: they bring no tokens, and the mark stays. Without the
//! mark, each definition of another kind that asks the row forgives what is used of the period.
//!
//! A caller may name a period that is over, because it has not heard of the next one. Then one period more is known: it
//! begins where the named one ends, and no period is shorter than eight ninths of the one before it (28 days after 31).
//! After that time a row stands at now, so that no period that has begun before refills it once more.

use super::months;
use super::refill::div_ceil;
use super::state::{List, State, wide};
use super::terms::{Flow, Terms};
use crate::values::timestamp::Timestamp;

impl Terms {
    /// Whether these terms bring no tokens to a row, because it is marked with a period of other terms.
    pub(super) fn stands_still(&self, row: &State) -> bool {
        match (&row.list, self.flow) {
            (List::Month { offset, .. }, Flow::Month { offset: own }) => *offset != own,
            (List::Period { .. }, Flow::Named { .. }) => false,
            (list, _) => list.period_end().is_some(),
        }
    }

    /// The mark of a row that these terms write.
    pub(super) fn mark(&self, next: &State) -> List {
        match self.flow {
            _ if self.stands_still(next) => next.list.clone(),
            Flow::Month { offset } => {
                List::Month { end: months::step(months::number(next.ts, offset) + 1, offset), offset }
            }
            Flow::Named { start } => self.named_mark(start.into(), next),
            _ => next.list.clone(),
        }
    }

    fn named_mark(&self, start: Timestamp, next: &State) -> List {
        let (ts, length, named_end) = (next.ts, self.period, start.after(self.period));
        let own = if let List::Period { end, length } = next.list { Some((end, length)) } else { None };
        let (end, length) = match own {
            // The named period has not begun.
            _ if ts < start => (start, length),
            _ if ts == start => (named_end, length),
            Some(own) => own,
            None if ts < named_end => (named_end, length),
            // Nobody has named the period that runs, and it may be longer than the one before it.
            None => (ts.after(longest(length)), length),
        };
        List::Period { end, length }
    }

    /// The end of the period in which a row stands, for a caller that has named no later one.
    pub(super) fn named_end(&self, start: i64, row: &State) -> Timestamp {
        match row.list {
            List::Period { end, .. } if row.ts.micros() > start => end,
            _ => self.step(start, self.step_number(start, row.ts) + 1),
        }
    }

    /// Where a row stands at an instant after its period has ended, and perhaps the named one.
    pub(super) fn stands_after(&self, start: i64, end: Timestamp, now: Timestamp) -> Timestamp {
        let named_end = Timestamp::from(start).after(self.period);
        let end = if named_end <= now { end.max(named_end) } else { end };
        if now.micros() - end.micros() < self.period / 9 * 8 { end } else { now }
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

/// The length of a period at most, by one of its neighbours: 31 days by 28.
pub(crate) fn longest(length: i64) -> i64 {
    length + (length + 7) / 8
}
