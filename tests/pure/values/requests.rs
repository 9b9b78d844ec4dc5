//! Requests, and the calls that they make. Bad input is an error before any row is named.

use proptest::prelude::*;
use tollgate::plan::{Plan, Verb};
use tollgate::{CallError, Error, Key, Limit, MINUTE, SECOND, Tokens, TokensError};

use super::keys::texts;
use super::{bucket, consume_one, reserve_one, travelled};
use crate::story::{any_kind, config, limits};
use crate::world::{micros, tokens};

proptest! {
    #![proptest_config(config())]

    #[test]
    fn every_request_comes_back(limit in limits(any_kind()), text in texts(), cost in 0..=i64::MAX) {
        let request = limit.key(text.as_str()).cost(micros(cost));
        match Key::new(text.as_str()) {
            Ok(_) => {
                let held = request.clone().tracked_for(SECOND).once("job 7");
                prop_assert_eq!(travelled(&held), held);
                prop_assert_eq!(travelled(&request), request);
            }
            Err(_) => prop_assert!(serde_json::to_string(&request).is_err(), "a wrong request does not travel"),
        }
    }
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
        let error = Plan::new([Verb::consume([request(), request()])]).unwrap_err();
        assert!(matches!(error, Error::CostExceedsCapacity { asked, .. } if asked > tokens(10)), "{error}");
    }
}

#[test]
fn a_call_that_asks_nothing_or_two_things_of_one_row_is_an_error() {
    assert!(matches!(Plan::new([Verb::consume([])]), Err(Error::Call { source: CallError::NothingAsked, .. })));
    for other in [bucket().capacity(20), bucket().ephemeral()] {
        let two = [bucket().global(), other.global()];
        let error = Plan::new([Verb::consume(two)]).unwrap_err();
        assert!(matches!(error, Error::Call { source: CallError::ConflictingDefinitions, .. }), "{error}");
        assert_eq!(error.limit(), Some("some"));
    }
}
