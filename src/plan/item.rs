use std::time::Duration;

use super::exception::{Exception, Ruling};
use super::row::Row;
use crate::algebra::{Flow, Rest, Terms, Timestamp};
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
    /// The override that applies, if one does.
    pub(super) exception: Option<Box<Exception>>,
}

impl Target {
    /// All rows of a limit and key, by the period that is named.
    pub(super) fn new(limit: Limit, key: Key, period: Option<(Timestamp, Timestamp)>) -> Self {
        let terms = Terms::of(&limit, &key);
        let terms = period.map_or(terms, |(start, end)| terms.named(start, end));
        Self { first: Row::new(&limit, key, 0), rows: limit.shards.into(), terms, limit, exception: None }
    }

    pub(crate) fn key(&self) -> &Key {
        &self.first.key
    }

    pub(super) fn rows(&self) -> impl Iterator<Item = Row> {
        (0..self.rows).map(|place| self.first.after(place))
    }
}

impl Target {
    /// Puts the limit under an exception, which holds the definition's own numbers from now on.
    pub(super) fn except(&mut self, mut exception: Exception) {
        if let Some(numbers) = exception.numbers.take() {
            self.terms = self.named_alike(Terms::of(&numbers, self.key()));
            exception.numbers = Some(std::mem::replace(&mut self.limit, numbers));
        }
        self.exception = Some(Box::new(exception));
    }

    /// The limit by the numbers that count, and what else an override says of it.
    pub(super) fn overridden(&self) -> (&Limit, Option<&Exception>) {
        (&self.limit, self.exception.as_deref())
    }

    /// Whether an override applies.
    pub(crate) fn is_overridden(&self) -> bool {
        self.exception.is_some()
    }

    /// The label of the override that applies; empty where it has none, or none applies.
    pub(crate) fn override_label(&self) -> &str {
        self.exception.as_ref().map_or("", |exception| &exception.label)
    }

    /// Whether all is granted and nothing charged.
    pub(crate) fn is_free(&self) -> bool {
        self.ruling() == Some(Ruling::Unlimited)
    }

    /// Grants all of it, unless it is denied.
    pub(super) fn free(&mut self) {
        let exception = self.exception.get_or_insert_default();
        exception.ruling = exception.ruling.or(Some(Ruling::Unlimited));
    }

    /// Until when nothing is granted.
    pub(super) fn denied_until(&self, now: Timestamp) -> Option<Timestamp> {
        if let Some(Ruling::Deny { until }) = self.ruling() { Some(until).filter(|until| *until > now) } else { None }
    }

    pub(crate) fn ruling(&self) -> Option<Ruling> {
        self.exception.as_ref()?.ruling
    }

    /// The terms, by the period that the caller names, if it names one.
    fn named_alike(&self, terms: Terms) -> Terms {
        match self.terms.flow {
            Flow::Named { start, .. } => {
                let start = Timestamp::from(start);
                terms.named(start, start.after(self.terms.period))
            }
            _ => terms,
        }
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
