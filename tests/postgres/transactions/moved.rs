//! Parts that Citus moves to another node while a transaction holds rows of them.

use sqlx::AssertSqlSafe;
use tollgate::{Call, Error, HOUR, Limit, Receipt, Tokens};

use super::LIMITER;
use crate::gate::stage::EVER;
use crate::teller::{both, tokens};
use crate::world::{MOVE, NUMBERS, World, is_on_citus, part_of, pid};

const TEN: Limit = Limit::token_bucket("ten", 10, EVER);
/// Comes after the other in lock order.
const TOO: Limit = Limit::token_bucket("too", 10, EVER);

/// A settlement locks a row, and waits for another one. Meanwhile the part of the first is moved, and others take from
/// it where it lies now.
#[tokio::test]
async fn a_row_that_changed_where_its_part_was_moved_to_is_not_overwritten() {
    if !is_on_citus() {
        return;
    }
    for (limit, too) in both(&TEN).into_iter().zip(both(&TOO)) {
        let [here, there] = two_keys();
        let table = format!("tollgate.{}", limit.spec().storage);
        let one = || limit.key(&here);
        for (call, held) in [
            (Call::from([one(), too.key(&here)]), row(&table, &too, &here)),
            (Call::from([one(), limit.key(&there)]), row(&table, &limit, &there)),
            (Call::from(one()).lapses_after(HOUR), row("tollgate.calls", &limit, &here)),
        ] {
            let world = World::new().await;
            let receipt = charge(&world, call).await;
            let settled = settle_beside(&world, &receipt, &held, &here, async || {
                for _ in 0..3 {
                    let _spent = charge(&world, one().into()).await;
                }
            })
            .await;
            assert!(
                matches!(&settled, Err(error @ Error::Moved { .. }) if error.is_retryable()),
                "{held}: {settled:?}"
            );
            assert_eq!(world.left(&limit, &here).await, Some(tokens(6)), "{held}");
            settle(&world, receipt).await.unwrap();
            assert_eq!(world.left(&limit, &here).await, Some(tokens(7)), "{held}");
        }
    }
}

/// Both settlements give back one token, at the same step.
#[tokio::test]
async fn a_row_that_others_wrote_alike_where_its_part_was_moved_to_is_not_taken_for_written() {
    if !is_on_citus() {
        return;
    }
    let limit = Limit::stepped_bucket("steps", 1, EVER).capacity(10);
    let ([here, there], world) = (two_keys(), World::new().await);
    let receipt = charge(&world, [limit.key(&here), limit.key(&there)].into()).await;
    let other = charge(&world, limit.key(&here).into()).await;
    let held = row("tollgate.durable", &limit, &there);
    let settled = settle_beside(&world, &receipt, &held, &here, async || settle(&world, other.clone()).await.unwrap());
    let settled = settled.await;
    assert!(matches!(settled, Err(Error::Moved { .. })), "{settled:?}");
    assert_eq!(world.left(&limit, &here).await, Some(tokens(9)));
}

#[tokio::test]
async fn a_call_that_was_settled_where_its_part_was_moved_to_is_not_settled_again() {
    if !is_on_citus() {
        return;
    }
    let ([here, _], world) = (two_keys(), World::new().await);
    let receipt = charge(&world, Call::from(TEN.key(&here)).lapses_after(HOUR)).await;
    let _spent = charge(&world, TEN.key(&here).into()).await;
    let held = row("tollgate.calls", &TEN, &here);
    let settled =
        settle_beside(&world, &receipt, &held, &here, async || settle(&world, receipt.clone()).await.unwrap()).await;
    assert!(matches!(settled, Err(Error::Moved { .. })), "{settled:?}");
    let again = settle(&world, receipt).await;
    assert!(matches!(again, Err(Error::ReceiptUsed { .. })), "{again:?}");
    assert_eq!(world.left(&TEN, &here).await, Some(tokens(9)));
}

/// Settles beside a session that holds a row, until the part of a key has moved and others have acted. Commits what
/// the settlement and a call after it have done.
async fn settle_beside(
    world: &World,
    receipt: &Receipt,
    held: &str,
    key: &str,
    others: impl AsyncFn(),
) -> Result<(), Error> {
    let (mut holder, mut tx) = (world.pool.begin().await.unwrap(), world.begin().await);
    sqlx::raw_sql(AssertSqlSafe(format!("select from {held} for update"))).execute(&mut *holder).await.unwrap();
    let waiting = pid(&mut tx).await;
    let beside = async {
        world.until_blocked(waiting).await;
        world.change_part(part_of(key), MOVE).await;
        others().await;
        holder.rollback().await.unwrap();
    };
    let (settled, ()) = tokio::join!(LIMITER.settle(&mut tx, receipt.clone(), Tokens::ZERO), beside);
    LIMITER.consume(&mut tx, TEN.key("after")).await.unwrap().granted().unwrap();
    tx.commit().await.unwrap();
    settled.map(drop)
}

async fn settle(world: &World, receipt: Receipt) -> Result<(), Error> {
    let mut tx = world.begin().await;
    let settled = LIMITER.settle(&mut tx, receipt, Tokens::ZERO).await;
    tx.commit().await.unwrap();
    settled.map(drop)
}

async fn charge(world: &World, call: Call) -> Receipt {
    let mut tx = world.begin().await;
    let grant = LIMITER.consume(&mut tx, call).await.unwrap().granted().unwrap();
    tx.commit().await.unwrap();
    grant.receipt
}

fn row(table: &str, limit: &Limit, key: &str) -> String {
    format!("{table} where part = {} and name = '{}' and key = '{key}'", part_of(key), limit.name())
}

/// Keys of two parts, in lock order.
fn two_keys() -> [String; 2] {
    let mut parts = [NUMBERS[0], NUMBERS[1]];
    parts.sort_unstable();
    parts.map(|part| (0..10_000).map(|n: u32| n.to_string()).find(|key| part_of(key) == part).unwrap())
}
