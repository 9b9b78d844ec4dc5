use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::Subject;
use crate::bench::Machine;

/// Measured points, as `docs/scaling.json` keeps them.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[non_exhaustive]
pub struct Measurements {
    /// Where they were measured.
    pub machine: Machine,
    /// How many rounds there were, of which each point keeps one.
    pub rounds: usize,
    /// How many seconds each turn was timed.
    pub seconds: f64,
    /// The points.
    pub points: Vec<Point>,
}

impl Measurements {
    /// A figure, if it was measured.
    #[must_use]
    pub fn figure(&self, subject: Subject, quantity: Quantity) -> Option<f64> {
        self.points.iter().find(|point| point.subject == subject)?.measured.get(&quantity).copied()
    }
}

/// What was measured of a subject.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[non_exhaustive]
pub struct Point {
    /// What it is about.
    #[serde(flatten)]
    pub subject: Subject,
    /// The figures of one round.
    pub measured: Figures,
}

/// Figures by what they count.
pub type Figures = BTreeMap<Quantity, f64>;

/// What a figure counts.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Quantity {
    /// Decisions per second.
    PerSecond,
    /// Decisions per transaction that wrote.
    Batch,
    /// Microseconds of processor time per decision, of the server,
    ServerMicros,
    /// and of the client.
    ClientMicros,
    /// Bytes of write-ahead log per decision; per row where rows are deleted or frozen.
    WalBytes,
    /// Flushes of the log per decision.
    Flushes,
    /// Bytes of a table per row, without its index,
    HeapBytes,
    /// and of its index.
    IndexBytes,
    /// Microseconds per row.
    RowMicros,
    /// Microseconds that a flush of the log took: the disk's, and whoever else writes to it.
    FlushMicros,
    /// The share of the machine's processors that others had meanwhile.
    Others,
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::PerSecond => "decisions/s",
            Self::Batch => "decisions per batch",
            Self::ServerMicros => "µs of the server per decision",
            Self::ClientMicros => "µs of the client per decision",
            Self::WalBytes => "bytes of log",
            Self::Flushes => "flushes per decision",
            Self::HeapBytes => "bytes of the table per row",
            Self::IndexBytes => "bytes of the index per row",
            Self::RowMicros => "µs per row",
            Self::FlushMicros => "µs per flush",
            Self::Others => "share of the others",
        })
    }
}
