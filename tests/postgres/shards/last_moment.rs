//! A shard that somebody else changes in the last moment: after the statement that takes from it has looked, and before
//! it locks.

use sqlx::{Connection, PgConnection};
use tollgate::{Decision, Error, Limit};

use super::stage::{EVER, put, shards, share};
use crate::gate::stage::soon;
use crate::proxy::Proxy;
use crate::teller::run;
use crate::world::{World, limiter, pid, second};

const ONE: i64 = 1_000_000;

/// A caller whose statements look at the rows, and go on only once nobody else has the lock that stands for the last
/// moment. They wait for that lock where they ask whether row security hides rows.
struct Stage {
    world: World,
    proxy: Proxy,
    caller: PgConnection,
    others: PgConnection,
}

impl Stage {
    async fn new() -> Self {
        let world = World::new().await;
        let role = world.role().await;
        world
            .sql(&format!(
                "alter function pg_catalog.row_security_active(oid) rename to true_row_security;
                 create function pg_catalog.row_security_active(oid) returns bool language plpgsql stable
                     as 'begin perform pg_advisory_lock_shared(1); return not pg_advisory_unlock_shared(1); end';
                 grant usage on schema tollgate to {role};
                 grant select, insert, update, delete on all tables in schema tollgate to {role}"
            ))
            .await;
        let proxy = Proxy::new(&world.url());
        let (mut caller, others) = (proxy.connect().await, world.admin().await);
        run(&mut caller, &format!("set role {role}")).await;
        Self { world, proxy, caller, others }
    }

    /// Takes two tokens from shards that hold `before`; the second holds `then` when it is locked. Returns the
    /// decision, and the balances afterwards.
    async fn take(&mut self, before: &[i64], then: i64) -> (Result<Decision, Error>, Vec<i64>) {
        let limit = Limit::token_bucket("last", 100, EVER).shards(u16::try_from(before.len()).unwrap());
        put(&mut self.others, &limit, before, second(0.0)).await;
        let limiter = limiter().at(second(0.0));
        let mut tx = self.caller.begin().await.unwrap();
        // With all statements prepared, the reading is the one that passes.
        let _ = limiter.consume(&mut tx, limit.global().cost(2)).await.unwrap();
        tx.rollback().await.unwrap();

        let backend = pid(&mut self.caller).await;
        let mut tx = self.caller.begin().await.unwrap();
        self.proxy.hold_after(1);
        let answer = {
            let change = async {
                self.proxy.until_held().await;
                run(&mut self.others, "select pg_advisory_lock(1)").await;
                self.proxy.release();
                self.world.until_blocked(backend).await;
                let sql = "update tollgate.durable set value = $1 where shard = $2";
                sqlx::query(sql).bind(then - share(&limit, 1)).bind(1).execute(&mut self.others).await.unwrap();
                run(&mut self.others, "select pg_advisory_unlock(1)").await;
            };
            Box::pin(soon(async { tokio::join!(limiter.consume(&mut tx, limit.global().cost(2)), change).0 })).await
        };
        tx.commit().await.unwrap();
        (answer, shards(&mut self.others, &limit).await.into_iter().map(|(_, value)| value).collect())
    }
}

#[tokio::test]
async fn what_changes_in_the_last_moment_is_decided_as_it_is() {
    let mut stage = Stage::new().await;
    let (answer, rows) = stage.take(&[0, 10 * ONE], 5 * ONE).await;
    assert_eq!(answer.unwrap().granted().unwrap().remaining.micros(), 3 * ONE);
    assert_eq!(rows, [0, 3 * ONE], "there is enough");

    let (answer, rows) = stage.take(&[0, 10 * ONE], ONE).await;
    assert_eq!(answer.unwrap().denied().unwrap().remaining.micros(), ONE);
    assert_eq!(rows, [0, ONE], "the sum is too little");

    let (answer, rows) = stage.take(&[0, 10 * ONE, 4 * ONE], ONE).await;
    assert_eq!(answer.unwrap().granted().unwrap().remaining.micros(), 3 * ONE);
    assert_eq!(rows, [0, ONE, 2 * ONE], "another shard has enough");

    // Two are needed: the one that was locked is given up, and all are locked in order.
    let (answer, rows) = stage.take(&[3 * ONE / 2, 10 * ONE], ONE).await;
    assert_eq!(answer.unwrap().granted().unwrap().remaining.micros(), ONE / 2);
    assert_eq!(rows.iter().sum::<i64>(), ONE / 2);
}

/// A row that is short once it is locked is given up: a caller that waits for another row while it holds this one
/// deadlocks with a caller that locks both in their order.
#[tokio::test]
async fn a_row_that_changes_in_the_last_moment_is_not_held_while_others_are_waited_for() {
    let mut stage = Stage::new().await;
    let limit = Limit::token_bucket("held", 100, EVER).shards(2);
    let limiter = limiter().at(second(0.0));
    put(&mut stage.others, &limit, &[3 * ONE / 2, 10 * ONE], second(0.0)).await;
    let mut tx = stage.caller.begin().await.unwrap();
    let _ = limiter.consume(&mut tx, limit.global().cost(2)).await.unwrap();
    tx.rollback().await.unwrap();

    let backend = pid(&mut stage.caller).await;
    let mut tx = stage.caller.begin().await.unwrap();
    stage.proxy.hold_after(1);
    let change = async {
        stage.proxy.until_held().await;
        run(&mut stage.others, "select pg_advisory_lock(1)").await;
        stage.proxy.release();
        stage.world.until_blocked(backend).await;
        // The second row is too low now, so both are needed; the first is held, and its holder goes on to the second.
        let mut holder = stage.world.admin().await;
        let mut holder = holder.begin().await.unwrap();
        run(&mut holder, "select from tollgate.durable where shard = 0 for update").await;
        run(&mut stage.others, "update tollgate.durable set value = -49000000 where shard = 1").await;
        run(&mut stage.others, "select pg_advisory_unlock(1)").await;
        // Blocked by the holder, no longer by the lock that stands for the last moment.
        let sql =
            "select count(*) from pg_locks where pid = $1 and locktype in ('transactionid', 'tuple') and not granted";
        while sqlx::query_scalar::<_, i64>(sql).bind(backend).fetch_one(&stage.world.pool).await.unwrap() == 0 {}
        run(&mut holder, "select from tollgate.durable where shard = 1 for update").await;
        holder.commit().await.unwrap();
    };
    let answer =
        Box::pin(soon(async { tokio::join!(limiter.consume(&mut tx, limit.global().cost(2)), change).0 })).await;
    assert_eq!(answer.unwrap().granted().unwrap().remaining.micros(), ONE / 2);
    tx.commit().await.unwrap();
}
