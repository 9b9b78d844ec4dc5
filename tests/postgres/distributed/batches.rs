//! The batches of a gate: those of one part do not wait for those of another.

use sqlx::{Connection, PgPool};
use tollgate::{Gate, Limit, SECOND};

use super::{apart, fill};
use crate::gate::stage::{EVER, patient, pool, soon};
use crate::world::{PARTS, World, part_of};

const LIMIT: Limit = Limit::token_bucket("ten", 10, EVER);

/// A batch takes two statements for the calls of one part, however many parts others ask.
#[tokio::test]
async fn a_batch_of_a_gate_is_about_one_part() {
    let (world, pool, gate, keys) = stalled(1).await;
    let mut admin = world.admin().await;
    let mut blocker = admin.begin().await.unwrap();
    sqlx::raw_sql("lock table public.stall").execute(&mut *blocker).await.unwrap();

    // All are queued before the lane gets its connection.
    let connection = pool.acquire().await.unwrap();
    let [first, stalled, short, last] = [(0, 1), (1, 6), (1, 5), (0, 1)].map(|(key, cost)| {
        let (gate, ask) = (gate.clone(), LIMIT.key(&keys[key]).cost(cost));
        tokio::spawn(async move { gate.consume(ask).await })
    });
    tokio::task::yield_now().await;
    drop(connection);
    for done in [first, last] {
        soon(done).await.unwrap().unwrap().granted().unwrap();
    }
    blocker.commit().await.unwrap();
    // They are served in the order in which they came.
    soon(stalled).await.unwrap().unwrap().granted().unwrap();
    soon(short).await.unwrap().unwrap().denied().unwrap();
}

/// Each of their batches is a transaction of several nodes.
#[tokio::test]
async fn nobody_waits_for_calls_over_several_parts() {
    let (world, _pool, gate, keys) = stalled(2).await;
    let mut admin = world.admin().await;
    let mut blocker = admin.begin().await.unwrap();
    sqlx::raw_sql("lock table public.stall").execute(&mut *blocker).await.unwrap();

    let (crossing, asks) = (gate.clone(), [LIMIT.key(&keys[0]), LIMIT.key(&keys[1])]);
    let stalled = tokio::spawn(async move { crossing.consume(asks).await });
    world.until_anyone_is_blocked().await;
    soon(gate.consume(LIMIT.key(&keys[2]))).await.unwrap().granted().unwrap();
    blocker.commit().await.unwrap();
    soon(stalled).await.unwrap().unwrap().granted().unwrap();
}

/// A gate over so many connections, and keys in parts of their own. The second one's part is stalled.
async fn stalled(connections: u32) -> (World, PgPool, Gate, Vec<String>) {
    let world = World::of_parts(PARTS).await;
    let pool = pool(&world.url(), connections).await;
    let gate = patient(&pool).parts(PARTS).lanes(1).statement_timeout(10 * SECOND).build();
    let keys = apart();
    for key in &keys[..2] {
        fill(&world, &LIMIT, key).await;
    }
    stall_part_of(&world, &keys[1]).await;
    (world, pool, gate, keys)
}

/// Stops every update of a row in the part of a key until nobody locks the table `stall`, under any lock timeout.
async fn stall_part_of(world: &World, key: &str) {
    let stall = "create table public.stall ();
                 create function stall() returns trigger language plpgsql security definer as
                 $$ begin perform set_config('lock_timeout', '0', true); lock table public.stall; return new; end $$;
                 create trigger stall before update on tollgate.durable for each row when (new.part = {part})
                 execute function stall()";
    world.sql(&stall.replace("{part}", &part_of(key).to_string())).await;
}
