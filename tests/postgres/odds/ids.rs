//! Ids that collide, and the order in which they are locked.

use sqlx::Connection;
use tokio::task::JoinSet;
use tollgate::{Call, Error, HOUR, Limit, Limiter, Receipt, Source, Sweeper};

use super::{BUCKET, MOMENT};
use crate::calls::{consume_in, left};
use crate::gate::stage::{EVER, one_connection, patient, pool, soon};
use crate::proxy::Proxy;
use crate::world::World;

/// A full bucket takes no credit, so the two collide in the id alone.
#[tokio::test]
async fn who_loses_the_race_for_an_id_that_changes_no_row_is_told_so() {
    let world = World::new().await;
    let gate = patient(&pool(&world.url(), 3).await).build();
    let ask = || BUCKET.key("k").cost(5).once("payment");
    let mut tx = world.begin().await;
    Limiter::new().credit(&mut tx, ask()).await.unwrap();
    let second = tokio::spawn({
        let mut tx = world.begin().await;
        async move {
            let answer = Limiter::new().credit(&mut tx, ask()).await;
            drop(tx);
            answer
        }
    });
    let by_gate = tokio::spawn({
        let gate = gate.clone();
        async move { gate.credit(ask()).await }
    });
    world.until_anyone_is_blocked().await;
    tx.commit().await.unwrap();
    let by_gate = soon(by_gate).await.unwrap();
    let second = soon(second).await.unwrap();
    assert!(
        by_gate.is_ok() && second.as_ref().is_ok_and(|b| b.source == Source::Repeated)
            || second.as_ref().is_err_and(Error::is_retryable)
    );
}

/// Each of the two takes from a row of its own, so they collide in the id alone.
#[tokio::test]
async fn an_id_in_an_open_transaction_holds_up_nobody_else() {
    let world = World::new().await;
    let sharded = Limit::token_bucket("sharded", 800, EVER).shards(8);
    let gate = patient(&pool(&world.url(), 1).await).build();
    let rows = "insert into tollgate.durable (part, name, key, shard, value, ts, full_at)
                select 0, 'sharded', 'k', n, 0, now(), now() from generate_series(0, 7) n";
    world.sql(rows).await;
    for key in 0..4 {
        gate.consume(BUCKET.key(key)).await.unwrap().granted().unwrap();
    }
    for round in 0..3 {
        let mut tx = world.begin().await;
        Limiter::new().consume(&mut tx, sharded.key("k").once(round)).await.unwrap().granted().unwrap();
        let mut strangers = JoinSet::new();
        let mut repeated = None;
        for key in [0, 1, 4, 2, 3] {
            let gate = gate.clone();
            if key < 4 {
                strangers.spawn(async move { gate.consume(BUCKET.key(key)).await.unwrap().is_granted() });
            } else {
                let asked = sharded.key("k").once(round);
                repeated = Some(tokio::spawn(async move { gate.consume(asked).await.unwrap().granted().unwrap() }));
            }
        }
        // The statement timeout of this gate is a minute.
        assert_eq!(soon(strangers.join_all()).await, [true; 4]);
        tx.commit().await.unwrap();
        assert_eq!(soon(repeated.unwrap()).await.unwrap().source, Source::Repeated);
    }
}

