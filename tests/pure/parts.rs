//! Parts of a cost, and tokens that must stay behind, against the exact model.

use num_bigint::BigInt;
use num_integer::Integer;
use num_traits::Zero;
use proptest::collection::vec;
use proptest::prelude::*;
use tollgate::algebra::Timestamp;
use tollgate::plan::{Answer, Verb};
use tollgate::{Call, CallError, DAY, Error, Grant, Limit, LimitKind, MINUTE, Reason, Request, SECOND, Source, Tokens};

use crate::model::Model;
use crate::story::{Amount, EPOCH, amounts, any_kind, capacity, config, gaps, limits, named, places};
use crate::world::{World, at, due, micros, sec, terms_of, tokens};

/// One request of a call, of one of its limits.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    which: usize,
    takes_part: bool,
    cost: Amount,
    leaving: Option<Amount>,
}

/// The sums of one limit in a call, in micro-tokens.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sum {
    pub(crate) whole: BigInt,
    pub(crate) parts: BigInt,
    leaving: BigInt,
}

pub(crate) fn asked(amounts: impl Strategy<Value = Amount> + Clone + 'static) -> impl Strategy<Value = Asked> {
    let leaving = prop::option::of(amounts.clone());
    (0_usize..4, any::<bool>(), amounts, leaving).prop_map(|(which, takes_part, cost, leaving)| Asked {
        which,
        takes_part,
        cost,
        leaving,
    })
}

/// The cost of which parts are taken, the share of it that is the least, in thousandths, and whether both are whole
/// tokens.
pub(crate) fn parts() -> impl Strategy<Value = (Amount, i64, bool)> {
    (amounts(), 0_i64..=1_000, any::<bool>())
}

fn few() -> impl Strategy<Value = Amount> + Clone + 'static {
    (0_i64..9_000_000).prop_map(Amount::Micros)
}

/// A call and its sums, by limit.
pub(crate) struct Asking {
    pub(crate) requests: Vec<Request>,
    pub(crate) sums: Vec<Sum>,
    most: BigInt,
    least: BigInt,
}

impl Asking {
    pub(crate) fn of(
        limits: &[Request],
        asked: &[Asked],
        parts: &(Amount, i64, bool),
        amount: impl Fn(&Amount, &Request) -> i64,
    ) -> Self {
        let (most, share, whole) = parts;
        let most = amount(most, &limits[0]).max(1);
        let least = i64::try_from(1 + i128::from(most - 1) * i128::from(*share) / 1_000).unwrap();
        let round = |micros: i64| if *whole { (micros + 999_999) / 1_000_000 * 1_000_000 } else { micros };
        let [most, least] = [most, least].map(round);
        let spec = |request: &Request| request.limit().spec();
        let owes = |request: &Request| spec(request).kind == LimitKind::Wallet;
        let least_left = |request: &Request| if owes(request) { -spec(request).max_reserved.micros() } else { 0 };
        let sum = |request: &Request| Sum { leaving: least_left(request).into(), ..Sum::default() };
        let (mut requests, mut sums) = (Vec::new(), limits.iter().map(sum).collect::<Vec<_>>());
        for Asked { which, takes_part, cost, leaving } in asked {
            let which = which % limits.len();
            let (limit, sum) = (&limits[which], &mut sums[which]);
            let mut request = limit.clone();
            if *takes_part {
                request = request.cost(micros(most)).up_to(micros(least));
                sum.parts += 1;
            } else {
                let cost = amount(cost, limit);
                request = request.cost(micros(cost));
                sum.whole += cost;
            }
            if let Some(leaving) = leaving {
                let leaving = amount(leaving, limit);
                request = request.leaving(micros(leaving));
                sum.leaving = sum.leaving.clone().max(leaving.into());
            }
            requests.push(request);
        }
        Self { requests, sums, most: most.into(), least: least.into() }
    }

    pub(crate) fn is_asked(&self, which: usize) -> bool {
        self.requests.iter().any(|request| request.limit().name() == format!("limit-{which}"))
    }

    fn call(&self) -> Verb {
        Verb::consume(self.requests.clone())
    }

    pub(crate) fn needs(&self, which: usize) -> BigInt {
        let Sum { whole, parts, leaving } = &self.sums[which];
        whole + parts * &self.least + leaving
    }

