use std::fmt;

use super::{Keys, Measurements, Quantity, Subject};
use crate::bench::scene::USERS;
use crate::bench::table::{Table, number};
use crate::bench::workload::Workload;
use crate::limit::Storage::{self, Durable, Ephemeral};

/// What one server gives, as measured.
#[derive(Debug)]
pub(super) struct Summary<'a> {
    pub(super) measurements: &'a Measurements,
}

impl Summary<'_> {
    fn figure(&self, subject: Subject, quantity: Quantity) -> Option<f64> {
        self.measurements.figure(subject, quantity)
    }

    /// Decisions per second of a core that does nothing else.
    fn per_core(&self, subject: Subject) -> Option<f64> {
        Some(1e6 / self.figure(subject, Quantity::ServerMicros)?)
    }
}

impl fmt::Display for Summary<'_> {
    /// Markdown.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gate = |callers| {
            move |storage| Subject::Gate { workload: Workload::Uniform, storage, callers, keys: USERS, gates: 1 }
        };
        let joined = |storage| Subject::Joined { storage, clients: 16, shards: None, work_us: 0 };
        let log = |subject| self.figure(subject, Quantity::WalBytes);
        let lines = [
            line("decisions/s, a gate's 256 callers", gate(256), |subject| self.figure(subject, Quantity::PerSecond)),
            line("… for each core that the server has for itself", gate(256), |subject| self.per_core(subject)),
            line("… likewise, 64 callers", gate(64), |subject| self.per_core(subject)),
            line("… likewise, 1 caller", gate(1), |subject| self.per_core(subject)),
            line("… likewise, 16 transactions at a time", joined, |subject| self.per_core(subject)),
            line("bytes of log per decision, 256 callers", gate(256), log),
            line("… 64 callers", gate(64), log),
            line("flushes of the log per decision, 64 callers", gate(64), |subject| {
                self.figure(subject, Quantity::Flushes)
            }),
        ];
        writeln!(f, "{}", Table::new(&["10 000 keys", "ephemeral", "durable"], 1, lines.into_iter()))?;
        let upkeep = [
            ("table and index", Subject::Rows { keys: Keys::Uuids, rows: UUIDS }),
            ("a sweep", Subject::Sweep { keys: Keys::Uuids, rows: UUIDS }),
            ("the vacuum after it", Subject::Vacuum { keys: Keys::Uuids, rows: UUIDS }),
            ("freezing", Subject::Freeze { keys: Keys::Uuids, rows: UUIDS }),
        ];
        let lines = upkeep.map(|(what, subject)| {
            let text = |figure: Option<f64>| figure.map_or_else(|| "–".to_owned(), number);
            let sizes = [Quantity::HeapBytes, Quantity::IndexBytes].map(|size| self.figure(subject, size));
            let bytes = sizes[0].zip(sizes[1]).map(|(heap, index)| heap + index);
            vec![
                what.to_owned(),
                text(bytes),
                text(self.figure(subject, Quantity::WalBytes)),
                text(self.figure(subject, Quantity::RowMicros)),
            ]
        });
        let headings = ["for each durable row with a UUID", "bytes on disk", "bytes of log", "µs"];
        write!(f, "{}", Table::new(&headings, 1, lines.into_iter()))
    }
}

/// A figure of both storages, each of the subject that it has.
fn line(what: &str, subject: impl Fn(Storage) -> Subject, figure: impl Fn(Subject) -> Option<f64>) -> Vec<String> {
    let of = |storage| figure(subject(storage)).map_or_else(|| "–".to_owned(), number);
    vec![what.to_owned(), of(Ephemeral), of(Durable)]
}

/// How many rows the table with UUIDs has.
pub(super) const UUIDS: u32 = 150_000;
