//! Leases: of `tollgate run`, and of holders that never released one.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::Stdio;

use super::limits::Scratch;
use super::{run, signal, stdout, text, tollgate};
use crate::world::{World, soon};

#[tokio::test]
async fn run_holds_a_lease_until_its_program_ends() {
    let world = World::new().await;
    let file = Scratch::new("leases.toml", LIMITS);
    let asking = |args: &[&str]| {
        let mut command = tollgate();
        command.args(args).arg("--limits").arg(&file.0).env("DATABASE_URL", world.command_url());
        command
    };
    let running = |script: &str| {
        let mut command = tollgate();
        command.args(["run", "slots", "--global", "--limits"]).arg(&file.0).env("DATABASE_URL", world.command_url());
        command.args(["--", "sh", "-c", script]).process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut ready = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut ready).unwrap();
        child
    };
    let mut child = running("echo ready; read line; exit 7");
    assert_eq!(run(&mut asking(&["check", "slots", "--global"])).status.code(), Some(2));
    let told = stdout(&run(&mut asking(&["inspect", "slots", "--global"])));
    assert!(told.starts_with("limit     slots: concurrency limit, 1 at once, leases of 1day\n"), "{told}");
    assert!(told.contains("lease     1, ends in "), "{told}");
    let told = stdout(&run(&mut asking(&["top", "--once", "--json", "--interval", "100ms"])));
    assert_eq!(serde_json::from_str::<serde_json::Value>(&told).unwrap()["keys"][0]["leases"], 1, "{told}");
    child.stdin.take().unwrap().write_all(b"done\n").unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(7));

    let mut child = running("trap 'exit 9' TERM; echo ready; while :; do sleep 0.02; done");
    signal("TERM", child.id());
    assert_eq!(child.wait().unwrap().code(), Some(9));

    // In a group of its own, so that no terminal has sent it to the program as well.
    for sent in ["INT", "QUIT", "HUP", "USR1", "USR2"] {
        let mut child = running(&format!("trap 'exit 9' {sent}; echo ready; while :; do sleep 0.02; done"));
        signal(sent, child.id());
        assert_eq!(child.wait().unwrap().code(), Some(9), "{sent}");
        let mut child = running(&format!("trap 'exit 9' {sent}; echo ready; while :; do :; done"));
        // As a terminal does, to the program as well, which ends at once.
        signal(sent, format_args!("-{}", child.id()));
        assert_eq!(child.wait().unwrap().code(), Some(9), "{sent}");
        assert_eq!(run(&mut asking(&["check", "slots", "--global"])).status.code(), Some(0), "{sent}");
    }

    // A row that somebody holds delays the release, for ten seconds at most.
    let mut child = running("echo ready; read line; exit 7");
    let mut tx = world.begin().await;
    sqlx::query("select from tollgate.durable for update").execute(&mut *tx).await.unwrap();
    child.stdin.take().unwrap().write_all(b"done\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(text(&output.stderr), "the lease could not be released in time, and lapses\n");
    tx.rollback().await.unwrap();
    stdout(&run(&mut asking(&["reset", "slots", "--global"])));

    // Killed, it cannot release: the lease lapses, or somebody lets it go.
    let mut child = running("echo ready; read line");
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(run(&mut asking(&["check", "slots", "--global"])).status.code(), Some(2));
    stdout(&run(&mut asking(&["reset", "slots", "--global"])));
    assert_eq!(run(&mut asking(&["check", "slots", "--global"])).status.code(), Some(0));
    let failed = run(tollgate()
        .args(["run", "slots", "--global", "--limits"])
        .arg(&file.0)
        .env("DATABASE_URL", world.command_url())
        .args(["--", "/nonexistent/program"]));
    assert_eq!(failed.status.code(), Some(127));
    assert_eq!(run(&mut asking(&["check", "slots", "--global"])).status.code(), Some(0));
}

/// Without the one that holds its lease, a program would be one more than the limit allows.
#[tokio::test]
async fn a_program_does_not_outlive_a_run_that_is_killed() {
    let world = World::new().await;
    let file = Scratch::new("leases_killed.toml", LIMITS);
    let mut command = tollgate();
    command.args(["run", "slots", "--global", "--limits"]).arg(&file.0).env("DATABASE_URL", world.command_url());
    let script = "trap 'echo passed on' USR1; echo ready; while :; do sleep 0.02; done";
    let mut child = command.args(["--", "sh", "-c", script]).stdout(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    out.read_line(&mut String::new()).unwrap();
    // Once the command passes signals on, it has all in place.
    signal("USR1", child.id());
    out.read_line(&mut String::new()).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    // The program had the other end of it, too.
    let (tell, ended) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || tell.send(out.read_to_end(&mut Vec::new())));
    assert_eq!(soon(ended).await.unwrap().unwrap(), 0);
}

#[tokio::test]
async fn the_doctor_names_leases_that_nobody_released() {
    let world = World::new().await;
    let file = Scratch::new("leases_doctor.toml", LIMITS);
    let doctor = || {
        let mut doctor = tollgate();
        let report =
            run(doctor.args(["doctor", "--json", "--limits"]).arg(&file.0).env("DATABASE_URL", world.command_url()));
        String::from_utf8(report.stdout).unwrap()
    };
    for (lapses_in, is_named) in [("1 hour", false), ("-1 hour", true)] {
        world
            .sql(&format!(
                "delete from tollgate.durable;
                 insert into tollgate.durable
                 select 0, 'slots', '', 0, 0, lapse - interval '1 day', lapse,
                        array[2, (extract(epoch from lapse) * 1000000)::int8, 1000000, 0, 84]
                   from (select clock_timestamp() + interval '{lapses_in}') as l (lapse)"
            ))
            .await;
        let told = doctor();
        assert_eq!(told.contains("lapsed_leases"), is_named, "{told}");
    }
}

const LIMITS: &str = "[slots]\nkind = 'concurrency'\nrate = 1\nlease = '1day'\n";
