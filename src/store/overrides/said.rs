use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::algebra::Timestamp;
use crate::key::Key;
use crate::limit::{Limit, LimitKind, Storage, written};
use crate::plan::{Exception, Ruling};
use crate::tokens::Tokens;

/// An override of a limit, for a key or for every key: a row of `tollgate.overrides`. Made by
/// [`NewOverride::set`](super::NewOverride::set), by `tollgate override set`, or by SQL.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Override {
    /// The limit's name.
    pub limit: String,
    /// Whom it is about; `None` for every key, and for the global row.
    pub key: Option<Key>,
    /// What it says.
    pub effect: Effect,
    /// From when on it counts.
    pub starts_at: DateTime<Utc>,
    /// From when on it counts no more; `None` for never, so somebody has to remove it.
    pub ends_at: Option<DateTime<Utc>>,
    /// Why.
    pub reason: String,
    /// Who said it.
    pub set_by: String,
    /// When it was said.
    pub set_at: DateTime<Utc>,
}

/// What an override says.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Effect {
    /// Other numbers. They apply to a limit of this kind, and of an ephemeral one only without reservations; else the
    /// limit's own stay.
    Numbers {
        /// The kind of limit.
        kind: LimitKind,
        /// How many tokens come back in each period.
        rate: Tokens,
        /// The period, or the lease.
        #[serde(with = "written::span")]
        period: Duration,
        /// The most that a key holds.
        capacity: Tokens,
        /// How deep reservations may take the balance below zero.
        max_reserved: Tokens,
    },
    /// Nothing is granted. For every key it counts for those too that have an override of their own.
    Deny,
    /// All is granted, and nothing is charged.
    Unlimited,
}

impl Override {
    /// The limit by these numbers, where they are some, and apply to it.
    #[must_use]
    pub fn renumbered(&self, limit: &Limit) -> Option<Limit> {
        let Effect::Numbers { kind, rate, period, capacity, max_reserved } = self.effect else { return None };
        if kind != limit.kind || limit.storage == Storage::Ephemeral && max_reserved > Tokens::ZERO {
            return None;
        }
        let numbers = limit.spec().with(|spec| {
            (spec.rate, spec.period, spec.capacity) = (rate, period, Some(capacity));
            spec.max_reserved = max_reserved;
        });
        numbers.try_into().ok()
    }

    /// Whether it counts at an instant.
    #[must_use]
    pub fn is_live(&self, now: DateTime<Utc>) -> bool {
        self.starts_at <= now && !self.is_over(now)
    }

    /// Whether it counts no more.
    #[must_use]
    pub fn is_over(&self, now: DateTime<Utc>) -> bool {
        self.ends_at.is_some_and(|ends_at| ends_at <= now)
    }

    fn ruling(&self) -> Option<Ruling> {
        match self.effect {
            Effect::Numbers { .. } => None,
            Effect::Deny => Some(Ruling::Deny { until: self.ends_at.map_or(Timestamp::MAX, Timestamp::from) }),
            Effect::Unlimited => Some(Ruling::Unlimited),
        }
    }
}

/// The override that counts for a key at an instant, of its own and that of every key: its own comes first, but a deny
/// of every key is for all.
pub(super) fn exception(
    limit: &Limit,
    own: Option<&Override>,
    every: Option<&Override>,
    now: DateTime<Utc>,
) -> Option<Exception> {
    let counts = |said: &&Override| {
        let applies = said.ruling().is_some() || said.renumbered(limit).is_some();
        said.is_live(now) && applies
    };
    let (own, every) = (own.filter(counts), every.filter(counts));
    let said = own.or(every)?;
    let pause = every.filter(|every| every.effect == Effect::Deny);
    Some(Exception { numbers: said.renumbered(limit), ruling: pause.unwrap_or(said).ruling() })
}
