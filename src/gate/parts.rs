use crate::algebra::State;
use crate::error::Error;
use crate::plan::{Change, Plan, Row};

/// The rows of a plan, divided so that no call asks rows of two parts. What is written of a part is written whole or not at
/// all, and with it stand or fall the calls that ask its rows.
#[derive(Debug)]
pub(super) struct Parts {
    /// The part of each row: the least of its rows.
    of_row: Vec<usize>,
    /// The part of each call.
    of_call: Vec<usize>,
    /// The fate of each part.
    fates: Vec<Fate>,
}

/// What became of what was to be written.
#[derive(Clone, Debug)]
pub(super) enum Fate {
    /// It is written, or there was nothing to write.
    Stands,
    /// It is not: a row was absent, locked or changed.
    Lost,
    /// It is not, or nobody knows.
    Failed(Error),
}

impl Parts {
    pub(super) fn of(plan: &Plan) -> Self {
        let mut of_row: Vec<_> = (0..plan.rows().len()).collect();
        let mut first_rows = Vec::new();
        for mut places in plan.places() {
            // Every call asks a row.
            let first = places.next().unwrap_or_default();
            first_rows.push(first);
            places.for_each(|other| unite(&mut of_row, first, other));
        }
        for row in 0..of_row.len() {
            of_row[row] = root(&of_row, row);
        }
        let of_call = first_rows.into_iter().map(|row| of_row[row]).collect();
        let fates = vec![Fate::Stands; of_row.len()];
        Self { of_row, of_call, fates }
    }

    pub(super) fn fate(&self, call: usize) -> &Fate {
        &self.fates[self.of_call[call]]
    }

    /// Some calls, part by part.
    pub(super) fn divide(&self, calls: &[usize]) -> Vec<Vec<usize>> {
        let mut calls = calls.to_vec();
        calls.sort_by_key(|call| (self.of_call[*call], *call));
        calls.chunk_by(|one, other| self.of_call[*one] == self.of_call[*other]).map(<[usize]>::to_vec).collect()
    }

    /// The changes of parts that stand, as statements can write them: all of a table by one, or, where tables are
    /// distributed, each part by its own.
    pub(super) fn portions(&self, rows: &[Row], changes: &[Change], distributed: bool) -> Vec<Vec<(Change, i32)>> {
        let mut changes: Vec<_> =
            changes.iter().filter_map(|change| Some((*change, self.standing(change.row)?))).collect();
        let portion = |(change, part): &(Change, i32)| (rows[change.row].storage(), distributed.then_some(*part));
        changes.sort_by_key(portion);
        changes.chunk_by(|one, other| portion(one) == portion(other)).map(<[_]>::to_vec).collect()
    }

    /// The part of a row, unless it is lost.
    pub(super) fn standing(&self, row: usize) -> Option<i32> {
        let part = self.of_row[row];
        // No plan has two thousand million rows.
        matches!(self.fates[part], Fate::Stands).then(|| i32::try_from(part).unwrap_or(i32::MAX))
    }

    pub(super) fn lose(&mut self, part: i32) {
        self.decree(part, Fate::Lost);
    }

    pub(super) fn fail(&mut self, part: i32, error: &Error) {
        self.decree(part, Fate::Failed(error.clone()));
    }

    /// Loses what one comparing statement cannot write: rows that are absent, and parts that lie in both tables.
    pub(super) fn lose_unswappable(&mut self, rows: &[Row], found: &[Option<State>], changes: &[Change]) {
        for change in changes {
            let part = self.of_row[change.row];
            // The least row of a part is in the table that comes first.
            let in_both = rows[change.row].storage() != rows[part].storage();
            if in_both || found[change.row].is_none() {
                self.fates[part] = Fate::Lost;
            }
        }
    }

    fn decree(&mut self, part: i32, fate: Fate) {
        if let Some(old) = usize::try_from(part).ok().and_then(|part| self.fates.get_mut(part)) {
            *old = fate;
        }
    }
}

/// Puts two rows, and all that is united with either, in one part.
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
        let mut parts = Parts::of(&plan);
        assert_eq!(parts.of_call[0], parts.of_call[1]);
        assert_eq!(parts.of_call.iter().collect::<std::collections::BTreeSet<_>>().len(), 3);

        let part = i32::try_from(parts.of_call[1]).unwrap();
        parts.lose(part);
        let lost: Vec<_> = (0..4).map(|call| matches!(parts.fate(call), Fate::Lost)).collect();
        assert_eq!(lost, [true, true, false, false]);
        assert_eq!(parts.divide(&[3, 1, 2, 0]).len(), 3);
        assert!(parts.divide(&[3, 1, 2, 0]).contains(&vec![0, 1]));
    }
}
