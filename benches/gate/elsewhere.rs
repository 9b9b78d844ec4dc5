//! Figures that others published of a scene like ours. They measured on a machine of theirs, so no ratio to our figures
//! means much.

use tollgate::Storage;

use crate::report::Row;
use crate::scene::Workload;
use crate::table::number;

/// Lines for the table of one workload and storage: the figures for those numbers of callers that its rows have.
pub(crate) fn lines(rows: &[Row]) -> impl Iterator<Item = Vec<String>> {
    let known = |callers| {
        rows.iter().map(|row| row.scene).any(|scene| {
            matches!(scene.workload, Workload::Hot | Workload::Open)
                && scene.storage == Storage::Durable
                && scene.callers == callers
        })
    };
    TENSORZERO.into_iter().filter(move |(_, callers, ..)| known(*callers)).map(|(thread, callers, p50_us, p99_us)| {
        let figures =
            [None, None, None, None, None, None, Some(p50_us), Some(p99_us), None, None, None, None, None, None];
        [format!("elsewhere: {thread}"), callers.to_string()].into_iter().chain(figures.map(number)).collect()
    })
}

/// The thread on GitHub, the callers, and microseconds: a call in PostgreSQL for each decision, one logged row for all.
const TENSORZERO: [(&str, usize, f64, f64); 3] = [
    ("tensorzero#5629", 20, 20_000.0, 120_000.0),
    ("tensorzero#5663", 20, 26_480.0, 192_680.0),
    ("tensorzero#5629", 50, 60_000.0, 500_000.0),
];
