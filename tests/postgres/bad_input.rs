//! For any input of callers, and for any rows written by hand: an answer or an error with a name, never a panic and
//! never a token too many.

mod bounds;
mod rows;
mod texts;

use chrono::{DateTime, Utc};
use tollgate::{
    BegunByHand, CallError, DAY, Error, FitError, Limit, Limiter, MINUTE, Receipt, Request, SECOND, Tokens,
};

use crate::teller::{Teller, both, left, run, tokens, wait};
use crate::transactions::terminate;
use crate::world::{World, second};

const LIMITER: Limiter = Limiter::new();

/// Every kind of refill, in either table.
fn kinds() -> impl Iterator<Item = Limit> {
    [
        Limit::token_bucket("drips", 10, MINUTE),
        Limit::stepped_bucket("steps", 10, MINUTE),
        Limit::fixed_window("spread", 10, MINUTE),
        Limit::fixed_window("aligned", 10, MINUTE).start(7 * SECOND),
    ]
    .into_iter()
    .flat_map(|limit| both(&limit))
    .chain([Limit::token_bucket("owes", 10, MINUTE).unbounded_reservations()])
}

#[tokio::test]
async fn bad_input_is_found_before_any_sql() {
    let world = World::new().await;
    let limit = Limit::token_bucket("ten", 10, MINUTE);
    let mut teller = Teller::of(&world).await;
    let receipt = Receipt::from(teller.consume(0.0, limit.key(1)).await.granted().unwrap());
    let mut mixed = receipt.clone();
    mixed.charges.extend(teller.consume(0.0, limit.key(2).cost(2)).await.granted().unwrap().receipt.charges);

    let mut empty = receipt.clone();
    empty.charges.clear();

    // Anything sent over this connection would be another error.
    let mut dead = world.connect().await;
    run(&mut dead, "begin").await;
    terminate(&world, &mut dead).await;
    let tx = &mut BegunByHand(&mut dead);
    let other = Limit::token_bucket("ten", 11, MINUTE);
    for limiter in [LIMITER, LIMITER.lock_timeout(SECOND), LIMITER.unnamed_statements()] {
        let errors = [
            limiter.consume(tx, limit.key("")).await.unwrap_err(),
            limiter.reserve(tx, limit.key("a\0")).await.unwrap_err(),
            limiter.check(tx.0, limit.key("x".repeat(513))).await.unwrap_err(),
            limiter.balance(tx.0, limit.key("")).await.unwrap_err(),
            limiter.reset(tx, limit.key("")).await.unwrap_err(),
            limiter.credit(tx, limit.key(1).cost(f64::NAN)).await.unwrap_err(),
            limiter.debit(tx, limit.key(1).cost(-1)).await.unwrap_err(),
            limiter.consume(tx, limit.key(1).cost(u64::MAX)).await.unwrap_err(),
            limiter.consume(tx, limit.key(1).cost(0.000_000_1)).await.unwrap_err(),
            limiter.consume(tx, limit.key(1).cost(tokens(-1))).await.unwrap_err(),
            limiter.consume(tx, limit.key(1).cost(11)).await.unwrap_err(),
            limiter.reserve(tx, limit.key(1).cost(11)).await.unwrap_err(),
            limiter.check(tx.0, limit.key(1).cost(11)).await.unwrap_err(),
            limiter.consume(tx, [limit.key(1).cost(6), limit.key(2), limit.key(1).cost(5)]).await.unwrap_err(),
            limiter.consume(tx, [limit.key(1), other.key(1)]).await.unwrap_err(),
            limiter.consume(tx, []).await.unwrap_err(),
            limiter.reserve(tx, Vec::<Request>::new()).await.unwrap_err(),
            limiter.settle(tx, receipt.clone(), f64::INFINITY).await.unwrap_err(),
            limiter.settle(tx, mixed.clone(), 1).await.unwrap_err(),
            limiter.settle(tx, empty.clone(), 1).await.unwrap_err(),
        ];
        for (nth, error) in errors.iter().enumerate() {
            let is_bad_input = matches!(
                error,
                Error::Key { .. }
                    | Error::CostExceedsCapacity { .. }
                    | Error::Call {
                        source: CallError::Cost(_)
                            | CallError::ConflictingDefinitions
                            | CallError::NothingAsked
                            | CallError::MixedCosts,
                        ..
                    }
            );
            assert!(is_bad_input && !error.is_retryable(), "{nth}: {error:?}");
        }
        let sent = limiter.consume(tx, limit.key(1)).await.unwrap_err();
        assert!(matches!(sent, Error::Database { .. }), "{sent:?}");
    }
}

