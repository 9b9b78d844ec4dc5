//! Where a transaction and its savepoints begin and end.

use sqlx::Connection;
use tollgate::{BegunByHand, Error, Limit, Limiter, MINUTE, SECOND};

use super::{LIMITER, VERBS, answer, answers, setting, ten};
use crate::teller::{Teller, both, left, rows, run, tokens};
use crate::world::{World, limiter, parts, pid, second};

#[tokio::test]
async fn a_begin_by_hand_counts_as_a_transaction() {
    let world = World::new().await;
    let mut conn = world.connect().await;
    for limit in ten() {
        for (end, remaining) in [("rollback", 9), ("commit", 9), ("end", 8)] {
            run(&mut conn, "begin").await;
            assert_eq!(
                left(limiter().at(second(0.0)).consume(&mut BegunByHand(&mut conn), limit.key(1)).await.unwrap()),
                tokens(remaining)
            );
            run(&mut conn, end).await;
        }
        assert_eq!(world.left(&limit, "1").await.unwrap(), tokens(8));
    }
}

#[tokio::test]
async fn a_savepoint_that_is_rolled_back_gives_its_tokens_back() {
    let world = World::new().await;
    for limit in ten() {
        for limiter in [limiter().at(second(0.0)), limiter().at(second(0.0)).lock_timeout(SECOND)] {
            let mut tx = world.begin().await;
            left(limiter.consume(&mut tx, limit.key(1)).await.unwrap());
            let mut undone = tx.begin().await.unwrap();
            left(limiter.consume(&mut undone, limit.key(1).cost(4)).await.unwrap());
            left(limiter.consume(&mut undone, limit.key(2).cost(4)).await.unwrap());
            undone.rollback().await.unwrap();
            let mut kept = tx.begin().await.unwrap();
            assert_eq!(left(limiter.consume(&mut kept, limit.key(1).cost(2)).await.unwrap()), tokens(7));
            kept.commit().await.unwrap();
            assert_eq!(left(limiter.consume(&mut tx, limit.key(1)).await.unwrap()), tokens(6));
            assert_eq!(left(limiter.consume(&mut tx, limit.key(2)).await.unwrap()), tokens(9));
            tx.rollback().await.unwrap();
        }
    }
}

/// A caller that waits for a row that a savepoint has locked waits for that savepoint, not for the transaction around
/// it. Else a transaction that asks for the row again would queue behind callers that wait for its own end.
#[tokio::test]
async fn a_savepoint_that_is_rolled_back_is_not_waited_for() {
    let world = World::new().await;
    let limits = [Limit::token_bucket("ten", 10, MINUTE), Limit::token_bucket("shards", 10, MINUTE).shards(2)];
    for limit in limits.iter().flat_map(both) {
        for limiter in [limiter(), limiter().lock_timeout(MINUTE)] {
            let mut holder = world.begin().await;
            // All of it, so that each row is locked.
            let all = |limit: &Limit| limit.global().cost(10);
            left(limiter.consume(&mut holder, Limit::token_bucket("other", 9, MINUTE).global()).await.unwrap());
            let mut undone = holder.begin().await.unwrap();
            left(limiter.consume(&mut undone, all(&limit)).await.unwrap());
            let mut waiter = world.begin().await;
            let pid = pid(&mut waiter).await;
            let waiting = tokio::spawn({
                let request = all(&limit);
                async move { LIMITER.consume(&mut waiter, request).await.unwrap().is_granted() }
            });
            world.until_blocked(pid).await;
            undone.rollback().await.unwrap();
            let granted = tokio::time::timeout(10 * MINUTE, waiting).await.expect("waits for the transaction");
            assert!(granted.unwrap(), "{}", limit.name());
            holder.rollback().await.unwrap();
        }
    }
}

