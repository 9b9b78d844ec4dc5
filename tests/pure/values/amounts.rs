//! Amounts: as numbers, as texts and as costs.

use proptest::prelude::*;
use serde_json::json;
use tollgate::plan::{Plan, Verb};
use tollgate::{CallError, Error, Tokens, TokensError};

use super::{bucket, consume_one, reserve_one, travelled};
use crate::story::config;
use crate::world::{World, micros, sec, tokens};

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
}

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
        for verb in [consume_one, reserve_one, Verb::credit, Verb::debit, Verb::Look, Verb::Reset] {
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
fn half_a_token_is_exact() {
    let mut world = World::default();
    for n in 1..=20 {
        assert_eq!(world.granted(bucket().global().cost(0.5), sec(0)), micros(10_000_000 - n * 500_000));
    }
    world.denied(bucket().global().cost(0.000_001), sec(0));
}
