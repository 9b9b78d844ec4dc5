//! Random steps of one row each, decided by the plan and by the functions: all of the answer and of the row is equal,
//! out to where amounts and instants end. A million of them: `TOLLGATE_TEST_STEPS=1000000`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::slice;
use std::time::Duration;

use fastrand::Rng;
use sqlx::{PgConnection, Row as _};
use tollgate::algebra::{List, Pause, State, Terms, Timestamp};
use tollgate::plan::{Answer, AppliedOverride, Plan, Under, Verb};
use tollgate::{Error, FitError, Grant, Key, Limit, LimitKind, LimitSpec, Receipt, Request, Tokens};

use super::owner;
use crate::world::World;

const STEPS: usize = 100_000;
const BATCH: usize = 1_000;
const MIN: i64 = Timestamp::MIN.micros();
const MAX: i64 = Timestamp::MAX.micros();

#[tokio::test]
async fn each_random_step_is_decided_as_the_plan_decides_it() {
    let world = World::new().await;
    world.sql(include_str!("step.sql")).await;
    let mut conn = owner(&world).await;
    let steps = std::env::var("TOLLGATE_TEST_STEPS").map_or(STEPS, |steps| steps.parse().unwrap());
    let seed = super::seed();
    let mut walk = Walk::new(seed);
    let mut tally = BTreeMap::<String, usize>::new();
    for _ in 0..steps.div_ceil(BATCH) {
        let vectors: Vec<_> = (0..BATCH).map(|_| walk.step()).collect();
        let told = told(&mut conn, &vectors).await;
        for (vector, told) in vectors.iter().zip(told) {
            assert_eq!(told, vector.expected, "seed {seed}: {vector:?}");
            let outcome = vector.expected.split(' ').next().unwrap();
            *tally.entry(format!("{} {} {outcome}", vector.flow, vector.verb)).or_default() += 1;
        }
    }
    // Each verb comes to each end, on rows of each kind.
    for flow in ["c", "f", "g", "m", "b", "w"] {
        for end in
            ["consume granted", "consume denied", "reserve granted", "credit done", "debit done", "settle settled"]
        {
            assert!(tally.contains_key(&format!("{flow} {end}")), "{flow} {end}: {tally:?}");
        }
    }
}

/// A step on a row, and the plan's answer to it.
#[derive(Debug)]
struct Vector {
    verb: &'static str,
    flow: &'static str,
    name: String,
    key: String,
    rate: i64,
    period: i64,
    most: i64,
    start: Option<i64>,
    row: Option<(i64, i64, Option<Vec<i64>>, i64)>,
    now: i64,
    amount: i64,
    part: Option<i64>,
    actual: i64,
    /// Below zero it is the amount that must stay behind.
    debt: i64,
    until: i64,
    ready_at: i64,
    paused: Option<[i64; 2]>,
    expected: String,
}

struct Walk {
    dice: Rng,
    limit: Limit,
    key: Key,
    row: Option<State>,
    now: i64,
    /// The start and the length of the period that callers of a billing limit name.
    named: [i64; 2],
}

impl Walk {
    fn new(seed: u64) -> Self {
        let mut dice = Rng::with_seed(seed);
        let limit = limit(&mut dice);
        let now = 1_790_000_000_000_000;
        Self { dice, limit, key: Key::new(7).unwrap(), row: None, now, named: [now, MONTH] }
    }

