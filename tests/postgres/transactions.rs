//! The caller's transaction: the changes that share its fate, the calls that leave it usable, and the failures that are
//! told apart.

mod boundaries;
mod connections;
mod failures;
mod moved;
mod timeouts;

use std::sync::LazyLock;

use chrono::{DateTime, Utc};
use sqlx::{Executor, PgConnection, Row};
use tollgate::{BegunByHand, Call, Error, Limit, Limiter, MINUTE, Receipt, SECOND, Tokens};

use crate::teller::{Teller, both, left, tokens};
use crate::world::{World, limiter, pid, second};

static LIMITER: LazyLock<Limiter> = LazyLock::new(limiter);

/// Ten a minute, in either table.
fn ten() -> [Limit; 2] {
    both(&Limit::token_bucket("ten", 10, MINUTE))
}

/// A receipt over one token of one key, charged at an instant that has not come: it can be settled and cancelled.
fn receipt(limit: &Limit, key: &str) -> Receipt {
    let charge = serde_json::json!({
        "limit": limit.name(), "storage": limit.spec().storage, "key": key, "cost": 1, "refill": 10,
        "period": 60_000_000, "ready_at": 32_472_144_000_000_000_i64
    });
    serde_json::from_value(serde_json::json!({ "charges": [charge] })).unwrap()
}

/// How many verbs take or give.
const VERBS: usize = 10;

/// The answer of one verb, for one key.
async fn answer(
    limiter: &Limiter,
    conn: &mut PgConnection,
    limit: &Limit,
    key: &str,
    verb: usize,
) -> Result<(), Error> {
    let (tx, ask) = (&mut BegunByHand(conn), || limit.key(key));
    match verb {
        0 => limiter.consume(tx, ask()).await.map(drop),
        1 => limiter.consume(tx, [ask(), limit.key("another")]).await.map(drop),
        2 => limiter.reserve(tx, ask()).await.map(drop),
        3 => limiter.reserve(tx, [ask(), limit.key("another")]).await.map(drop),
        4 => limiter.debit(tx, ask()).await.map(drop),
        5 => limiter.credit(tx, ask()).await.map(drop),
        6 => limiter.settle(tx, receipt(limit, key), 2).await.map(drop),
        7 => limiter.settle(tx, receipt(limit, key), 0).await.map(drop),
        8 => limiter.cancel(tx, receipt(limit, key)).await.map(drop),
        _ => limiter.reset(tx, ask()).await.map(drop),
    }
}

/// The answers of all verbs, one after another.
async fn answers(limiter: &Limiter, conn: &mut PgConnection, limit: &Limit, key: &str) -> Vec<Result<(), Error>> {
    let mut answers = Vec::new();
    for verb in 0..VERBS {
        answers.push(answer(limiter, conn, limit, key, verb).await);
    }
    answers
}

async fn setting(conn: &mut PgConnection, name: &str) -> String {
    let sql = format!("show {name}");
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).fetch_one(conn).await.unwrap().get(0)
}

#[tokio::test]
async fn every_verb_is_undone_by_a_rollback_and_kept_by_a_commit() {
    let world = World::new().await;
    for limit in ten() {
        let mut teller = Teller::of(&world).await;
        left(teller.consume(0.0, limit.key("k").cost(5)).await);
        teller.commit().await;
        let mut teller = Teller::of(&world).await;
        let before = teller.rows().await;
        for answer in answers(&limiter().at(second(0.0)), &mut teller.tx, &limit, "k").await {
            answer.unwrap();
        }
        assert_ne!(teller.rows().await, before);
        teller.tx.rollback().await.unwrap();
        assert_eq!(Teller::of(&world).await.rows().await, before);

        let mut teller = Teller::of(&world).await;
        left(teller.consume(0.0, limit.key("k")).await);
        teller.commit().await;
        assert_eq!(world.left(&limit, "k").await, Some(tokens(4)));
        world.sql("truncate tollgate.ephemeral, tollgate.durable").await;
    }
}

#[tokio::test]
async fn a_transaction_that_is_dropped_gives_its_tokens_back() {
    let world = World::new().await;
    for limit in ten() {
        let mut teller = Teller::of(&world).await;
        left(teller.consume(0.0, limit.key(1)).await);
        drop(teller);
        assert_eq!(left(Teller::of(&world).await.consume(0.0, limit.key(1).cost(10)).await), Tokens::ZERO);
    }
}

#[tokio::test]
async fn a_refusal_of_several_names_them_all_and_leaves_the_transaction_usable() {
    let world = World::new().await;
    world.sql("create table jobs (id int)").await;
    let limits = [("fast", SECOND), ("ok", SECOND), ("slow", MINUTE)];
    for table in [0, 1] {
        let [fast, ok, slow] = limits.map(|(name, period)| both(&Limit::token_bucket(name, 1, period))[table].clone());
        let mut teller = Teller::of(&world).await;
        teller.tx.execute("insert into jobs values (1)").await.unwrap();
        left(teller.consume(0.0, fast.global()).await);
        left(teller.consume(0.0, slow.global()).await);
        let before = teller.rows().await;
        let ask = [fast.global(), ok.global(), slow.global()];
        let denied = limiter().at(second(0.0)).consume(&mut teller.tx, ask).await.unwrap().denied().unwrap();
        assert_eq!((&*denied.limit, denied.retry_at), ("slow", Some(second(60.0))), "the latest instant");
        let others: Vec<_> = denied.others.iter().map(|other| (&*other.limit, other.retry_at)).collect();
        assert_eq!(others, [("fast", Some(second(1.0)))]);
        assert_eq!(teller.rows().await, before, "the one that would have granted was not even inserted");
        assert_eq!(left(teller.consume(0.0, ok.global()).await), Tokens::ZERO);
        teller.tx.rollback().await.unwrap();
    }
}

