use super::answer::Answer;
use super::steps::{Act, Step, Steps};
use crate::algebra::{Ask, Part, Pool, Pooled, State, Terms, Timestamp, TooDeep, Verdict, credit, debit, decide};
use crate::balance::Balance;
use crate::decision::{Denied, Refusal, Source};
use crate::error::Error;
use crate::receipt::Charge;
use crate::standing::{Standing, more_at, more_in_pool_at};
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
            match self.ask(step)? {
                Asked::Granted(taken) => {
                    decided_at = decided_at.max(self.instant(step));
                    granted.push((step, taken));
                }
                Asked::Denied { remaining, retry_at } => {
                    refused_at = refused_at.max(self.instant(step));
                    refusals.push(refusal(step, remaining, retry_at));
                }
            }
        }
        let untouched = || steps.iter().map(|step| self.untouched(step)).collect();
        if let Some(denied) = Denied::among(refusals, untouched, refused_at.into(), Source::Database) {
            return Ok(Answer::Denied(denied));
        }
        let (mut least, mut ready) = (Tokens::MAX, decided_at);
        let mut standings = Vec::with_capacity(steps.len());
        for (step, taken) in &granted {
            standings.push(self.left_of(step, taken));
            if for_good {
                self.write(step, taken.next);
                self.write_parts(step, &taken.parts);
            }
            least = least.min(taken.remaining);
            ready = ready.max(taken.ready_at);
        }
        // None of it is spent before all of it may be: that is until when each charge can be cancelled.
        let mut charges = Vec::with_capacity(granted.len());
        for (step, taken) in granted.iter().filter(|_| for_good) {
            taken.charge(step, ready, |charge| charges.push((charge, step.tracked)));
        }
        Ok(Answer::Granted { decided_at, remaining: least, ready_at: ready, charges, standings: standings.into() })
    }

    /// Where a step's limit stands that tokens were taken from.
    fn left_of(&self, step: &Step<usize, Ask>, taken: &Taken) -> Standing {
        let more_at = if step.rows > 1 {
            let mut rows = self.rows[step.row..step.row + step.rows].to_vec();
            for part in &taken.parts {
                rows[part.shard] = Some(part.next);
            }
            more_in_pool_at(&step.terms, &Pool::of(&step.terms, &rows, self.now))
        } else if step.limit.shards > 1 {
            // The others may have more before, or none.
            None
        } else {
            more_at(&step.terms, taken.next.unwrap_or_else(|| self.row(step)), taken.remaining)
        };
        standing(step, taken.remaining, more_at)
    }

    /// Where a step's limit stands that nothing is taken from, for some limit of the call refuses.
    fn untouched(&self, step: &Step<usize, Ask>) -> Standing {
        let needs = step.action.needs(&step.terms);
        if step.rows > 1 {
            let pool = self.pool(step);
            let standing = standing(step, pool.balance(), more_in_pool_at(&step.terms, &pool));
            return if pool.balance() < needs { standing.refused_until(pool.first_instant(needs)) } else { standing };
        }
        let row = self.row(step);
        let left = step.terms.refill(row, self.now).value;
        let standing = standing(step, left, more_at(&step.terms, row, left));
        if left < needs { standing.refused_until(step.terms.first_instant(row, needs)) } else { standing }
    }

    /// Asks the row of a step, or its rows together.
    fn ask(&self, step: &Step<usize, Ask>) -> Result<Asked, Error> {
        if step.rows > 1 {
            return Ok(match self.pool(step).decide(step.action).map_err(|TooDeep| too_deep(step))? {
                Pooled::Granted { parts, remaining, ready_at } => {
                    Asked::Granted(Taken { next: None, parts, remaining, ready_at })
                }
                Pooled::Denied { remaining, retry_at } => Asked::Denied { remaining, retry_at },
            });
        }
        let verdict = decide(&step.terms, self.rows[step.row], self.now, step.action);
        Ok(match verdict.map_err(|TooDeep| too_deep(step))? {
            Verdict::Granted { next, remaining, ready_at } => {
                // A sum that is no amount is not reported.
                let remaining = remaining.checked_add(step.beside).unwrap_or(remaining);
                Asked::Granted(Taken { next, parts: Vec::new(), remaining, ready_at })
            }
            Verdict::Denied { remaining, retry_at } => Asked::Denied { remaining, retry_at },
        })
    }

    fn alter(&mut self, steps: &[Step<usize, Act>]) -> Result<Vec<Balance>, Error> {
        let rows = steps.iter().flat_map(|step| step.row..step.row + step.rows);
        let before: Vec<_> = rows.map(|row| (row, self.rows[row], self.written[row])).collect();
        let balances: Result<_, Error> = steps.iter().map(|step| self.act(step)).collect();
        if balances.is_err() {
            for (row, state, terms) in before.into_iter().rev() {
                (self.rows[row], self.written[row]) = (state, terms);
            }
        }
        balances
    }

    fn act(&mut self, step: &Step<usize, Act>) -> Result<Balance, Error> {
        if step.rows > 1 {
            return self.act_pooled(step);
        }
        let (terms, row, now) = (&step.terms, self.rows[step.row], self.now);
        let next = match step.action {
            Act::Credit(amount) => credit(terms, row, now, amount),
            Act::CreditUntil(amount, until) if self.instant(step) <= until => credit(terms, row, now, amount),
            Act::Debit(amount) => debit(terms, row, now, amount).map_err(|TooDeep| too_deep(step))?,
            // By the clock, not by the row: one from the future comes back to the present.
            Act::Reset => row.map(|_| terms.full(now)),
            Act::CreditUntil(..) | Act::Look => None,
        };
        self.write(step, next);
        Ok(self.balance(step))
    }

    fn act_pooled(&mut self, step: &Step<usize, Act>) -> Result<Balance, Error> {
        let pool = self.pool(step);
        let parts = match step.action {
            Act::Credit(amount) => pool.credit(amount),
            Act::CreditUntil(amount, until) if pool.now() <= until => pool.credit(amount),
            Act::Debit(amount) => pool.debit(amount).map_err(|TooDeep| too_deep(step))?,
            Act::Reset => {
                for shard in 0..step.rows {
                    let terms = step.terms.shard(shard, step.rows);
                    let full = self.rows[step.row + shard].map(|_| terms.full(self.now));
                    self.write_row(step.row + shard, full, terms);
                }
                Vec::new()
            }
            Act::CreditUntil(..) | Act::Look => Vec::new(),
        };
        self.write_parts(step, &parts);
        Ok(self.balance(step))
    }

    fn balance(&self, step: &Step<usize, Act>) -> Balance {
        let (value, full_at, as_of) = if step.rows > 1 {
            let pool = self.pool(step);
            (pool.balance(), pool.full_at(), pool.now())
        } else {
            let row = self.row(step);
            let as_of = self.now.max(row.ts);
            (step.terms.refill(row, as_of).value, step.terms.full_at(row), as_of)
        };
        Balance {
            limit: step.limit.name.clone().into(),
            key: step.key.clone(),
            value,
            capacity: Tokens::from_micros(step.terms.capacity),
            full_at: full_at.max(as_of).into(),
            observed_at: self.now.into(),
            as_of: as_of.into(),
        }
    }

    /// What a step's row holds; an absent row is a full one.
    fn row<A>(&self, step: &Step<usize, A>) -> State {
        self.rows[step.row].unwrap_or_else(|| step.terms.full(self.now))
    }

    /// The rows of a step as one.
    fn pool<A>(&self, step: &Step<usize, A>) -> Pool {
        Pool::of(&step.terms, &self.rows[step.row..step.row + step.rows], self.now)
    }

    /// The instant that counts for a step: the latest of its rows', if the clock has gone back behind it.
    fn instant<A>(&self, step: &Step<usize, A>) -> Timestamp {
        let rows = &self.rows[step.row..step.row + step.rows];
        rows.iter().flatten().fold(self.now, |latest, state| latest.max(state.ts))
    }

    fn write<A>(&mut self, step: &Step<usize, A>, next: Option<State>) {
        self.write_row(step.row, next, step.terms);
    }

    fn write_parts<A>(&mut self, step: &Step<usize, A>, parts: &[Part]) {
        for part in parts {
            self.write_row(step.row + part.shard, Some(part.next), step.terms.shard(part.shard, step.rows));
        }
    }

    fn write_row(&mut self, row: usize, next: Option<State>, terms: Terms) {
        if next.is_some() {
            self.rows[row] = next;
            self.written[row] = Some(terms);
        }
    }
}

