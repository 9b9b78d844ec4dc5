use super::row::Row;
use crate::algebra::{Terms, Timestamp};
use crate::hold::Held;
use crate::key::Key;
use crate::limit::Limit;
use crate::receipt::Charge;
use crate::tokens::Tokens;

/// What a call does with one limit and key.
#[derive(Clone, Debug)]
pub(crate) struct Item<A> {
    pub(crate) target: Target,
    pub(crate) action: A,
}

/// The rows of a limit for a key that are asked as one.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) limit: Limit,
    /// The first of the rows. In lock order the others lie right behind it.
    pub(crate) first: Row,
    pub(crate) rows: usize,
    /// The terms of all these rows together.
    pub(crate) terms: Terms,
    /// Whether they are the terms of a receipt, under which no row is cut.
    pub(crate) is_of_receipt: bool,
}

impl Target {
    /// All rows of a limit and key.
    pub(super) fn new(limit: Limit, key: Key) -> Self {
        let terms = Terms::of(&limit, &key);
        Self { first: Row::new(&limit, key, 0), rows: limit.shards.into(), terms, limit, is_of_receipt: false }
    }

    /// The row of a charge alone, under the definition that was charged.
    pub(super) fn of_charge(charge: &Charge) -> Self {
        let (limit, key) = (charge.limit.clone(), charge.key.clone());
        let shard = charge.shard % limit.shards;
        let terms = Terms::of(&limit, &key).shard(shard.into(), limit.shards.into());
        Self { first: Row::new(&limit, key, shard), rows: 1, terms, limit, is_of_receipt: true }
    }

    pub(super) fn key(&self) -> &Key {
        &self.first.key
    }

    pub(super) fn rows(&self) -> impl Iterator<Item = Row> {
        (0..self.rows).map(|place| self.first.after(place))
    }
}

/// A change that takes or gives whatever the balance is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Alteration {
    Credit(Tokens),
    /// A credit up to an instant; later it changes nothing.
    CreditUntil(Tokens, Timestamp),
    Debit(Tokens),
    /// Changes nothing.
    Look,
    Reset,
    /// Lets a lease last from now on.
    Renew(Held),
    /// Ends a lease.
    Release(Held),
    /// Brings a charge that has a hold, but no lease, to its actual cost, and ends the hold.
    Settle {
        held: Held,
        cost: Tokens,
        actual: Tokens,
        granted_at: Timestamp,
    },
    /// The same at no cost up to an instant; later at what it cost.
    SettleUntil {
        held: Held,
        cost: Tokens,
        until: Timestamp,
    },
}
