//! The settings of a transaction that nodes have to know.

use sqlx::PgConnection;
use tollgate::{Call, Error, Limit, MINUTE, SECOND};

use super::{LIMITER, apart};
use crate::gate::stage::{EVER, patient, pool};
use crate::traced::traced;
use crate::world::{PARTS, World, is_on_citus, second};

/// Citus waits for rows on its nodes, and a node only knows a timeout if a setting makes Citus pass it on.
#[tokio::test]
async fn a_lock_timeout_is_passed_on_and_both_settings_are_put_back() {
    let world = World::of_parts(PARTS).await;
    for before in ["none", "local"] {
        let mut tx = world.pool.begin().await.unwrap();
        let set = format!("set local lock_timeout = '7s'; set local citus.propagate_set_commands = '{before}'");
        sqlx::raw_sql(sqlx::AssertSqlSafe(set)).execute(&mut *tx).await.unwrap();
        let limit = Limit::token_bucket("ten", 10, MINUTE);
        let limiter = LIMITER.lock_timeout(SECOND).at(second(0.0));
        limiter.consume(&mut tx, limit.key("k")).await.unwrap().granted().unwrap();
        assert_eq!(settings(&mut tx).await, ("7s".to_owned(), before.to_owned()));

        // Held by another: the wait is cut short, and the transaction goes on.
        let mut other = world.pool.begin().await.unwrap();
        let busy = limit.key("busy");
        LIMITER.consume(&mut other, busy.clone()).await.unwrap().granted().unwrap();
        other.commit().await.unwrap();
        let mut other = world.pool.begin().await.unwrap();
        LIMITER.consume(&mut other, busy.clone()).await.unwrap().granted().unwrap();
        let waited = LIMITER.lock_timeout(SECOND / 100).consume(&mut tx, busy).await;
        assert!(matches!(waited, Err(Error::Locked { .. })), "{waited:?}");
        assert_eq!(settings(&mut tx).await, ("7s".to_owned(), before.to_owned()));
        limiter.consume(&mut tx, limit.key("k")).await.unwrap().granted().unwrap();
        // Dropped, they would keep their rows for a moment.
        other.rollback().await.unwrap();
        tx.rollback().await.unwrap();
    }
}

/// Citus passes on the text that a setting is part of, and a second `begin` there is a warning in the node's log.
#[test]
fn nodes_are_told_settings_alone() {
    if !is_on_citus() {
        return;
    }
    let log = traced(async {
        let world = World::of_parts(PARTS).await;
        let pool = pool(&world.url(), 1).await;
        sqlx::raw_sql("set citus.log_remote_commands = on").execute(&pool).await.unwrap();
        let (limit, keys) = (Limit::token_bucket("ten", 10, EVER), apart());
        let asks = || keys.iter().map(|key| limit.key(key));
        patient(&pool).parts(PARTS).build().consume(asks().collect::<Call>()).await.unwrap().granted().unwrap();
        let mut tx = pool.begin().await.unwrap();
        LIMITER.lock_timeout(SECOND).consume(&mut tx, asks().collect::<Call>()).await.unwrap().granted().unwrap();
        tx.commit().await.unwrap();
    });
    let told: Vec<_> = log.lines().filter(|line| line.contains("issuing") && line.contains("lock_timeout")).collect();
    assert!(told.len() >= 4, "{told:?}");
    for line in told {
        assert!(!["begin isolation", "savepoint tollgate"].iter().any(|ours| line.contains(ours)), "{line}");
    }
}

async fn settings(conn: &mut PgConnection) -> (String, String) {
    let sql = "select current_setting('lock_timeout'), current_setting('citus.propagate_set_commands')";
    sqlx::query_as(sql).fetch_one(conn).await.unwrap()
}
