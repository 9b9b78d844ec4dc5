//! Faults that an adversarial reading found, and two facts that it found to hold (rights, prepared statements).

use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection, Executor};
use tollgate::{Call, CallError, Error, Limit, Limiter, MINUTE, Tokens, migrate};

use crate::gate::stage::{patient, pool};
use crate::teller::{Teller, left, tokens};
use crate::world::{World, second};

const LIMITER: Limiter = Limiter::new();

/// So long that nothing comes back while a test runs.
const EVER: Duration = Limit::MAX_PERIOD;

/// The snapshot of a waiting runner is older than the migrations that it waits for.
#[tokio::test]
async fn of_eight_runners_at_once_one_applies_also_where_repeatable_read_is_the_default() {
    for isolation in ["repeatable read", "serializable"] {
        let world = World::unmigrated().await;
        let mut runners = Vec::new();
        for _ in 0..8 {
            let mut conn = world.connect().await;
            let sql = format!("set default_transaction_isolation = '{isolation}'; set lock_timeout = '10min'");
            sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut conn).await.unwrap();
            runners.push(tokio::spawn(async move { migrate::run(&mut conn).await.map(|applied| applied.len()) }));
        }
        for runner in runners {
            let applied = runner.await.unwrap();
            assert!(applied.is_ok(), "{isolation}: {}", applied.unwrap_err());
        }
    }
}

/// A `begin` by hand counts for the limiter. Here it makes somebody else's work committed, or undone.
#[tokio::test]
async fn a_dry_run_in_a_transaction_begun_by_hand_leaves_the_callers_work_alone() {
    let world = World::new().await;
    world.sql("create table jobs (id int)").await;
    let mut conn = world.connect().await;
    conn.execute("begin; insert into jobs values (1)").await.unwrap();
    // An error with a name would do as well.
    let _ = migrate::dry_run(&mut conn).await;
    conn.execute("commit").await.unwrap();
    let jobs: i64 = sqlx::query_scalar("select count(*) from jobs").fetch_one(&world.pool).await.unwrap();
    assert_eq!(jobs, 1, "the caller's insert was rolled back by a dry run");
}

#[tokio::test]
async fn migrating_in_a_transaction_begun_by_hand_does_not_commit_it() {
    let world = World::new().await;
    world.sql("create table jobs (id int)").await;
    let mut conn = world.connect().await;
    conn.execute("begin; insert into jobs values (1)").await.unwrap();
    let _ = migrate::run(&mut conn).await;
    conn.execute("rollback").await.unwrap();
    let jobs: i64 = sqlx::query_scalar("select count(*) from jobs").fetch_one(&world.pool).await.unwrap();
    assert_eq!(jobs, 0, "the caller's insert was committed by the migration");
}

/// The reservation may be spent when the last of its limits is ready. Until then all of it can be cancelled, for none
/// of it was spent.
#[tokio::test]
async fn cancelling_several_limits_before_the_reservation_is_ready_gives_all_of_it_back() {
    let world = World::new().await;
    let [ready, owing] =
        [Limit::token_bucket("ready", 10, EVER), Limit::token_bucket("owing", 10, MINUTE).max_reserved(10)];
    let mut teller = Teller::of(&world).await;
    left(teller.consume(0.0, owing.global().cost(10)).await);
    let ask = [ready.global().cost(6), owing.global().cost(5)];
    let booked = LIMITER.at(second(0.0)).reserve(&mut teller.tx, ask).await.unwrap().granted().unwrap();
    assert_eq!(booked.ready_at, second(30.0));
    LIMITER.at(second(1.0)).cancel(&mut teller.tx, booked).await.unwrap();
    assert_eq!(teller.row(&owing, "").await.unwrap().0, Tokens::ZERO, "this one is given back");
    assert_eq!(
        teller.row(&ready, "").await.unwrap().0,
        tokens(10),
        "six were not given back, 29 s too early to be spent"
    );
}

