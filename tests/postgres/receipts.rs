//! Charges are settled or cancelled, exactly once.

use std::sync::{Arc, LazyLock};

use sqlx::types::Json;
use sqlx::{Connection, Executor};
use tokio::sync::Barrier;
use tollgate::{CallError, Error, HOUR, Limit, Limiter, MINUTE, Receipt, SECOND, Settlement, Tokens};

use crate::teller::{Teller, both, tokens, wait};
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

#[tokio::test]
async fn a_reservation_is_cancelled_until_it_is_ready() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    for (limit, shortly_before) in std::iter::zip(owing(), [10, 6]) {
        for (at, value) in [(0.0, 6), (59.999_999, shortly_before), (60.0, 10)] {
            teller.put(&limit, "", tokens(6), second(0.0)).await;
            let booked = teller.reserve(0.0, limit.global().cost(16)).await.granted().unwrap();
            assert_eq!((booked.wait(), booked.receipt.charges[0].ready_at()), (MINUTE, second(60.0)));
            assert_eq!(teller.row(&limit, "").await, Some((tokens(-10), second(0.0))));
            assert_eq!(teller.cancel(at, booked).await, tokens(value), "{} at {at} s", limit.name());
        }
        teller.put(&limit, "", tokens(6), second(0.0)).await;
        let booked = teller.reserve(0.0, limit.global().cost(16)).await.granted().unwrap();
        let before = teller.rows().await;
        too_late(limiter().at(second(60.000_001)).cancel(&mut teller.tx, booked).await);
        assert_eq!(teller.rows().await, before);
    }
}

/// A charge that is ready is not cancelled, and the error says what to do.
fn too_late(cancelled: Result<Settlement, Error>) {
    let error = cancelled.unwrap_err();
    assert!(matches!(error, Error::TooLateToCancel { .. }), "{error:?}");
    assert!(error.to_string().contains("settle(grant, 0)"), "{error}");
}

#[tokio::test]
async fn a_grant_is_ready_at_once_so_it_is_settled_to_zero_instead() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    for limit in ten() {
        let grant = |decision: tollgate::Decision| decision.granted().unwrap();
        let one = grant(teller.consume(0.0, limit.global().cost(4)).await);
        assert_eq!(teller.cancel(0.0, one).await, tokens(10), "at the very instant");
        let two = grant(teller.consume(0.0, limit.global().cost(4)).await);
        let before = teller.rows().await;
        too_late(limiter().at(second(6.0)).cancel(&mut teller.tx, two.clone()).await);
        assert_eq!(teller.rows().await, before);
        assert_eq!(teller.settle(6.0, two, 0).await, tokens(10), "one came back by itself");
    }
}

/// A receipt that is used once is still good.
#[tokio::test]
async fn a_gate_cancels_no_grant_either_and_changes_nothing() {
    let world = World::new().await;
    let gate = world.gate();
    for limit in ten() {
        for is_tracked in [false, true] {
            let four = limit.key("k").cost(4);
            let call = if is_tracked { four.tracked_for(HOUR) } else { four.into() };
            let grant = gate.consume(call).await.unwrap().granted().unwrap();
            too_late(gate.cancel(grant.clone()).await);
            gate.settle(grant, 0).await.unwrap();
            assert_eq!(gate.balance(limit.key("k")).await.unwrap().remaining, tokens(10));
        }
    }
}

#[tokio::test]
async fn settling_gives_back_what_was_spared_and_takes_what_was_missing() {
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
        // A row that was swept in between was full: there is nothing to give back, and tokens used beyond the charge
        // are taken.
        let grant = teller.consume(0.0, limit.key("swept").cost(3)).await.granted().unwrap();
        teller.tx.execute("delete from tollgate.ephemeral").await.unwrap();
        teller.tx.execute("delete from tollgate.durable").await.unwrap();
        assert_eq!(teller.settle(0.0, grant.clone(), 1).await, tokens(10));
        assert_eq!(teller.settle(0.0, grant, 5).await, tokens(8));
    }
}

