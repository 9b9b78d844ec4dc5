//! Values travel: each comes back from JSON as it went, under names that stay. A wrong value gives an error with a
//! name, whether it is written in code, read from a file, or computed.

use std::cell::{Cell, RefCell};
use std::fmt::Debug;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::sync::Once;
use std::time::Duration;

use chrono::{DateTime, Utc};
use proptest::prelude::*;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tollgate::algebra::{State, Timestamp};
use tollgate::plan::{Answer, Call, Plan};
use tollgate::{
    Balance, CallError, Charge, Decision, Denied, DeniedBy, Error, Grant, HOUR, Key, KeyError, Limit, LimitError,
    LimitFault, LimitKind, LimitSpec, MINUTE, Reason, Receipt, Request, Reservation, SECOND, Source, Storage, ToKey,
    Tokens, TokensError,
};

use crate::story::{any_kind, config, extreme_limits, limits};
use crate::world::{World, at, due, micros, receipt, sec, tokens};

// Round trips.

proptest! {
    #![proptest_config(config())]

    #[test]
    fn every_amount_comes_back(amount in prop_oneof![any::<i64>(), -9_000_000_i64..9_000_000]) {
        let amount = micros(amount);
        prop_assert_eq!(travelled(&amount), amount);
        prop_assert_eq!(amount.to_string().parse(), Ok(amount));
        // It also stands in a text of JSON, as a decimal.
        prop_assert_eq!(serde_json::from_value::<Tokens>(json!(amount.to_string())).unwrap(), amount);
    }

    #[test]
    fn every_limit_comes_back(limit in prop_oneof![limits(any_kind()), extreme_limits()]) {
        prop_assert_eq!(&travelled(&limit), &limit);
        prop_assert_eq!(travelled(&limit.spec()), limit.spec());
        prop_assert_eq!(Limit::try_from(limit.spec()), Ok(limit));
    }

    #[test]
    fn every_key_comes_back(text in texts()) {
        if let Ok(key) = Key::new(text.as_str()) {
            prop_assert_eq!(&travelled(&key), &key);
            prop_assert_eq!(Key::try_from(String::from(key.clone())), Ok(key));
        }
    }

    /// A text is a key if PostgreSQL can hold it and it fits.
    #[test]
    fn a_text_is_a_key_unless_it_is_empty_has_nul_or_is_too_long(text in texts(), times in 1_usize..200) {
        let text = text.repeat(times);
        let length = text.len() + text.matches(['|', '\\']).count();
        match Key::new(text.as_str()) {
            Ok(key) => prop_assert_eq!(components(key.as_str()), [text]),
            Err(KeyError::Empty) => prop_assert!(text.is_empty()),
            Err(KeyError::TooLong { bytes }) => prop_assert!(length > Key::MAX_BYTES && bytes > Key::MAX_BYTES),
            Err(KeyError::Nul) => prop_assert!(text.contains('\0') && length <= Key::MAX_BYTES),
            Err(other) => prop_assert!(false, "{other}"),
        }
    }

    /// Different tuples never share a key, for the components can be read back.
    #[test]
    fn tuples_of_any_texts_are_told_apart(one in [texts(), texts(), texts()], two in [texts(), texts(), texts()]) {
        let key = |[a, b, c]: &[String; 3]| Key::new((a.as_str(), b.as_str(), c.as_str())).ok();
        if let (Some(first), Some(second)) = (key(&one), key(&two)) {
            prop_assert_eq!(first == second, one == two);
            prop_assert_eq!(components(first.as_str()), one.to_vec());
        }
    }

    #[test]
    fn every_request_comes_back(limit in limits(any_kind()), text in texts(), cost in 0..=i64::MAX) {
        let request = limit.key(text.as_str()).cost(micros(cost));
        match Key::new(text.as_str()) {
            Ok(_) => {
                let held = request.clone().tracked_for(SECOND).once("job 7");
                prop_assert!(limit.spec().shards > 1 || travelled(&held) == held);
                prop_assert_eq!(travelled(&request), request);
            }
            Err(_) => prop_assert!(serde_json::to_string(&request).is_err(), "a wrong request does not travel"),
        }
    }

    /// Every answer that a plan gives, over rows from all of time.
    #[test]
    fn every_answer_comes_back(limit in extreme_limits(), value: i64, ts: i64, now: i64, cost in 0..=i64::MAX) {
        let (request, now) = (limit.key("some|one").cost(micros(cost)), at(now));
        let world = World::holding(&request, State::new(micros(value), at(ts)));
        for call in [Call::consume([request.clone()]), Call::reserve([request.clone()])] {
            match world.clone().call(call, now) {
                Ok(Answer::Granted { observed_at, decided_at, ready_at, receipt: Receipt { charges, .. }, .. }) => {
                    prop_assert_eq!(&travelled(&charges), &charges);
                    let receipt = receipt(&charges);
                    prop_assert_eq!(&travelled(&receipt), &receipt);
                    let reservation = reservation([observed_at, decided_at], ready_at, &charges);
                    let json = serde_json::to_value(&reservation).unwrap();
                    prop_assert_eq!(json["wait_ms"].as_u64(), Some(millis_up(observed_at, ready_at)));
                    prop_assert_eq!(travelled(&reservation), reservation);
                }
                Ok(Answer::Denied(denied)) => {
                    let json = serde_json::to_value(&denied).unwrap();
                    let wait = millis_up(denied.observed_at.into(), due(denied.retry_at));
                    prop_assert_eq!(json["retry_after_ms"].as_u64(), denied.retry_at.map(|_| wait));
                    prop_assert_eq!(&travelled(&denied), &denied);
                    let decision: Decision = Decision::Denied(denied);
                    prop_assert_eq!(travelled(&decision), decision);
                }
                _ => {}
            }
        }
        let balance: Balance = world.look(request, now);
        prop_assert_eq!(travelled(&balance), balance);
    }
}

