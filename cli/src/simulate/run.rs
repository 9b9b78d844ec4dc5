use std::collections::VecDeque;
use std::time::Duration;

use serde::Serialize;
use tollgate::algebra::Timestamp;
use tollgate::plan::{Answer, Call, Plan};
use tollgate::{Charge, Error, Key, Limit, Receipt, Request};

use super::rows::RowMap;
use super::tally::{Figures, Series, Tally};
use super::traffic::Arrival;
use crate::limits_file::describe;
use crate::row::until;

/// What is tried on the calls.
pub(super) struct Trial {
    /// Each call asks all of these limits, and takes from all or none.
    pub(super) rules: Vec<Rule>,
    /// Whether a call that can be granted later is granted for later.
    pub(super) reserve: bool,
    /// How long a call holds what it was granted; to the end of the lease, if not given.
    pub(super) work: Option<Duration>,
}

/// A limit, and whom a call asks it for.
pub(super) struct Rule {
    pub(super) limit: Limit,
    /// Whether all callers share one row.
    pub(super) is_global: bool,
}

/// What came of a trial.
#[derive(Debug, Serialize)]
pub(super) struct TrialReport {
    pub(super) label: String,
    /// The limits in words.
    pub(super) limits: Vec<String>,
    #[serde(flatten)]
    pub(super) figures: Figures,
    pub(super) series: Series,
}

/// A trial under way.
pub(super) struct Run<'t> {
    trial: &'t Trial,
    rows: RowMap,
    /// What calls hold, and when their work is done, the first first.
    held: VecDeque<(Timestamp, Receipt)>,
    tally: Tally,
    series: Series,
}

impl<'t> Run<'t> {
    /// Draws the balances of the first caller.
    pub(super) fn new(trial: &'t Trial, first: &Arrival) -> Result<Self, Error> {
        let looks = trial.rules.iter().map(|rule| Plan::new([Call::look(rule.request(&first.key))]));
        let series = Series::new(first.at, looks.collect::<Result<_, _>>()?);
        Ok(Self { trial, rows: RowMap::default(), held: VecDeque::new(), tally: Tally::default(), series })
    }

    pub(super) fn call(&mut self, call: &Arrival) -> Result<(), Error> {
        while let Some((done_at, receipt)) = self.held.pop_front_if(|(done_at, _)| *done_at <= call.at) {
            self.series.observe(&mut self.rows, done_at)?;
            self.rows.decide(&Plan::new([Call::release(&receipt)])?, done_at)?;
        }
        self.tally.called(&call.key);
        let plan = match Plan::new([self.trial.call(call)]) {
            Err(Error::CostExceedsCapacity { .. }) => {
                self.tally.figures.impossible += 1;
                return Ok(());
            }
            plan => plan?,
        };
        self.series.observe(&mut self.rows, call.at)?;
        let answer = self.rows.decide(&plan, call.at)?;
        self.series.count(matches!(answer, Answer::Granted { .. }));
        self.series.observe(&mut self.rows, call.at)?;
        match answer {
            Answer::Granted { ready_at, receipt, .. } => {
                self.tally.granted(&call.key, until(ready_at, call.at));
                self.hold(receipt, call.at);
            }
            Answer::Denied(denied) => self.tally.denied(denied.retry_after()),
            Answer::Done(_) | Answer::Settled(_) => unreachable!("a call that takes is granted or denied"),
        }
        Ok(())
    }

    /// Remembers to release what a call holds, unless that has lapsed by then.
    fn hold(&mut self, receipt: Receipt, at: Timestamp) {
        let ends_at = receipt.charges.iter().filter_map(Charge::lease_ends_at).min();
        if let (Some(work), Some(ends_at)) = (self.trial.work, ends_at)
            && at.plus(work) < ends_at.into()
        {
            self.held.push_back((at.plus(work), receipt));
        }
    }

    /// Sums up. The traffic may have a known end after the last call.
    pub(super) fn finish(mut self, end: Option<Timestamp>) -> Result<TrialReport, Error> {
        if let Some(end) = end {
            // The end itself begins no bin.
            self.series.observe(&mut self.rows, Timestamp::from_micros(end.micros() - 1))?;
        }
        let Trial { rules, .. } = self.trial;
        let label = rules.iter().map(|rule| rule.limit.name()).collect::<Vec<_>>().join(" and ");
        let limits = rules.iter().map(Rule::definition).collect();
        Ok(TrialReport { label, limits, figures: self.tally.finish(), series: self.series })
    }
}

impl Trial {
    fn call(&self, call: &Arrival) -> Call {
        let requests = self.rules.iter().map(|rule| rule.request(&call.key).cost(call.cost));
        if self.reserve { Call::reserve(requests) } else { Call::consume(requests) }
    }
}

impl Rule {
    fn request(&self, key: &Key) -> Request {
        if self.is_global || key.is_global() { self.limit.global() } else { self.limit.key(key.clone()) }
    }

    fn definition(&self) -> String {
        describe(&self.limit) + if self.is_global { ", for all callers together" } else { "" }
    }
}
