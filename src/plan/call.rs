use std::collections::HashMap;

use super::row::Row;
use super::steps::{Act, Step, Steps};
use crate::algebra::Ask;
use crate::error::Error;
use crate::limit::Limit;
use crate::receipt::{Charge, Receipt};
use crate::request::{Asked, Request};
use crate::tokens::{Tokens, TokensError};

/// What one caller asks: tokens from every limit or from none, or a change that always succeeds.
///
/// A wrong request is reported by [`Plan::new`](super::Plan::new).
#[derive(Debug)]
#[must_use = "a call does nothing until it is planned"]
pub struct Call {
    steps: Result<Steps<Row>, Error>,
}

impl Call {
    /// Takes tokens from every limit, or from none.
    pub fn consume(requests: impl IntoIterator<Item = Request>) -> Self {
        Self { steps: asks(requests, Ask::consume).map(Steps::Take) }
    }

    /// Takes tokens from every limit, now or for later, or from none.
    pub fn reserve(requests: impl IntoIterator<Item = Request>) -> Self {
        Self { steps: asks(requests, Ask::reserve).map(Steps::Take) }
    }

    /// Says whether tokens could be taken from every limit, and takes none.
    pub fn check(requests: impl IntoIterator<Item = Request>) -> Self {
        Self { steps: asks(requests, Ask::consume).map(Steps::Check) }
    }

    /// Gives tokens back, up to the capacity.
    pub fn credit(request: Request) -> Self {
        Self::alter(request, Act::Credit)
    }

    /// Takes tokens, whatever is there.
    pub fn debit(request: Request) -> Self {
        Self::alter(request, Act::Debit)
    }

    /// Fills a row up, and brings one from the future back to the present.
    pub fn reset(request: Request) -> Self {
        Self::alter(request, |_| Act::Reset)
    }

    /// Looks at a row.
    pub fn look(request: Request) -> Self {
        Self::alter(request, |_| Act::Look)
    }

    /// Brings each charge of a receipt to its actual cost: the difference is given back or taken, whatever is there.
    ///
    /// What one call took from the shards of one limit is one charge in several parts: what is too much of it is given
    /// back to each, up to what was taken there, and what is too little is taken from the first.
    #[expect(clippy::needless_pass_by_value, reason = "a receipt is used up by move")]
    pub fn settle(receipt: Receipt, actual: Tokens) -> Self {
        Self::amend(&receipt, |charges| {
            let mut spare = -i128::from(not_negative(&charges[0].limit, actual)?.micros());
            for charge in charges {
                spare += i128::from(not_negative(&charge.limit, charge.cost)?.micros());
            }
            let mut acts = Vec::with_capacity(charges.len());
            for charge in charges {
                let part = spare.min(i128::from(charge.cost.micros()));
                spare = (spare - part).max(0);
                // Neither more than the cost nor less than what the actual one is, so the fallback is never taken.
                let part = i64::try_from(part).unwrap_or_default();
                let debit = part < 0 && acts.is_empty();
                acts.push(if debit {
                    Act::Debit(Tokens::from_micros(-part))
                } else {
                    Act::Credit(Tokens::from_micros(part.max(0)))
                });
            }
            Ok(acts)
        })
    }

    /// Gives back each charge of a receipt that is not ready to be spent.
    #[expect(clippy::needless_pass_by_value, reason = "a receipt is used up by move")]
    pub fn cancel(receipt: Receipt) -> Self {
        let act = |charge: &Charge| {
            let cost = not_negative(&charge.limit, charge.cost)?;
            Ok(Act::CreditUntil(cost, charge.ready_at.into()))
        };
        Self::amend(&receipt, |charges| charges.iter().map(act).collect())
    }

    fn alter(request: Request, act: impl Fn(Tokens) -> Act) -> Self {
        let step = |Asked { limit, key, cost, .. }: Asked| Step::new(limit, key, act(cost));
        Self { steps: request.into_parts().map(|asked| Steps::Alter(vec![step(asked)])) }
    }

    fn amend(receipt: &Receipt, acts: impl Fn(&[Charge]) -> Result<Vec<Act>, Error>) -> Self {
        let steps = || {
            let mut steps = Vec::with_capacity(receipt.charges.len());
            for charges in receipt.by_request() {
                for (charge, act) in charges.iter().zip(acts(charges)?) {
                    steps.push(Step::of_charge(charge, act)?);
                }
            }
            Ok(Steps::Alter(steps))
        };
        Self { steps: steps() }
    }

    /// The call, if it is right.
    pub(crate) fn checked(self) -> Result<Checked, Error> {
        let steps = self.steps?;
        if steps.rows().next().is_none() {
            return Err(Error::NothingAsked);
        }
        match &steps {
            Steps::Take(asks) | Steps::Check(asks) => asks.iter().try_for_each(possible)?,
            Steps::Alter(acts) => agree(acts)?,
        }
        Ok(Checked(steps))
    }
}

/// A call that can be decided: nothing is wrong with what it asks.
#[derive(Clone, Debug)]
pub(crate) struct Checked(pub(super) Steps<Row>);

#[cfg(feature = "postgres")]
impl Checked {
    /// The rows that it is about, each once; of the shards of a limit only the first.
    pub(crate) fn rows(&self) -> impl Iterator<Item = &Row> {
        self.0.rows()
    }