    fn step(&mut self) -> Vector {
        if self.dice.u32(..12) == 0 {
            self.limit = limit(&mut self.dice);
            self.key = Key::new(format!("k{}", self.dice.u32(..1_000))).unwrap();
        }
        let spec = self.limit.spec();
        let is_wallet = spec.kind == LimitKind::Wallet;
        let most = if is_wallet { i64::MAX } else { spec.capacity.unwrap().micros() };
        let terms = Terms::of(&self.limit, &self.key);
        self.touch(most, is_wallet);
        self.pass_time(&terms, most);
        self.name_period();
        let verb = self.dice.choice(VERBS).unwrap();
        let may_say_more = matches!(verb, "consume" | "check");
        let leaving = (may_say_more && self.dice.u32(..4) == 0).then(|| wide(&mut self.dice, most));
        let max_reserved = if verb == "reserve" || is_wallet { spec.max_reserved.micros() } else { 0 };
        let debt = leaving.map_or(max_reserved, |leaving| -leaving);
        let largest = most.saturating_add(debt);
        let amount = match self.dice.u32(..8) {
            0 => 0,
            1 => largest,
            2 => self.dice.i64(0..=largest),
            3 => 1_000_000.min(largest),
            4 => self.amount_to_a_bound(if is_wallet { 0 } else { most }, debt).min(largest),
            _ => wide(&mut self.dice, largest),
        };
        let part = (may_say_more && amount > 0 && self.dice.u32(..4) == 0).then(|| match self.dice.u32(..3) {
            0 => 1_000_000.min(amount),
            _ => wide(&mut self.dice, amount).max(1),
        });
        let actual = match self.dice.u32(..5) {
            _ if verb != "settle" => 0,
            0 => self.actual_to_a_bound(amount),
            1 | 2 => wide(&mut self.dice, amount),
            _ => wide(&mut self.dice, i64::MAX),
        };
        let ts = self.row.as_ref().map_or(self.now, |state| state.ts.micros());
        let until = (ts + self.dice.choice([0, -1, 1]).unwrap()).clamp(MIN, MAX);
        let ready_at = if verb == "cancel" { (ts.max(self.now) - self.dice.i64(0..2)).max(MIN) } else { until };
        let is_billing = spec.kind == LimitKind::Billing;
        let needs_none = !matches!(verb, "consume" | "reserve" | "check" | "debit");
        let named = (is_billing && !(needs_none && self.dice.bool())).then_some(self.named);
        let call = self.call(verb, (amount, part, leaving), actual, [until, ready_at], named);
        let row = self.row.as_ref().map(|State { value, ts, list, full_at }| {
            (value.micros(), ts.micros(), list.to_column(), full_at.micros())
        });
        let paused = self.paused();
        let expected = self.decide(call, paused).replace(LATE, &format!("settled {amount}"));
        let micros = |span: Duration| i64::try_from(span.as_micros()).unwrap();
        Vector {
            verb,
            flow: match spec.kind {
                LimitKind::TokenBucket => "c",
                LimitKind::SteppedBucket => "f",
                LimitKind::FixedWindow => "g",
                LimitKind::Monthly => "m",
                LimitKind::Billing => "b",
                _ => "w",
            },
            name: spec.name().to_owned(),
            key: self.key.as_str().to_owned(),
            rate: spec.rate.micros(),
            period: match spec.kind {
                LimitKind::Monthly => MONTH,
                LimitKind::Billing => self.named[1],
                _ => micros(spec.period),
            },
            most,
            start: named.map(|[start, _]| start).or(spec.start.map(micros)),
            row,
            now: self.now,
            amount,
            part,
            actual,
            debt,
            until,
            ready_at,
            paused,
            expected,
        }
    }

    /// An amount that takes the row as it is to the deepest debt, or to the least or the largest value that a column
    /// holds; or a micro-token more or less.
    fn amount_to_a_bound(&mut self, top: i64, debt: i64) -> i64 {
        let value = self.value();
        let deepest = value + i128::from(top) + i128::from(debt);
        let (least, largest) = (value - i128::from(i64::MIN), i128::from(i64::MAX) - value);
        self.near([deepest, least, largest])
    }

    /// A cost at which a settlement takes the row as it is to nothing, or to the least or the largest value; or a
    /// micro-token more or less.
    fn actual_to_a_bound(&mut self, amount: i64) -> i64 {
        let value = self.value() + i128::from(amount);
        self.near([i64::MIN, 0, i64::MAX].map(|bound| value - i128::from(bound)))
    }

