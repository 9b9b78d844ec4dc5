//! The clock is read after the wait for a lock.

use chrono::{DateTime, Utc};
use sqlx::{AssertSqlSafe, Connection};
use tollgate::{Grant, Limit, Request, SECOND};

use super::{LIMITER, take};
use crate::world::{World, part, pid};

/// A clock read before the wait would grant refill twice: once to the holder, once to the waiter.
#[tokio::test]
async fn the_clock_is_read_after_the_wait_for_a_row() {
    let world = World::new().await;
    let (durable, ephemeral) = (Limit::token_bucket("d", 50, SECOND), Limit::token_bucket("e", 50, SECOND).ephemeral());
    let d = |key: &'static str| durable.key(key);
    let e = |key: &'static str| ephemeral.key(key);
    let mut conn = world.connect().await;
    for request in [d("there"), d("other"), e("there"), e("other")] {
        take(&mut conn, request).await.unwrap();
    }
    // Citus locks only where a statement names the part.
    let there = format!("part = {} and key = 'there'", part("there"));
    let lock = &format!(
        "select from tollgate.durable where {there} for update;
         select from tollgate.ephemeral where {there} for update"
    );
    let update = &format!(
        "update tollgate.durable set value = value - 1 where {there};
         update tollgate.ephemeral set value = value - 1 where {there}"
    );
    for (hold, end, asks) in [
        (lock, "rollback", vec![d("there")]),
        (lock, "commit", vec![e("there")]),
        (update, "commit", vec![d("there")]),
        (update, "rollback", vec![e("there")]),
        (lock, "rollback", vec![d("other"), d("there")]),
        (lock, "rollback", vec![d("there"), d("other")]),
        (update, "commit", vec![e("other"), e("there")]),
        (lock, "rollback", vec![e("other"), d("there")]),
        (lock, "rollback", vec![e("there"), d("other")]),
        (lock, "rollback", vec![d("absent"), d("there")]),
    ] {
        let case = format!("{asks:?} behind {end} of {hold}");
        let (grant, released) = behind(&world, hold, end, asks).await;
        assert!(grant.decided_at >= released, "{case}: decided at {}, released at {released}", grant.decided_at);
        world.sql("delete from tollgate.durable where key = 'absent'").await;
    }
}

/// Asks while another transaction holds what `hold` holds, until it ends by `end`; and the instant at which it did.
async fn behind(world: &World, hold: &str, end: &str, asks: Vec<Request>) -> (Grant, DateTime<Utc>) {
    let (mut holder, mut waiter) = (world.connect().await, world.connect().await);
    let waiter_pid = pid(&mut waiter).await;
    sqlx::raw_sql(AssertSqlSafe(format!("begin; {hold}"))).execute(&mut holder).await.unwrap();
    let mut tx = waiter.begin().await.unwrap();
    let release = async {
        world.until_blocked(waiter_pid).await;
        // On Citus a clock that was read a moment before is near enough.
        let instant = "select clock_timestamp() from pg_sleep(0.01)";
        let instant = sqlx::query_scalar(instant).fetch_one(&mut holder).await.unwrap();
        sqlx::raw_sql(AssertSqlSafe(end.to_owned())).execute(&mut holder).await.unwrap();
        instant
    };
    let (decision, released) = tokio::join!(LIMITER.consume(&mut tx, asks), release);
    tx.rollback().await.unwrap();
    (decision.unwrap().granted().unwrap(), released)
}

/// The row is full when it is inserted, so it must not stand at an instant before others spent its tokens.
#[tokio::test]
async fn the_clock_is_read_after_the_wait_for_an_insert() {
    let world = World::new().await;
    let (durable, ephemeral) = (Limit::token_bucket("d", 50, SECOND), Limit::token_bucket("e", 50, SECOND).ephemeral());
    let (d, e) = (|key: &'static str| durable.key(key), |key: &'static str| ephemeral.key(key));
    let insert = "insert into tollgate.durable values (0, 'd', 'new', 0, 0, clock_timestamp(), clock_timestamp());
         insert into tollgate.ephemeral values (0, 'e', 'new', 0, 0, clock_timestamp(), clock_timestamp())";
    for (end, asks) in [
        ("rollback", vec![d("new")]),
        ("rollback", vec![d("new"), d("other")]),
        ("rollback", vec![e("new"), d("other")]),
        ("commit", vec![d("new"), d("other")]),
        ("commit", vec![e("new")]),
    ] {
        let case = format!("{asks:?} behind {end}");
        let (grant, released) = behind(&world, insert, end, asks).await;
        assert!(grant.decided_at >= released, "{case}: decided at {}, released at {released}", grant.decided_at);
        world.sql("delete from tollgate.durable").await;
        world.sql("delete from tollgate.ephemeral").await;
    }
}