#[tokio::test]
async fn an_actual_cost_that_is_none_is_an_error_before_any_sql() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    for limit in ten() {
        let grant = teller.consume(0.0, limit.global()).await.granted().unwrap();
        let before = teller.rows().await;
        for actual in [f64::NAN, f64::INFINITY, -1.0, 1e300] {
            let error = LIMITER.settle(&mut teller.tx, grant.clone(), actual).await.unwrap_err();
            assert!(matches!(error, Error::Call { source: CallError::Cost(_), .. }), "{error:?}");
        }
        let error = LIMITER.settle(&mut teller.tx, grant.clone(), tokens(-1)).await.unwrap_err();
        assert!(matches!(error, Error::Call { source: CallError::Cost(_), .. }), "{error:?}");
        assert_eq!(teller.rows().await, before);

        let checked = teller.check(0.0, limit.global()).await.granted().unwrap();
        let error = LIMITER.settle(&mut teller.tx, checked.clone(), 0).await.unwrap_err();
        assert!(
            matches!(error, Error::Call { source: CallError::NothingAsked, .. }),
            "a check charges nothing: {error:?}"
        );
        let error = LIMITER.cancel(&mut teller.tx, checked).await.unwrap_err();
        assert!(matches!(error, Error::Call { source: CallError::NothingAsked, .. }), "{error:?}");
    }
}

#[tokio::test]
async fn cancelling_the_first_of_two_gives_back_exactly_the_first() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    for (limit, ready) in std::iter::zip(owing(), [78, 120]) {
        let one = teller.reserve(0.0, limit.global().cost(16)).await.granted().unwrap();
        assert_eq!(wait(teller.reserve(0.0, limit.global().cost(7)).await), ready * SECOND);
        assert_eq!(teller.balance(0.0, limit.global()).await.remaining, tokens(-13));
        assert_eq!(teller.cancel(0.0, one).await, tokens(3));
    }
}

#[tokio::test]
async fn a_reservation_that_nobody_settles_stands() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    for limit in owing() {
        let booked = teller.reserve(0.0, limit.global().cost(70)).await.granted().unwrap();
        assert_eq!(teller.balance(360.0, limit.global()).await.remaining, Tokens::ZERO);
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
            teller.limits.push(limit.clone());
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
async fn requests_of_different_costs_are_settled_at_a_cost_each() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    let [user, tenant] =
        [Limit::token_bucket("user", 10, MINUTE), Limit::token_bucket("tenant", 20, MINUTE).ephemeral()];
    let limiter = limiter().at(second(0.0));
    let ask = |cost: u32| [user.key(1).cost(3), tenant.key(2).cost(cost)];
    let mixed = Receipt::from(limiter.consume(&mut teller.tx, ask(4)).await.unwrap().granted().unwrap());
    let before = teller.rows().await;
    let error = limiter.settle(&mut teller.tx, mixed.clone(), 1).await.unwrap_err();
    assert!(matches!(error, Error::Call { source: CallError::MixedCosts, .. }), "{error:?}");
    assert_eq!(teller.rows().await, before);
    let error = limiter.settle_each(&mut teller.tx, mixed.clone(), &[tokens(1)]).await.unwrap_err();
    assert!(
        matches!(error, Error::Call { source: CallError::CostsMissing { costs: 1, requests: 2 }, .. }),
        "{error:?}"
    );
    limiter.settle_each(&mut teller.tx, mixed, &[tokens(1), tokens(2)]).await.unwrap();
    assert_eq!(teller.row(&user, "1").await.unwrap().0, tokens(9), "in the order asked");
    assert_eq!(teller.row(&tenant, "2").await.unwrap().0, tokens(18));

    let alike = limiter.consume(&mut teller.tx, ask(3)).await.unwrap().granted().unwrap();
    limiter.settle(&mut teller.tx, alike, 5).await.unwrap();
    assert_eq!(teller.row(&user, "1").await.unwrap().0, tokens(4));
    assert_eq!(teller.row(&tenant, "2").await.unwrap().0, tokens(13));
    let mixed = limiter.consume(&mut teller.tx, ask(4)).await.unwrap().granted().unwrap();
    limiter.cancel(&mut teller.tx, mixed).await.unwrap();
    assert_eq!(teller.row(&user, "1").await.unwrap().0, tokens(4), "cancelling needs no costs");
    assert_eq!(teller.row(&tenant, "2").await.unwrap().0, tokens(13));
}