/// What a step comes to.
enum Asked {
    Granted(Taken),
    Denied { remaining: Tokens, retry_at: Timestamp },
}

/// What a step takes.
struct Taken {
    /// What becomes of its one row, if that changes.
    next: Option<State>,
    /// What becomes of those of several rows that change.
    parts: Vec<Part>,
    remaining: Tokens,
    ready_at: Timestamp,
}

impl Taken {
    /// The charges of a step: one for each row that it takes from, and one of nothing where it asks for nothing.
    fn charge(&self, step: &Step<usize, Ask>, ready_at: Timestamp, mut add: impl FnMut(Charge)) {
        let charge = |shard, cost| Charge {
            limit: step.limit.clone(),
            key: step.key.clone(),
            shard,
            cost,
            ready_at: ready_at.into(),
            tracked: None,
        };
        if self.parts.is_empty() {
            add(charge(step.shard, step.action.cost()));
        }
        for part in &self.parts {
            // A limit has so few rows that the fallback is never taken.
            add(charge(step.shard + u16::try_from(part.shard).unwrap_or_default(), part.cost));
        }
    }
}

fn refusal(step: &Step<usize, Ask>, remaining: Tokens, retry_at: Timestamp) -> Refusal {
    let limit = step.limit.name.clone().into();
    Refusal { limit, key: step.key.clone(), remaining, retry_at: retry_at.into() }
}

fn standing(step: &Step<usize, Ask>, left: Tokens, more_at: Option<Timestamp>) -> Standing {
    Standing::new(step.limit.clone(), step.key.clone(), step.action.cost(), left, more_at)
}

fn too_deep<A>(step: &Step<usize, A>) -> Error {
    Error::DebtTooDeep { limit: step.limit.name.clone().into() }
}
