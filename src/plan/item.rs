use std::time::Duration;

use super::row::Row;
use crate::algebra::{Rest, Terms, Timestamp};
use crate::call_name::{CallName, Keeping};
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

#[cfg(feature = "postgres")]
impl<A> Item<A> {
    /// Whether it asks a limit of this name.
    pub(crate) fn is_of(&self, limit: &str) -> bool {
        self.target.limit.name() == limit
    }
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
}

impl Target {
    /// All rows of a limit and key, by the period that is named.
    pub(super) fn new(limit: Limit, key: Key, period: Option<(Timestamp, Timestamp)>) -> Self {
        let terms = Terms::of(&limit, &key);
        let terms = period.map_or(terms, |(start, end)| terms.named(start, end));
        Self { first: Row::new(&limit, key, 0), rows: limit.shards.into(), terms, limit }
    }

    pub(crate) fn key(&self) -> &Key {
        &self.first.key
    }

    pub(super) fn rows(&self) -> impl Iterator<Item = Row> {
        (0..self.rows).map(|place| self.first.after(place))
    }
}

/// A change that takes or gives whatever the balance is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Alteration {
    Credit(Tokens),
    Debit(Tokens),
    /// What was taken ahead, and time has not brought back.
    GiveBack(Rest),
    /// Changes nothing.
    Look,
    Reset,
}

/// Charges that are brought to what they come to, all or none, each in its own row.
#[derive(Clone, Debug)]
pub(crate) struct Settling {
    pub(super) charges: Vec<Charge>,
    pub(super) rows: Vec<Row>,
    pub(super) end: End,
}

/// What charges come to.
#[derive(Clone, Debug)]
pub(crate) enum End {
    /// A cost for each charge. A lease ends.
    Costs(Vec<Tokens>),
    /// Nothing, as long as they are not ready. A lease ends.
    Cancelled,
    /// What their stored call says that was used. A lease stays.
    Reported,
    /// Leases end.
    Released,
    /// Leases last from now on.
    Renewed,
}

/// The row that a call has for itself.
#[derive(Clone, Debug)]
pub(crate) struct OwnRow {
    pub(super) name: CallName,
    pub(super) role: Role,
}

/// What a call does with its row.
#[derive(Clone, Copy, Debug)]
pub(super) enum Role {
    /// Writes it, unless it is there.
    Write {
        /// The fingerprint of the call.
        asked: i64,
        keeping: Option<Keeping>,
        /// For how long its caller's id is kept, if it has one.
        once: Option<Duration>,
    },
    /// Uses it up.
    Use { lapses_at: Option<Timestamp> },
    /// Uses it up if it is due.
    Lapse,
}
