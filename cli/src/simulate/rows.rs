use std::collections::HashMap;

use tollgate::Error;
use tollgate::algebra::{State, Timestamp};
use tollgate::plan::{Answer, Change, Plan, Row};

/// The rows of a simulation; a missing row is full. Grows with the keys that call, not with the calls.
#[derive(Debug, Default)]
pub(super) struct RowMap(HashMap<Row, State>);

impl RowMap {
    /// Does what the limiter does with a plan of one call: finds the rows, decides, writes the changes.
    pub(super) fn decide(&mut self, plan: &Plan, now: Timestamp) -> Result<Answer, Error> {
        let found: Vec<_> = plan.rows().iter().map(|row| self.0.get(row).cloned()).collect();
        let mut outcome = plan.decide(&found, &[], now);
        for Change { row, state, .. } in outcome.changes {
            self.0.insert(plan.rows()[row].clone(), state);
        }
        outcome.answers.pop().expect("a plan of one call has one answer")
    }
}
