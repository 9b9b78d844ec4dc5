//! Tables with parts, as Citus distributes them: each statement names one part, and so one node. Here there is one
//! node. The tests show that the library sends no other statements, that its answers by these statements are right,
//! too, and that no process works on parts that the tables do not have.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sqlx::{Connection, PgConnection};
use tollgate::{BegunByHand, Error, HOUR, Limit, Limiter, MINUTE, SECOND, SetupFault, Storage, Tokens, migrate};

use crate::cancellation::{Cut, Cuts};
use crate::gate::stage::{EVER, patient, pool, soon};
use crate::teller::{both, run};
use crate::traced::traced;
use crate::world::{CITUS_URL, DISTRIBUTED, NUMBERS, OWNER, PARTS, POOLER, World};
use crate::world::{is_on_citus, part_of, second, shard_of};

const LIMITER: Limiter = Limiter::new().parts(PARTS);

/// The core of the suite, in a process in which all tables have parts. So do `conformance::`, `gate::memory::refusals::`
/// and `gate::promise::`, which take two minutes more: `TOLLGATE_TEST_DISTRIBUTED=1 ./dev test conformance::`.
#[test]
fn the_core_suite_passes_with_parts() {
    if is_nested() {
        return;
    }
    run_core_suite([], |command| command);
}

/// The same where the parts lie on the nodes of a cluster whose nodes trust each other.
#[test]
fn the_core_suite_passes_on_citus() {
    let Some((url, _alone)) = cluster() else { return };
    let more = ["calls::", "gate::nodes::", "leases::", "meter::", "sliding::", "nodes_are_told_settings_alone"];
    let on_citus_alone = ["the_functions_refuse_on_citus", "what_citus_gives_back_is_whole"];
    // Citus takes no sweeper.
    let swept = [
        "the_sweeper_deletes_stale_shards",
        "goes_when_its_last_grant_has_left_it",
        "an_id_is_forgotten_when",
        "a_sweeper_gives_back",
        "and_pays_only_what_it_has",
        "no_debt_is_lost_to_a_sweep",
        "a_sweep_is_seen_by_nobody",
    ];
    // They write, lock or lay out by hand rows in no part, or objects that Citus does not take.
    let by_hand =
        ["shards::last_moment", "without_the_database_an_id_is", "run_holds_a_lease_until", "the_doctor_names_leases"];
    // These tests ask the SQL functions, too, which refuse here.
    let by_functions = [
        "of_several_the_strictest_effect_counts",
        "numbers_that_were_set_at_one_instant_count",
        "one_that_begins_later_changes_nothing_before",
        "a_row_that_cannot_be_read_denies_and_is_shown",
    ];
    // Citus does not pass on a lock timeout that is set by hand, so the test waits without an end. REPEATABLE READ is a
    // snapshot for each node: one that comes after the winner's has lost no race.
    let by_node = ["a_lock_timeout_of_the_callers_own", "a_lost_race_at_repeatable_read"];
    // It goes by the count of statements, among them those of a connection that is given back, and by the order of
    // calls in two parts.
    let by_order = ["who_waits_for_much_is_not_overtaken"];
    let skipped = swept
        .iter()
        .chain(&by_hand)
        .chain(&by_functions)
        .chain(&by_node)
        .chain(&by_order)
        .flat_map(|test| ["--skip", test]);
    run_core_suite(more.into_iter().chain(on_citus_alone).chain(skipped), |command| command.env("DATABASE_URL", url));
}

/// The storm over that cluster. It kills the nodes, coordinator and workers, which must run on Linux and be nobody's
/// else.
#[test]
fn the_books_balance_in_a_storm_on_citus() {
    let Some((url, _alone)) = cluster() else { return };
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["storm::whatever_breaks_books_balance_and_nothing_is_over", "--exact", "--nocapture"])
        .env("DATABASE_URL", url);
    println!("{}", run_nested(&mut command));
}

/// The cluster, for one test at a time.
fn cluster() -> Option<(OsString, MutexGuard<'static, ()>)> {
    static ALONE: Mutex<()> = Mutex::new(());
    let Some(url) = std::env::var_os(CITUS_URL) else {
        // Straight to the terminal: the harness shows what is printed only where a test fails.
        let skipped = "SKIPPED: nothing was tested on Citus (CITUS_URL=postgres://postgres@coordinator:5432/postgres)";
        let told = writeln!(std::io::stderr(), "{skipped}");
        told.unwrap();
        return None;
    };
    (!is_nested()).then(|| (url, ALONE.lock().unwrap_or_else(PoisonError::into_inner)))
}

