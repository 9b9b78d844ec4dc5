//! Reports through several nodes of Citus. An advisory lock is one node's, so it does not order them.

use chrono::{DateTime, Utc};
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio::task::JoinSet;
use tollgate::{HOUR, Overrides, Tokens};

use super::slow_down::{SLOWLY, THEIRS, reporters, share};
use super::until;
use crate::world::{SERVICE, is_on_citus, limiter, nodes, one_connection, patient};

/// When a report was set, and until when it counts.
type Said = (DateTime<Utc>, DateTime<Utc>);

async fn report(conn: &mut PgConnection, call: &str) -> Said {
    let sql = format!("select set_at, ends_at from tollgate.{call}");
    sqlx::query_as(AssertSqlSafe(sql)).fetch_one(conn).await.unwrap()
}

/// A report that waited for one through another node goes by what that one has said.
#[tokio::test]
async fn reports_through_different_nodes_take_turns() {
    if !is_on_citus() {
        return;
    }
    let (world, _) = reporters().await;
    for (round, (first, next)) in [(1, 2), (0, 1), (1, 0)].into_iter().enumerate() {
        let mut first = world.connect_through(first, SERVICE).await;
        for (verb, more, less) in [
            ("pause", "lasting => '1 hour'", "lasting => '1 minute'"),
            ("slow_down", "cool_down => '1 hour'", "cool_down => '1 hour'"),
        ] {
            let call = |how: &str| format!("{verb}('theirs', '{round}', {how})");
            let mut next = world.connect_through(next, SERVICE).await;
            let mut tx = first.begin().await.unwrap();
            let said = report(&mut tx, &call(more)).await;
            let waits = tokio::spawn({
                let call = call(less);
                async move { report(&mut next, &call).await }
            });
            world.until_anyone_is_blocked().await;
            tx.commit().await.unwrap();
            assert_eq!(waits.await.unwrap(), said, "{verb} in round {round}");
        }
    }
}

#[tokio::test]
async fn callers_through_all_nodes_go_by_one_cut() {
    if !is_on_citus() {
        return;
    }
    let (world, _) = reporters().await;
    let mut pools = Vec::new();
    for node in 0..nodes().await.len() {
        pools.push(one_connection(world.options_through(node, SERVICE).await).await);
    }
    let mut callers = Vec::new();
    for pool in &pools {
        callers.push((pool.clone(), Overrides::watch(pool.clone()).await.unwrap()));
    }
    let mut reports = JoinSet::new();
    for reporter in 0..8 {
        let pool = pools[reporter % pools.len()].clone();
        reports.spawn(async move {
            let overrides = Overrides::watch(pool).await.unwrap();
            overrides.slow_down(THEIRS.global(), &SLOWLY.cool_down(HOUR)).await.unwrap()
        });
    }
    let said = reports.join_all().await;
    assert!(said.iter().all(|one| *one == said[0] && share(one) == 700_000), "{said:?}");

    let seven = Tokens::new(700)..Tokens::new(701);
    for (pool, overrides) in callers {
        let gate = patient(&pool).overrides(&overrides).build();
        until(async || {
            let grant = gate.consume(THEIRS.key("gate")).await.unwrap().granted().unwrap();
            seven.contains(&grant.standings[0].limit.rate).then_some(())
        })
        .await;
        let mut tx = pool.begin().await.unwrap();
        let limiter = limiter().overrides(&overrides);
        let grant = limiter.consume(&mut tx, THEIRS.key("limiter")).await.unwrap().granted().unwrap();
        assert!(seven.contains(&grant.standings[0].limit.rate), "{grant:?}");
        tx.commit().await.unwrap();
    }
}
