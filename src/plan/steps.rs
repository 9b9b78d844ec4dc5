use super::row::{Row, place_of};
use crate::algebra::{Ask, Terms, Timestamp};
use crate::error::Error;
use crate::key::Key;
use crate::limit::Limit;
use crate::receipt::Charge;
use crate::tokens::Tokens;

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
    /// The first row of each step.
    pub(super) fn rows(&self) -> impl Iterator<Item = &Row> {
        self.heads().map(|head| head.row)
    }

    /// The rows of all steps.
    pub(super) fn all_rows(&self) -> impl Iterator<Item = Row> {
        self.heads().flat_map(|head| (0..head.rows).map(|more| head.row.after(more)))
    }

    #[cfg(feature = "postgres")]
    pub(super) fn first_limit(&self) -> &Limit {
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

    /// What all steps have, whatever they do.
    pub(super) fn heads(&self) -> impl Iterator<Item = Head<'_, R>> {
        let (asks, acts) = match self {
            Self::Take(steps) | Self::Check(steps) => (steps.as_slice(), [].as_slice()),
            Self::Alter(steps) => ([].as_slice(), steps.as_slice()),
        };
        asks.iter().map(Step::head).chain(acts.iter().map(Step::head))
    }
}

impl Steps<usize> {
    /// The places of all rows.
    #[cfg(feature = "postgres")]
    pub(super) fn places(&self) -> impl Iterator<Item = usize> {
        self.heads().flat_map(|head| *head.row..*head.row + head.rows)
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

/// What a call does with one limit and key.
#[derive(Clone, Debug)]
pub(crate) struct Step<R, A> {
    /// The row that it asks. Of several, which are asked as one, the first: in lock order the others lie right behind
    /// it.
    pub(crate) row: R,
    pub(crate) rows: usize,
    pub(crate) limit: Limit,
    pub(crate) key: Key,
    /// The number of the first row.
    pub(super) shard: u16,
    /// The terms of all its rows together.
    pub(crate) terms: Terms,
    /// What the limit's other shards are known to hold, where it asks one of them.
    pub(super) beside: Tokens,
    pub(crate) action: A,
    pub(super) tracked: bool,
}

impl<A> Step<Row, A> {
    /// All rows of a limit and key.
    pub(super) fn new(limit: Limit, key: Key, action: A) -> Self {
        let (row, terms) = (Row::first(&limit, &key), Terms::of(&limit, &key));
        let (rows, shard) = (limit.shards.into(), row.shard);
        Self { row, rows, limit, key, shard, terms, beside: Tokens::ZERO, action, tracked: false }
    }

    /// The row of a charge.
    pub(super) fn of_charge(charge: &Charge, action: A) -> Result<Self, Error> {
        let (limit, key) = (charge.limit.clone(), charge.key.clone());
        let (shards, index) = place_of(charge.shard);
        if shards != limit.shards {
            // The limit has no such row: such a charge was never made.
            return Err(Error::ReceiptUsed);
        }
        let (row, terms) = (Row::nth(&limit, &key, index), Terms::of(&limit, &key));
        let terms = terms.shard(index.into(), shards.into());
        Ok(Self { row, rows: 1, limit, key, shard: charge.shard, terms, beside: Tokens::ZERO, action, tracked: false })
    }
}

impl<R, A> Step<R, A> {
    fn placed<P>(self, place: impl Fn(&R) -> P) -> Step<P, A> {
        let Self { row, rows, limit, key, shard, terms, beside, action, tracked } = self;
        Step { row: place(&row), rows, limit, key, shard, terms, beside, action, tracked }
    }

    fn head(&self) -> Head<'_, R> {
        Head { row: &self.row, rows: self.rows, limit: &self.limit, key: &self.key, terms: &self.terms }
    }
}

/// What a step has, whatever it does.
pub(super) struct Head<'s, R> {
    pub(super) row: &'s R,
    pub(super) rows: usize,
    pub(super) limit: &'s Limit,
    pub(super) key: &'s Key,
    pub(super) terms: &'s Terms,
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
