//! Properties of the rows that share a limit, for calls of all rows together, of one row, or of both by turns.

mod accounts;
mod settlements;

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use tollgate::algebra::{Account, Ask, State, Terms, Timestamp, Verdict};
use tollgate::plan::{Answer, Outcome, Plan, Verb};
use tollgate::{CallError, Error, Key, Limit, LimitKind, LimitSpec, MINUTE, SECOND, Tokens};

use crate::story::config;
use crate::world::{at, decide, due, micros, sec, tokens};

/// The rows of one limit for one key, and nothing else.
#[derive(Clone, Debug)]
struct Shards {
    limit: Limit,
    rows: Vec<Option<State>>,
}

impl Shards {
    fn of(limit: &Limit) -> Self {
        Self { limit: limit.clone(), rows: vec![None; limit.spec().shards.into()] }
    }

    fn terms(&self) -> Terms {
        Terms::of(&self.limit, &Key::GLOBAL)
    }

    /// Plays a call over all rows together.
    fn pooled(&mut self, call: Verb, now: Timestamp) -> Result<Answer, Error> {
        let plan = Plan::new([call])?;
        // A charge is settled by its own row alone.
        let places: Vec<_> = plan.rows().iter().map(|row| usize::from(row.shard())).collect();
        let found: Vec<_> = places.iter().map(|place| self.rows[*place].clone()).collect();
        let Outcome { mut answers, changes, .. } = plan.decide(&found, &[], now);
        for change in changes {
            self.rows[places[change.row]] = Some(change.state.clone());
        }
        answers.remove(0)
    }

    /// The answer of one row, as to a call that was placed there.
    fn placed(&mut self, shard: usize, now: Timestamp, ask: Ask) -> bool {
        let terms = self.terms().shard(shard, self.rows.len());
        match decide(&terms, self.rows[shard].as_ref(), now, ask) {
            Ok(Verdict::Granted { portions, .. }) => {
                self.rows[shard] = portions.into_iter().next().map(|portion| portion.next).or(self.rows[shard].take());
                true
            }
            _ => false,
        }
    }

    fn balance(&self, now: Timestamp) -> Tokens {
        Account::new(&self.terms(), &self.rows, now).balance()
    }
}

#[derive(Clone, Debug)]
enum Move {
    Pooled(i64, bool),
    Placed(usize, i64, bool),
    Credit(i64),
    Debit(i64),
    Cancel,
    Settle(i64),
}

fn moves() -> impl Strategy<Value = Vec<(i64, Move)>> {
    let cost = || prop_oneof![0_i64..2_000_000, 0_i64..12_000_000, Just(1_000_000_i64), 0_i64..4];
    let gap = prop_oneof![Just(0_i64), 0_i64..3_000_000, 0_i64..40_000_000, 0_i64..5];
    let any = prop_oneof![
        4 => (cost(), any::<bool>()).prop_map(|(cost, reserving)| Move::Pooled(cost, reserving)),
        4 => (0_usize..16, cost(), any::<bool>())
            .prop_map(|(shard, cost, reserving)| Move::Placed(shard, cost, reserving)),
        1 => cost().prop_map(Move::Credit),
        1 => cost().prop_map(Move::Debit),
        1 => Just(Move::Cancel),
        1 => cost().prop_map(Move::Settle),
    ];
    vec((gap, any), 1..30)
}

fn limits() -> impl Strategy<Value = Limit> {
    let kind = prop_oneof![Just(LimitKind::TokenBucket), Just(LimitKind::FixedWindow)];
    let reserved = prop_oneof![Just(0), 0_i64..9_000_000, Just(i64::MAX)];
    (kind, 1_u16..=16, 100_i64..5_000_000, 1_i64..20_000_000, 0_i64..12_000_000, reserved).prop_map(
        |(kind, shards, rate, period, capacity, reserved)| {
            let spec = LimitSpec::new("shards", kind, micros(rate), Duration::from_micros(period.unsigned_abs()));
            let (capacity, max_reserved) = (Some(micros(capacity)), micros(reserved));
            spec.with(|spec| (spec.shards, spec.capacity, spec.max_reserved) = (shards, capacity, max_reserved))
                .try_into()
                .unwrap()
        },
    )
}

