//! Through a PgBouncer in transaction mode that does not follow named statements.

use std::process::Command;

use chrono::DateTime;
use sqlx::{Connection, PgConnection, PgPool};
use tokio::task::JoinSet;
use tollgate::{BegunByHand, Error, Limit, Limiter, MINUTE, Request, SECOND, SetupFault, Sweeper, migrate};

use crate::pgbouncer::{self, PgBouncer, follows_named_statements};
use crate::world::{NAMED, POOLER, World, pid};

const UNNAMED: Limiter = Limiter::new().unnamed_statements();
const DURABLE: Limit = Limit::token_bucket("durable", 1000, Limit::MAX_PERIOD).max_reserved(1000);
const EPHEMERAL: Limit = Limit::token_bucket("ephemeral", 1000, Limit::MAX_PERIOD).ephemeral();
const SPREAD: Limit = Limit::token_bucket("spread", 1000, Limit::MAX_PERIOD).max_reserved(1000).shards(4);

/// A pooler before the database of a world.
fn before(world: &World, servers: u32) -> PgBouncer {
    PgBouncer::start(&world.direct_url(), servers)
}

async fn connect(pooler: &PgBouncer, world: &World) -> PgConnection {
    PgConnection::connect(&pooler.url(world.name())).await.unwrap()
}

/// The core of the suite, in a process in which all code under test goes through a pooler that follows named
/// statements, if the one that is installed can. `distributed::suite` has it through one that does not. So do
/// `conformance::`, `memory::` and `wait::`, but for tests that count statements: `TOLLGATE_TEST_POOLER=named ./dev
/// test conformance::`.
#[test]
fn the_core_suite_passes_through_a_pooler_that_follows_named_statements() {
    if std::env::var_os(POOLER).is_some() || pgbouncer::is_missing() || !follows_named_statements() {
        return;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["consume::", "contention::", "gate::verbs::agreement::", "receipts::", "transactions::"]);
    // The first prepares statements by name. The others take long, and send none that the rest does not.
    for skipped in [
        "named_statements_are_prepared_once",
        "gate::batch::contention",
        "shards::contention",
        "beside_resets_and_sweeps",
        "beside_a_clean_up",
    ] {
        command.args(["--skip", skipped]);
    }
    command.args(["--test-threads", "2"]).env(POOLER, NAMED);
    let output = command.output().unwrap();
    let told = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{told}\n{}", String::from_utf8_lossy(&output.stderr));
}

/// Two server connections for thirty-two clients: hardly a transaction runs on the connection of the one before it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_clients_than_connections_are_decided_to_the_token() {
    const CLIENTS: i64 = 32;
    const ROUNDS: i64 = 2;
    if pgbouncer::is_missing() {
        return;
    }
    let world = World::new().await;
    let pooler = before(&world, 2);
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        let mut conn = connect(&pooler, &world).await;
        clients.spawn(async move {
            for _ in 0..ROUNDS {
                // Twelve are taken and ten given back, in either table two.
                let mut tx = conn.begin().await.unwrap();
                let ask = |cost: u32| {
                    [DURABLE.key("k").cost(cost), EPHEMERAL.key("k").cost(cost), DURABLE.key(client).cost(cost)]
                };
                let grant = UNNAMED.consume(&mut tx, ask(5)).await.unwrap().granted().unwrap();
                let booked = UNNAMED.reserve(&mut tx, DURABLE.key("k").cost(7)).await.unwrap();
                tx.commit().await.unwrap();

                let mut tx = conn.begin().await.unwrap();
                UNNAMED.settle(&mut tx, grant, 2).await.unwrap();
                UNNAMED.settle(&mut tx, booked.granted().unwrap(), 0).await.unwrap();
                UNNAMED.debit(&mut tx, DURABLE.key("k")).await.unwrap();
                UNNAMED.credit(&mut tx, DURABLE.key("k")).await.unwrap();
                assert!(UNNAMED.check(&mut tx, DURABLE.key("k")).await.unwrap().is_granted());
                UNNAMED.reset(&mut tx, DURABLE.key(client)).await.unwrap();
                tx.commit().await.unwrap();

                // Two tokens are taken from a limit of several rows; half of the clients ask all of its rows at once.
                let mut tx = conn.begin().await.unwrap();
                let estimate = if client % 2 == 0 { 2 } else { 260 };
                let booked = UNNAMED.reserve(&mut tx, SPREAD.key("k").cost(estimate)).await.unwrap();
                UNNAMED.settle(&mut tx, booked.granted().unwrap(), 2).await.unwrap();
                tx.commit().await.unwrap();
            }
        });
    }
    clients.join_all().await;
    let mut tx = world.pool.begin().await.unwrap();
    for row in [DURABLE.key("k"), EPHEMERAL.key("k"), SPREAD.key("k")] {
        let left = Limiter::new().balance(&mut tx, row).await.unwrap().remaining;
        // A millionth of a token may have come back.
        assert_eq!(left.micros() / 1_000_000, 1000 - 2 * CLIENTS * ROUNDS);
    }
}

