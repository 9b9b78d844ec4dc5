//! A gate: how large its batches are, what they cost, and how many there are in a second.

use std::fmt;

use super::Conditions;
use super::fit::{prices, sum};
use super::layout::Shape;
use super::simulation::{Simulation, Step};
use crate::bench::scaling::{Figures, Keys, Point, Quantity, Subject};
use crate::bench::scene::{TENANTS, USERS};
use crate::bench::table::{Table, number};
use crate::bench::workload::Workload;
use crate::limit::Storage;

/// What batches cost on the machine that was measured, in microseconds and in bytes.
///
/// Each cost is a sum of eight: of the batch, of the rows of different users in it (of r rows as of r to a power, for those of
/// a large batch share pages and caches), of each call, of each request for a row that its calls make, of its commit if
/// the table is durable, of each page that it is the first to write since the last checkpoint, of the other lanes that
/// are at work, and of keeping together what calls of several limits write.
#[derive(Clone, Debug)]
pub(super) struct GateModel {
    pub(super) cores: usize,
    /// Processor time of the server,
    pub(super) server: [f64; KINDS],
    /// and of the client.
    pub(super) client: [f64; KINDS],
    /// How long a batch takes in a lane that has the machine for itself.
    pub(super) lane: [f64; KINDS],
    /// How the cost of rows grows with their number.
    pub(super) exponent: f64,
    /// The share of a page's bytes that are in use where calls have made its rows.
    pub(super) image: f64,
    /// With so many callers in a lane, half of those who were answered are too late to be in the next batch, too.
    pub(super) halving: f64,
    /// With several lanes at work more are late: batches are smaller by this factor.
    pub(super) crowding: f64,
}

/// A calibrating point.
struct Known<'a> {
    callers: Callers,
    batch: f64,
    figures: &'a Figures,
}

impl<'a> Known<'a> {
    fn of(point: &'a Point) -> Option<Self> {
        let figures = &point.measured;
        Some(Self { callers: Callers::of(point.subject)?, batch: *figures.get(&Quantity::Batch)?, figures })
    }

    /// Decisions in a turn of so many seconds.
    fn turn(&self, seconds: f64) -> f64 {
        self.figures.get(&Quantity::PerSecond).map_or(f64::INFINITY, |rate| rate * seconds)
    }

    /// Microseconds of a batch: of the server,
    fn server(&self) -> Option<f64> {
        Some(self.figures.get(&Quantity::ServerMicros)? * self.batch)
    }

    /// of the client,
    fn client(&self) -> Option<f64> {
        Some(self.figures.get(&Quantity::ClientMicros)? * self.batch)
    }

    /// and from its beginning to that of the next, without the flush: where there is one lane, and others leave the cores alone.
    fn lane(&self) -> Option<f64> {
        let flush = self.figures.get(&Quantity::FlushMicros).copied().unwrap_or_default();
        let micros = 1e6 * self.batch / self.figures.get(&Quantity::PerSecond)? - flush;
        let others = self.figures.get(&Quantity::Others).copied().unwrap_or_default();
        (self.callers.is_alone() && micros > 0.0).then_some(micros * (1.0 - others))
    }
}

/// A number of callers of gates, and what they ask.
#[derive(Clone, Copy, Debug)]
pub(super) struct Callers {
    pub(super) workload: Workload,
    pub(super) storage: Storage,
    pub(super) count: f64,
    pub(super) keys: u32,
    pub(super) gates: f64,
}

impl GateModel {
    pub(super) fn fit(points: &[&Point], cores: usize, seconds: f64) -> Self {
        let known: Vec<_> = points.iter().filter_map(|point| Known::of(point)).collect();
        let mut model = Self {
            cores,
            server: [0.0; KINDS],
            client: [0.0; KINDS],
            lane: [0.0; KINDS],
            exponent: 1.0,
            image: 1.0,
            halving: f64::INFINITY,
            crowding: 1.0,
        };
        let (alone, crowd): (Vec<_>, Vec<_>) = known.iter().partition(|known| known.callers.is_alone());
        let halvings = (0..100).map(|step| 10.0 * 1.06_f64.powi(step));
        let miss = |halving: f64| {
            let misses =
                alone.iter().map(|known| (in_one_lane(known.callers.count, halving) / known.batch - 1.0).powi(2));
            misses.sum::<f64>()
        };
        model.halving = halvings.min_by(|one, other| miss(*one).total_cmp(&miss(*other))).unwrap_or(f64::INFINITY);
        model.crowding = mean(crowd.iter().map(|known| {
            let each = known.callers.count / f64::from(model.lanes(known.callers));
            in_one_lane(each, model.halving) / known.batch
        }));
        let candidates = (10..=20).map(|twentieth| model.priced(&known, f64::from(twentieth) / 20.0, seconds));
        let best = candidates.min_by(|one, other| one.fault(&known, seconds).total_cmp(&other.fault(&known, seconds)));
        let model = best.unwrap_or(model);
        let images = known.iter().filter_map(|known| {
            let callers = known.callers;
            let images = callers.images(known.figures.get(&Quantity::PerSecond)? * seconds);
            let log = known.figures.get(&Quantity::WalBytes)? - callers.log(known.batch);
            (callers.keys == USERS && images > 0.0).then_some(log / images)
        });
        Self { image: mean(images), ..model }
    }

