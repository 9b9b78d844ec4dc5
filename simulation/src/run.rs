use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::time::Duration;

use tollgate::algebra::{Terms, Timestamp};
use tollgate::plan::{Answer, Call, Plan};
use tollgate::{Charge, Error, Key, Limit, LimitKind, Receipt, Request, Tokens, first_of};

use crate::rows::{Look, RowMap};
use crate::traffic::Arrival;

/// What is tried on the calls.
#[derive(Clone, Debug, Default)]
pub struct Trial {
    /// What each call asks.
    pub rules: Vec<Rule>,
    /// How it asks several limits.
    pub asking: Asking,
    /// Whether a call that can be granted later is granted for later.
    pub reserve: bool,
    /// How long a call works once its tokens are ready. Then it is settled, and releases what it holds of concurrency
    /// limits. If not given, nobody settles, and a lease runs out.
    pub work: Option<Duration>,
    /// What a call has used when its work ends, and is settled at; its cost, if not given.
    pub used: Option<Tokens>,
    /// The client of every so many-th call dies, so that its work never ends; nobody's, if not given.
    pub dies: Option<NonZeroU64>,
    /// How long after its tokens are ready a call that nobody has settled gives them back; never, if not given.
    pub lapses_after: Option<Duration>,
    /// What is in a wallet as its first caller comes: nothing else fills it.
    pub funds: Tokens,
}

/// How a call asks several limits.
#[derive(Clone, Copy, Debug, Default)]
pub enum Asking {
    /// All of them: it takes from all or none.
    #[default]
    All,
    /// All of them, with guaranteed shares: who is refused takes from the limits that all callers share alone, if so
    /// many tokens stay behind. Not for reservations.
    Lending(Tokens),
    /// One after another, and it takes from the first that grants. Not for reservations.
    InTurn,
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
    rows: RowMap,
    /// Plans by who asks for how much, where a call may be made again.
    plans: Vec<(Key, Option<Tokens>, Plan)>,
    /// How the calls end that were granted, the first first.
    ends: VecDeque<End>,
    /// How many calls were made. Their numbers name what they hold.
    made: u128,
}

/// How a call ends that was granted, and by which plan: a lease that runs out needs none.
#[derive(Debug)]
struct End {
    ended: Ended,
    granted_at: Timestamp,
    plan: Option<Plan>,
}

/// A call that has ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Ended {
    /// When it ended.
    pub at: Timestamp,
    /// Which call it was, from 1.
    pub call: u128,
    /// What ended it.
    pub by: EndedBy,
}

/// What ends a call.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum EndedBy {
    /// Its work is done: it is settled, and releases its leases.
    Work,
    /// Nobody settled it in time: what it took comes back.
    Lapse,
    /// Nobody released its lease in time. What else it took may still lapse.
    Lease,
}

impl Simulation {
    /// One in which nobody has called.
    #[must_use]
    pub fn new(trial: Trial) -> Self {
        Self { trial, rows: RowMap::default(), plans: Vec::new(), ends: VecDeque::new(), made: 0 }
    }

    /// The rows as the last call left them.
    #[must_use]
    pub fn rows(&self) -> &RowMap {
        &self.rows
    }

    /// Makes a call, which is not before the last one, after all calls that have ended by then. Shows the rows before
    /// each end and after it, before the call itself, and after it if it is granted; and, after the end of a call, when
    /// that call was granted.
    ///
    /// Returns `None` for a call that costs more than a capacity, so that no wait lets it through. The limiter reports
    /// it as an error.
    ///
    /// # Errors
    ///
    /// Any other that the limiter would report.
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
        // A plan that names what it takes is for one call.
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

impl Trial {
    fn call(&self, call: &Arrival) -> Call {
        let request = |rule: &Rule| rule.request(&call.key).cost(call.cost);
        let requests = self.rules.iter().map(request);
        match self.asking {
            _ if self.reserve => Call::reserve(requests),
            Asking::All => Call::consume(requests),
            Asking::Lending(kept) => {
                let shared = self.rules.iter().filter(|rule| rule.is_global);
                let lent = shared.map(|rule| request(rule).leaving(kept)).collect();
                Call::consume(first_of([requests.collect::<Vec<_>>(), lent]))
            }
            Asking::InTurn => Call::consume(first_of(requests.map(|request| [request]))),
        }
    }

