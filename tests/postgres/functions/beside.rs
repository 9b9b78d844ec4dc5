//! Functions beside joined limiters and gates, on the same rows at the same time.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use sqlx::PgConnection;
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tollgate::{HOUR, Limit};

use super::asked::one;
use super::{define, fails, owner};
use crate::gate::stage::{EVER, soon};
use crate::teller::run;
use crate::world::{World, limiter};

/// The scene in which a check that selects, and then updates, lets all pass.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_twenty_five_callers_at_once_ten_are_granted() {
    let world = World::new().await;
    let start = Arc::new(Barrier::new(25));
    let limits = [
        Limit::token_bucket("drips", 10, EVER),
        Limit::fixed_window("window", 10, EVER).ephemeral(),
        Limit::stepped_bucket("steps", 10, EVER),
    ];
    for limit in &limits {
        define(&mut owner(&world).await, limit).await;
    }
    let mut callers = JoinSet::new();
    for _ in 0..25 {
        let (mut conn, start) = (owner(&world).await, start.clone());
        callers.spawn(async move {
            let mut granted = Vec::new();
            for sql in [
                "select granted from tollgate.consume('drips', 'k')",
                "select granted from tollgate.consume('window', 'k')",
                "select granted from tollgate.consume_all(array[tollgate.request('steps', 'k')])",
            ] {
                start.wait().await;
                granted.push(sqlx::query_scalar::<_, bool>(sql).fetch_one(&mut conn).await.unwrap());
            }
            granted
        });
    }
    let granted = soon(callers.join_all()).await;
    for which in 0..limits.len() {
        assert_eq!(granted.iter().filter(|granted| granted[which]).count(), 10, "{:?}", limits[which]);
    }
}

/// A window's row stands at the start of its step, so nothing but the clock dates the refusal.
#[tokio::test]
async fn a_refusal_is_dated_after_the_grant_that_causes_it() {
    let world = World::new().await;
    let (mut conn, mut blocker) = (owner(&world).await, owner(&world).await);
    let limit = Limit::fixed_window("window", 1, EVER);
    define(&mut conn, &limit).await;
    // A session locks the tables of a statement earlier when it plans the statement for the first time.
    run(&mut conn, "select tollgate.consume('window', 'other')").await;
    run(&mut blocker, "begin; lock table tollgate.limits in access exclusive mode").await;
    let pid = crate::world::pid(&mut conn).await;
    let asking = async {
        let sql = "select decided_at from tollgate.consume('window', 'k') where not granted";
        sqlx::query_scalar::<_, DateTime<Utc>>(sql).fetch_one(&mut conn).await.unwrap()
    };
    let granting = async {
        world.until_blocked(pid).await;
        let mut tx = world.pool.begin().await.unwrap();
        let grant = limiter().consume(&mut tx, limit.key("k")).await.unwrap().granted().unwrap();
        tx.commit().await.unwrap();
        run(&mut blocker, "commit").await;
        grant.decided_at
    };
    let (refused_at, granted_at) = soon(Box::pin(async { tokio::join!(asking, granting) })).await;
    assert!(refused_at > granted_at, "refused at {refused_at} by what was granted at {granted_at}");
}

/// The call sees a row with a token left, and waits for it. Meanwhile the row is emptied.
#[tokio::test]
async fn one_that_waited_is_refused_after_the_grant_that_causes_it() {
    let world = World::new().await;
    let (mut conn, mut other) = (owner(&world).await, owner(&world).await);
    define(&mut conn, &Limit::fixed_window("window", 2, EVER)).await;
    run(&mut conn, "select tollgate.consume('window', 'k')").await;
    run(&mut other, "begin; select from tollgate.durable for update").await;
    refuse_after_a_grant(&world, conn, "consume('window', 'k')", other, "consume('window', 'k')").await;
}

/// The request without a cost waits for its row, and meanwhile the next row is emptied.
#[tokio::test]
async fn several_that_waited_are_refused_after_the_grant_that_causes_it() {
    let world = World::new().await;
    let (mut conn, mut other) = (owner(&world).await, owner(&world).await);
    for name in ["first", "second"] {
        define(&mut conn, &Limit::fixed_window(name, 1, EVER)).await;
    }
    run(&mut conn, "select tollgate.consume('first', 'k')").await;
    run(&mut other, "begin; select tollgate.reset('first', 'k')").await;
    let both = "consume_all(array[tollgate.request('first', 'k', 0), tollgate.request('second', 'k')])";
    refuse_after_a_grant(&world, conn, both, other, "consume('second', 'k')").await;
}

/// Makes a call, and a grant while the call waits for the other's transaction. The call is refused, and dated later.
async fn refuse_after_a_grant(world: &World, mut conn: PgConnection, ask: &str, mut other: PgConnection, grant: &str) {
    let pid = crate::world::pid(&mut conn).await;
    let ask = format!("select decided_at from tollgate.{ask} where not granted");
    let grant = format!("select decided_at from tollgate.{grant} where granted");
    let granting = async {
        world.until_blocked(pid).await;
        let granted_at = one(&mut other, &grant).await;
        run(&mut other, "commit").await;
        granted_at
    };
    let both = async { tokio::join!(one(&mut conn, &ask), granting) };
    let (refused_at, granted_at): (DateTime<Utc>, DateTime<Utc>) = soon(Box::pin(both)).await;
    assert!(refused_at > granted_at, "refused at {refused_at} by what was granted at {granted_at}");
}

