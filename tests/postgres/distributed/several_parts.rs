//! A call over several parts takes from all of them or from none.

use sqlx::PgConnection;
use tollgate::{Call, Error, Limit, SECOND, Source, Tokens};

use super::{LIMITER, apart, fill, sharded_as};
use crate::cancellation::{Cut, Cuts};
use crate::gate::stage::{EVER, patient, pool};
use crate::teller::both;
use crate::world::{PARTS, World};

/// A failure in the last part leaves nothing in the parts before it, neither in rows that are there nor in new ones.
#[tokio::test]
async fn a_call_over_several_parts_that_fails_takes_nothing() {
    let world = World::of_parts(PARTS).await;
    world
        .sql(
            "create function fail() returns trigger language plpgsql as
             $$ begin
                 if new.name = 'fails' and new.key = tg_argv[0] then raise exception 'no'; end if;
                 if new.name = 'swallowed' and new.key = tg_argv[0] then return null; end if;
                 return new;
             end $$",
        )
        .await;
    let keys = apart();
    let last = keys.last().unwrap();
    for table in ["ephemeral", "durable"] {
        world
            .sql(&format!(
                "create trigger fail before update on tollgate.{table} for each row execute function fail('{last}')"
            ))
            .await;
    }
    let gate = patient(&world.pool).parts(PARTS).lock_timeout(SECOND / 20).build();
    let mut conn = world.connect().await;
    for (name, is_there) in [("fails", true), ("fails", false), ("swallowed", true), ("swallowed", false)] {
        for limit in both(&Limit::token_bucket(name, 10, EVER)).into_iter().chain(both(&sharded_as(name))) {
            world.sql("truncate tollgate.ephemeral, tollgate.durable").await;
            for key in keys.iter().filter(|_| is_there) {
                fill(&world, &limit, key).await;
            }
            let asks = || keys.iter().map(|key| limit.key(key).cost(2));
            for limiter in [LIMITER, LIMITER.lock_timeout(SECOND)] {
                let mut tx = world.pool.begin().await.unwrap();
                let failed = limiter.consume(&mut tx, asks().collect::<Call>()).await;
                assert_eq!(fault(&failed.unwrap_err()), name, "{limit:?}");
                // It may roll back a transaction that is aborted anyway.
                drop(tx.commit().await);
                assert_full(&mut conn, &limit, &keys).await;
            }
            assert_eq!(fault(&gate.consume(asks().collect::<Call>()).await.unwrap_err()), name);
            assert_full(&mut conn, &limit, &keys).await;
        }
    }
}

/// Each id is kept in the part of its own key.
#[tokio::test]
async fn calls_with_ids_in_several_parts_are_repeated_each_from_its_own() {
    let world = World::of_parts(PARTS).await;
    let limit = Limit::token_bucket("ten", 10, EVER);
    let calls = || (0..24).map(|key| limit.key(key).cost(2).once("id"));
    for source in [Source::Database, Source::Repeated] {
        let mut tx = world.pool.begin().await.unwrap();
        for answer in LIMITER.consume_each(&mut tx, calls()).await.unwrap() {
            assert_eq!(answer.unwrap().granted().unwrap().source, source);
        }
        tx.commit().await.unwrap();
    }
    let astray = "select count(*) from tollgate.calls c
                   where not exists (select from tollgate.durable r where (r.part, r.key) = (c.part, c.key))";
    assert_eq!(sqlx::query_scalar::<_, i64>(astray).fetch_one(&world.pool).await.unwrap(), 0);
}

/// Somebody holds a row of the last part, or has spent it.
#[tokio::test]
async fn a_call_over_several_parts_that_is_busy_or_refused_takes_nothing() {
    let world = World::of_parts(PARTS).await;
    let keys = apart();
    let (last, others) = keys.split_last().unwrap();
    let gate = patient(&world.pool).parts(PARTS).lock_timeout(SECOND / 20).build();
    let mut conn = world.connect().await;
    for limit in both(&Limit::token_bucket("held", 10, EVER)).into_iter().chain(both(&sharded_as("held"))) {
        let asks = || keys.iter().map(|key| limit.key(key).cost(2));
        let mut holder = world.pool.begin().await.unwrap();
        LIMITER.debit(&mut holder, limit.key(last).cost(10)).await.unwrap();

        let mut tx = world.pool.begin().await.unwrap();
        let busy = LIMITER.lock_timeout(SECOND / 20).consume(&mut tx, asks().collect::<Call>()).await;
        assert!(matches!(busy, Err(Error::Locked { .. })), "{busy:?}");
        tx.commit().await.unwrap();
        let busy = gate.consume(asks().collect::<Call>()).await;
        assert!(matches!(busy, Err(Error::Locked { .. })), "{busy:?}");
        assert_full(&mut conn, &limit, &keys).await;
        assert_eq!(rows_of(&world, limit.name()).await, 0, "nor does a row stay");

        holder.commit().await.unwrap();
        let rows = rows_of(&world, limit.name()).await;
        let mut tx = world.pool.begin().await.unwrap();
        let denied = LIMITER.consume(&mut tx, asks().collect::<Call>()).await.unwrap().denied().unwrap();
        assert_eq!(denied.key.as_str(), last);
        tx.commit().await.unwrap();
        gate.consume(asks().collect::<Call>()).await.unwrap().denied().unwrap();
        assert_full(&mut conn, &limit, others).await;
        assert_eq!(rows_of(&world, limit.name()).await, rows);
        world.sql("truncate tollgate.ephemeral, tollgate.durable").await;
    }
}

