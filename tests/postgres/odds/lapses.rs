//! Lapses whose reaper meets an obstacle.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::{DateTime, Utc};
use tollgate::{Call, Error, Limit, Limiter, SECOND, Step, Sweeper};

use super::{BUCKET, MOMENT};
use crate::calls::{consume_in, left, stored};
use crate::gate::stage::{EVER, one_connection, soon};
use crate::proxy::Proxy;
use crate::world::{PARTS, World, part_of};

/// The settlement of the first part kills its session.
#[tokio::test]
async fn a_part_that_cannot_be_asked_holds_up_no_other_lapse() {
    let world = World::of_parts(PARTS).await;
    let mut tx = world.pool.begin().await.unwrap();
    let mut keys = BTreeMap::new();
    for key in 0..40 {
        keys.entry(part_of(&key.to_string())).or_insert(key);
    }
    for key in keys.values() {
        let call = BUCKET.key(*key).lapses_after(Duration::from_micros(1));
        Limiter::new().parts(PARTS).consume(&mut tx, call).await.unwrap().granted().unwrap();
    }
    tx.commit().await.unwrap();
    let kill = "create function kill() returns trigger language plpgsql security definer as
                $$ begin perform pg_terminate_backend(pg_backend_pid()); return old; end $$;
                create trigger kill before delete on tollgate.calls for each row when (old.part = {part})
                execute function kill()";
    world.sql(&kill.replace("{part}", &keys.keys().next().unwrap().to_string())).await;
    let pool = one_connection(world.url().parse().unwrap()).await;
    soon(Sweeper::new().parts(PARTS).reap(&pool)).await.unwrap_err();
    let left: i64 = sqlx::query_scalar("select count(*) from tollgate.calls").fetch_one(&world.pool).await.unwrap();
    assert_eq!((left, keys.len()), (1, usize::from(PARTS)));
}

/// A reaper gives a silent server up, and the connection with it.
#[tokio::test]
async fn a_server_that_falls_silent_holds_up_lapses_for_a_moment() {
    let world = World::new().await;
    let mut tx = world.begin().await;
    let call = BUCKET.key("k").lapses_after(Duration::from_micros(1));
    Limiter::new().consume(&mut tx, call).await.unwrap().granted().unwrap();
    tx.commit().await.unwrap();
    let proxy = Proxy::new(&world.url());
    let wire = one_connection(proxy.options()).await;
    drop(wire.acquire().await.unwrap());
    proxy.hold_after(1);
    let reaping = tokio::spawn({
        let wire = wire.clone();
        async move { Sweeper::new().reap(&wire).await }
    });
    soon(proxy.until_held()).await;
    proxy.strand();
    proxy.release();
    let error = soon(reaping).await.unwrap().unwrap_err();
    assert!(matches!(error, Error::Database { step: Step::Sweep(_), .. }), "{error:?}");
    assert_eq!(soon(Sweeper::new().reap(&wire)).await.unwrap(), 1);
}

/// As one that a later release has written.
#[tokio::test]
async fn a_call_that_cannot_be_read_leaves_the_others_alone() {
    let world = World::new().await;
    let mut tx = world.begin().await;
    for key in 0..3 {
        Limiter::new()
            .consume(&mut tx, BUCKET.key(key).lapses_after(Duration::from_micros(1)))
            .await
            .unwrap()
            .granted()
            .unwrap();
    }
    tx.commit().await.unwrap();
    world.sql("update tollgate.calls set charges = '[{\"kind\": \"later\"}]' where key = '1'").await;
    let reaped = Sweeper::new().reap(&world.pool).await;
    assert_eq!(reaped.map_err(|error| error.to_string()), Ok(2));
}

/// More than a look finds, all of one instant.
#[tokio::test]
async fn many_calls_that_cannot_be_given_back_leave_the_others_alone() {
    let world = World::new().await;
    let wallet = Limit::wallet("full");
    let mut tx = world.begin().await;
    Limiter::new().credit(&mut tx, wallet.global().cost(500)).await.unwrap();
    for _ in 0..70 {
        Limiter::new()
            .consume(&mut tx, wallet.global().cost(5).lapses_after(Duration::from_micros(1)))
            .await
            .unwrap()
            .granted()
            .unwrap();
    }
    tx.commit().await.unwrap();
    world
        .sql(&format!("update tollgate.durable set value = {}, full_at = '9999-01-01' where name = 'full'", i64::MAX))
        .await;
    world.sql("update tollgate.calls set lapses_at = '2020-01-01'").await;
    world.sql("vacuum full tollgate.calls").await;
    let mut tx = world.begin().await;
    Limiter::new()
        .consume(&mut tx, BUCKET.key("k").lapses_after(Duration::from_micros(1)))
        .await
        .unwrap()
        .granted()
        .unwrap();
    tx.commit().await.unwrap();
    world.sql("update tollgate.calls set lapses_at = '2020-01-01' where name = 'bucket'").await;
    assert_eq!(Sweeper::new().reap(&world.pool).await.unwrap(), 1);
}

