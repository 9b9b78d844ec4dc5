use super::Plan;
use super::ledger::Change;
use super::steps::{Step, Steps};
use crate::algebra::{Ask, Pool, State, Timestamp, Verdict, decide};
use crate::tokens::Tokens;

/// A shard that could let a step through alone, by what was seen of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    /// What would become of it.
    pub(crate) change: Change,
    /// Whether it could do so a second time.
    pub(crate) is_ample: bool,
    ready_at: Timestamp,
    left: Tokens,
}

impl Plan {
    /// Where the plan's only call could be placed: for each of its steps the shards that could let it through alone,
    /// the best first; none for a step that asks one row anyway. `None` if some step needs several shards.
    ///
    /// Of two random shards the one that has more comes first: so callers are spread, and rows stay level. Where none
    /// has enough, but one may owe the rest, the one that is ready first.
    pub(crate) fn candidates(
        &self,
        found: &[Option<State>],
        now: Timestamp,
        dice: &mut fastrand::Rng,
    ) -> Option<Vec<Vec<Candidate>>> {
        let [Steps::Take(steps)] = self.calls.as_slice() else { return None };
        let of_step = |step: &Step<usize, Ask>| {
            if step.rows == 1 {
                return Some(Vec::new());
            }
            let mut candidates: Vec<_> =
                (0..step.rows).filter_map(|shard| candidate(step, shard, found, now)).collect();
            dice.shuffle(&mut candidates);
            candidates.sort_by_key(|candidate| candidate.ready_at);
            let ready = candidates.iter().take_while(|candidate| candidate.ready_at == candidates[0].ready_at).count();
            if let [one, other, ..] = &mut candidates[..ready]
                && other.left > one.left
            {
                std::mem::swap(one, other);
            }
            (!candidates.is_empty()).then_some(candidates)
        };
        steps.iter().map(of_step).collect()
    }

    /// The plan with each step of several rows at one of its shards instead: the places of those, in the order of the
    /// steps. What the others hold is reported from what was seen.
    pub(crate) fn placed(&self, found: &[Option<State>], now: Timestamp, places: &[Option<usize>]) -> Self {
        let [Steps::Take(steps)] = self.calls.as_slice() else { return self.select(&[0]) };
        let steps = steps.iter().zip(places).map(|(step, place)| match place {
            Some(place) => at(step, *place, found, now),
            None => step.clone(),
        });
        self.part(vec![Steps::Take(steps.collect())])
    }

    /// Whether the plan takes from a limit with several rows.
    pub(crate) fn takes_pooled(&self) -> bool {
        let takes = |steps: &Steps<usize>| matches!(steps, Steps::Take(_)) && steps.heads().any(|head| head.rows > 1);
        self.inserts() && self.calls.iter().any(takes)
    }
}

fn candidate(step: &Step<usize, Ask>, shard: usize, found: &[Option<State>], now: Timestamp) -> Option<Candidate> {
    let (row, terms) = (step.row + shard, step.terms.shard(shard, step.rows));
    let Ok(Verdict::Granted { next: Some(state), remaining, ready_at }) = decide(&terms, found[row], now, step.action)
    else {
        return None;
    };
    let change = Change { row, state, full_at: terms.full_at(state) };
    // What is ready at once is all the same, though the rows may stand at different instants.
    let ready_at = if remaining.is_negative() { ready_at } else { Timestamp::MIN };
    Some(Candidate { change, is_ample: remaining >= step.action.cost(), ready_at, left: remaining })
}

/// A step at one of its shards.
fn at(step: &Step<usize, Ask>, row: usize, found: &[Option<State>], now: Timestamp) -> Step<usize, Ask> {
    let (shard, rows) = (row - step.row, &found[step.row..step.row + step.rows]);
    let terms = step.terms.shard(shard, step.rows);
    let own = terms.refill(found[row].unwrap_or_else(|| terms.full(now)), now).value;
    let all = Pool::of(&step.terms, rows, now).balance();
    Step {
        row,
        rows: 1,
        // A limit has so few rows that the fallback is never taken.
        shard: step.shard + u16::try_from(shard).unwrap_or_default(),
        terms,
        beside: all.checked_sub(own).unwrap_or(Tokens::ZERO),
        ..step.clone()
    }
}