#[tokio::test]
async fn a_call_over_several_parts_that_is_dropped_and_rolled_back_takes_nothing() {
    let world = World::of_parts(PARTS).await;
    let pool = pool(&world.url(), 1).await;
    let (keys, limit) = (apart(), Limit::token_bucket("cut", 10, EVER));
    let mut conn = world.connect().await;
    let (limiter, mut cuts) = (LIMITER, Cuts::default());
    loop {
        let mut tx = pool.begin().await.unwrap();
        let call = limiter.consume(&mut tx, keys.iter().map(|key| limit.key(key)).collect::<Call>());
        let done = Cut::after(cuts.waits, call).await;
        drop(tx);
        // It is rolled back when the connection is used next.
        sqlx::raw_sql("select").execute(&mut *pool.acquire().await.unwrap()).await.unwrap();
        assert_full(&mut conn, &limit, &keys).await;
        assert_eq!(world.rows().await, 0, "cut at {}", cuts.waits);
        let is_done = done.map(|decision| decision.unwrap().granted().unwrap()).is_some();
        if !cuts.go_on(is_done) {
            break;
        }
    }
}

/// Rows and stored calls are written by several statements, and a caller may commit after only some of them.
#[tokio::test]
async fn a_dropped_call_that_is_committed_gives_nothing_for_free_and_nothing_back_twice() {
    let world = World::of_parts(PARTS).await;
    let pool = pool(&world.url(), 1).await;
    let (limit, mut cuts) = (Limit::token_bucket("cut", 10, EVER), Cuts::default());
    for key in 0.. {
        let ask = || limit.key(key).cost(2);
        let mut tx = pool.begin().await.unwrap();
        LIMITER.debit(&mut tx, ask()).await.unwrap();
        let charged = Cut::after(cuts.waits, LIMITER.consume(&mut tx, ask().once("id"))).await;
        tx.commit().await.unwrap();
        let mut tx = pool.begin().await.unwrap();
        let grant = LIMITER.consume(&mut tx, ask().once("id")).await.unwrap().granted().unwrap();
        let left = LIMITER.balance(&mut tx, ask()).await.unwrap().remaining;
        assert!(left <= Tokens::new(6), "{left} are left, cut at {}", cuts.waits);
        let settled = Cut::after(cuts.waits, LIMITER.settle(&mut tx, grant.clone(), 0)).await;
        tx.commit().await.unwrap();
        let mut tx = pool.begin().await.unwrap();
        let again = LIMITER.settle(&mut tx, grant, 0).await;
        assert!(matches!(again, Ok(_) | Err(Error::ReceiptUsed { .. })), "{again:?}");
        let back = LIMITER.balance(&mut tx, ask()).await.unwrap().remaining;
        assert!(back <= left.checked_add(Tokens::new(2)).unwrap(), "{left}, then {back}, cut at {}", cuts.waits);
        tx.commit().await.unwrap();
        if !cuts.go_on(charged.is_some() && settled.is_some()) {
            break;
        }
    }
}

/// Which of the two triggers an error tells of. A row of several parts that is not written has moved, for the library:
/// Citus takes no triggers.
fn fault(error: &Error) -> &'static str {
    match error {
        Error::Moved { .. } => "swallowed",
        Error::Database { .. } => "fails",
        other => panic!("{other:?}"),
    }
}

async fn assert_full(conn: &mut PgConnection, limit: &Limit, keys: &[String]) {
    for key in keys {
        let balance = LIMITER.balance(conn, limit.key(key)).await.unwrap();
        assert!(balance.is_full(), "{key} of {limit:?} has {}", balance.remaining);
    }
}

async fn rows_of(world: &World, name: &str) -> i64 {
    let sql = "select (select count(*) from tollgate.ephemeral where name = $1)
                    + (select count(*) from tollgate.durable where name = $1)";
    sqlx::query_scalar(sql).bind(name).fetch_one(&world.pool).await.unwrap()
}
