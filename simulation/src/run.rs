use std::collections::VecDeque;
use std::time::Duration;

use tollgate::algebra::Timestamp;
use tollgate::plan::{Answer, Call, Plan};
use tollgate::{Charge, Error, Key, Limit, Receipt, Request, Tokens};

use crate::rows::RowMap;
use crate::traffic::Arrival;

/// What is tried on the calls.
#[derive(Clone, Debug)]
pub struct Trial {
    /// Each call asks all of these limits, and takes from all or none.
    pub rules: Vec<Rule>,
    /// Whether a call that can be granted later is granted for later.
    pub reserve: bool,
    /// How long a call holds what it was granted; to the end of the lease, if not given.
    pub work: Option<Duration>,
}

/// A limit, and whom a call asks it for.
#[derive(Clone, Debug)]
pub struct Rule {
    /// The limit.
    pub limit: Limit,
    /// Whether all callers share one row.
    pub is_global: bool,
}

/// A trial under way.
#[derive(Debug)]
pub struct Simulation<'t> {
    trial: &'t Trial,
    rows: RowMap,
    /// What calls hold, and when their work is done, the first first.
    held: VecDeque<(Timestamp, Receipt)>,
    /// How many calls were made. Their numbers name what they hold.
    made: u128,
}

impl<'t> Simulation<'t> {
    /// One in which nobody has called.
    #[must_use]
    pub fn new(trial: &'t Trial) -> Self {
        Self { trial, rows: RowMap::default(), held: VecDeque::new(), made: 0 }
    }

    /// The rows as the last call left them.
    #[must_use]
    pub fn rows(&self) -> &RowMap {
        &self.rows
    }

    /// Makes a call, which is not before the last one, after all work that is done by then. Shows the rows before each
    /// release, and before and after the call itself.
    ///
    /// Returns `None` for a call that costs more than a capacity, so that no wait lets it through. The limiter reports
    /// it as an error.
    ///
    /// # Errors
    ///
    /// Any other that the limiter would report, and those of what looks at the rows.
    pub fn call(
        &mut self,
        call: &Arrival,
        mut show: impl FnMut(&RowMap, Timestamp) -> Result<(), Error>,
    ) -> Result<Option<Answer>, Error> {
        self.release(call.at, &mut show)?;
        self.made += 1;
        let plan = match Plan::new([self.trial.call(call).with_id(self.made)]) {
            Err(Error::CostExceedsCapacity { .. }) => return Ok(None),
            plan => plan?,
        };
        show(&self.rows, call.at)?;
        let answer = self.rows.decide(&plan, call.at)?;
        show(&self.rows, call.at)?;
        if let Answer::Granted { receipt, .. } = &answer {
            self.hold(receipt, call.at);
        }
        Ok(Some(answer))
    }

    /// Ends all work that is done by an instant. Shows the rows before each release.
    ///
    /// # Errors
    ///
    /// As for [`call`](Self::call).
    pub fn release(
        &mut self,
        by: Timestamp,
        mut show: impl FnMut(&RowMap, Timestamp) -> Result<(), Error>,
    ) -> Result<(), Error> {
        while let Some((done_at, receipt)) = self.held.pop_front_if(|(done_at, _)| *done_at <= by) {
            show(&self.rows, done_at)?;
            self.rows.decide(&Plan::new([Call::release(&receipt)])?, done_at)?;
        }
        Ok(())
    }

    /// Gives tokens to the row of a caller under the first limit: a wallet is filled by nothing else.
    ///
    /// # Errors
    ///
    /// Those of [`Call::credit`].
    pub fn credit(&mut self, key: &Key, amount: Tokens, at: Timestamp) -> Result<(), Error> {
        let Some(rule) = self.trial.rules.first() else { return Ok(()) };
        self.rows.decide(&Plan::new([Call::credit(rule.request(key).cost(amount))])?, at).map(drop)
    }

    /// Remembers to release what a call holds, unless that has lapsed by then.
    fn hold(&mut self, receipt: &Receipt, at: Timestamp) {
        let ends_at = receipt.charges.iter().filter_map(Charge::lease_ends_at).min();
        if let (Some(work), Some(ends_at)) = (self.trial.work, ends_at)
            && at.plus(work) < ends_at.into()
        {
            self.held.push_back((at.plus(work), receipt.clone()));
        }
    }
}

impl Trial {
    fn call(&self, call: &Arrival) -> Call {
        let requests = self.rules.iter().map(|rule| rule.request(&call.key).cost(call.cost));
        if self.reserve { Call::reserve(requests) } else { Call::consume(requests) }
    }
}

impl Rule {
    /// What a caller asks it for.
    pub fn request(&self, key: &Key) -> Request {
        if self.is_global || key.is_global() { self.limit.global() } else { self.limit.key(key.clone()) }
    }
}

#[cfg(test)]
mod tests {
    use tollgate::SECOND;

    use super::*;

    #[test]
    fn work_that_ends_gives_its_place_to_the_next_call() {
        let limit = Limit::concurrency("renders", 1, 30 * SECOND);
        let trial = Trial { rules: vec![Rule { limit, is_global: false }], reserve: false, work: Some(2 * SECOND) };
        let mut simulation = Simulation::new(&trial);
        let mut is_granted = |second: i64| {
            let at = Timestamp::from_micros(second * 1_000_000);
            let call = Arrival { at, key: Key::GLOBAL, cost: Tokens::ONE };
            matches!(simulation.call(&call, |_, _| Ok(())), Ok(Some(Answer::Granted { .. })))
        };
        assert_eq!([0, 1, 2, 3, 4].map(&mut is_granted), [true, false, true, false, true]);
    }
}