    /// With the prices that fit best where the cost of rows grows like this.
    fn priced(&self, known: &[Known<'_>], exponent: f64, seconds: f64) -> Self {
        let model = Self { exponent, ..self.clone() };
        let [server, client, mut lane] =
            [Known::server, Known::client, Known::lane].map(|cost| model.law(known, cost, seconds));
        // Pages that nobody has written yet are few where there is one lane.
        lane[PAGES] = server[PAGES];
        Self { server, client, lane, ..model }
    }

    fn law<'k>(&self, known: &[Known<'k>], cost: fn(&Known<'k>) -> Option<f64>, seconds: f64) -> [f64; KINDS] {
        let costs = known
            .iter()
            .filter_map(|known| Some((self.amounts(known.callers, known.batch, known.turn(seconds)), cost(known)?)));
        prices(&costs.collect::<Vec<_>>())
    }

    /// How far the known costs are from the model's.
    fn fault(&self, known: &[Known<'_>], seconds: f64) -> f64 {
        let faults = known.iter().flat_map(|known| {
            let amounts = self.amounts(known.callers, known.batch, known.turn(seconds));
            [(&self.server, known.server()), (&self.client, known.client()), (&self.lane, known.lane())]
                .map(|(prices, cost)| cost.map_or(0.0, |cost| (sum(&amounts, prices) / cost - 1.0).powi(2)))
        });
        faults.sum()
    }

    /// What callers of gates measure in so many seconds.
    pub(super) fn predict(&self, callers: Callers, conditions: Conditions, seconds: f64) -> Figures {
        // How many pages are written first depends on how many decisions there are, and that, a little, on this.
        let guess = self.predict_for(callers, conditions, f64::INFINITY);
        let decisions = guess.get(&Quantity::PerSecond).map_or(f64::INFINITY, |rate| rate * seconds);
        self.predict_for(callers, conditions, decisions)
    }

    fn predict_for(&self, callers: Callers, conditions: Conditions, decisions: f64) -> Figures {
        let lanes = self.lanes(callers);
        let batch = self.batch(callers, f64::from(lanes));
        let amounts = self.amounts(callers, batch, decisions);
        let (server, client) = (sum(&amounts, &self.server), sum(&amounts, &self.client));
        let busy = sum(&amounts, &self.lane).min(server + client);
        let is_durable = callers.storage == Storage::Durable;
        let flush = if is_durable { Step::Flush(conditions.flush_us) } else { Step::Pause(0.0) };
        let batches = Simulation {
            cores: self.cores,
            speed: conditions.speed,
            rows: 0,
            customers: usize::try_from(lanes).unwrap_or(1) * whole(callers.gates),
            cycle: vec![Step::Work(busy, server + client - busy), flush],
        };
        let (per_second, flushes) = batches.run();
        let image = if callers.keys == USERS { self.image } else { 1.0 };
        let mut figures = Figures::from([
            (Quantity::PerSecond, per_second * batch),
            (Quantity::Batch, batch),
            (Quantity::ServerMicros, server / batch),
            (Quantity::ClientMicros, client / batch),
            (Quantity::WalBytes, callers.log(batch) + image * callers.images(decisions)),
        ]);
        if is_durable {
            figures.insert(Quantity::Flushes, flushes / batch);
        }
        if callers.gates > 1.0 && callers.workload != Workload::Uniform {
            // Gates that compete for one row decide much of it twice, which the model does not know.
            figures.clear();
        }
        figures
    }

    /// Microseconds of the server and of the client for one decision of a batch, and bytes of log without images of pages.
    pub(super) fn costs(&self, callers: Callers, batch: f64) -> [f64; 3] {
        let amounts = self.amounts(callers, batch, f64::INFINITY);
        let [server, client] = [&self.server, &self.client].map(|prices| sum(&amounts, prices) / batch);
        [server, client, callers.log(batch)]
    }

    /// How long a batch takes in a lane that has the machine for itself.
    pub(super) fn lane_micros(&self, callers: Callers, batch: f64) -> f64 {
        sum(&self.amounts(callers, batch, f64::INFINITY), &self.lane)
    }

    /// What there is of each kind in a batch, of a turn of so many decisions.
    fn amounts(&self, callers: Callers, batch: f64, decisions: f64) -> [f64; KINDS] {
        let [users, _, requests] = callers.rows(batch);
        let commit = if callers.storage == Storage::Durable { 1.0 } else { 0.0 };
        let crowd = if callers.is_alone() { 0.0 } else { 1.0 };
        let parts = if callers.workload == Workload::Three { 1.0 } else { 0.0 };
        [1.0, users.powf(self.exponent), batch, requests, commit, callers.first_writes(decisions) * batch, crowd, parts]
    }

    /// Decisions per batch.
    fn batch(&self, callers: Callers, lanes: f64) -> f64 {
        let each = callers.count / callers.gates / lanes;
        let crowding = if lanes > 1.0 { self.crowding } else { 1.0 };
        (in_one_lane(each, self.halving) / crowding).clamp(1.0_f64.min(each), MAX_BATCH)
    }

    /// How many lanes a gate opens, by its own rule: one more as long as batches are of twenty calls or more.
    fn lanes(&self, callers: Callers) -> u32 {
        if callers.workload != Workload::Uniform {
            return 1;
        }
        let most = u32::try_from(self.cores + 1).unwrap_or(u32::MAX).min(4);
        (1..most).find(|lanes| self.batch(callers, f64::from(*lanes)) < MANY).unwrap_or(most)
    }
}

impl fmt::Display for GateModel {
    /// Markdown.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = |(name, prices): (&str, &[f64; KINDS])| {
            std::iter::once(name.to_owned()).chain(prices.iter().copied().map(number)).collect()
        };
        let costs = [("server µs", &self.server), ("client µs", &self.client), ("µs by itself", &self.lane)];
        let rows = format!("rows ^ {}", self.exponent);
        let headings = [
            "a batch's",
            "batch",
            &rows,
            "call",
            "request",
            "commit",
            "page written first",
            "other lanes",
            "several limits",
        ];
        write!(f, "{}", Table::new(&headings, 1, costs.into_iter().map(line)))?;
        let Self { halving, crowding, image, .. } = self;
        writeln!(
            f,
            "\nOf n callers in one lane n / (1 + x / (1 + x)) share a batch, where x is n / {halving:.0}; with several lanes at work {:.2} of that.",
            1.0 / crowding
        )?;
        writeln!(
            f,
            "A commit logs {COMMIT} bytes and a durable row {ROW}; a page in use by calls is logged with {:.0} % of what it holds when full.",
            image * 100.0
        )
    }
}