    fn value(&self) -> i128 {
        self.row.as_ref().map_or(0, |state| state.value.micros().into())
    }

    fn near(&mut self, amounts: [i128; 3]) -> i64 {
        let amount = self.dice.choice(amounts).unwrap() + self.dice.choice([-1, 0, 1]).unwrap();
        i64::try_from(amount.clamp(0, i64::MAX.into())).unwrap()
    }

    /// Now and then the row is gone, or somebody has written another.
    fn touch(&mut self, most: i64, is_wallet: bool) {
        let dice = &mut self.dice;
        match dice.u32(..20) {
            0 => self.row = None,
            1..=4 => {
                let ts = instant(dice, self.now);
                let value = match dice.u32(..6) {
                    0 => dice.choice([i64::MIN, i64::MAX, 0, -1, -most]).unwrap(),
                    1 => dice.i64(..),
                    2 => -wide(dice, i64::MAX),
                    _ => -wide(dice, most.max(1)),
                };
                let column = match dice.u32(..10) {
                    0 => Some(vec![1, ts, 5]),
                    1 => Some(vec![2, ts, 5, 0, 1]),
                    2 => Some(vec![3]),
                    3 | 4 => Some(vec![4, instant(dice, ts).max(ts + 1), any_length(dice)]),
                    5 => Some(vec![5, instant(dice, ts).max(ts + 1), any_offset(dice)]),
                    _ => is_wallet.then(|| vec![3]),
                };
                let list = column.map_or(List::None, |column| List::from_column(&column).unwrap());
                // The writer of a mark also writes when the row is full.
                let least = if list.period_end().is_some() { ts } else { MIN };
                let full_at = Timestamp::from_micros(instant(dice, ts).max(least));
                let (value, ts) = (Tokens::from_micros(value), Timestamp::from_micros(ts));
                self.row = Some(State { value, ts, full_at, list });
            }
            _ => {}
        }
    }

    /// Callers name the period that runs, or one before or after it.
    fn name_period(&mut self) {
        let [start, length] = self.named;
        let dice = &mut self.dice;
        let what = dice.u32(..9);
        if what < 3 {
            let length = any_length(dice);
            let near = [self.now - length / 2, self.now - dice.i64(0..5 * length), self.now + dice.i64(0..2 * length)];
            let ts = self.row.as_ref().map_or(self.now, |row| row.ts.micros());
            let start = dice.choice([near[0], near[1], near[2], ts, start + length]).unwrap();
            // Within the years in which both ends of the period are instants.
            self.named = [start.clamp(MIN / 2, MAX / 2), length];
        } else if what < 5 {
            let end = self.row.as_ref().and_then(|row| row.list.period_end()).map_or(start, Timestamp::micros);
            let ends = [end, start, start + length, start + 2 * length, start + length / 9 * 8 + length];
            let at = dice.choice(ends).unwrap();
            self.now = (at - dice.i64(0..2)).clamp(MIN, MAX);
        }
    }

    /// Now and then to the very microsecond at which the row reaches a balance or is full, or to the one before.
    fn pass_time(&mut self, terms: &Terms, most: i64) {
        let dice = &mut self.dice;
        self.now = match &self.row {
            Some(row) if dice.u32(..8) == 0 => {
                let target = Tokens::from_micros(wide(dice, most));
                (terms.first_instant(row, target).micros() - dice.i64(0..2)).max(MIN)
            }
            Some(row) if dice.u32(..8) == 0 => (row.full_at.micros() - dice.i64(0..2)).max(MIN),
            Some(row) if dice.u32(..3) == 0 => instant(dice, row.ts.micros()),
            _ => instant(dice, self.now),
        };
    }

