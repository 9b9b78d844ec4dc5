//! Definitions of limits, under names that stay: rows of jobs and files of limits hold them.

use std::time::Duration;

use proptest::prelude::*;
use serde_json::{Value, json};
use tollgate::{HOUR, Limit, LimitError, LimitFault, LimitKind, LimitSpec, MINUTE, SECOND, Storage, Tokens};

use super::travelled;
use crate::story::{any_kind, config, extreme_limits, limits};
use crate::world::{micros, tokens};

proptest! {
    #![proptest_config(config())]

    #[test]
    fn every_limit_comes_back(limit in prop_oneof![limits(any_kind()), extreme_limits()]) {
        prop_assert_eq!(&travelled(&limit), &limit);
        prop_assert_eq!(travelled(&limit.spec()), limit.spec());
        prop_assert_eq!(Limit::try_from(limit.spec()), Ok(limit));
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

/// A limit in JSON, with one field set.
fn with(field: &str, value: Value) -> Value {
    let mut limit = json!({ "name": "uploads", "kind": "fixed_window", "rate": 5, "period": "10s" });
    limit[field] = value;
    limit
}