#[tokio::test]
async fn the_sql_text_needs_no_right_to_create_schemas_where_the_schema_is_there() {
    let world = World::unmigrated().await;
    let role = world.role().await;
    world.sql(&format!("create schema tollgate authorization {role}")).await;
    let mut conn = world.connect().await;
    sqlx::raw_sql(AssertSqlSafe(format!("set role {role}"))).execute(&mut conn).await.unwrap();
    let applied = sqlx::raw_sql(AssertSqlSafe(migrate::sql())).execute(&mut conn).await;
    assert!(applied.is_ok(), "{}", applied.unwrap_err());
}

/// `migrate up` does so under an advisory lock; the text that it prints takes none.
#[tokio::test]
async fn the_sql_text_can_be_run_by_several_at_once_and_beside_the_command() {
    let world = World::unmigrated().await;
    let mut runners = Vec::new();
    for runner in 0..8 {
        let mut conn = world.connect().await;
        sqlx::raw_sql("set lock_timeout = '10min'").execute(&mut conn).await.unwrap();
        runners.push(tokio::spawn(async move {
            if runner % 2 == 0 {
                sqlx::raw_sql(AssertSqlSafe(migrate::sql()))
                    .execute(&mut conn)
                    .await
                    .map(|_| ())
                    .map_err(|e| e.to_string())
            } else {
                migrate::run(&mut conn).await.map(|_| ()).map_err(|e| e.to_string())
            }
        }));
    }
    let mut failed = Vec::new();
    for runner in runners {
        failed.extend(runner.await.unwrap().err());
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

/// Some services set a search path that names `pg_catalog` late, to stop the clock for tests.
#[tokio::test]
async fn the_clock_is_the_databases_whatever_the_search_path() {
    let world = World::new().await;
    world
        .sql(
            "create schema frozen;
             create function frozen.clock_timestamp() returns timestamptz language sql
               as $$ select 'epoch'::timestamptz $$",
        )
        .await;
    let mut conn = world.connect().await;
    conn.execute("set search_path = frozen, public, pg_catalog").await.unwrap();
    let limit = Limit::token_bucket("path", 5, EVER);
    let mut tx = conn.begin().await.unwrap();
    let grant = LIMITER.consume(&mut tx, limit.global()).await.unwrap().granted().unwrap();
    assert!(grant.decided_at > second(0.0), "decided at {}", grant.decided_at);
}

/// One row unwritten is noticed, and so is one of several, whether the row is new or not.
#[tokio::test]
async fn a_grant_whose_rows_were_not_written_is_an_error() {
    let world = World::new().await;
    let limit = Limit::token_bucket("unwritten", 2, EVER);
    let mut tx = world.pool.begin().await.unwrap();
    LIMITER.consume(&mut tx, [limit.key(1), limit.key(2)]).await.unwrap().granted().unwrap();
    tx.commit().await.unwrap();
    world
        .sql(
            "create function skip() returns trigger language plpgsql as $$ begin return null; end $$;
             create trigger skip before update on tollgate.durable for each row execute function skip()",
        )
        .await;
    for asks in [vec![1], vec![1, 2], vec![1, 3], vec![3]].map(|keys| keys.into_iter().map(|key| limit.key(key))) {
        let mut tx = world.pool.begin().await.unwrap();
        let answer = LIMITER.consume(&mut tx, asks.collect::<Call>()).await;
        assert!(matches!(answer, Err(Error::CorruptRow { .. })), "{answer:?}");
    }
}

/// As in a rolling deploy that changes it: each has a row of its own.
#[tokio::test]
async fn a_limit_under_both_storages_grants_the_sum_and_a_debt_in_one_binds_nobody_in_the_other() {
    let world = World::new().await;
    let durable = Limit::token_bucket("moved", 10, EVER).max_reserved(5);
    let ephemeral = Limit::token_bucket("moved", 10, EVER).ephemeral();
    let limiter = LIMITER.at(second(0.0));
    let mut tx = world.pool.begin().await.unwrap();
    let _ = limiter.reserve(&mut tx, durable.key("ada").cost(15)).await.unwrap().granted().unwrap();
    let _ = limiter.consume(&mut tx, ephemeral.key("ada").cost(10)).await.unwrap().granted().unwrap();
    for limit in [&durable, &ephemeral] {
        assert!(!limiter.consume(&mut tx, limit.key("ada")).await.unwrap().is_granted());
    }
    let both = || [durable.key("ada"), ephemeral.key("ada")];
    let refused = limiter.consume(&mut tx, both()).await;
    assert!(matches!(refused, Err(Error::Call { source: CallError::ConflictingDefinitions, .. })), "{refused:?}");
    let refused = world.gate().consume(both()).await;
    assert!(matches!(refused, Err(Error::Call { source: CallError::ConflictingDefinitions, .. })), "{refused:?}");
    tx.commit().await.unwrap();
    assert_eq!(world.left(&durable, "ada").await.unwrap(), tokens(-5));
    assert_eq!(world.left(&ephemeral, "ada").await.unwrap(), tokens(0));
}

/// Prepared statements outlive changes of tables and settings.
#[tokio::test]
async fn statements_survive_a_new_column_and_a_new_index() {
    let world = World::new().await;
    let limit = Limit::token_bucket("altered", 50, EVER);
    let mut conn = world.connect().await;
    for change in [
        "select 1",
        "alter table tollgate.durable add column note text",
        "create index on tollgate.durable (full_at)",
        "set plan_cache_mode = force_generic_plan",
        "set jit_above_cost = 0",
        "set enable_nestloop = off; set enable_indexscan = off; set enable_bitmapscan = off",
    ] {
        if change.starts_with("set") {
            conn.execute(change).await.unwrap();
        } else {
            world.sql(change).await;
        }
        for _ in 0..3 {
            let mut tx = conn.begin().await.unwrap();
            let _ = LIMITER.consume(&mut tx, [limit.key(1), limit.key(2)]).await.unwrap().granted().unwrap();
            let _ = LIMITER.consume(&mut tx, limit.key(3)).await.unwrap().granted().unwrap();
            tx.commit().await.unwrap();
        }
    }
}

/// A plan that locks rows once for each row of the table finds others each time, because the rows that it has written
/// are gone. The planner takes it for a table that it believes to hold one row.
#[tokio::test]
async fn whatever_the_plan_a_swap_writes_what_was_decided_and_nothing_else() {
    let world = World::new().await;
    for plan in ["enable_hashjoin", "enable_mergejoin", "enable_tidscan", "enable_material"] {
        world.sql(&format!("alter database {} set {plan} = off", world.name())).await;
    }
    let gate = patient(&pool(&world.url(), 2).await).lanes(1).build();
    let mut conn = world.connect().await;
    let limits = [Limit::token_bucket("spread", 100, EVER).shards(4), Limit::token_bucket("one", 100, EVER)];
    for [spread, one] in [limits.clone(), limits.map(Limit::ephemeral)] {
        gate.debit(one.key("a")).await.unwrap();
        for table in ["durable", "ephemeral"] {
            world.sql(&format!("vacuum analyze tollgate.{table}")).await;
        }
        // Now all rows are there.
        for request in [spread.global().cost(4), one.key("b")] {
            gate.debit(request).await.unwrap();
        }
        for _ in 0..5 {
            let mut tx = conn.begin().await.unwrap();
            LIMITER.consume(&mut tx, spread.global()).await.unwrap().granted().unwrap();
            tx.commit().await.unwrap();
            gate.consume([spread.global().cost(50), one.key("a")]).await.unwrap().granted().unwrap();
            gate.credit(spread.global().cost(50)).await.unwrap();
            let held = Call::from([one.key("a"), one.key("b")]).lapses_after(EVER);
            gate.consume(held).await.unwrap().granted().unwrap();
        }
        for _ in 0..5 {
            // Each stands alone in their batch.
            let (a, b) = tokio::join!(gate.consume(one.key("c")), gate.consume(one.key("d")));
            assert!(a.unwrap().is_granted() && b.unwrap().is_granted());
        }
        let c_and_d = ["c", "d"].map(|key| (one.key(key), 95));
        for (request, left) in
            [(spread.global(), 91), (one.key("a"), 89), (one.key("b"), 94)].into_iter().chain(c_and_d)
        {
            assert_eq!(gate.balance(request).await.unwrap().remaining, tokens(left));
        }
    }
}