    /// The limit is or was paused, perhaps while the row was written, or since.
    fn paused(&mut self) -> Option<[i64; 2]> {
        let dice = &mut self.dice;
        let near = self.row.as_ref().map_or(self.now, |row| row.ts.micros());
        let [one, other] = [near, dice.choice([near, self.now]).unwrap()].map(|near| instant(dice, near));
        (dice.bool() && one != other).then_some([one.min(other), one.max(other)])
    }

    fn call(
        &self,
        verb: &str,
        (amount, part, leaving): (i64, Option<i64>, Option<i64>),
        actual: i64,
        [until, ready_at]: [i64; 2],
        named: Option<[i64; 2]>,
    ) -> Verb {
        let request = || {
            let request = self.limit.key(self.key.clone()).cost(Tokens::from_micros(amount));
            let request = named.iter().fold(request, |request, [start, length]| by_period(request, *start, *length));
            let request = part.iter().fold(request, |request, part| request.up_to(Tokens::from_micros(*part)));
            leaving.iter().fold(request, |request, leaving| request.leaving(Tokens::from_micros(*leaving)))
        };
        match verb {
            "consume" => Verb::consume(request()),
            "reserve" => Verb::reserve(request()),
            "check" => Verb::check(request()),
            "credit" => Verb::credit(request()),
            "debit" => Verb::debit(request()),
            "reset" => Verb::Reset(request()),
            "look" => Verb::Look(request()),
            _ => {
                let receipt = self.receipt(amount, until, ready_at);
                if verb == "settle" {
                    Verb::Settle(receipt, Tokens::from_micros(actual))
                } else {
                    Verb::Cancel(receipt)
                }
            }
        }
    }

    /// That of a charge of so much.
    fn receipt(&self, amount: i64, until: i64, ready_at: i64) -> Receipt {
        let [start, length] = self.named;
        let free = self.limit.key(self.key.clone()).cost(Tokens::ZERO);
        let is_billing = self.limit.kind == LimitKind::Billing;
        let free = Verb::consume(if is_billing { by_period(free, start, length) } else { free });
        let outcome = Plan::new([free]).unwrap().decide(&[None], &[], Timestamp::from_micros(0));
        let Ok(Answer::Granted { grant: Grant { receipt, .. }, .. }) = &outcome.answers[0] else {
            panic!("{outcome:?}")
        };
        let mut receipt = serde_json::to_value(receipt).unwrap();
        let charge = &mut receipt["charges"][0];
        (charge["until"], charge["ready_at"]) = (until.into(), ready_at.into());
        charge["refill"] = serde_json::to_value(self.limit.rate).unwrap();
        charge["cost"] = serde_json::to_value(Tokens::from_micros(amount)).unwrap();
        serde_json::from_value(receipt).unwrap()
    }

    /// The plan's answer, and the row that it leaves.
    fn decide(&mut self, call: Verb, paused: Option<[i64; 2]>) -> String {
        let pause = paused.map(|paused| {
            let [from, until] = paused.map(Timestamp::from_micros);
            Pause { from, until }
        });
        let overrides = |_: &Limit, _: &Key| Some(AppliedOverride { pause, ..AppliedOverride::default() });
        let plan = Plan::under([call], &Under { overrides: Some(&overrides), ..Under::NOTHING }).unwrap();
        let outcome = plan.decide(slice::from_ref(&self.row), &[], Timestamp::from_micros(self.now));
        let at = |instant: chrono::DateTime<chrono::Utc>| Timestamp::from(instant).micros();
        let mut told = match &outcome.answers[0] {
            Ok(Answer::Granted { grant: Grant { amount, remaining, decided_at, .. }, ready_at, .. }) => {
                let [amount, remaining] = [amount, remaining].map(|tokens| tokens.micros());
                format!("granted {amount} {remaining} {} {}", decided_at.timestamp_micros(), ready_at.micros())
            }
            Ok(Answer::Denied(denied)) => {
                let retry_at = denied.retry_at.map_or(MAX, at);
                format!("denied 0 {} {} {retry_at}", denied.remaining.micros(), at(denied.decided_at))
            }
            Ok(Answer::Done(balance)) => format!("done {}", balance.remaining.micros()),
            Ok(Answer::Settled(settlement)) => format!("settled {}", settlement.charges[0].cost.micros()),
            Err(Error::DoesNotFit { source: FitError::DebtTooDeep, .. }) => "TG003".to_owned(),
            Err(Error::DoesNotFit { source: FitError::MixedMoney, .. }) => "TG006".to_owned(),
            Err(Error::DoesNotFit { source: FitError::BalanceTooLarge, .. }) => "TG007".to_owned(),
            // The step alone answers with the charge that stands; `_change` makes it an error.
            Err(Error::TooLateToCancel { .. }) => LATE.to_owned(),
            Err(error) => panic!("{error}"),
        };
        for change in outcome.changes {
            let State { value, ts, full_at, list } = &change.state;
            let list = list.to_column().map_or_else(String::new, |column| array(&column));
            write!(told, " -> {} {}{list} {}", value.micros(), ts.micros(), full_at.micros()).unwrap();
            self.row = Some(change.state);
        }
        told
    }
}