/// Whether another test runs these.
fn is_nested() -> bool {
    [DISTRIBUTED, POOLER].into_iter().any(|chosen| std::env::var_os(chosen).is_some())
}

fn run_core_suite<'a>(more: impl IntoIterator<Item = &'a str>, on: impl FnOnce(&mut Command) -> &mut Command) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["consume::", "contention::", "each::", "first_of::", "gate::verbs::agreement::"]);
    command.args(["gate::memory::prefetch::", "overrides::", "receipts::", "shards::", "transactions::"]);
    // They count statements, hold one of a certain number, or name what fails: here it is another. The library does not
    // notice that a transaction of sqlx is ended by hand.
    let other = [
        "ended_by_hand_is_none",
        "is_held_between_the_statements",
        "the_failure_names_limit_and_step",
        "named_statements_are_prepared_once",
        "decides_a_list_of_calls_in_few_batches",
        "shards::cost",
    ];
    // They write rows by hand, of part 0.
    let by_hand = [
        "a_refusal_after_a_wait_leaves_no_row_behind",
        "a_row_that_appears_or_comes_and_goes",
        "the_clock_is_read_after_the_wait_for_an_insert",
        "receipts::a_receipt_of_an_older_definition_never_lowers_a_row",
        "receipts::a_reservation_is_cancelled",
        "receipts::settling_gives_back",
    ];
    // They take long, and ask for no more than the rest.
    let long = ["beside_resets_and_sweeps", "beside_a_clean_up", "a_hundred_calls", "two_deploys"];
    for skipped in other.iter().chain(&by_hand).chain(&long) {
        command.args(["--skip", skipped]);
    }
    run_nested(on(command.args(more).args(["--test-threads", "2"])));
}

/// Runs tests with parts, and returns their output.
fn run_nested(command: &mut Command) -> String {
    let output = command.env(DISTRIBUTED, "1").output().unwrap();
    let told = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{told}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(!told.contains(" 0 passed"), "{told}");
    told
}

/// Judged by the statements that Citus was seen to send to one node: see `docs/citus.md`. A sweep goes by the places of
/// rows, on each node.
#[test]
fn each_statement_names_one_part() {
    let statements = statements();
    assert!(statements.len() >= 20, "{statements:?}");
    for statement in &statements {
        let text: String = statement.lines().filter(|line| !line.starts_with("--")).collect::<Vec<_>>().join("\n");
        // The coordinator crashes where a column is set to a slice itself.
        assert!(!text.contains("list = ("), "{text}");
        // Citus takes no CASE around a function that is not immutable, where a statement begins with a write.
        let is_write = ["update", "delete"].iter().any(|verb| text.starts_with(verb));
        assert!(!is_write || !text.contains("case when "), "{text}");
        // A text in quotes names a table to a function, which reads no row of it.
        let text: String = text.split('\'').step_by(2).collect();
        let tables: usize = ["ephemeral", "durable", "calls"]
            .map(|table| text.matches(&format!("tollgate.{table}")).count())
            .iter()
            .sum();
        if text.starts_with("insert") {
            let selects = text.contains("values ($1, ") || text.contains("\nselect $1, ");
            assert!(text.contains(" (part, name, key, ") && selects && tables == 1, "{text}");
        } else {
            assert!(
                tables > 0 && text.matches("part = $1").count() == tables,
                "each table is asked by the part: {text}"
            );
        }
    }
}

