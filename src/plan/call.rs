use std::collections::HashMap;

use super::Row;
use crate::algebra::{Ask, Terms, Timestamp};
use crate::error::Error;
use crate::key::Key;
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
    pub fn settle(receipt: Receipt, actual: Tokens) -> Self {
        Self::amend(receipt, |charge| {
            // Neither is negative, so the difference fits.
            let spare = not_negative(&charge.limit, charge.cost)?.checked_sub(not_negative(&charge.limit, actual)?);
            Ok(match spare.unwrap_or(Tokens::ZERO) {
                spare if spare.is_negative() => Act::Debit(Tokens::from_micros(-spare.micros())),
                spare => Act::Credit(spare),
            })
        })
    }

    /// Gives back each charge of a receipt that is not ready to be spent.
    pub fn cancel(receipt: Receipt) -> Self {
        Self::amend(receipt, |charge| {
            let cost = not_negative(&charge.limit, charge.cost)?;
            Ok(Act::CreditUntil(cost, charge.ready_at.into()))
        })
    }

    fn alter(request: Request, act: impl Fn(Tokens) -> Act) -> Self {
        let step = |Asked { limit, key, cost, .. }: Asked| Step::new(limit, key, 0, act(cost));
        Self { steps: request.into_parts().map(|asked| Steps::Alter(vec![step(asked)])) }
    }

    fn amend(receipt: Receipt, act: impl Fn(&Charge) -> Result<Act, Error>) -> Self {
        let step = |charge: Charge| {
            // No limit has as many rows: such a charge was never made.
            if i16::try_from(charge.shard).is_err() {
                return Err(Error::ReceiptUsed);
            }
            let act = act(&charge)?;
            Ok(Step::new(charge.limit, charge.key, charge.shard, act))
        };
        Self { steps: receipt.charges.into_iter().map(step).collect::<Result<_, _>>().map(Steps::Alter) }
    }

    /// The call, if it is right.
    pub(crate) fn checked(self) -> Result<Checked, Error> {
        let steps = self.steps?;
        if steps.rows().next().is_none() {
            return Err(Error::NothingAsked);
        }
        if let Steps::Take(asks) | Steps::Check(asks) = &steps {
            asks.iter().try_for_each(possible)?;
        }
        Ok(Checked(steps))
    }
}

/// A call that can be decided: nothing is wrong with what it asks.
#[derive(Clone, Debug)]
pub(crate) struct Checked(pub(super) Steps<Row>);

#[cfg(feature = "postgres")]
impl Checked {
    /// The rows that it is about, each once.
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

    /// The same call on a share of each limit, from 0 to 1; `None` where that could never grant it.
    pub(crate) fn share(self, share: f64) -> Option<Self> {
        #[expect(clippy::cast_possible_truncation, reason = "a whole number up to a million; NaN is 0")]
        let millionths = (share.clamp(0.0, 1.0) * 1e6).floor() as i64;
        let mut shared = self;
        let (Steps::Take(steps) | Steps::Check(steps)) = &mut shared.0 else { return None };
        for step in steps.iter_mut() {
            step.terms = step.terms.share(millionths);
        }
        let possible = steps.iter().all(|step| step.action.cost() <= step.action.most(&step.terms));
        possible.then_some(shared)
    }

    /// What it asks of each row, if it takes or checks without reserving.
    pub(crate) fn asks(&self) -> Option<impl Iterator<Item = &Step<Row, Ask>>> {
        let (Steps::Take(steps) | Steps::Check(steps)) = &self.0 else { return None };
        let reserving = steps.iter().any(|step| step.action.is_reserving());
        (!reserving).then(|| steps.iter())
    }
}

/// What a call does, row by row. `R` is how a row is named: in full, and by its place once the plan has sorted them.
#[derive(Clone, Debug)]
pub(super) enum Steps<R> {
    /// All or nothing; each row once.
    Take(Vec<Step<R, Ask>>),
    /// What a `Take` would come to.
    Check(Vec<Step<R, Ask>>),
    /// One after another.
    Alter(Vec<Step<R, Act>>),
}

impl Steps<Row> {
    pub(super) fn rows(&self) -> impl Iterator<Item = &Row> {
        self.places()
    }

