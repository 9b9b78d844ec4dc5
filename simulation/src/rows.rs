use std::collections::HashMap;

use tollgate::algebra::{Account, State, Terms, Timestamp};
use tollgate::plan::{Answer, AppliedOverride, Plan, RowId, RowWrite, SlowedRate};
use tollgate::{Error, Key, Limit, SlowDown, Tokens};

/// The rows of a simulation, and the cuts of its limits; a missing row is full. Grows with the keys that call, not with
/// the calls.
#[derive(Debug, Default)]
pub struct RowMap {
    /// Has the type of the plan's own map, so that a browser loads the code of only one.
    places: HashMap<RowId, usize>,
    states: Vec<State>,
    /// The last cut of each limit that has been cut, by its name.
    slowed: Vec<(String, SlowedRate)>,
}

/// The rows of a balance, and the terms by which they are read.
#[derive(Debug)]
pub struct Look {
    pub(crate) plan: Plan,
    /// Those of the limit as it is defined.
    pub(crate) terms: Terms,
    pub(crate) limit: Limit,
    pub(crate) key: Key,
}

impl RowMap {
    /// Does what the limiter does with a plan of one call: finds the rows, decides, writes the changes.
    pub(crate) fn decide(&mut self, plan: &Plan, now: Timestamp) -> Result<Answer, Error> {
        let mut outcome = plan.decide(&self.found(plan), &[], now);
        for RowWrite { row, state, .. } in outcome.changes {
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
        let slowed = self.applied(&look.limit, now).and_then(|applied| applied.numbers);
        let slowed = slowed.map(|limit| Terms::of(&limit, &look.key));
        // Not by the plan, whose answer would tell more than anybody draws.
        Account::new(slowed.as_ref().unwrap_or(&look.terms), &self.found(&look.plan), now).balance()
    }

    /// The share of a limit's rate that is left at an instant, in millionths.
    #[must_use]
    pub fn share(&self, limit: &Limit, now: Timestamp) -> u32 {
        self.slowed(limit).and_then(|slowed| slowed.share_at(now)).unwrap_or(SlowedRate::WHOLE)
    }

    /// How a limit is slowed down at an instant, if it is.
    pub(crate) fn applied(&self, limit: &Limit, now: Timestamp) -> Option<AppliedOverride> {
        self.slowed(limit)?.applied(limit, now)
    }

    /// Slows a limit down, as a report of trouble does.
    pub(crate) fn slow_down(&mut self, limit: &Limit, cost: Tokens, how: &SlowDown, now: Timestamp) {
        let slowed = SlowedRate::reported(self.slowed(limit), how, SlowedRate::forgets(how, limit, cost), now);
        self.slowed.retain(|(name, _)| name != limit.name());
        self.slowed.push((limit.name().to_owned(), slowed));
    }

    fn slowed(&self, limit: &Limit) -> Option<SlowedRate> {
        self.slowed.iter().find_map(|(name, slowed)| (name == limit.name()).then_some(*slowed))
    }

    fn found(&self, plan: &Plan) -> Vec<Option<State>> {
        plan.rows().iter().map(|row| Some(self.states[*self.places.get(row)?].clone())).collect()
    }
}
