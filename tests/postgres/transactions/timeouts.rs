//! Timeouts of the limiter, and of the caller's own.

use std::time::Duration;

use sqlx::{Connection, Executor};
use tollgate::{BegunByHand, Error, FitError, Limit, MINUTE, SECOND, Step, Tokens};

use super::{answers, setting, ten};
use crate::teller::{Teller, left, run, tokens};
use crate::world::{World, limiter, pid, second};

/// Long enough to be seen in PostgreSQL's own log, short enough to wait for in a test.
const SHORT: Duration = Duration::from_millis(20);

#[tokio::test]
async fn a_lock_timeout_is_busy_and_leaves_the_transaction_usable() {
    let world = World::new().await;
    world.sql("create table jobs (id int)").await;
    for (limit, key) in ten().into_iter().flat_map(|limit| [(limit.clone(), "present"), (limit, "absent")]) {
        let mut teller = Teller::of(&world).await;
        left(teller.consume(0.0, limit.key("present").cost(5)).await);
        left(teller.consume(0.0, limit.key("another").cost(5)).await);
        teller.commit().await;
        // Holds the row, or the place of the row that is not there yet.
        let mut holder = Teller::of(&world).await;
        left(holder.consume(0.0, limit.key(key)).await);

        let mut teller = Teller::of(&world).await;
        teller.tx.execute("insert into jobs values (1)").await.unwrap();
        teller.tx.execute("set local lock_timeout = '7s'").await.unwrap();
        for (verb, answer) in answers(&limiter().at(second(0.0)).lock_timeout(SHORT), &mut teller.tx, &limit, key)
            .await
            .into_iter()
            .enumerate()
        {
            match answer {
                Err(error @ Error::Locked { .. }) => assert!(error.is_retryable()),
                // A verb that gives to an absent row, or settles, finds it full without a wait.
                Ok(()) if key == "absent" && matches!(verb, 5..=9) => {}
                answer => panic!("verb {verb} for {key}: {answer:?}"),
            }
        }
        assert_eq!(setting(&mut teller.tx, "lock_timeout").await, "7s");
        left(teller.consume(0.0, limit.key("elsewhere")).await);
        teller.commit().await;
        holder.tx.rollback().await.unwrap();
        assert_eq!(world.left(&limit, "elsewhere").await.unwrap(), tokens(9));
        assert_eq!(world.left(&limit, "another").await.unwrap(), tokens(5), "none, as not all");
        world.sql("truncate tollgate.ephemeral, tollgate.durable").await;
    }
    let jobs: i64 = sqlx::query_scalar("select count(*) from jobs").fetch_one(&world.pool).await.unwrap();
    assert_eq!(jobs, 4, "the callers' own work was committed");
}

#[tokio::test]
async fn the_lock_timeout_of_before_comes_back_after_every_answer() {
    let world = World::new().await;
    for limit in ten() {
        let limiter = limiter().at(second(0.0)).lock_timeout(SECOND);
        let mut conn = world.connect().await;
        for before in ["0", "7s"] {
            run(&mut conn, &format!("begin; set local lock_timeout = '{before}'")).await;
            let ask = || limit.key(before);
            left(limiter.consume(&mut BegunByHand(&mut conn), ask().cost(10)).await.unwrap());
            assert_eq!(setting(&mut conn, "lock_timeout").await, before, "after a grant");
            assert!(!limiter.consume(&mut BegunByHand(&mut conn), ask()).await.unwrap().is_granted());
            assert_eq!(setting(&mut conn, "lock_timeout").await, before, "after a refusal");
            let most = Tokens::from_micros(i64::MAX - 10_000_000);
            let deep = limiter.debit(&mut BegunByHand(&mut conn), ask().cost(most)).await;
            assert!(deep.is_ok(), "{deep:?}");
            let deeper = limiter.debit(&mut BegunByHand(&mut conn), ask().cost(Tokens::MAX)).await;
            assert!(matches!(deeper, Err(Error::DoesNotFit { source: FitError::DebtTooDeep, .. })), "{deeper:?}");
            assert_eq!(setting(&mut conn, "lock_timeout").await, before, "after an error");
            run(&mut conn, "commit").await;
            assert_eq!(setting(&mut conn, "lock_timeout").await, "0", "after the transaction");
        }
    }
}

