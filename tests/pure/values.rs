//! Values travel: each comes back from JSON as it went, under names that stay. A wrong value gives an error with a
//! name, whether it is written in code, read from a file, or computed.

mod amounts;
mod answers;
mod constructors;
mod definitions;
mod keys;
mod requests;

use std::fmt::Debug;

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tollgate::algebra::Timestamp;
use tollgate::plan::{Plan, Verb};
use tollgate::{Error, FitError, Limit, MINUTE, Reason, Request, Source, Storage};

#[test]
fn plain_words_stay() {
    assert_eq!(words([Storage::Durable, Storage::Ephemeral]), ["durable", "ephemeral"]);
    assert_eq!(words([Source::Database]), ["database"]);
    assert_eq!(
        words([Reason::Short, Reason::HeldBack, Reason::Leased, Reason::OutOfTurn]),
        ["short", "held_back", "leased", "out_of_turn"]
    );
}

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

fn bucket() -> Limit {
    Limit::token_bucket("some", 10, MINUTE)
}

fn consume_one(request: Request) -> Verb {
    Verb::consume(request)
}

fn reserve_one(request: Request) -> Verb {
    Verb::reserve(request)
}

/// `%error` in a log prints no `source()`.
#[test]
fn an_error_names_its_limit_and_has_its_reason_in_its_own_text() {
    let cost = bucket().global().cost(-1);
    let unfit = Error::DoesNotFit { limit: "some".into(), source: FitError::DebtTooDeep };
    let told = [
        (
            Plan::new([Verb::Look(bucket().key(""))]).unwrap_err(),
            "the key asked of limit \"some\" is invalid: ",
            "empty",
        ),
        (
            Plan::new([consume_one(cost)]).unwrap_err(),
            "the call for limit \"some\" is wrong: the cost is invalid: ",
            "neg",
        ),
        (unfit, "a row of limit \"some\" cannot hold what the call would make of it: ", "deeper"),
    ];
    for (error, text, reason) in told {
        let said = error.to_string();
        assert!(said.starts_with(text) && said.contains(reason) && error.limit() == Some("some"), "{said}");
        assert!(std::error::Error::source(&error).is_none() && error.chain() == said, "it is told once: {said}");
    }
    let nothing = Plan::new([Verb::consume([])]).unwrap_err();
    assert!(nothing.is_bad_input() && nothing.limit().is_none());
    assert!(nothing.to_string().starts_with("the call is wrong: no limit was asked"), "{nothing}");
    assert!(!Error::NotInTransaction.is_bad_input());
}
