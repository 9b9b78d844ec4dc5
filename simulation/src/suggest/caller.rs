use std::collections::HashMap;

use tollgate::plan::Answer;
use tollgate::{Error, Grant, Limit, Tokens};

use crate::arrival::Arrival;
use crate::run::Simulation;
use crate::trial::{Rule, Trial};

/// The calls of one key, in their order.
#[derive(Debug)]
pub(super) struct Caller {
    calls: Vec<Arrival>,
    /// The sum of their costs, in whole tokens.
    total: i64,
}

impl Caller {
    /// All callers of calls that are in the order of their instants.
    pub(super) fn all(calls: Vec<Arrival>) -> Result<Vec<Self>, String> {
        let (mut places, mut callers) = (HashMap::new(), Vec::new());
        for call in calls {
            let place = *places.entry(call.key.clone()).or_insert(callers.len());
            if place == callers.len() {
                callers.push(Vec::new());
            }
            callers[place].push(call);
        }
        callers.into_iter().map(Self::of).collect()
    }

    fn of(calls: Vec<Arrival>) -> Result<Self, String> {
        let total = calls.iter().try_fold(0_i64, |total, call| total.checked_add(call.cost.micros()));
        // A token less than all there are, so that the whole tokens are an amount, too.
        let total = total.filter(|total| *total <= Tokens::MAX.micros() - Tokens::ONE.micros());
        let key = calls[0].key.as_str();
        let total = total.ok_or_else(|| format!("the calls of key {key:?} cost more than a number of tokens holds"))?;
        Ok(Self { total: whole(total), calls })
    }

    /// The least number, in whole tokens, with which a limit refuses none of these calls.
    ///
    /// A row counts what is used from a full row, so it knows nothing of the number. As long as nothing is refused, it
    /// is the same under each number that is large enough: one run finds the least of them. For the same reason a
    /// larger number refuses nothing, either.
    pub(super) fn depth(&self, of: impl Fn(i64) -> Result<Limit, String>) -> Result<i64, String> {
        let most = self.total.max(1);
        let mut least = most * Tokens::ONE.micros();
        self.ask(of(most)?, |answer| {
            if let Some(Answer::Granted { grant: Grant { remaining, .. }, .. }) = answer {
                least = least.min(remaining.micros());
            }
            true
        })?;
        Ok(whole(most * Tokens::ONE.micros() - least).max(1))
    }

    /// How many of these calls a limit refuses, those among them that cost more than it ever holds; none where these
    /// are more than `most`.
    pub(super) fn refused(&self, limit: Limit, most: usize) -> Result<Option<usize>, String> {
        let mut refused = 0;
        self.ask(limit, |answer| {
            refused += usize::from(!matches!(answer, Some(Answer::Granted { .. })));
            refused <= most
        })?;
        Ok((refused <= most).then_some(refused))
    }

    /// Makes the calls, as long as `see` wants to see more answers.
    fn ask(&self, limit: Limit, mut see: impl FnMut(Option<Answer>) -> bool) -> Result<(), String> {
        let mut simulation =
            Simulation::new(Trial { rules: vec![Rule { limit, is_global: false, follows: None }], ..Trial::default() });
        for call in &self.calls {
            let answer = simulation.call(call, |_, _, _| ()).map_err(|error: Error| error.to_string())?;
            if !see(answer) {
                break;
            }
        }
        Ok(())
    }
}

/// The whole tokens that so many micro-tokens fit into.
fn whole(micros: i64) -> i64 {
    Tokens::from_micros(micros).whole() + i64::from(micros % Tokens::ONE.micros() != 0)
}