#[tokio::test]
async fn outside_a_transaction_every_verb_that_would_write_says_so() {
    let world = World::new().await;
    let mut conn = world.connect().await;
    for limit in ten() {
        let mut teller = Teller::of(&world).await;
        for key in ["present", "another"] {
            left(teller.consume(0.0, limit.key(key).cost(5)).await);
        }
        teller.commit().await;
        let before = Teller::of(&world).await.rows().await;
        for limiter in [limiter().at(second(0.0)), limiter().at(second(0.0)).unnamed_statements()] {
            for (verb, answer) in answers(&limiter, &mut conn, &limit, "present").await.into_iter().enumerate() {
                assert!(matches!(answer, Err(Error::NotInTransaction)), "verb {verb}: {answer:?}");
            }
            for verb in [
                limiter.consume(&mut BegunByHand(&mut conn), limit.key("absent")).await.map(drop),
                limiter.reserve(&mut BegunByHand(&mut conn), limit.key("absent")).await.map(drop),
                limiter.debit(&mut BegunByHand(&mut conn), limit.key("absent")).await.map(drop),
            ] {
                assert!(matches!(verb, Err(Error::NotInTransaction)), "{verb:?}");
            }
        }
        // With a lock timeout the savepoint tells it, before anything else.
        for key in ["present", "absent"] {
            for answer in answers(&limiter().lock_timeout(SECOND), &mut conn, &limit, key).await {
                assert!(matches!(&answer, Err(error @ Error::NotInTransaction) if !error.is_retryable()), "{answer:?}");
            }
        }
        assert_eq!(Teller::of(&world).await.rows().await, before);
        assert_eq!(setting(&mut conn, "lock_timeout").await, "0");
        // Looking needs no transaction, where statements have names.
        let looking = Limiter::new().parts(parts());
        assert!(looking.check(&mut conn, limit.key("present")).await.unwrap().is_granted());
        let balance = looking.at(second(0.0)).balance(&mut conn, limit.key("present")).await.unwrap();
        assert_eq!(balance.remaining, tokens(5));
        world.sql("truncate tollgate.ephemeral, tollgate.durable").await;
    }
}

/// sqlx goes on to count one.
#[tokio::test]
async fn a_transaction_of_sqlx_that_was_ended_by_hand_is_none() {
    let world = World::new().await;
    for limit in ten() {
        let mut teller = Teller::of(&world).await;
        left(teller.consume(0.0, limit.key("present").cost(5)).await);
        teller.commit().await;
        for limiter in [limiter().at(second(0.0)), limiter().at(second(0.0)).lock_timeout(SECOND)] {
            for verb in 0..VERBS {
                let mut tx = world.pool.begin().await.unwrap();
                run(&mut tx, ["commit", "rollback"][verb % 2]).await;
                let answer = answer(&limiter, &mut tx, &limit, "present", verb).await;
                assert!(matches!(answer, Err(Error::NotInTransaction)), "verb {verb}: {answer:?}");
            }
            let mut tx = world.pool.begin().await.unwrap();
            run(&mut tx, "commit").await;
            let absent = limiter.consume(&mut tx, limit.key("absent")).await;
            assert!(matches!(absent, Err(Error::NotInTransaction)), "{absent:?}");
        }
        assert_eq!(world.left(&limit, "present").await, Some(tokens(5)));
    }
}

#[tokio::test]
async fn outside_a_transaction_absent_rows_of_several_limits_stay_absent() {
    let world = World::new().await;
    let mut conn = world.connect().await;
    for limit in ten() {
        let answer = LIMITER.consume(&mut BegunByHand(&mut conn), [limit.key(1), limit.key(2)]).await;
        assert!(matches!(answer, Err(Error::NotInTransaction)), "{answer:?}");
        assert_eq!(rows(&mut conn).await, []);
    }
}

#[tokio::test]
async fn outside_a_transaction_a_cost_of_zero_for_several_limits_writes_nothing() {
    let world = World::new().await;
    let mut conn = world.connect().await;
    for limit in ten() {
        let _ = LIMITER.consume(&mut BegunByHand(&mut conn), [limit.key(1).cost(0), limit.key(2).cost(0)]).await;
        assert_eq!(rows(&mut conn).await, []);
    }
}
