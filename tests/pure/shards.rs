//! Properties of the rows that share a limit, for calls of all rows together, of one row, or of both by turns.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use tollgate::algebra::{Ask, Pool, Portion, State, Terms, Timestamp, Verdict};
use tollgate::plan::{Answer, Call, Outcome, Plan};
use tollgate::{CallError, Charge, Error, Key, Limit, LimitKind, LimitSpec, MINUTE, Receipt, SECOND, Tokens};

use crate::story::config;
use crate::world::{at, decide, due, micros, receipt, sec, tokens};

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
    fn pooled(&mut self, call: Call, now: Timestamp) -> Result<Answer, Error> {
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
        Pool::new(&self.terms(), &self.rows, now).balance()
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

/// Rows at the epoch with so many micro-tokens left in each.
fn rows_with(terms: &Terms, left: &[i64]) -> Vec<Option<State>> {
    let shards = left.len();
    let value = |(shard, left): (usize, &i64)| {
        let terms = terms.shard(shard, shards);
        micros(left - terms.balance(&terms.full(at(0)), at(0)).micros())
    };
    left.iter().enumerate().map(value).map(|value| Some(State::new(value, at(0)))).collect()
}

fn call(limit: &Limit, cost: i64, reserving: bool) -> Call {
    let request = [limit.global().cost(micros(cost))];
    if reserving { Call::reserve(request) } else { Call::consume(request) }
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

    /// A pool says what one row with the whole limit would: it grants whenever the sum suffices, and a refusal names
    /// the first microsecond at which it does.
    #[test]
    fn a_pool_grants_what_its_sum_allows_and_waiting_is_exact(limit in limits(), story in moves()) {
        let most = limit.spec().max_reserved.micros();
        let (mut shards, mut now, mut charged) = (Shards::of(&limit), 0, Vec::<Charge>::new());
        for (gap, step) in story {
            now += gap;
            let before = shards.clone();
            let balance = before.balance(at(now)).micros();
            let answer = match step {
                Move::Pooled(cost, reserving) => {
                    let bound = if reserving { most } else { 0 };
                    let answer = shards.pooled(call(&limit, cost, reserving), at(now));
                    match &answer {
                        Ok(Answer::Granted { remaining, receipt: Receipt { charges, .. }, .. }) => {
                            prop_assert!(i128::from(balance) - i128::from(cost) >= -i128::from(bound));
                            prop_assert_eq!(remaining.micros(), balance - cost);
                            prop_assert_eq!(charges.iter().map(|charge| charge.cost.micros()).sum::<i64>(), cost);
                            charged.clone_from(charges);
                        }
                        Ok(Answer::Denied(denied)) => {
                            prop_assert!(i128::from(balance) - i128::from(cost) < -i128::from(bound));
                            prop_assert_eq!(&shards.rows, &before.rows);
                            let retry_at = due(denied.retry_at).micros();
                            let call = || call(&limit, cost, reserving);
                            let asked = |instant| before.clone().pooled(call(), at(instant)).unwrap();
                            let then = matches!(asked(retry_at), Answer::Granted { .. });
                            prop_assert!(then);
                            prop_assert!(matches!(asked(retry_at - 1), Answer::Denied(_)));
                        }
                        Err(Error::CostExceedsCapacity { .. }) => {}
                        other => prop_assert!(false, "{other:?}"),
                    }
                    answer
                }
                Move::Placed(shard, cost, reserving) => {
                    let shard = shard % shards.rows.len();
                    shards.placed(shard, at(now), ask(cost, reserving));
                    continue;
                }
                Move::Credit(amount) => shards.pooled(Call::credit(limit.global().cost(micros(amount))), at(now)),
                Move::Debit(amount) => shards.pooled(Call::debit(limit.global().cost(micros(amount))), at(now)),
                Move::Cancel => shards.pooled(Call::cancel(receipt(&std::mem::take(&mut charged))), at(now)),
                Move::Settle(actual) => {
                    shards.pooled(Call::settle(receipt(&std::mem::take(&mut charged)), micros(actual)), at(now))
                }
            };
            if let (Ok(Answer::Done(changed)), Move::Credit(amount)) = (&answer, step) {
                let capacity = limit.spec().capacity.unwrap().micros();
                prop_assert_eq!(changed.remaining.micros(), (balance + amount).min(capacity));
            }
        }
    }

    /// A reservation is laid on the rows so that it is ready as soon as any way of laying it is.
    #[test]
    fn a_reservation_is_ready_as_soon_as_can_be(
        values in vec(-3_000_i64..3_000, 1..6),
        rate in 6_i64..40,
        reserved in 0_i64..20_000,
        cost in 1_i64..9_000,
    ) {
        let spec = LimitSpec::new("ready", LimitKind::TokenBucket, micros(rate), Duration::from_micros(7));
        let spec = spec.with(|spec| (spec.capacity, spec.max_reserved) = (Some(micros(20_000)), micros(reserved)));
        let terms = Terms::of(&spec.try_into().unwrap(), &Key::GLOBAL);
        let rows = rows_with(&terms, &values);
        let answer = Pool::new(&terms, &rows, at(0)).decide(Ask::reserve(micros(cost)));
        let Ok(Verdict::Granted { portions, ready_at, .. }) = answer else { return Ok(()) };
        let n = i64::try_from(values.len()).unwrap();
        let share = |whole: i64, index: i64| whole / n + i64::from(index < whole % n);
        let room = |index: i64, value: i64, instant: i64| {
            (value + share(rate, index) * instant / 7).min(value + share(reserved, index)).max(0)
        };
        let rooms = |instant| (0..).zip(&values).map(|(index, value)| room(index, *value, instant)).sum::<i64>();
        let by_walking = (0..1_000_000).find(|instant| rooms(*instant) >= cost).unwrap();
        prop_assert_eq!(ready_at.micros(), by_walking);
        for Portion { shard, next, .. } in portions {
            let terms = terms.shard(shard, values.len());
            let left = terms.balance(&next, next.ts).micros();
            prop_assert!(left >= -share(reserved, i64::try_from(shard).unwrap()));
            prop_assert!(terms.balance(&next, ready_at) >= Tokens::ZERO);
        }
    }

    /// After any debit the rows that it was taken from stand level, and the others lower.
    #[test]
    fn a_debit_levels_the_rows(values in vec(-100_i64..=0, 1..9), amount in 0_i64..500) {
        let terms = Terms::of(&Limit::token_bucket("level", 1, SECOND).capacity(1_000), &Key::GLOBAL);
        let rows: Vec<_> = values.iter().map(|value| Some(State::new(micros(*value), at(0)))).collect();
        let parts = Pool::new(&terms, &rows, at(0)).debit(micros(amount)).unwrap();
        prop_assert_eq!(parts.iter().map(|part| part.taken.micros()).sum::<i64>(), amount);
        let mut after = values.clone();
        for part in &parts {
            after[part.shard] = part.next.value.micros();
        }
        let lowered: Vec<_> = parts.iter().map(|part| part.next.value.micros()).collect();
        if let (Some(low), Some(high)) = (lowered.iter().min(), lowered.iter().max()) {
            prop_assert!(high - low <= 1);
            let untouched = (0..values.len()).filter(|index| parts.iter().all(|part| part.shard != *index));
            prop_assert!(untouched.into_iter().all(|index| after[index] <= low + 1));
        }
    }

    /// One of the rows, asked alone, answers as it does in the pool, and leaves the same row.
    #[test]
    fn a_row_of_a_pool_answers_alone(
        limit in limits(),
        story in moves(),
        shard in 0_usize..16,
        cost in 0_i64..5_000_000,
    ) {
        let (mut shards, mut now) = (Shards::of(&limit), 0);
        for (gap, step) in story {
            now += gap;
            if let Move::Placed(shard, cost, reserving) = step {
                shards.placed(shard % shards.rows.len(), at(now), ask(cost, reserving));
            }
        }
        let (terms, shard) = (shards.terms(), shard % shards.rows.len());
        let pool = Pool::new(&terms, &shards.rows, at(now));
        let alone = [shards.rows[shard].clone()];
        let by_itself = Pool::new(&terms.shard(shard, shards.rows.len()), &alone, pool.now()).decide(ask(cost, false));
        match (pool.decide_in(shard, ask(cost, false)), by_itself) {
            (Ok(Verdict::Granted { portions, remaining, .. }), Ok(Verdict::Granted { portions: own, .. })) => {
                prop_assert_eq!(remaining.micros(), pool.balance().micros() - cost);
                prop_assert_eq!(portions.first().map(|one| &one.next), own.first().map(|one| &one.next));
                prop_assert!(portions.iter().all(|portion| portion.shard == shard));
            }
            (one, other) => prop_assert_eq!(one, other),
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
    assert_eq!(Pool::new(&terms, &rows, sec(0)).balance(), tokens(-41));
    assert_eq!(Pool::new(&terms, &rows, sec(50)).balance(), tokens(9), "one a second");
}

/// A receipt of ten rows is settled though the limit has one row by now. Its charge is given back to the row that it
/// was taken from, and no row is cut to the part that it once had.
#[test]
fn settling_never_cuts_a_row() {
    let ten = Limit::token_bucket("cut", 100, SECOND).shards(10);
    let Ok(Answer::Granted { receipt: Receipt { charges, .. }, .. }) =
        Shards::of(&ten).pooled(call(&ten, 3_000_000, false), sec(0))
    else {
        panic!("refused")
    };
    for actual in [micros(0), tokens(5)] {
        let mut rows = Shards::of(&ten);
        rows.rows.fill(Some(State::new(tokens(-20), sec(0))));
        rows.pooled(Call::settle(receipt(&charges), actual), sec(0)).unwrap();
        let left = if actual == tokens(5) { tokens(-22) } else { tokens(-20) };
        let lowest = rows.rows.iter().flatten().map(|row| row.value).min();
        assert_eq!(lowest, Some(left), "a row holds what the current definition lets it");
    }
}

/// A charge of a shard that its limit does not have any more is settled in its own row; one of none that there can be
/// is no charge.
#[test]
fn a_charge_of_a_shard_that_is_not_there_is_settled_where_it_was_made() {
    let limit = Limit::token_bucket("settled", 4, SECOND).shards(4);
    let Ok(Answer::Granted { receipt: Receipt { mut charges, .. }, .. }) =
        Shards::of(&limit).pooled(call(&limit, 1_000_000, false), sec(0))
    else {
        panic!("refused")
    };
    charges[0].shard = 6;
    let plan = Plan::new([Call::cancel(receipt(&charges))]).unwrap();
    assert_eq!(plan.rows().iter().map(tollgate::plan::Row::shard).collect::<Vec<_>>(), [6]);
    charges[0].shard = 64;
    let error = Plan::new([Call::cancel(receipt(&charges))]).unwrap_err();
    assert!(matches!(error, Error::Call { source: CallError::CorruptReceipt, .. }), "{error}");
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
    let error = Plan::new([Call::consume(asked)]).unwrap_err();
    assert!(matches!(error, Error::Call { source: CallError::ConflictingDefinitions, .. }), "{error}");
}

#[test]
fn what_one_call_took_from_several_shards_is_settled_as_one_sum() {
    let limit = Limit::token_bucket("settle", 4, MINUTE).shards(4);
    let spend = |cost| {
        let mut shards = Shards::of(&limit);
        let Ok(Answer::Granted { receipt: Receipt { charges, .. }, .. }) =
            shards.pooled(call(&limit, cost, false), sec(0))
        else {
            panic!("refused")
        };
        (shards, receipt(&charges))
    };
    for (cost, actual, left) in
        [(3_000_000, 1_000_000, 3), (3_000_000, 0, 4), (2_000_000, 4_000_000, 0), (4_000_000, 6_000_000, -2)]
    {
        let (mut shards, receipt) = spend(cost);
        assert!(receipt.charges.len() > 1);
        assert_eq!(receipt.by_request().count(), 1);
        shards.pooled(Call::settle(receipt, micros(actual)), sec(0)).unwrap();
        assert_eq!(shards.balance(sec(0)), tokens(left), "{cost} {actual}");
    }
    let (mut shards, receipt) = spend(3_000_000);
    shards.pooled(Call::cancel(receipt), sec(0)).unwrap();
    assert_eq!(shards.balance(sec(0)), tokens(4));
}
