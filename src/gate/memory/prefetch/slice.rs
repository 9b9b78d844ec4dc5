use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};

use crate::algebra::{Rest, Timestamp};
use crate::answer::decision::{Grant, Source};
use crate::answer::receipt::{Charge, Receipt};
use crate::answer::standing::Standing;
use crate::call::{Plain, Request};
use crate::limit::{Limit, LimitKind};
use crate::meter;
use crate::plan::Answer;
use crate::tokens::Tokens;
use crate::values::text::Text;

/// Tokens of one key that were charged for calls to come.
///
/// It can be spent until `max_age` after the instant just before its charge was sent, by the monotonic clock of this
/// process. So its end lies before the row's own instant of the charge plus `max_age`, however long the answer took.
/// Each call reads that clock, which Linux answers without a system call. A tick that a task keeps would stand still
/// while a process is stopped, and tokens that are too old would be spent.
#[derive(Debug)]
pub(super) struct Slice {
    /// Its number among all slices of this gate.
    pub(super) id: u64,
    /// The micro-tokens that remain to be spent.
    rest: AtomicI64,
    /// The number of calls that it has served.
    pub(super) hits: AtomicU32,
    /// For how many of them it paid a request that was not the first one.
    beside: AtomicU32,
    /// Whether a call that it paid has asked for the next slice.
    is_renewed: AtomicBool,
    /// Whether a grant has reported the fall of the balance by the charge.
    told: AtomicBool,
    pub(super) sent: Instant,
    max_age: Duration,
    size: Tokens,
    charge: Charge,
    standing: Standing,
    observed_at: DateTime<Utc>,
    decided_at: DateTime<Utc>,
    stands_at: Timestamp,
    /// The instant from which on the row has forgotten the charge.
    full_at: Timestamp,
    /// The number of connections that had broken when it was charged.
    pub(super) breaks: u64,
}

/// The tokens that a slice gave to one request.
pub(super) struct Paid {
    pub(super) id: u64,
    /// Whether the next slice should be charged now.
    pub(super) renews: bool,
    /// Whether it was not the first request of its call.
    is_beside: bool,
    charge: Charge,
    pub(super) standing: Standing,
    observed_at: DateTime<Utc>,
    decided_at: DateTime<Utc>,
}

impl Paid {
    /// Whether it pays a request of the same limit and key.
    pub(super) fn is_of(&self, request: &Request) -> bool {
        (&self.standing.limit.name, &self.standing.key) == (&request.limit.name, &request.key)
    }
}

impl Slice {
    /// The slice that a charge for calls to come has brought, if it was granted.
    pub(super) fn of(answer: Answer, id: u64, sent: Instant, max_age: Duration, breaks: u64) -> Option<Self> {
        let Answer::Granted { stands_at, full_at, grant, .. } = answer else { return None };
        let Grant { amount, observed_at, decided_at, receipt, standings, .. } = grant;
        let (charge, standing) = (receipt.charges.into_iter().next()?, standings.into_iter().next()?);
        meter::taken_ahead(charge.limit(), amount);
        Some(Self {
            id,
            rest: AtomicI64::new(amount.micros()),
            hits: AtomicU32::new(0),
            beside: AtomicU32::new(0),
            is_renewed: AtomicBool::new(false),
            told: AtomicBool::new(false),
            sent,
            max_age,
            size: amount,
            charge,
            standing,
            observed_at,
            decided_at,
            stands_at,
            full_at,
            breaks,
        })
    }

    /// Pays a request, if there is enough for all of it. The next slice is due with the last request that can be paid,
    /// or with the first one after three quarters of the time.
    pub(super) fn take(&self, asked: &Plain<'_>, is_beside: bool) -> Option<Paid> {
        self.take_at(asked, is_beside, self.sent.elapsed())
    }

    /// Takes from a slice of this age.
    fn take_at(&self, asked: &Plain<'_>, is_beside: bool, age: Duration) -> Option<Paid> {
        let cost = asked.cost.micros();
        if age >= self.max_age {
            return None;
        }
        let left = |rest: i64| (rest >= cost).then(|| rest - cost);
        let rest = self.rest.fetch_update(Ordering::Relaxed, Ordering::Relaxed, left).ok()? - cost;
        self.hits.fetch_add(1, Ordering::Relaxed);
        if is_beside {
            self.beside.fetch_add(1, Ordering::Relaxed);
        }
        let is_due = rest < cost || age >= self.max_age / 4 * 3;
        let renews = is_due && !self.is_renewed.swap(true, Ordering::Relaxed);
        let is_first = !self.told.load(Ordering::Relaxed) && !self.told.swap(true, Ordering::Relaxed);
        let before = self.standing.before.filter(|_| is_first);
        let (limit, key, cost) = (asked.limit.clone(), asked.key.clone(), asked.cost);
        Some(Paid {
            id: self.id,
            renews,
            is_beside,
            charge: self.charge.spent_from(asked),
            standing: Standing {
                limit,
                key,
                cost,
                before,
                overridden: false,
                override_label: String::new(),
                ..self.standing
            },
            observed_at: self.observed_at,
            decided_at: self.decided_at,
        })
    }

