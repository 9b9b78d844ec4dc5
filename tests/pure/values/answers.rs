//! Answers: grants, reservations and refusals, and the waits that they name.

use std::time::Duration;

use chrono::{DateTime, Utc};
use proptest::prelude::*;
use serde_json::json;
use tollgate::algebra::{State, Timestamp};
use tollgate::plan::{Answer, Verb};
use tollgate::{
    Balance, Charge, Decision, Denied, DeniedBy, Grant, HOUR, Limit, MINUTE, Receipt, Request, Reservation, SECOND,
    Tokens,
};

use super::{consume_one, travelled};
use crate::story::{config, extreme_limits};
use crate::world::{World, at, due, micros, receipt, sec, tokens};

proptest! {
    #![proptest_config(config())]

    /// Every answer that a plan gives, over rows from all of time.
    #[test]
    fn every_answer_comes_back(limit in extreme_limits(), value: i64, ts: i64, now: i64, cost in 0..=i64::MAX) {
        let (request, now) = (limit.key("some|one").cost(micros(cost)), at(now));
        let world = World::holding(&request, State::new(micros(value), at(ts)));
        for call in [Verb::consume(request.clone()), Verb::reserve(request.clone())] {
            match world.clone().call(call, now) {
                Ok(Answer::Granted { grant, ready_at, .. }) => {
                    let at = [grant.observed_at, grant.decided_at].map(Timestamp::from);
                    let charges = grant.receipt.charges;
                    prop_assert_eq!(&travelled(&charges), &charges);
                    let receipt = receipt(&charges);
                    prop_assert_eq!(&travelled(&receipt), &receipt);
                    let reservation = reservation(at, ready_at, &charges);
                    let json = serde_json::to_value(&reservation).unwrap();
                    prop_assert_eq!(json["wait_ms"].as_u64(), Some(millis_up(at[0], ready_at)));
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
                "full_at": "1970-01-01T00:00:01Z",
            }],
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
        let answer = world.call(Verb::reserve([ahead.global(), owes.global()]), sec(0));
        let Ok(Answer::Granted {
            grant: Grant { observed_at, decided_at, receipt: Receipt { charges, .. }, .. },
            ready_at,
            ..
        }) = answer
        else {
            panic!("{answer:?}")
        };
        assert_eq!([observed_at.into(), decided_at.into(), ready_at], [sec(0), sec(0), both_ready_at]);
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
    let Ok(Answer::Denied(denied)) = world.call(Verb::consume([fast.global(), slow.global()]), sec(0)) else {
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

/// The charges of a grant of this request.
fn charges_of(request: &Request) -> Vec<Charge> {
    match World::default().call(consume_one(request.clone()), sec(0)) {
        Ok(Answer::Granted { grant: Grant { receipt: Receipt { charges, .. }, .. }, .. }) => charges,
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
