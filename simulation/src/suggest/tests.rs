use proptest::prelude::*;
use tollgate::algebra::Timestamp;
use tollgate::plan::Answer;
use tollgate::{MINUTE, SECOND, Tokens};

use super::*;
use crate::run::Simulation;
use crate::trial::{Rule, Trial};

#[test]
fn bursts_that_come_again_need_their_size_at_once_and_in_each_period() {
    for (size, period) in [(1, SECOND), (7, MINUTE), (40, Duration::from_millis(1_500))] {
        let found = ask("0%", period).answer(bursts(5, size, period, 20)).unwrap();
        assert_eq!(numbers(found.chosen()), (size, size));
        let tried = |limit: &Limit| refused(limit, &bursts(5, size, period, 20));
        assert_eq!(tried(&found.chosen().limit), (0, 0));
        if size > 1 {
            let less = |rate: u64, capacity| Limit::token_bucket("api", rate, period).capacity(capacity);
            let whole = u64::try_from(size).unwrap();
            assert_eq!(tried(&less(whole, whole - 1)), (100, 5), "one of each burst");
            assert!(tried(&less(whole - 1, whole)).0 > 0, "the next bursts find less");
        }
    }
}

#[test]
fn steady_calls_need_their_rate_and_one_at_once() {
    let calls = (0..600).map(|second| arrival("ada", second * 1_000_000, 1));
    let found = ask("0%", MINUTE).answer(calls).unwrap();
    assert_eq!(numbers(found.chosen()), (60, 1), "of 600 in ten minutes each second one");
}

#[test]
fn a_share_of_the_keys_may_be_refused_and_no_more() {
    let greedy = |count: i64| (0..count).flat_map(|key| bursts_of(&format!("greedy-{key}"), 9, MINUTE, 3));
    let modest = |count: i64| (0..count).flat_map(|key| bursts_of(&format!("modest-{key}"), 3, MINUTE, 30));
    // 1 % of a hundred keys is one, and 1 % of 8 937 calls are 89, of which the greedy one needs 18.
    let found = ask("1%", MINUTE).answer(greedy(1).chain(modest(99))).unwrap();
    let Choice { refused_calls, refused_keys, .. } = *found.chosen();
    assert_eq!((found.calls, found.keys, found.allowed_calls, found.allowed_keys), (8_937, 100, 89, 1));
    assert_eq!((numbers(found.chosen()), refused_calls, refused_keys), ((3, 3), 18, 1));
    let two = ask("1%", MINUTE).answer(greedy(2).chain(modest(98))).unwrap();
    assert_eq!((two.chosen().refused_keys, two.chosen().refused_calls), (0, 0), "one of two is one too many");
}

#[test]
fn a_share_of_the_calls_may_be_refused_and_no_more() {
    // Half of the keys may be refused, and a tenth of the calls: 10 of the 60 and 40 in one moment.
    let calls = [("ada", 60), ("bob", 40)].into_iter().flat_map(|(key, size)| bursts_of(key, size, MINUTE, 1));
    let found = ask("50%", MINUTE).answer(calls.clone()).unwrap();
    assert_eq!(numbers(found.chosen()), (1, 40), "the key is what binds");
    let found = Question { refuse_at_most: "10%".parse().unwrap(), is_global: true, ..ask("0%", MINUTE) };
    let found = found.answer(calls).unwrap();
    assert_eq!((numbers(found.chosen()), found.chosen().refused_calls), ((1, 90), 10));
}

#[test]
fn a_window_is_as_large_as_the_most_in_a_period() {
    let calls = || bursts_of("ada", 10, Duration::from_secs(40), 5).chain(bursts_of("bob", 1, MINUTE, 5));
    let sliding = Question { kind: LimitKind::SlidingWindow, ..ask("0%", MINUTE) };
    assert_eq!(numbers(sliding.answer(calls()).unwrap().chosen()), (20, 20), "two bursts are in some minute");
    let fixed = Question { kind: LimitKind::FixedWindow, ..ask("0%", MINUTE) }.answer(calls()).unwrap();
    assert_eq!(numbers(fixed.chosen()), (20, 20));
    let sizes: Vec<_> = fixed.choices.iter().map(|choice| numbers(choice).0).collect();
    assert_eq!(sizes, [5, 10, 20]);
    for choice in &fixed.choices {
        let calls: Vec<_> = sorted(calls());
        assert_eq!(refused(&choice.limit, &calls), (choice.refused_calls, choice.refused_keys));
    }
}