#[tokio::test]
async fn nothing_else_is_said() {
    let world = World::of_parts(PARTS).await;
    let known = statements();
    for limit in [Limit::token_bucket("one", 10, EVER), sharded()] {
        for limit in both(&limit) {
            let mut tx = world.pool.begin().await.unwrap();
            let ask = || limit.key("k");
            let with = |other| [limit.key("k"), limit.key(other), Limit::token_bucket("other", 5, MINUTE).global()];
            LIMITER.consume(&mut tx, ask().cost(8)).await.unwrap().granted().unwrap();
            LIMITER.consume(&mut tx, ask().cost(8)).await.unwrap().denied().unwrap();
            LIMITER.consume(&mut tx, with("l")).await.unwrap().granted().unwrap();
            LIMITER.consume(&mut tx, with("absent").map(|ask| ask.cost(4))).await.unwrap().denied().unwrap();
            LIMITER.credit(&mut tx, ask()).await.unwrap();
            LIMITER.debit(&mut tx, ask().cost(20)).await.unwrap();
            LIMITER.lock_timeout(SECOND).reset(&mut tx, ask()).await.unwrap();
            LIMITER.check(&mut tx, ask()).await.unwrap().granted().unwrap();
            LIMITER.balance(&mut tx, ask()).await.unwrap();
            let grant = LIMITER.consume(&mut tx, ask()).await.unwrap().granted().unwrap();
            LIMITER.settle(&mut tx, grant, 2).await.unwrap();
            let booked = LIMITER.reserve(&mut tx, ask()).await.unwrap().granted().unwrap();
            LIMITER.cancel(&mut tx, booked).await.unwrap();
            let said = prepared(&mut tx).await;
            assert!(said.len() >= 5, "{said:?}");
            assert_eq!(said.difference(&known).collect::<Vec<_>>(), Vec::<&String>::new());
            tx.commit().await.unwrap();
        }
    }
}

#[tokio::test]
async fn nor_by_a_gate() {
    let world = World::of_parts(PARTS).await;
    let pool = pool(&world.url(), 1).await;
    let gate = patient(&pool).parts(PARTS).remember_refusals(MINUTE).build();
    for limit in both(&Limit::token_bucket("ten", 10, EVER)) {
        let asks = |key: &'static str| [limit.key(key), limit.key("both")];
        for _ in 0..3 {
            gate.consume(limit.key("one")).await.unwrap().granted().unwrap();
            gate.consume(asks("several")).await.unwrap().granted().unwrap();
        }
        assert_eq!(gate.balance(limit.key("both")).await.unwrap().remaining, Tokens::new(7));
        gate.consume(limit.key("one").cost(8)).await.unwrap().denied().unwrap();
        gate.reset(limit.key("one")).await.unwrap();
        let grant = gate.consume(limit.key("one")).await.unwrap().granted().unwrap();
        gate.settle(grant, 0).await.unwrap();
        assert!(gate.balance(limit.key("one")).await.unwrap().is_full());
    }
    let said = prepared(&mut pool.acquire().await.unwrap()).await;
    assert!(said.len() >= 8, "{said:?}");
    assert_eq!(said.difference(&statements()).collect::<Vec<_>>(), Vec::<&String>::new());
}

