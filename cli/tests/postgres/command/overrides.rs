//! `tollgate override` and `tollgate forget`.

use std::process::Output;

use serde_json::Value;
use tollgate::{Limit, MINUTE, Overrides};

use super::{EXAMPLE, failure, run, stdout, tollgate};
use crate::world::World;

fn command(world: &World, args: &[&str]) -> Output {
    run(tollgate().args(args).env("DATABASE_URL", world.command_url()).env("TOLLGATE_LIMITS", EXAMPLE))
}

#[tokio::test]
async fn what_is_set_is_listed_counts_and_is_removed() {
    let world = World::new().await;
    let told = |args: &[&str]| stdout(&command(&world, args));
    let set = ["override", "set", "send_message", "ada", "--rate", "500", "--for", "1h", "--reason", "ticket 4711"];
    let said = told(&[&set[..], &["--by", "bob"]].concat());
    assert!(said.starts_with("set: send_message for ada: 500 each 1m, at most 500, ends in "), "{said}");
    assert!(said.ends_with("(bob: ticket 4711)\n"), "{said}");
    let checked = told(&["check", "send_message", "ada", "--cost", "400"]);
    assert!(checked.starts_with("would be granted"), "{checked}");
    let inspected = told(&["inspect", "send_message", "ada"]);
    assert!(inspected.contains("balance   500 of 500\n") && inspected.contains("override"), "{inspected}");

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
