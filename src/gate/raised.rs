#![expect(clippy::disallowed_methods, reason = "the monotonic clock dates raised rows")]

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Instant;

use crate::plan::Row;

/// When rows were last raised. An answer to an earlier question does not include that.
///
/// Rows are kept by their hash, so they take constant room, however many are raised. A row that shares a cell with
/// another counts as raised with it.
pub(super) struct RaisedRows(Box<[Option<Instant>]>);

impl RaisedRows {
    pub(super) fn new(cells: usize) -> Self {
        Self(vec![None; cells].into())
    }

    pub(super) fn note(&mut self, row: &Row) {
        let cell = hash(row) % self.0.len();
        self.0[cell] = Some(Instant::now());
    }

    /// Whether a row may have been raised at an instant or later.
    pub(super) fn is_since(&self, row: &Row, instant: Instant) -> bool {
        self.0[hash(row) % self.0.len()].is_some_and(|at| at >= instant)
    }
}

pub(super) fn hash(row: &Row) -> usize {
    let mut hasher = DefaultHasher::new();
    row.hash(&mut hasher);
    // Any bits will do, if `usize` has fewer.
    #[expect(clippy::cast_possible_truncation, reason = "a hash")]
    let hash = hasher.finish() as usize;
    hash
}