/// Nothing was taken, so nobody has to wait for the transaction.
#[tokio::test]
async fn with_a_lock_timeout_a_refusal_after_a_wait_holds_no_row() {
    let world = World::new().await;
    for limit in ten() {
        let holder = holder(&world, &limit, 9).await;
        let mut waiter = world.begin().await;
        let waiter_pid = pid(&mut waiter).await;
        let limiter = limiter().at(second(0.0)).lock_timeout(MINUTE);
        let (decision, ()) = tokio::join!(limiter.consume(&mut waiter, limit.key(1)), async {
            world.until_blocked(waiter_pid).await;
            holder.commit().await;
        });
        decision.unwrap().denied().unwrap();
        let mut other = Teller::of(&world).await;
        other.tx.execute("set local lock_timeout = '1s'").await.unwrap();
        other.credit(0.0, limit.key(1)).await;
        waiter.commit().await.unwrap();
    }
}

#[tokio::test]
async fn a_row_that_is_let_go_in_time_is_taken() {
    let world = World::new().await;
    for limit in ten() {
        let holder = holder(&world, &limit, 4).await;
        let mut conn = world.connect().await;
        let waiter = pid(&mut conn).await;
        let ask = limit.key(1);
        let waiting = tokio::spawn(async move {
            let mut tx = conn.begin().await.unwrap();
            let limiter = limiter().at(second(0.0)).lock_timeout(MINUTE);
            let left = left(limiter.consume(&mut tx, ask).await.unwrap());
            tx.commit().await.unwrap();
            left
        });
        world.until_blocked(waiter).await;
        holder.commit().await;
        assert_eq!(waiting.await.unwrap(), tokens(4));
    }
}

#[tokio::test]
async fn a_lock_timeout_of_the_callers_own_is_an_error_of_the_database() {
    let world = World::new().await;
    for limit in ten() {
        let _holder = holder(&world, &limit, 1).await;
        let mut tx = world.begin().await;
        tx.execute("set local lock_timeout = '20ms'").await.unwrap();
        let error = limiter().at(second(0.0)).consume(&mut tx, limit.key(1)).await.unwrap_err();
        assert!(matches!(error, Error::Database { step: Step::Lock, .. }) && error.is_retryable(), "{error:?}");
    }
}

/// It strikes during any wait of the statement, and aborts the transaction.
#[tokio::test]
async fn a_statement_timeout_of_the_callers_own_bounds_a_call() {
    let world = World::new().await;
    for limit in ten() {
        let mut holder = Teller::of(&world).await;
        left(holder.consume(0.0, limit.key(1)).await);
        for limiter in [limiter(), limiter().lock_timeout(MINUTE)] {
            let mut tx = world.pool.begin_with("begin; set local statement_timeout = '20ms'").await.unwrap();
            let error = limiter.at(second(0.0)).consume(&mut tx, limit.key(1)).await.unwrap_err();
            assert!(error.is_retryable());
            let Error::Database { source, .. } = &error else { panic!("{error:?}") };
            assert_eq!(source.as_database_error().unwrap().code().unwrap(), "57014", "{error}");
        }
    }
}

/// Holds a row of which one token is used: its transaction takes so many more.
async fn holder(world: &World, limit: &Limit, cost: u32) -> Teller {
    let mut teller = Teller::of(world).await;
    left(teller.consume(0.0, limit.key(1)).await);
    teller.commit().await;
    let mut holder = Teller::of(world).await;
    left(holder.consume(0.0, limit.key(1).cost(cost)).await);
    holder
}
