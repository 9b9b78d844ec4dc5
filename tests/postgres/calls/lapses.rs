//! Lapses: what nobody settles comes back, once.

use std::time::Duration;

use tokio::task::JoinSet;
use tollgate::{Call, Error, HOUR, Limit, MINUTE, Receipt, Sweeper};

use super::{USER, consume_in, left, levels, stored, ten};
use crate::gate::stage::{patient, pool, soon};
use crate::teller::{Teller, tokens};
use crate::traced::traced;
use crate::world::{World, limiter, second, sweeper};

#[tokio::test]
async fn what_nobody_settles_comes_back_less_what_was_reported() {
    let world = World::new().await;
    let gate = patient(&pool(&world.url(), 3).await).build();
    let ask = |span: Duration| {
        let [org, team, user] = levels(40);
        Call::from([org, team, user]).lapses_after(span)
    };
    let stream = gate.stream(ask(Duration::from_millis(300))).await.unwrap().granted().unwrap();
    consume_in(&world.pool, Call::from(levels(0)).lapses_after(HOUR)).await;
    stream.add(9_u32);
    stream.report().await.unwrap();
    let reported = sqlx::query_scalar("select count(*) from tollgate.calls where reported > 0");
    let reported: i64 = reported.fetch_one(&world.pool).await.unwrap();
    assert_eq!(reported, 1);
    stream.add(8_u32);
    // The gate itself gives it back, and a late caller gets an error that says so.
    soon(async { while left(&world.pool, levels(0)[0].clone()).await != 991 {} }).await;
    for request in levels(0) {
        assert_eq!(left(&world.pool, request).await, 991);
    }
    let error = stream.report().await.unwrap_err();
    assert!(matches!(error, Error::ReceiptUsed { .. }), "{error}");
    let error = gate.settle(stream.into_receipt(), 17).await.unwrap_err();
    assert!(matches!(error, Error::Lapsed { .. }), "{error}");
}

#[tokio::test]
async fn a_sweeper_gives_back_what_a_process_that_died_has_charged() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    let mut receipts = Vec::new();
    for limit in ten() {
        let asked = limit.global().cost(4).lapses_after(MINUTE);
        receipts.push(Receipt::from(teller.consume(0.0, asked).await.granted().unwrap()));
    }
    teller.commit().await;
    let at = |seconds| Sweeper::new().share(100).at(second(seconds));
    assert_eq!(at(59.999_999).reap(&world.pool).await.unwrap(), 0);
    assert_eq!(at(60.0).sweep(&world.pool).await.unwrap().lapsed, 2);
    assert_eq!(at(61.0).reap(&world.pool).await.unwrap(), 0);
    let mut teller = Teller::of(&world).await;
    for (limit, receipt) in ten().iter().zip(receipts) {
        assert_eq!(teller.balance(60.0, limit.global()).await.remaining, tokens(10));
        let error = limiter().at(second(60.0)).settle(&mut teller.tx, receipt, 0).await.unwrap_err();
        assert!(matches!(error, Error::Lapsed { .. }), "{error}");
    }
}

/// A late settlement is as good as one in time, until somebody has given the charge back.
#[tokio::test]
async fn the_row_of_the_call_decides_and_not_the_clock() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    for limit in ten() {
        let asked = limit.global().cost(8).lapses_after(MINUTE);
        let grant = teller.consume(0.0, asked).await.granted().unwrap();
        let error = limiter().at(second(1.0)).cancel(&mut teller.tx, grant.clone()).await.unwrap_err();
        assert!(matches!(error, Error::TooLateToCancel { .. }), "{error}");
        assert_eq!(stored(&mut teller.tx).await, 1, "it lapses as before");
        assert_eq!(teller.settle(61.0, grant, 3).await, tokens(7));
        assert_eq!(stored(&mut teller.tx).await, 0);
    }
}

