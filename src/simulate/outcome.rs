use std::collections::HashMap;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

use super::micros;
use super::rule::Rule;
use super::series::Series;
use crate::algebra::Timestamp;
use crate::decision::Denied;
use crate::error::Error;
use crate::key::Key;
use crate::plan::Answer;
use crate::spec::LimitSpec;
use crate::tokens::Tokens;

/// What came of a simulation. Serializes to one document.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Outcome {
    /// What was asked, and what each of them did.
    pub rules: Vec<RuleOutcome>,
    /// Calls that were made, each counted once, however often its client came back.
    pub calls: u64,
    /// Calls that were granted, at once or at last.
    pub granted: u64,
    /// Calls that were never granted: refused, and not tried again.
    pub refused: u64,
    /// Calls that no wait could have let through, for their cost is beyond a capacity. The limiter reports them as errors.
    pub impossible: u64,
    /// How often the limits were asked, clients that came back included.
    pub tries: u64,
    /// The tokens that were taken.
    pub spent: Tokens,
    /// How long after the first call the first refusal was.
    #[serde(rename = "first_refusal_after_us", serialize_with = "micros::option::serialize")]
    pub first_refusal_after: Option<Duration>,
    /// The longest that a refusal told somebody to wait.
    #[serde(rename = "worst_retry_after_us", serialize_with = "micros::option::serialize")]
    pub worst_retry_after: Option<Duration>,
    /// How long those waited who were granted: from their first try until they might spend.
    pub waits: Waits,
    /// Who made the calls: those of the most calls, at most [`MAX_CALLERS`](Self::MAX_CALLERS) of them, the busiest first.
    pub callers: Vec<Caller>,
    /// What happened over time; `None` where nobody called.
    pub series: Option<Series>,
}

impl Outcome {
    /// The most callers that are named.
    pub const MAX_CALLERS: usize = 10;

    /// The share of the calls that were refused, from 0 to 1; 0 where nobody called.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a share is for people")]
    pub fn share_refused(&self) -> f64 {
        self.refused as f64 / self.calls.max(1) as f64
    }
}

/// What one limit did.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct RuleOutcome {
    /// The definition in words.
    pub definition: String,
    /// The definition.
    pub limit: LimitSpec,
    /// Whether all callers share one row.
    pub global: bool,
    /// How many tries it refused, alone or with others.
    pub refusals: u64,
}

/// What became of the calls of one key.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Caller {
    /// Who called.
    pub key: Key,
    /// How many calls it made.
    pub calls: u64,
    /// How many of them were granted, at once or at last.
    pub granted: u64,
}

/// How long granted calls waited. Percentiles are of all granted calls, rounded up to three digits; the worst is exact.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Waits {
    /// How many did not have it at once.
    pub waited: u64,
    /// Half of the granted calls waited no longer than this.
    #[serde(rename = "p50_us", serialize_with = "micros::serialize")]
    pub p50: Duration,
    /// Nine of ten waited no longer than this.
    #[serde(rename = "p90_us", serialize_with = "micros::serialize")]
    pub p90: Duration,
    /// Ninety-nine of a hundred waited no longer than this.
    #[serde(rename = "p99_us", serialize_with = "micros::serialize")]
    pub p99: Duration,
    /// Nobody waited longer than this.
    #[serde(rename = "worst_us", serialize_with = "micros::serialize")]
    pub worst: Duration,
}

/// What is counted while a simulation runs.
#[derive(Debug)]
pub(super) struct Tally {
    calls: u64,
    granted: u64,
    refused: u64,
    impossible: u64,
    tries: u64,
    spent: Tokens,
    /// Calls and grants by key.
    callers: HashMap<Key, [u64; 2]>,
    /// How many tries each rule refused.
    refusals: Vec<u64>,
    first_call: Option<Timestamp>,
    first_refusal: Option<Timestamp>,
    worst_retry_after: Option<Duration>,
    waited: u64,
    worst: Duration,
    /// Microseconds.
    waits: Histogram<u64>,
}