    /// How the call of a number ends that was granted: its lease, which runs out by itself, and what else it took.
    /// `None` where that stays taken.
    fn endings(&self, number: u128, receipt: &Receipt, ready_at: Timestamp) -> [Option<(Ended, Option<Call>)>; 2] {
        let charges: Vec<_> =
            receipt.charges.iter().filter(|charge| charge.lease_ends_at().is_none()).cloned().collect();
        let leases_end = receipt.charges.iter().filter_map(Charge::lease_ends_at).min();
        let lapses_at = self.lapses_after.filter(|_| !charges.is_empty()).map(|span| ready_at.plus(span));
        let dies = self.dies.is_some_and(|every| number.is_multiple_of(every.get().into()));
        let holds = |at: Timestamp| leases_end.is_some_and(|end| at < end.into());
        // A receipt whose lease has run out settles nothing, but that of a call that lapses settles the rest of it.
        let in_time = |done_at: &Timestamp| match lapses_at {
            Some(lapses_at) => *done_at <= lapses_at,
            None => leases_end.is_none() || holds(*done_at),
        };
        let done_at = self.work.filter(|_| !dies).map(|work| ready_at.plus(work)).filter(in_time);
        let lease_over =
            leases_end.filter(|_| !done_at.is_some_and(holds)).map(|end| (end.into(), EndedBy::Lease, None));
        let ending = match (done_at, self.used) {
            (Some(done_at), Some(used)) => {
                let left = if holds(done_at) { receipt.clone() } else { charges.into() };
                Some((done_at, EndedBy::Work, Some(Call::settle(left, used))))
            }
            (Some(done_at), None) => holds(done_at).then(|| (done_at, EndedBy::Work, Some(Call::release(receipt)))),
            // A lapse is a settlement at nothing, at its instant and without the leases.
            (None, _) => {
                lapses_at.map(|lapses_at| (lapses_at, EndedBy::Lapse, Some(Call::settle(charges.into(), Tokens::ZERO))))
            }
        };
        [lease_over, ending].map(|end| end.map(|(at, by, call)| (Ended { at, call: number, by }, call)))
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
    use tollgate::{HOUR, SECOND};

    use super::*;
    use crate::traffic::{Arrivals, Traffic};

    #[test]
    fn work_that_ends_gives_its_place_to_the_next_call() {
        let trial = Trial { work: Some(2 * SECOND), ..of([Limit::concurrency("renders", 1, 30 * SECOND)]) };
        assert_eq!(granted(&trial, [(0, 1), (1, 1), (2, 1), (3, 1), (4, 1)]), [true, false, true, false, true]);
    }

    #[test]
    fn what_was_not_used_is_there_when_work_ends() {
        let used = |used| Trial { work: Some(2 * SECOND), used, ..of([TEN]) };
        let calls = [(0, 6), (1, 6), (2, 6), (3, 6)];
        assert_eq!(granted(&used(None), calls), [true, false, false, false]);
        assert_eq!(granted(&used(Some(Tokens::new(4))), calls), [true, false, true, false]);
        // Of ten, eight were used: more than the six that were charged.
        let beyond = used(Some(Tokens::new(8)));
        assert_eq!(granted(&beyond, [(0, 6), (2, 4)]), [true, false]);
        assert_eq!(granted(&beyond, [(0, 6), (1, 4)]), [true, true], "not before");
        let shards = Limit::token_bucket("ten", 10, HOUR).shards(4);
        assert_eq!(granted(&Trial { rules: of([shards]).rules, ..beyond }, [(0, 0), (2, 10)]), [true, false]);
    }

    #[test]
    fn the_work_of_a_reservation_begins_when_it_is_ready() {
        let limit = Limit::token_bucket("jobs", 1, SECOND).capacity(10).max_reserved(10);
        let trial = Trial { reserve: true, work: Some(SECOND), used: Some(Tokens::ZERO), ..of([limit]) };
        assert_eq!(
            granted(&trial, [(0, 20), (2, 10), (11, 20)]),
            [true, false, true],
            "ready at ten, settled at eleven"
        );
    }

    #[test]
    fn every_so_many_th_client_dies_and_what_it_took_comes_back_at_the_lapse() {
        let trial = |lapses_after| Trial { rules: of([TEN]).rules, dies: NonZeroU64::new(2), lapses_after, ..FREE };
        let calls = [(0, 10), (2, 10), (4, 10), (6, 10), (8, 10), (10, 10)];
        assert_eq!(granted(&trial(None), calls), [true, true, false, false, false, false]);
        assert_eq!(granted(&trial(Some(3 * SECOND)), calls), [true, true, false, true, false, true]);
    }

    #[test]
    fn calls_end_in_the_order_of_their_ends() {
        let limit = Limit::sliding_window("twenty", 20, HOUR);
        let trial =
            Trial { dies: NonZeroU64::new(2), lapses_after: Some(10 * SECOND), rules: of([limit]).rules, ..FREE };
        let calls = [(0, 10), (1, 10), (2, 10), (3, 10), (4, 10), (11, 10)];
        assert_eq!(granted(&trial, calls), [true, true, true, true, false, true]);
    }

    #[test]
    fn who_comes_after_the_lapse_settles_nothing() {
        let limit = Limit::wallet("credits").overdraft(10);
        let work = |span| Trial { work: Some(span), used: Some(Tokens::new(4)), ..of([limit.clone()]) };
        let trial = |span| Trial { lapses_after: Some(2 * SECOND), ..work(span) };
        assert_eq!(granted(&trial(3 * SECOND), [(0, 10), (1, 1), (2, 1), (4, 16)]), [true, false, true, false]);
        assert_eq!(
            granted(&trial(2 * SECOND), [(0, 10), (2, 7), (2, 6)]),
            [true, false, true],
            "at that instant it does"
        );
    }

    #[test]
    fn a_lease_runs_out_by_itself_and_with_it_the_right_to_settle_but_for_a_call_that_lapses() {
        let rules = of([TEN, Limit::concurrency("streams", 10, 30 * SECOND)]).rules;
        let dead = Trial { rules, dies: NonZeroU64::new(1), lapses_after: Some(2 * SECOND), ..FREE };
        assert_eq!(granted(&dead, [(0, 10), (3, 10), (30, 10)]), [true, false, true]);
        let slow = Trial { work: Some(40 * SECOND), dies: None, lapses_after: Some(50 * SECOND), ..dead };
        assert_eq!(granted(&slow, [(0, 10), (39, 10), (40, 10)]), [true, false, true]);
        assert_eq!(granted(&Trial { lapses_after: None, ..slow }, [(0, 10), (60, 10)]), [true, false]);
    }

    #[test]
    fn each_end_of_a_call_is_told() {
        let rules = of([TEN, Limit::concurrency("streams", 10, 2 * SECOND)]).rules;
        let dies = NonZeroU64::new(2);
        let mut simulation = Simulation::new(Trial { rules, dies, lapses_after: Some(5 * SECOND), ..FREE });
        for second in [0, 0] {
            simulation.call(&arrival(second, 1), |_, _, _| ()).unwrap();
        }
        let by = Timestamp::from_micros(9_000_000);
        let ends = std::iter::from_fn(|| simulation.end_next(by, |_, _, _| ()).unwrap());
        let ends: Vec<_> = ends.map(|Ended { at, call, by }| (at.micros() / 1_000_000, call, by)).collect();
        assert_eq!(ends, [(1, 1, EndedBy::Work), (2, 2, EndedBy::Lease), (5, 2, EndedBy::Lapse)]);
    }

    #[test]
    fn rows_are_shown_before_and_after_whatever_changes_them() {
        let trial = Trial { rules: of([Limit::token_bucket("any", 1, HOUR)]).rules, ..FREE };
        let look = trial.rules[0].look(&Key::GLOBAL).unwrap();
        let (mut simulation, mut seen) = (Simulation::new(trial), Vec::new());
        for second in [0, 0, 3] {
            let show = |rows: &RowMap, at: Timestamp, granted_at: Option<Timestamp>| {
                let is_full = rows.balance(&look, at) >= Tokens::ONE;
                seen.push((at.micros() / 1_000_000, is_full, granted_at.map(Timestamp::micros)));
            };
            simulation.call(&arrival(second, 1), show).unwrap();
        }
        let first = [(0, true, None), (0, false, None)];
        let refused = [(0, false, None)];
        let after_its_end = [(1, false, None), (1, true, Some(0)), (3, true, None), (3, false, None)];
        assert_eq!(seen, [&first[..], &refused, &after_its_end].concat());
    }

    /// The example of the design: 100 a second for ten tenants, one of which asks for 500.
    #[test]
    fn guaranteed_shares_refuse_nobody_within_his_own_and_lend_the_rest() {
        let tokens = Tokens::new;
        let own = Limit::token_bucket("own", 10, SECOND).capacity(20);
        let shared = Limit::token_bucket("shared", 100, SECOND).capacity(300);
        let rules = [(own, false), (shared, true)].map(|(limit, is_global)| Rule { limit, is_global });
        let trial = Trial { rules: rules.into(), asking: Asking::Lending(tokens(200)), ..Trial::default() };
        let traffic = ["poisson rate=4 per=1s clients=9 key=quiet", "burst size=10 every=20s clients=9 key=quiet"];
        let traffic =
            traffic.into_iter().chain(["poisson rate=500 per=1s key=noisy"]).map(|text| text.parse().unwrap());
        let traffic: Vec<Traffic> = traffic.collect();
        let mut counts = [0, 0];
        let mut simulation = Simulation::new(trial);
        for call in Arrivals::new(&traffic, 1) {
            let answer = simulation.call(&call, |_, _, _| ()).unwrap().unwrap();
            let is_granted = matches!(answer, Answer::Granted { .. });
            assert!(is_granted || call.key.as_str() == "noisy", "{call:?}");
            counts[usize::from(is_granted)] += 1;
        }
        let [refused, granted] = counts;
        assert!(refused > 0 && granted >= 6_000, "{granted} in a minute");
    }

    #[test]
    fn funds_are_in_the_wallets_whichever_limits_these_are() {
        let rule = |limit, is_global| Rule { limit, is_global };
        let many = rule(Limit::token_bucket("many", 100, SECOND), false);
        let (own, shared) = (rule(Limit::wallet("own"), false), rule(Limit::wallet("shared"), true));
        for rules in [[many.clone(), own.clone()], [own, many.clone()], [many.clone(), shared.clone()], [shared, many]]
        {
            let trial = Trial { rules: rules.into(), funds: Tokens::new(4), ..Trial::default() };
            assert_eq!(granted(&trial, [(0, 3), (1, 2), (2, 1)]), [true, false, true], "{trial:?}");
        }
    }

    #[test]
    fn limits_that_are_asked_in_turn_are_charged_only_where_those_before_refuse() {
        let trial = of([Limit::fixed_window("plan", 2, HOUR), Limit::wallet("credits")]);
        let trial = Trial { asking: Asking::InTurn, funds: Tokens::new(3), ..trial };
        let looks: Vec<_> = trial.rules.iter().map(|rule| rule.look(&Key::GLOBAL).unwrap()).collect();
        let mut simulation = Simulation::new(trial);
        let left = [(0, 1), (1, 2), (2, 1), (3, 2), (4, 1)].map(|(second, cost)| {
            let call = arrival(second, cost);
            let answer = simulation.call(&call, |_, _, _| ()).unwrap().unwrap();
            let [plan, credits] =
                [0, 1].map(|place| simulation.rows().balance(&looks[place], call.at).micros() / 1_000_000);
            (matches!(answer, Answer::Granted { .. }), plan, credits)
        });
        assert_eq!(left, [(true, 1, 3), (true, 1, 1), (true, 0, 1), (false, 0, 1), (true, 0, 0)]);
    }

    /// Which calls are granted, each at a second and of a cost.
    fn granted<const N: usize>(trial: &Trial, calls: [(i64, u32); N]) -> [bool; N] {
        let mut simulation = Simulation::new(trial.clone());
        calls.map(|(second, cost)| {
            let answer = simulation.call(&arrival(second, cost), |_, _, _| ()).unwrap();
            matches!(answer, Some(Answer::Granted { .. }))
        })
    }

    fn arrival(second: i64, cost: u32) -> Arrival {
        let at = Timestamp::from_micros(second * 1_000_000);
        Arrival { at, key: Key::GLOBAL, cost: Tokens::new(cost) }
    }

    fn of(limits: impl IntoIterator<Item = Limit>) -> Trial {
        let rules = limits.into_iter().map(|limit| Rule { limit, is_global: false });
        Trial { rules: rules.collect(), ..Trial::default() }
    }

    /// Nothing comes back by itself while these calls are made.
    const TEN: Limit = Limit::sliding_window("ten", 10, HOUR);
    /// After a second nothing was used.
    const FREE: Trial = Trial {
        rules: Vec::new(),
        asking: Asking::All,
        reserve: false,
        work: Some(SECOND),
        used: Some(Tokens::ZERO),
        dies: None,
        lapses_after: None,
        funds: Tokens::ZERO,
    };
}