// Names that stay: rows of jobs and files of limits hold them.

#[test]
fn an_amount_is_a_number_where_a_number_is_exact() {
    for (amount, json) in [
        (tokens(12), json!(12)),
        (tokens(-3), json!(-3)),
        (micros(500_000), json!(0.5)),
        (micros(-3_250_000), json!(-3.25)),
        (Tokens::MAX, json!("9223372036854.775807")),
        (Tokens::MIN, json!("-9223372036854.775808")),
    ] {
        assert_eq!(serde_json::to_value(amount).unwrap(), json);
        assert_eq!(serde_json::from_value::<Tokens>(json).unwrap(), amount);
    }
    for wrong in [json!(1e300), json!(1e-7), json!(u64::MAX), json!(i64::MIN), json!("1e3"), json!(null), json!("NaN")]
    {
        assert!(serde_json::from_value::<Tokens>(wrong.clone()).is_err(), "{wrong}");
    }
}

#[test]
fn a_limit_is_written_as_its_definition() {
    let json = json!({
        "name": "llm_tokens", "kind": "token_bucket", "rate": 40_000, "period": "1m", "capacity": 40_000,
        "start": null, "resolution": null, "max_reserved": 200_000, "shards": 10, "storage": "durable",
    });
    let limit = Limit::token_bucket("llm_tokens", 40_000, MINUTE).max_reserved(200_000).shards(10);
    assert_eq!(serde_json::to_value(&limit).unwrap(), json);
    assert_eq!(travelled(&limit), limit);

    let queue = limit.unbounded_reservations().capacity(0);
    assert_eq!(serde_json::to_value(&queue).unwrap()["max_reserved"], "unbounded");
    let window = Limit::fixed_window("window", 5, HOUR).start(90 * MINUTE).ephemeral();
    let json = serde_json::to_value(&window).unwrap();
    assert_eq!(
        (&json["kind"], &json["start"], &json["storage"]),
        (&json!("fixed_window"), &json!("30m"), &json!("ephemeral"))
    );
    let uploads = Limit::stepped_bucket("uploads", 5, SECOND);
    assert_eq!(serde_json::to_value(&uploads).unwrap()["kind"], "stepped_bucket");
}

#[test]
fn what_is_not_written_has_its_default() {
    let json = json!({ "name": "few", "kind": "fixed_window", "rate": 5, "per": "1h" });
    let limit: Limit = serde_json::from_value(json).unwrap();
    assert_eq!(limit, Limit::fixed_window("few", 5, HOUR), "and `per` is another word for `period`");
}

#[test]
fn definitions_that_mean_the_same_are_equal() {
    let window = Limit::fixed_window("one", 5, MINUTE);
    assert_eq!(window, window.clone().capacity(5));
    assert_eq!(window.clone().start(7 * SECOND), window.start(7 * SECOND + MINUTE), "a start counts modulo the period");
}

#[test]
fn a_grant_comes_back_and_becomes_a_receipt() {
    let charges = charges_of(&Limit::token_bucket("some", 10, MINUTE).key((7, "a|b")).cost(2.5));
    let json = json!({
        "remaining": 7.5, "observed_at": "2026-01-01T00:00:00Z", "decided_at": "+262142-12-31T23:59:59.999999Z",
        "source": "database", "receipt": { "charges": charges },
    });
    let grant: Grant = serde_json::from_value(json).unwrap();
    assert_eq!(Timestamp::from(grant.decided_at), Timestamp::MAX);
    assert_eq!(travelled(&grant), grant);
    let decision = Decision::Granted(grant.clone());
    assert_eq!(travelled(&decision), decision);
    assert!(decision.is_granted() && decision.denied().is_none());
    let stored: Receipt = travelled(&Receipt::from(grant));
    assert_eq!(stored.charges, charges);
    assert_eq!(stored.by_request().collect::<Vec<_>>(), [charges]);
}

#[test]
fn a_reservation_says_how_long_to_wait_rounded_up() {
    let limit = Limit::token_bucket("3/s", 3, SECOND).unbounded_reservations();
    let charges = charges_of(&limit.global());
    let behind = reservation([sec(0), sec(1)], sec(0), &charges);
    assert_eq!((behind.wait(), behind.is_ready()), (Duration::ZERO, true), "time stands still for its row");
    let reservation = reservation([sec(1), sec(1)], at(1_333_334), &charges);
    assert_eq!((reservation.wait(), reservation.is_ready()), (Duration::from_micros(333_334), false));
    assert_eq!(serde_json::to_value(&reservation).unwrap()["wait_ms"], 334);
    assert_eq!(Receipt::from(reservation).charges, charges);
}

