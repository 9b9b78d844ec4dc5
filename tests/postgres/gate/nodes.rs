//! Gates that go by node. On plain PostgreSQL there are no nodes, and on Citus all gates of the suite go by node.

mod moves;
mod shards;

use std::collections::HashSet;

use sqlx::postgres::PgPoolOptions;
use sqlx::{Connection, PgConnection};
use tokio::sync::watch;
use tokio::time::Instant;
use tollgate::{Gate, Limit, SECOND, Tokens};

use super::stage::{EVER, patient, soon};
use crate::traced::traced;
use crate::world::{PARTS, SERVICE, World, is_on_citus, nodes};

const LIMIT: Limit = Limit::token_bucket("thousand", 1_000, EVER);

#[tokio::test]
async fn without_parts_the_pool_serves_all() {
    if is_on_citus() {
        return;
    }
    let world = World::new().await;
    let gate = patient(&world.pool).by_node().build();
    gate.consume(LIMIT.key("k")).await.unwrap().granted().unwrap();
    assert_eq!(gate.balance(LIMIT.key("k")).await.unwrap().remaining, Tokens::new(999));
}

/// A table that is locked on the coordinator alone stops all that enters there.
#[tokio::test]
async fn the_coordinator_has_no_share_in_calls_of_one_part() {
    if !is_on_citus() {
        return;
    }
    let world = World::of_parts(PARTS).await;
    let gate = patient(&world.pool).build();
    knows_the_nodes(&gate, &world).await;
    let mut entry = world.admin().await;
    let mut lock = entry.begin().await.unwrap();
    let sql = "set local citus.enable_ddl_propagation = off; lock table tollgate.durable in access exclusive mode";
    sqlx::raw_sql(sql).execute(&mut *lock).await.unwrap();
    for key in 0..40 {
        soon(gate.consume(LIMIT.key(key))).await.unwrap().granted().unwrap();
    }
    lock.rollback().await.unwrap();
}

/// A hook refuses each new connection to a worker, as a firewall would.
#[test]
fn where_a_node_takes_no_connection_the_entry_serves_and_one_event_says_so() {
    if !is_on_citus() {
        return;
    }
    let log = traced(async {
        let world = World::of_parts(PARTS).await;
        let entry: i32 = sqlx::query_scalar(PORT).fetch_one(&world.pool).await.unwrap();
        let refusals = watch::Sender::new(Vec::new());
        let seen = refusals.subscribe();
        let pool = PgPoolOptions::new().acquire_timeout(SECOND).after_connect(move |conn, _| {
            let refusals = refusals.clone();
            Box::pin(async move {
                if sqlx::query_scalar::<_, i32>(PORT).fetch_one(conn).await? == entry {
                    return Ok(());
                }
                refusals.send_modify(|refusals| refusals.push(Instant::now()));
                Err(sqlx::Error::Protocol("refused".to_owned()))
            })
        });
        let pool = pool.connect(&world.url()).await.unwrap();
        let gate = patient(&pool).acquire_timeout(SECOND).build();
        let was_read_twice = |refusals: &[Instant]| match refusals {
            [first, .., last] => *last > *first + 8 * SECOND,
            _ => false,
        };
        soon(async {
            while !was_read_twice(&seen.borrow()) {
                gate.consume(LIMIT.key("k").cost(0)).await.unwrap().granted().unwrap();
            }
        })
        .await;
    });
    // One event for each node, however often the catalogue was read.
    let told: Vec<_> = log.lines().filter(|line| line.contains("cannot connect to a node")).collect();
    let names: HashSet<_> = told.iter().filter_map(|line| line.split_once("node=")).map(|(_, name)| name).collect();
    assert!(!told.is_empty() && told.len() == names.len(), "{told:?}");
}

/// Asks until each node that has parts has answered a call of a gate.
async fn knows_the_nodes(gate: &Gate, world: &World) {
    for mut worker in workers(world).await {
        soon(async {
            loop {
                for key in 0..40 {
                    gate.check(LIMIT.key(key)).await.unwrap().granted().unwrap();
                }
                if is_asked(&mut worker).await {
                    break;
                }
            }
        })
        .await;
    }
}

/// A connection of the test's own to each node that has parts.
pub(crate) async fn workers(world: &World) -> Vec<PgConnection> {
    let mut workers = Vec::new();
    for node in &nodes().await[1..] {
        workers.push(PgConnection::connect_with(&node.clone().database(world.name())).await.unwrap());
    }
    workers
}

/// Whether a gate has looked for rows at that node: it connects there some time before it sends calls.
pub(crate) async fn is_asked(worker: &mut PgConnection) -> bool {
    let sql = "select exists (select from pg_stat_activity where datname = current_database() and usename = $1
                                 and application_name not like 'citus%' and query like '%array_agg(f.value)%')";
    sqlx::query_scalar(sql).bind(SERVICE).fetch_one(worker).await.unwrap()
}

const PORT: &str = "select inet_server_port()";