#[tokio::test]
async fn extreme_limits_are_decided_like_any_other() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    let micro = std::time::Duration::from_micros(1);
    let stories = [
        Limit::token_bucket("most", 1, micro).rate_and_capacity(Tokens::MAX, Tokens::MAX),
        Limit::token_bucket("most_slowly", 1, Limit::MAX_PERIOD).rate_and_capacity(Tokens::MAX, Tokens::MAX),
        Limit::token_bucket("least", 1, Limit::MAX_PERIOD)
            .rate_and_capacity(Tokens::from_micros(1), Tokens::from_micros(1)),
        Limit::stepped_bucket("steps", 1, micro).rate_and_capacity(Tokens::MAX, Tokens::MAX),
        Limit::stepped_bucket("slow_steps", 1, Limit::MAX_PERIOD)
            .rate_and_capacity(Tokens::from_micros(1), Tokens::MAX),
        Limit::fixed_window("windows", 1, micro).rate_and_capacity(Tokens::MAX, Tokens::MAX),
        Limit::fixed_window("long_windows", 1, Limit::MAX_PERIOD)
            .rate_and_capacity(Tokens::from_micros(1), Tokens::MAX),
    ];
    for limit in stories.iter().flat_map(both) {
        let all = limit.spec().capacity.unwrap();
        let ask = || limit.global().cost(all);
        assert_eq!(left(teller.consume(0.0, ask()).await), Tokens::ZERO, "{}", limit.name());
        let denied = teller.consume(0.0, ask()).await.denied().unwrap();
        let retry_at = denied.retry_at.unwrap_or(DateTime::<Utc>::MAX_UTC);
        assert!(retry_at > second(0.0), "{denied:?}");
        // At that instant, not a microsecond earlier, unless it lies beyond the end of time.
        if retry_at < DateTime::<Utc>::MAX_UTC - 2 * micro {
            let early = LIMITER.at(retry_at - micro).consume(&mut teller.tx, ask()).await.unwrap();
            assert!(!early.is_granted(), "{denied:?}");
            let due = LIMITER.at(retry_at).consume(&mut teller.tx, ask()).await.unwrap();
            assert!(due.is_granted(), "{denied:?} {due:?}");
        }
        assert_eq!(teller.credit(0.0, ask()).await, all);
        let _ = teller.debit(0.0, ask()).await;
        // Twice the largest amount does not fit into a row.
        let twice = LIMITER.at(second(0.0)).debit(&mut teller.tx, ask()).await;
        assert!(
            matches!(twice, Err(Error::DoesNotFit { source: FitError::DebtTooDeep, .. })) == (all == Tokens::MAX),
            "{twice:?}"
        );
        assert_eq!(teller.reset(0.0, ask()).await, all);
    }
    let deep = Limit::token_bucket("deep", 1, Limit::MAX_PERIOD).unbounded_reservations();
    for _ in 0..1_000_000 {
        match LIMITER.at(second(0.0)).reserve(&mut teller.tx, deep.global().cost(9_000_000_000_000_u64)).await {
            Ok(booked) => assert!(wait(booked) > 365 * DAY),
            Err(error) => {
                assert!(matches!(error, Error::DoesNotFit { source: FitError::DebtTooDeep, .. }), "{error:?}");
                break;
            }
        }
    }
    let (debt, _) = teller.row(&deep, "").await.unwrap();
    assert!(debt < tokens(-1_000), "{debt}");
    let _ = teller.debit(0.0, deep.key("debit").cost(Tokens::MAX)).await;
    let error = LIMITER.debit(&mut teller.tx, deep.key("debit").cost(Tokens::MAX)).await.unwrap_err();
    assert!(matches!(error, Error::DoesNotFit { source: FitError::DebtTooDeep, .. }), "{error:?}");
}

#[tokio::test]
async fn the_far_ends_of_time_are_instants_like_any_other() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    let instants =
        ["-4713-11-24T00:00:00Z", "-0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z", "+262142-01-01T00:00:00Z"];
    for limit in kinds() {
        for at in instants.map(|at| at.parse::<DateTime<Utc>>().unwrap()).into_iter().chain([DateTime::<Utc>::MAX_UTC])
        {
            let limiter = LIMITER.at(at);
            let ask = || limit.key(at.timestamp()).cost(10);
            let grant = limiter.consume(&mut teller.tx, ask()).await.unwrap().granted().unwrap();
            assert_eq!(grant.remaining, Tokens::ZERO, "{} at {at}", limit.name());
            let denied = limiter.consume(&mut teller.tx, ask()).await.unwrap().denied().unwrap();
            assert!(denied.retry_at.is_none_or(|retry_at| retry_at >= denied.decided_at));
            assert_eq!(limiter.balance(&mut teller.tx, ask()).await.unwrap().remaining, Tokens::ZERO);
            limiter.settle(&mut teller.tx, grant, 0).await.unwrap();
            assert_eq!(limiter.balance(&mut teller.tx, ask()).await.unwrap().remaining, tokens(10));
        }
    }
}