    /// The number that each part is, over these balances: the most that every limit has; `None` for a refusal.
    pub(crate) fn part(&self, balances: &[BigInt]) -> Option<BigInt> {
        let mut part = self.most.clone();
        for (which, balance) in balances.iter().enumerate().filter(|(which, _)| self.is_asked(*which)) {
            let Sum { whole, parts, leaving } = &self.sums[which];
            if *balance < self.needs(which) {
                return None;
            }
            if !parts.is_zero() {
                part = part.min((balance - whole - leaving).div_floor(parts));
            }
        }
        let token = BigInt::from(1_000_000);
        let is_whole = [&self.most, &self.least].iter().all(|amount| amount.is_multiple_of(&token));
        Some(if is_whole { part.div_floor(&token) * token } else { part })
    }

    /// Why a limit refuses.
    fn reason(&self, which: usize, request: &Request, balance: &BigInt) -> Reason {
        let Sum { whole, parts, .. } = &self.sums[which];
        let spec = request.limit().spec();
        let owed = if spec.kind == LimitKind::Wallet { spec.max_reserved.micros() } else { 0 };
        match spec.kind {
            _ if balance - whole - parts * &self.least >= BigInt::from(-owed) => Reason::HeldBack,
            LimitKind::Concurrency => Reason::Leased,
            _ => Reason::Short,
        }
    }

    pub(crate) fn takes_part(&self) -> bool {
        self.sums.iter().any(|sum| !sum.parts.is_zero())
    }

    /// Compares an answer with what these balances demand.
    fn compare(
        &self,
        world: &mut World,
        limits: &[Request],
        balances: &[BigInt],
        now: Timestamp,
    ) -> Result<Option<BigInt>, TestCaseError> {
        let before = world.clone();
        match (world.call(self.call(), now), self.part(balances)) {
            (Ok(Answer::Granted { grant: Grant { amount, receipt, remaining, .. }, .. }), Some(part)) => {
                let mut least_left: Option<BigInt> = None;
                let mut taken_of_all = BigInt::zero();
                for (which, limit) in limits.iter().enumerate().filter(|(which, _)| self.is_asked(*which)) {
                    let Sum { whole, parts, leaving } = &self.sums[which];
                    let taken = whole + parts * &part;
                    let left = &balances[which] - &taken;
                    prop_assert!(left >= *leaving);
                    prop_assert_eq!(BigInt::from(world.look(limit.clone(), now).remaining.micros()), left.clone());
                    least_left = Some(least_left.map_or(left.clone(), |least| least.min(left)));
                    taken_of_all += taken;
                }
                prop_assert_eq!(BigInt::from(remaining.micros()), least_left.unwrap());
                let charged: BigInt = receipt.charges.iter().map(|charge| BigInt::from(charge.cost.micros())).sum();
                prop_assert_eq!(charged, taken_of_all);
                if self.takes_part() {
                    prop_assert_eq!(BigInt::from(amount.micros()), part.clone());
                }
                Ok(Some(part))
            }
            (Ok(Answer::Denied(denied)), None) => {
                prop_assert_eq!(&*world, &before, "a refusal changes nothing");
                let others = denied.others.iter().map(|other| (&other.limit, other.reason));
                for (limit, reason) in [(&denied.limit, denied.reason)].into_iter().chain(others) {
                    let which = limits.iter().position(|request| request.limit().name() == limit).unwrap();
                    prop_assert_eq!(reason, self.reason(which, &limits[which], &balances[which]));
                }
                Ok(None)
            }
            (answer, part) => Err(TestCaseError::fail(format!("{answer:?} for {part:?}"))),
        }
    }
}

