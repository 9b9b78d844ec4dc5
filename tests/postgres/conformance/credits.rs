//! Weights, credits and resets.

use tollgate::{Limit, MINUTE, SECOND, Tokens};

use super::{kinds, uploads, windows};
use crate::teller::{Teller, both, left, retry, tokens};
use crate::world::{World, second};

#[tokio::test]
async fn reset_fills_one_key_and_no_other() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    for limit in kinds(1, SECOND, 1) {
        assert_eq!(teller.reset(0.0, limit.key("a")).await, tokens(1));
        assert_eq!(teller.row(&limit, "a").await, None, "an absent row is full already");
        for ask in [limit.global(), limit.key("a"), limit.key("b")] {
            assert!(teller.consume(0.0, ask.clone()).await.is_granted());
            assert!(!teller.consume(0.0, ask).await.is_granted());
        }
        for (reset, other) in [(limit.global(), limit.key("a")), (limit.key("a"), limit.key("b"))] {
            assert_eq!(teller.reset(0.0, reset.clone()).await, tokens(1));
            assert!(!teller.check(0.0, other).await.is_granted());
            assert!(teller.consume(0.0, reset.clone()).await.is_granted());
            assert!(!teller.consume(0.0, reset).await.is_granted());
        }
    }
}

#[tokio::test]
async fn weights_and_credits_stay_between_nothing_and_full() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    for limit in both(&Limit::fixed_window("weighted", 10, MINUTE)) {
        assert_eq!(left(teller.consume(0.0, limit.key(1).cost(5)).await), tokens(5));
        assert_eq!(left(teller.consume(0.0, limit.key(1).cost(5)).await), Tokens::ZERO);
        assert!(!teller.consume(0.0, limit.key(1)).await.is_granted());
    }
    for limit in windows().chain(uploads()) {
        let capacity = limit.spec().capacity.unwrap();
        left(teller.consume(0.0, limit.key("credit").cost(3)).await);
        assert_eq!(teller.credit(0.0, limit.key("credit").cost(10)).await, capacity);
        let before = teller.rows().await;
        assert_eq!(teller.credit(0.0, limit.key("credit").cost(10)).await, capacity);
        assert_eq!(teller.credit(0.0, limit.key("absent").cost(10)).await, capacity);
        assert_eq!(teller.rows().await, before, "there was no room for more");
    }
}

#[tokio::test]
async fn a_credit_after_its_window_adds_nothing_to_the_new_one() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    for limit in windows() {
        left(teller.consume(0.0, limit.key(1).cost(3)).await);
        assert_eq!(teller.credit(61.0, limit.key(1).cost(3)).await, tokens(5));
        assert_eq!(left(teller.consume(61.0, limit.key(1)).await), tokens(4));
    }
}

#[tokio::test]
async fn a_cost_of_zero_asks_whether_there_is_a_debt() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    for limit in kinds(10, MINUTE, 10) {
        let nothing = || limit.key(1).cost(0);
        assert_eq!(left(teller.consume(0.0, nothing()).await), tokens(10));
        assert_eq!(teller.row(&limit, "1").await, None);
        left(teller.consume(0.0, limit.key(1).cost(10)).await);
        let empty = teller.rows().await;
        assert_eq!(left(teller.consume(0.0, nothing()).await), Tokens::ZERO);
        assert_eq!(teller.credit(0.0, nothing()).await, Tokens::ZERO);
        assert_eq!(teller.debit(0.0, nothing()).await, Tokens::ZERO);
        assert_eq!(teller.rows().await, empty);
        assert_eq!(teller.debit(0.0, limit.key(1)).await, tokens(-1));
        let owing = teller.rows().await;
        assert_eq!(retry(teller.consume(0.0, nothing()).await), if limit.name() == "tb" { 6 * SECOND } else { MINUTE });
        assert_eq!(teller.rows().await, owing);
    }
}

#[tokio::test]
async fn a_credit_settles_the_refill_first() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    for limit in both(&Limit::token_bucket("drips", 10, MINUTE)) {
        teller.put(&limit, "", tokens(1), second(0.0)).await;
        assert_eq!(teller.credit(30.0, limit.global().cost(2)).await, tokens(8));
        assert_eq!(teller.row(&limit, "").await, Some((tokens(8), second(30.0))));
        assert_eq!(teller.balance(36.0, limit.global()).await.remaining, tokens(9));
    }
}

#[tokio::test]
async fn remaining_is_read_and_reset_starts_over() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    for limit in windows().chain(uploads()) {
        let capacity = limit.spec().capacity.unwrap();
        let minus = |n| capacity.checked_sub(tokens(n)).unwrap();
        assert_eq!(teller.balance(0.0, limit.key(1)).await.remaining, capacity);
        left(teller.consume(0.0, limit.key(1).cost(2)).await);
        assert_eq!(teller.balance(0.0, limit.key(1)).await.remaining, minus(2));
        assert_eq!(teller.balance(0.0, limit.key(1)).await.remaining, minus(2));
        left(teller.consume(0.0, limit.key(1).cost(minus(2))).await);
        assert!(!teller.consume(0.0, limit.key(1)).await.is_granted());
        assert_eq!(teller.reset(0.0, limit.key(1)).await, capacity);
        assert_eq!(left(teller.consume(0.0, limit.key(1)).await), minus(1));
    }
}
