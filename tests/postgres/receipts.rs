//! What was taken is settled or cancelled, exactly once.

use std::sync::{Arc, LazyLock};

use sqlx::types::Json;
use sqlx::{Connection, Executor};
use tokio::sync::Barrier;
use tollgate::{Error, Limit, Limiter, MINUTE, Receipt, SECOND, Tokens};

use crate::teller::{Teller, both, left, tokens, wait};
use crate::world::{World, limiter, second};

static LIMITER: LazyLock<Limiter> = LazyLock::new(limiter);

/// Ten a minute, and any debt.
fn owing() -> [Limit; 2] {
    [
        Limit::token_bucket("owing", 10, MINUTE).unbounded_reservations(),
        Limit::stepped_bucket("owing_steps", 10, MINUTE).unbounded_reservations(),
    ]
}

/// Ten a minute, in either table.
fn ten() -> [Limit; 2] {
    both(&Limit::token_bucket("ten", 10, MINUTE))
}

async fn tracked(teller: &mut Teller) -> i64 {
    sqlx::query_scalar("select count(*) from tollgate.reservations")
        .persistent(false)
        .fetch_one(&mut *teller.tx)
        .await
        .unwrap()
}

#[tokio::test]
async fn g21_g22_a_reservation_is_cancelled_until_it_is_ready() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    for (limit, shortly_before) in std::iter::zip(owing(), [10, 6]) {
        for (at, value) in [(0.0, 6), (59.999_999, shortly_before), (60.0, 10), (60.000_001, 0)] {
            teller.put(&limit, "", tokens(6), second(0.0)).await;
            let booked = teller.reserve(0.0, limit.global().cost(16)).await.granted().unwrap();
            assert_eq!((booked.wait(), booked.charges[0].ready_at), (MINUTE, second(60.0)));
            assert_eq!(teller.row(&limit, "").await, Some((tokens(-10), second(0.0))));
            assert_eq!(teller.cancel(at, booked).await, tokens(value), "{} at {at} s", limit.name());
        }
    }
}

#[tokio::test]
async fn g22_a_grant_is_ready_at_once_so_it_is_settled_to_zero_instead() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    for limit in ten() {
        let grant = |decision: tollgate::Decision| decision.granted().unwrap();
        let one = grant(teller.consume(0.0, limit.global().cost(4)).await);
        assert_eq!(teller.cancel(0.0, one).await, tokens(10), "at the very instant");
        let two = grant(teller.consume(0.0, limit.global().cost(4)).await);
        let before = teller.rows().await;
        assert_eq!(teller.cancel(6.0, two.clone()).await, tokens(7), "one came back by itself");
        assert_eq!(teller.rows().await, before);
        assert_eq!(teller.settle(6.0, two, 0).await, tokens(10));
    }
}

#[tokio::test]
async fn g23_settling_gives_back_what_was_spared_and_takes_what_was_missing() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    let limit = Limit::token_bucket("bounded", 10, MINUTE).max_reserved(5);
    for (actual, value) in [(4, 1), (10, -5), (15, -10), (0, 5)] {
        teller.put(&limit, "", tokens(5), second(0.0)).await;
        let booked = teller.reserve(0.0, limit.global().cost(10)).await.granted().unwrap();
        assert_eq!(booked.wait(), MINUTE / 2);
        assert_eq!(teller.settle(0.0, booked, actual).await, tokens(value), "{actual}, past max_reserved if need be");
    }
    for limit in ten() {
        for (actual, value) in [(4, 6), (10, 0), (15, -5), (0, 10)] {
            teller.reset(0.0, limit.global()).await;
            let grant = teller.consume(0.0, limit.global().cost(10)).await.granted().unwrap();
            assert_eq!(teller.settle(0.0, grant, actual).await, tokens(value));
        }
        // A row that was swept in between was full: only what is missing counts.
        let grant = teller.consume(0.0, limit.key("swept").cost(3)).await.granted().unwrap();
        teller.tx.execute("delete from tollgate.buckets").await.unwrap();
        teller.tx.execute("delete from tollgate.rate_limits").await.unwrap();
        assert_eq!(teller.settle(0.0, grant.clone(), 1).await, tokens(10));
        assert_eq!(teller.settle(0.0, grant, 5).await, tokens(8));
    }
}

