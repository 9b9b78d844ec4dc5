use std::collections::VecDeque;
use std::time::Duration;

use tollgate::algebra::{Terms, Timestamp};
use tollgate::plan::{Answer, Call, Plan};
use tollgate::{Charge, Error, Key, Limit, Receipt, Request, Tokens, first_of};

use crate::rows::{Look, RowMap};
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
pub struct Simulation {
    trial: Trial,
    /// What stays behind of the limits that all callers share, where the rest is lent.
    kept: Option<Tokens>,
    rows: RowMap,
    /// Plans by who asks for how much, where a call may be made again.
    plans: Vec<(Key, Option<Tokens>, Plan)>,
    /// What calls hold, and when their work is done, the first first.
    held: VecDeque<(Timestamp, Receipt)>,
    /// How many calls were made. Their numbers name what they hold.
    made: u128,
}

impl Simulation {
    /// One in which nobody has called.
    #[must_use]
    pub fn new(trial: Trial) -> Self {
        Self { trial, kept: None, rows: RowMap::default(), plans: Vec::new(), held: VecDeque::new(), made: 0 }
    }

    /// The same, with guaranteed shares: who is refused takes from the limits that all callers share alone, if so many
    /// tokens stay behind; `None` lends nothing. Not for reservations.
    #[must_use]
    pub fn lending_above(self, kept: impl Into<Option<Tokens>>) -> Self {
        Self { kept: kept.into(), ..self }
    }

    /// The rows as the last call left them.
    #[must_use]
    pub fn rows(&self) -> &RowMap {
        &self.rows
    }

