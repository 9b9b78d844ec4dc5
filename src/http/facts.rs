use std::collections::BTreeSet;

use chrono::{DateTime, Utc};

use super::policy::Policy;
use super::seconds;
use crate::decision::{Decision, Denied, Grant, Reservation, span};
use crate::limit::Limit;
use crate::standing::{Standing, Standings};

/// What a response can tell of limits: made from a decision, or from several.
///
/// # Example
///
/// ```
/// use tollgate::http::{Facts, Fields};
/// use tollgate::{Denied, Limit, MINUTE};
///
/// const PER_USER: Limit = Limit::token_bucket("per_user", 10, MINUTE);
/// const TOTAL: Limit = Limit::token_bucket("total", 1_000, MINUTE);
///
/// // A refusal from memory knows only the limits that refused; the others are announced all the same.
/// fn tell(denied: &Denied, headers: &mut http::HeaderMap) {
///     Fields::default().write(Facts::from(denied).announcing([&PER_USER, &TOTAL]), headers);
/// }
/// # let _ = tell;
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "facts tell nobody until fields are written from them"]
pub struct Facts<'d> {
    limits: Vec<&'d Limit>,
    told: Vec<Told<'d>>,
    denied: Option<&'d Denied>,
}

impl<'d> Facts<'d> {
    /// Adds what another decision says. Of several refusals the first counts.
    pub fn and(mut self, other: impl Into<Self>) -> Self {
        let other = other.into();
        self.limits.extend(other.limits);
        self.told.extend(other.told);
        self.denied = self.denied.or(other.denied);
        self
    }

    /// Announces the policies of these limits first, and whether a decision speaks of them or not.
    pub fn announcing(mut self, limits: impl IntoIterator<Item = &'d Limit>) -> Self {
        self.limits.extend(limits);
        self
    }

    #[cfg(feature = "tower")]
    pub(crate) fn standing(mut self, decided_at: DateTime<Utc>, standing: &'d Standing) -> Self {
        self.told.push(Told { standing, decided_at });
        self
    }

    fn standings(decided_at: DateTime<Utc>, standings: &'d Standings) -> Self {
        let told = standings.iter().map(|standing| Told { standing, decided_at }).collect();
        Self { told, ..Self::default() }
    }

    pub(super) fn denied(&self) -> Option<&'d Denied> {
        self.denied
    }

    /// One policy for each limit that is announced or asked, in that order.
    pub(super) fn policies(&self) -> Vec<Policy> {
        let mut seen = BTreeSet::new();
        let asked = self.told.iter().map(|told| &told.standing.limit);
        let limits = self.limits.iter().copied().chain(asked);
        limits.filter(|limit| seen.insert(limit.name())).map(Policy::from).collect()
    }

    /// The limit to wait for longest, if one refused; else the one of which the fewest more such calls are left.
    pub(super) fn nearest(&self) -> Option<&Told<'d>> {
        match self.denied {
            Some(denied) => self.told.iter().find(|told| told.is_of(denied)),
            None => self.told.iter().reduce(|one, other| if other.is_nearer_than(one) { other } else { one }),
        }
    }

    pub(super) fn told(&self) -> &[Told<'d>] {
        &self.told
    }
}

/// A standing, and as of when.
#[derive(Clone, Copy, Debug)]
pub(super) struct Told<'d> {
    pub(super) standing: &'d Standing,
    pub(super) decided_at: DateTime<Utc>,
}

impl Told<'_> {
    /// Seconds until there is more.
    pub(super) fn more_in(&self) -> Option<u64> {
        Some(seconds::up(span(self.decided_at, self.standing.more_at?)))
    }

    fn is_of(&self, denied: &Denied) -> bool {
        self.standing.limit.name() == denied.limit && self.standing.key == denied.key
    }

    fn is_nearer_than(&self, other: &Self) -> bool {
        let [(left, cost), (others, others_cost)] = [self, other].map(|Self { standing, .. }| {
            let [left, cost] = [standing.remaining, standing.cost].map(|tokens| i128::from(tokens.micros()));
            (left, cost.max(1))
        });
        left * others_cost < others * cost
    }
}

impl<'d> From<&'d Grant> for Facts<'d> {
    fn from(grant: &'d Grant) -> Self {
        Self::standings(grant.decided_at, &grant.standings)
    }
}

impl<'d> From<&'d Reservation> for Facts<'d> {
    fn from(booked: &'d Reservation) -> Self {
        Self::standings(booked.decided_at, &booked.standings)
    }
}

impl<'d> From<&'d Denied> for Facts<'d> {
    fn from(denied: &'d Denied) -> Self {
        Self { denied: Some(denied), ..Self::standings(denied.decided_at, &denied.standings) }
    }
}

impl<'d> From<&'d Decision<Grant>> for Facts<'d> {
    fn from(decision: &'d Decision<Grant>) -> Self {
        match decision {
            Decision::Granted(grant) => grant.into(),
            Decision::Denied(denied) => denied.into(),
        }
    }
}

impl<'d> From<&'d Decision<Reservation>> for Facts<'d> {
    fn from(decision: &'d Decision<Reservation>) -> Self {
        match decision {
            Decision::Granted(booked) => booked.into(),
            Decision::Denied(denied) => denied.into(),
        }
    }
}