#[test]
fn a_refusal_says_how_long_to_wait_rounded_up() {
    let limit = Limit::token_bucket("3/s", 3, SECOND);
    let mut world = World::left(&limit.key("secret"), tokens(0), sec(0));
    let denied = world.denied(limit.key("secret"), sec(0));
    let json = serde_json::to_value(&denied).unwrap();
    assert_eq!(
        json,
        json!({
            "limit": "3/s", "key": "secret", "reason": "short", "remaining": 0,
            "retry_at": "1970-01-01T00:00:00.333334Z", "retry_after_ms": 334,
            "observed_at": "1970-01-01T00:00:00Z", "decided_at": "1970-01-01T00:00:00Z",
            "source": "database", "others": [],
            "standings": [{
                "limit": limit, "key": "secret", "cost": 1, "remaining": 0, "more_at": "1970-01-01T00:00:00.333334Z",
            }], "would_deny": [],
        })
    );
    assert_eq!(serde_json::to_value(Decision::<Grant>::Denied(denied.clone())).unwrap(), json!({ "denied": json }));
    assert_eq!(denied.to_string(), r#"limit "3/s" exhausted (retry in 333.334ms)"#, "and never the key");
}

/// The clock went back by an hour after the row was written.
#[test]
fn a_wait_begins_at_the_clock_as_it_was_read() {
    let limit = Limit::token_bucket("ten", 10, MINUTE).unbounded_reservations();
    let mut world = World::left(&limit.key("k"), tokens(0), sec(3600));
    let denied = world.denied(limit.key("k"), sec(0));
    assert_eq!(
        [denied.observed_at, denied.decided_at, denied.retry_at.unwrap()].map(Timestamp::from),
        [sec(0), sec(3600), sec(3606)]
    );
    assert_eq!((denied.retry_after().unwrap(), travelled(&denied)), (HOUR + 6 * SECOND, denied.clone()));
    assert_eq!(denied.to_string(), r#"limit "ten" exhausted (retry in 3606s)"#);
}

/// One row stands an hour ahead of the clock, and has a token. The other goes by the clock, and owes one.
#[test]
fn what_is_ready_at_once_behind_a_row_does_not_hide_what_is_not() {
    let ahead = Limit::token_bucket("ahead", 10, MINUTE).unbounded_reservations();
    let owes = Limit::token_bucket("owes", 10, MINUTE).unbounded_reservations();
    for (value, both_ready_at) in [(tokens(0), sec(6)), (tokens(1), sec(0))] {
        let mut world = World::left(&ahead.global(), tokens(1), sec(3600));
        world.put_left(&owes.global(), value, sec(0));
        let answer = world.call(Call::reserve([ahead.global(), owes.global()]), sec(0));
        let Ok(Answer::Granted { observed_at, decided_at, ready_at, receipt: Receipt { charges, .. }, .. }) = answer
        else {
            panic!("{answer:?}")
        };
        assert_eq!([observed_at, decided_at, ready_at], [sec(0), sec(0), both_ready_at]);
        // Each can be given back until all of it is ready, by the time of its own row.
        let until: Vec<_> = charges.iter().map(|charge| Timestamp::from(charge.ready_at())).collect();
        assert_eq!(until, [sec(3600), both_ready_at]);
    }
}

#[test]
fn a_refusal_by_several_limits_names_them_all() {
    let slow = Limit::token_bucket("slow", 1, HOUR);
    let fast = Limit::token_bucket("fast", 1, SECOND);
    let mut world = World::default();
    for limit in [&slow, &fast] {
        world.put_left(&limit.global(), tokens(0), sec(0));
    }
    let Ok(Answer::Denied(denied)) = world.call(Call::consume([fast.global(), slow.global()]), sec(0)) else {
        panic!("granted")
    };
    assert_eq!((denied.limit.as_ref(), denied.retry_after().unwrap()), ("slow", HOUR), "the longest first");
    let [other]: &[DeniedBy] = &denied.others else { panic!("{denied:?}") };
    assert_eq!((other.limit.as_ref(), due(other.retry_at)), ("fast", sec(1)));
    assert_eq!(&travelled(&denied), &denied);
    assert_eq!(denied.to_string(), r#"limit "slow" exhausted and "fast" exhausted (retry in 3600s)"#);
}

/// The last microsecond that PostgreSQL and chrono share is an instant like any other.
#[test]
fn a_wait_until_the_end_of_time_travels() {
    let limit = Limit::token_bucket("never", 1, Limit::MAX_PERIOD);
    let mut world = World::holding(&limit.global(), State::new(Tokens::MIN, Timestamp::MIN).full_at(Timestamp::MAX));
    let denied: Denied = world.denied(limit.global(), Timestamp::MIN);
    let json = serde_json::to_value(&denied).unwrap();
    assert_eq!(
        (&json["decided_at"], &json["retry_at"], &json["retry_after_ms"]),
        (&json!("-4713-11-24T00:00:00Z"), &json!(null), &json!(null)),
        "what is due after the end of time is never"
    );
    assert_eq!(travelled(&denied), denied);
}

#[test]
fn plain_words_stay() {
    assert_eq!(words([Storage::Durable, Storage::Ephemeral]), ["durable", "ephemeral"]);
    assert_eq!(
        words([LimitKind::FixedWindow, LimitKind::SlidingWindow, LimitKind::SteppedBucket, LimitKind::TokenBucket]),
        ["fixed_window", "sliding_window", "stepped_bucket", "token_bucket"]
    );
    assert_eq!(words([Source::Database]), ["database"]);
    assert_eq!(
        words([Reason::Short, Reason::HeldBack, Reason::Leased, Reason::OutOfTurn]),
        ["short", "held_back", "leased", "out_of_turn"]
    );
}

// Amounts.

#[test]
fn whole_tokens_are_rounded_down() {
    for (amount, whole) in [("0", 0), ("2", 2), ("2.999999", 2), ("0.000001", 0), ("-0.000001", -1), ("-2", -2)] {
        assert_eq!(amount.parse::<Tokens>().unwrap().whole(), whole, "{amount}");
    }
    assert_eq!((Tokens::MAX.whole(), Tokens::MIN.whole()), (9_223_372_036_854, -9_223_372_036_855));
}

#[test]
fn floats_go_to_the_nearest_micro_token() {
    assert_eq!(Tokens::try_from(0.1 + 0.2), Ok(micros(300_000)));
    assert_eq!(Tokens::try_from(0.000_000_5), Ok(micros(1)));
    assert_eq!(Tokens::try_from(-0.0), Ok(Tokens::ZERO));
}

#[test]
fn numbers_that_are_no_amount_have_named_errors() {
    assert_eq!(Tokens::try_from(f64::NAN), Err(TokensError::NotFinite));
    assert_eq!(Tokens::try_from(f64::INFINITY), Err(TokensError::NotFinite));
    assert_eq!(Tokens::try_from(-1.0), Err(TokensError::Negative));
    assert_eq!(Tokens::try_from(-1), Err(TokensError::Negative));
    assert_eq!(Tokens::try_from(0.000_000_4), Err(TokensError::TooSmall));
    assert_eq!(Tokens::try_from(f64::MAX), Err(TokensError::TooLarge));
    assert_eq!(Tokens::try_from(9_223_372_036_854.775_f64 + 0.001), Err(TokensError::TooLarge));
    assert_eq!(Tokens::try_from(u64::MAX), Err(TokensError::TooLarge));
    assert_eq!(Tokens::try_from(u128::MAX), Err(TokensError::TooLarge));
    assert_eq!(Tokens::try_from(9_223_372_036_854_u64), Ok(micros(9_223_372_036_854_000_000)));
}

#[test]
fn texts_are_read_exactly_or_refused() {
    assert_eq!("-3.25".parse(), Ok(micros(-3_250_000)));
    assert_eq!("1.0000000".parse(), Ok(Tokens::ONE));
    assert_eq!("9223372036854.775807".parse(), Ok(Tokens::MAX));
    assert_eq!("-9223372036854.775808".parse(), Ok(Tokens::MIN));
    assert_eq!("9223372036854.775808".parse::<Tokens>(), Err(TokensError::TooLarge));
    assert_eq!("0.0000001".parse::<Tokens>(), Err(TokensError::TooPrecise));
    for text in ["", "-", ".", "1.", ".5", "+1", "1e3", "1_000", " 1", "٣", "--1"] {
        assert_eq!(text.parse::<Tokens>(), Err(TokensError::Malformed), "{text:?}");
    }
    assert_eq!("9".repeat(60).parse::<Tokens>(), Err(TokensError::TooLarge));
}

#[test]
fn an_amount_is_displayed_with_width_as_integers_are() {
    assert_eq!(format!("{:>7}|{:<5}|", micros(-1_500_000), Tokens::ONE), "   -1.5|1    |");
}

// Keys.

#[test]
fn a_plain_identifier_stays_plain() {
    assert_eq!(key("user:42"), "user:42");
    assert_eq!(key(-7), "-7");
    assert_eq!(key(("tenant", 42)), "tenant|42");
    assert_eq!(key("ключ 🔑"), "ключ 🔑");
}

#[test]
fn separators_inside_a_component_are_escaped() {
    assert_ne!(key("a|b"), key(("a", "b")));
    assert_ne!(key(("a|b", "c")), key(("a", "b|c")));
    assert_ne!(key((r"a\", "b")), key(r"a\|b"));
    assert_ne!(key(("", "a")), key(("a", "")));
    assert_eq!(key(((1, 2), 3)), key((1, (2, 3))), "nesting only groups");
    assert_eq!(key(Key::new(("a|b", "c")).unwrap()), key(("a|b", "c")), "a key stays itself");
}

#[test]
fn a_mapped_address_is_no_second_bucket() {
    let mapped: Ipv6Addr = "::ffff:192.0.2.1".parse().unwrap();
    assert_eq!(key(mapped), "192.0.2.1");
    assert_eq!(key(IpAddr::V6(mapped)), key(Ipv4Addr::new(192, 0, 2, 1)));
    assert_eq!(key("2001:DB8:0:0::1".parse::<IpAddr>().unwrap()), "2001:db8::1");
}

#[test]
fn a_key_that_cannot_be_stored_has_a_named_error() {
    assert_eq!(Key::new(""), Err(KeyError::Empty));
    assert_eq!(Key::new("a\0b"), Err(KeyError::Nul));
    assert!(Key::new("x".repeat(512)).is_ok());
    assert_eq!(Key::new("x".repeat(513)), Err(KeyError::TooLong { bytes: 513 }));
    assert!(matches!(Key::new("x".repeat(10_000_000)), Err(KeyError::TooLong { bytes: ..600 })));
    assert!(matches!(Key::new("|".repeat(257)), Err(KeyError::TooLong { .. })), "escapes count");
}

#[test]
fn a_request_tells_what_it_asks_or_which_part_of_it_is_wrong() {
    let limit = Limit::token_bucket("some", 10, MINUTE);
    let request = limit.key(("ada", 7)).cost(2.5);
    assert_eq!(request.asked().unwrap(), (&limit, &Key::new(("ada", 7)).unwrap(), Tokens::from_micros(2_500_000)));
    let (nobody, nothing) = (limit.key(""), limit.key("ada").cost(-1));
    let told =
        "the key asked of limit \"some\" is invalid: a key is empty (use `global()` to limit all callers together)";
    assert_eq!(nobody.asked().unwrap_err().chain(), told);
    assert!(matches!(nothing.asked(), Err(Error::Call { source: CallError::Cost(TokensError::Negative), .. })));
}

#[test]
fn a_stored_key_comes_back_as_it_was() {
    for key in [Key::GLOBAL, Key::new((r"a\", "b|c", "")).unwrap()] {
        assert_eq!(travelled(&key), key);
    }
}

// Instants.

#[test]
fn the_range_of_instants_is_what_both_chrono_and_postgres_hold() {
    assert_eq!(Timestamp::MAX.micros(), DateTime::<Utc>::MAX_UTC.timestamp_micros());
    assert_eq!(DateTime::from(Timestamp::MIN).to_string(), "-4713-11-24 00:00:00 UTC");
    for end in [Timestamp::MIN, Timestamp::MAX] {
        assert_eq!(Timestamp::from(DateTime::from(end)), end);
    }
    assert_eq!(Timestamp::from_micros(i64::MAX), Timestamp::MAX);
    assert_eq!(Timestamp::from_micros(i64::MIN), Timestamp::MIN);
    assert_eq!(Timestamp::from(DateTime::<Utc>::MIN_UTC), Timestamp::MIN);
}

// Bad input, where it is read.

#[test]
fn periods_are_written_as_people_do() {
    for (text, period) in [
        ("30s", 30 * SECOND),
        ("30 s", 30 * SECOND),
        ("5m", 5 * MINUTE),
        ("1h", HOUR),
        ("1d", 24 * HOUR),
        ("500ms", Duration::from_millis(500)),
        ("1h30m", 90 * MINUTE),
        ("1h 30m", 90 * MINUTE),
        ("7d", 7 * 24 * HOUR),
        ("1us", Duration::from_micros(1)),
    ] {
        let limit: Limit = serde_json::from_value(with("period", json!(text))).unwrap();
        assert_eq!(limit.spec().period, period, "{text}");
    }
}

#[test]
fn what_is_no_period_is_an_error() {
    for wrong in [
        json!("invalid"),
        json!(""),
        json!("0s"),
        json!("-1000ms"),
        json!("30"),
        json!("infinity"),
        json!("1ns"),
        json!("1001 years"),
        json!("99999999999999999999999 years"),
        json!("18446744073709551615 years"),
        // Seconds to one reader, and milliseconds to another.
        json!(60_000),
        json!(null),
    ] {
        assert!(serde_json::from_value::<Limit>(with("period", wrong.clone())).is_err(), "{wrong}");
    }
}

#[test]
fn a_field_that_nobody_reads_is_an_error() {
    let error = serde_json::from_value::<Limit>(with("capcity", json!(5))).unwrap_err();
    assert!(error.to_string().contains("unknown field `capcity`"), "{error}");
}

#[test]
fn what_is_no_bound_is_an_error() {
    for wrong in [json!("infinite"), json!("-5"), json!(-1), json!(1e300), json!(null)] {
        let read = serde_json::from_value::<Limit>(with("max_reserved", wrong.clone()));
        assert!(read.is_err(), "{wrong}");
    }
}

#[test]
fn each_fault_of_a_definition_has_a_name() {
    let spec = || LimitSpec::new("uploads", LimitKind::FixedWindow, tokens(5), MINUTE);
    let with = |change: fn(&mut LimitSpec)| spec().with(change);
    let name = |name: &str| spec().named(name);
    let period = |period| spec().with(|spec| spec.period = period);
    let start = |start| spec().with(|spec| spec.start = Some(start));
    let nano = Duration::from_nanos(1);
    for (fault, spec) in [
        (
            LimitFault::EphemeralReservations,
            with(|spec| (spec.max_reserved, spec.storage) = (micros(1), Storage::Ephemeral)),
        ),
        (LimitFault::NameEmpty, name("")),
        (LimitFault::NameNul, name("up\0loads")),
        (LimitFault::NameTooLong, name(&"x".repeat(256))),
        (LimitFault::NameTooLong, name(&"ß".repeat(128))),
        (LimitFault::NegativeCapacity, with(|spec| spec.capacity = Some(micros(-1)))),
        (LimitFault::NegativeMaxReserved, with(|spec| spec.max_reserved = micros(-1))),
        (LimitFault::PeriodNotWholeMicros, period(nano)),
        (LimitFault::PeriodNotWholeMicros, period(SECOND + nano)),
        (LimitFault::PeriodTooLong, period(Limit::MAX_PERIOD + nano)),
        (LimitFault::PeriodTooLong, period(Duration::MAX)),
        (LimitFault::PeriodZero, period(Duration::ZERO)),
        (LimitFault::RateNotPositive, with(|spec| spec.rate = Tokens::ZERO)),
        (LimitFault::RateNotPositive, with(|spec| spec.rate = Tokens::MIN)),
        (LimitFault::ShardsOfFirstUse, with(|spec| (spec.kind, spec.shards) = (LimitKind::SteppedBucket, 2))),
        (LimitFault::ShardsTooMany, with(|spec| spec.shards = 65)),
        (LimitFault::ShardsTooMany, with(|spec| spec.shards = u16::MAX)),
        (LimitFault::ShardsWithoutRate, with(|spec| (spec.rate, spec.shards) = (micros(3), 4))),
        (LimitFault::ShardsZero, with(|spec| spec.shards = 0)),
        (LimitFault::StartNotWholeMicros, start(nano)),
        (LimitFault::StartNotWholeMicros, start(Duration::MAX)),
        (LimitFault::StartOfContinuous, start(SECOND).with(|spec| spec.kind = LimitKind::TokenBucket)),
        (LimitFault::StartOfFirstUse, start(SECOND).with(|spec| spec.kind = LimitKind::SteppedBucket)),
    ] {
        let error: LimitError = Limit::try_from(spec.clone()).unwrap_err();
        assert_eq!((error.fault, error.name.as_str()), (fault, spec.name()), "{spec:?}");
        assert_eq!(error.to_string(), format!("limit {:?}: {fault}", spec.name()));
    }
}

#[test]
fn what_is_just_within_is_a_limit() {
    let new = |kind| LimitSpec::new("x".repeat(255), kind, micros(1), Duration::from_micros(1));
    let with = |change: fn(&mut LimitSpec)| new(LimitKind::FixedWindow).with(change);
    for spec in [
        new(LimitKind::SteppedBucket),
        with(|spec| (spec.rate, spec.period) = (Tokens::MAX, Limit::MAX_PERIOD)),
        with(|spec| spec.capacity = Some(Tokens::ZERO)),
        with(|spec| (spec.capacity, spec.max_reserved) = (Some(Tokens::MAX), Tokens::MAX)),
        with(|spec| spec.start = Some(Duration::from_micros(i64::MAX.unsigned_abs()))),
        with(|spec| (spec.rate, spec.shards) = (micros(64), Limit::MAX_SHARDS)),
    ] {
        assert!(Limit::try_from(spec.clone()).is_ok(), "{spec:?}");
    }
}

/// In a `const` these limits do not compile; at run time they panic with the same message, and point at the line that
/// made the limit.
#[test]
fn a_wrong_limit_in_code_points_at_its_own_line() {
    let wrong: [(LimitFault, fn() -> Limit); 23] = [
        (LimitFault::CapacityTooLarge, || bucket().capacity(u64::MAX)),
        (LimitFault::EphemeralReservations, || bucket().ephemeral().max_reserved(1)),
        (LimitFault::EphemeralReservations, || bucket().max_reserved(1).ephemeral()),
        (LimitFault::EphemeralReservations, || bucket().ephemeral().unbounded_reservations()),
        (LimitFault::MaxReservedTooLarge, || bucket().max_reserved(u64::MAX)),
        (LimitFault::NameEmpty, || Limit::token_bucket("", 1, SECOND)),
        (LimitFault::NameNul, || Limit::fixed_window("\0", 1, SECOND)),
        (LimitFault::NameTooLong, || Limit::stepped_bucket("x".repeat(256).leak(), 1, SECOND)),
        (LimitFault::NegativeCapacity, || bucket().rate_and_capacity(Tokens::ONE, micros(-1))),
        (LimitFault::PeriodNotWholeMicros, || Limit::token_bucket("some", 1, Duration::from_nanos(1_001))),
        (LimitFault::PeriodTooLong, || Limit::token_bucket("some", 1, Duration::MAX)),
        (LimitFault::PeriodZero, || Limit::token_bucket("some", 1, Duration::ZERO)),
        (LimitFault::RateNotPositive, || Limit::token_bucket("some", 0, SECOND)),
        (LimitFault::RateNotPositive, || bucket().rate_and_capacity(Tokens::ZERO, Tokens::ONE)),
        (LimitFault::RateTooLarge, || Limit::fixed_window("some", u64::MAX, SECOND)),
        (LimitFault::ShardsOfFirstUse, || Limit::stepped_bucket("some", 5, SECOND).shards(5)),
        (LimitFault::ShardsTooMany, || bucket().shards(Limit::MAX_SHARDS + 1)),
        (LimitFault::ShardsWithoutRate, || bucket().rate_and_capacity(micros(2), Tokens::ONE).shards(3)),
        (LimitFault::ShardsZero, || bucket().shards(0)),
        (LimitFault::StartNotWholeMicros, || Limit::fixed_window("some", 1, SECOND).start(Duration::from_nanos(1))),
        (LimitFault::StartNotWholeMicros, || Limit::fixed_window("some", 1, SECOND).start(Duration::MAX)),
        (LimitFault::StartOfContinuous, || bucket().start(Duration::ZERO)),
        (LimitFault::StartOfFirstUse, || Limit::stepped_bucket("some", 1, SECOND).start(Duration::ZERO)),
    ];
    for (fault, make) in wrong {
        let (message, file) = built(make).unwrap_err();
        assert_eq!((message, file.as_str()), (fault.to_string(), file!()));
    }
}

type Setter = fn(Limit) -> Limit;

/// Options of a limit, no two of which set the same, but for those of one inner list.
const OPTIONS: [&[Setter]; 6] = [
    &[|limit| limit.capacity(5), |limit| limit.capacity(20), |limit| limit.rate_and_capacity(micros(3), micros(3))],
    &[|limit| limit.max_reserved(0), |limit| limit.max_reserved(3), Limit::unbounded_reservations],
    &[|limit| limit.start(7 * SECOND), |limit| limit.start(Duration::from_nanos(1))],
    &[|limit| limit.resolution(7), |limit| limit.resolution(0)],
    &[|limit| limit.shards(3), |limit| limit.shards(4), |limit| limit.shards(0)],
    &[Limit::ephemeral],
];

fn kinds() -> [Limit; 5] {
    [
        Limit::token_bucket("some", 5, MINUTE),
        Limit::fixed_window("some", 5, MINUTE),
        Limit::stepped_bucket("some", 5, MINUTE),
        Limit::sliding_window("some", 5, MINUTE),
        Limit::concurrency("some", 5, MINUTE),
    ]
}

/// A limit with some options, or the message of the panic.
fn with_options(limit: &Limit, options: &[Setter]) -> Result<Limit, String> {
    built(|| options.iter().fold(limit.clone(), |limit, option| option(limit))).map_err(|(message, _)| message)
}

#[test]
fn two_options_say_the_same_in_either_order() {
    for limit in kinds() {
        for (first, one) in OPTIONS.iter().enumerate() {
            for (one, two) in one.iter().flat_map(|one| OPTIONS[..first].concat().into_iter().map(|two| (*one, two))) {
                let (forth, back) = (with_options(&limit, &[one, two]), with_options(&limit, &[two, one]));
                // The panic names the first of two mistakes.
                if with_options(&limit, &[one]).is_err() && with_options(&limit, &[two]).is_err() {
                    assert!(forth.is_err() && back.is_err());
                } else {
                    assert_eq!(forth, back);
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn options_in_any_order_make_the_same_limit_or_none(
        kind in 0..kinds().len(),
        picked in OPTIONS.map(|options| prop::option::of(0..options.len())),
        order in Just([0, 1, 2, 3, 4, 5]).prop_shuffle(),
    ) {
        let option = |place: usize| Some(OPTIONS[place][picked[place]?]);
        let made = |order: [usize; 6]| {
            with_options(&kinds()[kind], &order.into_iter().filter_map(option).collect::<Vec<_>>()).ok()
        };
        prop_assert_eq!(made(order), made([0, 1, 2, 3, 4, 5]));
    }
}

// Bad input in calls: an error before any row is named.

#[test]
fn a_cost_that_is_no_amount_is_an_error_with_a_name() {
    let request = || bucket().key("some");
    for (request, expected) in [
        (request().cost(f64::NAN), TokensError::NotFinite),
        (request().cost(f64::INFINITY), TokensError::NotFinite),
        (request().cost(f64::NEG_INFINITY), TokensError::NotFinite),
        (request().cost(-0.5), TokensError::Negative),
        (request().cost(-1), TokensError::Negative),
        (request().cost(i64::MIN), TokensError::Negative),
        (request().cost(micros(-1)), TokensError::Negative),
        (request().cost(f64::MIN_POSITIVE), TokensError::TooSmall),
        (request().cost(4e-7), TokensError::TooSmall),
        (request().cost(f64::MAX), TokensError::TooLarge),
        (request().cost(u64::MAX), TokensError::TooLarge),
    ] {
        for verb in [consume_one, reserve_one, Call::credit, Call::debit, Call::look, Call::reset] {
            match Plan::new([verb(request.clone())]).unwrap_err() {
                Error::Call { limit, source } => {
                    assert_eq!((limit.as_deref(), source), (Some("some"), CallError::Cost(expected)));
                }
                other => panic!("{other}"),
            }
        }
    }
}

#[test]
fn a_cost_above_the_capacity_is_no_refusal() {
    let most = |reserving: bool, limit: &Limit, cost: Tokens| {
        let verb = if reserving { reserve_one } else { consume_one };
        match Plan::new([verb(limit.global().cost(cost))]) {
            Ok(_) => None,
            Err(Error::CostExceedsCapacity { asked, max, .. }) if asked == cost => Some(max),
            Err(other) => panic!("{other}"),
        }
    };
    let limit = bucket().max_reserved(5);
    assert_eq!(most(false, &limit, tokens(10)), None);
    assert_eq!(most(false, &limit, micros(10_000_001)), Some(tokens(10)));
    assert_eq!(most(true, &limit, tokens(15)), None);
    assert_eq!(most(true, &limit, micros(15_000_001)), Some(tokens(15)));
    assert_eq!(most(true, &limit.unbounded_reservations(), Tokens::MAX), None);
    assert_eq!(most(false, &bucket().capacity(0), micros(1)), Some(Tokens::ZERO));
    // Asked twice in one call, it is the sum that counts; and a sum that is no amount is beyond every capacity.
    for cost in [tokens(6), Tokens::MAX] {
        let request = || bucket().global().cost(cost);
        let error = Plan::new([Call::consume([request(), request()])]).unwrap_err();
        assert!(matches!(error, Error::CostExceedsCapacity { asked, .. } if asked > tokens(10)), "{error}");
    }
}

#[test]
fn half_a_token_is_exact() {
    let mut world = World::default();
    for n in 1..=20 {
        assert_eq!(world.granted(bucket().global().cost(0.5), sec(0)), micros(10_000_000 - n * 500_000));
    }
    world.denied(bucket().global().cost(0.000_001), sec(0));
}

#[test]
fn a_key_that_is_none_is_an_error_with_a_name() {
    let fault = |request: Request| match Plan::new([Call::look(request)]).unwrap_err() {
        Error::Key { limit, source } if limit == "some" => source,
        other => panic!("{other}"),
    };
    assert_eq!(fault(bucket().key("")), KeyError::Empty);
    assert_eq!(fault(bucket().key("a\0")), KeyError::Nul);
    assert_eq!(fault(bucket().key(("a", "\0"))), KeyError::Nul);
    assert!(matches!(fault(bucket().key("x".repeat(10_000))), KeyError::TooLong { bytes: 513..600 }));
    let endless = (0..).map(|n| bucket().key(if n < 3 { "a" } else { "" }));
    assert!(matches!(Plan::new([Call::consume(endless)]), Err(Error::Key { .. })), "the first fault ends the call");
    assert_eq!(Plan::new([Call::look(bucket().key("ключ 🔑"))]).unwrap().rows()[0].key().as_str(), "ключ 🔑");
}

#[test]
fn a_call_that_asks_nothing_or_two_things_of_one_row_is_an_error() {
    assert!(matches!(Plan::new([Call::consume([])]), Err(Error::Call { source: CallError::NothingAsked, .. })));
    for other in [bucket().capacity(20), bucket().ephemeral()] {
        let two = [bucket().global(), other.global()];
        let error = Plan::new([Call::consume(two)]).unwrap_err();
        assert!(matches!(error, Error::Call { source: CallError::ConflictingDefinitions, .. }), "{error}");
        assert_eq!(error.limit(), Some("some"));
    }
}

/// The canonical text of a key.
fn key(value: impl ToKey) -> String {
    Key::new(value).unwrap().into()
}

/// There and back again: as text, and in a format without field names.
fn travelled<T: Serialize + DeserializeOwned + Debug + PartialEq>(value: &T) -> T {
    let bytes = postcard::to_allocvec(value).unwrap();
    let text = serde_json::from_str(&serde_json::to_string(value).unwrap()).unwrap();
    assert_eq!(postcard::from_bytes::<T>(&bytes).unwrap(), text);
    text
}

/// The words of plain values, which also come back.
fn words<T: Serialize + DeserializeOwned + Debug + PartialEq, const N: usize>(values: [T; N]) -> [String; N] {
    values.map(|value| {
        assert_eq!(travelled(&value), value);
        serde_json::from_value(serde_json::to_value(&value).unwrap()).unwrap()
    })
}

/// A limit in JSON, with one field set.
fn with(field: &str, value: Value) -> Value {
    let mut limit = json!({ "name": "uploads", "kind": "fixed_window", "rate": 5, "period": "10s" });
    limit[field] = value;
    limit
}

fn bucket() -> Limit {
    Limit::token_bucket("some", 10, MINUTE)
}

fn consume_one(request: Request) -> Call {
    Call::consume([request])
}

fn reserve_one(request: Request) -> Call {
    Call::reserve([request])
}

/// The charges of a grant of this request.
fn charges_of(request: &Request) -> Vec<Charge> {
    match World::default().call(consume_one(request.clone()), sec(0)) {
        Ok(Answer::Granted { receipt: Receipt { charges, .. }, .. }) => charges,
        other => panic!("{other:?}"),
    }
}

fn reservation(at: [Timestamp; 2], ready_at: Timestamp, charges: &[Charge]) -> Reservation {
    let [observed_at, decided_at, ready_at] = [at[0], at[1], ready_at].map(DateTime::<Utc>::from);
    let json = json!({
        "observed_at": observed_at, "decided_at": decided_at, "ready_at": ready_at, "receipt": { "charges": charges },
    });
    serde_json::from_value(json).unwrap()
}

fn millis_up(from: Timestamp, to: Timestamp) -> u64 {
    u64::try_from(to.micros() - from.micros()).unwrap().div_ceil(1_000)
}

/// The components of a canonical key, read back.
fn components(canonical: &str) -> Vec<String> {
    let mut components = vec![String::new()];
    let mut characters = canonical.chars();
    while let Some(character) = characters.next() {
        let last = components.last_mut().unwrap();
        match character {
            '\\' => last.push(characters.next().unwrap()),
            '|' => components.push(String::new()),
            plain => last.push(plain),
        }
    }
    components
}

/// Texts of all of Unicode, and short ones of the characters that keys treat specially.
fn texts() -> impl Strategy<Value = String> {
    prop_oneof![any::<String>(), r"[|\\a\x00]{0,4}", r"[|\\a]{0,3}"]
}

/// A limit, or the message of the panic, and the file of the line that it points at.
fn built(make: impl FnOnce() -> Limit) -> Result<Limit, (String, String)> {
    thread_local! {
        static EXPECTED: Cell<bool> = const { Cell::new(false) };
        static FILE: RefCell<String> = const { RefCell::new(String::new()) };
    }
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        // Other tests panic on other threads, and should be heard.
        let loud = panic::take_hook();
        panic::set_hook(Box::new(move |info| match info.location() {
            Some(location) if EXPECTED.get() => FILE.set(location.file().to_owned()),
            _ => loud(info),
        }));
    });
    EXPECTED.set(true);
    let outcome = catch_unwind(AssertUnwindSafe(make));
    EXPECTED.set(false);
    outcome.map_err(|caught| {
        let message = caught.downcast_ref::<&str>().map(ToString::to_string);
        (message.or_else(|| caught.downcast_ref::<String>().cloned()).unwrap(), FILE.take())
    })
}

/// One sentence for each link of the chain, and none twice.
#[test]
fn an_error_names_its_limit_and_leaves_its_cause_to_the_source() {
    let error = Plan::new([Call::look(bucket().key(""))]).unwrap_err();
    assert!(error.is_bad_input() && error.limit() == Some("some"));
    let cause = std::error::Error::source(&error).unwrap();
    assert_eq!(cause.downcast_ref(), Some(&KeyError::Empty));
    assert!(!error.to_string().contains(&cause.to_string()), "{error}");
    let nothing = Plan::new([Call::consume([])]).unwrap_err();
    assert!(nothing.is_bad_input() && nothing.limit().is_none());
    let cause = std::error::Error::source(&nothing).unwrap();
    assert_eq!(
        (nothing.to_string(), cause.downcast_ref()),
        ("the call is wrong".to_owned(), Some(&CallError::NothingAsked))
    );
    assert!(!Error::NotInTransaction.is_bad_input());
}
