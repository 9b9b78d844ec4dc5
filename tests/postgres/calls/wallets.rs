//! Wallets: money that is credited once, and spent once.

use std::time::Duration;

use tollgate::{Error, FitError, HOUR, Limit, MINUTE, Source, Sweeper, Tokens};

use super::left;
use crate::gate::stage::{patient, pool};
use crate::teller::tokens;
use crate::world::{World, limiter, part, second, sweeper};

/// A payment is credited once, however often its webhook comes.
#[tokio::test]
async fn a_wallet_is_credited_once_for_each_payment_and_pays_only_what_it_has() {
    let world = World::new().await;
    let gate = patient(&pool(&world.url(), 3).await).build();
    let wallet = Limit::wallet("credits");
    let denied = gate.consume(wallet.key(1)).await.unwrap().denied().unwrap();
    assert_eq!((denied.retry_at, denied.remaining), (None, Tokens::ZERO));
    for source in [Source::Database, Source::Repeated, Source::Repeated] {
        let balance = gate.credit(wallet.key(1).cost(500).once("payment 7")).await.unwrap();
        assert_eq!((balance.source, balance.remaining, balance.full_at), (source, tokens(500), None));
    }
    let mut tx = world.begin().await;
    let again = limiter().credit(&mut tx, wallet.key(1).cost(500).once("payment 7")).await.unwrap();
    assert_eq!(again.source, Source::Repeated);
    tx.rollback().await.unwrap();
    let grant = gate.consume(wallet.key(1).cost(400)).await.unwrap().granted().unwrap();
    assert!(!gate.consume(wallet.key(1).cost(101)).await.unwrap().is_granted());
    assert!(gate.consume(wallet.clone().overdraft(1).key(1).cost(101)).await.unwrap().is_granted());
    gate.settle(grant, 0).await.unwrap();
    assert_eq!(left(&world.pool, wallet.key(1)).await, 399);
    // A balance of nothing needs no row, and a settlement brings one back.
    let grant = gate.consume(wallet.key(1).cost(399)).await.unwrap().granted().unwrap();
    let swept = Sweeper::new().share(100).margin(Duration::ZERO).trusting_the_clock().sweep(&world.pool).await.unwrap();
    assert_eq!(swept.durable, 1);
    gate.settle(grant, 99).await.unwrap();
    assert_eq!(left(&world.pool, wallet.key(1)).await, 300);
    // Money is not capacity.
    let bucket = Limit::token_bucket("credits", 10, MINUTE);
    let error = gate.consume(bucket.key(1)).await.unwrap_err();
    assert!(matches!(error, Error::DoesNotFit { source: FitError::MixedMoney, .. }), "{error:?}");
    let error = gate.credit(wallet.key(1).cost(Tokens::MAX)).await.unwrap_err();
    assert!(matches!(error, Error::DoesNotFit { source: FitError::BalanceTooLarge, .. }), "{error:?}");
}

/// Payment services repeat a webhook for days. After the span a repeat is a payment of its own.
#[tokio::test]
async fn a_payment_is_credited_once_however_late_in_a_month_its_webhook_comes_again() {
    let world = World::new().await;
    let wallet = Limit::wallet("credits");
    let on_day = |day: u32| second(f64::from(day) * 86_400.0);
    for (day, source) in [(0, Source::Database), (2, Source::Repeated), (30, Source::Repeated), (32, Source::Database)]
    {
        sweeper().margin(Duration::ZERO).at(on_day(day)).sweep(&world.pool).await.unwrap();
        let mut tx = world.begin().await;
        let limiter = limiter().at(on_day(day));
        let credit = limiter.credit(&mut tx, wallet.key(1).cost(500).once("payment 7")).await.unwrap();
        let debit = limiter.debit(&mut tx, wallet.key(1).cost(100).once("refund 7")).await.unwrap();
        assert_eq!([credit.source, debit.source], [source; 2], "on day {day}");
        // A span that the caller names counts instead.
        let brief = limiter.credit(&mut tx, wallet.key(2).cost(5).once_for("brief", HOUR)).await.unwrap();
        assert_eq!(brief.source, Source::Database, "on day {day}");
        tx.commit().await.unwrap();
    }
    assert_eq!(left(&world.pool, wallet.key(1)).await, 800, "two credits of 500, and two debits of 100");
}

/// In a transaction that goes on without it, a call that was dropped between its statements leaves no bucket where
/// a wallet was to be.
#[tokio::test]
async fn a_row_of_a_wallet_that_was_only_inserted_is_still_one() {
    let world = World::new().await;
    let wallet = Limit::wallet("credits");
    let row = format!("insert into tollgate.durable values ({}, 'credits', '1', 0, 0, now(), now())", part("1"));
    world.sql(&row).await;
    let gate = patient(&pool(&world.url(), 1).await).build();
    gate.credit(wallet.key(1).cost(5)).await.unwrap();
    assert_eq!(left(&world.pool, wallet.key(1)).await, 5);
}
