//! Errors of a batch: each caller hears its own, and no other.

use sqlx::postgres::PgPoolOptions;
use tokio::task::JoinSet;
use tollgate::{Error, Limit, MINUTE, OnFailure, SetupFault};

use crate::gate::stage::{EVER, one_connection, patient, soon};
use crate::proxy::Proxy;
use crate::world::World;

const LIMIT: Limit = Limit::stepped_bucket("ten", 10, EVER).max_reserved(10);
const OTHER: Limit = Limit::token_bucket("hundred", 100, EVER).ephemeral();

/// The database is there, and its error reaches every caller, by the name of the limit that each asked.
#[tokio::test]
async fn an_error_of_a_batch_reaches_every_caller_in_it_by_its_own_limit() {
    let world = World::new().await;
    for (breaking, mending, missing) in [
        ("alter schema tollgate rename to away", "alter schema away rename to tollgate", true),
        (
            "create function public.fail() returns trigger language plpgsql as $$ begin raise 'no'; end $$;
             create trigger fail before insert on tollgate.durable execute function public.fail();
             create trigger fail before insert on tollgate.ephemeral execute function public.fail()",
            "drop function public.fail() cascade",
            false,
        ),
    ] {
        let proxy = Proxy::new(&world.url());
        let pool = PgPoolOptions::new().max_connections(1).acquire_timeout(5 * MINUTE);
        let pool = pool.connect_with(proxy.options()).await.unwrap();
        let gate = patient(&pool).build();
        world.sql(breaking).await;
        proxy.hold_after(0);
        let mut callers = JoinSet::new();
        for caller in 0..20 {
            let gate = gate.clone();
            let limit = if caller % 2 == 0 { LIMIT } else { OTHER };
            callers.spawn(async move { (limit.name().to_owned(), soon(gate.consume(limit.key(caller))).await) });
        }
        soon(proxy.until_held()).await;
        proxy.release();
        for (name, answer) in soon(callers.join_all()).await {
            match answer {
                Err(Error::Setup { fault: SetupFault::Schema, .. }) if missing => {}
                Err(error @ Error::Database { .. }) if !missing => {
                    assert!(
                        matches!(&error, Error::Database { limit: Some(limit), .. } if **limit == name),
                        "{error:?}"
                    );
                    assert!(!error.is_retryable(), "{error:?}");
                }
                other => panic!("{name}: {other:?}"),
            }
        }
        world.sql(mending).await;
        soon(gate.consume(LIMIT.key("k"))).await.unwrap().granted().unwrap();
    }
}

/// It refuses its own callers, and nobody else in their batch.
#[tokio::test]
async fn one_corrupt_row_is_an_error_for_those_who_ask_it_and_for_no_one_else() {
    let world = World::new().await;
    world.sql("alter table tollgate.ephemeral drop constraint ephemeral_row").await;
    world.sql("alter table tollgate.durable drop constraint durable_row").await;
    let proxy = Proxy::new(&world.url());
    let pool = one_connection(proxy.options()).await;
    let gate = patient(&pool).build();
    for limit in [LIMIT, Limit::stepped_bucket("ten", 10, EVER).ephemeral()] {
        gate.consume(limit.key("corrupt")).await.unwrap().granted().unwrap();
        gate.consume(limit.key(0)).await.unwrap().granted().unwrap();
        for (table, ts) in [("durable", "ts"), ("ephemeral", "ts")] {
            world.sql(&format!("update tollgate.{table} set {ts} = 'infinity' where key = 'corrupt'")).await;
        }
        proxy.hold_after(0);
        let mut callers = JoinSet::new();
        for caller in 0..21 {
            let (gate, limit) = (gate.clone(), limit.clone());
            callers.spawn(async move {
                let request = if caller % 7 == 3 { limit.key("corrupt") } else { limit.key(caller % 3) };
                (caller, soon(gate.consume(request)).await)
            });
        }
        soon(proxy.until_held()).await;
        proxy.release();
        for (caller, answer) in soon(callers.join_all()).await {
            if caller % 7 == 3 {
                assert!(matches!(&answer, Err(Error::CorruptRow { limit, .. }) if limit == "ten"), "{answer:?}");
            } else {
                answer.unwrap().granted().unwrap();
            }
        }
    }
}

/// PostgreSQL 17 and newer end a transaction that takes longer than `transaction_timeout`. It may have waited for a row
/// that a crowd locks, so no policy answers. Here a trigger says it, without an end of the session.
#[tokio::test]
async fn a_transaction_that_took_too_long_for_a_lock_opens_no_gate() {
    let world = World::new().await;
    world
        .sql(
            "create function public.took_too_long() returns trigger language plpgsql as $$ begin
                 raise exception using errcode = '25P04', message = 'terminating connection due to transaction timeout';
             end $$;
             create trigger too_long before insert on tollgate.durable
                    for each row execute function public.took_too_long()",
        )
        .await;
    let gate = patient(&world.pool).on_failure(OnFailure::Open).build();
    let error = soon(gate.consume(LIMIT.key("k"))).await.unwrap_err();
    assert!(matches!(error, Error::Database { .. }) && error.is_retryable(), "{error:?}");
    world.sql("drop trigger too_long on tollgate.durable").await;
    soon(gate.consume(LIMIT.key("k"))).await.unwrap().granted().unwrap();
}
