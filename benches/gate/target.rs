//! The figures that the gate is to reach on a machine of two cores, which it shares with the servers.

use tollgate::Storage::{self, Durable, Ephemeral};

use crate::contender::Contender::{
    self, Counter, Gate, GateAhead, GateRemembering, Redis, RedisSynced, Transaction, TwoGates, Update,
};
use crate::report::Report;
use crate::scene::Scene;
use crate::scene::Workload::{self, Held, Hot, One, Refused, Three, Uniform};
use crate::table::{Table, number};

/// A table of the targets whose figures are in the report. None if none is.
pub(crate) fn table(report: &Report) -> Option<Table> {
    let line = |&(workload, storage, callers, measure, wanted): &Target| {
        let scene = Scene { workload, storage, callers };
        let measured = measure.take(report, scene)?;
        let (bound, reached) =
            if measure.is_upper_bound() { ("≤", measured <= wanted) } else { ("≥", measured >= wanted) };
        Some(vec![
            scene.to_string(),
            measure.name(),
            format!("{bound} {}", number(Some(wanted))),
            number(Some(measured)),
            if reached { "yes" } else { "no" }.to_owned(),
        ])
    };
    let lines: Vec<_> = TARGETS.iter().filter_map(line).collect();
    let headings = ["scene", "measure", "wanted", "measured", "reached"];
    (!lines.is_empty()).then(|| Table::new(&headings, 2, lines.into_iter()))
}

/// A figure of the gate, or its ratio to another figure of the same run.
#[derive(Clone, Copy, Debug)]
enum Measure {
    /// Decisions per second, as a ratio to those of this contender.
    RateOf(Contender),
    /// Decisions per second of two gates that share all keys, as a ratio to those of Redis.
    TwoGates,
    /// Decisions per second of a gate that takes ahead, as a ratio to those of Redis, or of a counter there,
    AheadOf(Contender),
    /// and by themselves.
    AheadPerSecond,
    /// Its median latency; the target is an upper bound.
    AheadP50,
    /// Calls per second, as a ratio to those that ask the user's limit only.
    RateOfOneLimit,
    /// Decisions per second and core, by a gate that remembers refusals.
    RememberedPerCore,
    /// Processor time of server and client for each decision; the target is an upper bound.
    Cpu,
    /// The latency of 99 of 100 calls, as a ratio to that of the same calls while nobody holds a row; the target is an
    /// upper bound.
    P99OfUniform,
    /// The median latency, as a ratio to that of a transaction for each call; the target is an upper bound.
    P50OfTransaction,
}

impl Measure {
    fn take(self, report: &Report, scene: Scene) -> Option<f64> {
        let gate = report.figures(scene, Gate)?;
        let rate = |scene, contender| report.figures(scene, contender).map(|figures| figures.per_second);
        match self {
            Self::RateOf(contender) => Some(gate.per_second / rate(scene, contender)?),
            Self::TwoGates => Some(rate(scene, TwoGates)? / rate(scene, Redis)?),
            Self::AheadOf(contender) => Some(rate(scene, GateAhead)? / rate(scene, contender)?),
            Self::AheadPerSecond => rate(scene, GateAhead),
            Self::AheadP50 => Some(report.figures(scene, GateAhead)?.p50_us),
            Self::RateOfOneLimit => Some(gate.per_second / rate(Scene { workload: Uniform, ..scene }, Gate)?),
            Self::RememberedPerCore => Some(rate(scene, GateRemembering)? / f64::from(report.machine.cores)),
            Self::Cpu => Some(gate.server_us? + gate.client_us?),
            Self::P99OfUniform => {
                Some(gate.p99_us / report.figures(Scene { workload: Uniform, ..scene }, Gate)?.p99_us)
            }
            Self::P50OfTransaction => Some(gate.p50_us / report.figures(scene, Transaction)?.p50_us),
        }
    }

    fn name(self) -> String {
        match self {
            Self::RateOf(contender) => format!("× {}", contender.name()),
            Self::TwoGates => "two gates × redis".to_owned(),
            Self::AheadOf(contender) => format!("gate, ahead × {}", contender.name()),
            Self::AheadPerSecond => "decisions/s, ahead".to_owned(),
            Self::AheadP50 => "µs, p50, ahead".to_owned(),
            Self::RateOfOneLimit => "× one limit".to_owned(),
            Self::RememberedPerCore => "decisions/s and core, from memory".to_owned(),
            Self::Cpu => "µs of processor time".to_owned(),
            Self::P99OfUniform => "p99 × undisturbed".to_owned(),
            Self::P50OfTransaction => "p50 × transaction (a)".to_owned(),
        }
    }

