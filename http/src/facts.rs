use chrono::{DateTime, Utc};
use tollgate::{Decision, Denied, Grant, Limit, LimitKind, Reservation, Standing, Tokens};

use crate::policy::Policy;
use crate::retry_after::{span, up};

/// The limits that a response can tell about: made from one or several decisions.
#[derive(Clone, Debug, Default)]
#[must_use = "facts have no effect until `Fields` writes them"]
pub struct Facts<'d> {
    limits: Vec<&'d Limit>,
    pub(crate) standings: Vec<DatedStanding<'d>>,
    pub(crate) denied: Option<&'d Denied>,
    /// Seconds to wait where no limit refused.
    pub(crate) wait: Option<u64>,
    /// Whether the reset is when all tokens are back.
    pub(crate) full_reset: bool,
    /// Seconds that are added to every wait.
    pub(crate) late: u64,
}

impl<'d> Facts<'d> {
    /// Adds another decision. If there are several refusals, the first counts.
    pub fn and(mut self, other: impl Into<Self>) -> Self {
        let other = other.into();
        self.limits.extend(other.limits);
        self.standings.extend(other.standings);
        self.denied = self.denied.or(other.denied);
        self
    }

    /// Lists the policies of these limits first, even if no decision mentions them. A refusal from memory mentions only
    /// the limits that refused. For a limit that a decision mentions, the numbers that counted there are listed.
    pub fn announcing(mut self, limits: impl IntoIterator<Item = &'d Limit>) -> Self {
        self.limits.extend(limits.into_iter().filter(|limit| is_told(limit)));
        self
    }

    fn standings_at(observed_at: DateTime<Utc>, standings: &'d [Standing]) -> Self {
        let told = standings.iter().filter(|standing| is_told(&standing.limit));
        let dated = told.map(|standing| DatedStanding { standing, observed_at });
        Self { standings: dated.collect(), ..Self::default() }
    }

    /// The policies of the limits that the layer announced, and then of those that the call asked. Two keys of one
    /// limit may have two.
    pub(crate) fn policies(&self) -> Vec<Policy> {
        let asked = || self.standings.iter().map(|dated| &dated.standing.limit);
        let is_asked = |announced: &Limit| asked().any(|limit| limit.name() == announced.name());
        let mut policies = Vec::new();
        for &announced in &self.limits {
            if is_asked(announced) {
                add(&mut policies, asked().filter(|limit| limit.name() == announced.name()));
            } else {
                add(&mut policies, [announced]);
            }
        }
        add(&mut policies, asked());
        policies
    }

    /// The limit with the longest wait, if one refused; else the limit that grants the fewest more such calls.
    pub(crate) fn nearest(&self) -> Option<&DatedStanding<'d>> {
        match self.denied {
            Some(denied) => self.standings.iter().find(|DatedStanding { standing, .. }| {
                standing.limit.name() == denied.limit && standing.key == denied.key
            }),
            None => self.standings.iter().reduce(|one, other| if other.is_nearer_than(one) { other } else { one }),
        }
    }
}

/// A standing, and the clock of its decision.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DatedStanding<'d> {
    pub(crate) standing: &'d Standing,
    pub(crate) observed_at: DateTime<Utc>,
}

impl DatedStanding<'_> {
    /// Seconds until there is one more token, rounded up.
    pub(crate) fn more_in(&self) -> Option<u64> {
        Some(up(span(self.observed_at, self.standing.more_at?)))
    }

    /// The whole tokens that are left, at least 0.
    pub(crate) fn whole(&self) -> u64 {
        u64::try_from(self.left() / 1_000_000).unwrap_or_default()
    }

    /// The micro-tokens that calls can be granted now. A wallet grants its overdraft, too.
    fn left(&self) -> i128 {
        let Standing { limit, remaining, .. } = self.standing;
        let overdraft = if limit.kind == LimitKind::Wallet { limit.max_reserved } else { Tokens::ZERO };
        i128::from(remaining.micros()) + i128::from(overdraft.micros())
    }

    fn is_nearer_than(&self, other: &Self) -> bool {
        let [(left, cost), (others, others_cost)] =
            [self, other].map(|dated| (dated.left(), i128::from(dated.standing.cost.micros()).max(1)));
        left * others_cost < others * cost
    }
}

impl<'d> From<&'d Denied> for Facts<'d> {
    fn from(denied: &'d Denied) -> Self {
        Self { denied: Some(denied), ..Self::standings_at(denied.observed_at, &denied.standings) }
    }
}

macro_rules! decisions {
    ($($granted:ty),*) => {$(
        impl<'d> From<&'d $granted> for Facts<'d> {
            fn from(granted: &'d $granted) -> Self {
                Self::standings_at(granted.observed_at, &granted.standings)
            }
        }

        impl<'d> From<&'d Decision<$granted>> for Facts<'d> {
            fn from(decision: &'d Decision<$granted>) -> Self {
                match decision {
                    Decision::Granted(granted) => granted.into(),
                    Decision::Denied(denied) => denied.into(),
                }
            }
        }
    )*};
}
decisions!(Grant, Reservation);

/// Whether clients hear of a limit. A meter refuses nobody, and as it never has tokens left, they would stop for ever.
fn is_told(limit: &Limit) -> bool {
    limit.kind != LimitKind::Meter
}

fn add<'l>(policies: &mut Vec<Policy>, limits: impl IntoIterator<Item = &'l Limit>) {
    for policy in limits.into_iter().map(Policy::from) {
        if !policies.contains(&policy) {
            policies.push(policy);
        }
    }
}
