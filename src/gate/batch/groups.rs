use std::collections::BTreeMap;

use crate::algebra::State;
use crate::error::Error;
use crate::plan::{Answer, Outcome, Plan, RowId};
use crate::store::{Grouped, Swap, unwritten};

/// The rows and names of a plan, divided into groups so that no call asks rows or names of two groups. A group is
/// written whole or not at all, and its calls succeed or fail with it.
#[derive(Debug)]
pub(super) struct Groups {
    /// The group of each row, and behind these the group of each name. A group is named by the least of its rows.
    of_row: Vec<usize>,
    /// The group of each call.
    of_call: Vec<usize>,
    /// The fate of each group.
    outcomes: Vec<Written>,
}

/// The fate of the changes of a group.
#[derive(Clone, Debug)]
pub(super) enum Written {
    /// It is written, or there was nothing to write.
    Done,
    /// It is not written: a row was missing, locked or changed.
    Lost,
    /// It is not written, or the outcome is unknown.
    Failed(Error),
}

impl Groups {
    pub(super) fn of(plan: &Plan) -> Self {
        let rows = plan.rows().len();
        let mut of_row: Vec<_> = (0..rows + plan.names().len()).collect();
        let mut first_rows = Vec::new();
        for call in 0..plan.len() {
            let mut places = plan.places_of(call);
            let first = places.next().expect("every call asks a row");
            first_rows.push(first);
            places.for_each(|other| unite(&mut of_row, first, other));
            plan.name_of(call).into_iter().for_each(|name| unite(&mut of_row, first, rows + name));
        }
        for row in 0..of_row.len() {
            of_row[row] = root(&of_row, row);
        }
        let of_call = first_rows.into_iter().map(|row| of_row[row]).collect();
        let outcomes = vec![Written::Done; of_row.len()];
        Self { of_row, of_call, outcomes }
    }

    /// Marks the groups of calls that reset something as lost, because only the locked path deletes stale shards.
    pub(super) fn lose_resets(&mut self, plan: &Plan) {
        for call in (0..self.of_call.len()).filter(|call| plan.call(*call).stale().is_some()) {
            self.outcomes[self.of_call[call]] = Written::Lost;
        }
    }

    /// Marks the groups of failed settlements and failed calls with an id as lost, because a look without a lock does
    /// not prove such a failure. It may miss a call that is being made or renewed, or it may see a call that was made
    /// after it read the rows.
    pub(super) fn lose_errors(&mut self, plan: &Plan, answers: &[Result<Answer, Error>]) {
        for (call, _) in answers.iter().enumerate().filter(|(_, answer)| answer.is_err()) {
            if plan.call(call).settles() || plan.call(call).is_once() {
                self.outcomes[self.of_call[call]] = Written::Lost;
            }
        }
    }

    pub(super) fn outcome(&self, call: usize) -> &Written {
        &self.outcomes[self.of_call[call]]
    }

    /// Whether the group of a row is written.
    pub(super) fn is_done(&self, row: usize) -> bool {
        matches!(self.outcomes[self.of_row[row]], Written::Done)
    }

    /// The given calls, group by group.
    pub(super) fn divide(&self, calls: &[usize]) -> Vec<Vec<usize>> {
        let mut calls = calls.to_vec();
        calls.sort_by_key(|call| (self.of_call[*call], *call));
        calls.chunk_by(|one, other| self.of_call[*one] == self.of_call[*other]).map(<[usize]>::to_vec).collect()
    }

    /// The changes as statements can write them: changes of one table and part together, group by group.
    ///
    /// Marks the groups that no such statement can write as lost: groups with a missing row, groups over several tables
    /// or parts, and on Citus groups with stored calls.
    pub(super) fn swaps<'c>(
        &mut self,
        plan: &Plan,
        found: &[Option<State>],
        outcome: &'c Outcome,
        is_distributed: bool,
    ) -> Vec<Swap<'c>> {
        let rows = plan.rows();
        let place = |row: usize| (rows[row].storage, rows[row].part);
        for change in &outcome.changes {
            let group = self.of_row[change.row];
            // Rows in lock order come table by table and part by part, and a group is named by its least row.
            if found[change.row].is_none() || place(change.row) != place(group) {
                self.outcomes[group] = Written::Lost;
            }
        }
        for change in &outcome.calls {
            let group = self.of_call[change.call()];
            if is_distributed || plan.names()[change.name()].part != rows[group].part {
                self.outcomes[group] = Written::Lost;
            }
        }
        let mut swaps: BTreeMap<_, Swap<'c>> = BTreeMap::new();
        for change in outcome.changes.iter().filter(|change| self.is_done(change.row)) {
            let group = self.of_row[change.row];
            swaps.entry(place(group)).or_default().rows.push(Grouped { change, group });
        }
        for change in outcome.calls.iter().filter(|change| self.is_done(self.of_call[change.call()])) {
            let group = self.of_call[change.call()];
            swaps.entry(place(group)).or_default().calls.push(Grouped { change, group });
        }
        let mut swaps: Vec<_> = swaps.into_values().collect();
        for swap in &mut swaps {
            swap.rows.sort_by_key(|row| row.group);
        }
        swaps
    }

    /// Marks the groups of a swap that were not written as lost. A group that was written in part fails: a trigger or a
    /// policy keeps a row from being written.
    pub(super) fn note_written(&mut self, rows: &[RowId], swap: &Swap<'_>, written: &[usize]) {
        let mut counts: BTreeMap<usize, usize> = BTreeMap::new();
        for group in written {
            *counts.entry(*group).or_default() += 1;
        }
        for (group, size) in swap.sizes() {
            match counts.get(&group) {
                None => self.outcomes[group] = Written::Lost,
                Some(count) if *count < size.rows => {
                    self.outcomes[group] = Written::Failed(unwritten(&rows[group].name));
                }
                Some(_) => {}
            }
        }
    }

    pub(super) fn fail(&mut self, swap: &Swap<'_>, error: &Error) {
        for group in swap.sizes().into_keys() {
            self.outcomes[group] = Written::Failed(error.clone());
        }
    }
}

/// Puts two rows, and all rows that are united with either, into one group.
fn unite(of_row: &mut [usize], one: usize, other: usize) {
    let (one, other) = (root(of_row, one), root(of_row, other));
    of_row[one.max(other)] = one.min(other);
}

fn root(of_row: &[usize], mut row: usize) -> usize {
    while of_row[row] != row {
        row = of_row[row];
    }
    row
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Verb;
    use crate::{Limit, MINUTE};

    const USER: Limit = Limit::token_bucket("user", 1, MINUTE);
    const TENANT: Limit = Limit::token_bucket("tenant", 1, MINUTE);

    #[test]
    fn calls_that_share_a_row_stand_or_fall_together() {
        let together = |user, tenant| Verb::consume([USER.key(user), TENANT.key(tenant)]);
        let plan = Plan::new([together(1, 1), together(2, 1), together(3, 2), Verb::consume(USER.key(4))]).unwrap();
        let mut groups = Groups::of(&plan);
        assert_eq!(groups.of_call[0], groups.of_call[1]);
        assert_eq!(groups.of_call.iter().collect::<std::collections::BTreeSet<_>>().len(), 3);

        groups.outcomes[groups.of_call[1]] = Written::Lost;
        let lost: Vec<_> = (0..4).map(|call| matches!(groups.outcome(call), Written::Lost)).collect();
        assert_eq!(lost, [true, true, false, false]);
        assert_eq!(groups.divide(&[3, 1, 2, 0]).len(), 3);
        assert!(groups.divide(&[3, 1, 2, 0]).contains(&vec![0, 1]));
    }
}
