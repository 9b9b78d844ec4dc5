//! `tollgate usage`.

use std::process::Output;

use serde_json::{Value, json};

use super::{failure, run, stdout, tollgate};
use crate::world::World;

#[tokio::test]
async fn usage_lists_the_keys_of_a_month_the_largest_first_and_sums_them_all() {
    let world = World::new().await;
    world
        .sql(&rows(
            "('usage', '2026-10|a', -9), ('usage', '2026-11|a', -1500000), ('usage', '2026-11|b|c', -3000000),
                     ('usage', '2026-11', -2), ('usage', '2026-111|a', -7), ('other', '2026-11|a', -8)",
        ))
        .await;
    let month = stdout(&usage(&world, &["usage", "--month", "2026-11"]));
    assert_eq!(
        month,
        "KEY                USED\n'2026-11|b|c'         3\n'2026-11|a'         1.5\n2026-11        0.000002\n3 keys         4.500002\n"
    );
    let one: Value =
        serde_json::from_str(&stdout(&usage(&world, &["usage", "a", "--month", "2026-11", "--json"]))).unwrap();
    assert_eq!(
        one,
        json!({ "limit": "usage", "used": 1.5, "count": 1, "keys": [{ "key": "2026-11|a", "used": 1.5 }] })
    );
    // The sum is of all, however many are listed.
    assert!(stdout(&usage(&world, &["usage", "--limit", "1"])).ends_with("5 keys         4.500018\n"));
    assert_eq!(stdout(&usage(&world, &["usage", "nobody"])), "KEY     USED\n0 keys     0\n");
}

#[tokio::test]
async fn a_limit_that_gives_back_has_no_usage() {
    let world = World::new().await;
    world.sql("insert into tollgate.durable values (0, 'window', 'a', 0, -5, now(), '9999-01-01')").await;
    let told = failure(&usage(&world, &["window"]));
    assert_eq!(
        told,
        "error: \"window\" has rows that are no meter's: time gives their tokens back (see what its keys hold with \
         `tollgate inspect`)\n"
    );
    let wrong = run(tollgate().args(["usage", "window", "--month", "2026-13"]));
    assert_eq!(wrong.status.code(), Some(64));
}

#[tokio::test]
async fn a_bill_of_another_cycle_is_asked_by_its_prefix() {
    let world = World::new().await;
    let all = "('usage', '2026-11-14|a', -3000000), ('usage', '2026-11-15|a', -9), ('usage', '2026-11-14', -1000000)";
    world.sql(&rows(all)).await;
    let told = stdout(&usage(&world, &["usage", "--prefix", "2026-11-14"]));
    assert_eq!(told, "KEY             USED\n'2026-11-14|a'     3\n2026-11-14         1\n2 keys             4\n");
    let one = stdout(&usage(&world, &["usage", "a", "--prefix", "2026-11-14"]));
    assert!(one.ends_with("1 key              3\n"), "{one}");
}

/// Any role that may ask can use as much as a row holds, and somebody may have written anything else.
#[tokio::test]
async fn no_key_keeps_the_bills_of_others_from_being_read() {
    let world = World::new().await;
    world.sql("select tollgate.define('usage', 'meter')").await;
    world.sql("insert into tollgate.durable values (0, 'usage', 'bucket', 0, -5, now(), '9999-01-01')").await;
    world.sql(&rows("('usage', 'a', (-9223372036854775808)::int8), ('usage', 'b', -9223372036854775807)")).await;
    let told = stdout(&usage(&world, &["usage"]));
    let expected = "KEY                      USED\n\
                    a       9223372036854.775808\n\
                    b       9223372036854.775807\n\
                    2 keys  18446744073709.551615\n";
    assert_eq!(told.split_whitespace().collect::<Vec<_>>(), expected.split_whitespace().collect::<Vec<_>>());
    let json: Value = serde_json::from_str(&stdout(&usage(&world, &["usage", "--json"]))).unwrap();
    assert_eq!(json["used"], "18446744073709.551615");
}

#[tokio::test]
async fn a_name_that_is_no_meter_has_no_bill() {
    let world = World::new().await;
    world.sql("select tollgate.define('llm_usage', 'meter'), tollgate.define('credits', 'wallet')").await;
    world.sql(&rows("('mail_usage', 'a', -1)")).await;
    let told = |name: &str| failure(&usage(&world, &[name]));
    assert_eq!(told("lmm_usage"), "error: there is no limit \"lmm_usage\" (did you mean \"llm_usage\"?)\n");
    assert_eq!(told("mial_usage"), "error: there is no limit \"mial_usage\" (did you mean \"mail_usage\"?)\n");
    assert!(told("credits").starts_with("error: \"credits\" is a wallet, and no meter ("), "{}", told("credits"));
    assert_eq!(stdout(&usage(&world, &["llm_usage"])), "KEY     USED\n0 keys     0\n");
    assert!(stdout(&usage(&world, &["mail_usage", "--month", "2026-11"])).contains("0 keys"));
}

fn rows(of: &str) -> String {
    format!(
        "insert into tollgate.durable (part, name, key, shard, value, ts, full_at, list)
         select 0, name, key, 0, value, now(), '9999-01-01', '{{3}}'::int8[] from (values {of}) as row (name, key, value)"
    )
}

fn usage(world: &World, args: &[&str]) -> Output {
    run(tollgate().arg("usage").args(args).args(["--database-url", &world.command_url()]))
}
