use std::collections::HashMap;

use tollgate::algebra::{Pool, State, Terms, Timestamp};
use tollgate::plan::{Answer, Change, Plan, Row};
use tollgate::{Error, Tokens};

/// The rows of a simulation; a missing row is full. Grows with the keys that call, not with the calls.
#[derive(Debug, Default)]
pub struct RowMap {
    /// Has the type of the plan's own map, so that a browser loads the code of only one.
    places: HashMap<Row, usize>,
    states: Vec<State>,
}

/// The rows of a balance, and the terms by which they are read.
#[derive(Debug)]
pub struct Look {
    pub(crate) plan: Plan,
    pub(crate) terms: Terms,
}

impl RowMap {
    /// Does what the limiter does with a plan of one call: finds the rows, decides, writes the changes.
    pub(crate) fn decide(&mut self, plan: &Plan, now: Timestamp) -> Result<Answer, Error> {
        let mut outcome = plan.decide(&self.found(plan), &[], now);
        for Change { row, state, .. } in outcome.changes {
            let row = &plan.rows()[row];
            if let Some(place) = self.places.get(row) {
                self.states[*place] = state;
            } else {
                self.places.insert(row.clone(), self.states.len());
                self.states.push(state);
            }
        }
        outcome.answers.pop().expect("a plan of one call has one answer")
    }

    /// Whether there is a row.
    #[must_use]
    pub fn has(&self, look: &Look) -> bool {
        look.plan.rows().iter().any(|row| self.places.contains_key(row))
    }

    /// The balance at an instant.
    #[must_use]
    pub fn balance(&self, look: &Look, now: Timestamp) -> Tokens {
        // Not by the plan, whose answer would tell more than anybody draws.
        Pool::new(&look.terms, &self.found(&look.plan), now).balance()
    }

    fn found(&self, plan: &Plan) -> Vec<Option<State>> {
        plan.rows().iter().map(|row| Some(self.states[*self.places.get(row)?].clone())).collect()
    }
}