#[test]
fn where_costs_differ_more_tokens_may_refuse_more_calls() {
    let calls = [5, 1, 1, 1, 1].map(|cost| arrival("ada", 0, cost));
    let limit = |capacity| Limit::token_bucket("api", 1, MINUTE).capacity(capacity);
    assert_eq!([4, 5, 9].map(|capacity| refused(&limit(capacity), &calls).0), [1, 4, 0]);
    let question = Question { is_global: true, ..ask("20%", MINUTE) };
    let found = question.answer(calls).unwrap();
    let caveat = "costs differ, so a smaller number may be enough, too";
    assert!(found.caveats.iter().any(|line| line.starts_with(caveat)), "{:?}", found.caveats);
}

#[test]
fn a_trace_that_is_too_short_is_told_with_its_figures() {
    let told = |share: &str, per| {
        let once = (0..39).flat_map(|key| bursts_of(&key.to_string(), 3, SECOND, 1));
        ask(share, per).answer(once.chain(bursts_of("ada", 3, SECOND, 61))).unwrap().caveats.join("\n")
    };
    assert_eq!(told("0%", SECOND), "");
    assert_eq!(told("5%", MINUTE), "", "two keys, and a minute");
    assert_eq!(
        told("1%", MINUTE),
        "1 % of 40 keys is less than one, so none may be refused: it takes 100 keys to tell"
    );
    let lines = [
        "0.01 % of 300 calls is less than one, so none may be refused: it takes 10000 calls to tell",
        "0.01 % of 40 keys is less than one, so none may be refused: it takes 10000 keys to tell",
        "the trace spans 1m, less than the period of 2m: it tells nothing of a second period",
    ];
    assert_eq!(told("0.01%", 2 * MINUTE), lines.join("\n"));
    let filling = ask("0%", SECOND).answer([0, 0, 0, 0, 0, 2_000_000].map(|at| arrival("ada", at, 1))).unwrap();
    assert_eq!(
        filling.caveats,
        ["the bucket takes 5s to fill, and the trace spans 2s: a longer one may need a higher rate"]
    );
}

#[test]
fn what_has_no_answer_is_an_error() {
    let fault = |question: Question, calls: &[Arrival]| question.answer(calls.to_vec()).unwrap_err();
    let one = [arrival("ada", 0, 1)];
    assert_eq!(fault(ask("0%", SECOND), &[]), "there is no call");
    let wallet = Question { kind: LimitKind::Wallet, ..ask("0%", SECOND) };
    assert!(fault(wallet, &one).starts_with("no trace tells the numbers of a wallet"));
    let zero = fault(ask("0%", Duration::ZERO), &one);
    assert_eq!(zero, "limit \"api\": the period is zero");
    let much = [Tokens::MAX, Tokens::ONE].map(|cost| Arrival { cost, ..one[0].clone() });
    assert_eq!(fault(ask("0%", SECOND), &much), "the calls of key \"ada\" cost more than a number of tokens holds");
}