/// A batch takes two statements for the calls of one part, however many parts others ask.
#[tokio::test]
async fn a_batch_of_a_gate_is_about_one_part() {
    let world = World::of_parts(PARTS).await;
    let pool = pool(&world.url(), 1).await;
    let gate = patient(&pool).parts(PARTS).lanes(1).statement_timeout(10 * SECOND).build();
    let (limit, keys) = (Limit::token_bucket("ten", 10, EVER), apart());
    for key in &keys[..2] {
        fill(&world, &limit, key).await;
    }
    stall_part_of(&world, &keys[1]).await;
    let mut admin = world.admin().await;
    let mut blocker = admin.begin().await.unwrap();
    sqlx::raw_sql("lock table public.stall").execute(&mut *blocker).await.unwrap();

    // All are queued before the lane gets its connection.
    let connection = pool.acquire().await.unwrap();
    let [first, stalled, short, last] = [(0, 1), (1, 6), (1, 5), (0, 1)].map(|(key, cost)| {
        let (gate, ask) = (gate.clone(), limit.key(&keys[key]).cost(cost));
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
    let world = World::of_parts(PARTS).await;
    let pool = pool(&world.url(), 2).await;
    let gate = patient(&pool).parts(PARTS).lanes(1).statement_timeout(10 * SECOND).build();
    let (limit, keys) = (Limit::token_bucket("ten", 10, EVER), apart());
    for key in &keys[..2] {
        fill(&world, &limit, key).await;
    }
    stall_part_of(&world, &keys[1]).await;
    let mut admin = world.admin().await;
    let mut blocker = admin.begin().await.unwrap();
    sqlx::raw_sql("lock table public.stall").execute(&mut *blocker).await.unwrap();

    let (crossing, asks) = (gate.clone(), [limit.key(&keys[0]), limit.key(&keys[1])]);
    let stalled = tokio::spawn(async move { crossing.consume(asks).await });
    world.until_anyone_is_blocked().await;
    soon(gate.consume(limit.key(&keys[2]))).await.unwrap().granted().unwrap();
    blocker.commit().await.unwrap();
    soon(stalled).await.unwrap().unwrap().granted().unwrap();
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

/// Rows of any limits for one key lie in one part; stored rows lie where the hash said when they were written.
#[tokio::test]
async fn each_row_lies_in_the_part_of_its_key() {
    let world = World::of_parts(PARTS).await;
    let gate = patient(&world.pool).parts(PARTS).build();
    let mut seen = BTreeSet::new();
    for key in 0..40 {
        let limits = [both(&Limit::token_bucket("one", 10, EVER)), both(&sharded())].concat();
        let mut tx = world.pool.begin().await.unwrap();
        for limit in &limits[1..] {
            LIMITER.debit(&mut tx, limit.key(key)).await.unwrap();
        }
        tx.commit().await.unwrap();
        gate.consume(limits[0].key(key)).await.unwrap().granted().unwrap();
        let sql = "select part from tollgate.ephemeral where key = $1
                   union select part from tollgate.durable where key = $1";
        let key = key.to_string();
        let found: Vec<i16> = sqlx::query_scalar(sql).bind(&key).fetch_all(&world.pool).await.unwrap();
        assert_eq!(found, [part_of(&key)], "{key}");
        seen.extend(found);
    }
    assert_eq!(seen, BTreeSet::from(NUMBERS));
    // Numbers by the hash of 2026.
    assert_eq!(["", "ada", "42"].map(|key| shard_of(key, 2048)), [294, 233, 1260]);
}

/// Citus hashes the number of a part once more, and cuts the range of these hashes into as many shards as there are
/// parts: no two are to meet in one. This goes by the server's own hash.
#[tokio::test]
async fn parts_fall_into_different_shards_whatever_their_number() {
    let world = World::new().await;
    world.sql("alter table tollgate.durable drop constraint durable_part").await;
    let limit = Limit::token_bucket("ten", 10, EVER);
    let keys: Vec<_> = (0..40).map(|key: u16| key.to_string()).collect();
    for parts in (0..=11).map(|power| 1_u16 << power) {
        let mut tx = world.pool.begin().await.unwrap();
        let asks = keys.iter().map(|key| limit.key(key));
        Limiter::new().parts(parts).consume(&mut tx, asks).await.unwrap().granted().unwrap();
        // Each key lies in the first part that falls into its shard, and each shard has one.
        let sql = "with numbers as (
                       select min(n)::int2 as part, ((hashint2(n::int2)::int8 + 2147483648) * $1 >> 32)::int4 as shard
                         from generate_series(8 * $1, 16 * $1 - 1) n group by 2
                   )
                   select (select count(*) from numbers),
                          (select count(*) from unnest($2::text[], $3::int4[]) asked (key, shard)
                             join numbers using (shard) join tollgate.durable using (part, key))";
        let shards: Vec<_> = keys.iter().map(|key| i32::from(shard_of(key, parts))).collect();
        let found: (i64, i64) =
            sqlx::query_as(sql).bind(i32::from(parts)).bind(&keys).bind(shards).fetch_one(&mut *tx).await.unwrap();
        assert_eq!(found, (parts.into(), 40), "{parts}");
    }
}

/// No transaction's number tells it: each node counts its own.
#[tokio::test]
async fn outside_a_transaction_nothing_is_taken_whoever_began_it() {
    let world = World::of_parts(PARTS).await;
    let mut conn = world.connect().await;
    for limit in both(&Limit::token_bucket("ten", 10, MINUTE)).into_iter().chain(both(&sharded())) {
        for limiter in [LIMITER, LIMITER.lock_timeout(SECOND)] {
            let refused = limiter.consume(&mut BegunByHand(&mut conn), limit.key("k")).await;
            assert!(matches!(refused, Err(Error::NotInTransaction)), "{refused:?}");
            let refused = limiter.debit(&mut BegunByHand(&mut conn), limit.key("k")).await;
            assert!(matches!(refused, Err(Error::NotInTransaction)), "{refused:?}");
            let refused = limiter.consume(&mut BegunByHand(&mut conn), apart().iter().map(|key| limit.key(key))).await;
            assert!(matches!(refused, Err(Error::NotInTransaction)), "{refused:?}");
            assert!(limiter.balance(&mut conn, limit.key("k")).await.unwrap().is_full());
        }
        sqlx::raw_sql("begin").execute(&mut conn).await.unwrap();
        LIMITER.consume(&mut BegunByHand(&mut conn), limit.key("k")).await.unwrap().granted().unwrap();
        sqlx::raw_sql("rollback").execute(&mut conn).await.unwrap();
    }
    assert_eq!(world.rows().await, 0);
}

/// N parts have numbers from 8N to 16N - 1, so no part of one number is one of another. A caller with another number
/// finds no row, and may insert none. Else each number would grant the limit once more.
#[tokio::test]
async fn wrong_parts_are_an_error_with_a_name_and_mint_no_second_row() {
    for tables in [0, 8] {
        let world = World::of_parts(tables).await;
        let mut conn = world.connect().await;
        assert_eq!(migrate::parts(&mut conn).await.unwrap(), tables);
        let limits = [both(&Limit::token_bucket("ten", 10, EVER)), both(&sharded())].concat();
        let keys = apart();
        let right = Limiter::new().parts(tables);
        let mut tx = conn.begin().await.unwrap();
        for limit in &limits {
            for key in &keys {
                right.consume(&mut tx, limit.key(key).cost(10)).await.unwrap().granted().unwrap();
            }
        }
        tx.commit().await.unwrap();
        let rows = world.rows().await;
        for said in [0, 4, 8, 16] {
            let limiter = Limiter::new().parts(said);
            let gate = patient(&world.pool).parts(said).build();
            for limit in &limits {
                for verb in 0..15 {
                    // A limiter without parts notices those of the tables at its first insert.
                    if said == 0 && matches!(verb, 9 | 11 | 13) {
                        continue;
                    }
                    let key = &keys[verb % keys.len()];
                    let (ask, all) = (|| limit.key(key), || keys.iter().map(|key| limit.key(key)));
                    let mut tx = conn.begin().await.unwrap();
                    let granted = match verb {
                        0 => limiter.consume(&mut tx, ask()).await.map(|decision| decision.is_granted()),
                        1 => {
                            let patient = limiter.clone().lock_timeout(SECOND);
                            patient.consume(&mut tx, ask().cost(7)).await.map(|decision| decision.is_granted())
                        }
                        2 => limiter.consume(&mut tx, all()).await.map(|decision| decision.is_granted()),
                        3 => limiter.reserve(&mut tx, ask()).await.map(|decision| decision.is_granted()),
                        // With the right parts these verbs would change the rows, so they are left out.
                        4 | 8..11 if said == tables => Ok(false),
                        4 => limiter.debit(&mut tx, ask()).await.map(|_| true),
                        5 => gate.consume(ask()).await.map(|decision| decision.is_granted()),
                        6 => gate.consume(all()).await.map(|decision| decision.is_granted()),
                        7 => gate.reserve(ask()).await.map(|decision| decision.is_granted()),
                        8 => gate.debit(ask()).await.map(|_| true),
                        9 => limiter.credit(&mut tx, ask()).await.map(|_| true),
                        10 => gate.reset(ask()).await.map(|_| true),
                        // These write nothing, and would find a full bucket.
                        11 => limiter.check(&mut tx, ask()).await.map(|decision| decision.is_granted()),
                        12 => gate.check(ask()).await.map(|decision| decision.is_granted()),
                        13 => limiter.balance(&mut tx, ask()).await.map(|balance| balance.is_full()),
                        _ => gate.balance(ask()).await.map(|balance| balance.is_full()),
                    };
                    drop(tx.commit().await);
                    match granted {
                        Ok(is_granted) => assert!(said == tables && !is_granted, "{said} said to {tables}: {verb}"),
                        Err(Error::Setup { fault: SetupFault::WrongParts, .. }) => assert_ne!(said, tables, "{verb}"),
                        Err(error) => panic!("{said} said to {tables}: {verb}: {error:?}"),
                    }
                    assert_eq!(world.rows().await, rows, "{said} said to {tables}: {verb}");
                }
            }
        }
        for limit in &limits {
            for key in &keys {
                let left = right.balance(&mut conn, limit.key(key)).await.unwrap().remaining;
                assert_eq!(left, Tokens::ZERO);
            }
        }
    }
}

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
        patient(&pool).parts(PARTS).build().consume(asks()).await.unwrap().granted().unwrap();
        let mut tx = pool.begin().await.unwrap();
        LIMITER.lock_timeout(SECOND).consume(&mut tx, asks()).await.unwrap().granted().unwrap();
        tx.commit().await.unwrap();
    });
    let told: Vec<_> = log.lines().filter(|line| line.contains("issuing") && line.contains("lock_timeout")).collect();
    assert!(told.len() >= 4, "{told:?}");
    for line in told {
        assert!(!["begin isolation", "savepoint tollgate"].iter().any(|ours| line.contains(ours)), "{line}");
    }
}

