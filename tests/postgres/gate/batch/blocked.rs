//! Rows that somebody else's transaction locks: callers of other rows do not wait for them.

use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio::task::{JoinHandle, JoinSet};
use tollgate::{Call, Decision, Error, Gate, Limit, OnFailure, Request, Tokens, migrate};
use tollgate_embedded::Server;

use crate::gate::stage::{EVER, one_connection, patient, pool, soon};
use crate::proxy::Proxy;
use crate::world::World;

const LIMIT: Limit = Limit::stepped_bucket("hot", 1_000_000, EVER);

/// Begins a transaction, in which it locks the rows of some keys.
async fn lock(world: &World, keys: &str) -> PgConnection {
    lock_on(world.connect().await, keys).await
}

async fn lock_on(mut holder: PgConnection, keys: &str) -> PgConnection {
    for sql in ["begin".to_owned(), format!("select from tollgate.durable where key like '{keys}' for update")] {
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut holder).await.unwrap();
    }
    holder
}

async fn unlock(mut holder: PgConnection) {
    sqlx::raw_sql("commit").execute(&mut holder).await.unwrap();
}

fn ask(gate: &Gate, request: Request) -> JoinHandle<Result<Decision, Error>> {
    let gate = gate.clone();
    tokio::spawn(async move { soon(gate.consume(request)).await })
}

/// Also over a pool of one connection, which nobody keeps while they wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_of_other_rows_go_on_while_rows_are_locked() {
    let world = World::new().await;
    for connections in [1, 4] {
        let gate = patient(&pool(&world.url(), connections).await).build();
        for key in 0..40 {
            gate.consume(LIMIT.key(key)).await.unwrap().granted().unwrap();
        }
        let holder = lock(&world, "_").await;
        let blocked: Vec<_> = (0..10).map(|key| ask(&gate, LIMIT.key(key))).collect();
        world.until_anyone_is_blocked().await;
        let mut others = JoinSet::new();
        for key in 10..40 {
            let gate = gate.clone();
            others.spawn(async move {
                for _ in 0..20 {
                    soon(gate.consume(LIMIT.key(key))).await.unwrap().granted().unwrap();
                }
            });
        }
        others.join_all().await;
        assert!(blocked.iter().all(|call| !call.is_finished()));
        unlock(holder).await;
        for call in blocked {
            call.await.unwrap().unwrap().granted().unwrap();
        }
        for key in 0..10 {
            let limit = LIMIT.key(key);
            let reset = gate.reset(limit.clone()).await.unwrap();
            assert_eq!(reset.remaining, Tokens::new(1_000_000));
        }
    }
}

/// A row that another gate writes is tried again, and the server's log has no error of that.
#[tokio::test]
async fn a_row_that_is_locked_for_a_moment_leaves_no_error_in_the_servers_log() {
    let server = Server::start().unwrap();
    migrate::run(&mut PgConnection::connect(server.url()).await.unwrap()).await.unwrap();
    let proxy = Proxy::new(server.url());
    let gate = patient(&one_connection(proxy.options()).await).build();
    gate.consume(LIMIT.key("k")).await.unwrap().granted().unwrap();
    let holder = lock_on(PgConnection::connect(server.url()).await.unwrap(), "k").await;
    // It reads, fails to swap, begins, and fails to lock.
    proxy.hold_after(4);
    let call = ask(&gate, LIMIT.key("k"));
    proxy.until_held().await;
    unlock(holder).await;
    proxy.release();
    assert_eq!(call.await.unwrap().unwrap().granted().unwrap().remaining, Tokens::new(999_998));
    assert!(!server.log().contains("ERROR"), "{}", server.log());
}

/// The callers of a locked row are served in the order in which they came.
#[tokio::test]
async fn who_comes_later_for_a_locked_row_queues_behind_those_who_wait() {
    let world = World::new().await;
    let gate = patient(&pool(&world.url(), 2).await).build();
    let limit = Limit::stepped_bucket("three", 3, EVER);
    gate.consume(limit.key("k")).await.unwrap().granted().unwrap();
    let holder = lock(&world, "k").await;
    let mut calls = Vec::new();
    for _ in 0..4 {
        calls.push(ask(&gate, limit.key("k")));
        world.until_anyone_is_blocked().await;
        // Its batch has ended: what another asks meanwhile is answered.
        gate.consume(LIMIT.key("fence")).await.unwrap().granted().unwrap();
    }
    unlock(holder).await;
    let mut granted = Vec::new();
    for call in calls {
        granted.push(call.await.unwrap().unwrap().is_granted());
    }
    assert_eq!(granted, [true, true, false, false]);
}

/// A refusal that the row proves needs no lock, so it waits for nobody.
#[tokio::test]
async fn a_locked_row_that_is_short_refuses_at_once() {
    let world = World::new().await;
    let gate = patient(&pool(&world.url(), 2).await).build();
    let limit = Limit::stepped_bucket("two", 2, EVER);
    gate.consume(limit.key("k")).await.unwrap().granted().unwrap();
    let holder = lock(&world, "k").await;
    let waiting = ask(&gate, limit.key("k"));
    world.until_anyone_is_blocked().await;
    for _ in 0..3 {
        assert!(!soon(gate.consume(limit.key("k").cost(2))).await.unwrap().is_granted());
    }
    assert!(!waiting.is_finished());
    unlock(holder).await;
    waiting.await.unwrap().unwrap().granted().unwrap();
}

