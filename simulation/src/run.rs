use std::cell::Cell;
use std::collections::VecDeque;

use tollgate::algebra::Timestamp;
use tollgate::plan::{Answer, Plan, Under, Verb};
use tollgate::{Error, Grant, Key, LimitKind, Tokens};

use crate::arrival::Arrival;
use crate::rows::RowMap;
use crate::trial::{Ended, Rule, Trial};

/// A trial under way.
#[derive(Debug)]
pub struct Simulation {
    trial: Trial,
    rows: RowMap,
    /// Plans by key and cost, where a call may be made again.
    plans: Vec<(Key, Option<Tokens>, Plan)>,
    /// The ends of the calls that were granted, the first one first.
    ends: VecDeque<End>,
    /// How many calls were made. Their numbers name what they hold.
    made: u128,
    /// The rows of the service.
    service: RowMap,
    failed: usize,
}

/// The end of a call that was granted, and the call that ends it: a lease that runs out needs none.
#[derive(Debug)]
struct End {
    ended: Ended,
    granted_at: Timestamp,
    call: Option<Verb>,
}

impl Simulation {
    /// A simulation in which nobody has called.
    #[must_use]
    pub fn new(trial: Trial) -> Self {
        let [rows, service] = [RowMap::default(), RowMap::default()];
        Self { trial, rows, plans: Vec::new(), ends: VecDeque::new(), made: 0, service, failed: 0 }
    }

    /// The rows as the last call left them.
    #[must_use]
    pub fn rows(&self) -> &RowMap {
        &self.rows
    }

    /// How many calls were granted and failed at the service.
    #[must_use]
    pub fn failed(&self) -> usize {
        self.failed
    }

    /// Ends all calls that end by the instant of this one, and makes this call, which is not before the last one.
    /// `show` gets the rows before each end and after it, before the call itself, and after the call if it is granted.
    /// After an end it also gets the instant at which the ended call was granted.
    ///
    /// Returns `None` for a call that costs more than a capacity, so that no wait lets it through. The limiter reports
    /// it as an error.
    ///
    /// # Errors
    ///
    /// Any other error that the limiter would report.
    pub fn call(
        &mut self,
        call: &Arrival,
        mut show: impl FnMut(&RowMap, Timestamp, Option<Timestamp>),
    ) -> Result<Option<Answer>, Error> {
        self.pass(call.at, &mut show)?;
        self.fund(call)?;
        self.made += 1;
        let place = match self.plan(call) {
            Err(Error::CostExceedsCapacity { .. }) => return Ok(None),
            place => place?,
        };
        show(&self.rows, call.at, None);
        let answer = self.rows.decide(&self.plans[place].2, call.at)?;
        // A refusal leaves the rows as they were shown.
        if let Answer::Granted { grant: Grant { receipt, .. }, ready_at, .. } = &answer {
            show(&self.rows, call.at, None);
            for end in self.trial.endings(self.made, receipt, *ready_at).into_iter().flatten() {
                self.remember(call.at, end);
            }
            self.go_on(call)?;
        }
        Ok(Some(answer))
    }

    /// The place of a call's plan.
    fn plan(&mut self, call: &Arrival) -> Result<usize, Error> {
        let is_of = |(key, cost, _): &(Key, Option<Tokens>, Plan)| (key, *cost) == (&call.key, Some(call.cost));
        let changes =
            |rule: &Rule| rule.limit.kind == LimitKind::Billing || self.rows.applied(&rule.limit, call.at).is_some();
        let changes = self.trial.rules.iter().any(changes);
        if let Some(place) = self.plans.iter().position(is_of).filter(|_| !changes) {
            return Ok(place);
        }
        if self.plans.len() == FEW {
            self.plans.clear();
        }
        let asked = self.trial.call(call);
        let has_id = Cell::new(false);
        let draw = || {
            has_id.set(true);
            self.made
        };
        let plan = self.plan_of(asked, call.at, &draw)?;
        // A plan whose call has an id is for one call, a rate that is cut changes each second, and a month ends.
        let cost = Some(call.cost).filter(|_| !has_id.get() && !changes);
        self.plans.push((call.key.clone(), cost, plan));
        Ok(self.plans.len() - 1)
    }

