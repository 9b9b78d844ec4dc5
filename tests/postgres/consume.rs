//! Taking tokens in the caller's transaction.

use std::sync::LazyLock;
use std::time::Duration;

use tollgate::{BegunByHand, Decision, Error, Limit, Limiter, MINUTE, SECOND, Storage, Tokens};

use crate::world::{World, limiter, second};

static LIMITER: LazyLock<Limiter> = LazyLock::new(limiter);

#[tokio::test]
async fn what_is_rolled_back_was_never_taken() {
    let world = World::new().await;
    let limit = Limit::token_bucket("rolled_back", 10, MINUTE);
    let mut tx = world.begin().await;
    LIMITER.consume(&mut tx, limit.key(1).cost(4)).await.unwrap().granted().unwrap();
    tx.rollback().await.unwrap();
    assert_eq!(world.row(Storage::Durable, "rolled_back", "1").await, None);

    let mut tx = world.begin().await;
    limiter().at(second(0.0)).consume(&mut tx, limit.key(1).cost(4)).await.unwrap().granted().unwrap();
    tx.commit().await.unwrap();
    assert_eq!(world.left(&limit, "1").await, Some(Tokens::new(6)));
}

/// 20 → 15 → 20 → 2 → 7: five tokens every ten seconds, at most twenty.
#[tokio::test]
async fn the_worked_example_of_a_stepped_bucket() {
    let world = World::new().await;
    for limit in [
        Limit::stepped_bucket("uploads", 5, Duration::from_secs(10)).capacity(20),
        Limit::stepped_bucket("uploads", 5, Duration::from_secs(10)).capacity(20).ephemeral(),
    ] {
        let mut tx = world.begin().await;
        for (at, cost, remaining) in [(0.0, 5, 15), (12.0, 0, 20), (12.0, 18, 2), (20.0, 0, 7)] {
            let decision = limiter().at(second(at)).consume(&mut tx, limit.global().cost(cost)).await.unwrap();
            assert_eq!(decision.granted().unwrap().remaining, Tokens::new(remaining), "at {at} s");
        }
        tx.commit().await.unwrap();
    }
}

#[tokio::test]
async fn a_refusal_names_the_instant_and_leaves_the_row_alone() {
    let world = World::new().await;
    let limit = Limit::token_bucket("refused", 10, MINUTE);
    let mut tx = world.begin().await;
    let at = |s: f64| limiter().at(second(s));
    let _ = at(0.0).consume(&mut tx, limit.key("a").cost(10)).await.unwrap();
    let Decision::Denied(denied) = at(1.0).consume(&mut tx, limit.key("a")).await.unwrap() else { panic!() };
    assert_eq!(denied.retry_at, Some(second(6.0)));
    assert_eq!(denied.retry_after(), Some(5 * SECOND));
    assert!(!at(5.999_999).consume(&mut tx, limit.key("a")).await.unwrap().is_granted());
    assert!(at(6.0).consume(&mut tx, limit.key("a")).await.unwrap().is_granted());
    tx.commit().await.unwrap();
}

#[tokio::test]
async fn several_limits_are_taken_all_or_none() {
    let world = World::new().await;
    let (user, tenant) = (Limit::token_bucket("user", 5, MINUTE), Limit::token_bucket("tenant", 1, MINUTE).ephemeral());
    let mut tx = world.begin().await;
    let ask = || [user.key(1), tenant.key(2)];
    let limiter = limiter().at(second(0.0));
    limiter.consume(&mut tx, ask()).await.unwrap().granted().unwrap();
    let denied = limiter.consume(&mut tx, ask()).await.unwrap().denied().unwrap();
    assert_eq!((&*denied.limit, denied.retry_at), ("tenant", Some(second(60.0))));
    tx.commit().await.unwrap();
    assert_eq!(world.left(&user, "1").await, Some(Tokens::new(4)));
    assert_eq!(world.left(&tenant, "2").await, Some(Tokens::ZERO));
}

#[tokio::test]
async fn outside_a_transaction_nothing_is_taken() {
    let world = World::new().await;
    let mut conn = world.connect().await;
    for limit in [Limit::token_bucket("bare", 5, MINUTE), Limit::token_bucket("bare", 5, MINUTE).ephemeral()] {
        let absent = LIMITER.consume(&mut BegunByHand(&mut conn), limit.key(1)).await;
        assert!(matches!(absent, Err(Error::NotInTransaction)), "{absent:?}");
        let mut tx = world.begin().await;
        let _ = LIMITER.consume(&mut tx, [limit.key(1), limit.key(2)]).await.unwrap();
        tx.commit().await.unwrap();
        let present = LIMITER.consume(&mut BegunByHand(&mut conn), limit.key(1)).await;
        assert!(matches!(present, Err(Error::NotInTransaction)), "{present:?}");
        let several = LIMITER.consume(&mut BegunByHand(&mut conn), [limit.key(1), limit.key(2), limit.key(3)]).await;
        assert!(matches!(several, Err(Error::NotInTransaction)), "{several:?}");
        assert_eq!(world.left(&limit, "1").await, Some(Tokens::new(4)));
    }
}
