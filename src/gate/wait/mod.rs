#![expect(
    clippy::disallowed_methods,
    reason = "the monotonic clock measures how long callers sleep and rows are held; the database tells the time"
)]

mod hand_over;
mod line;
mod waiter;

use std::collections::{BTreeSet, HashMap};
use std::iter;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::raised::RaisedRows;
use crate::algebra::{Ask, Flow};
use crate::plan::{Item, RowId};
use crate::values::lock::lock;
use hand_over::HandOvers;
use line::{Line, Place};
pub(super) use waiter::Turn;
use waiter::Waiter;

/// The callers that wait for tokens, row by row, in the order in which they came.
///
/// If all slept until the same instant, all but one would ask for nothing: a thousand callers would ask half a million
/// times, and a large cost would never be served. So only the first caller of a line sleeps until its tokens are there.
/// Then it asks, and the last answer paces the line. A grant says how many tokens it leaves, and when the next one
/// comes. As many callers as those tokens pay for ask at once, in one batch. If they pay for none, the next caller
/// sleeps until the next token is there, or asks once and is refused, if it needs another amount. A caller that is
/// refused, because others took tokens, goes back to its place.
///
/// Where tokens come evenly, a grant also counts on those that come while the next question is under way: as many as
/// came while it was under way itself. Without them a bucket that fills up within one round trip would be full half of
/// the time.
///
/// A row may also be raised. This gate wakes the first caller of the line when it raises the row. Other processes
/// notify no one, so the first caller asks every few seconds. If an answer does not say what it leaves, or the row was
/// raised meanwhile, the next caller asks.
///
/// A lease may be released at any time. So in the line of a concurrency limit the first caller asks now and then, and
/// when this gate has released a lease that it does not leave to other processes.
///
/// A caller that takes alternatives has a place in a line of each, and asks as soon as it is its turn in one of them.
#[derive(Default)]
pub(super) struct Waiters {
    lines: Mutex<Lines>,
    hand_overs: HandOvers,
    /// The number of callers that have come.
    arrived: AtomicU64,
}

#[derive(Default)]
struct Lines {
    by_row: HashMap<RowId, Line>,
    /// Callers with split costs: their numbers and their lines, by the other rows that share the cost.
    split: HashMap<RowId, BTreeSet<(u64, RowId)>>,
    raised: RaisedRows,
    is_closed: bool,
}

impl Waiters {
    /// A new caller, which waits for nothing yet. It gets its number before it asks. So if it is refused while others
    /// begin to wait, it comes before callers that came later and joined the line at once.
    pub(super) fn arrive(&self) -> Waiter<'_> {
        Waiter::new(self, self.arrived.fetch_add(1, Ordering::Relaxed))
    }

    /// A row was raised, perhaps because a lease has ended, so the first caller of its line asks.
    pub(super) fn raise(&self, row: &RowId, is_released: bool) {
        let row = row.first();
        if is_released {
            self.hand_overs.count(&row);
        }
        let left_until = self.hand_overs.left_until(&row).filter(|_| is_released);
        lock(&self.lines).raise(&row, left_until.unwrap_or_else(Instant::now));
    }

    /// Ends all waits.
    pub(super) fn close(&self) {
        let mut lines = lock(&self.lines);
        lines.is_closed = true;
        lines.by_row.values().for_each(Line::call_all);
    }

    /// Until when a row is left to other processes, if it is.
    fn left_until(&self, item: &Item<Ask>) -> Option<Instant> {
        let is_leased = item.target.terms.flow == Flow::Leased;
        is_leased.then(|| self.hand_overs.left_until(&item.target.rows.first)).flatten()
    }
}

impl Lines {
    fn raise(&mut self, row: &RowId, asks_at: Instant) {
        let Self { by_row, split, raised, .. } = self;
        raised.note(row);
        let split = split.get(row).into_iter().flatten().map(|(_, row)| row);
        for row in iter::once(row).chain(split) {
            if let Some(line) = by_row.get_mut(row) {
                line.raise(asks_at);
            }
        }
    }

    /// Whether one of the rows of a place was raised since an instant.
    fn is_raised(&self, place: &Place, since: Instant) -> bool {
        iter::once(place.row()).chain(&place.others).any(|row| self.raised.is_since(row, since))
    }
}
