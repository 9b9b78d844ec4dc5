//! Owners: those that die take all along, and any user can be one.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use tollgate_embedded::Server;

use crate::{Owner, Scratch, Traces, eventually, is_alive, query_at, signal};

#[test]
fn a_failed_start_leaves_nothing() {
    let owner = Owner::start("fail", |_| {});
    let id = owner.process.id();
    assert!(owner.finish().starts_with("Startup"));
    assert!(homes_of(id).is_empty());
}

#[test]
fn an_owner_killed_takes_all_along() {
    let mut owner = Owner::start("hold", |_| {});
    let traces = owner.traces();
    owner.process.kill().unwrap();
    traces.vanish();
}

#[test]
fn an_owner_aborting_takes_all_along() {
    let mut owner = Owner::start("abort", |_| {});
    let traces = owner.traces();
    owner.let_go();
    traces.vanish();
}

#[test]
fn an_owner_that_leaks_its_server_takes_all_along() {
    let mut owner = Owner::start("leak", |_| {});
    let traces = owner.traces();
    owner.let_go();
    traces.vanish();
}

#[test]
fn an_owner_killed_while_it_starts_leaves_nothing() {
    for milliseconds in [0, 150, 400] {
        let mut owner = Owner::spawn("hold", |_| {});
        let id = owner.process.id();
        let under_way = |home: PathBuf| home.join("initdb").exists();
        eventually("initdb to run", || homes_of(id).into_iter().any(under_way));
        sleep(Duration::from_millis(milliseconds));
        owner.process.kill().unwrap();
        owner.process.wait().unwrap();
        eventually("its directory to go", || homes_of(id).is_empty());
    }
}

#[test]
fn a_watchdog_that_is_killed_leaves_no_server_without_one() {
    let mut killed = 0;
    loop {
        let mut owner = Owner::start("hold", |_| {});
        let traces = owner.traces();
        let shells = shells_of(&traces.directory);
        let Some(shell) = shells.get(killed) else { break };
        assert!(signal("KILL", shell));
        owner.process.kill().unwrap();
        traces.vanish();
        killed += 1;
    }
    assert!(killed > 1, "one that takes the orders, and one that waits for the server");
}

#[test]
fn a_child_that_outlives_the_owner_does_not_keep_the_server() {
    let mut owner = Owner::start("beget", |_| {});
    let traces = owner.traces();
    let child = owner.line("child: ");
    owner.process.kill().unwrap();
    traces.vanish();
    assert!(is_alive(&child), "the child was to live longer");
    assert!(signal("KILL", &child));
}

/// The owner ignores the interrupt here, as one does that wants to finish its work first.
#[test]
fn an_interrupt_from_the_terminal_is_for_the_owner_alone() {
    let owner = Owner::start("hold", |command| {
        let test = command.get_program().to_owned();
        let arguments: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", r#"trap "" INT; exec "$@""#, "sh"]).arg(test).args(arguments);
        shell.process_group(0);
        *command = shell;
    });
    assert!(signal("INT", &format!("-{}", owner.process.id())));
    sleep(Duration::from_millis(300));
    assert_eq!(query_at(&owner.url(), "select 1").unwrap(), "1");
}

#[test]
fn a_normal_user_can_start_one() {
    let place = Scratch::new("user");
    // Otherwise every test here is this case already.
    if place.owner() != 0 {
        return;
    }
    let (uid, gid) = nobody();
    let copy = place.path.join("embedded");
    // If this process wrote it, a child that another test forks meanwhile would hold it open, and nothing could run it.
    assert!(Command::new("cp").arg(std::env::current_exe().unwrap()).arg(&copy).status().unwrap().success());
    std::os::unix::fs::chown(&place.path, Some(uid), Some(gid)).unwrap();
    let owner = Owner::start("hold", |command| {
        let mut other = Command::new(&copy);
        other.args(command.get_args()).current_dir("/").uid(uid).gid(gid);
        *command = other;
    });
    let traces = owner.traces();
    assert_eq!(fs::metadata(&traces.directory).unwrap().uid(), uid);
    assert_eq!(query_at(&owner.url(), "select 1").unwrap(), "1");
    drop(owner);
    traces.vanish();
}

#[test]
fn root_gives_way_to_a_user_without_rights() {
    let server = Server::start().unwrap();
    let directory = Traces::of(&server).directory;
    assert_ne!(fs::metadata(directory).unwrap().uid(), 0);
}

fn homes_of(owner: u32) -> Vec<PathBuf> {
    let prefix = format!("/tmp/tollgate-{owner}-");
    let entries = fs::read_dir("/tmp").unwrap().flatten().map(|entry| entry.path());
    entries.filter(|path| path.to_string_lossy().starts_with(&prefix)).collect()
}

/// The watchdog of the server in this directory: each shell of it.
fn shells_of(directory: &Path) -> Vec<String> {
    let output = Command::new("ps").args(["-A", "-ww", "-o", "pid=", "-o", "args="]).output().unwrap();
    let (directory, told) = (directory.to_str().unwrap(), String::from_utf8_lossy(&output.stdout).into_owned());
    let is_ours = |line: &&str| line.contains(&format!(" watchdog {directory} "));
    told.lines().filter(is_ours).map(|line| line.split_whitespace().next().unwrap().to_owned()).collect()
}

fn nobody() -> (u32, u32) {
    let users = fs::read_to_string("/etc/passwd").unwrap();
    let line = users.lines().find(|line| line.starts_with("nobody:")).unwrap();
    let id = |field| line.split(':').nth(field).unwrap().parse().unwrap();
    (id(2), id(3))
}