/// Citus makes each table anew, and drops what depends on the old one without a word.
#[tokio::test]
async fn what_citus_gives_back_is_whole() {
    if !is_on_citus() {
        return;
    }
    let world = World::of_parts(PARTS).await;
    let mut owner = world.connect_as(OWNER).await;
    // Citus writes the view anew by the names that the path finds.
    run(&mut owner, "set search_path = pg_catalog").await;
    run(&mut owner, "select tollgate.define('ten', 'token_bucket', 10, '1 hour')").await;
    let limit = Limit::token_bucket("ten", 10, HOUR);
    let mut tx = world.pool.begin().await.unwrap();
    LIMITER.consume(&mut tx, limit.key("k").cost(4)).await.unwrap().granted().unwrap();
    tx.commit().await.unwrap();
    let say = "select tollgate.set_override('ten', 'k', effect => 'unlimited', reason => 'x')";
    run(&mut owner, say).await;

    assert!(migrate::undistribute(&mut owner).await.unwrap());
    migrate::validate(&mut owner).await.unwrap();
    let mut tx = world.pool.begin().await.unwrap();
    let left = Limiter::new().balance(&mut tx, limit.key("k")).await.unwrap().remaining;
    assert!(left >= Tokens::new(6) && left < Tokens::new(10), "{left}");
    tx.rollback().await.unwrap();
    for sql in [
        say,
        "select tollgate.set_override('ten', 'k', effect => 'deny', reason => 'x', label => 'ban')",
        "select tollgate.slow_down('ten', 'l')",
        "select tollgate.granted(tollgate.consume('ten', 'l'))",
        "select tollgate.reset('ten', 'k')",
    ] {
        run(&mut owner, sql).await;
    }
}

