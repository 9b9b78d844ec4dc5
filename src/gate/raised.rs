#![expect(clippy::disallowed_methods, reason = "the monotonic clock dates raised rows")]

use std::time::Instant;

use crate::plan::RowId;
use crate::values::hash::local_hash;

/// When rows were last raised. An answer to an earlier question does not include that.
///
/// Rows are kept by their hash, so they take constant room, however many are raised. A row that shares a cell with
/// another counts as raised with it.
pub(super) struct RaisedRows(Box<[Option<Instant>]>);

impl Default for RaisedRows {
    fn default() -> Self {
        Self(vec![None; CELLS].into())
    }
}

impl RaisedRows {
    pub(super) fn note(&mut self, row: &RowId) {
        self.0[local_hash(row) % CELLS] = Some(Instant::now());
    }

    /// Whether a row may have been raised at an instant or later.
    pub(super) fn is_since(&self, row: &RowId, instant: Instant) -> bool {
        self.0[local_hash(row) % CELLS].is_some_and(|at| at >= instant)
    }
}

/// With so many cells, and few answers under way at once, hardly any shares a cell with another key's row that is
/// raised meanwhile.
const CELLS: usize = 4096;
