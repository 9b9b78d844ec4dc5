//! Tables that Citus distributes, while a node is away. Here one part is an error to read, as all parts of such a node
//! are.

use std::process::Output;

use super::limits::Scratch;
use super::{run, text, tollgate};
use crate::world::{NUMBERS, ON_CALL, PARTS, SERVICE, World};

#[tokio::test]
async fn a_part_that_does_not_answer_is_named_and_hides_no_other() {
    let world = World::of_parts(PARTS).await;
    let view = include_str!("../../../../migrations/V5__create_balances.sql");
    world.sql(&format!("{AWAY} {view} grant all on all tables in schema tollgate to {SERVICE}, {ON_CALL}")).await;
    let limits =
        Scratch::new("parts.toml", "[quota]\nkind = 'token_bucket'\nrate = 1\nper = '365days'\ncapacity = 20\n");
    for part in NUMBERS.into_iter().filter(|part| *part != 64) {
        world
            .sql(&format!(
                "insert into tollgate.durable
                 values ({part}, 'quota', 'of {part}', 0, -{part}00000, now(), now() + interval '1 day')"
            ))
            .await;
    }
    let told = |args: &[&str]| {
        let mut command = tollgate();
        command.args(args).arg("--limits").arg(&limits.0).env("DATABASE_URL", world.command_url());
        run(&mut command)
    };
    let away = "1 of 8 parts do not answer (64): foreign-data wrapper \"none\" has no handler";

    let list = told(&["inspect", "quota"]);
    assert_eq!(text(&list.stdout).lines().count(), 8, "{list:?}");
    expect_away(&list, away);
    let three = told(&["inspect", "quota", "--limit", "3"]);
    assert!(text(&three.stdout).contains("there may be more keys"), "{three:?}");
    let there = told(&["inspect", "quota", "of 66"]);
    assert!(text(&there.stdout).contains("row       6.6 used at "), "{there:?}");
    expect_away(&there, away);
    // Whether it has a row is not known.
    let unknown = told(&["inspect", "quota", "of 64"]);
    assert_eq!(text(&unknown.stdout), "");
    expect_away(&unknown, away);

    let top = told(&["top", "--once", "--interval", "100ms"]);
    assert!(
        text(&top.stdout).contains("tollgate.durable: 7 rows not full") && text(&top.stdout).contains("of 66"),
        "{top:?}"
    );
    expect_away(&top, away);

    let doctor = told(&["doctor", "--timeout", "5m"]);
    assert!(text(&doctor.stdout).contains(&format!("error: {away}\n  Calls of their keys fail.\n")), "{doctor:?}");
    assert_eq!(doctor.status.code(), Some(1));

    let mut command = tollgate();
    let sweep = run(command.args(["sweep", "--dry-run", "--margin", "0s"]).env("DATABASE_URL", world.command_url()));
    assert!(text(&sweep.stdout).contains("; ended early"), "{sweep:?}");
    expect_away(&sweep, away);
}

fn expect_away(output: &Output, away: &str) {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let remedy = "`select * from citus_check_cluster_node_health()` shows which node is away";
    assert_eq!(text(&output.stderr), format!("error: {away} ({remedy})\n"));
}

/// Lets part 64 lie where nothing can be read.
const AWAY: &str = "
    drop view tollgate.balances;
    alter table tollgate.durable rename to whole;
    create table tollgate.durable (like tollgate.whole including constraints) partition by list (part);
    create table tollgate.others partition of tollgate.durable default;
    create foreign data wrapper none;
    create server away foreign data wrapper none;
    create foreign table tollgate.away partition of tollgate.durable for values in (64) server away;";
