//! What a slow-down leaves of a rate.

use tollgate::{DAY, Limit, Limiter, MINUTE, Overrides, Tokens};

use super::slow_down::slowed;
use crate::world::{World, parts, second};

/// SQL may slow down a limit of which only the library knows that it has no rate.
#[tokio::test]
async fn a_limit_without_a_rate_is_asked_as_before_whatever_slows_it_down() {
    let world = World::new().await;
    slowed(&world, "", 500_000, second(0.0), second(0.0) + DAY).await;
    let mut tx = world.begin().await;
    let overrides = Overrides::read(&mut tx).await.unwrap();
    let limiter = Limiter::new().parts(parts()).overrides(&overrides).at(second(0.5));
    for (limit, left) in [(Limit::wallet("theirs").overdraft(3), 0), (Limit::concurrency("theirs", 3, MINUTE), 3)] {
        let seen = limiter.balance(&mut tx, limit.key("k")).await.unwrap();
        assert_eq!(seen.remaining, Tokens::new(left), "{limit:?}");
    }
}
