//! Settlements: each receipt is used once, over all its rows.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tollgate::{BegunByHand, Call, Error, Grant, HOUR, Limit, Receipt, Request};

use super::{consume_in, left, levels, rows_and_calls, settle, stored, ten};
use crate::gate::stage::{EVER, patient, pool, soon};
use crate::teller::{both, tokens};
use crate::world::{World, limiter};

#[tokio::test]
async fn a_receipt_is_used_once_in_either_table_and_by_either_of_the_two() {
    let world = World::new().await;
    let gate = patient(&pool(&world.url(), 3).await).build();
    for limit in ten() {
        let asked = || limit.key("shared").cost(3).lapses_after(HOUR);
        let of_gate = gate.consume(asked()).await.unwrap().granted().unwrap();
        let of_limiter = consume_in(&world.pool, asked()).await;
        let mut tx = world.begin().await;
        limiter().settle(&mut tx, of_gate.clone(), 1).await.unwrap();
        tx.commit().await.unwrap();
        assert_eq!(left(&world.pool, limit.key("shared")).await, 6);
        gate.settle(of_limiter.clone(), 0).await.unwrap();
        assert_eq!(left(&world.pool, limit.key("shared")).await, 9);
        for used in [of_gate, of_limiter] {
            let error = gate.settle(used.clone(), 0).await.unwrap_err();
            assert!(matches!(error, Error::ReceiptUsed { .. }), "{error}");
            let mut tx = world.begin().await;
            let error = limiter().cancel(&mut tx, used).await.unwrap_err();
            assert!(matches!(error, Error::ReceiptUsed { .. }), "{error}");
        }
    }
}

/// A settlement at the cost that was charged changes no row of a limit, and takes other statements than one that does.
/// A gate has statements of its own.
#[tokio::test]
async fn a_settlement_uses_its_call_and_no_other_and_none_outside_of_a_transaction() {
    let world = World::new().await;
    let mut conn = world.connect().await;
    let [one, other] = ["one", "other"].map(|name| Limit::token_bucket(name, 10, EVER));
    let gate = patient(&world.pool).build();
    let ways = [(true, 1), (true, 0), (false, 1), (false, 0)].into_iter().flat_map(|way| [(way, false), (way, true)]);
    for (limit, ((has_id, cost), by_gate)) in both(&one).iter().flat_map(|one| ways.clone().map(move |way| (one, way)))
    {
        let with = |request: Request, id| if has_id { request.once(id) } else { request.lapses_after(HOUR) };
        let mut grants = Vec::new();
        for (limit, key, id) in [(limit, "k", "a"), (limit, "k", "b"), (limit, "l", "a"), (&other, "k", "a")] {
            grants.push(consume_in(&world.pool, with(limit.key(key), id)).await);
        }
        let before = rows_and_calls(&world).await;
        let outside = &mut BegunByHand(&mut conn);
        let settled = limiter().settle(outside, grants[0].clone(), cost).await.map(drop);
        let asked = limiter().consume(outside, limit.key("k").once("new")).await.map(drop);
        for answer in [settled, asked] {
            assert!(matches!(answer, Err(Error::NotInTransaction)), "{answer:?}");
        }
        assert_eq!(rows_and_calls(&world).await, before);
        let settle = async |grant: &Grant, cost| settle(&world, by_gate.then_some(&gate), grant.clone(), cost).await;
        settle(&grants[0], cost).await.unwrap();
        let error = settle(&grants[0], 0).await.unwrap_err();
        assert!(matches!(error, Error::ReceiptUsed { .. }), "{error}");
        for grant in &grants[1..] {
            settle(grant, 0).await.unwrap();
        }
        assert_eq!(left(&world.pool, limit.key("k")).await, 10 - i64::from(cost));
        assert_eq!(stored(&mut conn).await, if has_id { 4 } else { 0 });
        world.sql("truncate tollgate.ephemeral, tollgate.durable, tollgate.calls").await;
    }
}