impl Callers {
    pub(super) fn of(subject: Subject) -> Option<Self> {
        let Subject::Gate { workload, storage, callers, keys, gates } = subject else { return None };
        Some(Self { workload, storage, count: callers.into(), keys, gates: gates.into() })
    }

    /// Whether they are all in one lane.
    fn is_alone(self) -> bool {
        self.gates < 2.0 && (self.workload != Workload::Uniform || self.count < MANY)
    }

    /// Rows of different users, all rows, and requests for rows, in a batch.
    fn rows(self, batch: f64) -> [f64; 3] {
        let users = distinct(self.keys, batch);
        match self.workload {
            Workload::Hot => [0.0, 1.0, batch],
            Workload::Three => [users, users + distinct(TENANTS, batch) + 1.0, 3.0 * batch],
            _ => [users, users, batch],
        }
    }

    /// Bytes of log per decision, without images of pages: of the commit's record and, for each durable row, of the two
    /// of its lock and of its new version, which lies beside the old one on its page.
    fn log(self, batch: f64) -> f64 {
        let [_, rows, _] = self.rows(batch);
        let row = if self.storage == Storage::Durable { ROW } else { 0.0 };
        (COMMIT + row * rows) / batch
    }

    /// Pages per decision that are written first, and so logged as a whole, in so many decisions after a checkpoint.
    fn first_writes(self, decisions: f64) -> f64 {
        if self.workload == Workload::Hot || self.storage == Storage::Ephemeral || decisions.is_infinite() {
            return 0.0;
        }
        let pages = f64::from(self.keys) / self.shape().rows_per_page();
        pages * -(-decisions / pages).exp_m1() / decisions
    }

    /// Bytes of log per decision of those.
    fn images(self, decisions: f64) -> f64 {
        self.first_writes(decisions) * self.shape().image()
    }

    fn shape(self) -> Shape {
        let shape = Shape::of(Keys::Called, f64::from(self.keys));
        // The many keys are loaded, the others called.
        if self.keys == USERS { shape } else { Shape { versions: 1.0, ..shape } }
    }
}

/// One, of none.
fn mean(ratios: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = ratios.fold((0.0, 0.0), |(sum, count), ratio| (sum + ratio, count + 1.0));
    if count > 0.0 { sum / count } else { 1.0 }
}

/// How many of so many callers are in a batch: all at best, and half at worst, when the others are in the batch before.
fn in_one_lane(callers: f64, halving: f64) -> f64 {
    let late = callers / halving;
    callers / (1.0 + late / (1.0 + late))
}

/// How many of so many keys are among so many draws.
fn distinct(keys: u32, draws: f64) -> f64 {
    let keys = f64::from(keys);
    keys * -(draws * (-1.0 / keys).ln_1p()).exp_m1()
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a few gates")]
fn whole(count: f64) -> usize {
    count as usize
}

/// Of a batch, its rows, a call, a request, a commit, a page written first, other lanes at work, several limits.
const KINDS: usize = 8;
const PAGES: usize = 5;

/// Bytes of log,
const COMMIT: f64 = 40.0;
/// and of a row's two records.
const ROW: f64 = 168.0;

/// Above this a gate opens another lane,
const MANY: f64 = 20.0;
/// and so many calls are the most in a batch by default.
pub(super) const MAX_BATCH: f64 = 256.0;
