//! The core of the suite, in a process of its own in which all tables have parts, and on Citus.

use std::ffi::OsString;
use std::io::Write as _;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::pgbouncer;
use crate::world::{CITUS_URL, DISTRIBUTED, POOLER};

/// The core of the suite, in a process in which all tables have parts. So do `conformance::`,
/// `gate::memory::refusals::` and `gate::promise::`, which take two minutes more:
/// `TOLLGATE_TEST_DISTRIBUTED=1 ./dev test conformance::`.
#[test]
fn the_core_suite_passes_with_parts() {
    if !is_nested() {
        run_core_suite(REST, |command| command);
    }
}

/// The half of it in which callers ask, also through a pooler that does not follow named statements, if one is
/// installed: neither setting knows of the other, so one run tells of both.
#[test]
fn the_core_suite_passes_with_parts_through_a_pooler() {
    if is_nested() {
        return;
    }
    // They take long, and send no statement that the rest does not.
    let long = ["--skip", "gate::batch::contention", "--skip", "shards::contention"];
    let args = ASKING.into_iter().chain(long);
    run_core_suite(args, |command| if pgbouncer::is_missing() { command } else { command.env(POOLER, "1") });
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
        "an_id_is_not_forgotten_while",
        "a_sweeper_gives_back",
        "and_pays_only_what_it_has",
        "no_debt_is_lost_to_a_sweep",
        "a_sweep_is_seen_by_nobody",
        "however_late_in_a_month_its_webhook_comes_again",
        "two_gates_and_third_parties_never_deadlock",
        "no_row_is_swept_whose_bucket_stood_still",
    ];
    // They write, lock or lay out by hand rows in no part, or objects that Citus does not take.
    let by_hand = [
        "shards::last_moment",
        "without_the_database_an_id_is",
        "run_holds_a_lease_until",
        "the_doctor_names_leases",
        "a_row_that_is_inserted_during_a_wait_is_credited",
    ];
    // These tests ask the SQL functions, too, which refuse here.
    let by_functions = [
        "of_several_the_strictest_effect_counts",
        "numbers_that_were_set_at_one_instant_count",
        "one_that_begins_later_changes_nothing_before",
        "one_counts_from_its_start_until_its_end",
        "a_row_that_cannot_be_read_denies_and_is_shown",
        "a_meter_refuses_nobody_whatever_should_stay_behind",
        "nobody_resets_it_by_sql",
    ];
    // Citus does not pass on a lock timeout that is set by hand, so the test waits without an end. REPEATABLE READ is a
    // snapshot for each node: one that comes after the winner's has lost no race. The clock of a world is the
    // coordinator's.
    let by_node = [
        "a_lock_timeout_of_the_callers_own",
        "a_lost_race_at_repeatable_read",
        "a_row_that_is_newer_than_the_snapshot_is_not_overlooked",
        "what_is_to_begin_later_begins_then",
        "whoever_names_no_start_means_from_now_on",
    ];
    // They go by the count of statements, among them those of a connection that is given back, and by the order of
    // calls in two parts.
    let by_order = ["who_waits_for_much_is_not_overtaken", "who_gives_up_behind_others"];
    let skipped = swept
        .iter()
        .chain(&by_hand)
        .chain(&by_functions)
        .chain(&by_node)
        .chain(&by_order)
        .flat_map(|test| ["--skip", test]);
    let args = ASKING.into_iter().chain(REST).chain(more).chain(on_citus_alone).chain(skipped);
    run_core_suite(args, |command| command.env("DATABASE_URL", url));
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

/// Nodes die and stand still under gates that go by node, in that cluster.
#[test]
fn tokens_and_answers_agree_on_citus_while_nodes_die() {
    let Some((url, _alone)) = cluster() else { return };
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["storm::nodes::tokens_and_answers_agree_while_nodes_die", "--exact", "--ignored", "--nocapture"])
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

/// Together the core of the suite.
const ASKING: [&str; 5] = ["consume::", "contention::", "gate::verbs::agreement::", "receipts::", "transactions::"];
const REST: [&str; 7] = [
    "each::",
    "first_of::",
    "gate::batch::contention",
    "gate::memory::prefetch::",
    "gate::memory::slices::",
    "overrides::",
    "shards::",
];

fn run_core_suite<'a>(args: impl IntoIterator<Item = &'a str>, on: impl FnOnce(&mut Command) -> &mut Command) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    // They count statements, hold one of a certain number, or name what fails: here it is another. The library does not
    // notice that a transaction of sqlx is ended by hand.
    let other = [
        "ended_by_hand_is_none",
        "is_held_between_the_statements",
        "during_which_a_lease_is_taken_looks_again",
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
    let long = ["beside_resets_and_sweeps", "beside_a_clean_up", "two_deploys"];
    for skipped in other.iter().chain(&by_hand).chain(&long) {
        command.args(["--skip", skipped]);
    }
    run_nested(on(command.args(args).args(["--test-threads", "2"])));
}

/// Runs tests with parts, and returns their output.
fn run_nested(command: &mut Command) -> String {
    let output = command.env(DISTRIBUTED, "1").output().unwrap();
    let told = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{told}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(!told.contains(" 0 passed"), "{told}");
    told
}
