use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::time::Duration;

use super::gauge::Gauge;
use super::outcome::{Outcome, Tally, since};
use super::simulation::{Retry, Simulation};
use super::traffic::Arrival;
use crate::algebra::{State, Timestamp};
use crate::error::Error;
use crate::key::Key;
use crate::plan::{Answer, Call, Change, Plan, Row};
use crate::tokens::Tokens;

/// A simulation under way: the rows, and what has happened so far. Made by [`Simulation::start`].
///
/// It does with a plan what the limiter does, and nothing else: find the rows, decide, write the changes. Its memory grows
/// with the keys that call and the clients that wait, not with the calls.
#[derive(Debug)]
pub struct Run {
    simulation: Simulation,
    rows: HashMap<Row, State>,
    /// Clients that will come back, the next one on top.
    waiting: BinaryHeap<Reverse<Visit>>,
    callers: u64,
    /// When the last call was made, if there was one.
    now: Option<Timestamp>,
    gauge: Option<Gauge>,
    tally: Tally,
}

impl Run {
    pub(super) fn new(simulation: Simulation) -> Self {
        let tally = Tally::new(simulation.rules.len());
        let (rows, waiting) = (HashMap::new(), BinaryHeap::new());
        Self { simulation, rows, waiting, callers: 0, now: None, gauge: None, tally }
    }

    /// Makes a call, after those of all clients that come back before it.
    ///
    /// The answer is the limiter's. An instant before that of an earlier call counts as that one's: the clock of a database
    /// does not go back either.
    ///
    /// # Errors
    ///
    /// Those of the limiter: [`Error::CostExceedsCapacity`], [`Error::ConflictingDefinitions`], [`Error::NothingAsked`],
    /// [`Error::Cost`] and [`Error::DebtTooDeep`]. The run can go on after each.
    pub fn call(&mut self, call: &Arrival) -> Result<Answer, Error> {
        let at = self.now.map_or(call.at, |now| now.max(call.at));
        self.come_back(at)?;
        self.callers += 1;
        let visit = Visit { at, number: self.callers, first: at, key: call.key.clone(), cost: call.cost };
        let answer = self.visit(visit);
        self.tally.call(&call.key, at, &answer);
        answer
    }

    /// Lets everybody who is waiting come back, and sums up.
    ///
    /// # Errors
    ///
    /// As [`call`](Self::call).
    pub fn finish(mut self) -> Result<Outcome, Error> {
        self.come_back(Timestamp::MAX)?;
        let last = self.now.unwrap_or(Timestamp::MIN);
        let end = self.simulation.span.map_or(last, |(start, span)| last.max(start.plus(span)));
        let series = self.gauge.map(|gauge| gauge.finish(&self.rows, end));
        Ok(self.tally.finish(&self.simulation.rules, series))
    }

    /// Makes a call; one that can never be granted is only counted.
    pub(super) fn count(&mut self, call: &Arrival) -> Result<(), Error> {
        match self.call(call) {
            Ok(_) | Err(Error::CostExceedsCapacity { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The clients that come back until an instant. At one instant they are before those who call for the first time.
    fn come_back(&mut self, until: Timestamp) -> Result<(), Error> {
        while self.waiting.peek().is_some_and(|Reverse(next)| next.at <= until) {
            if let Some(Reverse(next)) = self.waiting.pop() {
                self.visit(next)?;
            }
        }
        Ok(())
    }

    fn visit(&mut self, visit: Visit) -> Result<Answer, Error> {
        let answer = self.decide(&visit)?;
        match &answer {
            Answer::Granted { ready_at, .. } => {
                self.tally.granted(&visit.key, visit.cost, since(visit.first, *ready_at));
            }
            Answer::Denied(denied) => {
                self.tally.refused(&self.simulation.rules, &visit.key, visit.at, denied);
                self.wait_or_give_up(visit, denied.retry_at.into());
            }
            Answer::Done(_) => unreachable!("a call that takes is granted or denied"),
        }
        Ok(answer)
    }

    /// What the limiter does in a transaction, and a look at the gauge before and after it.
    fn decide(&mut self, visit: &Visit) -> Result<Answer, Error> {
        let requests = self.simulation.rules.iter().map(|rule| rule.request(&visit.key, visit.cost));
        let call = if self.simulation.reserving { Call::reserve(requests) } else { Call::consume(requests) };
        let plan = Plan::new([call])?;
        let gauge = match &mut self.gauge {
            Some(gauge) => gauge,
            none => none.insert(Gauge::new(&self.simulation, &visit.key, visit.at)?),
        };
        gauge.advance(&self.rows, visit.at);
        self.now = Some(visit.at);
        let found: Vec<_> = plan.rows().iter().map(|row| self.rows.get(row).copied()).collect();
        let outcome = plan.decide(&found, visit.at);
        for Change { row, state, .. } in outcome.changes {
            self.rows.insert(plan.rows()[row].clone(), state);
        }
        // One call was planned, so there is one answer, and the fallback is never taken.
        let answer = outcome.answers.into_iter().next().unwrap_or(Err(Error::NothingAsked))?;
        gauge.answered(&self.rows, visit.at, matches!(answer, Answer::Granted { .. }));
        Ok(answer)
    }

    fn wait_or_give_up(&mut self, visit: Visit, retry_at: Timestamp) {
        let at = match self.simulation.retry {
            Retry::Never => None,
            Retry::WhenTold => Some(retry_at),
            Retry::Every(pause) => Some(visit.at.plus(pause.max(SHORTEST_PAUSE))),
        };
        match at.filter(|at| since(visit.first, *at) <= self.simulation.patience) {
            Some(at) => self.waiting.push(Reverse(Visit { at, ..visit })),
            None => self.tally.gave_up(),
        }
    }
}

/// A client's try. Tries are in the order of their instants, at one instant in that of the callers.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct Visit {
    // The derived order is that of the tries: do not move a field.
    at: Timestamp,
    number: u64,
    /// When the client called for the first time.
    first: Timestamp,
    key: Key,
    cost: Tokens,
}

/// Tries without a pause between them would never end.
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);
