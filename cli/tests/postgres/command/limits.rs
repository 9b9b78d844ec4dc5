//! `tollgate limits check`.

use std::path::PathBuf;

use super::{EXAMPLE, run, snapshot, stdout, text, tollgate};

#[test]
fn a_sound_file_is_told_back() {
    let output = run(tollgate().args(["limits", "check", EXAMPLE]));
    snapshot("limits_sound", &stdout(&output).replace(EXAMPLE, "tollgate.toml"));
    let json: serde_json::Value =
        serde_json::from_str(&stdout(&run(tollgate().args(["limits", "check", EXAMPLE, "--json"])))).unwrap();
    assert_eq!(json["limits"][2]["name"], "send_message", "{json}");
    assert_eq!(json["faults"], serde_json::json!([]), "{json}");
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
    let fault = &json["faults"][1];
    assert_eq!((&fault["line"], &fault["column"]), (&4.into(), &1.into()), "{json}");
    assert_eq!(fault["suggestion"], "did you mean \"per\"?", "{json}");
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
fn other_commands_name_the_first_fault_and_where_to_see_the_rest() {
    let file = Scratch::new("first.toml", "[mail]\nkind = 'token_bucket'\nrate = 0\nper = '0s'\n");
    let output = run(tollgate().args(["consume", "mail", "ada", "--limits"]).arg(&file.0));
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let path = file.0.display();
    assert_eq!(
        text(&output.stderr),
        format!(
            "error: {path}:3:8: limit \"mail\": the rate must be positive; and 1 more (run `tollgate limits check {path}`)\n"
        )
    );
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