#[tokio::test]
async fn g23_an_actual_cost_that_is_none_is_an_error_before_any_sql() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    for limit in ten() {
        let grant = teller.consume(0.0, limit.global()).await.granted().unwrap();
        let before = teller.rows().await;
        for actual in [f64::NAN, f64::INFINITY, -1.0, 1e300] {
            let error = LIMITER.settle(&mut teller.tx, grant.clone(), actual).await.unwrap_err();
            assert!(matches!(error, Error::Cost { .. }), "{error:?}");
        }
        let error = LIMITER.settle(&mut teller.tx, grant.clone(), tokens(-1)).await.unwrap_err();
        assert!(matches!(error, Error::Cost { .. }), "{error:?}");
        assert_eq!(teller.rows().await, before);

        let checked = teller.check(0.0, limit.global()).await.granted().unwrap();
        let error = LIMITER.settle(&mut teller.tx, checked.clone(), 0).await.unwrap_err();
        assert!(matches!(error, Error::NothingAsked), "a check charges nothing: {error:?}");
        let error = LIMITER.cancel(&mut teller.tx, checked).await.unwrap_err();
        assert!(matches!(error, Error::NothingAsked), "{error:?}");
    }
}

#[tokio::test]
async fn g24_cancelling_the_first_of_two_gives_back_exactly_the_first() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    for (limit, ready) in std::iter::zip(owing(), [78, 120]) {
        let one = teller.reserve(0.0, limit.global().cost(16)).await.granted().unwrap();
        assert_eq!(wait(teller.reserve(0.0, limit.global().cost(7)).await), ready * SECOND);
        assert_eq!(teller.balance(0.0, limit.global()).await.value, tokens(-13));
        assert_eq!(teller.cancel(0.0, one).await, tokens(3));
    }
}

#[tokio::test]
async fn g25_a_reservation_that_nobody_settles_stands() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    for limit in owing() {
        let booked = teller.reserve(0.0, limit.global().cost(70).tracked()).await.granted().unwrap();
        assert_eq!(teller.balance(360.0, limit.global()).await.value, Tokens::ZERO);
        assert_eq!(teller.settle(360.0, booked, 70).await, Tokens::ZERO);
    }
}

#[tokio::test]
async fn a_receipt_goes_with_the_job_that_it_pays_for() {
    let world = World::new().await;
    world.sql("create table jobs (id int primary key, receipt jsonb not null)").await;
    for (id, limit) in (0..).zip(owing().into_iter().chain(ten())) {
        let mut teller = Teller::of(&world).await;
        let receipt = Receipt::from(teller.reserve(0.0, limit.key("ü|\\").cost(6)).await.granted().unwrap());
        assert_eq!(serde_json::from_str::<Receipt>(&serde_json::to_string(&receipt).unwrap()).unwrap(), receipt);
        let insert = sqlx::query("insert into jobs values ($1, $2)").persistent(false).bind(id).bind(Json(&receipt));
        insert.execute(&mut *teller.tx).await.unwrap();
        teller.commit().await;

        let take = "delete from jobs where id = $1 returning receipt";
        for (is_committed, value) in [(false, 8), (true, 8)] {
            let mut teller = Teller::of(&world).await;
            let Json(stored): Json<Receipt> =
                sqlx::query_scalar(take).persistent(false).bind(id).fetch_one(&mut *teller.tx).await.unwrap();
            assert_eq!(stored, receipt);
            assert_eq!(teller.settle(0.0, stored, 2).await, tokens(value));
            if is_committed {
                teller.commit().await;
            } else {
                teller.tx.rollback().await.unwrap();
            }
        }
        let gone: Option<Json<Receipt>> =
            sqlx::query_scalar(take).persistent(false).bind(id).fetch_optional(&world.pool).await.unwrap();
        assert_eq!(gone, None, "a second worker finds no receipt");
    }
}

