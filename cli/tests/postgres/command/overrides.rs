//! `tollgate override` and `tollgate forget`.

use std::process::Output;

use serde_json::Value;
use tollgate::{Limit, MINUTE, Overrides};

use super::{EXAMPLE, failure, run, stdout, tollgate};
use crate::world::{OWNER, World};

fn command(world: &World, args: &[&str]) -> Output {
    run(tollgate().args(args).env("DATABASE_URL", world.command_url()).env("TOLLGATE_LIMITS", EXAMPLE))
}

#[tokio::test]
async fn an_override_counts_is_listed_and_can_be_removed() {
    let world = World::new().await;
    let told = |args: &[&str]| stdout(&command(&world, args));
    let set = ["override", "set", "send_message", "ada", "--rate", "500", "--for", "1h", "--reason", "ticket 4711"];
    let said = told(&[&set[..], &["--by", "bob"]].concat());
    assert!(said.starts_with("set: send_message for ada: 500 each 1m, at most 500, ends in "), "{said}");
    assert!(said.ends_with("(bob: ticket 4711)\n"), "{said}");
    let checked = told(&["check", "send_message", "ada", "--cost", "400"]);
    assert!(checked.starts_with("would be granted"), "{checked}");
    let inspected = told(&["inspect", "send_message", "ada"]);
    assert!(inspected.contains("remaining 500 of 500, 0 used\n") && inspected.contains("override"), "{inspected}");

    told(&[
        "override",
        "set",
        "send_message",
        "--every-key",
        "--deny",
        "--until",
        "2100-01-01T12:30:00Z",
        "--reason",
        "x",
    ]);
    let refused = command(&world, &["check", "send_message", "bob"]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    let inspected = told(&["inspect", "send_message", "ada"]);
    assert!(inspected.contains("denied, ends in ") && inspected.contains("2100-01-01T12:30:00"), "{inspected}");
    let listed: Value = serde_json::from_str(&told(&["override", "list", "--json"])).unwrap();
    assert_eq!(listed["overrides"].as_array().unwrap().len(), 2, "{listed}");
    assert_eq!(listed["overrides"][1]["effect"]["numbers"]["rate"], 500, "{listed}");
    assert_eq!(told(&["override", "list", "send_message"]).lines().count(), 2);
    assert_eq!(told(&["override", "list", "sign_ups"]), "no overrides\n");

    assert_eq!(told(&["override", "remove", "send_message", "--every-key"]), "removed: send_message for every key\n");
    let again = failure(&command(&world, &["override", "remove", "send_message", "--every-key"]));
    assert!(again.contains("there is no override of limit \"send_message\" for every key"), "{again}");
}

#[tokio::test]
async fn what_is_set_says_what_it_replaces_what_else_is_live_and_where_the_key_stands() {
    let world = World::new().await;
    let told = |args: &[&str]| stdout(&command(&world, args));
    let set = |args: &[&str]| {
        told(&[&["override", "set", "send_message", "ada"], args, &["--reason", "x", "--by", "me"]].concat())
    };
    told(&["consume", "send_message", "ada", "--cost", "20"]);

    let first = set(&["--rate", "5"]);
    let lines: Vec<_> = first.lines().collect();
    assert_eq!(lines[0], "set: send_message for ada: 5 each 1m, at most 5, until it is removed (me: x)");
    assert!(lines[1].starts_with("now: ") && lines[1].contains(" of 5 used; granted again in "), "{first}");
    assert!(lines[1].ends_with("; --reset forgives") && lines.len() == 2, "{first}");

    let again = set(&["--rate", "6", "--reset"]);
    assert!(again.ends_with("\ninstead of: 5 each 1m, at most 5, until it is removed (me: x)\n"), "{again}");

    let contract = set(&["--rate", "50", "--label", "contract"]);
    assert!(contract.contains("(label contract, me: x)\nbeside: send_message for ada: 6 each 1m"), "{contract}");

    // It replaces the operator's override, and leaves the contract.
    let banned = set(&["--deny", "--for", "1h"]);
    assert!(banned.contains("\ninstead of: 6 each 1m, at most 6, until it is removed (me: x)\n"), "{banned}");
    assert!(
        banned.ends_with(
            "\nbeside: send_message for ada: 50 each 1m, at most 50, until it is removed (label contract, me: x)\n"
        ),
        "{banned}"
    );
    let renewed = set(&["--rate", "70", "--label", "contract"]);
    assert!(
        renewed.contains("\nbeside: send_message for ada: denied, ends in ") && renewed.contains("; denied for "),
        "{renewed}"
    );
    assert_eq!(command(&world, &["check", "send_message", "ada"]).status.code(), Some(2));

    let document: Value = serde_json::from_str(&set(&["--unlimited", "--label", "vip", "--json"])).unwrap();
    assert_eq!((&document["label"], &document["replaced"]), (&"vip".into(), &Value::Null), "{document}");
    assert_eq!(document["others"].as_array().unwrap().len(), 2, "{document}");
    assert_eq!(document["standing"]["is_denied"], true, "{document}");
    let inspected = told(&["inspect", "send_message", "ada"]);
    assert!(inspected.contains("(label contract, me: x)") && inspected.contains("(label vip, me: x)"), "{inspected}");
    let listed = told(&["override", "list", "send_message", "ada"]);
    assert!(listed.contains("unlimited, until it is removed (label vip, me: x)"), "{listed}");
    assert_eq!(listed.lines().count(), 3, "{listed}");

    // A later override, under a label that counts now.
    let later =
        ["override", "set", "send_message", "ada", "--unlimited", "--from", "2100-01-01T00:00:00Z", "--reason", "x"];
    let refused = failure(&command(&world, &[&later[..], &["--label", "contract"]].concat()));
    assert!(refused.contains("is live, and this one begins later (give it another label"), "{refused}");
    told(&[&later[..], &["--label", "2100"]].concat());

    let remove = |args: &[&str]| command(&world, &[&["override", "remove", "send_message", "ada"], args].concat());
    assert_eq!(stdout(&remove(&["--label", "vip"])).lines().next(), Some("removed: send_message for ada, label vip"));
    let gone = failure(&remove(&["--label", "vip"]));
    assert!(gone.contains("there is no override of limit \"send_message\" for ada, label vip"), "{gone}");
    assert!(stdout(&remove(&[])).starts_with("removed: send_message for ada\n"));
    told(&["check", "send_message", "ada", "--cost", "6"]);
}

#[tokio::test]
async fn what_a_key_has_without_an_override_is_told_where_it_is_removed() {
    let world = World::new().await;
    let told = |args: &[&str]| stdout(&command(&world, args));
    told(&["override", "set", "send_message", "ada", "--rate", "30", "--reason", "x"]);
    told(&["consume", "send_message", "ada", "--cost", "30"]);
    let removed = told(&["override", "remove", "send_message", "ada"]);
    assert!(removed.starts_with("removed: send_message for ada\nnow: "), "{removed}");
    assert!(removed.contains(" used; granted again in ") && removed.ends_with("; --reset forgives\n"), "{removed}");
}

#[tokio::test]
async fn a_wrong_override_is_one_sentence() {
    let world = World::new().await;
    let (set, reason) = (["override", "set", "send_message"], ["--reason", "x"]);
    let fails = |args: &[&str]| command(&world, &[&set[..], args, &reason].concat());
    for usage in [&["ada"][..], &["--deny"], &["ada", "--deny", "--unlimited"], &["ada", "--per", "1m", "--deny"]] {
        assert_eq!(fails(usage).status.code(), Some(64), "{usage:?}");
    }
    let zero = failure(&fails(&["ada", "--rate", "0"]));
    assert!(zero.contains("the rate must be positive"), "{zero}");
    let over = failure(&fails(&["ada", "--deny", "--until", "2020-01-01T00:00:00Z"]));
    assert!(over.contains("it ends before it starts, or is over"), "{over}");
    let unknown = failure(&command(&world, &["override", "set", "send_mesage", "ada", "--deny", "--reason", "x"]));
    assert!(unknown.contains("did you mean \"send_message\"?"), "{unknown}");
    let wallet = failure(&fails(&["ada", "--overdraft", "5"]));
    assert!(wallet.contains("limit \"send_message\" is no wallet (a wallet has an --overdraft"), "{wallet}");
    assert!(Overrides::read(&mut world.connect().await).await.unwrap().all().is_empty());
}

#[tokio::test]
async fn a_deny_of_a_limit_that_nobody_defines_is_set_and_says_so() {
    let world = World::new().await;
    let args = ["override", "set", "send_mesage", "--every-key", "--deny", "--reason", "x"];
    let set = stdout(&run(tollgate().args(args).env("DATABASE_URL", world.command_url()).current_dir("/")));
    assert!(set.contains("defines this limit: mind its name"), "{set}");
    assert_eq!(Overrides::read(&mut world.connect().await).await.unwrap().all().len(), 1);
}

#[tokio::test]
async fn a_key_is_forgotten_in_all_limits_and_nobody_else() {
    let world = World::new().await;
    let limits = [
        Limit::token_bucket("send_message", 10, MINUTE).capacity(20),
        Limit::token_bucket("all_traffic", 2_000, MINUTE).ephemeral(),
        Limit::token_bucket("not_in_the_file", 10, MINUTE),
    ];
    let gate = world.gate();
    for (limit, key) in limits.iter().flat_map(|limit| [(limit, "ada"), (limit, "bob")]) {
        gate.consume(limit.key(key).once("job")).await.unwrap().granted().unwrap();
    }
    stdout(&command(&world, &["override", "set", "send_message", "ada", "--unlimited", "--reason", "x"]));
    let told = stdout(&command(&world, &["forget", "ada"]));
    assert!(told.starts_with("forgot ada: 2 rows, 2 calls, 1 override, of "), "{told}");
    assert_eq!(world.rows().await, 4);
    let calls: i64 = sqlx::query_scalar("select count(*) from tollgate.calls").fetch_one(&world.pool).await.unwrap();
    assert_eq!(calls, 4);
}

/// A limit that follows a service in trouble says so wherever an operator looks, and can be lifted.
#[tokio::test]
async fn a_slow_down_is_shown_and_lifted() {
    let world = World::new().await;
    let told = |args: &[&str]| stdout(&command(&world, args));
    let report = "select tollgate.slow_down('send_message', 'ada', percent => 49, recovers => '1 day')";
    sqlx::raw_sql(report).execute(&mut world.connect_as(OWNER).await).await.unwrap();
    told(&["consume", "send_message", "ada"]);
    let listed = told(&["override", "list"]);
    assert!(listed.starts_with("send_message for ada: slowed down to 49 % of its rate, ends in "), "{listed}");
    assert!(listed.contains("(label slowdown, tollgate_owner: trouble was reported)"), "{listed}");
    let inspected: Value = serde_json::from_str(&told(&["inspect", "send_message", "ada", "--json"])).unwrap();
    assert!((0.49..0.50).contains(&inspected["rate_share"].as_f64().unwrap()), "{inspected}");
    let top = told(&["top", "--once", "--interval", "100ms"]);
    assert!(top.contains("ada (at 49 %)"), "{top}");
    let reserved = ["override", "set", "send_message", "ada", "--deny", "--label", "pause", "--reason", "x"];
    let reserved = failure(&command(&world, &reserved));
    assert!(reserved.contains("this label belongs to slow_down and pause"), "{reserved}");
    assert!(told(&["override", "remove", "send_message", "ada", "--label", "slowdown"]).starts_with("removed"));
    assert_eq!(told(&["override", "list"]), "no overrides\n");
}