/// A crowd on a locked row is no reason to take the database for one that is away.
#[tokio::test]
async fn waits_that_take_longer_than_a_statement_may_are_busy_and_open_no_gate() {
    let world = World::new().await;
    let pool = pool(&world.url(), 2).await;
    for key in ["locked", "other"] {
        soon(patient(&pool).build().consume(LIMIT.key(key))).await.unwrap().granted().unwrap();
    }
    let holder = lock(&world, "locked").await;
    let both = [LIMIT.key("locked"), LIMIT.key("other")];
    let mut answers = Vec::new();
    // Where a statement itself takes that long, the gate opens rightly: then longer spans in the same ratio.
    for unit in [200, 1_000, 5_000, 25_000].map(Duration::from_millis) {
        let gate =
            patient(&pool).lock_timeout(3 * unit).statement_timeout(2 * unit).on_failure(OnFailure::Open).build();
        answers.clear();
        for _ in 0..2 {
            let (one, several) = tokio::join!(gate.consume(LIMIT.key("locked")), gate.consume(both.clone()));
            answers.extend([one, several]);
        }
        if answers.iter().all(|answer| matches!(answer, Err(Error::Locked { .. }))) {
            return unlock(holder).await;
        }
    }
    panic!("{answers:?}");
}

/// A caller who gives up while it waits is not charged once the row is free.
#[tokio::test]
async fn who_gives_up_while_a_row_is_locked_takes_nothing() {
    let world = World::new().await;
    let gate = patient(&pool(&world.url(), 2).await).build();
    gate.consume(LIMIT.key("k")).await.unwrap().granted().unwrap();
    let holder = lock(&world, "k").await;
    let given_up = ask(&gate, LIMIT.key("k"));
    world.until_anyone_is_blocked().await;
    let waiting = ask(&gate, LIMIT.key("k"));
    given_up.abort();
    assert!(given_up.await.unwrap_err().is_cancelled());
    unlock(holder).await;
    let remaining = waiting.await.unwrap().unwrap().granted().unwrap().remaining;
    // Unless it was being decided at that very moment.
    assert!([999_997, 999_998].map(Tokens::new).contains(&remaining), "{remaining:?}");
}

/// Two calls of thousands of limits come together, and are two batches.
#[tokio::test]
async fn a_batch_is_bounded_in_rows() {
    let world = World::new().await;
    let proxy = Proxy::new(&world.url());
    let pool = one_connection(proxy.options()).await;
    let gate = patient(&pool).max_keys(5_000).build();
    let fill = "insert into tollgate.durable (part, name, key, shard, value, ts, full_at)
                select 0, 'many', i::text, 0, -1000000, clock_timestamp(), '9999-01-01'
                  from generate_series(1, 5000) i";
    world.sql(fill).await;
    let limit = Limit::stepped_bucket("many", 1, EVER);
    let many = |gate: &Gate| {
        let (gate, limit) = (gate.clone(), limit.clone());
        tokio::spawn(async move { soon(gate.consume((1..=5000).map(|key| limit.key(key)).collect::<Call>())).await })
    };
    let before = proxy.statements();
    proxy.hold_after(0);
    let calls = [many(&gate), many(&gate)];
    proxy.until_held().await;
    proxy.release();
    for call in calls {
        assert!(!call.await.unwrap().unwrap().is_granted());
    }
    assert_eq!(proxy.statements() - before, 2);
}

/// A caller of few rows does not wait for a crowd of callers of many.
#[tokio::test]
async fn bulky_calls_find_no_room_in_the_queue_behind_each_other() {
    let world = World::new().await;
    let proxy = Proxy::new(&world.url());
    let gate = patient(&one_connection(proxy.options()).await).max_keys(6_000).build();
    proxy.hold_after(0);
    let bulky = || gate.consume((0..6_000).map(|key| LIMIT.key(key)).collect::<Call>());
    let (mut first, mut second, mut other) = (pin!(bulky()), pin!(bulky()), pin!(gate.consume(LIMIT.key("other"))));
    let polled = std::future::poll_fn(|context| {
        let many = [first.as_mut().poll(context), second.as_mut().poll(context)];
        Poll::Ready((many, other.as_mut().poll(context)))
    });
    let ([first_now, second_now], other_now) = polled.await;
    assert!(matches!(second_now, Poll::Ready(Err(Error::Overloaded { .. }))), "{second_now:?}");
    assert!(first_now.is_pending() && other_now.is_pending());
    proxy.release();
    let (first, other) = tokio::join!(soon(first), soon(other));
    first.unwrap().granted().unwrap();
    other.unwrap().granted().unwrap();
}

/// The pool asks whether a connection still stands before it takes it back. Where nobody answers, the connection is
/// closed, and its place in the pool is free again.
#[tokio::test]
async fn a_server_that_falls_silent_when_a_connection_is_given_back_keeps_no_place_in_the_pool() {
    let world = World::new().await;
    let proxy = Proxy::new(&world.url());
    let pool = one_connection(proxy.options()).await;
    let gate = patient(&pool).statement_timeout(Duration::from_secs(2)).build();
    patient(&pool).build().consume(LIMIT.key("k")).await.unwrap().granted().unwrap();
    // It is back.
    drop(pool.acquire().await.unwrap());
    soon(async {
        while pool.num_idle() == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    // If a statement takes longer than the gate waits, the test calls once more.
    let granted = async {
        loop {
            proxy.hold_after(2);
            if gate.consume(LIMIT.key("k")).await.is_ok() {
                return;
            }
            proxy.release();
        }
    };
    soon(granted).await;
    proxy.until_held().await;
    soon(async {
        while pool.size() > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    proxy.release();
    soon(async { while gate.consume(LIMIT.key("k")).await.is_err() {} }).await;
}
