//! A `Limiter` in transactions of the callers'.

use std::fmt;

use super::Conditions;
use super::fit::{prices, sum};
use super::simulation::{Simulation, Step};
use crate::bench::scaling::{Figures, Point, Quantity, Subject};
use crate::bench::table::{Table, number};
use crate::limit::Storage;

/// What a transaction costs on the machine that was measured, in microseconds.
///
/// Each cost is a sum of six: of each round trip, of a commit that is flushed, of each row of a limit that is looked at, of
/// the caller's own work beyond its span, and of the versions of a row that others have written while one waited for it (of
/// n as of the root of n, as measured: those who wait are not all as far behind); and of each doubling of the clients, who
/// push each other off the cores and out of the caches.
#[derive(Clone, Debug)]
pub(super) struct JoinedModel {
    pub(super) cores: usize,
    /// Processor time of the server,
    pub(super) server: [f64; KINDS],
    /// and of the client.
    pub(super) client: [f64; KINDS],
    /// How long it takes where nobody else is there.
    pub(super) cycle: [f64; KINDS],
}

/// Clients, each of which begins a transaction when its last is committed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clients {
    pub(super) storage: Storage,
    pub(super) count: u32,
    pub(super) shards: Option<u16>,
    pub(super) work_us: f64,
}

impl JoinedModel {
    pub(super) fn fit(points: &[&Point], cores: usize) -> Self {
        let known: Vec<_> =
            points.iter().filter_map(|point| Some((Clients::of(point.subject)?, &point.measured))).collect();
        let law = |quantity: Quantity| {
            let costs =
                known.iter().filter_map(|(clients, figures)| Some((clients.amounts(), *figures.get(&quantity)?)));
            prices(&costs.collect::<Vec<_>>())
        };
        let cycles = known.iter().filter(|(clients, _)| clients.count == 1).filter_map(|(clients, figures)| {
            let flush = figures.get(&Quantity::FlushMicros).copied().unwrap_or_default();
            let micros = 1e6 / figures.get(&Quantity::PerSecond)? - clients.work_us - flush;
            Some((clients.amounts(), micros * Conditions::of(figures).speed))
        });
        Self {
            cores,
            server: law(Quantity::ServerMicros),
            client: law(Quantity::ClientMicros),
            cycle: prices(&cycles.collect::<Vec<_>>()),
        }
    }

    pub(super) fn predict(&self, clients: Clients, conditions: Conditions) -> Figures {
        let amounts = clients.amounts();
        let (server, client) = (sum(&amounts, &self.server), sum(&amounts, &self.client));
        let (per_second, flushes) = self.simulation(clients, conditions, server + client).run();
        let mut figures = Figures::from([
            (Quantity::PerSecond, per_second),
            (Quantity::ServerMicros, server),
            (Quantity::ClientMicros, client),
        ]);
        if clients.storage == Storage::Durable {
            figures.insert(Quantity::Flushes, flushes);
        }
        figures
    }

    /// Microseconds of the server for each transaction.
    pub(super) fn server_micros(&self, clients: Clients) -> f64 {
        sum(&clients.amounts(), &self.server)
    }

    fn simulation(&self, clients: Clients, conditions: Conditions, processor: f64) -> Simulation {
        let amounts = clients.amounts();
        let pause = self.cycle[WORK] * amounts[WORK];
        // What the others make it cost more is in the way, too.
        let mut alone = amounts;
        alone[PASSED..].fill(0.0);
        let dearer = processor / (sum(&alone, &self.server) + sum(&alone, &self.client)).max(1.0);
        let busy = ((sum(&amounts, &self.cycle) - pause) * dearer).clamp(1.0, processor);
        let trips = |count: f64| Step::Work(busy * count / amounts[TRIPS], (processor - busy) * count / amounts[TRIPS]);
        let flush = match clients.storage {
            Storage::Ephemeral => Step::Pause(0.0),
            Storage::Durable => Step::Flush(conditions.flush_us),
        };
        let work = Step::Pause(pause + clients.work_us);
        let held = amounts[TRIPS] - 3.5;
        // Begun, then asked; the row is held from then on, until the commit is through. A pool then asks the connection.
        let cycle = vec![trips(1.5), Step::Take, trips(held), work, trips(0.5), flush, Step::Give, trips(1.5)];
        Simulation {
            cores: self.cores,
            speed: conditions.speed,
            rows: clients.shards.map_or(clients.count.into(), u64::from).try_into().unwrap_or(usize::MAX),
            customers: clients.count.try_into().unwrap_or(usize::MAX),
            cycle,
        }
    }
}

impl fmt::Display for JoinedModel {
    /// Markdown.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = |(name, prices): (&str, &[f64; KINDS])| {
            std::iter::once(name.to_owned()).chain(prices.iter().copied().map(number)).collect()
        };
        let costs = [("server µs", &self.server), ("client µs", &self.client), ("µs by itself", &self.cycle)];
        write!(f, "{}", Table::new(&HEADINGS, 1, costs.into_iter().map(line)))
    }
}

impl Clients {
    pub(super) fn of(subject: Subject) -> Option<Self> {
        let Subject::Joined { storage, clients, shards, work_us } = subject else { return None };
        Some(Self { storage, count: clients, shards, work_us: work_us.into() })
    }

    /// What there is of each kind in a transaction: begin, two statements, commit, and the pool's question; and the work.
    fn amounts(self) -> [f64; KINDS] {
        let works = if self.work_us > 0.0 { 1.0 } else { 0.0 };
        let looked_at = self.shards.filter(|shards| *shards > 1).map_or(0.0, f64::from);
        let durable = if self.storage == Storage::Durable { 1.0 } else { 0.0 };
        let (clients, rows) = (f64::from(self.count), f64::from(self.shards.unwrap_or(u16::MAX)));
        // Where all rows are held there are a savepoint, its release, and the two statements of a row that is not sharded.
        let detour = if looked_at > 0.0 && clients > rows { 3.0 } else { 0.0 };
        [5.0 + works + detour, durable, looked_at, works, (clients / rows - 1.0).max(0.0).sqrt(), clients.log2()]
    }
}

/// Of a round trip, a flush, a row looked at, the work, a version passed, a doubling.
const KINDS: usize = 6;
const HEADINGS: [&str; 7] = [
    "a transaction's",
    "round trip",
    "flushed commit",
    "row looked at",
    "own work",
    "√ versions passed",
    "twice the clients",
];
const PASSED: usize = 4;
const TRIPS: usize = 0;
const WORK: usize = 3;