    /// Makes a call, which is not before the last one, after all work that is done by then. Shows the rows before each
    /// release, before the call itself, and after it if it is granted.
    ///
    /// Returns `None` for a call that costs more than a capacity, so that no wait lets it through. The limiter reports
    /// it as an error.
    ///
    /// # Errors
    ///
    /// Any other that the limiter would report.
    pub fn call(&mut self, call: &Arrival, mut show: impl FnMut(&RowMap, Timestamp)) -> Result<Option<Answer>, Error> {
        self.release(call.at, &mut show)?;
        self.made += 1;
        let place = match self.plan(call) {
            Err(Error::CostExceedsCapacity { .. }) => return Ok(None),
            place => place?,
        };
        show(&self.rows, call.at);
        let answer = self.rows.decide(&self.plans[place].2, call.at)?;
        // A refusal leaves the rows as they were shown.
        if let Answer::Granted { receipt, .. } = &answer {
            show(&self.rows, call.at);
            self.hold(receipt, call.at);
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
        let asked = self.trial.call(call, self.kept);
        // A plan that names what it takes is for one call.
        let cost = Some(call.cost).filter(|_| !asked.needs_id());
        self.plans.push((call.key.clone(), cost, Plan::new([asked.with_id(self.made)])?));
        Ok(self.plans.len() - 1)
    }

    /// Ends all work that is done by an instant. Shows the rows before each release.
    ///
    /// # Errors
    ///
    /// As for [`call`](Self::call).
    pub fn release(&mut self, by: Timestamp, mut show: impl FnMut(&RowMap, Timestamp)) -> Result<(), Error> {
        while let Some((done_at, receipt)) = self.held.pop_front_if(|(done_at, _)| *done_at <= by) {
            show(&self.rows, done_at);
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
    fn call(&self, call: &Arrival, kept: Option<Tokens>) -> Call {
        let requests = self.rules.iter().map(|rule| rule.request(&call.key).cost(call.cost));
        match kept {
            _ if self.reserve => Call::reserve(requests),
            None => Call::consume(requests),
            Some(kept) => {
                let shared = self.rules.iter().filter(|rule| rule.is_global);
                let lent = shared.map(|rule| rule.request(&call.key).cost(call.cost).leaving(kept)).collect();
                Call::consume(first_of([requests.collect::<Vec<_>>(), lent]))
            }
        }
    }
}

impl Rule {
    /// What a caller asks it for.
    pub fn request(&self, key: &Key) -> Request {
        if self.is_global || key.is_global() { self.limit.global() } else { self.limit.key(key.clone()) }
    }

    /// What a caller's balance is seen by.
    ///
    /// # Errors
    ///
    /// Those of [`Plan::new`].
    pub fn look(&self, key: &Key) -> Result<Look, Error> {
        let plan = Plan::new([Call::look(self.request(key))])?;
        let terms = Terms::of(&self.limit, if self.is_global { &Key::GLOBAL } else { key });
        Ok(Look { plan, terms })
    }
}

/// So many plans are found faster than one is made.
const FEW: usize = 16;

#[cfg(test)]
mod tests {
    use tollgate::SECOND;

    use super::*;
    use crate::traffic::{Arrivals, Traffic};

    #[test]
    fn work_that_ends_gives_its_place_to_the_next_call() {
        let limit = Limit::concurrency("renders", 1, 30 * SECOND);
        let trial = Trial { rules: vec![Rule { limit, is_global: false }], reserve: false, work: Some(2 * SECOND) };
        let mut simulation = Simulation::new(trial);
        let mut is_granted = |second: i64| {
            let at = Timestamp::from_micros(second * 1_000_000);
            let call = Arrival { at, key: Key::GLOBAL, cost: Tokens::ONE };
            matches!(simulation.call(&call, |_, _| ()), Ok(Some(Answer::Granted { .. })))
        };
        assert_eq!([0, 1, 2, 3, 4].map(&mut is_granted), [true, false, true, false, true]);
    }

    #[test]
    fn rows_are_shown_before_each_call_and_after_those_that_change_them() {
        let limit = Limit::token_bucket("any", 1, SECOND);
        let trial = Trial { rules: vec![Rule { limit, is_global: false }], reserve: false, work: None };
        let call = Arrival { at: Timestamp::from_micros(0), key: Key::GLOBAL, cost: Tokens::ONE };
        let look = trial.rules[0].look(&call.key).unwrap();
        let (mut simulation, mut seen) = (Simulation::new(trial), Vec::new());
        for _ in 0..3 {
            simulation.call(&call, |rows, at| seen.push(rows.balance(&look, at))).unwrap();
        }
        let [none, one] = [Tokens::ZERO, Tokens::ONE];
        assert_eq!(seen, [one, none, none, none]);
    }

    /// The example of the design: 100 a second for ten tenants, one of which asks for 500.
    #[test]
    fn guaranteed_shares_refuse_nobody_within_his_own_and_lend_the_rest() {
        let tokens = Tokens::new;
        let own = Limit::token_bucket("own", 10, SECOND).capacity(20);
        let shared = Limit::token_bucket("shared", 100, SECOND).capacity(300);
        let rules = [(own, false), (shared, true)].map(|(limit, is_global)| Rule { limit, is_global });
        let trial = Trial { rules: rules.into(), reserve: false, work: None };
        let traffic = ["poisson rate=4 per=1s clients=9 key=quiet", "burst size=10 every=20s clients=9 key=quiet"];
        let traffic =
            traffic.into_iter().chain(["poisson rate=500 per=1s key=noisy"]).map(|text| text.parse().unwrap());
        let traffic: Vec<Traffic> = traffic.collect();
        let mut counts = [0, 0];
        let mut simulation = Simulation::new(trial).lending_above(tokens(200));
        for call in Arrivals::new(&traffic, 1) {
            let answer = simulation.call(&call, |_, _| ()).unwrap().unwrap();
            let is_granted = matches!(answer, Answer::Granted { .. });
            assert!(is_granted || call.key.as_str() == "noisy", "{call:?}");
            counts[usize::from(is_granted)] += 1;
        }
        let [refused, granted] = counts;
        assert!(refused > 0 && granted >= 6_000, "{granted} in a minute");
    }
}