/// One addition over three levels, in two tables, each by its own rule.
#[tokio::test]
async fn three_levels_are_settled_together_or_not_at_all() {
    let world = World::new().await;
    let gate = patient(&pool(&world.url(), 3).await).build();
    gate.consume(levels(0)).await.unwrap().granted().unwrap();
    let balances = async || {
        let mut balances = Vec::new();
        for request in levels(0) {
            balances.push(left(&world.pool, request).await);
        }
        balances
    };
    for used in [10, 40, 70] {
        let [org, team, user] = levels(40);
        let grant = gate.consume(Call::from([org, team, user]).lapses_after(HOUR)).await.unwrap().granted().unwrap();
        assert_eq!(balances().await, [960; 3]);
        // One corrupt row fails all.
        world.sql("update tollgate.durable set list = '{9}' where name = 'team'").await;
        let error = gate.settle(grant.clone(), used).await.unwrap_err();
        assert!(matches!(&error, Error::CorruptRow { limit, .. } if limit == "team"), "{error:?}");
        world.sql("update tollgate.durable set list = null where name = 'team'").await;
        assert_eq!(stored(&mut world.connect().await).await, 1);
        gate.settle(grant, used).await.unwrap();
        let [org, _, user] = *balances().await else { panic!() };
        assert_eq!([org, user], [1_000 - i64::from(used); 2]);
        for request in levels(0) {
            gate.reset(request).await.unwrap();
        }
    }
    assert_eq!(stored(&mut world.connect().await).await, 0);
}

/// Many callers settle each of many receipts at the same moment, through gates and in transactions.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_all_who_settle_one_receipt_at_once_one_succeeds() {
    const RECEIPTS: usize = 30;
    const CALLERS: usize = 6;
    let world = World::new().await;
    let gate = patient(&pool(&world.url(), 3).await).build();
    let mut receipts = Vec::new();
    for _ in 0..RECEIPTS {
        let [org, team, user] = levels(10);
        let grant = gate.consume(Call::from([org, team, user]).tracked_for(HOUR)).await.unwrap().granted().unwrap();
        receipts.push(Receipt::from(grant));
    }
    let (barrier, used) = (Arc::new(Barrier::new(CALLERS)), Arc::new(AtomicU32::new(0)));
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        let (gate, receipts, barrier, used) = (gate.clone(), receipts.clone(), barrier.clone(), used.clone());
        let pool = pool(&world.url(), 1).await;
        callers.spawn(async move {
            for receipt in receipts {
                barrier.wait().await;
                let answer = if caller % 2 == 0 {
                    gate.settle(receipt, 4).await
                } else {
                    let mut tx = pool.begin().await.unwrap();
                    let answer = limiter().settle(&mut tx, receipt, 4).await;
                    tx.commit().await.unwrap();
                    answer
                };
                match answer {
                    Ok(_) => used.fetch_add(1, Ordering::Relaxed),
                    Err(Error::ReceiptUsed { .. }) => 0,
                    Err(error) => panic!("{error}"),
                };
            }
        });
    }
    soon(callers.join_all()).await;
    assert_eq!(used.load(Ordering::Relaxed) as usize, RECEIPTS);
    for request in levels(0) {
        assert_eq!(left(&world.pool, request).await, 880);
    }
}

#[tokio::test]
async fn a_stream_is_settled_at_what_was_counted_also_where_it_was_dropped() {
    let world = World::new().await;
    let gate = patient(&pool(&world.url(), 1).await).build();
    let limit = Limit::token_bucket("streamed", 100, EVER);
    let is_left = async |left_over: i64| {
        soon(async { while left(&world.pool, limit.global()).await != left_over {} }).await;
    };
    for keeps in [false, true] {
        let asked = || if keeps { limit.global().cost(40).lapses_after(HOUR) } else { limit.global().cost(40).into() };
        let stream = gate.stream(asked()).await.unwrap().granted().unwrap();
        stream.add(30_u32);
        drop(stream);
        is_left(70).await;
        let stream = gate.stream(asked()).await.unwrap().granted().unwrap();
        stream.add(50_u32);
        assert_eq!(stream.used(), tokens(50));
        stream.settle().await.unwrap();
        is_left(20).await;
        gate.reset(limit.global()).await.unwrap();
    }
}
