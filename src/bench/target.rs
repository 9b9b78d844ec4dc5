use std::fmt;

use serde::Serialize;

use super::contender::{GATE, GATE_REMEMBERING, PLAIN, UPDATE};
use super::report::Report;
use super::scene::Scene;
use super::workload::Workload::{self, Hot, Refused, Three, Uniform};
use crate::limit::Storage::{self, Durable, Ephemeral};

/// What the gate is to reach on a machine with two cores that it shares with the server, and what it reached.
#[derive(Clone, Copy, Debug, Serialize)]
#[non_exhaustive]
pub struct Target {
    /// In which scene.
    #[serde(flatten)]
    pub scene: Scene,
    /// What is compared.
    pub measure: Measure,
    /// The bound: the least that is wanted, of [`Measure::P50OfPlain`] the most.
    pub wanted: f64,
    /// What was measured.
    pub measured: f64,
    /// Whether that keeps to the bound.
    pub reached: bool,
}

impl Target {
    /// The targets whose scenes are in a report.
    pub(super) fn of(report: &Report) -> Vec<Self> {
        let target = |&(workload, storage, callers, measure, wanted): &Row| {
            let scene = Scene { workload, storage, callers };
            let measured = measure.take(report, scene)?;
            let reached = if measure.is_upper_bound() { measured <= wanted } else { measured >= wanted };
            Some(Self { scene, measure, wanted, measured, reached })
        };
        TARGETS.iter().filter_map(target).collect()
    }
}

/// A ratio of two figures of one run.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Measure {
    /// The gate's decisions per second, in those of the [plain](super::PLAIN) limiter, baseline (a).
    RateOfPlain,
    /// The gate's decisions per second, in those of the bare [update](super::UPDATE), baseline (b).
    RateOfUpdate,
    /// The gate's calls per second, in those that ask the user's limit only.
    RateOfOneLimit,
    /// Decisions per second and core of a gate that remembers refusals.
    RememberedPerCore,
    /// The gate's median latency, in that of the plain limiter.
    P50OfPlain,
}

impl Measure {
    fn take(self, report: &Report, scene: Scene) -> Option<f64> {
        let rate = |scene, contender| report.figures(scene, contender).map(|figures| figures.per_second);
        let p50 = |contender| report.figures(scene, contender).map(|figures| figures.p50_us);
        match self {
            Self::RateOfPlain => Some(rate(scene, GATE)? / rate(scene, PLAIN)?),
            Self::RateOfUpdate => Some(rate(scene, GATE)? / rate(scene, UPDATE)?),
            Self::RateOfOneLimit => Some(rate(scene, GATE)? / rate(Scene { workload: Uniform, ..scene }, GATE)?),
            Self::RememberedPerCore => Some(rate(scene, GATE_REMEMBERING)? / f64::from(report.machine.cores)),
            Self::P50OfPlain => Some(p50(GATE)? / p50(PLAIN)?),
        }
    }

    pub(super) const fn is_upper_bound(self) -> bool {
        matches!(self, Self::P50OfPlain)
    }
}

impl fmt::Display for Measure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::RateOfPlain => "× (a)",
            Self::RateOfUpdate => "× (b)",
            Self::RateOfOneLimit => "× one limit",
            Self::RememberedPerCore => "decisions/s and core, from memory",
            Self::P50OfPlain => "× p50 of (a)",
        })
    }
}

type Row = (Workload, Storage, usize, Measure, f64);

const TARGETS: [Row; 19] = [
    (Uniform, Ephemeral, 1, Measure::P50OfPlain, 1.1),
    (Uniform, Ephemeral, 64, Measure::RateOfPlain, 6.0),
    (Uniform, Ephemeral, 64, Measure::RateOfUpdate, 3.0),
    (Uniform, Ephemeral, 256, Measure::RateOfUpdate, 4.0),
    (Uniform, Durable, 1, Measure::P50OfPlain, 1.1),
    (Uniform, Durable, 64, Measure::RateOfUpdate, 3.0),
    (Uniform, Durable, 256, Measure::RateOfUpdate, 4.0),
    (Hot, Ephemeral, 64, Measure::RateOfPlain, 25.0),
    (Hot, Ephemeral, 256, Measure::RateOfPlain, 60.0),
    (Hot, Durable, 64, Measure::RateOfPlain, 30.0),
    (Hot, Durable, 256, Measure::RateOfPlain, 80.0),
    (Refused, Ephemeral, 64, Measure::RateOfPlain, 5.0),
    (Refused, Ephemeral, 64, Measure::RememberedPerCore, 1e6),
    (Refused, Ephemeral, 256, Measure::RememberedPerCore, 1e6),
    (Refused, Durable, 64, Measure::RateOfPlain, 5.0),
    (Refused, Durable, 64, Measure::RememberedPerCore, 1e6),
    (Refused, Durable, 256, Measure::RememberedPerCore, 1e6),
    (Three, Ephemeral, 64, Measure::RateOfOneLimit, 0.6),
    (Three, Ephemeral, 256, Measure::RateOfOneLimit, 0.6),
];
