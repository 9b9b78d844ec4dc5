//! Sweepers beside limiters and gates, and beside each other: nobody waits, no token is lost.

use sqlx::Connection;
use tollgate::{Limit, Limiter, Storage, Tokens};

use super::quick;
use crate::gate::stage::{EVER, one_connection, patient, soon};
use crate::proxy::Proxy;
use crate::traced::traced;
use crate::world::{World, pid};

const LIMITER: Limiter = Limiter::new();

#[tokio::test]
async fn rows_that_somebody_holds_are_left_without_waiting() {
    let world = World::new().await;
    world
        .sql(
            "insert into tollgate.durable select 0, 'held', n, 0, 0, now(), now() from generate_series(1, 10) n;
             insert into tollgate.ephemeral select 0, 'held', n, 0, 0, now(), now() from generate_series(1, 10) n",
        )
        .await;
    let mut conn = world.connect().await;
    let mut tx = conn.begin().await.unwrap();
    for table in ["durable", "ephemeral"] {
        let sql = format!("select from tollgate.{table} where key in ('2', '7') for update");
        sqlx::query(sqlx::AssertSqlSafe(sql)).execute(&mut *tx).await.unwrap();
    }
    let swept = soon(quick().sweep(&world.pool)).await.unwrap();
    assert_eq!((swept.ephemeral, swept.durable, swept.missed), (8, 8, 4));
    tx.rollback().await.unwrap();
    let swept = quick().sweep(&world.pool).await.unwrap();
    assert_eq!((swept.rows(), swept.missed), (4, 0));
}

/// The sweeper is held between the statement that finds the row and the one that deletes it.
#[tokio::test]
async fn a_row_that_is_spent_after_it_was_found_stays() {
    let world = World::new().await;
    let limit = Limit::token_bucket("spent", 10, EVER);
    for isolation in ["read committed", "serializable"] {
        world
            .sql(&format!("alter database {} set default_transaction_isolation = '{isolation}'", name(&world).await))
            .await;
        let proxy = Proxy::new(&world.url());
        let pool = one_connection(proxy.options()).await;
        let mut tx = world.pool.begin().await.unwrap();
        LIMITER.debit(&mut tx, limit.key("k")).await.unwrap();
        LIMITER.reset(&mut tx, limit.key("k")).await.unwrap();
        tx.commit().await.unwrap();

        // It takes a connection and counts pages, takes one again and finds: each time three messages more than that.
        proxy.hold_after(8);
        let sweeper = quick().only(Storage::Durable);
        let sweeping = tokio::spawn(async move { sweeper.sweep(&pool).await });
        soon(proxy.until_held()).await;
        let mut tx = world.pool.begin().await.unwrap();
        LIMITER.consume(&mut tx, limit.key("k").cost(4)).await.unwrap().granted().unwrap();
        tx.commit().await.unwrap();
        proxy.release();
        let swept = sweeping.await.unwrap().unwrap();
        assert_eq!((swept.rows(), swept.missed), (0, 1), "{isolation}");
        assert_eq!(world.left(&limit, "k").await, Some(Tokens::new(6)), "{isolation}");
    }
}

/// PostgreSQL reports the race as an error where sessions are not at READ COMMITTED.
#[tokio::test]
async fn a_race_that_is_lost_ends_no_pass() {
    let world = World::new().await;
    world
        .sql(
            "insert into tollgate.durable select 0, 'raced', n, 0, 0, now(), now() from generate_series(1, 25) n;
             create function tollgate.race() returns trigger language plpgsql as
                 'begin raise exception using errcode = ''serialization_failure''; end';
             create trigger race before delete on tollgate.durable
                for each row when (old.key = '7') execute function tollgate.race()",
        )
        .await;
    let swept = quick().batch(10).sweep(&world.pool).await.unwrap();
    assert_eq!((swept.rows(), swept.missed, world.rows().await), (15, 10, 10));
}

/// The sweeper goes by the place at which it found a row.
#[tokio::test]
async fn another_row_that_came_to_lie_where_a_full_one_was_found_stays() {
    let world = World::new().await;
    let proxy = Proxy::new(&world.url());
    let pool = one_connection(proxy.options()).await;
    world.sql("insert into tollgate.durable values (0, 'full', 'k', 0, 0, now(), now())").await;
    let found_at = place(&world).await;
    proxy.hold_after(8);
    let sweeper = quick().only(Storage::Durable);
    let sweeping = tokio::spawn(async move { sweeper.sweep(&pool).await });
    soon(proxy.until_held()).await;
    world.sql("delete from tollgate.durable").await;
    world.sql("vacuum (index_cleanup on) tollgate.durable").await;
    world.sql("insert into tollgate.durable values (0, 'spent', 'k', 0, 0, now(), now() + interval '1 hour')").await;
    assert_eq!(place(&world).await, found_at);
    proxy.release();
    let swept = sweeping.await.unwrap().unwrap();
    assert_eq!((swept.rows(), swept.missed, world.rows().await), (0, 1, 1));
}