/// A failure in the last part leaves nothing in the parts before it, neither in rows that are there nor in new ones.
#[tokio::test]
async fn a_call_over_several_parts_that_fails_takes_nothing() {
    let world = World::of_parts(PARTS).await;
    world
        .sql(
            "create function fail() returns trigger language plpgsql as
             $$ begin
                 if new.name = 'fails' and new.key = tg_argv[0] then raise exception 'no'; end if;
                 if new.name = 'swallowed' and new.key = tg_argv[0] then return null; end if;
                 return new;
             end $$",
        )
        .await;
    let keys = apart();
    let last = keys.last().unwrap();
    for table in ["ephemeral", "durable"] {
        world
            .sql(&format!(
                "create trigger fail before update on tollgate.{table} for each row execute function fail('{last}')"
            ))
            .await;
    }
    let gate = patient(&world.pool).parts(PARTS).lock_timeout(SECOND / 20).build();
    let mut conn = world.connect().await;
    for (name, is_there) in [("fails", true), ("fails", false), ("swallowed", true), ("swallowed", false)] {
        for limit in both(&Limit::token_bucket(name, 10, EVER)).into_iter().chain(both(&sharded_as(name))) {
            world.sql("truncate tollgate.ephemeral, tollgate.durable").await;
            for key in keys.iter().filter(|_| is_there) {
                fill(&world, &limit, key).await;
            }
            let asks = || keys.iter().map(|key| limit.key(key).cost(2));
            for limiter in [LIMITER, LIMITER.lock_timeout(SECOND)] {
                let mut tx = world.pool.begin().await.unwrap();
                let failed = limiter.consume(&mut tx, asks()).await;
                assert_eq!(fault(&failed.unwrap_err()), name, "{limit:?}");
                // It may roll back a transaction that is aborted anyway.
                drop(tx.commit().await);
                assert_full(&mut conn, &limit, &keys).await;
            }
            assert_eq!(fault(&gate.consume(asks()).await.unwrap_err()), name);
            assert_full(&mut conn, &limit, &keys).await;
        }
    }
}