const VERBS: [&str; 13] = [
    "consume", "consume", "consume", "reserve", "reserve", "check", "credit", "debit", "settle", "settle", "cancel",
    "reset", "look",
];

fn by_period(request: Request, start: i64, length: i64) -> Request {
    let [start, end] = [start, start + length].map(Timestamp::from_micros);
    request.period(start.into(), end.into())
}

const MONTH: i64 = 31 * 86_400_000_000;

/// Of a period, from a second to a thousand years.
fn any_length(dice: &mut Rng) -> i64 {
    match dice.u32(..4) {
        0 => wide(dice, 31_536_000_000_000_000).max(1_000_000),
        1 => dice.i64(1_000_000..100_000_000),
        _ => dice.i64(28..=31) * 86_400_000_000,
    }
}

fn any_offset(dice: &mut Rng) -> i64 {
    dice.choice([0, 0, 14 * 86_400_000_000, 30 * 86_400_000_000, MONTH - 1]).unwrap()
}

fn array(column: &[i64]) -> String {
    format!("{{{}}}", column.iter().map(i64::to_string).collect::<Vec<_>>().join(","))
}

/// From 0 to `most`, of all lengths.
fn wide(dice: &mut Rng, most: i64) -> i64 {
    if dice.u32(..60) == 0 {
        return most;
    }
    let bits = dice.u32(0..64);
    (dice.u64(..) >> 1 >> (63 - bits)).cast_signed().min(most)
}

fn limit(dice: &mut Rng) -> Limit {
    let kinds = [
        LimitKind::TokenBucket,
        LimitKind::SteppedBucket,
        LimitKind::FixedWindow,
        LimitKind::Monthly,
        LimitKind::Billing,
        LimitKind::Wallet,
    ];
    loop {
        let (kind, is_tame) = (dice.choice(kinds).unwrap(), dice.bool());
        let name = dice.choice(["a", "send_message", "é"]).unwrap();
        let unit = dice.choice([1, 1_000, 1_000_000]).unwrap();
        let period = if is_tame {
            dice.choice([1, 7, 1_000_000, 60_000_000, 3_600_000_000, 86_400_000_000]).unwrap()
        } else {
            wide(dice, 31_536_000_000_000_000).max(1)
        };
        let rate = if is_tame { dice.i64(1..2_000) * unit } else { wide(dice, i64::MAX).max(1) };
        let capacity = if is_tame { dice.i64(0..3_000) * unit } else { wide(dice, i64::MAX) };
        let max_reserved = match dice.u32(..5) {
            0 => 0,
            1 => i64::MAX,
            2 => wide(dice, i64::MAX),
            _ => wide(dice, capacity),
        };
        let span = |micros: i64| Duration::from_micros(micros.unsigned_abs());
        let start = dice.bool().then(|| span(dice.i64(..).unsigned_abs().cast_signed().abs() % period));
        let spec = if kind == LimitKind::Wallet {
            LimitSpec::new(name, kind, Tokens::ZERO, Duration::ZERO)
        } else {
            let period = if kind.has_period() { span(period) } else { Duration::ZERO };
            LimitSpec::new(name, kind, Tokens::from_micros(rate), period).with(|spec| {
                spec.capacity = Some(Tokens::from_micros(capacity));
                spec.start = match kind {
                    LimitKind::FixedWindow => start,
                    LimitKind::Monthly => start.map(|_| span(any_offset(dice))),
                    _ => None,
                };
            })
        };
        let max_reserved = if kind == LimitKind::Billing { 0 } else { max_reserved };
        if let Ok(limit) = Limit::try_from(spec.with(|spec| spec.max_reserved = Tokens::from_micros(max_reserved))) {
            return limit;
        }
    }
}

