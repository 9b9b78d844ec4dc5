//! The caller's transaction: the changes that share its fate, the calls that leave it usable, and the failures that are
//! told apart.

use std::sync::LazyLock;
use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::{Connection, Executor, PgConnection, PgTransaction, Row};
use tollgate::{
    BegunByHand, Decision, Error, FitError, InTransaction, Limit, Limiter, MINUTE, Receipt, SECOND, SetupFault, Step,
    Tokens,
};

use crate::teller::{Teller, both, left, rows, run, tokens};
use crate::world::{SERVICE, World, limiter, parts, pid, second};

static LIMITER: LazyLock<Limiter> = LazyLock::new(limiter);

/// Long enough to be seen in PostgreSQL's own log, short enough to wait for in a test.
const SHORT: Duration = Duration::from_millis(20);

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

#[tokio::test]
async fn a_lock_timeout_is_busy_and_leaves_the_transaction_usable() {
    let world = World::new().await;
    world.sql("create table jobs (id int)").await;
    for (limit, key) in ten().into_iter().flat_map(|limit| [(limit.clone(), "present"), (limit, "absent")]) {
        let mut teller = Teller::of(&world).await;
        left(teller.consume(0.0, limit.key("present").cost(5)).await);
        left(teller.consume(0.0, limit.key("another").cost(5)).await);
        teller.commit().await;
        // Holds the row, or the place of the row that is not there yet.
        let mut holder = Teller::of(&world).await;
        left(holder.consume(0.0, limit.key(key)).await);

        let mut teller = Teller::of(&world).await;
        teller.tx.execute("insert into jobs values (1)").await.unwrap();
        teller.tx.execute("set local lock_timeout = '7s'").await.unwrap();
        for (verb, answer) in answers(&limiter().at(second(0.0)).lock_timeout(SHORT), &mut teller.tx, &limit, key)
            .await
            .into_iter()
            .enumerate()
        {
            match answer {
                Err(error @ Error::Locked { .. }) => assert!(error.is_retryable()),
                // A verb that gives to an absent row, or settles, finds it full without a wait.
                Ok(()) if key == "absent" && matches!(verb, 5..=9) => {}
                answer => panic!("verb {verb} for {key}: {answer:?}"),
            }
        }
        assert_eq!(setting(&mut teller.tx, "lock_timeout").await, "7s");
        left(teller.consume(0.0, limit.key("elsewhere")).await);
        teller.commit().await;
        holder.tx.rollback().await.unwrap();
        assert_eq!(world.left(&limit, "elsewhere").await.unwrap(), tokens(9));
        assert_eq!(world.left(&limit, "another").await.unwrap(), tokens(5), "none, as not all");
        world.sql("truncate tollgate.ephemeral, tollgate.durable").await;
    }
    let jobs: i64 = sqlx::query_scalar("select count(*) from jobs").fetch_one(&world.pool).await.unwrap();
    assert_eq!(jobs, 4, "the callers' own work was committed");
}

#[tokio::test]
async fn the_lock_timeout_of_before_comes_back_after_every_answer() {
    let world = World::new().await;
    for limit in ten() {
        let limiter = limiter().at(second(0.0)).lock_timeout(SECOND);
        let mut conn = world.connect().await;
        for before in ["0", "7s"] {
            run(&mut conn, &format!("begin; set local lock_timeout = '{before}'")).await;
            let ask = || limit.key(before);
            left(limiter.consume(&mut BegunByHand(&mut conn), ask().cost(10)).await.unwrap());
            assert_eq!(setting(&mut conn, "lock_timeout").await, before, "after a grant");
            assert!(!limiter.consume(&mut BegunByHand(&mut conn), ask()).await.unwrap().is_granted());
            assert_eq!(setting(&mut conn, "lock_timeout").await, before, "after a refusal");
            let most = Tokens::from_micros(i64::MAX - 10_000_000);
            let deep = limiter.debit(&mut BegunByHand(&mut conn), ask().cost(most)).await;
            assert!(deep.is_ok(), "{deep:?}");
            let deeper = limiter.debit(&mut BegunByHand(&mut conn), ask().cost(Tokens::MAX)).await;
            assert!(matches!(deeper, Err(Error::DoesNotFit { source: FitError::DebtTooDeep, .. })), "{deeper:?}");
            assert_eq!(setting(&mut conn, "lock_timeout").await, before, "after an error");
            run(&mut conn, "commit").await;
            assert_eq!(setting(&mut conn, "lock_timeout").await, "0", "after the transaction");
        }
    }
}

