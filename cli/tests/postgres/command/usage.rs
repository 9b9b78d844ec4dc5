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

fn rows(of: &str) -> String {
    format!(
        "insert into tollgate.durable (part, name, key, shard, value, ts, full_at, list)
         select 0, name, key, 0, value, now(), '9999-01-01', '{{3}}'::int8[] from (values {of}) as row (name, key, value)"
    )
}

fn usage(world: &World, args: &[&str]) -> Output {
    run(tollgate().arg("usage").args(args).args(["--database-url", &world.command_url()]))
}