    #[cfg(feature = "postgres")]
    fn first_limit(&self) -> &Limit {
        match self {
            Self::Take(steps) | Self::Check(steps) => &steps[0].limit,
            Self::Alter(steps) => &steps[0].limit,
        }
    }
}

impl<R> Steps<R> {
    /// The same steps, their rows named otherwise.
    pub(super) fn placed<P>(self, place: impl Fn(&R) -> P) -> Steps<P> {
        match self {
            Self::Take(steps) => Steps::Take(steps.into_iter().map(|step| step.placed(&place)).collect()),
            Self::Check(steps) => Steps::Check(steps.into_iter().map(|step| step.placed(&place)).collect()),
            Self::Alter(steps) => Steps::Alter(steps.into_iter().map(|step| step.placed(&place)).collect()),
        }
    }

    /// How the row of each step is named.
    pub(super) fn places(&self) -> impl Iterator<Item = &R> {
        let (asks, acts) = match self {
            Self::Take(steps) | Self::Check(steps) => (steps.as_slice(), [].as_slice()),
            Self::Alter(steps) => ([].as_slice(), steps.as_slice()),
        };
        asks.iter().map(|step| &step.row).chain(acts.iter().map(|step| &step.row))
    }
}

impl Steps<usize> {
    #[cfg(feature = "postgres")]
    pub(super) fn terms(&self) -> Vec<(usize, &Terms)> {
        match self {
            Self::Take(steps) | Self::Check(steps) => steps.iter().map(|step| (step.row, &step.terms)).collect(),
            Self::Alter(steps) => steps.iter().map(|step| (step.row, &step.terms)).collect(),
        }
    }

    pub(super) fn inserts(&self) -> bool {
        match self {
            Self::Take(steps) => steps.iter().any(|step| step.action.cost() > Tokens::ZERO),
            Self::Check(_) => false,
            Self::Alter(steps) => {
                steps.iter().any(|step| matches!(step.action, Act::Debit(cost) if cost > Tokens::ZERO))
            }
        }
    }
}

/// What a call does with one row.
#[derive(Clone, Debug)]
pub(crate) struct Step<R, A> {
    pub(crate) row: R,
    pub(crate) limit: Limit,
    pub(crate) key: Key,
    pub(super) shard: u16,
    pub(crate) terms: Terms,
    pub(crate) action: A,
    pub(super) tracked: bool,
}

impl<A> Step<Row, A> {
    fn new(limit: Limit, key: Key, shard: u16, action: A) -> Self {
        let terms = Terms::of(&limit, &key);
        let row = Row { storage: limit.storage, name: limit.name.clone(), key: key.clone(), shard };
        Self { row, limit, key, shard, terms, action, tracked: false }
    }
}

impl<R, A> Step<R, A> {
    fn placed<P>(self, place: impl Fn(&R) -> P) -> Step<P, A> {
        let Self { row, limit, key, shard, terms, action, tracked } = self;
        Step { row: place(&row), limit, key, shard, terms, action, tracked }
    }
}

/// A change that succeeds whatever the row holds.
#[derive(Clone, Copy, Debug)]
pub(super) enum Act {
    Credit(Tokens),
    /// A credit that counts up to an instant, and not after it.
    CreditUntil(Tokens, Timestamp),
    Debit(Tokens),
    Look,
    Reset,
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
        add_up(&mut steps, &mut places, Step { tracked, ..Step::new(limit, key, 0, ask(cost)) })?;
    }
    Ok(steps)
}

/// Adds a step, or adds its cost to the step that asks the same row already.
///
/// `places` says where the steps of a long call are, for to look through them all each time would take its square.
fn add_up(
    steps: &mut Vec<Step<Row, Ask>>,
    places: &mut HashMap<Row, usize>,
    step: Step<Row, Ask>,
) -> Result<(), Error> {
    let place = if steps.len() < FEW {
        steps.iter().position(|other| other.row == step.row)
    } else {
        for (place, step) in steps.iter().enumerate().skip(places.len()) {
            places.insert(step.row.clone(), place);
        }
        places.get(&step.row).copied()
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
