//! Which rows may suffice, by a look at all of them: those of the alternatives up to the one that is granted, or one
//! shard of each limit.

use std::cmp::Reverse;

use crate::algebra::{Account, Ask, State, Timestamp, Verdict};
use crate::error::Error;
use crate::plan::Plan;
use crate::plan::answer::Answer;
use crate::plan::target::Item;

/// The rows of a plan that may suffice, chosen by a look at all of them.
pub(crate) enum Chosen {
    /// The rows of the same calls, without alternatives behind those that are granted.
    Alternatives(Plan),
    /// One row of each limit: the states of all rows, and the places of those that held enough, the best first.
    Shards(Vec<Option<State>>, Vec<Vec<usize>>),
}

impl Plan {
    /// Whether some of the rows may suffice: a call has alternatives, or the only call takes from a limit with several
    /// rows.
    pub(crate) fn has_choice(&self) -> bool {
        let takes_one = || self.len() == 1 && self.takes() && self.inserts();
        self.has_alternatives() || takes_one() && self.calls[0].rows().any(|rows| rows.count > 1)
    }

    /// The rows that may suffice, if not all are needed, from the rows and the answers of a look.
    ///
    /// If all rows of all alternatives were claimed at once, each call would insert and delete the missing rows of the
    /// alternatives behind the one that is taken. And a call that claimed them later, while it holds other rows, would
    /// lock out of order.
    pub(crate) fn choose(
        &self,
        answers: &[Result<Answer, Error>],
        seen: Vec<Option<State>>,
        now: Timestamp,
        shuffle: impl Fn(&mut [usize]),
    ) -> Option<Chosen> {
        if self.has_alternatives() {
            let chosen = self.through(answers);
            return (chosen.rows().len() < self.rows().len()).then_some(Chosen::Alternatives(chosen));
        }
        let candidates = self.candidates(&seen, now, shuffle)?;
        Some(Chosen::Shards(seen, candidates))
    }

    /// The calls cut after the alternatives that these answers grant.
    pub(crate) fn through(&self, answers: &[Result<Answer, Error>]) -> Self {
        let calls = self.calls.iter().zip(answers).map(|(call, answer)| match answer {
            Ok(Answer::Granted { grant, .. }) => call.through(grant.alternative),
            _ => call.clone(),
        });
        Self::of(calls.collect())
    }

    /// Whether the plan with all alternatives may answer differently, because a call that was cut short is refused.
    pub(crate) fn falls_short(&self, whole: &Self, answers: &[Result<Answer, Error>]) -> bool {
        let mut calls = self.calls.iter().zip(&whole.calls).zip(answers);
        calls.any(|((cut, whole), answer)| matches!(answer, Ok(Answer::Denied(_))) && cut.keys() < whole.keys())
    }

    /// For each item of the plan's only call, the places of the rows that could grant it alone, as they were seen.
    /// `None` if an item needs several rows, or goes by the sum of all of them.
    ///
    /// The fullest row comes first, so that no row stays full, and wastes its refill, while another is low. If all rows
    /// would be in debt, the row that is ready first comes first. Equal rows come in the order of the shuffle, so that
    /// callers spread.
    fn candidates(
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