#[tokio::test]
async fn charges_of_different_costs_are_split_and_settled_each() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    let [user, tenant] =
        [Limit::token_bucket("user", 10, MINUTE), Limit::token_bucket("tenant", 20, MINUTE).ephemeral()];
    let limiter = LIMITER.at(second(0.0));
    let ask = |cost: u32| [user.key(1).cost(3), tenant.key(2).cost(cost)];
    let mixed = Receipt::from(limiter.consume_all(&mut teller.tx, ask(4)).await.unwrap().granted().unwrap());
    let before = teller.rows().await;
    let error = limiter.settle(&mut teller.tx, mixed.clone(), 1).await.unwrap_err();
    assert!(matches!(error, Error::MixedCosts), "{error:?}");
    assert_eq!(teller.rows().await, before);
    for (receipt, value) in mixed.split().zip([9, 19]) {
        assert_eq!(teller.settle(0.0, receipt, 1).await, tokens(value), "in the order asked");
    }

    let alike = limiter.consume_all(&mut teller.tx, ask(3)).await.unwrap().granted().unwrap();
    let balance = limiter.settle(&mut teller.tx, alike, 5).await.unwrap();
    assert_eq!((&*balance.limit, balance.value), ("user", tokens(4)), "the lowest");
    assert_eq!(teller.row(&tenant, "2").await.unwrap().0, tokens(14));
    let mixed = limiter.consume_all(&mut teller.tx, ask(4)).await.unwrap().granted().unwrap();
    limiter.cancel(&mut teller.tx, mixed).await.unwrap();
    assert_eq!(teller.row(&user, "1").await.unwrap().0, tokens(4), "cancelling needs no split");
    assert_eq!(teller.row(&tenant, "2").await.unwrap().0, tokens(14));
}

#[tokio::test]
async fn a_tracked_receipt_is_used_once_and_a_rollback_unuses_it() {
    let world = World::new().await;
    for limit in owing().into_iter().chain(ten()) {
        let mut teller = Teller::of(&world).await;
        let booked = teller.reserve(0.0, limit.key(1).cost(4).tracked()).await.granted().unwrap();
        let receipt = Receipt::from(booked);
        assert!(receipt.charges[0].tracked.is_some());
        assert_eq!(tracked(&mut teller).await, 1);
        teller.commit().await;

        let mut teller = Teller::of(&world).await;
        assert_eq!(teller.settle(0.0, receipt.clone(), 1).await, tokens(9));
        assert_eq!(tracked(&mut teller).await, 0);
        teller.tx.rollback().await.unwrap();

        let mut teller = Teller::of(&world).await;
        assert_eq!(tracked(&mut teller).await, 1);
        assert_eq!(teller.cancel(0.0, receipt.clone()).await, tokens(10));
        let after = teller.rows().await;
        let limiter = LIMITER.at(second(0.0));
        for error in [
            limiter.cancel(&mut teller.tx, receipt.clone()).await.unwrap_err(),
            limiter.settle(&mut teller.tx, receipt.clone(), 0).await.unwrap_err(),
            limiter.settle(&mut teller.tx, receipt.clone(), 9).await.unwrap_err(),
            limiter.settle(&mut teller.tx, receipt.clone(), 4).await.unwrap_err(),
            limiter.lock_timeout(SECOND).cancel(&mut teller.tx, receipt.clone()).await.unwrap_err(),
        ] {
            assert!(matches!(&error, Error::ReceiptUsed) && !error.is_retryable(), "{error:?}");
        }
        assert_eq!(teller.rows().await, after, "nothing was changed");
        assert_eq!(left(teller.consume(0.0, limit.key(1)).await), tokens(9), "and the transaction is usable");
        teller.commit().await;
    }
}

#[tokio::test]
async fn a_tracked_receipt_over_several_limits_is_used_whole_or_not_at_all() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    let limiter = LIMITER.at(second(0.0));
    let [durable, ephemeral] = ten();
    let ask = [durable.key(1).cost(2).tracked(), durable.key(2).cost(2), ephemeral.key(1).cost(2).tracked()];
    let receipt = Receipt::from(limiter.consume_all(&mut teller.tx, ask).await.unwrap().granted().unwrap());
    assert_eq!(receipt.charges.iter().filter(|charge| charge.tracked.is_some()).count(), 2);
    let part = receipt.clone().split().next().unwrap();
    assert_eq!(teller.settle(0.0, part, 0).await, tokens(10));
    let before = teller.rows().await;
    let error = limiter.settle(&mut teller.tx, receipt.clone(), 0).await.unwrap_err();
    assert!(matches!(error, Error::ReceiptUsed), "{error:?}");
    assert_eq!((teller.rows().await, tracked(&mut teller).await), (before, 1), "the unused part is still there");
    for receipt in receipt.split().skip(1) {
        assert_eq!(teller.settle(0.0, receipt, 0).await, tokens(10));
    }
    assert_eq!(tracked(&mut teller).await, 0);
}