/// Somebody holds a row of the last part, or has spent it.
#[tokio::test]
async fn a_call_over_several_parts_that_is_busy_or_refused_takes_nothing() {
    let world = World::of_parts(PARTS).await;
    let keys = apart();
    let (last, others) = keys.split_last().unwrap();
    let gate = patient(&world.pool).parts(PARTS).lock_timeout(SECOND / 20).build();
    let mut conn = world.connect().await;
    for limit in both(&Limit::token_bucket("held", 10, EVER)).into_iter().chain(both(&sharded_as("held"))) {
        let asks = || keys.iter().map(|key| limit.key(key).cost(2));
        let mut holder = world.pool.begin().await.unwrap();
        LIMITER.debit(&mut holder, limit.key(last).cost(10)).await.unwrap();

        let mut tx = world.pool.begin().await.unwrap();
        let busy = LIMITER.lock_timeout(SECOND / 20).consume(&mut tx, asks()).await;
        assert!(matches!(busy, Err(Error::Locked { .. })), "{busy:?}");
        tx.commit().await.unwrap();
        let busy = gate.consume(asks()).await;
        assert!(matches!(busy, Err(Error::Locked { .. })), "{busy:?}");
        assert_full(&mut conn, &limit, &keys).await;
        assert_eq!(rows_of(&world, limit.name()).await, 0, "nor does a row stay");

        holder.commit().await.unwrap();
        let rows = rows_of(&world, limit.name()).await;
        let mut tx = world.pool.begin().await.unwrap();
        let denied = LIMITER.consume(&mut tx, asks()).await.unwrap().denied().unwrap();
        assert_eq!(denied.key.as_str(), last);
        tx.commit().await.unwrap();
        gate.consume(asks()).await.unwrap().denied().unwrap();
        assert_full(&mut conn, &limit, others).await;
        assert_eq!(rows_of(&world, limit.name()).await, rows);
        world.sql("truncate tollgate.ephemeral, tollgate.durable").await;
    }
}

#[tokio::test]
async fn a_call_over_several_parts_that_is_dropped_and_rolled_back_takes_nothing() {
    let world = World::of_parts(PARTS).await;
    let pool = pool(&world.url(), 1).await;
    let (keys, limit) = (apart(), Limit::token_bucket("cut", 10, EVER));
    let mut conn = world.connect().await;
    let (limiter, mut cuts) = (LIMITER, Cuts::default());
    loop {
        let mut tx = pool.begin().await.unwrap();
        let call = limiter.consume(&mut tx, keys.iter().map(|key| limit.key(key)));
        let done = Cut::after(cuts.waits, call).await;
        drop(tx);
        // It is rolled back when the connection is used next.
        sqlx::raw_sql("select").execute(&mut *pool.acquire().await.unwrap()).await.unwrap();
        assert_full(&mut conn, &limit, &keys).await;
        assert_eq!(world.rows().await, 0, "cut at {}", cuts.waits);
        let is_done = done.map(|decision| decision.unwrap().granted().unwrap()).is_some();
        if !cuts.go_on(is_done) {
            break;
        }
    }
}

/// So Citus reports a node that it lost while that committed.
#[tokio::test]
async fn an_internal_error_of_a_commit_leaves_the_outcome_open() {
    let world = World::of_parts(PARTS).await;
    world
        .sql(
            "create function lose() returns trigger language plpgsql as
             $$ begin raise exception 'server closed the connection unexpectedly' using errcode = 'XX000'; end $$;
             create constraint trigger lose after insert or update on tollgate.durable
             deferrable initially deferred for each row execute function lose();",
        )
        .await;
    let gate = patient(&world.pool).parts(PARTS).build();
    let limit = Limit::token_bucket("ten", 10, EVER);
    let lost = gate.consume(limit.key("k")).await;
    assert!(matches!(lost, Err(Error::OutcomeUnknown { .. })), "{lost:?}");
    world.sql("drop trigger lose on tollgate.durable").await;
    assert_eq!(gate.consume(limit.key("k")).await.unwrap().granted().unwrap().remaining, Tokens::new(9));
}