/// A call that waits for a row of a limit holds no id meanwhile, so the holder of the row never waits for that call in
/// turn.
#[tokio::test]
async fn an_id_is_locked_after_the_rows_of_its_limits() {
    let world = World::new().await;
    let pool = pool(&world.url(), 2).await;
    let gate = patient(&pool).build();
    let [org, user] = [Limit::token_bucket("aorg", 1_000, EVER), Limit::token_bucket("zuser", 1_000, EVER)];
    for who in ["reaper", "limiter", "gate"] {
        world.sql("truncate tollgate.durable, tollgate.calls").await;
        let span = if who == "reaper" { MOMENT } else { HOUR };
        let ask = || Call::from([org.global(), user.global()]).once("job").lapses_after(span);
        let receipt = Receipt::from(consume_in(&world.pool, ask()).await);
        let mut held = world.connect().await;
        let mut tx = held.begin().await.unwrap();
        sqlx::query("select from tollgate.durable where name = 'zuser' for update").execute(&mut *tx).await.unwrap();
        // A retry waits for nobody.
        let again = soon(gate.consume(ask())).await.unwrap().granted().unwrap();
        assert_eq!((again.source, consume_in(&world.pool, ask()).await.source), (Source::Repeated, Source::Repeated));
        let settling = tokio::spawn({
            let (gate, pool) = (gate.clone(), pool.clone());
            async move {
                match who {
                    // It gives up soon, and looks again.
                    "reaper" => while Sweeper::new().reap(&pool).await.unwrap() == 0 {},
                    "gate" => drop(gate.settle(receipt, 0).await.unwrap()),
                    _ => {
                        let mut tx = pool.begin().await.unwrap();
                        Limiter::new().settle(&mut tx, receipt, 0).await.unwrap();
                        tx.commit().await.unwrap();
                    }
                }
            }
        });
        soon(lock_the_ids_while_somebody_waits(&world)).await;
        assert!(!settling.is_finished());
        tx.rollback().await.unwrap();
        soon(settling).await.unwrap();
        assert_eq!(left(&world.pool, user.global()).await, 1_000, "{who}");
    }
}

/// The gate's first try waits for no row, but its statement may be slow for another call's sake: here a trigger of that
/// call's row waits.
#[tokio::test]
async fn a_call_of_a_batch_whose_row_is_locked_leaves_its_id_alone() {
    let world = World::new().await;
    let proxy = Proxy::new(&world.url());
    let gate = patient(&one_connection(proxy.options()).await).build();
    let [org, slow, user] = ["aorg", "slow", "zuser"].map(|name| Limit::token_bucket(name, 1_000, EVER));
    let trigger = "create function wait() returns trigger language plpgsql security definer as
                   $$ begin perform pg_catalog.pg_advisory_xact_lock(1::int8); return new; end $$;
                   create trigger wait before update on tollgate.durable for each row when (old.name = 'slow')
                   execute function wait()";
    world.sql(trigger).await;
    consume_in(&world.pool, [slow.global()]).await;
    let job = Call::from([org.global(), user.global()]).once("job").lapses_after(HOUR);
    let receipt = Receipt::from(consume_in(&world.pool, job).await);
    let [mut held, mut admin] = [world.admin().await, world.admin().await];
    let mut tx = held.begin().await.unwrap();
    sqlx::query("select from tollgate.durable where name = 'zuser' for update").execute(&mut *tx).await.unwrap();
    sqlx::query("select pg_catalog.pg_advisory_xact_lock(1::int8)").execute(&mut *tx).await.unwrap();
    proxy.hold_after(0);
    let [settling, consuming] = [gate.clone(), gate.clone()];
    let settling = tokio::spawn(async move { settling.settle(receipt, 0).await.unwrap() });
    let consuming = tokio::spawn(async move { consuming.consume(slow.global()).await.unwrap() });
    soon(proxy.until_held()).await;
    proxy.release();
    soon(world.until_anyone_is_blocked()).await;
    let ids: Vec<String> =
        sqlx::query_scalar("select id from tollgate.calls for update nowait").fetch_all(&mut admin).await.unwrap();
    assert_eq!(ids, ["job"]);
    tx.rollback().await.unwrap();
    soon(consuming).await.unwrap().granted().unwrap();
    soon(settling).await.unwrap();
    assert_eq!(left(&world.pool, user.global()).await, 1_000);
}

/// Returns once all ids could be locked in the middle of a statement that waits for a lock.
async fn lock_the_ids_while_somebody_waits(world: &World) {
    let mut admin = world.admin().await;
    let waits = "select pid || ' since ' || query_start from pg_stat_activity
                  where datname = current_database() and wait_event_type = 'Lock'";
    let (mut before, mut after) = (Vec::<String>::new(), Vec::new());
    while !before.iter().any(|waits| after.contains(waits)) {
        before = sqlx::query_scalar(waits).fetch_all(&mut admin).await.unwrap();
        let ids = "select id from tollgate.calls for update nowait";
        let ids: Vec<String> = sqlx::query_scalar(ids).fetch_all(&mut admin).await.unwrap();
        assert_eq!(ids.len(), 1);
        after = sqlx::query_scalar(waits).fetch_all(&mut admin).await.unwrap();
    }
}
