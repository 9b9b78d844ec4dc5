//! `tollgate limits check` and `tollgate limits push`.

use std::path::PathBuf;

use tollgate::{Limits, Tokens};

use super::{EXAMPLE, failure, run, snapshot, stdout, text, tollgate};
use crate::world::World;

#[test]
fn a_sound_file_is_told_back() {
    let output = run(tollgate().args(["limits", "check", EXAMPLE]));
    snapshot("limits_sound", &stdout(&output).replace(EXAMPLE, "tollgate.toml"));
    let json: serde_json::Value =
        serde_json::from_str(&stdout(&run(tollgate().args(["limits", "check", EXAMPLE, "--json"])))).unwrap();
    assert_eq!(json["limits"][2]["name"], "send_message", "{json}");
    assert_eq!(json["fault"], serde_json::Value::Null, "{json}");
}

#[test]
fn a_faulty_file_is_told_what_is_wrong_and_exits_with_1() {
    let file = Scratch::new("faulty.toml", "[mail]\nkind = 'token_bucket'\nrate = 10\npre = '1m'\ncapacity = 'much'\n");
    let output = run(tollgate().args(["limits", "check"]).arg(&file.0));
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    snapshot("limits_faulty", &text(&output.stdout).replace(&file.0.display().to_string(), "tollgate.toml"));

    let output = run(tollgate().args(["limits", "check", "--json"]).arg(&file.0));
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let fault = &json["fault"];
    assert_eq!((&fault["line"], &fault["column"]), (&4.into(), &1.into()), "{json}");
    assert!(fault["message"].as_str().unwrap().starts_with("unknown field `pre`"), "{json}");
}

#[test]
fn what_is_seldom_meant_is_a_hint_and_no_fault() {
    let limits = "
        [flat]\nkind = 'token_bucket'\nrate = 10\nper = '1m'
        [vast]\nkind = 'token_bucket'\nrate = 1\nper = '1h'\ncapacity = 1000
        [endless]\nkind = 'token_bucket'\nrate = 1\nper = '1d'\ncapacity = 4000
        [fine]\nkind = 'token_bucket'\nrate = 10\nper = '1m'\ncapacity = 20
        [hard]\nkind = 'token_bucket'\nrate = 10\nper = '1m'\ncapacity = 1
        [queue]\nkind = 'token_bucket'\nrate = 10\nper = '1m'\ncapacity = 0\nmax_reserved = 10
        [monthly]\nkind = 'fixed_window'\nrate = 1000\nper = '30d'";
    let file = Scratch::new("hints.toml", limits);
    let check = |args: &[&str]| stdout(&run(tollgate().args(["limits", "check"]).arg(&file.0).args(args)));
    let told = check(&[]);
    let hints: Vec<_> = told.lines().filter(|line| line.starts_with("hint: ")).collect();
    assert_eq!(
        hints,
        [
            "hint: endless: an empty key takes 10years 11months to fill up (lower the capacity, or raise the rate)",
            "hint: flat: capacity = rate: a key that rests gains nothing after one period (give it a larger capacity)",
            "hint: vast: a rested key can spend 1month 11days worth of tokens at once (lower the capacity)",
        ]
    );
    let json: serde_json::Value = serde_json::from_str(&check(&["--json"])).unwrap();
    assert_eq!((&json["hints"][0]["limit"], &json["hints"][2]["limit"]), (&"endless".into(), &"vast".into()), "{json}");
}

/// It refills all the time: a caller that spends all of it and goes on has spent twice as much after a period.
#[test]
fn a_budget_that_never_ends_is_a_hint() {
    let limits = "
        [ai_budget_usd]\nkind = 'token_bucket'\nrate = 20\nper = '1h'\ncapacity = 480
        [llm-cost]\nkind = 'token_bucket'\nrate = 100\nper = '1d'\ncapacity = 101
        [mails]\nkind = 'token_bucket'\nrate = 1000\nper = '30d'
        [customer]\nkind = 'token_bucket'\nrate = 3\nper = '24h'\ncapacity = 9
        [credits]\nkind = 'wallet'
        [spend]\nkind = 'fixed_window'\nrate = 100\nper = '30d'
        [cents]\nkind = 'token_bucket'\nrate = 100\nper = '1m'\ncapacity = 200
        [costume]\nkind = 'token_bucket'\nrate = 20\nper = '1h'\ncapacity = 100";
    let file = Scratch::new("budgets.toml", limits);
    let told = stdout(&run(tollgate().args(["limits", "check"]).arg(&file.0)));
    let hints: Vec<_> = told.lines().filter(|line| line.starts_with("hint: ")).collect();
    let remedy = "(for a budget take monthly, billing or fixed_window)";
    assert_eq!(
        hints,
        [
            format!("hint: ai_budget_usd: a token bucket refills all the time: 960 tokens can go in 1day {remedy}"),
            format!("hint: customer: a token bucket refills all the time: 18 tokens can go in 3days {remedy}"),
            format!("hint: llm-cost: a token bucket refills all the time: 301 tokens can go in 2days {remedy}"),
            format!("hint: mails: a token bucket refills all the time: 2000 tokens can go in 30days {remedy}"),
        ]
    );
}

