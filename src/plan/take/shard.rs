//! Which shard of a limit a call takes from, if any one of them suffices.

use std::cmp::Reverse;

use crate::algebra::{Account, Ask, State, Timestamp, Verdict};
use crate::plan::Plan;
use crate::plan::target::Item;

impl Plan {
    /// For each item of the plan's only call, the places of the rows that could grant it alone, as they were seen.
    /// `None` if an item needs several rows, or goes by the sum of all of them.
    ///
    /// The fullest row comes first, so that no row stays full, and wastes its refill, while another is low. If all rows
    /// would be in debt, the row that is ready first comes first. Equal rows come in the order of the shuffle, so that
    /// callers spread.
    pub(super) fn candidates(
        &self,
        found: &[Option<State>],
        now: Timestamp,
        shuffle: impl Fn(&mut [usize]),
    ) -> Option<Vec<Vec<usize>>> {
        let [call] = self.calls.as_slice() else { return None };
        if !call.takes() || call.taken().iter().any(|item| item.action.is_of_all_rows()) {
            return None;
        }
        let of_item = |item: &Item<Ask>| {
            let rows = &item.target.rows;
            let account = Account::new(&item.target.terms, &found[rows.places()], now);
            let mut shards: Vec<_> = (0..rows.count).collect();
            shuffle(&mut shards);
            let mut candidates: Vec<_> = shards
                .into_iter()
                .filter_map(|shard| match account.decide_in(shard, item.action) {
                    Ok(Verdict::Granted { portions, ready_at, .. }) => {
                        let left = portions.first()?.next.value;
                        Some((ready_at, Reverse(left), rows.place + shard))
                    }
                    _ => None,
                })
                .collect();
            candidates.sort_by_key(|(ready_at, left, _)| (*ready_at, *left));
            let candidates: Vec<_> = candidates.into_iter().map(|(.., place)| place).collect();
            (!candidates.is_empty()).then_some(candidates)
        };
        call.taken().iter().map(of_item).collect()
    }
}

/// The row to wait for, of those that held enough: the best one if it is missing, else the better of two random ones,
/// so that not all callers wait for the same row.
pub(crate) fn draw(seen: &[Option<State>], candidates: &[usize], random: impl Fn(usize) -> usize) -> usize {
    let any = || random(candidates.len());
    if seen[candidates[0]].is_none() { candidates[0] } else { candidates[any().min(any())] }
}