/// As two receipts that were put together by mistake.
#[tokio::test]
async fn a_receipt_that_names_one_tracked_charge_twice_changes_nothing() {
    let world = World::new().await;
    for limit in ten() {
        let mut teller = Teller::of(&world).await;
        let once = Receipt::from(teller.consume(0.0, limit.key(1).cost(3).tracked()).await.granted().unwrap());
        teller.commit().await;
        let mut twice = once.clone();
        twice.charges.extend(once.charges.clone());
        let mut tx = world.begin().await;
        let error = LIMITER.at(second(0.0)).settle(&mut tx, twice, 0).await.unwrap_err();
        assert!(matches!(error, Error::ReceiptUsed), "{error:?}");
        tx.commit().await.unwrap();
        let mut teller = Teller::of(&world).await;
        assert_eq!(teller.settle(0.0, once, 0).await, tokens(10), "the charge can still be settled");
    }
}

#[tokio::test]
async fn a_refused_or_missing_tracked_request_leaves_no_reservation_behind() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    for limit in ten() {
        left(teller.consume(0.0, limit.key(1).cost(10)).await);
        assert!(!teller.consume(0.0, limit.key(1).tracked()).await.is_granted());
        assert!(teller.check(0.0, limit.key(2).tracked()).await.is_granted());
        assert_eq!(tracked(&mut teller).await, 0);
    }
}

/// Six callers with a connection each try to use each of fifty receipts at the same moment.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn fifty_tracked_receipts_are_used_once_each_however_many_try() {
    const RECEIPTS: u32 = 50;
    const CALLERS: usize = 6;
    let world = World::new().await;
    let limit = Limit::token_bucket("raced", 10, MINUTE).unbounded_reservations();
    let mut teller = Teller::of(&world).await;
    assert_eq!(teller.debit(0.0, limit.global().cost(1_000)).await, tokens(-990));
    let mut receipts = Vec::new();
    for nth in 0..RECEIPTS {
        let booked = teller.reserve(0.0, limit.global().cost(nth + 1).tracked()).await.granted().unwrap();
        receipts.push(Receipt::from(booked));
    }
    teller.commit().await;

    let (receipts, barrier) = (Arc::new(receipts), Arc::new(Barrier::new(CALLERS)));
    let mut callers = Vec::new();
    for caller in 0..CALLERS {
        let (receipts, barrier, mut conn) = (receipts.clone(), barrier.clone(), world.connect().await);
        callers.push(tokio::spawn(async move {
            let (limiter, mut used) = (LIMITER.at(second(0.0)), 0);
            for receipt in &*receipts {
                barrier.wait().await;
                let mut tx = conn.begin().await.unwrap();
                let answer = if caller % 2 == 0 {
                    limiter.cancel(&mut tx, receipt.clone()).await
                } else {
                    limiter.settle(&mut tx, receipt.clone(), 0).await
                };
                match answer {
                    Ok(_) => used += 1,
                    Err(Error::ReceiptUsed) => {}
                    Err(error) => panic!("{error}"),
                }
                tx.commit().await.unwrap();
            }
            used
        }));
    }
    let mut used = 0;
    for caller in callers {
        used += caller.await.unwrap();
    }
    assert_eq!(used, RECEIPTS);
    let mut teller = Teller::of(&world).await;
    assert_eq!(teller.balance(0.0, limit.global()).await.value, tokens(-990));
    assert_eq!(tracked(&mut teller).await, 0);
}

#[tokio::test]
async fn a_receipt_of_an_older_definition_never_lowers_a_row() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    let [small, large] = [10, 20].map(|capacity| Limit::token_bucket("changed", 10, MINUTE).capacity(capacity));
    for (old, new) in [(&small, &large), (&large, &small)] {
        for (old, new) in std::iter::zip(both(old), both(new)) {
            let charged = teller.consume(0.0, old.global().cost(5)).await.granted().unwrap();
            // A newer release fills the row up to its own capacity: there is nothing to give back to.
            let full = teller.reset(0.0, new.global()).await;
            teller.settle(0.0, charged.clone(), 0).await;
            assert!(teller.row(&new, "").await.unwrap().0 >= full);
            assert_eq!(teller.balance(0.0, new.global()).await.value, full);

            // Where there is room under both definitions, a credit counts.
            teller.put(&new, "", tokens(2), second(0.0)).await;
            assert_eq!(teller.settle(0.0, charged, 1).await, tokens(6));
            assert_eq!(teller.balance(0.0, new.global()).await.value, tokens(6));
            teller.tx.execute("delete from tollgate.buckets").await.unwrap();
            teller.tx.execute("delete from tollgate.rate_limits").await.unwrap();
        }
    }
}