/// Six workers with a connection each try to take each of fifty jobs, and its receipt with it, at the same moment.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn fifty_receipts_that_go_with_their_jobs_are_used_once_each_however_many_try() {
    const RECEIPTS: u32 = 50;
    const CALLERS: usize = 6;
    let world = World::new().await;
    world.sql("create table jobs (id int8 primary key, receipt jsonb not null)").await;
    let limit = Limit::token_bucket("raced", 10, MINUTE).unbounded_reservations();
    let mut teller = Teller::of(&world).await;
    assert_eq!(teller.debit(0.0, limit.global().cost(1_000)).await, tokens(-990));
    for nth in 0..RECEIPTS {
        let receipt = Receipt::from(teller.reserve(0.0, limit.global().cost(nth + 1)).await.granted().unwrap());
        let insert = sqlx::query("insert into jobs values ($1, $2)").persistent(false);
        insert.bind(i64::from(nth)).bind(Json(receipt)).execute(&mut *teller.tx).await.unwrap();
    }
    teller.commit().await;

    let barrier = Arc::new(Barrier::new(CALLERS));
    let mut callers = Vec::new();
    for caller in 0..CALLERS {
        let (barrier, mut conn) = (barrier.clone(), world.connect().await);
        callers.push(tokio::spawn(async move {
            let (limiter, mut used) = (limiter().at(second(0.0)), 0);
            for nth in 0..RECEIPTS {
                barrier.wait().await;
                let mut tx = conn.begin().await.unwrap();
                let take = sqlx::query_scalar("delete from jobs where id = $1 returning receipt").persistent(false);
                let taken: Option<Json<Receipt>> = take.bind(i64::from(nth)).fetch_optional(&mut *tx).await.unwrap();
                if let Some(Json(receipt)) = taken {
                    let answer = if caller % 2 == 0 {
                        limiter.cancel(&mut tx, receipt).await
                    } else {
                        limiter.settle(&mut tx, receipt, 0).await
                    };
                    answer.unwrap();
                    used += 1;
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
    assert_eq!(teller.balance(0.0, limit.global()).await.remaining, tokens(-990));
}

#[tokio::test]
async fn a_receipt_of_an_older_definition_gives_back_what_it_charged() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    let [small, large] = [10, 20].map(|capacity| Limit::token_bucket("changed", 10, MINUTE).capacity(capacity));
    for (old, new) in [(&small, &large), (&large, &small)] {
        for (old, new) in std::iter::zip(both(old), both(new)) {
            let charged = teller.consume(0.0, old.global().cost(5)).await.granted().unwrap();
            let left = teller.balance(0.0, new.global()).await.remaining;
            teller.settle(0.0, charged.clone(), 1).await;
            assert_eq!(teller.balance(0.0, new.global()).await.remaining, left.checked_add(tokens(4)).unwrap());

            // A row that is full has nothing to be given back to.
            let full = teller.reset(0.0, new.global()).await;
            teller.settle(0.0, charged, 0).await;
            assert_eq!(teller.balance(0.0, new.global()).await.remaining, full);
            teller.tx.execute("delete from tollgate.ephemeral").await.unwrap();
            teller.tx.execute("delete from tollgate.durable").await.unwrap();
        }
    }
}
