//! All limits of a customer, and keys as a shell takes them.

use std::process::Output;

use serde_json::{Value, json};
use tollgate::{HOUR, Limit, MINUTE};

use super::{EXAMPLE, failure, run, stdout, tollgate};
use crate::world::World;

fn command(world: &World, args: &[&str]) -> Output {
    run(tollgate().args(args).env("DATABASE_URL", world.command_url()).env("TOLLGATE_LIMITS", EXAMPLE))
}

/// The limits and keys of the JSON document.
fn places(output: &Output) -> Vec<(String, String)> {
    let document: Value = serde_json::from_str(&stdout(output)).unwrap();
    let text = |holding: &Value, field| holding[field].as_str().unwrap().to_owned();
    let all = document["limits"].as_array().unwrap().iter();
    all.map(|holding| (text(holding, "limit"), text(holding, "key"))).collect()
}

/// Rows of customer 42 in both tables, and of others whose keys look alike.
async fn with_customers() -> World {
    let world = World::new().await;
    let gate = world.gate();
    let [messages, quota] = ["send_message", "quota"].map(|name| Limit::token_bucket(name, 20, MINUTE));
    let traffic = Limit::token_bucket("all_traffic", 2_000, MINUTE).ephemeral();
    for request in [
        messages.key(42),
        quota.key((42, 7)),
        traffic.key(42),
        quota.key((7, 42)),
        quota.key("7|42"),
        quota.key(421),
        messages.key("42}"),
    ] {
        gate.consume(request).await.unwrap().granted().unwrap();
    }
    world
}

#[tokio::test]
async fn one_argument_that_names_no_limit_finds_a_customer_over_all_limits() {
    let world = with_customers().await;
    let place = |limit: &str, key: &str| (limit.to_owned(), key.to_owned());
    let begins = [place("all_traffic", "42"), place("quota", "42|7"), place("send_message", "42")];
    assert_eq!(places(&command(&world, &["inspect", "42", "--json"])), begins);
    let anywhere = [&begins[..1], &[place("quota", "42|7"), place("quota", "7|42")], &begins[2..]].concat();
    assert_eq!(places(&command(&world, &["inspect", "42", "--anywhere", "--json"])), anywhere);
    let told = stdout(&command(&world, &["inspect", "42"]));
    assert!(told.contains("\n\nlimit     quota\nkey       '42|7'\nrow       1 used at "), "{told}");
    assert!(told.contains("remaining 19") && told.contains("limit     send_message: "), "{told}");
    // Several words are one key, as they are printed.
    for key in [&["42", "7"][..], &["42|7"]] {
        let told = stdout(&command(&world, &[&["inspect", "quota"], key].concat()));
        assert!(told.contains("\nkey       '42|7'\n"), "{told}");
    }
    let unknown = failure(&command(&world, &["inspect", "43"]));
    assert!(unknown.contains("there is no limit \"43\""), "{unknown}");
    let unknown = failure(&command(&world, &["inspect", "43", "--anywhere"]));
    assert!(unknown.contains("nothing is known of key \"43\""), "{unknown}");
}

#[tokio::test]
async fn overrides_that_are_live_and_those_to_come_say_whose_they_are() {
    let world = World::new().await;
    let set = |args: &str| {
        let args = format!("override set send_message {args} --reason x --by me");
        stdout(&command(&world, &args.split(' ').collect::<Vec<_>>()));
    };
    set("42 --rate 500 --label contract");
    set("--every-key --unlimited --label festival --from 2100-01-01T00:00:00Z");
    set("42 --deny --label later --from 2100-01-01T00:00:00Z --for 1h");
    let told = stdout(&command(&world, &["inspect", "42"]));
    for line in [
        "override  for 42: 500 each 1m, at most 500, until it is removed (label contract, me: x)",
        "(label later, me: x)",
        "override  for every key: unlimited, begins in ",
    ] {
        assert!(told.contains(line), "{line} is not in {told}");
    }
    assert_eq!(told.matches("override ").count(), 3, "{told}");
    assert!(told.contains("would be granted now"), "{told}");
}

#[tokio::test]
async fn forget_names_what_it_has_not_looked_at() {
    let world = with_customers().await;
    let told = stdout(&command(&world, &["forget", "42"]));
    assert!(
        told.ends_with(
            "\nleft, and not looked at: quota '42|7'\n\
             other keys may have it as a later part: `tollgate inspect --anywhere 42`\n"
        ),
        "{told}"
    );
    let json: Value = serde_json::from_str(&stdout(&command(&world, &["forget", "42", "--json"]))).unwrap();
    assert_eq!(json["left"], json!([{ "limit": "quota", "key": "42|7" }]));
    assert_eq!(places(&command(&world, &["inspect", "42", "--json"])), [("quota".to_owned(), "42|7".to_owned())]);
}

#[tokio::test]
async fn keys_are_printed_as_a_shell_takes_them() {
    let world = World::new().await;
    let quota = Limit::token_bucket("quota", 20, HOUR);
    for key in ["plain@example.org", "it's two", "a\u{1b}[2Jb", "$HOME"] {
        world.gate().consume(quota.key(key)).await.unwrap().granted().unwrap();
    }
    let told = stdout(&command(&world, &["inspect", "quota"]));
    for line in told.lines().skip(1) {
        let Some((key, _)) = line.rsplit_once("  at ").and_then(|(start, _)| start.trim_end().rsplit_once(' ')) else {
            panic!("{line}")
        };
        let shell = format!("{} inspect quota {}", env!("CARGO_BIN_EXE_tollgate"), key.trim_end());
        let mut bash = std::process::Command::new("bash");
        let output =
            run(bash.args(["-c", &shell]).env("DATABASE_URL", world.command_url()).env_remove("TOLLGATE_LIMITS"));
        assert!(stdout(&output).contains("\nrow       1 used"), "{shell}: {output:?}");
    }
    assert_eq!(told.lines().count(), 5, "{told}");
}
