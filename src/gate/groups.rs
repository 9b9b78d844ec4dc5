use crate::algebra::State;
use crate::error::Error;
use crate::plan::{Change, Plan, Row};
use crate::store::{GroupedChange, unwritten};

/// The rows of a plan, divided so that no call asks rows of two groups. A group is written whole or not at all, and the
/// calls that ask its rows stand or fall with it.
#[derive(Debug)]
pub(super) struct Groups {
    /// The group of each row, named by the least of its rows.
    of_row: Vec<usize>,
    /// The group of each call.
    of_call: Vec<usize>,
    /// What became of each group.
    outcomes: Vec<Written>,
}

/// What became of what was to be written.
#[derive(Clone, Debug)]
pub(super) enum Written {
    /// It is written, or there was nothing to write.
    Done,
    /// It is not: a row was missing, locked or changed.
    Lost,
    /// It is not, or nobody knows.
    Failed(Error),
}

impl Groups {
    pub(super) fn of(plan: &Plan) -> Self {
        let mut of_row: Vec<_> = (0..plan.rows().len()).collect();
        let mut first_rows = Vec::new();
        for call in 0..plan.len() {
            let mut places = plan.places_of(call);
            let first = places.next().expect("every call asks a row");
            first_rows.push(first);
            places.for_each(|other| unite(&mut of_row, first, other));
        }
        for row in 0..of_row.len() {
            of_row[row] = root(&of_row, row);
        }
        let of_call = first_rows.into_iter().map(|row| of_row[row]).collect();
        let outcomes = vec![Written::Done; of_row.len()];
        Self { of_row, of_call, outcomes }
    }

    /// Loses the groups of calls that reset something: only the locked path deletes stale shards.
    pub(super) fn lose_resets(&mut self, plan: &Plan) {
        for call in (0..self.of_call.len()).filter(|call| plan.resets(*call)) {
            self.outcomes[self.of_call[call]] = Written::Lost;
        }
    }

    pub(super) fn outcome(&self, call: usize) -> &Written {
        &self.outcomes[self.of_call[call]]
    }

    /// Whether the group of a row is written.
    pub(super) fn is_done(&self, row: usize) -> bool {
        matches!(self.outcomes[self.of_row[row]], Written::Done)
    }

    /// Some calls, group by group.
    pub(super) fn divide(&self, calls: &[usize]) -> Vec<Vec<usize>> {
        let mut calls = calls.to_vec();
        calls.sort_by_key(|call| (self.of_call[*call], *call));
        calls.chunk_by(|one, other| self.of_call[*one] == self.of_call[*other]).map(<[usize]>::to_vec).collect()
    }

    /// The changes as statements can write them: those of one table and part together, group by group.
    ///
    /// Loses the groups that no such statement can write: those with a missing row, and those over several tables or
    /// parts.
    pub(super) fn portions<'c>(
        &mut self,
        rows: &[Row],
        found: &[Option<State>],
        changes: &'c [Change],
    ) -> Vec<Vec<GroupedChange<'c>>> {
        let place = |row: usize| (rows[row].storage, rows[row].part);
        for change in changes {
            let group = self.of_row[change.row];
            // Rows in lock order come table by table and part by part, and a group is named by its least row.
            if found[change.row].is_none() || place(change.row) != place(group) {
                self.outcomes[group] = Written::Lost;
            }
        }
        let standing = changes.iter().filter(|change| self.is_done(change.row));
        let mut standing: Vec<_> =
            standing.map(|change| GroupedChange { change, group: self.of_row[change.row] }).collect();
        standing.sort_by_key(|change| change.group);
        standing.chunk_by(|one, other| place(one.group) == place(other.group)).map(<[_]>::to_vec).collect()
    }

    /// Loses the groups of a portion of which no row is among the written ones. A group that is written in part fails:
    /// a trigger or a policy keeps a row from being written.
    pub(super) fn note_written(&mut self, rows: &[Row], portion: &[GroupedChange<'_>], written: &[usize]) {
        for group in portion.chunk_by(|one, other| one.group == other.group) {
            let id = group[0].group;
            let count = written.iter().filter(|written| **written == id).count();
            if count == 0 {
                self.outcomes[id] = Written::Lost;
            } else if count < group.len() {
                self.outcomes[id] = Written::Failed(unwritten(&rows[group[0].change.row]));
            }
        }
    }

    pub(super) fn fail(&mut self, portion: &[GroupedChange<'_>], error: &Error) {
        for change in portion {
            self.outcomes[change.group] = Written::Failed(error.clone());
        }
    }
}

/// Puts two rows, and all that is united with either, in one group.
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
    use crate::plan::Call;
    use crate::{Limit, MINUTE};

    const USER: Limit = Limit::token_bucket("user", 1, MINUTE);
    const TENANT: Limit = Limit::token_bucket("tenant", 1, MINUTE);

    #[test]
    fn calls_that_share_a_row_stand_or_fall_together() {
        let together = |user, tenant| Call::consume([USER.key(user), TENANT.key(tenant)]);
        let plan = Plan::new([together(1, 1), together(2, 1), together(3, 2), Call::consume([USER.key(4)])]).unwrap();
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