/// Nothing was taken, so nobody has to wait for the transaction.
#[tokio::test]
async fn with_a_lock_timeout_a_refusal_after_a_wait_holds_no_row() {
    let world = World::new().await;
    for limit in ten() {
        let mut teller = Teller::of(&world).await;
        left(teller.consume(0.0, limit.key(1)).await);
        teller.commit().await;
        let mut holder = Teller::of(&world).await;
        left(holder.consume(0.0, limit.key(1).cost(9)).await);
        let mut waiter = world.begin().await;
        let waiter_pid = pid(&mut waiter).await;
        let limiter = limiter().at(second(0.0)).lock_timeout(MINUTE);
        let (decision, ()) = tokio::join!(limiter.consume(&mut waiter, limit.key(1)), async {
            world.until_blocked(waiter_pid).await;
            holder.commit().await;
        });
        decision.unwrap().denied().unwrap();
        let mut other = Teller::of(&world).await;
        other.tx.execute("set local lock_timeout = '1s'").await.unwrap();
        other.credit(0.0, limit.key(1)).await;
        waiter.commit().await.unwrap();
    }
}

#[tokio::test]
async fn a_row_that_is_let_go_in_time_is_taken() {
    let world = World::new().await;
    for limit in ten() {
        let mut teller = Teller::of(&world).await;
        left(teller.consume(0.0, limit.key(1)).await);
        teller.commit().await;
        let mut holder = Teller::of(&world).await;
        left(holder.consume(0.0, limit.key(1).cost(4)).await);
        let mut conn = world.connect().await;
        let waiter = pid(&mut conn).await;
        let ask = limit.key(1);
        let waiting = tokio::spawn(async move {
            let mut tx = conn.begin().await.unwrap();
            let limiter = limiter().at(second(0.0)).lock_timeout(MINUTE);
            let left = left(limiter.consume(&mut tx, ask).await.unwrap());
            tx.commit().await.unwrap();
            left
        });
        wait_until_blocked(&world, waiter).await;
        holder.commit().await;
        assert_eq!(waiting.await.unwrap(), tokens(4));
    }
}

#[tokio::test]
async fn a_lock_timeout_of_the_callers_own_is_an_error_of_the_database() {
    let world = World::new().await;
    for limit in ten() {
        let mut teller = Teller::of(&world).await;
        left(teller.consume(0.0, limit.key(1)).await);
        teller.commit().await;
        let mut holder = Teller::of(&world).await;
        left(holder.consume(0.0, limit.key(1)).await);
        let mut tx = world.begin().await;
        tx.execute("set local lock_timeout = '20ms'").await.unwrap();
        let error = limiter().at(second(0.0)).consume(&mut tx, limit.key(1)).await.unwrap_err();
        assert!(matches!(error, Error::Database { step: Step::Lock, .. }) && error.is_retryable(), "{error:?}");
    }
}

