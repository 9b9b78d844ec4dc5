use std::ops::Range;

use crate::algebra::{Flow, Terms, Timestamp};
use crate::answer::decision::{DeniedBy, Reason};
use crate::answer::receipt::Charge;
use crate::answer::standing::Standing;
use crate::key::Key;
use crate::limit::{Limit, Storage};
use crate::overrides::{AppliedOverride, Ruling};
use crate::tokens::Tokens;
use crate::values::text::Text;

/// A limit and key of a call, and the action of the call on them.
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

/// The rows of a limit for a key, asked together.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) limit: Limit,
    pub(crate) rows: RowRange,
    /// The terms of all these rows together.
    pub(crate) terms: Terms,
    /// The override that applies, if one does.
    pub(super) applied: Option<Box<AppliedOverride>>,
}

impl Target {
    /// All rows of a limit and key, under the named period, if there is one.
    pub(super) fn new(limit: Limit, key: Key, period: Option<(Timestamp, Timestamp)>) -> Self {
        let terms = Terms::of(&limit, &key);
        let terms = period.map_or(terms, |(start, end)| terms.named(start, end));
        Self { rows: RowRange::of(&limit, key), terms, limit, applied: None }
    }

    pub(crate) fn key(&self) -> &Key {
        &self.rows.first.key
    }

    /// The refusal by this limit.
    pub(crate) fn refusal(&self, reason: Reason, remaining: Tokens, retry_at: Timestamp) -> DeniedBy {
        let limit = self.limit.name.clone().into();
        DeniedBy { limit, key: self.key().clone(), reason, remaining, retry_at: retry_at.if_ever() }
    }

    /// The standing of this limit, which has one more token at one instant and is full at the other.
    pub(crate) fn standing(&self, cost: Tokens, remaining: Tokens, [more_at, full_at]: [Timestamp; 2]) -> Standing {
        Standing {
            limit: self.limit.clone(),
            key: self.key().clone(),
            cost,
            remaining,
            more_at: more_at.if_ever(),
            full_at: full_at.if_ever(),
            before: None,
            overridden: self.is_overridden(),
            override_label: self.override_label().to_owned(),
        }
    }
}

/// # Overrides
impl Target {
    /// The limit with the numbers that count, and the override that applies to it.
    pub(super) fn overridden(&self) -> (&Limit, Option<&AppliedOverride>) {
        (&self.limit, self.applied.as_deref())
    }

    /// Whether an override applies.
    pub(crate) fn is_overridden(&self) -> bool {
        self.applied.is_some()
    }

    /// The label of the override that applies; empty if it has no label, or if none applies.
    pub(crate) fn override_label(&self) -> &str {
        self.applied.as_ref().map_or("", |applied| &applied.label)
    }

    /// Whether all is granted and nothing charged.
    pub(crate) fn is_unlimited(&self) -> bool {
        self.ruling() == Some(Ruling::Unlimited)
    }

    /// Until when nothing is granted.
    pub(super) fn denied_until(&self, now: Timestamp) -> Option<Timestamp> {
        if let Some(Ruling::Deny { until }) = self.ruling() { Some(until).filter(|until| *until > now) } else { None }
    }

    /// Why an override denies: the labels of pauses and slow-downs belong to reports of trouble.
    pub(super) fn denial(&self) -> Reason {
        match self.override_label() {
            AppliedOverride::PAUSE => Reason::Paused,
            AppliedOverride::SLOW_DOWN if self.terms.flow == Flow::Leased => Reason::Leased,
            AppliedOverride::SLOW_DOWN => Reason::Short,
            _ => Reason::Override,
        }
    }

    pub(crate) fn ruling(&self) -> Option<Ruling> {
        self.applied.as_ref()?.ruling
    }

    /// The terms, with the period that the caller names, if it names one.
    pub(super) fn named_alike(&self, terms: Terms) -> Terms {
        match self.terms.flow {
            Flow::Named { start, .. } => {
                let start = Timestamp::from(start);
                terms.named(start, start.after(self.terms.period))
            }
            _ => terms,
        }
    }
}

/// One row: a limit's name, a key and a shard, in one of the two tables. Rows order as they are locked.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct RowId {
    // The derived order is the lock order: do not move a field.
    pub(crate) storage: Storage,
    pub(crate) part: u16,
    pub(crate) name: Text,
    pub(crate) key: Key,
    pub(crate) shard: u16,
}

impl RowId {
    /// The first row of its limit and key.
    pub(crate) fn first(&self) -> Self {
        Self { shard: 0, ..self.clone() }
    }

    /// The row that is so many shards further on.
    pub(super) fn after(&self, rows: usize) -> Self {
        let rows = u16::try_from(rows).expect("a limit has at most 64 shards");
        Self { shard: self.shard + rows, ..self.clone() }
    }

    /// Whether another row has the same name and key, in any table and shard.
    pub(super) fn is_of_same_key(&self, other: &Self) -> bool {
        (&self.name, &self.key) == (&other.name, &other.key)
    }

    /// The row as if there were one table: first rows of one name and key are equal.
    pub(super) fn in_one_table(&self) -> Self {
        Self { storage: Storage::Durable, ..self.clone() }
    }

    /// The table that holds it.
    #[must_use]
    pub fn storage(&self) -> Storage {
        self.storage
    }

    /// The limit's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.name.as_str()
    }

    /// The key.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The number of the row among the limit's rows for this key, from 0.
    #[must_use]
    pub fn shard(&self) -> u16 {
        self.shard
    }
}

/// Rows that are asked together: all rows of a limit for a key, or the one row in which a charge is settled.
#[derive(Clone, Debug)]
pub(crate) struct RowRange {
    /// The first row; in lock order the others follow it directly.
    pub(crate) first: RowId,
    pub(crate) count: usize,
    /// The place of the first one in its plan; 0 until it is planned.
    pub(super) place: usize,
}

impl RowRange {
    /// All rows of a limit for a key.
    pub(super) fn of(limit: &Limit, key: Key) -> Self {
        let first = RowId { storage: limit.storage, part: 0, name: limit.name.clone(), key, shard: 0 };
        Self { first, count: limit.shards.into(), place: 0 }
    }

    /// The row that was charged.
    pub(super) fn of_charge(charge: &Charge) -> Self {
        let Charge { storage, shard, .. } = *charge;
        let first = RowId { storage, part: 0, name: charge.limit.clone(), key: charge.key.clone(), shard };
        Self { first, count: 1, place: 0 }
    }

    pub(super) fn each(&self) -> impl Iterator<Item = RowId> {
        (0..self.count).map(|index| self.first.after(index))
    }

    /// Their places in their plan.
    pub(super) fn places(&self) -> Range<usize> {
        self.place..self.place + self.count
    }
}
