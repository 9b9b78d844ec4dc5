use std::fmt;

use super::{Keys, Measurements, Model, Quantity, Subject};
use crate::bench::table::{Table, number};
use crate::limit::Storage;

/// What many decisions and many keys take, by the model and by assumptions that are said.
#[derive(Debug)]
pub(super) struct Arithmetic<'a> {
    measurements: &'a Measurements,
    model: &'a Model,
}

impl<'a> Arithmetic<'a> {
    pub(super) fn new(measurements: &'a Measurements, model: &'a Model) -> Self {
        Self { measurements, model }
    }

    /// A line for each size of batches and each storage.
    fn gates(&self) -> Table {
        let mut lines = Vec::new();
        for storage in [Storage::Ephemeral, Storage::Durable] {
            for batch in BATCHES {
                let [server, client, log] = self.model.decision(storage, batch);
                let images =
                    if storage == Storage::Durable { PER_SECOND.min(pages() / CHECKPOINT) * image() } else { 0.0 };
                let ids = PER_SECOND / batch;
                lines.push(vec![
                    crate::bench::scene::storage_name(storage).to_owned(),
                    format!("{batch}"),
                    number(server),
                    number(client),
                    number(cores(server).ceil()),
                    number(cores(client).ceil()),
                    format!("{}", (cores(server) / CORES).ceil()),
                    number(log * PER_SECOND / 1e6),
                    number(images / 1e6),
                    number(ids),
                    number(FREEZE_AGE / ids / 3600.0),
                ]);
            }
        }
        Table::new(&HEADINGS, 1, lines.into_iter())
    }

    /// Microseconds per swept row, in the median of the tables.
    fn sweeping(&self) -> Option<f64> {
        self.upkeep(|subject| matches!(subject, Subject::Sweep { .. }))
    }

    fn vacuuming(&self) -> Option<f64> {
        self.upkeep(|subject| matches!(subject, Subject::Vacuum { .. }))
    }

    fn upkeep(&self, of: fn(&Subject) -> bool) -> Option<f64> {
        let points = self.measurements.points.iter().filter(|point| of(&point.subject));
        crate::bench::figures::median(points.filter_map(|point| point.measured.get(&Quantity::RowMicros).copied()))
    }
}

impl fmt::Display for Arithmetic<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "## To 10^6 decisions/s and 10^9 keys\n\nAssumed:\n")?;
        writeln!(f, "- 10^6 decisions a second, all granted, each of one key; 10^9 keys, each as likely as any other")?;
        writeln!(
            f,
            "- processors as here, of which {:.0} % are busy; servers of {CORES} cores; prices do not change with their number",
            UTILISATION * 100.0
        )?;
        writeln!(f, "- all pages that are asked for are in memory")?;
        writeln!(f, "- keys of 36 characters, a limit's name of 20")?;
        writeln!(
            f,
            "- a checkpoint every {:.0} minutes, after which each page that is written is logged whole once",
            CHECKPOINT / 60.0
        )?;
        writeln!(
            f,
            "- rows are frozen when they are {:.0} million transactions old (`autovacuum_freeze_max_age`, as by default)",
            FREEZE_AGE / 1e6
        )?;
        writeln!(f, "- the network, and what a server does besides, cost nothing\n")?;
        writeln!(f, "Through gates, by the number of calls that share a batch:\n\n{}", self.gates())?;
        let Disk { table, index } = disk();
        let (loaded, called) = (table + index, 2.0 * table + index);
        writeln!(
            f,
            "- **disk**: {:.0} GB for the table and {:.0} GB for its index, {:.0} GB together; {:.0} GB where calls make all rows faster than vacuum follows, for each leaves a dead version behind",
            table / 1e9,
            index / 1e9,
            loaded / 1e9,
            called / 1e9
        )?;
        let active = 1.0 - (1.0_f64 - ACTIVE).powf(rows_per_page());
        writeln!(
            f,
            "- **memory**: rows of one page have nothing to do with each other; if {:.0} % of the keys are active, {:.1} % of the table's pages are",
            ACTIVE * 100.0,
            active * 100.0
        )?;
        writeln!(
            f,
            "- **freezing** logs {:.0} GB each time where pages are not in the log since the last checkpoint, and reads {:.0} GB",
            super::model::freeze_bytes(KEYS_SHAPE, KEYS) * KEYS / 1e9,
            loaded / 1e9
        )?;
        if let (Some(sweep), Some(vacuum)) = (self.sweeping(), self.vacuuming()) {
            writeln!(
                f,
                "- **sweeping** takes {sweep:.1} µs for each row that goes, and the vacuum after it {vacuum:.2} µs: a core can have {} rows a second gone",
                number(1e6 / (sweep + vacuum))
            )?;
        }
        let [ephemeral, durable] =
            [Storage::Ephemeral, Storage::Durable].map(|storage| self.model.transaction(storage));
        writeln!(
            f,
            "- **in the callers' own transactions**, which share nothing, {} µs of the server for an ephemeral decision and {} for a durable one: {} and {} cores",
            number(ephemeral),
            number(durable),
            number(cores(ephemeral)),
            number(cores(durable))
        )?;
        for (storage, name) in [(Storage::Ephemeral, "ephemeral"), (Storage::Durable, "durable")] {
            let one = self.model.hottest(storage);
            writeln!(
                f,
                "- **one hot limit**, {name}: {} decisions/s through one row by one gate with batches of 256, so 10^6 take {} limits of a part each, in as many gates",
                number(one),
                (PER_SECOND / one).ceil()
            )?;
        }
        for held_ms in [2.0, 10.0] {
            let shards = PER_SECOND * held_ms / 1e3;
            writeln!(
                f,
                "- **one hot limit in transactions** that hold its row for {held_ms} ms: 16 shards bear {} a second, 64 bear {}; 10^6 would take {} rows",
                number(16e3 / held_ms),
                number(64e3 / held_ms),
                number(shards)
            )?;
        }
        Ok(())
    }
}

/// Cores for so many microseconds of each decision.
fn cores(micros: f64) -> f64 {
    PER_SECOND * micros / 1e6 / UTILISATION
}

struct Disk {
    table: f64,
    index: f64,
}

fn disk() -> Disk {
    let [table, index] = super::model::row_bytes(KEYS_SHAPE, KEYS);
    Disk { table: table * KEYS, index: index * KEYS }
}

fn rows_per_page() -> f64 {
    super::model::rows_per_page(KEYS_SHAPE, KEYS)
}

fn pages() -> f64 {
    KEYS / rows_per_page()
}

fn image() -> f64 {
    super::model::freeze_bytes(KEYS_SHAPE, KEYS) * rows_per_page()
}

const PER_SECOND: f64 = 1e6;
const KEYS: f64 = 1e9;
const KEYS_SHAPE: Keys = Keys::Uuids;
const BATCHES: [f64; 5] = [1.0, 4.0, 16.0, 64.0, 256.0];
/// Above this, queues grow.
const UTILISATION: f64 = 0.6;
const CORES: f64 = 32.0;
/// Seconds.
const CHECKPOINT: f64 = 900.0;
const FREEZE_AGE: f64 = 200e6;
const ACTIVE: f64 = 0.1;

const HEADINGS: [&str; 11] = [
    "storage",
    "batch",
    "server µs",
    "client µs",
    "server cores",
    "client cores",
    "servers",
    "log MB/s",
    "page images MB/s",
    "transactions/s",
    "freeze every h",
];
