use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::ruling::{AppliedOverride, Ruling};
use super::slowed_rate::SlowedRate;
use crate::algebra::{Pause, Timestamp};
use crate::key::Key;
use crate::limit::{Limit, LimitKind, Storage, written};
use crate::tokens::Tokens;

/// An override of a limit, for a key or for every key: a row of `tollgate.overrides`. It is set by
/// [`NewOverride::set`](super::NewOverride::set), by `tollgate override set`, or by SQL.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Override {
    /// The limit's name.
    pub limit: String,
    /// The key that it is for; `None` for every key, including the global row.
    pub key: Option<Key>,
    /// Distinguishes several overrides of one key; often empty.
    #[serde(default)]
    pub label: String,
    /// Its effect.
    pub effect: Effect,
    /// When it starts to count; of a slow-down, when its rate starts to grow. Where no start was named, that is
    /// [`set_at`](Self::set_at).
    pub starts_at: DateTime<Utc>,
    /// When it ends; `None` if it counts until it is removed.
    pub ends_at: Option<DateTime<Utc>>,
    /// The reason for it.
    pub reason: String,
    /// The person, program or role that set it.
    pub set_by: String,
    /// When it was set.
    pub set_at: DateTime<Utc>,
}

/// The effect of an override.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Effect {
    /// Other numbers. They apply to a limit of this kind; to an ephemeral one, only if they allow no reservations.
    /// Otherwise the limit keeps its own numbers.
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
    /// A smaller rate, whose capacity stays; of a sliding window and a concurrency limit a smaller `n`. From the
    /// override's start on it grows back evenly, in steps of a second, until it is whole when the override ends. The
    /// start lies ahead while the limit is paused. It applies to token buckets, stepped buckets, fixed windows, sliding
    /// windows and concurrency limits.
    Slowed {
        /// The share of the rate until the start, in millionths. The whole, while few calls fail and that is tolerated.
        share: u32,
    },
    /// Nothing is granted.
    Deny,
    /// All is granted, and nothing is charged.
    Unlimited,
    /// An effect that this release cannot read. It denies, because it may be a deny.
    Unreadable,
}

impl Override {
    /// The limit with the override's numbers, if it has numbers that apply to the limit.
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

    /// The share of the rate that a [slow-down](Effect::Slowed) leaves at an instant, in millionths.
    #[must_use]
    pub fn share(&self, now: DateTime<Utc>) -> Option<u32> {
        self.slowed()?.share_at(now.into())
    }

    /// The rate that a slow-down leaves.
    pub(super) fn slowed(&self) -> Option<SlowedRate> {
        let (Effect::Slowed { share }, Some(ends_at)) = (self.effect, self.ends_at) else { return None };
        let [reported_at, starts_at, ends_at] = [self.set_at, self.starts_at, ends_at].map(Timestamp::from);
        let slowed = SlowedRate { share, reported_at, starts_at, ends_at, forgotten_at: None };
        Some(slowed).filter(|slowed| slowed.share < SlowedRate::WHOLE)
    }

    /// Whether it counts at an instant. An override that had begun when it was set has begun, even if the clock steps
    /// back. A slow-down counts since it was set.
    #[must_use]
    pub fn is_live(&self, now: DateTime<Utc>) -> bool {
        let has_begun = self.starts_at <= now.max(self.set_at) || matches!(self.effect, Effect::Slowed { .. });
        has_begun && !self.is_over(now)
    }

    /// Whether it has ended.
    #[must_use]
    pub fn is_over(&self, now: DateTime<Utc>) -> bool {
        self.ends_at.is_some_and(|ends_at| ends_at <= now)
    }

    /// Whether it denies because trouble was [reported](super::Overrides::pause_until).
    #[must_use]
    pub fn is_pause(&self) -> bool {
        self.effect == Effect::Deny && self.label == AppliedOverride::PAUSE
    }

    /// The span of a pause.
    pub(super) fn pause(&self) -> Option<Pause> {
        let until = self.ends_at.filter(|_| self.is_pause())?;
        Some(Pause { from: self.starts_at.into(), until: until.into() })
    }

    pub(super) fn ruling(&self) -> Option<Ruling> {
        match self.effect {
            Effect::Numbers { .. } | Effect::Slowed { .. } => None,
            Effect::Deny | Effect::Unreadable => {
                Some(Ruling::Deny { until: self.ends_at.map_or(Timestamp::MAX, Timestamp::from) })
            }
            Effect::Unlimited => Some(Ruling::Unlimited),
        }
    }
}