/// So Citus reports a node that it lost before.
#[tokio::test]
async fn a_node_that_is_lost_before_the_commit_is_worth_another_try() {
    let world = World::of_parts(PARTS).await;
    let limit = Limit::token_bucket("ten", 10, EVER);
    let internal = [
        "failure on connection marked as essential: 10.0.0.2:5432",
        "connection to the remote node postgres@10.0.0.2:5432 failed",
        "server closed the connection unexpectedly",
        "SSL SYSCALL error: EOF detected",
        "postmaster was shut down, exiting",
        "terminating connection due to unexpected postmaster exit",
    ];
    let internal = internal.map(|message| ("XX000", message, true));
    let others = [
        ("58030", "failed to COPY to shard 102008 on 10.0.0.2:5432", true),
        ("58030", "could not write to file", false),
        ("XX000", "no such thing", false),
    ];
    for (code, message, is_lost) in internal.into_iter().chain(others) {
        world
            .sql(&format!(
                "create or replace function lose() returns trigger language plpgsql as
                 $$ begin raise exception '{message}' using errcode = '{code}'; end $$;
                 create or replace trigger lose before insert on tollgate.durable
                 for each row execute function lose()"
            ))
            .await;
        let mut tx = world.pool.begin().await.unwrap();
        let error = LIMITER.consume(&mut tx, limit.key("k")).await.unwrap_err();
        assert_eq!(error.is_retryable(), is_lost, "{error}");
    }
}

fn sharded() -> Limit {
    sharded_as("sharded")
}

fn sharded_as(name: &'static str) -> Limit {
    Limit::token_bucket(name, 10, EVER).shards(3)
}

/// A key for each part, in the order of the parts.
fn apart() -> Vec<String> {
    let in_part = |part| (0..10_000).map(|n: u32| n.to_string()).find(|key| part_of(key) == part).unwrap();
    BTreeSet::from(NUMBERS).into_iter().map(in_part).collect()
}

/// Inserts the rows of a limit and key as full ones.
async fn fill(world: &World, limit: &Limit, key: &str) {
    let table = if limit.spec().storage == Storage::Durable { "durable" } else { "ephemeral" };
    let (part, name, shards) = (part_of(key), limit.name(), limit.spec().shards);
    let values =
        format!("select {part}, '{name}', '{key}', n, 10000000, now(), now() from generate_series(0, {shards} - 1) n");
    world.sql(&format!("insert into tollgate.{table} {values}")).await;
}

/// Which of the two triggers an error tells of.
fn fault(error: &Error) -> &'static str {
    match error {
        Error::CorruptRow { .. } => "swallowed",
        Error::Database { .. } => "fails",
        other => panic!("{other:?}"),
    }
}

async fn assert_full(conn: &mut PgConnection, limit: &Limit, keys: &[String]) {
    for key in keys {
        let balance = LIMITER.balance(conn, limit.key(key)).await.unwrap();
        assert!(balance.is_full(), "{key} of {limit:?} has {}", balance.remaining);
    }
}

async fn rows_of(world: &World, name: &str) -> i64 {
    let sql = "select (select count(*) from tollgate.ephemeral where name = $1)
                    + (select count(*) from tollgate.durable where name = $1)";
    sqlx::query_scalar(sql).bind(name).fetch_one(&world.pool).await.unwrap()
}

/// All statements about rows, but those of the sweeper.
fn statements() -> BTreeSet<String> {
    let others = [
        "claim",
        "count_pages",
        "delete_full",
        "find_full",
        "forget_calls",
        "is_marked",
        "mark_transaction",
        "parts",
        "save_calls",
        "swap_calls",
    ];
    statement_files()
        .into_iter()
        .filter(|path| !others.contains(&path.file_stem().unwrap().to_str().unwrap()))
        .map(|path| std::fs::read_to_string(path).unwrap())
        .collect()
}

/// Where all statements are written.
pub(crate) fn statement_files() -> Vec<PathBuf> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src/store/sql");
    let files = [folder.clone(), folder.join("ephemeral")].map(|folder| std::fs::read_dir(folder).unwrap());
    files.into_iter().flatten().map(|file| file.unwrap().path()).filter(|path| path.is_file()).collect()
}

/// The statements about our tables that a session has prepared, and so executed.
async fn prepared(conn: &mut PgConnection) -> BTreeSet<String> {
    let sql = "select statement from pg_prepared_statements where statement like '%tollgate.%'";
    let rows = sqlx::raw_sql(sql).fetch_all(conn).await.unwrap();
    rows.iter().map(|row| sqlx::Row::get(row, 0)).collect()
}

async fn settings(conn: &mut PgConnection) -> (String, String) {
    let sql = "select current_setting('lock_timeout'), current_setting('citus.propagate_set_commands')";
    sqlx::query_as(sql).fetch_one(conn).await.unwrap()
}
