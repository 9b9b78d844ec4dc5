//! `tollgate simulate` and `tollgate suggest`, as people run them: no server.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

mod answers;
mod output;
mod presets;
mod suggest;
mod trace;
mod trace_formats;
mod traffic;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn command(args: &[&str]) -> Command {
    verb("simulate", args)
}

fn verb(verb: &str, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.arg(verb).args(args).stdin(Stdio::null()).env_remove("TOLLGATE_LIMITS");
    command
}

fn run(args: &[&str]) -> Output {
    command(args).output().unwrap()
}

fn stdout(args: &[&str]) -> String {
    told(run(args))
}

/// The output of the command with this text as its input.
fn piped(args: &[&str], text: &[u8]) -> Output {
    fed(command(args), text)
}

fn fed(mut command: Command, text: &[u8]) -> Output {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // A command that stops at a fault does not read to the end.
    let _ = stdin.write_all(text);
    drop(stdin);
    child.wait_with_output().unwrap()
}

fn told(output: Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The trials of the JSON document.
fn trials(args: &[&str]) -> Vec<Value> {
    trials_of(&stdout(&[args, &["--json"]].concat()))
}

fn trials_of(text: &str) -> Vec<Value> {
    let mut document: Value = serde_json::from_str(text).unwrap();
    serde_json::from_value(document["trials"].take()).unwrap()
}

/// The only trial of recorded calls.
fn recorded(args: &[&str], csv: &str) -> Value {
    let output = piped(&[args, &["--trace", "-", "--json"]].concat(), csv.as_bytes());
    trials_of(&told(output)).remove(0)
}

fn number(trial: &Value, field: &str) -> u64 {
    trial[field].as_u64().unwrap_or_else(|| panic!("{field} of {trial}"))
}

/// Calls, grants and refusals.
fn counts(trial: &Value) -> [u64; 3] {
    let [calls, granted, refused] = ["calls", "granted", "refused"].map(|field| number(trial, field));
    assert_eq!(calls, granted + refused + number(trial, "impossible"), "every call is counted once");
    let bins = trial["series"]["bins"].as_array().unwrap();
    let drawn: u64 = bins.iter().map(|bin| number(bin, "granted") + number(bin, "refused")).sum();
    assert_eq!(drawn, granted + refused, "every answer is drawn once");
    assert!(bins.len() <= 160, "{} bins", bins.len());
    [calls, granted, refused]
}

/// A directory of its own, gone with the value.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("simulate-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}
