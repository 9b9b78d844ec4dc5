//! Reservations, and the debts that they leave.

use std::time::Duration;

use tollgate::{Error, HOUR, Limit, MINUTE, SECOND, Tokens};

use super::{kinds, owing_kinds};
use crate::teller::{Teller, left, retry, tokens, wait};
use crate::world::{World, limiter, second};

#[tokio::test]
async fn a_reservation_borrows_from_the_time_to_come() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    let [tb, fw] = owing_kinds(10, MINUTE, 10).map(Limit::unbounded_reservations);
    for (limit, later, first, second_wait, second_value) in [(tb, 6.0, -10, 60, -10), (fw, 60.0, -6, 90, -11)] {
        assert_eq!(left(teller.consume(0.0, limit.global().cost(5)).await), tokens(5));
        assert_eq!(wait(teller.reserve(later, limit.global().cost(16)).await), MINUTE);
        assert_eq!(teller.row(&limit, "").await, Some((tokens(first), second(later))));
        let wait = wait(teller.reserve(later + 30.0, limit.global().cost(5)).await);
        assert_eq!(wait, Duration::from_secs(second_wait));
        assert_eq!(teller.row(&limit, "").await.unwrap().0, tokens(second_value));
    }
}

#[tokio::test]
async fn a_debt_delays_whoever_comes_next() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    for limit in owing_kinds(1, HOUR, 1).map(Limit::unbounded_reservations) {
        assert!(teller.check(0.0, limit.key("fresh")).await.is_granted());
        assert_eq!(wait(teller.reserve(0.0, limit.key("fresh").cost(100)).await), 99 * HOUR);
        assert_eq!(retry(teller.check(0.0, limit.key("fresh")).await), 100 * HOUR);

        teller.put(&limit, "empty", Tokens::ZERO, second(0.0)).await;
        assert_eq!(wait(teller.reserve(0.0, limit.key("empty").cost(100)).await), 100 * HOUR);
        assert_eq!(retry(teller.consume(0.0, limit.key("empty")).await), 101 * HOUR);
    }
    let spread = Limit::fixed_window("spread", 1, HOUR).unbounded_reservations();
    let wait = wait(teller.reserve(0.0, spread.global().cost(100)).await);
    assert!(wait > 98 * HOUR && wait <= 99 * HOUR, "{wait:?}");
}

#[tokio::test]
async fn reservations_stop_at_their_bound() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    for limit in owing_kinds(1, HOUR, 1).map(|limit| limit.max_reserved(1)) {
        assert_eq!(wait(teller.reserve(0.0, limit.global().cost(2)).await), HOUR);
        assert_eq!(teller.row(&limit, "").await, Some((tokens(-1), second(0.0))));
        assert_eq!(retry(teller.check(0.0, limit.global()).await), 2 * HOUR);
        assert_eq!(retry(teller.consume(0.0, limit.global()).await), 2 * HOUR);
    }
    for limit in owing_kinds(1, SECOND, 1).map(|limit| limit.max_reserved(2)) {
        let error = limiter().reserve(&mut teller.tx, limit.key(4).cost(4)).await.unwrap_err();
        assert!(matches!(error, Error::CostExceedsCapacity { max, .. } if max == tokens(3)), "{error:?}");
    }
    for limit in owing_kinds(1, SECOND, 2).map(|limit| limit.max_reserved(1)) {
        teller.put(&limit, "half", tokens(1), second(0.0)).await;
        let before = teller.rows().await;
        assert_eq!(retry(teller.reserve(0.0, limit.key("half").cost(3)).await), SECOND);
        assert_eq!(teller.rows().await, before);
    }
}

#[tokio::test]
async fn a_debt_of_one_is_two_periods_from_one_token() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    for limit in kinds(1, SECOND, 1) {
        for key in ["key", "", "otherKey"] {
            teller.put(&limit, key, tokens(-1), second(0.0)).await;
        }
        let before = teller.rows().await;
        assert_eq!(retry(teller.check(0.0, limit.key("key")).await), 2 * SECOND);
        assert_eq!(retry(teller.consume(0.0, limit.key("key")).await), 2 * SECOND);
        assert_eq!(teller.rows().await, before);
    }
}

#[tokio::test]
async fn a_limit_that_says_nothing_owes_nothing() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    for limit in kinds(1, SECOND, 1) {
        teller.put(&limit, "", Tokens::ZERO, second(0.0)).await;
        let before = teller.rows().await;
        assert_eq!(retry(teller.reserve(0.0, limit.global()).await), SECOND);
        assert_eq!(teller.rows().await, before);
        assert_eq!(wait(teller.reserve(0.0, limit.key("full")).await), Duration::ZERO);
    }
}

#[tokio::test]
async fn a_reservation_that_fits_is_no_refusal() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    let limit = Limit::token_bucket("queue", 1, SECOND).capacity(0).unbounded_reservations();
    for nth in 1..=5 {
        let booked = teller.reserve(0.0, limit.global()).await.granted().unwrap();
        assert_eq!((booked.wait(), booked.is_ready()), (nth * SECOND, false), "perfectly spaced");
    }
}
