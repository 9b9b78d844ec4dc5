//! `tollgate doctor`: each ill is made, found, and named.

mod rights;
mod rows;
mod server;

use std::process::Output;

use serde_json::Value;

use super::{run, text, tollgate};
use crate::world::World;

#[tokio::test]
async fn a_healthy_database_has_no_errors_and_exits_with_0() {
    let world = World::new().await;
    set(&world, "synchronous_commit = on").await;
    let output = examine(&world.command_url(), &[]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let told = text(&output.stdout);
    assert!(told.trim_end().lines().last().unwrap().starts_with("healthy: 0 errors, "), "{told}");
    for check in findings(&world.command_url(), &[]).iter().map(|finding| finding["check"].as_str().unwrap()) {
        // The finding is about the server that all tests share, which is set up to forget.
        assert_eq!(check, "durability");
    }
}

#[tokio::test]
async fn each_finding_says_what_it_means_and_what_to_do() {
    let world = World::new().await;
    world.sql("create index slow on tollgate.durable (value)").await;
    let told = text(&examine(&world.command_url(), &[]).stdout);
    assert!(
        told.contains(
            "warning: tollgate.durable has indexes that are not ours: tollgate.slow\n  An index on a column that \
             changes is \
             written with every decision, and takes away cheap updates (HOT).\n  → drop index tollgate.slow;\n"
        ),
        "{told}"
    );
}

#[tokio::test]
async fn a_missing_and_a_damaged_schema_are_errors() {
    let world = World::unmigrated().await;
    assert_eq!(examine(&world.command_url(), &[]).status.code(), Some(1));
    expect(&world, &[], "schema", "error", "migration V1__create_ephemeral is not applied");
    let world = World::new().await;
    world.sql("alter table tollgate.durable drop column full_at cascade").await;
    expect(&world, &[], "schema", "error", "tollgate.durable lacks column \"full_at\"");
}

#[tokio::test]
async fn a_table_without_its_empty_megabyte_is_named() {
    let world = World::new().await;
    world.sql("truncate tollgate.ephemeral").await;
    expect(&world, &[], "small_table", "note", "tollgate.ephemeral lacks the empty megabyte that it begins with");
}

#[tokio::test]
async fn what_takes_too_long_is_left_out_and_said() {
    let world = World::new().await;
    let mut tx = world.pool.begin().await.unwrap();
    sqlx::raw_sql("lock table tollgate.durable").execute(&mut *tx).await.unwrap();
    expect(
        &world,
        &["--timeout", "50ms"],
        "rows",
        "warning",
        "could not look: canceling statement due to statement timeout",
    );
}

/// For connections to come.
async fn set(world: &World, setting: &str) {
    let database: String = sqlx::query_scalar("select current_database()").fetch_one(&world.pool).await.unwrap();
    world.sql(&format!("alter database {database} set {setting}")).await;
}

/// Demands a finding of this check, and no second one in the same words.
fn expect(world: &World, args: &[&str], check: &str, severity: &str, what: &str) {
    let found = findings(&world.command_url(), args);
    let matching = |finding: &&Value| finding["check"] == check && finding["what"].as_str().unwrap().contains(what);
    let matches: Vec<_> = found.iter().filter(matching).collect();
    let [finding] = matches.as_slice() else { panic!("{check} of {what:?} is not there once in {found:#?}") };
    assert_eq!(finding["severity"], severity, "{finding}");
}

pub(super) fn findings(url: &str, args: &[&str]) -> Vec<Value> {
    let output = examine(url, &[&["--json"], args].concat());
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    report["findings"].as_array().unwrap().clone()
}

fn examine(url: &str, args: &[&str]) -> Output {
    let patience: &[&str] = if args.contains(&"--timeout") { &[] } else { &["--timeout", "5m"] };
    run(tollgate().arg("doctor").args(patience).args(args).args(["--database-url", url]))
}