proptest! {
    #![proptest_config(config())]

    /// Over several limits, requests for one of them and for others, mixed with plain ones: the number of tokens of
    /// each part, the tokens that stay behind, the refusal, and its instant. A later caller gets no less, and the order
    /// does not matter.
    #[test]
    fn parts_are_what_the_exact_balances_leave(
        limits in vec(limits(any_kind()), 1..4),
        rows in vec(prop::option::of(places()), 3),
        asked in vec(asked(amounts().boxed()), 1..5),
        parts in parts(),
        rest in gaps(),
    ) {
        let now = at(EPOCH);
        let mut world = World::default();
        let limits: Vec<_> = limits.iter().enumerate().map(|(n, limit)| named(limit, n)).collect();
        let requests: Vec<_> = limits.iter().map(Limit::global).collect();
        for (request, place) in requests.iter().zip(&rows) {
            if let Some(place) = place {
                world.put(request, place.state(request, now));
            }
        }
        let amount = |amount: &Amount, request: &Request| amount.resolve(&world, request, now, false).micros();
        let asking = Asking::of(&requests, &asked, &parts, amount);
        let balances = |now| {
            let balance = |request: &Request| {
                let row = world.state(request).unwrap_or_else(|| terms_of(request).full(now));
                Model::of(request).balance(&row, now).floor().to_integer()
            };
            requests.iter().map(balance).collect::<Vec<_>>()
        };
        let is_too_much = |which| asking.needs(which) > capacity(&limits[which]).micros().into();
        let never = (0..limits.len()).any(|which| asking.is_asked(which) && is_too_much(which));
        if never {
            let error = world.clone().call(asking.call(), now).unwrap_err();
            prop_assert!(matches!(error, Error::CostExceedsCapacity { .. }), "{error}");
            return Ok(());
        }
        let first = asking.compare(&mut world.clone(), &requests, &balances(now), now)?;
        let later = rest.after(&limits[0], now, &[]);
        let then = asking.compare(&mut world.clone(), &requests, &balances(later), later)?;
        prop_assert!(then >= first, "later alone is never less");
        let backwards = Verb::consume(asking.requests.iter().rev().cloned().collect::<Call>());
        let (mut one, mut other) = (world.clone(), world.clone());
        let answers = [one.call(asking.call(), now).is_ok(), other.call(backwards, now).is_ok()];
        prop_assert_eq!(answers, [true, true]);
        prop_assert_eq!(&one, &other);
        let Ok(Answer::Denied(denied)) = world.clone().call(asking.call(), now) else { return Ok(()) };
        let retry_at = due(denied.retry_at);
        if retry_at == Timestamp::MAX {
            return Ok(()); // Beyond the end of time.
        }
        prop_assert!(asking.compare(&mut world.clone(), &requests, &balances(retry_at), retry_at)?.is_some());
        let early = at(retry_at.micros() - 1);
        prop_assert!(asking.compare(&mut world.clone(), &requests, &balances(early), early)?.is_none());
    }

    /// The same for limits with lists, several rows, or an overdraft, by the balances that they report.
    #[test]
    fn parts_of_windows_leases_shards_and_wallets_are_what_is_left(
        before in vec((0_usize..4, 0_i64..9_000_000, 0_i64..2_000_000), 0..12),
        asked in vec(asked(few()), 1..5),
        parts in (few(), 0_i64..=1_000, any::<bool>()),
        later in 0_i64..5_000_000,
    ) {
        let limits = [
            Limit::sliding_window("limit-0", 8, SECOND),
            Limit::token_bucket("limit-1", 6, SECOND).capacity(9).shards(4),
            Limit::concurrency("limit-2", 7, SECOND),
            Limit::wallet("limit-3").overdraft(2),
        ];
        let requests = limits.each_ref().map(Limit::global);
        let (mut world, mut now) = (World::default(), at(EPOCH));
        world.balance(Verb::credit(requests[3].clone().cost(10)), now);
        for (which, cost, gap) in before {
            now = at(now.micros() + gap);
            let most = world.look(requests[which].clone(), now).remaining.max(Tokens::ZERO);
            world.call(Verb::consume(requests[which].clone().cost(micros(cost).min(most))), now).unwrap();
        }
        let asking = Asking::of(&requests, &asked, &parts, |amount, _| match amount {
            Amount::Micros(micros) => *micros,
            other => panic!("{other:?}"),
        });
        let is_too_much = |(which, most): (_, i64)| {
            asking.is_asked(which) && asking.needs(which) > (most * 1_000_000).into()
        };
        if [8, 9, 7].into_iter().enumerate().any(is_too_much) {
            let error = world.call(asking.call(), now).unwrap_err();
            prop_assert!(matches!(error, Error::CostExceedsCapacity { .. }), "{error}");
            return Ok(());
        }
        let balances = |now| {
            requests.each_ref().map(|request| BigInt::from(world.look(request.clone(), now).remaining.micros()))
        };
        let compare = |now| asking.compare(&mut world.clone(), &requests, &balances(now), now);
        let first = compare(now)?;
        prop_assert!(compare(at(now.micros() + later))? >= first, "later alone is never less");
        if let Ok(Answer::Denied(denied)) = world.clone().call(asking.call(), now)
            && let Some(retry_at) = denied.retry_at.map(Timestamp::from)
        {
            prop_assert!(compare(retry_at)?.is_some());
            prop_assert!(compare(at(retry_at.micros() - 1))?.is_none());
        }
    }
}

