//! The period in which a row stands, if it is a month or a caller has named it.
//!
//! A row is marked with its period's end, because only its own terms know when tokens come back. Until the row is full,
//! other terms take from it and give to it at its own instant: they bring no tokens, and the mark stays. Without the
//! mark, each definition of another kind that asks the row forgives what is used of the period.
//!
//! A caller may name a period that is over, because it has not heard of the next one. Then one period more is known: it
//! begins where the named one ends, and no period is shorter than eight ninths of the one before it (28 days after 31).
//! After that time a row stands at now, so that no period that has begun before refills it once more.

use super::state::{List, State};
use super::terms::Terms;
use crate::values::timestamp::Timestamp;

impl Terms {
    /// The mark of a row whose terms name a period.
    pub(super) fn named_mark(&self, start: Timestamp, next: &State) -> List {
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

/// The length of a period at most, by one of its neighbours: 31 days by 28.
pub(crate) fn longest(length: i64) -> i64 {
    length + (length + 7) / 8
}