/// A charge that became ready while its cancellation waited is not given back.
#[tokio::test]
async fn a_cancellation_reads_the_clock_after_its_wait() {
    let world = World::with_clock().await;
    let (mut conn, mut other) = (owner(&world).await, owner(&world).await);
    define(&mut conn, &Limit::token_bucket("ten", 10, EVER)).await;
    run(&mut conn, "create temporary table charged as select decided_at from tollgate.consume('ten', 'k', 4)").await;
    run(&mut other, "begin; select from tollgate.durable for update").await;
    let pid = crate::world::pid(&mut conn).await;
    let cancelling = fails(
        &mut conn,
        "select tollgate.cancel('ten', 'k', 4, decided_at, decided_at + interval '1 minute')::text from charged",
    );
    let waiting = async {
        world.until_blocked(pid).await;
        world.set_ahead("1 hour").await;
        run(&mut other, "commit").await;
    };
    let (code, ()) = soon(Box::pin(async { tokio::join!(cancelling, waiting) })).await;
    assert_eq!(code, "TG010");
}

/// One row stands in a step to come. By its instant the other would give back the tokens that it has refilled since.
#[tokio::test]
async fn where_the_clock_went_back_no_window_gives_back_what_it_refilled() {
    let world = World::with_clock().await;
    let mut conn = owner(&world).await;
    let limits = ["first", "second"].map(|name| Limit::fixed_window(name, 10, HOUR).start(Duration::ZERO));
    for limit in &limits {
        define(&mut conn, limit).await;
    }
    // Buckets are decided by another way.
    for bucket in ["third", "fourth"] {
        define(&mut conn, &Limit::token_bucket(bucket, 10, HOUR)).await;
    }
    world.set_ahead("1 day").await;
    run(&mut conn, "select tollgate.consume('third', 'k')").await;
    world.set_ahead("0").await;
    run(&mut conn, "select tollgate.consume('fourth', 'k')").await;
    let both = "select decided_at - clock_timestamp() < interval '1 hour'
                  from tollgate.consume_all(array[tollgate.request('third', 'k'), tollgate.request('fourth', 'k')])";
    assert!(one::<bool>(&mut conn, both).await);
    for by in ["function", "limiter"] {
        world.set_ahead("1 day").await;
        run(&mut conn, &format!("select tollgate.consume('second', '{by}')")).await;
        world.set_ahead("0").await;
        let now = one::<DateTime<Utc>>(&mut conn, "select clock_timestamp()").await;
        let decided_at = if by == "function" {
            let both = "select decided_at from tollgate.consume_all(array[tollgate.request('first', 'function', 10),
                                                                          tollgate.request('second', 'function', 4)])";
            one(&mut conn, both).await
        } else {
            let mut tx = world.pool.begin().await.unwrap();
            let requests = [limits[0].key(by).cost(10), limits[1].key(by).cost(4)];
            let decision = limiter().consume(&mut tx, requests).await.unwrap();
            tx.commit().await.unwrap();
            decision.granted().unwrap().decided_at
        };
        assert!(decided_at - now < TimeDelta::hours(12), "{decided_at} by the {by}, at {now}");
        world.set_ahead("2 hours").await;
        for (sql, told) in [
            (format!("select granted::text from tollgate.consume('first', '{by}', 10)"), "true"),
            (format!("select tollgate.settle('first', '{by}', 10, 0, '{decided_at}')::text"), "10.000000"),
            (format!("select tollgate.settle('second', '{by}', 4, 0, '{decided_at}')::text"), "4.000000"),
            (format!("select granted::text from tollgate.consume('first', '{by}')"), "false"),
        ] {
            assert_eq!(one::<String>(&mut conn, &sql).await, told, "{sql}");
        }
    }
}

/// In English `a` comes before `B`; by bytes, as the library locks, after it.
#[tokio::test]
async fn rows_are_locked_by_bytes_whatever_the_language_of_the_database() {
    let Some(world) = World::in_english().await else { return };
    let (mut one, mut other, mut third) = (owner(&world).await, owner(&world).await, owner(&world).await);
    for (first, second) in [("'B', 'k'", "'a', 'k'"), ("'B', 'B'", "'B', 'a'")] {
        for name in ["a", "B"] {
            define(&mut one, &Limit::token_bucket(name, 10, EVER)).await;
        }
        let both = format!("select tollgate.consume_all(array[tollgate.request({second}), tollgate.request({first})])");
        run(&mut one, &both).await;
        run(&mut one, &format!("begin; select tollgate.consume({first})")).await;
        let pid = crate::world::pid(&mut other).await;
        let looking = async {
            world.until_blocked(pid).await;
            let free = format!("select from tollgate.durable where (name, key) = ({second}) for update nowait");
            run(&mut third, &free).await;
            run(&mut one, "commit").await;
        };
        soon(Box::pin(async { tokio::join!(run(&mut other, &both), looking) })).await;
    }
}