#[test]
fn a_share_is_read_exactly() {
    let of = |text: &str, count| text.parse::<Share>().map(|share| share.of(count));
    assert_eq!(of("0.1%", 999), Ok(0));
    assert_eq!(of("0.1%", 1_000), Ok(1));
    assert_eq!(of("33.333333%", 3_000_000), Ok(999_999));
    assert_eq!((of("0%", 7), of("100 %", 7)), (Ok(0), Ok(7)));
    assert_eq!("0.3%".parse::<Share>().unwrap().least(), Some(334));
    for wrong in ["0.1", "%", "-1%", "100.000001%", "1e-3%", "0.00000001%"] {
        assert!(wrong.parse::<Share>().is_err(), "{wrong}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    /// The figures of each choice are those of one run over all calls, and one token less is not within the share.
    #[test]
    fn each_choice_is_enough_and_one_less_is_not(calls in traffic(3), percent in 0..60_u32, kind in 0..3_usize) {
        let kind = [LimitKind::TokenBucket, LimitKind::FixedWindow, LimitKind::SlidingWindow][kind];
        let question = Question { kind, ..ask(&format!("{percent}%"), 7 * SECOND) };
        let found = question.answer(calls.clone()).unwrap();
        let calls = sorted(calls);
        for choice in &found.choices {
            prop_assert_eq!(refused(&choice.limit, &calls), (choice.refused_calls, choice.refused_keys));
        }
        let is_within = |(calls, keys)| calls <= found.allowed_calls && keys <= found.allowed_keys;
        let is_bucket = kind == LimitKind::TokenBucket;
        let fits = if is_bucket { &found.choices[..] } else { &found.choices[found.choice..=found.choice] };
        for Choice { limit, refused_calls, refused_keys } in fits {
            prop_assert!(is_within((*refused_calls, *refused_keys)));
            // Nothing less was tried at the end of a curve, where only the highest rate was.
            let is_end = found.choices.len() > 1 && limit.most() == found.choices.last().unwrap().limit.most();
            if limit.most() > Tokens::ONE && !(is_end && is_bucket) {
                prop_assert!(!is_within(refused(&less(limit), &calls)), "{limit:?}");
            }
        }
    }

    /// For calls of one cost, more tokens never refuse more, where a refill is exact. So a bisection finds the least.
    #[test]
    fn calls_of_one_cost_are_refused_less_by_more_tokens(calls in traffic(1), rate in 1..5_u64, capacity in 1..12_u64) {
        let calls = sorted(calls);
        let limits = [
            |rate, capacity| Limit::token_bucket("api", rate, SECOND).capacity(capacity),
            |_, size| Limit::fixed_window("api", size, 7 * SECOND),
            |_, size| Limit::sliding_window("api", size, 7 * SECOND),
        ];
        for limit in limits {
            let (calls_before, keys_before) = refused(&limit(rate, capacity), &calls);
            for more in [limit(rate, capacity + 1), limit(rate + 1, capacity)] {
                let (calls_then, keys_then) = refused(&more, &calls);
                prop_assert!(calls_then <= calls_before && keys_then <= keys_before, "{more:?}");
            }
        }
    }

    /// More tokens never refuse another key, for calls of any costs and for refills that are rounded.
    #[test]
    fn keys_are_refused_less_by_more_tokens(calls in traffic(9), rate in 1..20_u64, capacity in 1..20_u64) {
        let calls = sorted(calls);
        let keys = |rate, capacity| refused(&Limit::token_bucket("api", rate, 7 * SECOND).capacity(capacity), &calls).1;
        prop_assert!(keys(rate, capacity + 1) <= keys(rate, capacity));
        prop_assert!(keys(rate + 1, capacity) <= keys(rate, capacity));
    }
}

/// Up to five keys within half a minute.
fn traffic(most: u32) -> impl Strategy<Value = Vec<Arrival>> {
    let call = (0..5_u8, 0..30_000_000_i64, 1..=most).prop_map(|(key, at, cost)| {
        // Often at one instant.
        let at = if at % 3 == 0 { at } else { at / 1_000_000 * 1_000_000 };
        arrival(&key.to_string(), at, cost)
    });
    prop::collection::vec(call, 1..40)
}

/// Calls and keys that a limit refuses, in one run over all callers.
fn refused(limit: &Limit, calls: &[Arrival]) -> (usize, usize) {
    let rules = vec![Rule { limit: limit.clone(), is_global: false, follows: None }];
    let mut simulation = Simulation::new(Trial { rules, ..Trial::default() });
    let (mut count, mut keys) = (0, HashSet::new());
    for call in calls {
        if !matches!(simulation.call(call, |_, _, _| ()).unwrap(), Some(Answer::Granted { .. })) {
            count += 1;
            keys.insert(call.key.clone());
        }
    }
    (count, keys.len())
}

fn less(limit: &Limit) -> Limit {
    let one_less = |tokens: Tokens| tokens.checked_sub(Tokens::ONE).unwrap();
    let spec = limit.spec().with(|spec| {
        if spec.kind == LimitKind::TokenBucket {
            spec.capacity = spec.capacity.map(one_less);
        } else {
            (spec.rate, spec.capacity) = (one_less(spec.rate), None);
        }
    });
    spec.try_into().unwrap()
}

fn ask(share: &str, per: Duration) -> Question {
    let refuse_at_most = share.parse().unwrap();
    Question { name: "api".to_owned(), kind: LimitKind::TokenBucket, per, refuse_at_most, is_global: false }
}

/// So many keys with bursts of a size, one each period.
fn bursts(keys: i64, size: i64, period: Duration, times: i64) -> Vec<Arrival> {
    sorted((0..keys).flat_map(|key| bursts_of(&key.to_string(), size, period, times)))
}

fn bursts_of(key: &str, size: i64, period: Duration, times: i64) -> impl Iterator<Item = Arrival> + Clone + use<> {
    let period = i64::try_from(period.as_micros()).unwrap();
    let key = key.to_owned();
    (0..times).flat_map(move |time| (0..size).map(move |_| time * period)).map(move |at| arrival(&key, at, 1))
}

fn sorted(calls: impl IntoIterator<Item = Arrival>) -> Vec<Arrival> {
    let mut calls: Vec<_> = calls.into_iter().collect();
    calls.sort_by_key(|call| call.at);
    calls
}

fn arrival(key: &str, micros: i64, cost: u32) -> Arrival {
    Arrival { at: Timestamp::from_micros(micros), key: Key::new(key).unwrap(), cost: Tokens::new(cost) }
}

fn numbers(choice: &Choice) -> (i64, i64) {
    (choice.limit.rate.whole(), choice.limit.most().whole())
}
