use std::collections::HashMap;

use tollgate::algebra::{State, Timestamp};
use tollgate::plan::{Answer, Change, Outcome, Plan, Row};
use tollgate::{Error, Tokens};

/// The rows of a simulation; a missing row is full. Grows with the keys that call, not with the calls.
#[derive(Debug, Default)]
pub struct RowMap {
    /// A map as the plan has it, so that a browser loads one.
    places: HashMap<Row, usize>,
    states: Vec<State>,
}

impl RowMap {
    /// Does what the limiter does with a plan of one call: finds the rows, decides, writes the changes.
    pub(crate) fn decide(&mut self, plan: &Plan, now: Timestamp) -> Result<Answer, Error> {
        let mut outcome = self.outcome(plan, now);
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

    /// Whether there is a row that a plan asks for.
    #[must_use]
    pub fn has(&self, plan: &Plan) -> bool {
        plan.rows().iter().any(|row| self.places.contains_key(row))
    }

    /// The balance that a plan of one look finds.
    ///
    /// # Errors
    ///
    /// Those of the look.
    ///
    /// # Panics
    ///
    /// For a plan of anything else.
    pub fn look(&self, plan: &Plan, now: Timestamp) -> Result<Tokens, Error> {
        match self.outcome(plan, now).answers.pop().expect("a plan of one call has one answer")? {
            Answer::Done(balance) => Ok(balance.value),
            // Without its words: they would bring those of all answers into what a browser loads.
            _ => panic!("a look is answered by a balance"),
        }
    }

    fn outcome(&self, plan: &Plan, now: Timestamp) -> Outcome {
        let found: Vec<_> = plan.rows().iter().map(|row| Some(self.states[*self.places.get(row)?].clone())).collect();
        plan.decide(&found, &[], now)
    }
}
