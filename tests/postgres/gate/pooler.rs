//! A gate behind a PgBouncer in transaction mode, which may end connections, and come to its own end, at any time.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection, Executor, PgConnection, PgPool, Row};
use tokio::task::JoinSet;
use tollgate::{Error, Gate, GateBuilder, Limit, MINUTE, OnFailure, SECOND, SetupFault, Source, Tokens};
use tracing::Level;

use crate::gate::batch::crash::Told;
use crate::gate::outage::fallback::Events;
use crate::gate::stage::{EVER, one_connection, pool, soon};
use crate::pgbouncer::{self, PgBouncer};
use crate::world::World;

const DURABLE: Limit = Limit::token_bucket("same name", 100, EVER);
const EPHEMERAL: Limit = Limit::token_bucket("same name", 50, EVER).ephemeral();

/// A gate over so many connections to a pooler.
async fn gate(pooler: &PgBouncer, world: &World, connections: u32) -> Gate {
    let pool = pool(&pooler.url(world.name()), connections).await;
    named(&pool).unnamed_statements().acquire_timeout(2 * SECOND).build()
}

/// A gate that outlasts a busy machine, with named statements unless told otherwise.
fn named(pool: &PgPool) -> GateBuilder {
    Gate::builder(pool.clone()).lock_timeout(MINUTE).statement_timeout(MINUTE).acquire_timeout(MINUTE)
}

/// Two statements without a name that differ in nothing but their table, prepared by turns on one connection: the
/// server executes the caller's own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_gate_prepared_is_never_executed_for_another() {
    if pgbouncer::is_missing() {
        return;
    }
    let world = World::new().await;
    let pooler = PgBouncer::start(&world.direct_url(), 1);
    let mut askers = JoinSet::new();
    for (limit, full) in [(DURABLE, 100), (EPHEMERAL, 50)] {
        let pool = pool(&pooler.url(world.name()), 1).await;
        let gate = named(&pool).unnamed_statements().build();
        askers.spawn(async move {
            for _ in 0..30 {
                gate.consume(limit.key("k")).await.unwrap().granted().unwrap();
                assert_eq!(gate.balance(limit.key("k")).await.unwrap().remaining, Tokens::new(full - 1));
                gate.credit(limit.key("k")).await.unwrap();
                gate.check(limit.key("k").cost(full)).await.unwrap().granted().unwrap();
            }
        });
    }
    soon(askers.join_all()).await;
}

/// Nobody gets a grant that was not written, and nobody is kept waiting.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pooler_that_is_killed_in_mid_call_loses_no_grant_and_no_caller() {
    if pgbouncer::is_missing() {
        return;
    }
    let world = World::new().await;
    let mut pooler = PgBouncer::start(&world.direct_url(), 2);
    let gate = gate(&pooler, &world, 4).await;
    let told = Arc::new(Told::default());
    let mut callers = JoinSet::new();
    for caller in 0..48 {
        callers.spawn(told.clone().ask(gate.clone(), caller));
    }
    for _ in 0..5 {
        told.until_answered(200).await;
        pooler.kill();
        told.until_failed(1).await;
        pooler.restart();
    }
    told.until_answered(200).await;
    told.done.store(true, Ordering::SeqCst);
    soon(callers.join_all()).await;
    told.agrees_with(&mut world.connect().await).await;
}

/// `kill` drops all clients and servers of the database at once, in the middle of any statement.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_the_pooler_ends_lose_no_grant_and_no_caller() {
    if pgbouncer::is_missing() {
        return;
    }
    let world = World::new().await;
    let pooler = PgBouncer::start(&world.direct_url(), 2);
    let gate = gate(&pooler, &world, 4).await;
    let told = Arc::new(Told::default());
    let mut callers = JoinSet::new();
    for caller in 0..32 {
        callers.spawn(told.clone().ask(gate.clone(), caller));
    }
    told.until_answered(200).await;
    for _ in 0..10 {
        pooler.command("reconnect").await;
        told.until_answered(20).await;
    }
    for _ in 0..5 {
        pooler.command(&format!("kill {}", world.name())).await;
        pooler.command(&format!("resume {}", world.name())).await;
        told.until_answered(50).await;
    }
    assert!(told.errors.load(Ordering::SeqCst) > 0);
    told.done.store(true, Ordering::SeqCst);
    soon(callers.join_all()).await;
    told.agrees_with(&mut world.connect().await).await;
}