impl Tally {
    pub(super) fn new(rules: usize) -> Self {
        let mut waits = Histogram::new(3).unwrap_or_else(|_| unreachable!("a histogram may have three digits"));
        waits.auto(true);
        Self {
            calls: 0,
            granted: 0,
            refused: 0,
            impossible: 0,
            tries: 0,
            spent: Tokens::ZERO,
            callers: HashMap::new(),
            refusals: vec![0; rules],
            first_call: None,
            first_refusal: None,
            worst_retry_after: None,
            waited: 0,
            worst: Duration::ZERO,
            waits,
        }
    }

    /// Somebody called, for the first time. A call that is wrong in another way than by its cost ends the run.
    pub(super) fn call(&mut self, key: &Key, at: Timestamp, answer: &Result<Answer, Error>) {
        self.calls += 1;
        self.caller(key)[0] += 1;
        self.impossible += u64::from(matches!(answer, Err(Error::CostExceedsCapacity { .. })));
        self.first_call.get_or_insert(at);
    }

    pub(super) fn granted(&mut self, key: &Key, cost: Tokens, wait: Duration) {
        self.tries += 1;
        self.granted += 1;
        self.caller(key)[1] += 1;
        self.spent = self.spent.checked_add(cost).unwrap_or(Tokens::MAX);
        self.waited += u64::from(!wait.is_zero());
        self.worst = self.worst.max(wait);
        // It grows with what it is given, so the fallback is never taken.
        self.waits.record(micros::of(wait)).unwrap_or_default();
    }

    /// Whoever is refused may come back, so this is no call that is lost yet.
    pub(super) fn refused(&mut self, rules: &[Rule], key: &Key, at: Timestamp, denied: &Denied) {
        self.tries += 1;
        self.first_refusal.get_or_insert(at);
        self.worst_retry_after = self.worst_retry_after.max(Some(denied.retry_after()));
        for (rule, refusals) in rules.iter().zip(&mut self.refusals) {
            let is_its = |limit: &str, whose: &Key| limit == rule.limit().name() && *whose == rule.key(key);
            let others = || denied.others.iter().any(|other| is_its(&other.limit, &other.key));
            *refusals += u64::from(is_its(&denied.limit, &denied.key) || others());
        }
    }

    pub(super) fn gave_up(&mut self) {
        self.refused += 1;
    }

    pub(super) fn finish(self, rules: &[Rule], series: Option<Series>) -> Outcome {
        let after = |(first, refusal)| since(first, refusal);
        Outcome {
            first_refusal_after: self.first_call.zip(self.first_refusal).map(after),
            waits: self.waits(),
            rules: rules.iter().zip(&self.refusals).map(|(rule, refusals)| RuleOutcome::of(rule, *refusals)).collect(),
            calls: self.calls,
            granted: self.granted,
            refused: self.refused,
            impossible: self.impossible,
            tries: self.tries,
            spent: self.spent,
            worst_retry_after: self.worst_retry_after,
            callers: busiest(self.callers),
            series,
        }
    }

    fn caller(&mut self, key: &Key) -> &mut [u64; 2] {
        self.callers.entry(key.clone()).or_default()
    }

    fn waits(&self) -> Waits {
        // Rounded up, but not beyond the worst one.
        let within = |share| Duration::from_micros(self.waits.value_at_quantile(share)).min(self.worst);
        Waits { waited: self.waited, p50: within(0.5), p90: within(0.9), p99: within(0.99), worst: self.worst }
    }
}

impl RuleOutcome {
    fn of(rule: &Rule, refusals: u64) -> Self {
        let (definition, limit, global) = (rule.to_string(), rule.limit().spec(), rule.is_global());
        Self { definition, limit, global, refusals }
    }
}

fn busiest(callers: HashMap<Key, [u64; 2]>) -> Vec<Caller> {
    let mut callers: Vec<_> =
        callers.into_iter().map(|(key, [calls, granted])| Caller { key, calls, granted }).collect();
    callers.sort_unstable_by(|one, other| other.calls.cmp(&one.calls).then_with(|| one.key.cmp(&other.key)));
    callers.truncate(Outcome::MAX_CALLERS);
    callers
}

/// The time from one instant to another; none where they are in the other order.
pub(super) fn since(from: Timestamp, to: Timestamp) -> Duration {
    Duration::from_micros(u64::try_from(to.micros() - from.micros()).unwrap_or_default())
}