/// The row of the organisation comes before that of the user, which somebody has locked.
#[tokio::test]
async fn a_locked_row_holds_up_no_other_lapse() {
    let world = World::new().await;
    let [org, user] = [Limit::token_bucket("aorg", 1_000, EVER), Limit::token_bucket("zuser", 1_000, EVER)];
    let mut tx = world.begin().await;
    for key in 0..3 {
        for _ in 0..2 {
            Limiter::new()
                .consume(&mut tx, Call::from([org.global(), user.key(key)]).lapses_after(Duration::from_micros(1)))
                .await
                .unwrap()
                .granted()
                .unwrap();
        }
    }
    tx.commit().await.unwrap();
    let mut held = world.begin().await;
    Limiter::new().consume(&mut held, user.key(1)).await.unwrap().granted().unwrap();
    assert_eq!(soon(Sweeper::new().reap(&world.pool)).await.unwrap(), 4, "those of the others");
    held.commit().await.unwrap();
    assert_eq!(Sweeper::new().reap(&world.pool).await.unwrap(), 2);
}

/// The wire of a reaper breaks after each of its statements in turn, as if it were killed there.
#[tokio::test]
async fn what_a_killed_reaper_has_begun_comes_back_once() {
    let world = World::new().await;
    let proxy = Proxy::new(&world.url());
    let ephemeral = Limit::token_bucket("ephemeral", 1_000, EVER).ephemeral();
    let limits = [BUCKET, Limit::fixed_window("window", 1_000, EVER), ephemeral];
    let ask = || limits.each_ref().map(|limit| limit.key("k").cost(100));
    for statement in 1.. {
        world.sql("truncate tollgate.ephemeral, tollgate.durable, tollgate.calls").await;
        // It stays: a full row would not show what comes back twice.
        consume_in(&world.pool, ask().map(|request| request.cost(500))).await;
        for _ in 0..3 {
            let [bucket, window, ephemeral] = ask();
            consume_in(&world.pool, Call::from([bucket, window, ephemeral]).lapses_after(MOMENT)).await;
        }
        let wire = one_connection(proxy.options()).await;
        let lost = proxy.lost_answers();
        proxy.cut_after(statement);
        let killed = soon(Sweeper::new().reap(&wire)).await.unwrap_or(0);
        proxy.hear();
        let rest = Sweeper::new().reap(&world.pool).await.unwrap();
        assert!(killed + rest <= 3, "{statement}: {killed} and {rest}");
        for request in ask() {
            assert_eq!(left(&world.pool, request).await, 500, "{statement}");
        }
        assert_eq!(stored(&mut world.connect().await).await, 0, "{statement}");
        if proxy.lost_answers() == lost {
            assert!(statement > 5, "it has locked rows of both tables, and calls");
            break;
        }
    }
}

/// A reaper passes over calls that it cannot see yet, and does not begin anew each time; but it looks back a little.
#[tokio::test]
async fn a_lapsed_call_that_commits_late_comes_back_with_the_next_look() {
    let world = World::new().await;
    let lapsed = async |key: &'static str, at: DateTime<Utc>| {
        let mut tx = world.begin().await;
        let asked = BUCKET.key(key).lapses_after(MOMENT);
        Limiter::new().at(at).consume(&mut tx, asked).await.unwrap().granted().unwrap();
        tx
    };
    let mut conn = world.connect().await;
    let now: DateTime<Utc> = sqlx::query_scalar("select clock_timestamp()").fetch_one(&mut conn).await.unwrap();
    let late = lapsed("late", now - 59 * SECOND).await;
    lapsed("first", now - 2 * SECOND).await.commit().await.unwrap();
    let sweeping = Sweeper::new().spawn(world.pool.clone(), EVER);
    soon(async { while stored(&mut conn).await > 0 {} }).await;
    late.commit().await.unwrap();
    lapsed("second", now - SECOND).await.commit().await.unwrap();
    // The calls that lapsed first come back first.
    let second = "select count(*) from tollgate.calls where key = 'second'";
    soon(async { while sqlx::query_scalar::<_, i64>(second).fetch_one(&mut conn).await.unwrap() > 0 {} }).await;
    assert_eq!(stored(&mut conn).await, 0);
    assert_eq!(left(&world.pool, BUCKET.key("late")).await, 1_000);
    sweeping.stop().await;
}