async fn place(world: &World) -> String {
    sqlx::query_scalar("select ctid::text from tollgate.durable").fetch_one(&world.pool).await.unwrap()
}

/// A gate writes by the place at which it read a row.
#[tokio::test]
async fn a_row_that_is_swept_between_the_two_statements_of_a_gates_batch_is_decided_again() {
    let world = World::new().await;
    let limit = Limit::token_bucket("swept", 10, EVER);
    let proxy = Proxy::new(&world.url());
    let pool = one_connection(proxy.options()).await;
    let gate = patient(&pool).build();
    gate.consume(limit.key("k")).await.unwrap().granted().unwrap();
    gate.reset(limit.key("k")).await.unwrap();
    proxy.hold_after(1);
    let call = tokio::spawn({
        let (gate, request) = (gate.clone(), limit.key("k").cost(3));
        async move { gate.consume(request).await }
    });
    soon(proxy.until_held()).await;
    assert_eq!(quick().sweep(&world.pool).await.unwrap().durable, 1);
    // The next row at this place is another one.
    world.sql("vacuum (index_cleanup on) tollgate.durable").await;
    let mut tx = world.pool.begin().await.unwrap();
    LIMITER.consume(&mut tx, limit.key("other")).await.unwrap().granted().unwrap();
    tx.commit().await.unwrap();
    proxy.release();
    let grant = soon(call).await.unwrap().unwrap().granted().unwrap();
    assert_eq!(grant.remaining, Tokens::new(7));
    for (key, value) in [("k", 7), ("other", 9)] {
        assert_eq!(world.left(&limit, key).await, Some(Tokens::new(value)), "{key}");
    }
}

#[tokio::test]
async fn where_another_sweeper_is_at_work_it_leaves_the_rest_to_it() {
    let world = World::new().await;
    world
        .sql("insert into tollgate.ephemeral select 0, 'c', n, 0, 0, now(), now() from generate_series(1, 10) n")
        .await;
    let proxy = Proxy::new(&world.url());
    let pool = one_connection(proxy.options()).await;
    // As the other's statement holds it.
    let mut other = world.connect().await;
    let mut tx = other.begin().await.unwrap();
    sqlx::query("select pg_advisory_xact_lock(7234017283807667300)").execute(&mut *tx).await.unwrap();
    let swept = quick().sweep(&pool).await.unwrap();
    assert_eq!((swept.rows(), swept.pages, swept.yielded), (0, 0, true));
    tx.rollback().await.unwrap();
    assert_eq!(quick().sweep(&pool).await.unwrap().ephemeral, 10);
}

/// Any role that may log in can hold the lock, for as long as it likes.
#[test]
fn where_somebody_keeps_the_lock_of_the_sweepers_it_says_so_and_how_to_find_them() {
    let log = traced(async {
        let world = World::new().await;
        world.sql("insert into tollgate.ephemeral values (0, 'c', 'k', 0, 0, now(), now())").await;
        let mut holder = world.connect().await;
        let sweeper = quick();
        for _ in 0..2 {
            sqlx::query("select pg_advisory_lock(7234017283807667300)").execute(&mut holder).await.unwrap();
            for pass in 1..=12 {
                let swept = sweeper.sweep(&world.pool).await.unwrap();
                assert_eq!((swept.rows(), swept.yielded, swept.shut_out), (0, true, pass >= 10), "{pass}");
            }
            let found: Vec<i32> = sqlx::query_scalar(KEEPER).fetch_all(&world.pool).await.unwrap();
            assert_eq!(found, [pid(&mut holder).await]);
            sqlx::query("select pg_advisory_unlock_all()").execute(&mut holder).await.unwrap();
            let swept = sweeper.clone().dry_run().sweep(&world.pool).await.unwrap();
            assert_eq!((swept.rows(), swept.yielded, swept.shut_out), (1, false, false));
        }
    });
    assert_eq!(log.matches(&format!("nothing is swept (find it with: {KEEPER})")).count(), 2, "{log}");
}

/// As the warning says it.
const KEEPER: &str = "select pid from pg_locks join pg_stat_activity using (pid) where datname = current_database() \
                      and granted and locktype = 'advisory' and objid = '1684300900'";

async fn name(world: &World) -> String {
    sqlx::query_scalar("select current_database()").fetch_one(&world.pool).await.unwrap()
}
