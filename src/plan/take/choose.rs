//! Which rows may suffice, by a look at all of them: those of the alternatives up to the one that is granted, or one
//! shard of each limit.

use crate::algebra::{State, Timestamp};
use crate::error::Error;
use crate::plan::Plan;
use crate::plan::answer::Answer;

/// The rows of a plan that may suffice, chosen by a look at all of them.
pub(crate) enum Chosen {
    /// The rows of the same calls, without alternatives behind those that are granted.
    Alternatives(Plan),
    /// One row of each limit: the states of all rows, and the places of those that held enough, the best first.
    Shards(Vec<Option<State>>, Vec<Vec<usize>>),
}

impl Plan {
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
}
