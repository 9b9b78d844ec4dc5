//! The network swallows everything, or a connection is cut off: a caller that nobody answers hears of it soon.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use futures_util::future::join_all;
use sqlx::PgPool;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions, PgSslMode};
use tokio::time::timeout;
use tollgate::{Decision, Error, Gate, GateBuilder, Limit, MINUTE, OnFailure, SECOND, Source, Tokens};

use crate::gate::stage::{EVER, patient, soon};
use crate::proxy::Proxy;
use crate::world::World;

const LIMIT: Limit = Limit::token_bucket("many", 1_000_000, EVER);
const THREE: Limit = Limit::token_bucket("three", 3, EVER);
const FAST: Limit = Limit::token_bucket("fast", 1_000_000, SECOND);
const SLOTS: Limit = Limit::concurrency("slots", 3, MINUTE);

/// A pool of four connections through the proxy, which it has all opened.
async fn pool(proxy: &Proxy) -> PgPool {
    let pool = PgPoolOptions::new().max_connections(4).acquire_timeout(5 * MINUTE);
    let pool = pool.connect_with(proxy.options()).await.unwrap();
    drop(join_all((0..4).map(|_| pool.acquire())).await);
    soon(async {
        while pool.num_idle() < 4 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    pool
}

/// A gate that waits five seconds for an answer, as by default.
fn gate(pool: &PgPool, policy: OnFailure) -> GateBuilder {
    patient(pool).statement_timeout(5 * SECOND).acquire_timeout(5 * SECOND).on_failure(policy)
}

/// Many calls one after another, of which none may wait for a server that is known to be silent.
async fn at_once<T>(calls: impl Future<Output = T>) -> T {
    timeout(MINUTE, calls).await.expect("each of them waits")
}

fn is_degraded(decision: &Decision) -> bool {
    matches!(decision, Decision::Granted(grant) if grant.source == Source::Degraded)
}

/// Until the database answers again; nothing that was swallowed comes back. Tries without a pause, and so does not
/// leave the runtime to others by itself.
async fn until_back(gate: &Gate) {
    soon(async {
        loop {
            match gate.consume(LIMIT.key("back")).await {
                Ok(Decision::Granted(grant)) if grant.source == Source::Database => return,
                _ => {}
            }
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn once_the_network_is_known_to_be_silent_the_policy_answers_at_once_until_it_is_back() {
    let world = World::new().await;
    let proxy = Proxy::new(&world.direct_url());
    for lanes in [1, 4] {
        let pool = pool(&proxy).await;
        let open = gate(&pool, OnFailure::Open).lanes(lanes).build();
        open.consume(LIMIT.key("k")).await.unwrap().granted().unwrap();
        proxy.swallow();
        // In every lane, at the same time.
        for decision in soon(join_all((0..40).map(|key| open.consume(LIMIT.key(key))))).await {
            assert!(is_degraded(&decision.unwrap()));
        }
        let sent = proxy.sent();
        at_once(async {
            for key in 0..100 {
                assert!(is_degraded(&open.consume(LIMIT.key(key)).await.unwrap()));
                assert!(is_degraded(&open.wait(LIMIT.key(key), MINUTE).await.unwrap()));
                assert!(is_degraded(&open.check([LIMIT.key(key), THREE.key(key)]).await.unwrap()));
                let lease = open.acquire(SLOTS.key(key)).await.unwrap().granted().unwrap();
                assert_eq!(lease.grant().source, Source::Degraded);
                let stream = open.stream([LIMIT.key(key)]).await.unwrap().granted().unwrap();
                assert_eq!(stream.grant().source, Source::Degraded);
                for closed in [open.credit(LIMIT.key(key)).await, open.debit(LIMIT.key(key)).await] {
                    assert!(
                        matches!(&closed, Err(error @ Error::Database { .. }) if error.is_retryable()),
                        "{closed:?}"
                    );
                }
            }
        })
        .await;
        assert_eq!(proxy.sent(), sent, "nothing is asked meanwhile, but whether somebody is there");
        proxy.pass_on();
        until_back(&open).await;
        let left = open.balance(LIMIT.key("k")).await.unwrap().remaining;
        assert!(left >= Tokens::new(999_998), "nothing was charged but the first of each gate: {left}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_policy_callers_of_a_silent_server_get_the_error_at_once() {
    let world = World::new().await;
    let proxy = Proxy::new(&world.direct_url());
    let pool = pool(&proxy).await;
    let closed = gate(&pool, OnFailure::Closed).build();
    let receipt = closed.consume(LIMIT.key("k")).await.unwrap().granted().unwrap().receipt;
    proxy.swallow();
    soon(closed.consume(LIMIT.key("k"))).await.unwrap_err();
    at_once(async {
        for key in 0..100 {
            let errors = [
                closed.consume(LIMIT.key(key)).await.map(drop),
                closed.reserve(LIMIT.key(key)).await.map(drop),
                closed.balance(LIMIT.key(key)).await.map(drop),
                closed.settle(receipt.clone(), 0).await.map(drop),
            ];
            for error in errors {
                let Err(error) = error else { panic!("nobody answered") };
                assert!(matches!(&error, Error::Database { limit: Some(limit), .. } if limit == "many"), "{error:?}");
                assert!(error.is_retryable(), "{error:?}");
            }
        }
    })
    .await;
    proxy.pass_on();
    until_back(&closed).await;
    closed.settle(receipt, 0).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn local_buckets_limit_while_the_network_is_silent() {
    let world = World::new().await;
    let proxy = Proxy::new(&world.direct_url());
    let pool = pool(&proxy).await;
    let local = gate(&pool, OnFailure::Local(1.0)).build();
    local.consume(THREE.key("k")).await.unwrap().granted().unwrap();
    proxy.swallow();
    let mut granted = 0;
    at_once(async {
        for _ in 0..100 {
            granted += u32::from(local.consume(THREE.key("k")).await.unwrap().is_granted());
        }
    })
    .await;
    assert_eq!(granted, 3);
    proxy.pass_on();
    until_back(&local).await;
    assert!(local.balance(THREE.key("k")).await.unwrap().remaining >= Tokens::new(2), "memory charges nothing");
}

/// Also with tokens that it took ahead and cannot give back, and with leases that it cannot release.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gate_can_be_closed_while_the_network_is_silent() {
    let world = World::new().await;
    let proxy = Proxy::new(&world.direct_url());
    let pool = pool(&proxy).await;
    let open = gate(&pool, OnFailure::Open).prefetch(MINUTE).build();
    soon(async {
        while open.prefetched(&FAST.key("k")) == Tokens::ZERO {
            open.consume(FAST.key("k")).await.unwrap().granted().unwrap();
        }
    })
    .await;
    proxy.swallow();
    assert!(is_degraded(&soon(open.consume(LIMIT.key("other"))).await.unwrap()));
    // Tokens that were charged ahead are still spent.
    assert_eq!(open.consume(FAST.key("k")).await.unwrap().granted().unwrap().source, Source::Prefetched);
    timeout(2 * MINUTE, open.close()).await.unwrap();
    assert!(is_degraded(&soon(open.consume(FAST.key("k"))).await.unwrap()));
}

/// The pool asks its idle connections whether they are alive, and nobody answers: a new one works.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_connections_that_are_cut_off_cost_nobody_an_error() {
    let world = World::new().await;
    let proxy = Proxy::new(&world.direct_url());
    let pool = pool(&proxy).await;
    for policy in [OnFailure::Closed, OnFailure::Open] {
        let gate = gate(&pool, policy).build();
        gate.consume(LIMIT.key("k")).await.unwrap().granted().unwrap();
        soon(async { while pool.num_idle() < pool.size() as usize {} }).await;
        proxy.strand();
        let grant = soon(gate.consume(LIMIT.key("k"))).await.unwrap().granted().unwrap();
        assert_eq!(grant.source, Source::Database);
    }
}

/// The host application holds them all, and some of them lie idle from time to time: still a crowd.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_at_the_pool_is_no_silence() {
    let world = World::new().await;
    let proxy = Proxy::new(&world.direct_url());
    let pool = pool(&proxy).await;
    let gate = gate(&pool, OnFailure::Open).acquire_timeout(SECOND).build();
    let held = join_all((0..4).map(|_| pool.acquire())).await;
    for _ in 0..3 {
        let crowded = soon(gate.consume(LIMIT.key("k"))).await;
        assert!(matches!(crowded, Err(Error::PoolExhausted { .. })), "{crowded:?}");
    }
    drop(held);
    until_back(&gate).await;
}

/// One table is locked, and the server is silent about it: a caller of another table gets the server's answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_busy_with_one_table_answers_those_who_ask_another() {
    let world = World::new().await;
    let proxy = Proxy::new(&world.direct_url());
    let pool = pool(&proxy).await;
    let open = gate(&pool, OnFailure::Open).lanes(2).statement_timeout(SECOND).build();
    let mut admin = world.admin().await;
    let mut locked = sqlx::Connection::begin(&mut admin).await.unwrap();
    sqlx::query("lock table tollgate.durable in access exclusive mode").execute(&mut *locked).await.unwrap();
    // The lane of this key is the one of the two that waits.
    assert!(is_degraded(&soon(open.consume(LIMIT.key("k"))).await.unwrap()));
    let fast = LIMIT.ephemeral();
    let by_the_server = soon(join_all((0..16).map(|key| open.consume(fast.key(key))))).await;
    let by_the_server = by_the_server
        .into_iter()
        .filter(|decision| matches!(decision, Ok(Decision::Granted(grant)) if grant.source == Source::Database));
    assert!(by_the_server.count() > 0);
    locked.rollback().await.unwrap();
    until_back(&open).await;
}

/// While nobody answers, few connections are tried, for any number of callers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_server_is_asked_by_few() {
    let world = World::new().await;
    let proxy = Proxy::new(&world.direct_url());
    let pool = pool(&proxy).await;
    let open = gate(&pool, OnFailure::Open).lanes(4).build();
    proxy.swallow();
    soon(join_all((0..40).map(|key| open.consume(LIMIT.key(key))))).await;
    let (before, started) = (proxy.connections(), tokio::time::Instant::now());
    for _ in 0..100 {
        at_once(join_all((0..40).map(|key| open.consume(LIMIT.key(key))))).await;
    }
    // A brief one each half second, and a patient one beside it.
    let most = 8 + 4 * started.elapsed().as_secs();
    assert!(proxy.connections() - before <= most, "{} connections", proxy.connections() - before);
    proxy.pass_on();
    until_back(&open).await;
}

/// A gate asks such a server twice a second or so, however many callers there are.
#[tokio::test]
async fn a_server_that_accepts_and_closes_at_once_is_left_in_peace() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (port, tries) = (listener.local_addr().unwrap().port(), Arc::new(AtomicU32::new(0)));
    tokio::spawn({
        let tries = tries.clone();
        async move {
            while listener.accept().await.is_ok() {
                tries.fetch_add(1, Ordering::SeqCst);
            }
        }
    });
    let options = PgConnectOptions::new().host("127.0.0.1").port(port).ssl_mode(PgSslMode::Disable);
    let pool = PgPoolOptions::new().max_connections(4).acquire_timeout(MINUTE).connect_lazy_with(options);
    let gate = patient(&pool).on_failure(OnFailure::Open).build();
    for _ in 0..2_000 {
        let grant = soon(gate.consume(LIMIT.key("k"))).await.unwrap().granted().unwrap();
        assert_eq!(grant.source, Source::Degraded);
    }
    let tries = tries.load(Ordering::SeqCst);
    assert!(tries < 200, "{tries} tries for 2000 calls");
}