/// It strikes during any wait of the statement, and aborts the transaction.
#[tokio::test]
async fn a_statement_timeout_of_the_callers_own_bounds_a_call() {
    let world = World::new().await;
    for limit in ten() {
        let mut holder = Teller::of(&world).await;
        left(holder.consume(0.0, limit.key(1)).await);
        for limiter in [limiter(), limiter().lock_timeout(MINUTE)] {
            let mut tx = world.pool.begin_with("begin; set local statement_timeout = '20ms'").await.unwrap();
            let error = limiter.at(second(0.0)).consume(&mut tx, limit.key(1)).await.unwrap_err();
            assert!(error.is_retryable());
            let Error::Database { source, .. } = &error else { panic!("{error:?}") };
            assert_eq!(source.as_database_error().unwrap().code().unwrap(), "57014", "{error}");
        }
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
async fn a_lost_race_at_repeatable_read_is_retryable() {
    let world = World::new().await;
    for (limit, key) in ten().into_iter().flat_map(|limit| [(limit.clone(), "present"), (limit, "absent")]) {
        let mut teller = Teller::of(&world).await;
        left(teller.consume(0.0, limit.key("present")).await);
        teller.commit().await;
        for several in [false, true] {
            let mut loser = world.pool.begin_with("begin isolation level repeatable read").await.unwrap();
            loser.execute("select 1").await.unwrap();
            let mut winner = Teller::of(&world).await;
            left(winner.consume(0.0, limit.key(key)).await);
            winner.commit().await;
            let keys = if several { vec![limit.key(key), limit.key("third")] } else { vec![limit.key(key)] };
            let error = limiter().at(second(0.0)).consume(&mut loser, keys).await.unwrap_err();
            assert!(matches!(error, Error::Database { .. }) && error.is_retryable(), "{error:?}");
            assert!(error.to_string().contains("\"ten\""), "{error}");
            drop(loser);
            let sql = "delete from tollgate.ephemeral where key = 'absent';
                delete from tollgate.durable where key = 'absent'";
            world.sql(sql).await;
        }
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

#[tokio::test]
async fn a_begin_by_hand_counts_as_a_transaction() {
    let world = World::new().await;
    let mut conn = world.connect().await;
    for limit in ten() {
        for (end, remaining) in [("rollback", 9), ("commit", 9), ("end", 8)] {
            run(&mut conn, "begin").await;
            assert_eq!(
                left(limiter().at(second(0.0)).consume(&mut BegunByHand(&mut conn), limit.key(1)).await.unwrap()),
                tokens(remaining)
            );
            run(&mut conn, end).await;
        }
        assert_eq!(world.left(&limit, "1").await.unwrap(), tokens(8));
    }
}

#[tokio::test]
async fn a_savepoint_that_is_rolled_back_gives_its_tokens_back() {
    let world = World::new().await;
    for limit in ten() {
        for limiter in [limiter().at(second(0.0)), limiter().at(second(0.0)).lock_timeout(SECOND)] {
            let mut tx = world.begin().await;
            left(limiter.consume(&mut tx, limit.key(1)).await.unwrap());
            let mut undone = tx.begin().await.unwrap();
            left(limiter.consume(&mut undone, limit.key(1).cost(4)).await.unwrap());
            left(limiter.consume(&mut undone, limit.key(2).cost(4)).await.unwrap());
            undone.rollback().await.unwrap();
            let mut kept = tx.begin().await.unwrap();
            assert_eq!(left(limiter.consume(&mut kept, limit.key(1).cost(2)).await.unwrap()), tokens(7));
            kept.commit().await.unwrap();
            assert_eq!(left(limiter.consume(&mut tx, limit.key(1)).await.unwrap()), tokens(6));
            assert_eq!(left(limiter.consume(&mut tx, limit.key(2)).await.unwrap()), tokens(9));
            tx.rollback().await.unwrap();
        }
    }
}

/// A caller that waits for a row that a savepoint has locked waits for that savepoint, not for the transaction around
/// it. Else a transaction that asks for the row again would queue behind callers that wait for its own end.
#[tokio::test]
async fn a_savepoint_that_is_rolled_back_is_not_waited_for() {
    let world = World::new().await;
    let limits = [Limit::token_bucket("ten", 10, MINUTE), Limit::token_bucket("shards", 10, MINUTE).shards(2)];
    for limit in limits.iter().flat_map(both) {
        for limiter in [limiter(), limiter().lock_timeout(MINUTE)] {
            let mut holder = world.begin().await;
            // All of it, so that each row is locked.
            let all = |limit: &Limit| limit.global().cost(10);
            left(limiter.consume(&mut holder, Limit::token_bucket("other", 9, MINUTE).global()).await.unwrap());
            let mut undone = holder.begin().await.unwrap();
            left(limiter.consume(&mut undone, all(&limit)).await.unwrap());
            let mut waiter = world.begin().await;
            let pid = pid(&mut waiter).await;
            let waiting = tokio::spawn({
                let request = all(&limit);
                async move { LIMITER.consume(&mut waiter, request).await.unwrap().is_granted() }
            });
            world.until_blocked(pid).await;
            undone.rollback().await.unwrap();
            let granted = tokio::time::timeout(10 * MINUTE, waiting).await.expect("waits for the transaction");
            assert!(granted.unwrap(), "{}", limit.name());
            holder.rollback().await.unwrap();
        }
    }
}

#[tokio::test]
async fn outside_a_transaction_every_verb_that_would_write_says_so() {
    let world = World::new().await;
    let mut conn = world.connect().await;
    for limit in ten() {
        let mut teller = Teller::of(&world).await;
        for key in ["present", "another"] {
            left(teller.consume(0.0, limit.key(key).cost(5)).await);
        }
        teller.commit().await;
        let before = Teller::of(&world).await.rows().await;
        for limiter in [limiter().at(second(0.0)), limiter().at(second(0.0)).unnamed_statements()] {
            for (verb, answer) in answers(&limiter, &mut conn, &limit, "present").await.into_iter().enumerate() {
                assert!(matches!(answer, Err(Error::NotInTransaction)), "verb {verb}: {answer:?}");
            }
            for verb in [
                limiter.consume(&mut BegunByHand(&mut conn), limit.key("absent")).await.map(drop),
                limiter.reserve(&mut BegunByHand(&mut conn), limit.key("absent")).await.map(drop),
                limiter.debit(&mut BegunByHand(&mut conn), limit.key("absent")).await.map(drop),
            ] {
                assert!(matches!(verb, Err(Error::NotInTransaction)), "{verb:?}");
            }
        }
        // With a lock timeout the savepoint tells it, before anything else.
        for key in ["present", "absent"] {
            for answer in answers(&limiter().lock_timeout(SECOND), &mut conn, &limit, key).await {
                assert!(matches!(&answer, Err(error @ Error::NotInTransaction) if !error.is_retryable()), "{answer:?}");
            }
        }
        assert_eq!(Teller::of(&world).await.rows().await, before);
        assert_eq!(setting(&mut conn, "lock_timeout").await, "0");
        // Looking needs no transaction, where statements have names.
        let looking = Limiter::new().parts(parts());
        assert!(looking.check(&mut conn, limit.key("present")).await.unwrap().is_granted());
        let balance = looking.at(second(0.0)).balance(&mut conn, limit.key("present")).await.unwrap();
        assert_eq!(balance.remaining, tokens(5));
        world.sql("truncate tollgate.ephemeral, tollgate.durable").await;
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
            let taken = limiter().consume(&mut tx, requests()).await.unwrap().granted().unwrap();
            let seen = limiter().check(&mut tx, requests()).await.unwrap().granted().unwrap();
            assert!(began < taken.decided_at && taken.decided_at < seen.decided_at, "{limit:?} {keys:?}");
            began = seen.decided_at;
        }
    }
}

/// sqlx goes on to count one.
#[tokio::test]
async fn a_transaction_of_sqlx_that_was_ended_by_hand_is_none() {
    let world = World::new().await;
    for limit in ten() {
        let mut teller = Teller::of(&world).await;
        left(teller.consume(0.0, limit.key("present").cost(5)).await);
        teller.commit().await;
        for limiter in [limiter().at(second(0.0)), limiter().at(second(0.0)).lock_timeout(SECOND)] {
            for verb in 0..VERBS {
                let mut tx = world.pool.begin().await.unwrap();
                run(&mut tx, ["commit", "rollback"][verb % 2]).await;
                let answer = answer(&limiter, &mut tx, &limit, "present", verb).await;
                assert!(matches!(answer, Err(Error::NotInTransaction)), "verb {verb}: {answer:?}");
            }
            let mut tx = world.pool.begin().await.unwrap();
            run(&mut tx, "commit").await;
            let absent = limiter.consume(&mut tx, limit.key("absent")).await;
            assert!(matches!(absent, Err(Error::NotInTransaction)), "{absent:?}");
        }
        assert_eq!(world.left(&limit, "present").await, Some(tokens(5)));
    }
}

#[tokio::test]
async fn outside_a_transaction_absent_rows_of_several_limits_stay_absent() {
    let world = World::new().await;
    let mut conn = world.connect().await;
    for limit in ten() {
        let answer = LIMITER.consume(&mut BegunByHand(&mut conn), [limit.key(1), limit.key(2)]).await;
        assert!(matches!(answer, Err(Error::NotInTransaction)), "{answer:?}");
        assert_eq!(rows(&mut conn).await, []);
    }
}

#[tokio::test]
async fn outside_a_transaction_a_cost_of_zero_for_several_limits_writes_nothing() {
    let world = World::new().await;
    let mut conn = world.connect().await;
    for limit in ten() {
        let _ = LIMITER.consume(&mut BegunByHand(&mut conn), [limit.key(1).cost(0), limit.key(2).cost(0)]).await;
        assert_eq!(rows(&mut conn).await, []);
    }
}

#[tokio::test]
async fn after_an_sql_error_of_the_callers_own_the_failure_names_limit_and_step() {
    let world = World::new().await;
    for limit in ten() {
        for (limiter, step) in [(limiter(), Step::Lock), (limiter().lock_timeout(SECOND), Step::Savepoint)] {
            let mut tx = world.begin().await;
            tx.execute("select 1 / 0").await.unwrap_err();
            let error = limiter.consume(&mut tx, limit.key(1)).await.unwrap_err();
            assert!(!error.is_retryable());
            assert_eq!(error.to_string(), format!("could not {step} limit \"ten\""));
            let Error::Database { step: at, limit: Some(name), source } = error else { panic!("{error:?}") };
            assert_eq!((at, &*name), (step, "ten"));
            assert_eq!(source.as_database_error().unwrap().code().unwrap(), "25P02");
        }
    }
}

#[tokio::test]
async fn a_read_only_transaction_can_look_and_cannot_take() {
    let world = World::new().await;
    for limit in ten() {
        let mut teller = Teller::of(&world).await;
        left(teller.consume(0.0, limit.key("present").cost(10)).await);
        teller.commit().await;
        for key in ["present", "absent"] {
            let mut tx = world.pool.begin_with("begin read only").await.unwrap();
            assert!(LIMITER.check(&mut tx, limit.key(key)).await.unwrap().is_granted());
            let error = LIMITER.consume(&mut tx, limit.key(key)).await.unwrap_err();
            assert!(!error.is_retryable());
            let Error::ReadOnly { source } = &error else { panic!("{error:?}") };
            assert_eq!(source.as_database_error().unwrap().code().unwrap(), "25006", "{error}");
            assert!(error.to_string().contains("(connect to the primary, or begin `read write`)"), "{error}");
        }
    }
}

#[tokio::test]
async fn missing_rights_are_an_error_of_the_database() {
    let world = World::new().await;
    world.sql(&format!("revoke usage on schema tollgate from {SERVICE}")).await;
    for limit in ten() {
        let mut tx = world.begin().await;
        let error = LIMITER.consume(&mut tx, limit.key(1)).await.unwrap_err();
        let Error::Database { source, .. } = &error else { panic!("{error:?}") };
        assert_eq!(source.as_database_error().unwrap().code().unwrap(), "42501", "{error}");
        assert!(!error.is_retryable());
    }
}

#[tokio::test]
async fn a_missing_schema_names_its_remedy() {
    let world = World::unmigrated().await;
    let mut conn = world.connect().await;
    for limit in ten() {
        for limiter in [limiter(), limiter().unnamed_statements()] {
            let mut errors = Vec::new();
            run(&mut conn, "begin").await;
            errors.push(limiter.check(&mut conn, limit.key(1)).await.map(drop));
            run(&mut conn, "rollback; begin").await;
            errors.push(limiter.balance(&mut conn, limit.key(1)).await.map(drop));
            run(&mut conn, "rollback").await;
            for limiter in [limiter.clone(), limiter.lock_timeout(SECOND)] {
                for verb in 0..VERBS {
                    run(&mut conn, "begin").await;
                    errors.push(answer(&limiter, &mut conn, &limit, "k", verb).await);
                    run(&mut conn, "rollback").await;
                }
            }
            for error in errors.into_iter().map(Result::unwrap_err) {
                assert!(
                    matches!(error, Error::Setup { fault: SetupFault::Schema, .. }) && !error.is_retryable(),
                    "{error:?}"
                );
                assert!(error.to_string().contains("`tollgate migrate up`"), "{error}");
            }
        }
    }
}

#[tokio::test]
async fn a_lost_connection_is_retryable() {
    let world = World::new().await;
    for limit in ten() {
        for limiter in [limiter(), limiter().lock_timeout(SECOND)] {
            let mut conn = world.connect().await;
            run(&mut conn, "begin").await;
            terminate(&world, &mut conn).await;
            for _ in 0..2 {
                let error = limiter.consume(&mut BegunByHand(&mut conn), limit.key(1)).await.unwrap_err();
                assert!(matches!(error, Error::Database { .. }) && error.is_retryable(), "{error:?}");
            }
        }
    }
}

/// Compiles, above all: what callers hold is a transaction, a connection of the pool, or a connection of their own.
#[tokio::test]
async fn every_kind_of_connection_will_do_also_in_a_spawned_task_and_in_a_loop() {
    async fn repository(tx: &mut PgTransaction<'_>, limit: &Limit) -> Result<Decision, Error> {
        left(LIMITER.consume(tx, limit.key(1)).await?);
        LIMITER.consume(tx, limit.key(1)).await
    }
    async fn on_any(tx: &mut impl InTransaction, limit: &Limit) -> Result<Decision, Error> {
        LIMITER.consume(tx, limit.key(2)).await
    }
    let world = World::new().await;
    for limit in ten() {
        let mut tx = world.begin().await;
        left(LIMITER.consume(&mut tx, limit.key(1)).await.unwrap());
        left(LIMITER.consume(&mut &mut tx, limit.key(1)).await.unwrap());
        left(repository(&mut tx, &limit).await.unwrap());
        let mut savepoint = tx.begin().await.unwrap();
        left(on_any(&mut savepoint, &limit).await.unwrap());
        savepoint.commit().await.unwrap();
        for user in [1, 2, 3] {
            left(LIMITER.consume(&mut tx, limit.key(user)).await.unwrap());
        }
        tx.commit().await.unwrap();

        let mut conn = world.pool.acquire().await.unwrap();
        conn.execute("begin").await.unwrap();
        left(LIMITER.consume(&mut BegunByHand(&mut conn), limit.key(1)).await.unwrap());
        let mut tx = BegunByHand(&mut conn);
        left(on_any(&mut tx, &limit).await.unwrap());
        left(on_any(&mut tx, &limit).await.unwrap());
        conn.execute("commit").await.unwrap();

        let mut own = PgConnection::connect(&world.url()).await.unwrap();
        let mut tx = own.begin().await.unwrap();
        left(LIMITER.consume(&mut tx, limit.key(1)).await.unwrap());
        tx.rollback().await.unwrap();

        let (pool, spawned) = (world.pool.clone(), limit.clone());
        let task = tokio::spawn(async move {
            let mut tx = pool.begin().await.unwrap();
            let users = ["ada".to_owned(), "bob".to_owned()];
            let asked = users.iter().map(|user| spawned.key(user));
            let grant = LIMITER.consume(&mut tx, asked).await.unwrap().granted().unwrap();
            let again = users.iter().filter(|user| user.starts_with('a')).map(|user| spawned.key(user).cost(2));
            let booked = LIMITER.reserve(&mut tx, again).await.unwrap().granted().unwrap();
            LIMITER.settle(&mut tx, grant, 0).await.unwrap();
            LIMITER.cancel(&mut tx, booked).await.unwrap();
            LIMITER.check(&mut tx, spawned.key("ada")).await.unwrap().granted().unwrap();
            tx.commit().await.unwrap();
        });
        task.await.unwrap();
    }
}

#[tokio::test]
async fn named_statements_are_prepared_once_and_unnamed_ones_never() {
    /// The numbers of prepared statements: all, those that lock, and those that read or write without a lock.
    async fn prepared(conn: &mut PgConnection) -> (i64, i64, i64) {
        let sql = "select count(*), count(*) filter (where statement ~ 'for update'),
                          count(*) filter (where statement !~ 'for update') from pg_prepared_statements";
        let row = sqlx::raw_sql(sql).fetch_one(conn).await.unwrap();
        (row.get(0), row.get(1), row.get(2))
    }
    async fn story(limiter: &Limiter, conn: &mut PgConnection, limit: &Limit) {
        run(conn, "begin").await;
        for answer in answers(limiter, conn, limit, "k").await {
            answer.unwrap();
        }
        let _ = limiter.check(conn, limit.key("k")).await.unwrap();
        limiter.balance(conn, limit.key("k")).await.unwrap();
        run(conn, "rollback").await;
    }
    let world = World::new().await;
    let mut conn = world.connect().await;
    for limit in ten() {
        for limiter in [limiter().unnamed_statements(), limiter().unnamed_statements().lock_timeout(SECOND)] {
            story(&limiter.at(second(0.0)), &mut conn, &limit).await;
            assert_eq!(prepared(&mut conn).await, (0, 0, 0));
        }
    }
    for limit in ten() {
        let mut conn = world.connect().await;
        let limiter = limiter().at(second(0.0));
        story(&limiter, &mut conn, &limit).await;
        let (all, locking, others) = prepared(&mut conn).await;
        // One row is locked, or several are inserted or locked.
        assert_eq!(locking, 2, "of {all}");
        // One row is saved, several are read and saved, and stale ones are removed.
        assert_eq!(others, 4, "of {all}");
        story(&limiter.lock_timeout(SECOND), &mut conn, &limit).await;
        assert_eq!(prepared(&mut conn).await, (all, locking, others), "a second round prepares nothing new");
    }
}

/// Ends the server process behind a connection, and returns when it is gone.
pub(crate) async fn terminate(world: &World, conn: &mut PgConnection) {
    let pid = pid(conn).await;
    world.sql(&format!("select pg_terminate_backend({pid})")).await;
    until(world, &format!("select not exists (select from pg_stat_activity where pid = {pid})")).await;
}

/// Returns when a connection waits for a lock.
async fn wait_until_blocked(world: &World, pid: i32) {
    world.until_blocked(pid).await;
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
