use super::answer::Answer;
use super::call::{Act, Step, Steps};
use crate::algebra::{Ask, State, Terms, Timestamp, TooDeep, Verdict, credit, debit, decide};
use crate::balance::Balance;
use crate::decision::{Denied, Refusal, Source};
use crate::error::Error;
use crate::receipt::Charge;
use crate::standing::{Standing, more_at};
use crate::tokens::Tokens;

/// What follows from the rows.
#[derive(Debug)]
pub struct Outcome {
    /// One answer for each call, in the order of the calls.
    pub answers: Vec<Result<Answer, Error>>,
    /// The rows to write; none where nothing changes.
    pub changes: Vec<Change>,
}

/// A row to write.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Change {
    /// The row's place in [`Plan::rows`](super::Plan::rows).
    pub row: usize,
    /// What it holds from now on.
    pub state: State,
    /// When it will be full, and may be swept away.
    pub full_at: Timestamp,
}

/// The rows while calls are decided over them, one after another.
pub(super) struct Ledger {
    rows: Vec<Option<State>>,
    /// The terms under which each row was written last, if it was.
    written: Vec<Option<Terms>>,
    now: Timestamp,
}

impl Ledger {
    pub(super) fn new(found: &[Option<State>], now: Timestamp) -> Self {
        Self { rows: found.to_vec(), written: vec![None; found.len()], now }
    }

    pub(super) fn answer(&mut self, steps: &Steps<usize>) -> Result<Answer, Error> {
        match steps {
            Steps::Take(steps) => self.take(steps, true),
            Steps::Check(steps) => self.take(steps, false),
            Steps::Alter(steps) => self.alter(steps).map(Answer::Done),
        }
    }

    /// The rows that differ from what was found.
    pub(super) fn changes(self, found: &[Option<State>]) -> Vec<Change> {
        (self.rows.into_iter().zip(self.written).zip(found).enumerate())
            .filter(|(_, ((state, _), found))| state != *found)
            .filter_map(|(row, ((state, terms), _))| {
                let (state, terms) = (state?, terms?);
                Some(Change { row, state, full_at: terms.full_at(state) })
            })
            .collect()
    }

    /// Takes from every row or from none; or only says what would be taken.
    fn take(&mut self, steps: &[Step<usize, Ask>], for_good: bool) -> Result<Answer, Error> {
        let (mut granted, mut refusals) = (Vec::with_capacity(steps.len()), Vec::new());
        // Of a refusal the latest instant among the rows that refuse: each of them is ready after its own.
        let (mut decided_at, mut refused_at) = (self.now, self.now);
        for step in steps {
            match decide(&step.terms, self.rows[step.row], self.now, step.action) {
                Ok(Verdict::Granted { next, remaining, ready_at }) => {
                    decided_at = decided_at.max(self.instant(step.row));
                    granted.push((step, next, remaining, ready_at));
                }
                Ok(Verdict::Denied { remaining, retry_at }) => {
                    refused_at = refused_at.max(self.instant(step.row));
                    refusals.push(refusal(step, remaining, retry_at));
                }
                Err(TooDeep) => return Err(too_deep(step)),
            }
        }
        let untouched = || steps.iter().map(|step| self.untouched(step)).collect();
        if let Some(denied) = Denied::among(refusals, untouched, refused_at.into(), Source::Database) {
            return Ok(Answer::Denied(denied));
        }
        let (mut least, mut ready) = (Tokens::MAX, decided_at);
        let mut standings = Vec::with_capacity(steps.len());
        for (step, next, remaining, ready_at) in &granted {
            standings.push(standing(step, next.unwrap_or_else(|| self.row(step)), *remaining));
            if for_good {
                self.write(step, *next);
            }
            least = least.min(*remaining);
            ready = ready.max(*ready_at);
        }
        // None of it is spent before all of it may be: that is until when each charge can be cancelled.
        let taken = granted.iter().filter(|_| for_good);
        let charges = taken.map(|(step, ..)| (charge(step, ready), step.tracked)).collect();
        Ok(Answer::Granted { decided_at, remaining: least, ready_at: ready, charges, standings: standings.into() })
    }