/// Four reapers, and as many who settle, over the same calls: each token comes back once.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn reapers_and_late_settlers_give_back_each_call_once() {
    const CALLS: u32 = 200;
    let world = World::new().await;
    let gate = patient(&pool(&world.url(), 4).await).build();
    let mut receipts = Vec::new();
    for _ in 0..CALLS {
        let [org, team, user] = levels(5);
        // They lapse at once, for any caller that looks a little later.
        let asked = Call::from([org, team, user]).lapses_after(Duration::from_micros(1));
        receipts.push(Receipt::from(consume_in(&world.pool, asked).await));
    }
    let mut workers = JoinSet::new();
    for worker in 0..8 {
        let (pool, gate, receipts) = (pool(&world.url(), 2).await, gate.clone(), receipts.clone());
        workers.spawn(async move {
            if worker % 2 == 0 {
                return i64::try_from(sweeper().reap(&pool).await.unwrap()).unwrap() * 5;
            }
            let mut back = 0;
            for receipt in receipts {
                match gate.settle(receipt, 2).await {
                    Ok(_) => back += 3,
                    Err(Error::ReceiptUsed { .. } | Error::Lapsed { .. }) => {}
                    Err(error) => panic!("{error:?}"),
                }
            }
            back
        });
    }
    let back: i64 = soon(workers.join_all()).await.into_iter().sum();
    for request in levels(0) {
        assert_eq!(left(&world.pool, request).await, 1_000 - 5 * i64::from(CALLS) + back);
    }
    assert_eq!(stored(&mut world.connect().await).await, 0);
}

/// A call that cannot be given back, or read, stands in nobody's way, and an event names it.
#[test]
fn a_call_that_cannot_be_given_back_leaves_the_others_alone() {
    let mut owed = String::new();
    let log = traced(async {
        let world = World::new().await;
        let wallet = Limit::wallet("full");
        for key in 0..100 {
            consume_in(&world.pool, USER.key(key).cost(5).lapses_after(Duration::from_micros(1))).await;
        }
        let gate = patient(&pool(&world.url(), 1).await).build();
        gate.credit(wallet.global().cost(5)).await.unwrap();
        consume_in(&world.pool, wallet.global().cost(5).lapses_after(Duration::from_micros(1))).await;
        world.sql(&format!("update tollgate.durable set value = {}, full_at = '9999-01-01'", i64::MAX)).await;
        world.sql("update tollgate.calls set lapses_at = 'epoch' where name = 'full'").await;
        consume_in(&world.pool, USER.key("later").lapses_after(HOUR)).await;
        consume_in(&world.pool, USER.key("torn").lapses_after(Duration::from_micros(1))).await;
        world.sql("update tollgate.calls set lapses_at = 'epoch', charges = '3' where key = 'torn'").await;
        assert_eq!(sweeper().reap(&world.pool).await.unwrap(), 100);
        assert_eq!(stored(&mut world.connect().await).await, 3, "both stay owed, and one has not lapsed");
        let id = sqlx::query_scalar("select id from tollgate.calls where name = 'full'");
        owed = id.fetch_one(&world.pool).await.unwrap();
        world.sql("update tollgate.durable set value = 0, full_at = ts").await;
        assert_eq!(sweeper().reap(&world.pool).await.unwrap(), 1);
        assert_eq!(left(&world.pool, wallet.global()).await, 5);
    });
    assert_eq!(log.lines().filter(|line| line.contains("cannot be read")).count(), 2);
    let told: Vec<_> = log.lines().filter(|line| line.contains("could not be given back")).collect();
    assert!(matches!(told[..], [line] if line.contains(&format!("limit=\"full\" id=\"{owed}\""))), "{told:?}");
}

/// The task that looks for lapses ends with the pool that it would ask.
#[tokio::test]
async fn nobody_looks_for_lapses_where_the_pool_is_closed() {
    let world = World::new().await;
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let others = tasks();
    let pool = pool(&world.url(), 1).await;
    let gate = patient(&pool).build();
    let [limit, _] = ten();
    gate.consume(limit.global().lapses_after(HOUR)).await.unwrap().granted().unwrap();
    pool.close().await;
    soon(async {
        while tasks() > others {
            tokio::task::yield_now().await;
        }
    })
    .await;
}