const USER: Limit = Limit::token_bucket("user", 10, MINUTE);
const DAILY: Limit = Limit::fixed_window("daily", 100, DAY).start(std::time::Duration::ZERO);

#[test]
fn a_part_is_granted_once_and_a_repeat_says_how_much() {
    let mut world = World::default();
    let ask = |least| {
        Verb::consume(
            Call::from([USER.global().cost(8).up_to(least), DAILY.global().cost(8).up_to(least)]).once("batch"),
        )
    };
    world.granted(USER.global().cost(4), sec(0));
    let amount = |world: &mut World, now| match world.call(ask(2), now).unwrap() {
        Answer::Granted { grant: Grant { amount, source, receipt, standings, .. }, .. } => {
            assert!(receipt.charges.iter().all(|charge| charge.cost == amount));
            assert!(standings.iter().all(|standing| standing.cost == amount));
            (amount, source)
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(amount(&mut world, sec(0)), (tokens(6), Source::Database));
    assert_eq!(amount(&mut world, sec(30)), (tokens(6), Source::Repeated));
    assert_eq!(world.look(DAILY.global(), sec(30)).remaining, tokens(94));
    let other = world.call(ask(1), sec(30)).unwrap_err();
    assert!(matches!(other, Error::OnceMismatch { .. }), "{other}");
    let kept = Verb::consume(USER.global().cost(1).leaving(2).once("batch"));
    assert!(matches!(world.call(kept, sec(30)), Err(Error::OnceMismatch { .. })));
}

#[test]
fn what_cannot_be_a_part_or_stay_behind_is_an_error_before_anything_is_taken() {
    let (part, rest) = (|| USER.global().cost(4).up_to(2), || USER.global().leaving(2));
    for (call, expected) in [
        (Verb::consume(USER.global().cost(4).up_to(0)), CallError::Least),
        (Verb::consume(USER.global().cost(4).up_to(5)), CallError::Least),
        (Verb::consume([part(), DAILY.global().cost(5).up_to(2)]), CallError::PartsDiffer),
        (Verb::consume([part(), USER.global().cost(4).up_to(3)]), CallError::PartsDiffer),
        (Verb::reserve(part()), CallError::WrongVerb { option: "up_to" }),
        (Verb::reserve(rest()), CallError::WrongVerb { option: "leaving" }),
        (Verb::credit(part()), CallError::WrongVerb { option: "up_to" }),
        (Verb::debit(rest()), CallError::WrongVerb { option: "leaving" }),
    ] {
        let error = World::default().call(call, sec(0)).unwrap_err();
        assert!(matches!(&error, Error::Call { source, .. } if *source == expected), "{error} {expected}");
        assert!(error.is_bad_input());
    }
    let never = [USER.global().cost(9).leaving(2), USER.global().cost(10).up_to(5).leaving(6)];
    for request in never {
        let error = World::default().call(Verb::consume(request), sec(0)).unwrap_err();
        assert!(matches!(error, Error::CostExceedsCapacity { .. }), "{error}");
    }
    for request in [USER.global().up_to(-1), USER.global().leaving(f64::NAN)] {
        let error = World::default().call(Verb::consume(request), sec(0)).unwrap_err();
        assert!(matches!(error, Error::Call { source: CallError::Cost(_), .. }), "{error}");
    }
    let request = USER.key(1).cost(4).up_to(2).leaving(1);
    let written = serde_json::to_string(&request).unwrap();
    assert_eq!(serde_json::from_str::<Request>(&written).unwrap(), request);
}