fn ask(cost: i64, reserving: bool) -> Ask {
    if reserving { Ask::reserve(micros(cost)) } else { Ask::consume(micros(cost)) }
}

fn call(limit: &Limit, cost: i64, reserving: bool) -> Verb {
    let request = [limit.global().cost(micros(cost))];
    if reserving { Verb::reserve(request) } else { Verb::consume(request) }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn the_shares_sum_to_the_whole(
        shards in 1_usize..=64,
        rate in 64_i64..,
        capacity in 0_i64..,
        reserved in 0_i64..i64::MAX,
    ) {
        let spec = LimitSpec::new("shares", LimitKind::TokenBucket, micros(rate), SECOND);
        let reserved = micros(reserved.min(i64::MAX - capacity));
        let spec = spec.with(|spec| (spec.capacity, spec.max_reserved) = (Some(micros(capacity)), reserved));
        let terms = Terms::of(&spec.try_into().unwrap(), &Key::GLOBAL);
        let of = |terms: &Terms| {
            let empty = State::new(Tokens::MIN, sec(0));
            // A row that is deep in debt is up by the rate after a period; a reservation goes as deep as it may.
            let rate = i128::from(terms.refill(&empty, sec(1)).value.micros()) - i128::from(i64::MIN);
            (rate, i128::from(terms.balance(&terms.full(sec(0)), sec(0)).micros()))
        };
        let parts: Vec<_> = (0..shards).map(|index| of(&terms.shard(index, shards))).collect();
        let sum = parts.iter().fold((0, 0), |(a, b), (rate, capacity)| (a + rate, b + capacity));
        prop_assert_eq!(sum, of(&terms));
        let rates = || parts.iter().map(|(rate, _)| rate);
        let spread = rates().max().unwrap() - rates().min().unwrap();
        prop_assert!(spread <= 1);
    }

    /// Between any two grants, of calls that ask one row or all: no more than the whole limit, to the micro-token. Nor
    /// does a row go deeper than its share of the reservations.
    #[test]
    fn never_over(limit in limits(), story in moves()) {
        let spec = limit.spec();
        let (rate, period) = (i128::from(spec.rate.micros()), i128::try_from(spec.period.as_micros()).unwrap());
        let most = i128::from(spec.capacity.unwrap().micros()) + i128::from(spec.max_reserved.micros());
        let phase = Terms::of(&limit, &Key::GLOBAL).full(at(0)).ts.micros();
        let step = |instant: i64| i128::from(instant - phase).div_euclid(period);
        let refilled = |from: i64, to: i64| {
            if spec.kind == LimitKind::TokenBucket {
                rate * i128::from(to - from) / period
            } else {
                rate * (step(to) - step(from))
            }
        };
        let (mut shards, mut now, mut granted) = (Shards::of(&limit), 0, Vec::<(i64, i128)>::new());
        for (gap, step) in story {
            now += gap;
            let before = shards.balance(at(now));
            let taken = match step {
                Move::Pooled(cost, reserving) => {
                    let answer = shards.pooled(call(&limit, cost, reserving), at(now));
                    if matches!(answer, Ok(Answer::Granted { .. })) { cost } else { 0 }
                }
                Move::Placed(shard, cost, reserving) => {
                    let shard = shard % shards.rows.len();
                    if shards.placed(shard, at(now), ask(cost, reserving)) { cost } else { 0 }
                }
                _ => continue,
            };
            prop_assert_eq!(shards.balance(at(now)).micros(), before.micros() - taken);
            granted.push((now, taken.into()));
        }
        for (place, (first, _)) in granted.iter().enumerate() {
            let mut sum = 0;
            for (last, taken) in &granted[place..] {
                sum += taken;
                prop_assert!(sum <= most + refilled(*first, *last), "{first} to {last}");
            }
        }
    }

    /// While two numbers of shards are live, the sum of both limits is granted at most; afterwards one capacity more,
    /// once.
    #[test]
    fn a_changed_number_of_shards_keeps_its_bound(
        from in 1_u16..=8,
        to in 1_u16..=8,
        cost in 1_i64..4_000_000,
        gap in 0_i64..2_000_000,
    ) {
        let limit = |shards| Limit::token_bucket("changed", 8, SECOND).capacity(16).shards(shards);
        let (capacity, rate) = (16_000_000, 8_000_000);
        let (old, new) = (limit(from), limit(to));
        let mut rows = [const { None }; 8];
        let mut ask = |limit: &Limit, now: i64| {
            let plan = Plan::new([call(limit, cost.min(2_000_000), false)]).unwrap();
            let found = &rows[..plan.rows().len()];
            let Outcome { answers, changes, .. } = plan.decide(found, &[], at(now));
            for change in &changes {
                rows[change.row] = Some(change.state.clone());
            }
            if matches!(answers[0], Ok(Answer::Granted { .. })) { cost.min(2_000_000) } else { 0 }
        };
        let mut both = 0;
        for turn in 0..40 {
            both += ask(if turn % 2 == 0 { &old } else { &new }, turn * gap);
        }
        let last = 39 * gap;
        prop_assert!(i128::from(both) <= 2 * (capacity + i128::from(rate) * i128::from(last) / 1_000_000));
        let mut after = 0;
        for turn in 0..40 {
            after += ask(&new, last + turn * gap);
        }
        prop_assert!(i128::from(after) <= 2 * capacity + i128::from(rate) * i128::from(last) / 1_000_000);
    }
}