#[tokio::test]
async fn requests_for_one_key_add_up_before_the_decision() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    for limit in ten() {
        let limiter = limiter().at(second(0.0));
        let ask = |cost: u32| [limit.key(1).cost(cost), limit.key(1).cost(3)];
        let grant = limiter.consume(&mut teller.tx, ask(4)).await.unwrap().granted().unwrap();
        assert_eq!(
            (grant.remaining, grant.receipt.charges.len(), grant.receipt.charges[0].cost),
            (tokens(3), 1, tokens(7))
        );
        let denied = limiter.consume(&mut teller.tx, ask(1)).await.unwrap().denied().unwrap();
        assert_eq!((denied.remaining, denied.retry_at), (tokens(3), Some(second(6.0))));
        let error = limiter.consume(&mut teller.tx, ask(8)).await.unwrap_err();
        assert!(matches!(error, Error::CostExceedsCapacity { asked, .. } if asked == tokens(11)), "{error:?}");
    }
}

/// A refusal that a committed balance proves does not wait for a row that somebody holds.
#[tokio::test]
async fn a_refusal_does_not_wait_for_a_held_row() {
    let world = World::new().await;
    for limit in ten() {
        let mut teller = Teller::of(&world).await;
        left(teller.consume(0.0, limit.key(1).cost(10)).await);
        teller.commit().await;
        let mut holder = Teller::of(&world).await;
        holder.credit(0.0, limit.key(1)).await;
        let mut teller = Teller::of(&world).await;
        teller.tx.execute("set local statement_timeout = '5min'").await.unwrap();
        assert!(!teller.consume(0.0, limit.key(1)).await.is_granted());
        assert!(!teller.consume(0.0, limit.key(1)).await.is_granted());
        let three = [limit.key(0), limit.key(1), limit.key(2)];
        assert!(!limiter().at(second(0.0)).consume(&mut teller.tx, three).await.unwrap().is_granted());
        let xid: Option<i64> = sqlx::query_scalar("select txid_current_if_assigned()")
            .persistent(false)
            .fetch_one(&mut *teller.tx)
            .await
            .unwrap();
        assert_eq!(xid, None, "refusals need no transaction id");
    }
}

#[tokio::test]
async fn a_refusal_leaves_absent_rows_absent() {
    let world = World::new().await;
    for limit in ten() {
        let mut teller = Teller::of(&world).await;
        left(teller.consume(0.0, limit.key("m").cost(10)).await);
        let before = teller.rows().await;
        for keys in [["a", "m"], ["m", "z"], ["z", "m"]] {
            for cost in [1, 10] {
                let ask = keys.map(|key| limit.key(key).cost(cost));
                assert!(!limiter().at(second(0.0)).consume(&mut teller.tx, ask).await.unwrap().is_granted());
            }
        }
        assert_eq!(teller.rows().await, before);
        teller.tx.rollback().await.unwrap();
    }
}

/// A transaction that began long ago decides by the clock of now.
#[tokio::test]
async fn the_clock_is_that_of_the_call_and_not_of_its_transaction() {
    let world = World::new().await;
    let mut tx = world.begin().await;
    let mut began: DateTime<Utc> = sqlx::query_scalar("select clock_timestamp()").fetch_one(&mut *tx).await.unwrap();
    let sharded = Limit::token_bucket("sharded", 100, MINUTE).shards(2);
    for limit in ten().into_iter().chain([sharded]) {
        // Rows that are missing and rows that are there, one and several, and a look at each. Two random calls in a row
        // may meet one shard.
        for keys in [["k"].as_slice(), &["k"], &["k"], &["k"], &["k"], &["k", "l"], &["k", "l"]] {
            let requests = || keys.iter().map(|key| limit.key(*key));
            let taken = limiter().consume(&mut tx, requests().collect::<Call>()).await.unwrap().granted().unwrap();
            let seen = limiter().check(&mut tx, requests().collect::<Call>()).await.unwrap().granted().unwrap();
            assert!(began < taken.decided_at && taken.decided_at < seen.decided_at, "{limit:?} {keys:?}");
            began = seen.decided_at;
        }
    }
}

/// Ends the server process behind a connection, and returns when it is gone.
pub(crate) async fn terminate(world: &World, conn: &mut PgConnection) {
    let pid = pid(conn).await;
    world.sql(&format!("select pg_terminate_backend({pid})")).await;
    until(world, &format!("select not exists (select from pg_stat_activity where pid = {pid})")).await;
}

/// Asks the server over and over until it says yes.
async fn until(world: &World, sql: &str) {
    let comes_true = async {
        while !sqlx::raw_sql(sqlx::AssertSqlSafe(sql.to_owned()))
            .fetch_one(&world.pool)
            .await
            .unwrap()
            .get::<bool, _>(0)
        {}
    };
    assert!(tokio::time::timeout(5 * MINUTE, comes_true).await.is_ok(), "never came true: {sql}");
}