/// A caller hears that the transaction is lost, whether it was about to ask or waited for a row, and nothing is taken.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pooler_that_is_gone_in_mid_call_takes_the_transaction_with_it() {
    if pgbouncer::is_missing() {
        return;
    }
    let world = World::new().await;
    let mut pooler = before(&world, 4);
    for request in [DURABLE.key("k"), EPHEMERAL.key("k"), SPREAD.key("k").cost(900)] {
        let mut holder = world.pool.begin().await.unwrap();
        Limiter::new().debit(&mut holder, request.clone()).await.unwrap();
        let [mut first, mut second] = [connect(&pooler, &world).await, connect(&pooler, &world).await];
        let mut asking = first.begin().await.unwrap();
        UNNAMED.check(&mut asking, request.clone()).await.unwrap().granted().unwrap();
        let mut waiting = second.begin().await.unwrap();
        let backend = pid(&mut waiting).await;
        let lost = {
            let waits = async { UNNAMED.consume(&mut waiting, request.clone()).await };
            let kill = async {
                world.until_blocked(backend).await;
                pooler.kill();
            };
            tokio::join!(waits, kill).0.map(drop)
        };
        for lost in [lost, UNNAMED.consume(&mut asking, request.clone()).await.map(drop)] {
            assert!(matches!(&lost, Err(error @ Error::Database { .. }) if error.is_retryable()), "{lost:?}");
        }
        holder.rollback().await.unwrap();
        pooler.restart();
        let mut conn = connect(&pooler, &world).await;
        let mut tx = conn.begin().await.unwrap();
        assert!(UNNAMED.balance(&mut tx, request.clone()).await.unwrap().is_full());
        UNNAMED.consume(&mut tx, request).await.unwrap().granted().unwrap();
    }
}

/// Prepared and executed in two round trips, a statement may meet two servers unless a transaction keeps it on one.
#[tokio::test]
async fn without_names_every_verb_wants_a_transaction() {
    if pgbouncer::is_missing() {
        return;
    }
    let world = World::new().await;
    let pooler = before(&world, 1);
    let mut conn = connect(&pooler, &world).await;
    for request in [DURABLE.key("k"), EPHEMERAL.key("k"), SPREAD.key("k")] {
        let answers = [
            UNNAMED.consume(&mut BegunByHand(&mut conn), request.clone()).await.map(drop),
            UNNAMED.check(&mut conn, request.clone()).await.map(drop),
            UNNAMED.balance(&mut conn, request.clone()).await.map(drop),
            UNNAMED.reset(&mut BegunByHand(&mut conn), request.clone()).await.map(drop),
            UNNAMED.lock_timeout(MINUTE).consume(&mut BegunByHand(&mut conn), request.clone()).await.map(drop),
        ];
        for answer in answers {
            assert!(matches!(answer, Err(Error::NotInTransaction)), "{answer:?}");
        }
        sqlx::raw_sql("begin").execute(&mut conn).await.unwrap();
        UNNAMED.consume(&mut BegunByHand(&mut conn), request.clone()).await.unwrap().granted().unwrap();
        assert!(!UNNAMED.balance(&mut conn, request.clone()).await.unwrap().is_full());
        sqlx::raw_sql("savepoint a").execute(&mut conn).await.unwrap();
        UNNAMED.consume(&mut BegunByHand(&mut conn), request.clone()).await.unwrap().granted().unwrap();
        sqlx::raw_sql("rollback to a").execute(&mut conn).await.unwrap();
        UNNAMED.reset(&mut BegunByHand(&mut conn), request).await.unwrap();
        sqlx::raw_sql("rollback").execute(&mut conn).await.unwrap();
    }
    assert_eq!(world.rows().await, 0);
}