    const fn is_upper_bound(self) -> bool {
        matches!(self, Self::AheadP50 | Self::Cpu | Self::P50OfTransaction | Self::P99OfUniform)
    }
}

type Target = (Workload, Storage, usize, Measure, f64);

const TARGETS: [Target; 49] = [
    (Hot, Ephemeral, 1, Measure::AheadP50, 10.0),
    (Hot, Ephemeral, 64, Measure::AheadPerSecond, 5e6),
    (Hot, Ephemeral, 64, Measure::AheadP50, 2.0),
    (Uniform, Ephemeral, 16, Measure::AheadOf(Redis), 1.0),
    (Uniform, Ephemeral, 64, Measure::AheadOf(Redis), 3.0),
    (Uniform, Ephemeral, 1024, Measure::AheadOf(Redis), 3.0),
    (Uniform, Ephemeral, 64, Measure::AheadOf(Counter), 3.0),
    (Uniform, Ephemeral, 256, Measure::AheadOf(Counter), 3.0),
    (Uniform, Ephemeral, 1024, Measure::AheadOf(Counter), 3.0),
    (Uniform, Durable, 64, Measure::AheadOf(Counter), 3.0),
    (Uniform, Durable, 256, Measure::AheadOf(Counter), 3.0),
    (Uniform, Durable, 1024, Measure::AheadOf(Counter), 3.0),
    (Hot, Ephemeral, 64, Measure::AheadOf(Counter), 3.0),
    (Hot, Ephemeral, 256, Measure::AheadOf(Counter), 3.0),
    (Hot, Durable, 64, Measure::AheadOf(Counter), 3.0),
    (Hot, Durable, 256, Measure::AheadOf(Counter), 3.0),
    (One, Ephemeral, 1, Measure::P50OfTransaction, 1.1),
    (One, Durable, 1, Measure::P50OfTransaction, 1.1),
    (Uniform, Ephemeral, 64, Measure::RateOf(Transaction), 6.0),
    (Uniform, Ephemeral, 64, Measure::RateOf(Update), 3.0),
    (Uniform, Ephemeral, 256, Measure::RateOf(Update), 4.0),
    (Uniform, Ephemeral, 16, Measure::RateOf(Redis), 0.6),
    (Uniform, Ephemeral, 64, Measure::RateOf(Redis), 0.7),
    (Uniform, Ephemeral, 256, Measure::RateOf(Redis), 1.0),
    (Uniform, Ephemeral, 1024, Measure::RateOf(Redis), 1.0),
    (Uniform, Ephemeral, 64, Measure::TwoGates, 0.35),
    (Uniform, Ephemeral, 256, Measure::TwoGates, 0.56),
    (Uniform, Ephemeral, 64, Measure::Cpu, 19.0),
    (Uniform, Durable, 64, Measure::RateOf(Update), 3.0),
    (Uniform, Durable, 256, Measure::RateOf(Update), 4.0),
    (Uniform, Durable, 256, Measure::RateOf(Redis), 0.8),
    (Uniform, Durable, 64, Measure::RateOf(RedisSynced), 1.0),
    (Uniform, Durable, 256, Measure::RateOf(RedisSynced), 1.0),
    (Held, Ephemeral, 64, Measure::P99OfUniform, 2.0),
    (Held, Durable, 64, Measure::P99OfUniform, 2.0),
    (Hot, Ephemeral, 64, Measure::RateOf(Transaction), 25.0),
    (Hot, Ephemeral, 256, Measure::RateOf(Transaction), 60.0),
    (Hot, Ephemeral, 64, Measure::RateOf(Redis), 2.0),
    (Hot, Ephemeral, 256, Measure::RateOf(Redis), 2.0),
    (Hot, Durable, 64, Measure::RateOf(Transaction), 30.0),
    (Hot, Durable, 256, Measure::RateOf(Transaction), 80.0),
    (Three, Ephemeral, 64, Measure::RateOfOneLimit, 0.6),
    (Three, Ephemeral, 256, Measure::RateOfOneLimit, 0.6),
    (Refused, Ephemeral, 64, Measure::RateOf(Transaction), 5.0),
    (Refused, Ephemeral, 64, Measure::RememberedPerCore, 1e6),
    (Refused, Ephemeral, 256, Measure::RememberedPerCore, 1e6),
    (Refused, Durable, 64, Measure::RateOf(Transaction), 5.0),
    (Refused, Durable, 64, Measure::RememberedPerCore, 1e6),
    (Refused, Durable, 256, Measure::RememberedPerCore, 1e6),
];