/// Until the gate is built with `unnamed_statements()`, the error of each caller names it, under any policy for
/// outages.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gate_with_named_statements_says_what_to_do() {
    if pgbouncer::is_missing() {
        return;
    }
    let world = World::new().await;
    let pooler = PgBouncer::start(&world.direct_url(), 1);
    let url = pooler.url(world.name());
    let (first, second) = (pool(&url, 1).await, pool(&url, 1).await);
    named(&first).build().consume(DURABLE.key("k")).await.unwrap().granted().unwrap();
    let error = soon(named(&second).build().consume(DURABLE.key("k"))).await.unwrap_err();
    assert!(matches!(error, Error::Setup { fault: SetupFault::NamedStatements, .. }), "{error:?}");
    assert!(error.to_string().contains("(say `unnamed_statements()`"), "{error}");
    // Its connection never prepared a statement that worked: each try takes another name.
    second.close().await;
    take_first_name(&url).await;
    let third = pool(&url, 1).await;
    let open = named(&third).on_failure(OnFailure::Open).build();
    let error = soon(open.consume(DURABLE.key("k"))).await.unwrap_err();
    assert!(matches!(error, Error::Setup { fault: SetupFault::NamedStatements, .. }), "{error:?}");
    let unnamed = named(&third).unnamed_statements().build();
    let grant = soon(unnamed.consume(DURABLE.key("k"))).await.unwrap().granted().unwrap();
    assert_eq!((grant.source, grant.remaining), (Source::Database, Tokens::new(98)));
}

/// Many set the driver's cache to none for a pooler. Then each call leaves a statement in the server, and a warning
/// says so once.
#[tokio::test]
async fn a_driver_that_keeps_no_statement_is_told_of_and_leaves_none_without_names() {
    let world = World::new().await;
    let options = world.direct_url().parse::<PgConnectOptions>().unwrap().statement_cache_capacity(0);
    let pool = one_connection(options).await;
    let left = async || {
        let sql = sqlx::raw_sql("select count(*) from pg_prepared_statements where name <> ''");
        pool.fetch_one(sql).await.unwrap().get::<i64, _>(0)
    };
    let events = Events::default();
    let _heard = tracing::subscriber::set_default(events.clone());
    let told = || {
        let events = events.0.lock().unwrap();
        events.iter().filter(|(level, said)| *level == Level::WARN && said.contains("unnamed_statements()")).count()
    };
    let gate = named(&pool).unnamed_statements().build();
    for _ in 0..3 {
        gate.consume(DURABLE.key("k")).await.unwrap().granted().unwrap();
    }
    assert_eq!((left().await, told()), (0, 0));
    let gate = named(&pool).build();
    for _ in 0..3 {
        gate.consume(DURABLE.key("k")).await.unwrap().granted().unwrap();
    }
    assert!(left().await > 3, "this version of the driver closes them: nobody needs to be told");
    assert_eq!(told(), 1);
}

/// Sees to it that the pooler's server has a statement by the first name that a client gives. A client that left early
/// may have cost the pooler its server, and a new one has none.
async fn take_first_name(url: &str) {
    let mut conn = PgConnection::connect(url).await.unwrap();
    // It fails where there is one.
    let _ = sqlx::query("select 1").execute(&mut conn).await;
    conn.ping().await.unwrap();
    conn.close().await.unwrap();
}
