//! Tables spread over the nodes of Citus. Citus itself is not here. A stand-in for its catalogue shows that the command
//! asks Citus the right things, once and in order.

use std::process::Output;

use serde_json::{Value, json};
use sqlx::AssertSqlSafe;

use super::failure::with_options;
use super::{EXAMPLE, failure, run, stdout, tollgate};
use crate::world::{LATE, OWNER, World};

/// The parts of Citus that the command asks, under the names that they have there: the tables that it knows, and the
/// functions that add one.
const STAND_IN: &str = "
    set allow_system_table_mods = on;
    create table pg_catalog.pg_dist_partition (logicalrelid regclass, partkey text, colocated text, shards int);
    grant all on pg_catalog.pg_dist_partition to public;
    create function pg_catalog.column_to_column_name(regclass, text) returns text return $2;
    create function pg_catalog.create_distributed_table(
        table_name regclass, distribution_column text, colocate_with text, shard_count int default null
    ) returns void begin atomic insert into pg_catalog.pg_dist_partition values ($1, $2, $3, $4); end;
    create function pg_catalog.create_reference_table(table_name regclass) returns void
    begin atomic insert into pg_catalog.pg_dist_partition values ($1, null, null, null); end;
    create function pg_catalog.create_distributed_function(function_name regprocedure) returns void return null;
    create function pg_catalog.undistribute_table(table_name regclass) returns void
    begin atomic delete from pg_catalog.pg_dist_partition where logicalrelid = $1; end;";

/// How each table was distributed.
const ASKED: &str =
    "select string_agg(concat_ws(' ', logicalrelid, partkey, colocated, shards), ', ') from pg_dist_partition";

fn distribute(world: &World, args: &[&str]) -> Output {
    let url = with_options(&world.url_of(OWNER), "search_path", LATE);
    run(tollgate().arg("distribute").args(args).env("DATABASE_URL", url))
}

async fn asked(world: &World) -> String {
    sqlx::query_scalar(ASKED).fetch_one(&world.pool).await.unwrap()
}

#[tokio::test]
async fn tables_are_distributed_once_and_their_rows_get_parts() {
    let world = World::new().await;
    world.sql(STAND_IN).await;
    let url = world.command_url();
    let on = |args: &[&str]| stdout(&run(tollgate().args(args).args(["--limits", EXAMPLE]).env("DATABASE_URL", &url)));
    on(&["consume", "send_message", "1"]);
    assert_eq!(
        stdout(&distribute(&world, &[])),
        "distributed the tables over 8 parts; say `parts(8)` to every limiter and gate\n"
    );
    assert_eq!(
        asked(&world).await,
        "tollgate.durable part none 8, tollgate.calls part tollgate.durable, tollgate.ephemeral part tollgate.durable, \
         tollgate.limits, tollgate.overrides"
    );
    assert_eq!(stdout(&distribute(&world, &[])), "nothing to do: the tables are distributed over 8 parts\n");
    let told: Value = serde_json::from_str(&stdout(&distribute(&world, &["--json"]))).unwrap();
    assert_eq!(told, json!({ "parts": 8, "distributed": false }));

    // Old rows and new ones are found by their parts.
    on(&["consume", "send_message", "2"]);
    let spread = "select count(*) from tollgate.durable where part between 64 and 127";
    assert_eq!(sqlx::query_scalar::<_, i64>(spread).fetch_one(&world.pool).await.unwrap(), 2);
    assert_eq!(on(&["reset", "send_message", "--all", "--yes"]), "reset 2 keys of \"send_message\"\n");
    assert!(on(&["check", "send_message", "1", "--cost", "20"]).starts_with("would be granted"));
}

#[tokio::test]
async fn ephemeral_rows_may_lie_apart_and_the_number_of_parts_may_be_another() {
    let world = World::new().await;
    world.sql(STAND_IN).await;
    stdout(&distribute(&world, &["--parts", "32", "--buckets-apart"]));
    assert_eq!(
        asked(&world).await,
        "tollgate.durable part none 32, tollgate.calls part tollgate.durable, tollgate.ephemeral part none 32, \
         tollgate.limits, tollgate.overrides"
    );
    for wrong in [&["--parts", "12"][..], &["--parts", "4096"], &["--parts", "8", "--undo"]] {
        assert_eq!(distribute(&world, wrong).status.code(), Some(64), "{wrong:?}");
    }
}

/// Follows the advice of the error, with the rows that are there.
#[tokio::test]
async fn another_number_of_parts_takes_an_undo() {
    let world = World::new().await;
    world.sql(STAND_IN).await;
    let url = world.command_url();
    let consume =
        |key: &str| run(tollgate().args(["consume", "sign_ups", key, "--limits", EXAMPLE]).env("DATABASE_URL", &url));
    let keys: Vec<_> = (0..9).map(|key| key.to_string()).collect();
    let rows = async |parts| {
        let sql = format!("select count(*), count(*) filter (where part {parts}) from tollgate.durable");
        sqlx::query_as::<_, (i64, i64)>(AssertSqlSafe(sql)).fetch_one(&world.pool).await.unwrap()
    };
    stdout(&distribute(&world, &[]));
    let consume_each = || keys.iter().for_each(|key| drop(stdout(&consume(key))));
    consume_each();
    let error = failure(&distribute(&world, &["--parts", "16"]));
    assert!(error.contains("another number of parts (`tollgate distribute --undo`, then try again)"), "{error}");
    let undo = || stdout(&distribute(&world, &["--undo"]));
    let undone = "the tables are the coordinator's again; say no `parts` to any limiter or gate\n";
    assert_eq!(undo(), undone);
    stdout(&distribute(&world, &["--parts", "16"]));
    assert_eq!(
        asked(&world).await,
        "tollgate.durable part none 16, tollgate.calls part tollgate.durable, \
         tollgate.ephemeral part tollgate.durable, \
         tollgate.limits, tollgate.overrides"
    );
    // The old rows are found: no new ones are made.
    consume_each();
    assert_eq!(rows("between 128 and 255").await, (9, 9));
    assert_eq!(undo(), undone);
    assert_eq!(undo(), "nothing to do: the tables are not distributed\n");
    consume_each();
    assert_eq!(rows("= 0").await, (9, 9));
}

#[tokio::test]
async fn without_tables_or_without_citus_it_says_what_to_do() {
    let world = World::unmigrated().await;
    let distribute = || failure(&run(tollgate().arg("distribute").env("DATABASE_URL", world.url())));
    assert_eq!(distribute(), "error: migration V1__create_ephemeral is not applied (run `tollgate migrate up`)\n");
    stdout(&run(tollgate().args(["migrate", "up"]).env("DATABASE_URL", world.url())));
    assert_eq!(
        distribute(),
        "error: Citus is not in this database (`create extension citus`, and add its nodes; \
         or go without `distribute`)\n"
    );
}
