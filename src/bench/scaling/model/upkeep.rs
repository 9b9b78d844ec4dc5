//! What tables take on disk, and what looking after them writes to the log: by layout, right after a checkpoint.

use super::layout::{PAGE, Shape};
use crate::bench::scaling::{Figures, Quantity, Subject};

/// Of tables; none of callers.
pub(super) fn predict(subject: Subject) -> Option<Figures> {
    let shape = |keys, rows: u32| Shape::of(keys, rows.into());
    Some(match subject {
        Subject::Rows { keys, rows } => {
            let shape = shape(keys, rows);
            Figures::from([(Quantity::HeapBytes, shape.heap()), (Quantity::IndexBytes, shape.index())])
        }
        Subject::Freeze { keys, rows } => Figures::from([(Quantity::WalBytes, freeze(shape(keys, rows)))]),
        Subject::Sweep { keys, rows } => Figures::from([(Quantity::WalBytes, sweep(shape(keys, rows)))]),
        Subject::Vacuum { keys, rows } => Figures::from([(Quantity::WalBytes, vacuum(shape(keys, rows)))]),
        Subject::Gate { .. } | Subject::Joined { .. } => return None,
    })
}

/// Bytes per row that stays: an image of each page.
pub(super) fn freeze(shape: Shape) -> f64 {
    shape.image() / shape.rows_per_page()
}

/// Bytes per row that goes, if that is every second: the page's image, and two records, of the lock and of the deletion.
fn sweep(shape: Shape) -> f64 {
    shape.image() / (shape.rows_per_page() / 2.0) + 2.0 * 56.0
}

/// Bytes per row that has gone, if that was every second: images of the table's and of the index's pages with what is left.
fn vacuum(shape: Shape) -> f64 {
    let gone = shape.rows_per_page() / 2.0;
    let heap = (60.0 + 4.0 * gone) / gone + shape.image() / shape.rows_per_page();
    let entries = PAGE / shape.index();
    // Entries that are left fill half of what they filled.
    let index = (PAGE - 40.0) / PAGE * shape.index() * full(entries, shape);
    heap + index
}

/// The share of an index page that is used before anything goes.
fn full(entries: f64, shape: Shape) -> f64 {
    (entries * shape.entry() / (PAGE - 40.0)).min(1.0)
}