    /// Takes back the tokens that it gave to a call that other slices could not pay.
    pub(super) fn put_back(&self, taken: &Paid) {
        self.rest.fetch_add(taken.charge.cost.micros(), Ordering::Relaxed);
        self.hits.fetch_sub(1, Ordering::Relaxed);
        if taken.is_beside {
            self.beside.fetch_sub(1, Ordering::Relaxed);
        }
        if taken.standing.before.is_some() {
            self.told.store(false, Ordering::Relaxed);
        }
    }

    /// The instant from which on its rest is given back.
    pub(super) fn ends(&self) -> Instant {
        self.sent + spent_within(self.max_age)
    }

    /// The tokens that can be spent of it.
    pub(super) fn left(&self) -> Tokens {
        let is_over = self.sent.elapsed() >= self.max_age;
        if is_over { Tokens::ZERO } else { Tokens::from_micros(self.rest.load(Ordering::Relaxed)) }
    }

    /// The tokens that it has given, and the number of calls.
    pub(super) fn spent(&self) -> (Tokens, u32) {
        let rest = self.rest.load(Ordering::Relaxed);
        (Tokens::from_micros(self.size.micros() - rest), self.hits.load(Ordering::Relaxed))
    }

    /// The rest to give back, once no call can spend it.
    pub(super) fn rest(&self) -> Option<Rest> {
        let (tokens, until) = (self.left(), Timestamp::from(self.decided_at).plus(self.max_age).min(self.full_at));
        (tokens > Tokens::ZERO).then_some(Rest { tokens, stood_at: self.stands_at, until })
    }
}

/// The span after which the rest of a slice is given back, while it can still be spent.
pub(super) fn spent_within(max_age: Duration) -> Duration {
    max_age / 20 * 17
}

/// Calls are counted here, however the slice ends, because no call should wait for a counter.
impl Drop for Slice {
    fn drop(&mut self) {
        let (hits, beside) = (*self.hits.get_mut(), *self.beside.get_mut());
        meter::slice_ended(self.charge.limit(), self.size, hits, hits - beside);
    }
}

impl Paid {
    /// The grant of a call, from the tokens that each of its requests got.
    pub(super) fn grant(self, others: Vec<Self>) -> Grant {
        let amount = self.charge.cost;
        let mut remaining = self.standing.remaining;
        let (mut observed_at, mut decided_at) = (self.observed_at, self.decided_at);
        let (mut charges, mut standings) = (vec![self.charge], vec![self.standing]);
        for Self { charge, standing, observed_at: observed, decided_at: decided, .. } in others {
            remaining = remaining.min(standing.remaining);
            (observed_at, decided_at) = (observed_at.min(observed), decided_at.min(decided));
            charges.push(charge);
            standings.push(standing);
        }
        Grant {
            amount,
            remaining,
            observed_at,
            decided_at,
            source: Source::Prefetched,
            receipt: Receipt::from(charges),
            standings: standings.into(),
            alternative: 0,
        }
    }
}

/// How long slices may be spent: for limits with a setting of their own, and for all others.
#[derive(Debug, Default)]
pub(crate) struct Ages {
    pub(crate) of_all: Duration,
    pub(crate) by_limit: HashMap<Text, Duration>,
}

impl Ages {
    pub(super) fn of(&self, limit: &Limit) -> Duration {
        self.by_limit.get(&limit.name).copied().unwrap_or(self.of_all)
    }

    /// The shortest setting that is not zero, if there is one.
    pub(crate) fn shortest(&self) -> Option<Duration> {
        self.by_limit.values().chain([&self.of_all]).filter(|age| !age.is_zero()).min().copied()
    }

    /// Whether slices are taken of a limit. It must have one row, which refills in smaller steps than its capacity. A
    /// slice of another limit would carry tokens over the edge of a window.
    pub(super) fn serve(&self, limit: &Limit) -> bool {
        let is_bucket = match limit.kind {
            LimitKind::TokenBucket => true,
            LimitKind::SteppedBucket => limit.most() > limit.rate,
            _ => false,
        };
        is_bucket && limit.shards == 1 && !self.of(limit).is_zero()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Plan, Verb};
    use crate::{MINUTE, SECOND};

    const LIMIT: Limit = Limit::token_bucket("limit", 1_000, MINUTE);

    #[test]
    fn it_is_spent_until_max_age_and_not_at_it() {
        let ahead = Plan::new([Verb::Ahead(LIMIT.key("k").cost(9).up_to(2))]).unwrap();
        let answer = ahead.decide(&[None], &[], Timestamp::from_micros(0)).answers.remove(0).unwrap();
        #[expect(clippy::disallowed_methods, reason = "an instant to count from")]
        let slice = Slice::of(answer, 1, Instant::now(), SECOND, 0).unwrap();
        let request = LIMIT.key("k");
        let renews = |age| slice.take_at(&request.plain().unwrap(), false, age).map(|paid| paid.renews);
        assert_eq!(
            [749, 750, 750, 999, 1_000, 9_000].map(Duration::from_millis).map(renews),
            [Some(false), Some(true), Some(false), Some(false), None, None]
        );
    }
}