    /// Where a row stands that nothing is taken from, for some row of the call refuses.
    fn untouched(&self, step: &Step<usize, Ask>) -> Standing {
        let row = self.row(step);
        let left = step.terms.refill(row, self.now).value;
        let needs = step.action.needs(&step.terms);
        let standing = standing(step, row, left);
        if left < needs { standing.refused_until(step.terms.first_instant(row, needs)) } else { standing }
    }

    fn alter(&mut self, steps: &[Step<usize, Act>]) -> Result<Vec<Balance>, Error> {
        let before: Vec<_> = steps.iter().map(|step| (step.row, self.rows[step.row], self.written[step.row])).collect();
        let balances: Result<_, Error> = steps.iter().map(|step| self.act(step)).collect();
        if balances.is_err() {
            for (row, state, terms) in before.into_iter().rev() {
                (self.rows[row], self.written[row]) = (state, terms);
            }
        }
        balances
    }

    fn act(&mut self, step: &Step<usize, Act>) -> Result<Balance, Error> {
        let (terms, row, now) = (&step.terms, self.rows[step.row], self.now);
        let next = match step.action {
            Act::Credit(amount) => credit(terms, row, now, amount),
            Act::CreditUntil(amount, until) if self.instant(step.row) <= until => credit(terms, row, now, amount),
            Act::Debit(amount) => debit(terms, row, now, amount).map_err(|TooDeep| too_deep(step))?,
            // By the clock, not by the row: one from the future comes back to the present.
            Act::Reset => row.map(|_| terms.full(now)),
            Act::CreditUntil(..) | Act::Look => None,
        };
        self.write(step, next);
        Ok(self.balance(step))
    }

    fn balance(&self, step: &Step<usize, Act>) -> Balance {
        let row = self.row(step);
        let as_of = self.now.max(row.ts);
        Balance {
            limit: step.limit.name.clone().into(),
            key: step.key.clone(),
            value: step.terms.refill(row, as_of).value,
            capacity: step.limit.capacity,
            full_at: step.terms.full_at(row).max(as_of).into(),
            observed_at: self.now.into(),
            as_of: as_of.into(),
        }
    }

    /// What a step's row holds; an absent row is a full one.
    fn row<A>(&self, step: &Step<usize, A>) -> State {
        self.rows[step.row].unwrap_or_else(|| step.terms.full(self.now))
    }

    /// The instant that counts for a row: its own, if the clock has gone back behind it.
    fn instant(&self, row: usize) -> Timestamp {
        self.rows[row].map_or(self.now, |state| state.ts.max(self.now))
    }

    fn write<A>(&mut self, step: &Step<usize, A>, next: Option<State>) {
        if next.is_some() {
            self.rows[step.row] = next;
            self.written[step.row] = Some(step.terms);
        }
    }
}

fn refusal(step: &Step<usize, Ask>, remaining: Tokens, retry_at: Timestamp) -> Refusal {
    let limit = step.limit.name.clone().into();
    Refusal { limit, key: step.key.clone(), remaining, retry_at: retry_at.into() }
}

fn standing(step: &Step<usize, Ask>, row: State, left: Tokens) -> Standing {
    Standing::new(step.limit.clone(), step.key.clone(), step.action.cost(), left, more_at(&step.terms, row, left))
}

fn charge(step: &Step<usize, Ask>, ready_at: Timestamp) -> Charge {
    Charge {
        limit: step.limit.clone(),
        key: step.key.clone(),
        shard: step.shard,
        cost: step.action.cost(),
        ready_at: ready_at.into(),
        tracked: None,
    }
}

fn too_deep<A>(step: &Step<usize, A>) -> Error {
    Error::DebtTooDeep { limit: step.limit.name.clone().into() }
}
