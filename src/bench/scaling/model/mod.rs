//! What the measured points have in common, in a few prices.

mod fit;
mod gate;
mod joined;
mod layout;
mod simulation;
mod upkeep;

use std::fmt;

use super::{Figures, Keys, Measurements, Point, Quantity, Subject};
use crate::bench::figures::median;
use crate::bench::turn::WARM_UP;
use crate::bench::workload::Workload;
use crate::limit::Storage;
use gate::{Callers, GateModel, MAX_BATCH};
use joined::{Clients, JoinedModel};
use layout::Shape;

/// One server: what its gates and transactions cost, taken from the points that calibrate.
#[derive(Clone, Debug)]
pub struct Model {
    gate: GateModel,
    joined: JoinedModel,
    seconds: f64,
    /// How long a flush took, in the median point.
    flush_us: f64,
}

/// What is none of tollgate's doing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Conditions {
    /// The share of the processors that is there for server and callers.
    pub speed: f64,
    /// How long the disk takes to flush the log, in microseconds.
    pub flush_us: f64,
}

impl Conditions {
    /// Those that a point was measured under.
    #[must_use]
    pub fn of(measured: &Figures) -> Self {
        let figure = |quantity| measured.get(&quantity).copied().unwrap_or_default();
        Self { speed: (1.0 - figure(Quantity::Others)).clamp(0.1, 1.0), flush_us: figure(Quantity::FlushMicros) }
    }
}

impl Model {
    /// The model whose prices fit the calibrating points best.
    #[must_use]
    pub fn of(measurements: &Measurements) -> Self {
        let points: Vec<&Point> = measurements.points.iter().filter(|point| point.subject.calibrates()).collect();
        let cores = usize::try_from(measurements.machine.cores).unwrap_or(1);
        // Whatever is logged in the warm-up is counted, too.
        let seconds = measurements.seconds + measurements.seconds.min(WARM_UP.as_secs_f64());
        let flushes =
            measurements.points.iter().filter_map(|point| point.measured.get(&Quantity::FlushMicros).copied());
        let flush_us = median(flushes).unwrap_or_default();
        Self {
            gate: GateModel::fit(&points, cores, seconds),
            joined: JoinedModel::fit(&points, cores),
            seconds,
            flush_us,
        }
    }

    /// What the model says of a subject under these conditions; figures that it does not know are left out.
    #[must_use]
    pub fn predict(&self, subject: Subject, conditions: Conditions) -> Figures {
        if let Some(callers) = Callers::of(subject) {
            return self.gate.predict(callers, conditions, self.seconds);
        }
        if let Some(clients) = Clients::of(subject) {
            return self.joined.predict(clients, conditions);
        }
        upkeep::predict(subject).unwrap_or_default()
    }

    /// Microseconds of the server and of the client for one decision of a gate's batch, of different keys, and bytes of log.
    pub(super) fn decision(&self, storage: Storage, batch: f64) -> [f64; 3] {
        self.gate.costs(Callers { workload: Workload::Uniform, ..one_row(storage) }, batch)
    }

    /// Microseconds of the server for a decision in a transaction of the caller's.
    pub(super) fn transaction(&self, storage: Storage) -> f64 {
        self.joined.server_micros(Clients { storage, count: 16, shards: None, work_us: 0.0 })
    }

    /// Decisions per second of one row by one gate whose batches are as large as by default they may be.
    pub(super) fn hottest(&self, storage: Storage) -> f64 {
        let flush = if storage == Storage::Durable { self.flush_us } else { 0.0 };
        1e6 * MAX_BATCH / (self.gate.lane_micros(one_row(storage), MAX_BATCH) + flush)
    }
}

fn one_row(storage: Storage) -> Callers {
    Callers { workload: Workload::Hot, storage, count: MAX_BATCH, keys: u32::MAX, gates: 1.0 }
}

/// Bytes of the table and of the index for each of so many rows.
pub(super) fn row_bytes(keys: Keys, rows: f64) -> [f64; 2] {
    let shape = Shape::of(keys, rows);
    [shape.heap(), shape.index()]
}

pub(super) fn rows_per_page(keys: Keys, rows: f64) -> f64 {
    Shape::of(keys, rows).rows_per_page()
}

/// Bytes of log for each of so many rows that are frozen.
pub(super) fn freeze_bytes(keys: Keys, rows: f64) -> f64 {
    upkeep::freeze(Shape::of(keys, rows))
}

impl fmt::Display for Model {
    /// Markdown: the prices.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n{}", self.gate, self.joined)
    }
}
