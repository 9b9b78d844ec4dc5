//! Tables spread over the nodes of Citus. It is not here: what would be run is kept word for word, and that it is run, once and
//! in order, is tested before a stand-in for its catalogue.

use super::{EXAMPLE, failure, run, snapshot, stdout, tollgate};
use crate::world::World;

/// What Citus has of what is asked of it: the tables that it knows, and the function that adds one.
const STAND_IN: &str = "
    create table pg_dist_partition (logicalrel regclass, partkey text);
    create function column_to_column_name(regclass, text) returns text return $2;
    create function create_distributed_table(table_name regclass, distribution_column text, colocate_with text)
        returns void begin atomic insert into pg_dist_partition values ($1, $2); end;";

#[test]
fn the_statements_are_what_they_were() {
    for (name, args) in [("distribute", vec![]), ("distribute_apart", vec!["--buckets-apart"])] {
        snapshot(name, &stdout(&run(tollgate().args(["distribute", "--sql"]).args(args))));
    }
    let told = stdout(&run(tollgate().args(["distribute", "--sql", "--json"])));
    assert!(
        told.starts_with("{\n  \"sql\": \"select create_distributed_table('tollgate.rate_limits', 'key'"),
        "{told}"
    );
}

#[tokio::test]
async fn what_is_distributed_already_is_left_alone() {
    let world = World::new().await;
    world.sql(STAND_IN).await;
    world.sql("select create_distributed_table('tollgate.rate_limits', 'key', 'none')").await;
    let distribute = |args: &[&str]| run(tollgate().arg("distribute").args(args).env("DATABASE_URL", world.url()));
    assert_eq!(
        stdout(&distribute(&[])),
        "select create_distributed_table('tollgate.reservations', 'key', colocate_with => 'tollgate.rate_limits')\n\
         select create_distributed_table('tollgate.buckets', 'key', colocate_with => 'tollgate.rate_limits')\n"
    );
    assert_eq!(stdout(&distribute(&[])), "nothing to do: all tables are distributed\n");
    assert_eq!(stdout(&distribute(&["--json"])), "{\n  \"run\": []\n}\n");

    // From here on it resets key by key.
    let on = |args: &[&str]| {
        stdout(&run(tollgate().args(args).args(["--limits", EXAMPLE]).env("DATABASE_URL", world.url())))
    };
    for key in ["1", "2"] {
        on(&["consume", "send_message", key]);
    }
    assert_eq!(on(&["reset", "send_message", "--all", "--yes"]), "reset 2 keys of \"send_message\"\n");
    assert!(on(&["check", "send_message", "1", "--cost", "20"]).starts_with("would be granted"));

    world.sql("update pg_dist_partition set partkey = 'name' where logicalrel = 'tollgate.buckets'::regclass").await;
    assert_eq!(
        failure(&distribute(&[])),
        "error: tollgate.buckets is distributed, but not by its column key (`select undistribute_table('tollgate.buckets')`, \
         then try again)\n"
    );
}

#[tokio::test]
async fn without_tables_or_without_citus_it_says_what_to_do() {
    let world = World::unmigrated().await;
    let distribute = || failure(&run(tollgate().arg("distribute").env("DATABASE_URL", world.url())));
    assert_eq!(distribute(), "error: migration V1__create_buckets is not applied (run `tollgate migrate up`)\n");
    stdout(&run(tollgate().args(["migrate", "up"]).env("DATABASE_URL", world.url())));
    assert_eq!(
        distribute(),
        "error: Citus is not in this database (`create extension citus`, and add its nodes; or go without `distribute`)\n"
    );
}
