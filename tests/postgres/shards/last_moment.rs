//! A shard that somebody else changes in the last moment: after the statement that takes from it has looked, and before it locks.

use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tollgate::{Decision, Error, Limit, Limiter};

use super::stage::{EVER, put, shards};
use crate::gate::stage::soon;
use crate::proxy::Proxy;
use crate::teller::run;
use crate::world::{World, pid, second};

const ONE: i64 = 1_000_000;

/// A caller whose statements look at the rows, and go on only once nobody else has the lock that this stands for.
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
                "create function public.passes() returns bool language plpgsql
                     as 'begin perform pg_advisory_lock_shared(1); return pg_advisory_unlock_shared(1); end';
                 alter table tollgate.rate_limits enable row level security;
                 create policy passes on tollgate.rate_limits using (public.passes());
                 grant usage on schema tollgate to {role};
                 grant select, insert, update, delete on all tables in schema tollgate to {role}"
            ))
            .await;
        let proxy = Proxy::new(&world.url());
        let (mut caller, others) = (proxy.connect().await, world.connect().await);
        run(&mut caller, &format!("set role {role}")).await;
        Self { world, proxy, caller, others }
    }

    /// Takes two tokens from shards that hold `before`, of which the second holds so much when it is locked; what they
    /// hold then.
    async fn take(&mut self, before: &[i64], then: i64) -> (Result<Decision, Error>, Vec<i64>) {
        let limit = Limit::token_bucket("last", 100, EVER).shards(u16::try_from(before.len()).unwrap());
        put(&mut self.others, &limit, before, second(0.0)).await;
        let limiter = Limiter::new().at(second(0.0));
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
                let sql = "update tollgate.rate_limits set value = $1 where shard = $2";
                let second = i16::try_from(limit.shard_numbers().start + 1).unwrap();
                sqlx::query(AssertSqlSafe(sql)).bind(then).bind(second).execute(&mut self.others).await.unwrap();
                run(&mut self.others, "select pg_advisory_unlock(1)").await;
            };
            soon(async { tokio::join!(limiter.consume(&mut tx, limit.global().cost(2)), change).0 }).await
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

    // Two are needed, and one of them might be held by somebody who waits for the other: nobody waits.
    let (answer, rows) = stage.take(&[3 * ONE / 2, 10 * ONE], ONE).await;
    assert!(matches!(answer, Err(Error::Busy)), "{answer:?}");
    assert_eq!(rows, [3 * ONE / 2, ONE]);
}