    /// The limit that it is called by where one is named for all; the first that was asked.
    pub(crate) fn limit(&self) -> &Limit {
        self.0.first_limit()
    }

    /// Whether it writes rows of `tollgate.reservations`.
    pub(crate) fn is_tracked(&self) -> bool {
        matches!(&self.0, Steps::Take(steps) if steps.iter().any(|step| step.tracked))
    }

    /// Whether it may raise a balance.
    pub(crate) fn gives(&self) -> bool {
        let gives = |act: &Act| matches!(act, Act::Credit(_) | Act::CreditUntil(..) | Act::Reset);
        matches!(&self.0, Steps::Alter(steps) if steps.iter().any(|step| gives(&step.action)))
    }

    /// The same call on a share of each limit, from 0 to 1, in one row each, for in memory nobody waits for a lock;
    /// `None` where that could never grant it.
    pub(crate) fn share(self, share: f64) -> Option<Self> {
        #[expect(clippy::cast_possible_truncation, reason = "a whole number up to a million; NaN is 0")]
        let millionths = (share.clamp(0.0, 1.0) * 1e6).floor() as i64;
        let mut shared = self;
        let (Steps::Take(steps) | Steps::Check(steps)) = &mut shared.0 else { return None };
        for step in steps.iter_mut() {
            step.terms = step.terms.share(millionths);
            (step.rows, step.shard, step.row.shard) = (1, 0, 0);
        }
        let possible = steps.iter().all(|step| step.action.cost() <= step.action.most(&step.terms));
        possible.then_some(shared)
    }

    /// What it asks of each row, if it takes or checks without reserving. Of the shards of a limit none refuses by
    /// itself.
    pub(crate) fn asks(&self) -> Option<impl Iterator<Item = &Step<Row, Ask>>> {
        let (Steps::Take(steps) | Steps::Check(steps)) = &self.0 else { return None };
        let reserving = steps.iter().any(|step| step.action.is_reserving());
        (!reserving).then(|| steps.iter().filter(|step| step.rows == 1))
    }
}

/// A cost that came from outside: from a caller, or in a receipt that was stored.
fn not_negative(limit: &Limit, cost: Tokens) -> Result<Tokens, Error> {
    if cost.is_negative() {
        return Err(Error::Cost { limit: limit.name.clone().into(), source: TokensError::Negative });
    }
    Ok(cost)
}

fn asks(requests: impl IntoIterator<Item = Request>, ask: fn(Tokens) -> Ask) -> Result<Vec<Step<Row, Ask>>, Error> {
    let (mut steps, mut places) = (Vec::new(), HashMap::new());
    for request in requests {
        let Asked { limit, key, cost, tracked } = request.into_parts()?;
        add_up(&mut steps, &mut places, Step { tracked, ..Step::new(limit, key, ask(cost)) })?;
    }
    Ok(steps)
}

/// Adds a step, or adds its cost to the step that asks the same limit and key already.
///
/// `places` says where the steps of a long call are, for to look through them all each time would take its square.
fn add_up(
    steps: &mut Vec<Step<Row, Ask>>,
    places: &mut HashMap<Row, usize>,
    step: Step<Row, Ask>,
) -> Result<(), Error> {
    // Whatever the number of shards, it is one limit.
    let whole = |row: &Row| Row { shard: 0, ..row.clone() };
    let place = if steps.len() < FEW {
        steps.iter().position(|other| other.row.is_beside(&step.row))
    } else {
        for (place, step) in steps.iter().enumerate().skip(places.len()) {
            places.insert(whole(&step.row), place);
        }
        places.get(&whole(&step.row)).copied()
    };
    let Some(other) = place.map(|place| &mut steps[place]) else {
        steps.push(step);
        return Ok(());
    };
    if other.limit != step.limit {
        return Err(Error::ConflictingDefinitions { limit: step.row.name.into() });
    }
    // A sum that is no amount of tokens is beyond every capacity.
    other.action = other.action.and(step.action).ok_or_else(|| exceeded(other, Tokens::MAX))?;
    other.tracked |= step.tracked;
    Ok(())
}

/// A receipt whose charges are of one limit under several numbers of shards is no receipt of one call.
fn agree(steps: &[Step<Row, Act>]) -> Result<(), Error> {
    let is_other = |one: &Step<Row, Act>, other: &Step<Row, Act>| {
        one.limit.shards != other.limit.shards && one.row.is_beside(&other.row)
    };
    for step in steps.iter().filter(|step| step.limit.shards > 1) {
        if steps.iter().any(|other| is_other(step, other)) {
            return Err(Error::ConflictingDefinitions { limit: step.limit.name.clone().into() });
        }
    }
    Ok(())
}

fn possible(step: &Step<Row, Ask>) -> Result<(), Error> {
    let asked = step.action.cost();
    if asked > step.action.most(&step.terms) { Err(exceeded(step, asked)) } else { Ok(()) }
}

fn exceeded(step: &Step<Row, Ask>, asked: Tokens) -> Error {
    let max = step.action.most(&step.terms);
    Error::CostExceedsCapacity { limit: step.row.name.clone().into(), asked, max }
}

/// So many steps are looked through faster than they are looked up.
const FEW: usize = 16;