    /// The plan of a call under the cuts of its limits.
    fn plan_of(&self, verb: Verb, at: Timestamp, draw: &dyn Fn() -> u128) -> Result<Plan, Error> {
        Plan::under(
            [verb],
            &Under { overrides: Some(&|limit, _| self.rows.applied(limit, at)), draw, ..Under::NOTHING },
        )
    }

    /// Sends a call that was granted to the service. If it fails there, that is a report of trouble to all limits that
    /// follow.
    fn go_on(&mut self, Arrival { at, cost, .. }: &Arrival) -> Result<(), Error> {
        let Trial { service: Some(service), rules, .. } = &self.trial else { return Ok(()) };
        let plan = Plan::new([Verb::consume(service.takes(*at).global().cost(*cost))]);
        match plan.and_then(|plan| self.service.decide(&plan, *at)) {
            Ok(Answer::Granted { .. }) => return Ok(()),
            Ok(_) | Err(Error::CostExceedsCapacity { .. }) => {}
            Err(error) => return Err(error),
        }
        self.failed += 1;
        for Rule { limit, follows, .. } in rules {
            if let Some(how) = follows {
                self.rows.slow_down(limit, *cost, how, *at);
            }
        }
        Ok(())
    }

    /// Goes on to an instant: ends all calls that end by then, and shows the rows as [`call`](Self::call) does.
    ///
    /// # Errors
    ///
    /// As for [`call`](Self::call).
    pub fn pass(
        &mut self,
        by: Timestamp,
        mut show: impl FnMut(&RowMap, Timestamp, Option<Timestamp>),
    ) -> Result<(), Error> {
        while self.end_next(by, &mut show)?.is_some() {}
        Ok(())
    }

    /// Ends the first call that ends by an instant, if there is one, and shows the rows as [`call`](Self::call) does.
    ///
    /// # Errors
    ///
    /// As for [`call`](Self::call).
    pub fn end_next(
        &mut self,
        by: Timestamp,
        mut show: impl FnMut(&RowMap, Timestamp, Option<Timestamp>),
    ) -> Result<Option<Ended>, Error> {
        let Some(End { ended, granted_at, call }) = self.ends.pop_front_if(|end| end.ended.at <= by) else {
            return Ok(None);
        };
        show(&self.rows, ended.at, None);
        if let Some(call) = call {
            let plan = self.plan_of(call, ended.at, Under::NOTHING.draw)?;
            self.rows.decide(&plan, ended.at)?;
        }
        show(&self.rows, ended.at, Some(granted_at));
        Ok(Some(ended))
    }

    /// Fills the wallets that nobody has asked before.
    fn fund(&mut self, Arrival { at, key, .. }: &Arrival) -> Result<(), Error> {
        let Trial { rules, funds, .. } = &self.trial;
        for rule in rules.iter().filter(|rule| *funds != Tokens::ZERO && rule.limit.kind == LimitKind::Wallet) {
            if !self.rows.has(&rule.look(key)?) {
                self.rows.decide(&Plan::new([Verb::credit(rule.request(key).cost(*funds))])?, *at)?;
            }
        }
        Ok(())
    }

    /// Remembers how a call ends, behind those that end before it or with it.
    fn remember(&mut self, granted_at: Timestamp, (ended, call): (Ended, Option<Verb>)) {
        let place = self.ends.partition_point(|end| end.ended.at <= ended.at);
        self.ends.insert(place, End { ended, granted_at, call });
    }
}

/// Finding one of so many plans is faster than making one.
const FEW: usize = 16;

#[cfg(test)]
mod tests;