/// The name is taken, is gone, or is somebody else's: whichever it is, the remedy is the same.
#[tokio::test]
async fn named_statements_fail_by_name_and_name_the_remedy() {
    if pgbouncer::is_missing() {
        return;
    }
    let world = World::new().await;
    let pooler = before(&world, 1);
    let [mut first, mut second, mut third] =
        [connect(&pooler, &world).await, connect(&pooler, &world).await, connect(&pooler, &world).await];
    consume(&mut first, DURABLE.key("k")).await.unwrap();
    told(consume(&mut second, EPHEMERAL.key("k")).await, "already exists");

    pooler.command("reconnect").await;
    told(consume(&mut first, DURABLE.key("k")).await, "does not exist");

    pooler.command("reconnect").await;
    sqlx::query("select $1::text").bind("of the host's own").execute(&mut third).await.unwrap();
    told(consume(&mut first, DURABLE.key("k")).await, "bind message supplies");
    assert_eq!(world.rows().await, 1);

    // Not one of them is needed.
    let mut fresh = connect(&pooler, &world).await;
    let mut tx = fresh.begin().await.unwrap();
    UNNAMED.consume(&mut tx, DURABLE.key("k")).await.unwrap().granted().unwrap();
    tx.commit().await.unwrap();
}

async fn consume(conn: &mut PgConnection, request: Request) -> Result<(), Error> {
    let mut tx = conn.begin().await.unwrap();
    let consumed = Limiter::new().consume(&mut tx, request).await;
    if consumed.is_ok() {
        tx.commit().await.unwrap();
    } else {
        tx.rollback().await.unwrap();
    }
    consumed.map(|decision| drop(decision.granted().unwrap()))
}

#[track_caller]
fn told(answer: Result<(), Error>, reason: &str) {
    let error = answer.unwrap_err();
    assert!(
        matches!(error, Error::Setup { fault: SetupFault::NamedStatements, .. }) && !error.is_retryable(),
        "{error:?}"
    );
    assert!(error.to_string().contains("(say `unnamed_statements()`"), "{error}");
    assert!(std::error::Error::source(&error).unwrap().to_string().contains(reason), "{error:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sweepers_go_through_a_pooler_beside_each_other() {
    const QUICK: Limit = Limit::token_bucket("quick", 1000, SECOND);
    if pgbouncer::is_missing() {
        return;
    }
    let world = World::new().await;
    let pooler = before(&world, 2);
    let long_ago = DateTime::from_timestamp_secs(1_600_000_000).unwrap();
    for key in 0..100 {
        let mut tx = world.pool.begin().await.unwrap();
        Limiter::new().at(long_ago).consume(&mut tx, QUICK.key(key)).await.unwrap().granted().unwrap();
        tx.commit().await.unwrap();
    }
    let pool = PgPool::connect(&pooler.url(world.name())).await.unwrap();
    let sweeper = Sweeper::new().batch(7).unnamed_statements();
    let (one, other) = tokio::join!(sweeper.sweep(&pool), sweeper.sweep(&pool));
    // The sweeper that comes second leaves to the first the rows that it is at.
    assert_eq!(one.unwrap().rows() + other.unwrap().rows() + sweeper.sweep(&pool).await.unwrap().rows(), 100);
    assert_eq!(world.rows().await, 0);
}

/// The lock of the migrator lasts as long as its transaction, and nothing that it says is prepared.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn migrators_go_through_a_pooler_all_at_once() {
    if pgbouncer::is_missing() {
        return;
    }
    let world = World::unmigrated().await;
    let pooler = before(&world, 3);
    let mut runners = JoinSet::new();
    for _ in 0..12 {
        let mut conn = connect(&pooler, &world).await;
        runners.spawn(async move { migrate::run(&mut conn).await.unwrap().len() });
    }
    let mut applied = runners.join_all().await;
    applied.sort_unstable();
    let all = applied.pop().unwrap();
    assert!(all > 0 && applied.iter().all(|applied| *applied == 0), "{applied:?}");

    let [mut one, mut other] = [connect(&pooler, &world).await, connect(&pooler, &world).await];
    for _ in 0..3 {
        for conn in [&mut one, &mut other] {
            migrate::validate(conn).await.unwrap();
            assert_eq!(migrate::status(conn).await.unwrap().applied.len(), all);
            assert_eq!(migrate::dry_run(conn).await.unwrap().len(), 0);
        }
    }
    sqlx::raw_sql("begin").execute(&mut one).await.unwrap();
    let refused = migrate::run(&mut one).await;
    assert!(matches!(refused, Err(migrate::MigrateError::BegunByHand)), "{refused:?}");
}
