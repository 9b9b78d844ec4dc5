use std::collections::HashMap;
use std::time::Duration;

use super::micros;
use super::rule::Rule;
use super::series::{Recorder, Series};
use super::simulation::Simulation;
use crate::algebra::{Pool, State, Terms, Timestamp};
use crate::error::Error;
use crate::key::Key;
use crate::plan::{Call, Plan, Row};
use crate::tokens::Tokens;

/// What is read off the rows while time goes by: the balances of one key, and what was answered.
#[derive(Debug)]
pub(super) struct Gauge {
    recorder: Recorder,
    watched: Vec<Watched>,
}

impl Gauge {
    /// From the first call on: its key is watched unless another one is, and time begins with it unless it began before.
    pub(super) fn new(simulation: &Simulation, first_key: &Key, first: Timestamp) -> Result<Self, Error> {
        let key = simulation.watched.as_ref().unwrap_or(first_key);
        let watch = |rule: &Rule| Watched::new(rule, key);
        let watched: Vec<_> = simulation.rules.iter().map(watch).collect::<Result<_, _>>()?;
        let (start, width) = match simulation.span {
            Some((start, span)) => (start.min(first), width(span)),
            None => (first, UNKNOWN_WIDTH),
        };
        let recorder = Recorder::new(start, width, &levels(&watched, &HashMap::new(), start));
        Ok(Self { recorder, watched })
    }

    /// Goes on to an instant, over the ends of all bins on the way.
    pub(super) fn advance(&mut self, rows: &HashMap<Row, State>, to: Timestamp) {
        while self.recorder.edge() <= to && self.recorder.edge() < Timestamp::MAX {
            self.recorder.turn(&levels(&self.watched, rows, self.recorder.edge()));
        }
        self.recorder.observe(&levels(&self.watched, rows, to));
    }

    /// An answer at the instant that it has advanced to.
    pub(super) fn answered(&mut self, rows: &HashMap<Row, State>, at: Timestamp, is_granted: bool) {
        self.recorder.count(is_granted);
        self.recorder.observe(&levels(&self.watched, rows, at));
    }

    /// The series up to its end, which begins no bin.
    pub(super) fn finish(mut self, rows: &HashMap<Row, State>, end: Timestamp) -> Series {
        self.advance(rows, Timestamp::from_micros(end.micros() - 1));
        self.recorder.observe(&levels(&self.watched, rows, end));
        self.recorder.finish()
    }
}

/// The rows that a limit has for a key, whose balance is kept over time.
#[derive(Debug)]
struct Watched {
    rows: Vec<Row>,
    terms: Terms,
}

impl Watched {
    fn new(rule: &Rule, key: &Key) -> Result<Self, Error> {
        let plan = Plan::new([Call::look(rule.request(key, Tokens::ONE))])?;
        Ok(Self { rows: plan.rows().to_vec(), terms: Terms::of(rule.limit(), &rule.key(key)) })
    }

    fn level(&self, rows: &HashMap<Row, State>, at: Timestamp) -> Tokens {
        let found: Vec<_> = self.rows.iter().map(|row| rows.get(row).copied()).collect();
        Pool::of(&self.terms, &found, at).balance()
    }
}

fn levels(watched: &[Watched], rows: &HashMap<Row, State>, at: Timestamp) -> Vec<Tokens> {
    watched.iter().map(|watched| watched.level(rows, at)).collect()
}

/// Bins so wide that a known span needs all of them.
fn width(span: Duration) -> i64 {
    let width = micros::of(span).div_ceil(Series::MAX_BINS as u64);
    i64::try_from(width).unwrap_or(i64::MAX).max(1)
}

/// A millisecond, in microseconds: less than most recorded traffic tells apart. It doubles as the traffic goes on.
const UNKNOWN_WIDTH: i64 = 1_000;