/// A debt in one of ten rows binds nobody once there is one row; a debt in one row is repaid at a tenth of the rate
/// once there are ten.
#[test]
fn a_debt_stays_where_it_is_when_the_number_of_shards_changes() {
    let limit = |shards| Limit::token_bucket("debt", 10, SECOND).max_reserved(100).shards(shards);
    let decide = |limit: &Limit, rows: &[Option<State>], now| {
        Plan::new([call(limit, 1_000_000, false)]).unwrap().decide(rows, &[], now)
    };
    let mut rows = vec![Some(State::new(tokens(0), sec(0))); 10];
    rows[7] = Some(State::new(tokens(-51), sec(0)));
    let granted = decide(&limit(1), &rows[..1], sec(0)).answers.remove(0);
    assert!(matches!(granted, Ok(Answer::Granted { .. })), "{granted:?}");

    let mut rows = vec![None; 10];
    rows[0] = Some(State::new(tokens(-51), sec(0)));
    let terms = Terms::of(&limit(10), &Key::GLOBAL);
    assert_eq!(Account::new(&terms, &rows, sec(0)).balance(), tokens(-41));
    assert_eq!(Account::new(&terms, &rows, sec(50)).balance(), tokens(9), "one a second");
}

#[test]
fn the_shards_of_a_window_share_its_phase() {
    for n in 1..=16_u16 {
        let window = Limit::fixed_window("phase", 10 * u64::from(n), MINUTE);
        for limit in [window.clone(), window.start(13 * SECOND)].map(|limit| limit.shards(n)) {
            let mut shards = Shards::of(&limit);
            for shard in 0..usize::from(n) {
                assert!(shards.placed(shard, sec(0), Ask::consume(tokens(10))));
            }
            let Ok(Answer::Denied(denied)) = shards.pooled(call(&limit, 1_000_000, false), sec(0)) else {
                panic!("all is spent")
            };
            let step = due(denied.retry_at);
            assert_eq!(shards.balance(step), tokens(10 * i64::from(n)), "all come back at once");
            assert_eq!(shards.balance(at(step.micros() - 1)), Tokens::ZERO);
        }
    }
}

#[test]
fn two_definitions_of_one_limit_in_one_call_differ_in_their_shards_too() {
    let limit = Limit::token_bucket("two", 10, MINUTE);
    let asked = [limit.key(1), limit.clone().shards(2).key(1)];
    let error = Plan::new([Verb::consume(asked)]).unwrap_err();
    assert!(matches!(error, Error::Call { source: CallError::ConflictingDefinitions, .. }), "{error}");
}