fn instant(dice: &mut Rng, near: i64) -> i64 {
    let instant = match dice.u32(..12) {
        0 => dice.choice([MIN, MAX, 0, -1, 1, MIN + 1, MAX - 1]).unwrap(),
        1 => dice.i64(MIN..=MAX),
        2 => near.saturating_sub(wide(dice, MAX)),
        3 => near.saturating_add(wide(dice, MAX)),
        4 | 5 => near - wide(dice, 1 << 33),
        _ => near.saturating_add(wide(dice, 1 << 36)),
    };
    instant.clamp(MIN, MAX)
}

/// The answers of the functions to each.
async fn told(conn: &mut PgConnection, vectors: &[Vector]) -> Vec<String> {
    macro_rules! column {
        ($vector:ident => $value:expr) => {
            vectors.iter().map(|$vector| $value).collect::<Vec<_>>()
        };
    }
    let sql = "select public.step(v, f::\"char\", name, k, r, p, m, s, va, ts, l::int8[], fu, n, a, pa, ac, d, u, re, pd::int8[])
                 from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::int8[], $6::int8[], $7::int8[],
                   $8::int8[],
                             $9::int8[], $10::int8[], $11::text[], $12::int8[], $13::int8[], $14::int8[], $15::int8[],
                             $16::int8[], $17::int8[], $18::int8[], $19::int8[], $20::text[])
                      with ordinality q (v, f, name, k, r, p, m, s, va, ts, l, fu, n, a, pa, ac, d, u, re, pd, place)
                order by place";
    let query = sqlx::query(sql)
        .bind(column!(vector => vector.verb))
        .bind(column!(vector => vector.flow))
        .bind(column!(vector => &*vector.name))
        .bind(column!(vector => &*vector.key))
        .bind(column!(vector => vector.rate))
        .bind(column!(vector => vector.period))
        .bind(column!(vector => vector.most))
        .bind(column!(vector => vector.start))
        .bind(column!(vector => vector.row.as_ref().map(|(value, ..)| *value)))
        .bind(column!(vector => vector.row.as_ref().map(|(_, ts, ..)| *ts)))
        .bind(column!(vector => vector.row.as_ref().and_then(|(_, _, column, _)| column.as_deref().map(array))))
        .bind(column!(vector => vector.row.as_ref().map(|(.., full_at)| *full_at)))
        .bind(column!(vector => vector.now))
        .bind(column!(vector => vector.amount))
        .bind(column!(vector => vector.part))
        .bind(column!(vector => vector.actual))
        .bind(column!(vector => vector.debt))
        .bind(column!(vector => vector.until))
        .bind(column!(vector => vector.ready_at))
        .bind(column!(vector => vector.paused.map(|span| array(&span))));
    query.fetch_all(conn).await.unwrap().iter().map(|row| row.get(0)).collect()
}

/// The answer to a cancellation that is too late.
const LATE: &str = "too late";