#[tokio::test]
async fn a_file_is_pushed_whole_and_says_what_changes() {
    let world = World::new().await;
    let push = |file: &Scratch, args: &[&str]| {
        let output =
            run(tollgate().args(["limits", "push"]).arg(&file.0).args(args).env("DATABASE_URL", world.command_url()));
        (output.status.code(), text(&output.stdout))
    };
    let stored = async || Limits::from_table(&mut world.pool.acquire().await.unwrap()).await.unwrap();
    let example = Limits::from_file(EXAMPLE).unwrap();
    let whole = Scratch::new("push.toml", &std::fs::read_to_string(EXAMPLE).unwrap());
    let (code, told) = push(&whole, &["--check"]);
    assert_eq!(code, Some(1), "{told}");
    assert!(told.ends_with(&format!("{} limits to write, 0 limits as they are\n", example.len())), "{told}");
    assert!(stored().await.is_empty());
    assert_eq!(push(&whole, &[]).0, Some(0));
    assert!(stored().await.iter().eq(example.iter()));
    assert_eq!(push(&whole, &["--check"]), (Some(0), format!("{} limits: nothing to do\n", example.len())));

    let one = Scratch::new("push_one.toml", "[send_message]\nkind = 'token_bucket'\nrate = 11\nper = '1m'");
    let (code, told) = push(&one, &[]);
    assert_eq!(code, Some(0), "{told}");
    assert!(told.starts_with("changed  send_message: token bucket, 11 each 1m\n     was send_message: "), "{told}");
    assert!(told.contains("\nkept     "), "{told}");
    assert_eq!(stored().await.len(), example.len());
    assert_eq!(stored().await.get("send_message").unwrap().rate, Tokens::new(11));

    // All or none.
    world.sql("alter table tollgate.limits add constraint no_second check (name <> 'second')").await;
    let two = Scratch::new(
        "push_two.toml",
        "[first]\nkind = 'fixed_window'\nrate = 1\nper = '1m'\n[second]\nkind = 'wallet'",
    );
    assert_eq!(push(&two, &[]).0, Some(1));
    assert!(stored().await.get("first").is_err());
    let json: serde_json::Value = serde_json::from_str(&push(&two, &["--check", "--json"]).1).unwrap();
    assert_eq!(json["added"], serde_json::json!(["first", "second"]), "{json}");
}

/// Somebody on call has no file of the service.
#[tokio::test]
async fn the_table_is_read_where_no_file_is_named_and_with_both_the_file_counts() {
    let world = World::new().await;
    let ask = |args: &[&str]| run(tollgate().args(args).env("DATABASE_URL", world.command_url()));
    let no_definition = failure(&ask(&["consume", "send_message", "ada"]));
    assert!(no_definition.contains("is not known here") && no_definition.contains("limits push"), "{no_definition}");
    stdout(&ask(&["limits", "push", EXAMPLE]));
    let told = stdout(&ask(&["consume", "send_message", "ada"]));
    assert!(told.contains("granted"), "{told}");
    let slip = failure(&ask(&["check", "send_mesage", "ada"]));
    assert!(slip.contains("did you mean \"send_message\"?"), "{slip}");
    let told = stdout(&ask(&["inspect", "send_message", "ada"]));
    assert!(told.contains("token bucket, 10 each 1m, at most 20"), "{told}");
    stdout(&ask(&["reset", "send_message", "--all", "--yes"]));

    let other = Scratch::new("other.toml", "[send_message]\nkind = 'token_bucket'\nrate = 7\nper = '1m'\n");
    let path = other.0.display().to_string();
    let both = ask(&["check", "send_message", "ada", "--limits", &path]);
    stdout(&both);
    let said = "the limits file counts, and not tollgate.limits, which has send_message: token bucket, 10 each 1m";
    assert!(text(&both.stderr).contains(said), "{}", text(&both.stderr));
    assert_eq!(text(&ask(&["check", "send_message", "ada", "--limits", EXAMPLE]).stderr), "", "they are the same");

    let told = stdout(&ask(&["doctor", "--limits", &path]));
    let said = "the limits file has send_message: token bucket, 7 each 1m, and tollgate.limits has send_message: token";
    assert!(told.contains(said), "{told}");
}

#[test]
fn shards_are_told_and_a_wrong_number_of_them_is_a_fault() {
    let check = |shards: &str| {
        let limit = format!("[spread]\nkind = 'token_bucket'\nrate = 9\nper = '1h'\nshards = {shards}");
        let file = Scratch::new(&format!("shards_{shards}.toml"), &limit);
        let output = run(tollgate().args(["limits", "check"]).arg(&file.0));
        (output.status.code(), text(&output.stdout))
    };
    let (status, told) = check("3");
    assert!(status == Some(0) && told.contains("spread: token bucket, 9 each 1h, 3 shards\n"), "{told}");
    for (shards, fault) in [
        ("0", "there are no shards (1 is a limit that is not sharded)"),
        ("65", "there are too many shards (at most 64)"),
        ("65537", "shards"),
        ("-1", "shards"),
    ] {
        let (status, told) = check(shards);
        assert!(status == Some(1) && told.contains(fault), "{shards}: {told}");
    }
}

#[test]
fn other_commands_name_the_first_fault() {
    let file = Scratch::new("first.toml", "[mail]\nkind = 'token_bucket'\nrate = 0\nper = '0s'\n");
    let output = run(tollgate().args(["consume", "mail", "ada", "--limits"]).arg(&file.0));
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let path = file.0.display();
    assert_eq!(text(&output.stderr), format!("error: {path}:1:1: limit \"mail\": the period is zero\n"));
}

/// A file that is gone with the value.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new(name: &str, content: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tollgate_{}_{name}", std::process::id()));
        std::fs::write(&path, content).unwrap();
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
