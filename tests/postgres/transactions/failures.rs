//! Failures, each of which has an error of its own.

use sqlx::Executor;
use tollgate::{BegunByHand, Error, SECOND, SetupFault, Step};

use super::{LIMITER, VERBS, answer, ten, terminate};
use crate::teller::{Teller, left, run};
use crate::world::{SERVICE, World, limiter, second};

#[tokio::test]
async fn a_lost_race_at_repeatable_read_is_retryable() {
    let world = World::new().await;
    for (limit, key) in ten().into_iter().flat_map(|limit| [(limit.clone(), "present"), (limit, "absent")]) {
        let mut teller = Teller::of(&world).await;
        left(teller.consume(0.0, limit.key("present")).await);
        teller.commit().await;
        for several in [false, true] {
            let mut loser = world.pool.begin_with("begin isolation level repeatable read").await.unwrap();
            loser.execute("select 1").await.unwrap();
            let mut winner = Teller::of(&world).await;
            left(winner.consume(0.0, limit.key(key)).await);
            winner.commit().await;
            let keys = if several { vec![limit.key(key), limit.key("third")] } else { vec![limit.key(key)] };
            let error = limiter().at(second(0.0)).consume(&mut loser, keys).await.unwrap_err();
            assert!(matches!(error, Error::Database { .. }) && error.is_retryable(), "{error:?}");
            assert!(error.to_string().contains("\"ten\""), "{error}");
            drop(loser);
            let sql = "delete from tollgate.ephemeral where key = 'absent';
                delete from tollgate.durable where key = 'absent'";
            world.sql(sql).await;
        }
    }
}

#[tokio::test]
async fn after_an_sql_error_of_the_callers_own_the_failure_names_limit_and_step() {
    let world = World::new().await;
    for limit in ten() {
        for (limiter, step) in [(limiter(), Step::Lock), (limiter().lock_timeout(SECOND), Step::Savepoint)] {
            let mut tx = world.begin().await;
            tx.execute("select 1 / 0").await.unwrap_err();
            let error = limiter.consume(&mut tx, limit.key(1)).await.unwrap_err();
            assert!(!error.is_retryable());
            let told = error.to_string();
            let Error::Database { step: at, limit: Some(name), source } = error else { panic!("{error:?}") };
            assert_eq!((at, &*name), (step, "ten"));
            assert_eq!(told, format!("could not {step} limit \"ten\": {}", *source), "with its reason");
            assert_eq!(source.as_database_error().unwrap().code().unwrap(), "25P02");
        }
    }
}

#[tokio::test]
async fn a_read_only_transaction_can_look_and_cannot_take() {
    let world = World::new().await;
    for limit in ten() {
        let mut teller = Teller::of(&world).await;
        left(teller.consume(0.0, limit.key("present").cost(10)).await);
        teller.commit().await;
        for key in ["present", "absent"] {
            let mut tx = world.pool.begin_with("begin read only").await.unwrap();
            assert!(LIMITER.check(&mut tx, limit.key(key)).await.unwrap().is_granted());
            let error = LIMITER.consume(&mut tx, limit.key(key)).await.unwrap_err();
            assert!(!error.is_retryable());
            let Error::ReadOnly { source } = &error else { panic!("{error:?}") };
            assert_eq!(source.as_database_error().unwrap().code().unwrap(), "25006", "{error}");
            assert!(error.to_string().contains("(connect to the primary, or begin `read write`)"), "{error}");
        }
    }
}

#[tokio::test]
async fn missing_rights_name_their_remedy() {
    let world = World::new().await;
    world.sql(&format!("revoke usage on schema tollgate from {SERVICE}")).await;
    for limit in ten() {
        let mut tx = world.begin().await;
        let error = LIMITER.consume(&mut tx, limit.key(1)).await.unwrap_err();
        assert!(matches!(error, Error::Setup { fault: SetupFault::Rights, .. }), "{error:?}");
        assert!(error.is_setup() && !error.is_retryable());
        assert!(error.to_string().contains("`tollgate migrate up --grant ROLE`"), "{error}");
    }
}

#[tokio::test]
async fn a_missing_schema_names_its_remedy() {
    let world = World::unmigrated().await;
    let mut conn = world.connect().await;
    for limit in ten() {
        for limiter in [limiter(), limiter().unnamed_statements()] {
            let mut errors = Vec::new();
            run(&mut conn, "begin").await;
            errors.push(limiter.check(&mut conn, limit.key(1)).await.map(drop));
            run(&mut conn, "rollback; begin").await;
            errors.push(limiter.balance(&mut conn, limit.key(1)).await.map(drop));
            run(&mut conn, "rollback").await;
            for limiter in [limiter.clone(), limiter.lock_timeout(SECOND)] {
                for verb in 0..VERBS {
                    run(&mut conn, "begin").await;
                    errors.push(answer(&limiter, &mut conn, &limit, "k", verb).await);
                    run(&mut conn, "rollback").await;
                }
            }
            for error in errors.into_iter().map(Result::unwrap_err) {
                assert!(
                    matches!(error, Error::Setup { fault: SetupFault::Schema, .. }) && !error.is_retryable(),
                    "{error:?}"
                );
                assert!(error.to_string().contains("`tollgate migrate up`"), "{error}");
            }
        }
    }
}

#[tokio::test]
async fn a_lost_connection_is_retryable() {
    let world = World::new().await;
    for limit in ten() {
        for limiter in [limiter(), limiter().lock_timeout(SECOND)] {
            let mut conn = world.connect().await;
            run(&mut conn, "begin").await;
            terminate(&world, &mut conn).await;
            for _ in 0..2 {
                let error = limiter.consume(&mut BegunByHand(&mut conn), limit.key(1)).await.unwrap_err();
                assert!(matches!(error, Error::Database { .. }) && error.is_retryable(), "{error:?}");
            }
        }
    }
}
