//! Limits that refill in steps, on a grid.

use std::time::Duration;

use tollgate::{Limit, MINUTE, SECOND, Tokens};

use super::{uploads, windows};
use crate::teller::{Teller, left, retry, tokens};
use crate::world::{World, second};

#[tokio::test]
async fn a_window_of_five() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    for limit in windows() {
        for (at, key) in [(61.0, "after"), (60.0, "boundary")] {
            for remaining in (0..5).rev() {
                assert_eq!(left(teller.consume(0.0, limit.key(key)).await), tokens(remaining));
                assert_eq!(teller.balance(0.0, limit.key(key)).await.full_at, Some(second(60.0)));
            }
            let refused = teller.consume(0.0, limit.key(key)).await.denied().unwrap();
            assert_eq!((refused.remaining, refused.retry_at), (Tokens::ZERO, Some(second(60.0))));
            assert!(!teller.consume(59.999_999, limit.key(key)).await.is_granted());
            assert_eq!(left(teller.consume(at, limit.key(key)).await), tokens(4));
        }
    }
}

#[tokio::test]
async fn refused_calls_do_not_count() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    for limit in windows() {
        left(teller.consume(0.0, limit.key(1).cost(5)).await);
        for _ in 0..100 {
            assert!(!teller.consume(0.0, limit.key(1)).await.is_granted());
        }
        assert_eq!(teller.credit(0.0, limit.key(1)).await, tokens(1));
        assert_eq!(left(teller.consume(0.0, limit.key(1)).await), Tokens::ZERO);
    }
}

#[tokio::test]
async fn to_f18_a_stepped_bucket_counts_whole_steps_and_keeps_its_grid() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    for limit in uploads() {
        assert_eq!(left(teller.consume(0.0, limit.key("f11")).await), tokens(19));

        left(teller.consume(0.0, limit.key("f12").cost(15)).await);
        assert_eq!(left(teller.consume(10.0, limit.key("f12")).await), tokens(9));

        left(teller.consume(0.0, limit.key("f13").cost(2)).await);
        assert_eq!(left(teller.consume(3_600.0, limit.key("f13")).await), tokens(19));

        left(teller.consume(0.0, limit.key("f14").cost(20)).await);
        for _ in 0..5 {
            let refused = teller.consume(0.0, limit.key("f14")).await.denied().unwrap();
            assert_eq!((refused.remaining, refused.retry_at), (Tokens::ZERO, Some(second(10.0))));
        }
        assert_eq!(retry(teller.consume(9.0, limit.key("f14")).await), SECOND);
        assert_eq!(left(teller.consume(10.0, limit.key("f14")).await), tokens(4));

        left(teller.consume(0.0, limit.key("f16").cost(15)).await);
        assert_eq!(left(teller.consume(15.0, limit.key("f16")).await), tokens(9));
        assert_eq!(left(teller.consume(20.0, limit.key("f16")).await), tokens(13));
    }
    let continuous = Limit::token_bucket("drips", 5, Duration::from_secs(10)).capacity(20);
    left(teller.consume(0.0, continuous.global().cost(15)).await);
    assert_eq!(left(teller.consume(15.0, continuous.global()).await), "11.5".parse().unwrap());
    assert_eq!(left(teller.consume(20.0, continuous.global()).await), tokens(13));
}

#[tokio::test]
async fn a_steady_caller_below_the_rate_is_never_refused() {
    let world = World::new().await;
    let ten = |name| Limit::stepped_bucket(name, 10, MINUTE).capacity(10);
    let stories = [
        (Limit::stepped_bucket("f19", 5, Duration::from_secs(10)).capacity(20), 9.0, 400),
        (ten("f20"), 7.0, 515),
        (ten("f20_tight"), 6.0, 600),
        (Limit::stepped_bucket("f21", 100, SECOND).capacity(100), 0.02, 3_000),
    ];
    for (limit, apart, calls) in stories {
        let mut teller = Teller::of(&world).await;
        for nth in 0..calls {
            if nth % 100 == 99 {
                // Row versions that one transaction writes over and over cannot be pruned before it ends.
                std::mem::replace(&mut teller, Teller::of(&world).await).commit().await;
            }
            let decision = teller.consume(f64::from(nth) * apart, limit.global()).await;
            assert!(decision.is_granted(), "{} call {nth}: {decision:?}", limit.name());
        }
    }
}

#[tokio::test]
async fn a_bucket_that_was_full_keeps_its_grid() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    for limit in uploads() {
        for (at, remaining) in [(0.0, 19), (12.0, 19), (20.0, 19), (29.0, 18), (30.0, 19)] {
            assert_eq!(left(teller.consume(at, limit.global()).await), tokens(remaining), "at {at} s");
        }
    }
}
