//! The fields of the draft.

use std::time::Duration;

use http::HeaderMap;
use proptest::prelude::*;
use tollgate::algebra::Timestamp;
use tollgate::{DAY, Decision, HOUR, Limit, MINUTE, Request, SECOND, Tokens};
use tollgate_http::{Facts, Fields, Format};

use crate::parser::{dictionary, integer, list};
use crate::world::{World, millis};

fn text<'h>(headers: &'h HeaderMap, field: &str) -> &'h str {
    headers.get(field).map_or("", |value| value.to_str().unwrap())
}

/// The policy of a limit, as it is announced.
fn policy(limit: &Limit) -> String {
    text(&Fields::default().of(Facts::default().announcing([limit])), "ratelimit-policy").to_owned()
}

/// `r` and `t` after so many calls at once, of one token each, at so many milliseconds.
fn after(limit: &Limit, calls: usize, at: i64) -> String {
    let mut world = World::default();
    let decisions: Vec<_> = (0..calls).map(|_| world.consume([limit.global()], millis(at))).collect();
    text(&Fields::default().of(decisions.last().unwrap()), "ratelimit").to_owned()
}

#[test]
fn the_fields_are_those_of_the_draft() {
    let limit = Limit::token_bucket("default", 10, MINUTE);
    let headers = Fields::default().of(&World::default().consume([limit.global()], millis(0)));
    assert_eq!(text(&headers, "ratelimit-policy"), r#""default";q=10;w=60"#);
    assert_eq!(text(&headers, "ratelimit"), r#""default";r=9;t=6"#);
    assert_eq!(headers.len(), 2, "no Retry-After on a grant");
}

#[test]
fn a_sliding_window_is_told_by_its_number_and_its_period() {
    let limit = Limit::sliding_window("slides", 10, MINUTE);
    assert_eq!(policy(&limit), r#""slides";q=10;w=60"#);
    assert_eq!(after(&limit, 4, 0), r#""slides";r=6;t=60"#, "the first leaves it then");
    assert_eq!(after(&limit, 11, 0), r#""slides";r=0;t=60"#);
}

#[test]
fn no_wait_is_told_beside_one_of_another_layer_that_is_no_number() {
    let limit = Limit::token_bucket("default", 10, MINUTE);
    let granted = World::default().consume([limit.global()], millis(0));
    for (other, told) in [
        ("6", r#""default";r=9;t=6"#),
        ("5", r#""default";r=9"#),
        ("Wed, 01 Jan 2025 00:00:09 GMT", r#""default";r=9"#),
        ("-1", r#""default";r=9"#),
        ("1e3", r#""default";r=9"#),
    ] {
        let mut headers = HeaderMap::new();
        headers.insert("retry-after", other.parse().unwrap());
        Fields::default().write(&granted, &mut headers);
        assert_eq!((text(&headers, "ratelimit"), text(&headers, "retry-after")), (told, other));
    }
}

#[test]
fn retry_after_is_never_0() {
    let limit = Limit::fixed_window("f76", 1, Duration::from_millis(1_500)).start(Duration::ZERO);
    let mut world = World::default();
    assert!(world.consume([limit.global()], millis(0)).is_granted());
    let refused = world.consume([limit.global()], millis(1_100));
    let headers = Fields::default().of(&refused);
    assert_eq!(text(&headers, "retry-after"), "1");
    assert_eq!(text(&headers, "ratelimit"), r#""f76";r=0;t=1"#);
    assert_eq!(text(&headers, "ratelimit-policy"), r#""f76";q=1;w=2"#);
}

/// The clock went back by an hour: nothing comes back before it has caught up.
#[test]
fn behind_a_row_a_client_is_told_how_long_it_takes_by_the_clock_as_it_is() {
    let limit = Limit::token_bucket("behind", 2, MINUTE);
    let mut world = World::default();
    assert!(world.consume([limit.global()], millis(3_600_000)).is_granted());
    let told = |decision: &Decision, format| {
        let headers = Fields::new(format).of(decision);
        ["retry-after", "ratelimit", "ratelimit-reset", "x-ratelimit-reset"]
            .map(|field| text(&headers, field).to_owned())
    };
    let granted = world.consume([limit.global()], millis(0));
    assert_eq!(told(&granted, Format::Draft11), ["", r#""behind";r=0;t=3630"#, "", ""]);
    let refused = world.consume([limit.global()], millis(0));
    assert_eq!(told(&refused, Format::Draft11), ["3630", r#""behind";r=0;t=3630"#, "", ""]);
    assert_eq!(told(&refused, Format::Draft7), ["3630", "limit=2, remaining=0, reset=3630", "", ""]);
    assert_eq!(told(&refused, Format::Draft6), ["3630", "", "3630", ""]);
    assert_eq!(told(&refused, Format::XRateLimit), ["3630", "", "", "3630"], "an instant, of the clock that is behind");
}

#[test]
fn a_window_below_a_second_is_not_said() {
    let within = |millis| policy(&Limit::token_bucket("w", 5, Duration::from_millis(millis)));
    assert_eq!(within(999), r#""w";q=5"#);
    assert_eq!(within(1_000), r#""w";q=5;w=1"#);
    assert_eq!(within(1_001), r#""w";q=5;w=2"#);
    assert_eq!(policy(&Limit::token_bucket("w", 50, SECOND).capacity(20)), r#""w";q=20"#);
}

#[test]
fn the_quota_is_the_capacity_and_the_window_how_long_it_takes_to_come_back() {
    assert_eq!(policy(&Limit::token_bucket("p", 10, MINUTE).capacity(20)), r#""p";q=20;w=120"#);
    assert_eq!(policy(&Limit::token_bucket("p", 3, SECOND).capacity(10)), r#""p";q=10;w=4"#);
    assert_eq!(policy(&Limit::stepped_bucket("p", 5, 10 * SECOND).capacity(20)), r#""p";q=20;w=40"#);
    assert_eq!(policy(&Limit::stepped_bucket("p", 5, 10 * SECOND).capacity(21)), r#""p";q=21;w=50"#);
    assert_eq!(policy(&Limit::fixed_window("p", 1_000, DAY)), r#""p";q=1000;w=86400"#);
    let half = Tokens::from_micros(1_500_000);
    assert_eq!(policy(&Limit::token_bucket("p", 1, SECOND).rate_and_capacity(half, half)), r#""p";q=1;w=1"#);
    let queue = Limit::token_bucket("p", 1, SECOND).capacity(0).max_reserved(9);
    assert_eq!(policy(&queue), r#""p";q=0"#);
}

#[test]
fn the_largest_numbers_are_cut_to_the_digits_of_a_structured_field() {
    let micro = Tokens::from_micros(1);
    let limit = Limit::token_bucket("p", 1, Limit::MAX_PERIOD).rate_and_capacity(micro, Tokens::MAX);
    assert_eq!(policy(&limit), r#""p";q=9223372036854;w=999999999999999"#);
}

#[test]
fn t_is_when_there_is_one_more() {
    let drip = Limit::token_bucket("t", 10, MINUTE);
    assert_eq!([after(&drip, 1, 0), after(&drip, 10, 0)], [r#""t";r=9;t=6"#, r#""t";r=0;t=6"#]);
    assert_eq!(after(&drip, 11, 0), r#""t";r=0;t=6"#, "the eleventh is refused");
    let window = Limit::fixed_window("t", 10, MINUTE).start(Duration::ZERO);
    assert_eq!(after(&window, 3, 100), r#""t";r=7;t=60"#, "59.9 seconds");
    assert_eq!(after(&window, 3, 59_500), r#""t";r=7;t=1"#);
    let stepped = Limit::stepped_bucket("t", 5, 10 * SECOND).capacity(20);
    assert_eq!(after(&stepped, 3, 7), r#""t";r=17;t=10"#);
}

#[test]
fn a_limit_that_holds_no_more_has_no_t() {
    let limit = Limit::token_bucket("full", 10, MINUTE);
    let headers = Fields::default().of(&World::default().consume([limit.global().cost(0)], millis(0)));
    assert_eq!(text(&headers, "ratelimit"), r#""full";r=10"#);
    let (rate, capacity) = (Tokens::ONE, Tokens::from_micros(2_500_000));
    let limit = limit.rate_and_capacity(rate, capacity);
    let mut world = World::default();
    let headers = Fields::default().of(&world.consume([limit.global().cost(0.4)], millis(0)));
    assert_eq!(text(&headers, "ratelimit"), r#""full";r=2"#, "2.1 left, and 3 never");
}

#[test]
fn a_cost_of_many_tokens_waits_longer_than_for_one() {
    let limit = Limit::token_bucket("many", 1, SECOND).capacity(10);
    let mut world = World::default();
    assert!(world.consume([limit.global().cost(7)], millis(0)).is_granted());
    let headers = Fields::default().of(&world.consume([limit.global().cost(9)], millis(500)));
    assert_eq!(text(&headers, "ratelimit"), r#""many";r=3;t=1"#);
    assert_eq!(text(&headers, "retry-after"), "6", "from 3.5 to 9 in 5.5 seconds");
}

#[test]
fn a_cost_below_one_token_does_not_wait_for_a_whole_one() {
    let limit = Limit::token_bucket("half", 1, 10 * SECOND);
    let mut world = World::default();
    assert!(world.consume([limit.global()], millis(0)).is_granted());
    let headers = Fields::default().of(&world.consume([limit.global().cost(0.5)], millis(0)));
    assert_eq!(text(&headers, "ratelimit"), r#""half";r=0;t=5"#);
    assert_eq!(text(&headers, "retry-after"), "5");
}

#[test]
fn all_policies_are_listed_and_the_limit_that_is_nearest_to_exhaustion() {
    let burst = Limit::token_bucket("burst", 100, MINUTE);
    let daily = Limit::fixed_window("daily", 1_000, DAY).start(Duration::ZERO);
    let tokens = Limit::token_bucket("tokens", 40_000, MINUTE);
    let mut world = World::default();
    let decision = world.consume([burst.global(), daily.global(), tokens.global().cost(9_000)], millis(0));
    let headers = Fields::default().of(&decision);
    let policies = r#""burst";q=100;w=60, "daily";q=1000;w=86400, "tokens";q=40000;w=60"#;
    assert_eq!(text(&headers, "ratelimit-policy"), policies);
    assert_eq!(text(&headers, "ratelimit"), r#""tokens";r=31000;t=1"#, "three more such calls");
    let headers = Fields::default().all().of(&decision);
    assert_eq!(text(&headers, "ratelimit"), r#""burst";r=99;t=1, "daily";r=999;t=86400, "tokens";r=31000;t=1"#);
}

/// A mirror goes by the fields. When they said that a meter had nothing left, it held its client back for ever.
#[test]
fn a_meter_is_told_in_no_field() {
    let (plan, usage) = (Limit::fixed_window("plan", 10, DAY).start(Duration::ZERO), Limit::meter("llm_usage"));
    let mut world = World::default();
    let mut ask = |cost: u32| world.consume([usage.global().cost(cost), plan.global().cost(cost)], millis(0));
    for decision in [ask(4), ask(9)] {
        for fields in [Fields::default().all(), Fields::new(Format::Draft7), Fields::new(Format::XRateLimit)] {
            let alone = Facts::from(&decision).announcing([&usage]);
            let told = format!("{:?}", fields.of(alone));
            assert!(told.contains("plan") || told.contains("remaining"), "{told}");
            assert!(!told.contains("usage") && !told.contains("remaining=0"), "{told}");
        }
        assert_eq!(text(&Fields::default().of(&decision), "ratelimit"), r#""plan";r=6;t=86400"#);
    }
    let decision = world.consume([usage.global()], millis(0));
    assert!(Fields::default().of(&decision).is_empty(), "nothing bounds the client");
}

#[test]
fn the_numbers_that_counted_are_told_and_not_those_that_were_announced() {
    let [written, counted] = [10, 1_000].map(|tokens| Limit::token_bucket("api", tokens, SECOND));
    let [other, slowed] = ["other", "api"].map(|name| Limit::token_bucket(name, 1, SECOND).capacity(10));
    let told = |asked: &[Request], format| {
        let decision = World::default().consume(asked.to_vec(), millis(0));
        let facts = Facts::default().announcing([&other, &written]).and(&decision);
        text(&Fields::new(format).of(facts), "ratelimit-policy").to_owned()
    };
    let story = [
        (vec![counted.global()], r#""other";q=10;w=10, "api";q=1000;w=1"#, "10;w=10, 1000;w=1"),
        (vec![slowed.global()], r#""other";q=10;w=10, "api";q=10;w=10"#, "10;w=10"),
        // Two keys of one limit, one of them with an override.
        (
            vec![written.key("a"), counted.key("b"), written.key("c")],
            r#""other";q=10;w=10, "api";q=10;w=1, "api";q=1000;w=1"#,
            "10;w=10, 1000;w=1",
        ),
    ];
    for (asked, drafted, nameless) in story {
        assert_eq!(told(&asked, Format::Draft11), drafted);
        assert_eq!([told(&asked, Format::Draft7), told(&asked, Format::Draft6)], [nameless; 2]);
    }
}

#[test]
fn a_refusal_tells_of_the_limit_to_wait_for_longest_and_of_no_window_beyond_its_wait() {
    let slow = Limit::token_bucket("slow", 1, MINUTE);
    let fast = Limit::token_bucket("fast", 1, SECOND);
    let daily = Limit::fixed_window("daily", 2, DAY).start(Duration::ZERO);
    let mut world = World::default();
    let mut ask = || world.consume([fast.global(), daily.global(), slow.global()], millis(0));
    assert!(ask().is_granted());
    let refused = ask();
    let headers = Fields::default().of(&refused);
    assert_eq!((text(&headers, "ratelimit"), text(&headers, "retry-after")), (r#""slow";r=0;t=60"#, "60"));
    let headers = Fields::default().all().of(&refused);
    let told = r#""fast";r=0;t=1, "daily";r=1, "slow";r=0;t=60"#;
    assert_eq!(text(&headers, "ratelimit"), told, "daily has not refused, and knows nothing before Retry-After");
}

#[test]
fn different_names_stay_different_strings() {
    let names = [r#"a"b\c"#, "ключ", "%D0%BA", "a%22b", "tab\there", "plain name, with: marks;"];
    let mut written = Vec::new();
    for name in names {
        let limit = Limit::try_from(Limit::token_bucket("x", 1, SECOND).spec().named(name)).unwrap();
        let headers = Fields::default().of(&World::default().consume([limit.global()], millis(0)));
        let [policies, limits] = ["ratelimit-policy", "ratelimit"].map(|field| list(&headers, field));
        assert_eq!(policies[0].name, limits[0].name);
        written.push(policies[0].name.clone());
    }
    assert_eq!(written[0], names[0]);
    assert_eq!(written[1], "%D0%BA%D0%BB%D1%8E%D1%87");
    assert_eq!(written[2], "%25D0%25BA");
    assert_eq!(written[5], names[5]);
    written.sort();
    written.dedup();
    assert_eq!(written.len(), names.len());
}

#[test]
fn partition_keys_are_told_only_if_asked_for() {
    let limit = Limit::token_bucket("pk", 10, MINUTE);
    let decision = World::default().consume([limit.key("ada")], millis(0));
    assert_eq!(list(&Fields::default().of(&decision), "ratelimit")[0].bytes.len(), 0);
    let headers = Fields::default().partition_keys().of(&decision);
    assert_eq!(text(&headers, "ratelimit"), r#""pk";r=9;t=6;pk=:YWRh:"#);
    assert_eq!(list(&headers, "ratelimit")[0].bytes["pk"], "YWRh");
    let global = World::default().consume([limit.global()], millis(0));
    assert_eq!(text(&Fields::default().partition_keys().of(&global), "ratelimit"), r#""pk";r=9;t=6"#);
}

#[test]
fn what_is_there_stays_and_lists_grow() {
    let [inner, outer] = ["inner", "outer"].map(|name| Limit::token_bucket(name, 10, MINUTE));
    let mut headers = HeaderMap::new();
    headers.insert("retry-after", "3".parse().unwrap());
    for limit in [&inner, &outer] {
        Fields::default().write(&World::default().consume([limit.global()], millis(0)), &mut headers);
    }
    let names = |field| list(&headers, field).into_iter().map(|member| member.name).collect::<Vec<_>>();
    assert_eq!(names("ratelimit-policy"), ["inner", "outer"]);
    assert_eq!(names("ratelimit"), ["inner", "outer"]);
    assert!(list(&headers, "ratelimit").iter().all(|member| !member.integers.contains_key("t")), "t would be 6");
    assert_eq!(text(&headers, "retry-after"), "3");
}

#[test]
fn a_limit_that_no_decision_speaks_of_is_announced() {
    let [known, unknown] = ["known", "unknown"].map(|name| Limit::token_bucket(name, 10, HOUR));
    let decision = World::default().consume([known.global()], millis(0));
    let headers = Fields::default().of(Facts::from(&decision).announcing([&unknown, &known]));
    assert_eq!(text(&headers, "ratelimit-policy"), r#""unknown";q=10;w=3600, "known";q=10;w=3600"#);
    assert_eq!(list(&headers, "ratelimit").len(), 1);
}

#[test]
fn the_longest_jitter_is_still_a_number() {
    let limit = Limit::token_bucket("one", 1, MINUTE);
    let mut world = World::default();
    assert!(world.consume([limit.global()], millis(0)).is_granted());
    let refused = world.consume([limit.global()], millis(0));
    let headers = Fields::default().jitter(Duration::MAX).of(&refused);
    assert!(text(&headers, "retry-after").parse::<u64>().unwrap() >= 60);
}

/// A limit of any kind, in numbers that exercise the rounding.
fn limits() -> impl Strategy<Value = Limit> {
    (0_usize..3, 1_u64..200, 1_u64..400_000_000, 1_u64..300, any::<bool>()).prop_map(
        |(kind, rate, micros, capacity, own)| {
            let kind = [Limit::token_bucket, Limit::fixed_window, Limit::stepped_bucket][kind];
            let limit = kind("any", rate, Duration::from_micros(micros));
            if own { limit.capacity(capacity) } else { limit }
        },
    )
}

/// So many micro-tokens.
fn cost(limit: &Limit, micros: u32) -> Request {
    let most = limit.spec().capacity.map_or(1, Tokens::micros);
    limit.global().cost(Tokens::from_micros(i64::from(micros) % (most + 1)))
}

/// How many seconds longer each wait of one response is than that of another.
fn added(late: &HeaderMap, exact: &HeaderMap) -> Vec<i64> {
    let read = |headers: &HeaderMap| {
        let plain = ["retry-after", "ratelimit-reset", "x-ratelimit-reset"].map(|field| integer(headers, field));
        let told = text(headers, "ratelimit");
        let t = told.starts_with('"').then(|| list(headers, "ratelimit")[0].integers.get("t").copied()).flatten();
        let reset = told.starts_with("limit=").then(|| dictionary(headers, "ratelimit")["reset"]);
        plain.into_iter().chain([t, reset]).flatten().collect::<Vec<_>>()
    };
    let [late, exact] = [late, exact].map(read);
    assert_eq!(late.len(), exact.len());
    late.into_iter().zip(exact).map(|(late, exact)| late - exact).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    /// For any calls: the fields parse, `r` never exceeds `q`, `t` never `Retry-After`, and neither comes too early.
    #[test]
    fn the_fields_are_well_formed_and_never_too_early(
        limit in limits(), calls in prop::collection::vec((any::<u32>(), 0_i64..2_000_000), 1..20),
    ) {
        let (mut world, mut now) = (World::default(), 1_700_000_000_000_000);
        for (micros, gap) in calls {
            now += gap;
            let request = cost(&limit, micros);
            let decision = world.consume([request.clone()], Timestamp::from_micros(now));
            let headers = Fields::default().of(&decision);
            let (policies, told) = (list(&headers, "ratelimit-policy"), list(&headers, "ratelimit"));
            prop_assert_eq!((policies.len(), told.len()), (1, 1));
            let (q, r, t) = (policies[0].integers["q"], told[0].integers["r"], told[0].integers.get("t"));
            prop_assert!((0..=q).contains(&r), "{:?}", headers);
            prop_assert_ne!(policies[0].integers.get("w"), Some(&0));
            let retry_after = integer(&headers, "retry-after");
            prop_assert_eq!(retry_after.is_some(), !decision.is_granted());
            if let Some(retry_after) = retry_after {
                prop_assert!(retry_after >= 1 && t.is_some_and(|t| *t <= retry_after), "{:?}", headers);
                let later = Timestamp::from_micros(now + retry_after * 1_000_000);
                prop_assert!(world.clone().consume([request.clone()], later).is_granted(), "{:?}", headers);
            }
            if let (Some(t), Decision::Granted(grant)) = (t, &decision) {
                // At that second there is more, and where it is as exact as a second is, not a second before.
                let left = |at: i64| {
                    let look = world.clone().consume([limit.global().cost(0)], Timestamp::from_micros(at));
                    look.granted().unwrap().standings[0].whole()
                };
                let whole = grant.standings[0].whole();
                prop_assert!(left(now + t * 1_000_000) > whole, "{:?}", headers);
                prop_assert!(*t == 0 || left(now + (t - 1) * 1_000_000) == whole, "{:?}", headers);
            }
        }
    }

    /// Never earlier, in any format, and all waits of one response by the same.
    #[test]
    fn jitter_only_adds(limit in limits(), micros in any::<u32>()) {
        let mut world = World::default();
        for _ in 0..2 {
            let decision = world.consume([cost(&limit, micros)], millis(0));
            for format in [Format::Draft11, Format::Draft7, Format::Draft6, Format::XRateLimit, Format::None] {
                let fields = Fields::new(format);
                let added = added(&fields.jitter(90 * SECOND).of(&decision), &fields.of(&decision));
                prop_assert!(added.iter().all(|late| (0..=90).contains(late)), "{:?}", added);
                prop_assert!(added.windows(2).all(|two| two[0] == two[1]), "{:?}", added);
            }
        }
    }
}
