//! Clocks: one that goes back, and the one of a transaction that began long ago.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use chrono::{DateTime, Utc};
use tollgate::{Limit, MINUTE, NewOverride, Overrides, SECOND, Tokens};

use super::kinds;
use crate::teller::{Teller, both, retry, tokens};
use crate::world::{ON_CALL, World, limiter, second};

#[tokio::test]
async fn time_stands_still_where_the_clock_goes_back() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    for limit in kinds(10, MINUTE, 10) {
        teller.put(&limit, "", tokens(5), second(60.0)).await;
        let balance = teller.balance(0.0, limit.global()).await;
        assert_eq!((balance.remaining, balance.as_of, balance.ahead()), (tokens(5), second(60.0), MINUTE));
        let grant = teller.consume(0.0, limit.global()).await.granted().unwrap();
        assert_eq!((grant.remaining, grant.decided_at), (tokens(4), second(60.0)));
        assert_eq!(grant.observed_at, second(0.0));
        assert_eq!(teller.row(&limit, "").await, Some((tokens(4), second(60.0))));
        // First the clock has to catch up.
        let wait = MINUTE + if limit.name() == "tb" { 36 * SECOND } else { MINUTE };
        assert_eq!(retry(teller.consume(0.0, limit.global().cost(10)).await), wait);
    }
}

#[tokio::test]
async fn in_a_transaction_begun_long_ago_refill_uses_the_present() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    for limit in both(&Limit::token_bucket("present", 1_000, SECOND)) {
        let began: DateTime<Utc> =
            sqlx::query_scalar("select transaction_timestamp()").fetch_one(&mut *teller.tx).await.unwrap();
        teller.put(&limit, "", Tokens::ZERO, began).await;
        let balance = limiter().balance(&mut teller.tx, limit.global()).await.unwrap();
        let elapsed = (balance.observed_at - began).num_microseconds().unwrap();
        assert!(elapsed > 0, "{balance:?} after {began}");
        assert_eq!(balance.remaining, Tokens::from_micros(elapsed * 1_000).min(tokens(1_000)));

        let one = limit.global().cost(Tokens::from_micros(1));
        let grant = limiter().consume(&mut teller.tx, one).await.unwrap().granted().unwrap();
        assert!(grant.decided_at > balance.observed_at);
        let (_, ts) = teller.row(&limit, "").await.unwrap();
        assert_eq!(ts, grant.decided_at);
    }
}

/// A call that looks, locks and goes by overrides does so at one instant.
#[tokio::test]
async fn a_limiter_asks_its_clock_once_for_each_call() {
    let world = World::new().await;
    let limit = Limit::token_bucket("clock", 8, MINUTE).shards(4);
    let free = NewOverride::unlimited(&limit).key("free").reason("a test");
    free.set(&mut world.connect_as(ON_CALL).await).await.unwrap();
    let overrides = Overrides::read(&mut world.connect().await).await.unwrap();
    let asked = Arc::new(AtomicU32::new(0));
    let clock = asked.clone();
    let limiter = limiter().overrides(&overrides).clock(move || second(clock.fetch_add(1, Ordering::SeqCst).into()));
    let mut tx = world.begin().await;
    for _ in 0..2 {
        limiter.consume(&mut tx, limit.key("k")).await.unwrap().granted().unwrap();
    }
    limiter.consume(&mut tx, limit.key("free")).await.unwrap().granted().unwrap();
    limiter.consume_each(&mut tx, [limit.key("k"), limit.key("other")]).await.unwrap();
    assert_eq!(asked.load(Ordering::SeqCst), 4);
}
