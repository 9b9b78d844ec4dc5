//! The command's help texts, kept word for word: a change of them is a change of the interface.

use super::{run, snapshot, stdout, tollgate};

#[test]
fn the_help_of_each_command_is_what_it_was() {
    for command in [
        "check",
        "completions",
        "consume",
        "credit",
        "debit",
        "distribute",
        "doctor",
        "forget",
        "inspect",
        "limits check",
        "limits push",
        "man",
        "migrate",
        "migrate up",
        "migrate validate",
        "override list",
        "override remove",
        "override set",
        "reset",
        "run",
        "simulate",
        "suggest",
        "sweep",
        "top",
        "usage",
    ] {
        let help = stdout(&run(tollgate().args(command.split(' ')).arg("--help")));
        snapshot(&format!("help_{}", command.replace(' ', "_")), &help);
    }
}

#[test]
fn the_parts_for_operators_name_commands_that_there_are() {
    let alerts = include_str!("../../../../ops/alerts.yml").replace("{{ $labels.limit }}", "NAME");
    let typed = alerts.split('`').filter_map(|span| span.strip_prefix("tollgate "));
    let jobs = include_str!("../../../../ops/kubernetes.yml").lines();
    let started = jobs.filter_map(|line| line.trim().strip_prefix("args: [")?.strip_suffix(']'));
    for command in typed.chain(started) {
        let words = command.split([' ', ',', '\n']).filter(|word| !word.is_empty());
        stdout(&run(tollgate().args(words).arg("--help")));
    }
}

#[test]
fn every_shell_gets_completions_that_know_the_commands() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = stdout(&run(tollgate().args(["completions", shell])));
        assert!(script.contains("inspect") && script.contains("reserve"), "{shell}: {script}");
    }
}

#[test]
fn the_manual_has_a_page_for_each_command() {
    let page = stdout(&run(tollgate().arg("man")));
    assert!(page.contains(".TH tollgate 1") && page.contains("64 wrong usage"), "{page}");

    let directory = std::env::temp_dir().join(format!("tollgate_man_{}", std::process::id()));
    stdout(&run(tollgate().args(["man", "--out"]).arg(&directory)));
    for page in ["tollgate.1", "tollgate-consume.1", "tollgate-limits-check.1", "tollgate-migrate-up.1"] {
        assert!(directory.join(page).exists(), "{page}");
    }
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn colours_are_only_for_terminals() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/tollgate.toml");
    let told = |command: &mut std::process::Command| stdout(&run(command.args(["limits", "check", file])));
    assert!(!told(&mut tollgate()).contains('\u{1b}'));
    assert!(told(tollgate().env("CLICOLOR_FORCE", "1")).contains("\u{1b}[1m\u{1b}[32m"));
}
