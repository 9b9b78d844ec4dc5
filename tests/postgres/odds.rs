//! Calls at odds: futures that are dropped, ids that collide, rows that are held, and tokens that cannot be given back.

mod ids;
mod lapses;

use std::time::Duration;

use tollgate::{Call, Error, FitError, HOUR, Limit, Limiter, Receipt, Tokens};

use crate::calls::{left, rows_and_calls, settle, stored};
use crate::cancellation::{Cut, Cuts};
use crate::gate::stage::{EVER, one_connection, patient, pool};
use crate::proxy::Proxy;
use crate::world::World;

const BUCKET: Limit = Limit::token_bucket("bucket", 1_000, EVER);

/// A settlement inserts a wallet's row, since an empty one may be missing. The row of the bucket beside it was swept,
/// and all that it is locked in order with is inserted, too.
#[tokio::test]
async fn a_settlement_dropped_anywhere_and_committed_leaves_a_swept_bucket_full() {
    let world = World::new().await;
    let proxy = Proxy::new(&world.url());
    let wire = one_connection(proxy.options()).await;
    let wallet = Limit::wallet("wallet").overdraft(1_000);
    let others = [
        BUCKET,
        Limit::stepped_bucket("steps", 1_000, EVER),
        Limit::fixed_window("fixed", 1_000, EVER),
        Limit::sliding_window("sliding", 1_000, EVER),
    ];
    let mut cuts = Cuts::default();
    loop {
        world.sql("truncate tollgate.ephemeral, tollgate.durable, tollgate.calls").await;
        let mut tx = world.pool.begin().await.unwrap();
        let asked = others.iter().chain([&wallet]).map(|limit| limit.key("k").cost(100));
        let grant = Limiter::new().consume(&mut tx, asked.collect::<Call>()).await.unwrap().granted().unwrap();
        tx.commit().await.unwrap();
        world.sql("delete from tollgate.durable").await;
        let mut tx = wire.begin().await.unwrap();
        let done = Cut::after(cuts.waits, Limiter::new().settle(&mut tx, grant, 10)).await;
        tx.commit().await.unwrap();
        let mut tx = world.pool.begin().await.unwrap();
        for limit in &others {
            let balance = Limiter::new().balance(&mut tx, limit.key("k")).await.unwrap();
            assert!(balance.is_full(), "cut at {}: {balance:?}", cuts.waits);
            Limiter::new().consume(&mut tx, limit.key("k").cost(1_000)).await.unwrap().granted().unwrap();
            Limiter::new().consume(&mut tx, limit.key("k")).await.unwrap().denied().unwrap();
        }
        let money = Limiter::new().balance(&mut tx, wallet.key("k")).await.unwrap().remaining;
        let settled = money == Tokens::new(90);
        assert!(settled || done.is_none() && money == Tokens::ZERO, "cut at {}: {money}", cuts.waits);
        if !cuts.go_on(done.is_some()) {
            break;
        }
    }
}

/// An amount that a wallet cannot take comes back nowhere, and stays owed.
#[tokio::test]
async fn a_settlement_that_overfills_a_wallet_changes_nothing() {
    let world = World::new().await;
    let gate = patient(&pool(&world.url(), 2).await).build();
    let wallet = Limit::wallet("full");
    for by_gate in [true, false] {
        world.sql("truncate tollgate.durable, tollgate.calls").await;
        gate.credit(wallet.global().cost(5)).await.unwrap();
        let asked = Call::from([BUCKET.key("k").cost(5), wallet.global().cost(5)]).lapses_after(HOUR);
        let receipt = Receipt::from(gate.consume(asked).await.unwrap().granted().unwrap());
        let settle = async || settle(&world, by_gate.then_some(&gate), receipt.clone(), 0).await;
        world
            .sql(&format!(
                "update tollgate.durable set value = {}, full_at = '9999-01-01' where name = 'full'",
                i64::MAX
            ))
            .await;
        let before = rows_and_calls(&world).await;
        let error = settle().await.unwrap_err();
        assert!(
            matches!(&error, Error::DoesNotFit { limit, source: FitError::BalanceTooLarge } if limit == "full"),
            "{error:?}"
        );
        assert_eq!((rows_and_calls(&world).await, before.len()), (before.clone(), 3));
        world.sql("update tollgate.durable set value = 0, full_at = ts where name = 'full'").await;
        settle().await.unwrap();
        assert_eq!([left(&world.pool, BUCKET.key("k")).await, left(&world.pool, wallet.global()).await], [1_000, 5]);
        assert_eq!(stored(&mut world.connect().await).await, 0);
    }
}

/// After so long a call has lapsed once anybody looks.
const MOMENT: Duration = Duration::from_micros(1);
