use std::collections::VecDeque;

use tollgate::algebra::Timestamp;
use tollgate::plan::{Answer, Call, Plan};
use tollgate::{Error, Key, LimitKind, Tokens};

use crate::arrival::Arrival;
use crate::rows::RowMap;
use crate::trial::{Ended, Trial};

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
}

/// The end of a call that was granted, and its plan: a lease that runs out needs none.
#[derive(Debug)]
struct End {
    ended: Ended,
    granted_at: Timestamp,
    plan: Option<Plan>,
}

impl Simulation {
    /// A simulation in which nobody has called.
    #[must_use]
    pub fn new(trial: Trial) -> Self {
        Self { trial, rows: RowMap::default(), plans: Vec::new(), ends: VecDeque::new(), made: 0 }
    }

    /// The rows as the last call left them.
    #[must_use]
    pub fn rows(&self) -> &RowMap {
        &self.rows
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
        if let Answer::Granted { receipt, ready_at, .. } = &answer {
            show(&self.rows, call.at, None);
            for end in self.trial.endings(self.made, receipt, *ready_at).into_iter().flatten() {
                self.remember(call.at, end)?;
            }
        }
        Ok(Some(answer))
    }

    /// The place of a call's plan.
    fn plan(&mut self, call: &Arrival) -> Result<usize, Error> {
        let is_of = |(key, cost, _): &(Key, Option<Tokens>, Plan)| (key, *cost) == (&call.key, Some(call.cost));
        if let Some(place) = self.plans.iter().position(is_of) {
            return Ok(place);
        }
        if self.plans.len() == FEW {
            self.plans.clear();
        }
        let asked = self.trial.call(call);
        // A plan whose call needs an id is for one call.
        let cost = Some(call.cost).filter(|_| !asked.needs_id());
        self.plans.push((call.key.clone(), cost, Plan::new([asked.with_id(self.made)])?));
        Ok(self.plans.len() - 1)
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
        let Some(End { ended, granted_at, plan }) = self.ends.pop_front_if(|end| end.ended.at <= by) else {
            return Ok(None);
        };
        show(&self.rows, ended.at, None);
        if let Some(plan) = plan {
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
                self.rows.decide(&Plan::new([Call::credit(rule.request(key).cost(*funds))])?, *at)?;
            }
        }
        Ok(())
    }

    /// Remembers how a call ends, behind those that end before it or with it.
    fn remember(&mut self, granted_at: Timestamp, (ended, call): (Ended, Option<Call>)) -> Result<(), Error> {
        let place = self.ends.partition_point(|end| end.ended.at <= ended.at);
        let plan = call.map(|call| Plan::new([call])).transpose()?;
        self.ends.insert(place, End { ended, granted_at, plan });
        Ok(())
    }
}

/// Finding one of so many plans is faster than making one.
const FEW: usize = 16;

#[cfg(test)]
mod tests;
