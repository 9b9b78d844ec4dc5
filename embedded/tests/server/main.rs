//! The launcher, with real servers: `psql` from the launcher's own programs talks to them, and owners are separate
//! processes, so that they can die in every way.
#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "clippy allows it in tests, but not in their helpers")]

mod owners;
mod programs;
mod restarts;
mod settings;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use tollgate_embedded::{Server, find_programs};

#[test]
fn starts_and_answers() {
    let server = Server::start().unwrap();
    assert_eq!(query(&server, "select 1"), "1");
    assert!(server.log().contains("ready to accept connections"), "{}", server.log());
}

#[test]
fn two_servers_live_side_by_side() {
    let (one, other) = (Server::start().unwrap(), Server::start().unwrap());
    query(&one, "create table only_here ()");
    assert_eq!(query(&other, "select to_regclass('only_here') is null"), "t");
}

#[test]
fn another_database_has_its_url() {
    let server = Server::start().unwrap();
    query(&server, r#"create database "a/b ?é%""#);
    let url = server.database_url("a/b ?é%");
    assert_eq!(query_at(&url, "select current_database()").unwrap(), "a/b ?é%");
}

#[test]
fn the_usual_server_is_fast_and_a_durable_one_is_safe() {
    let safety = "select current_setting('fsync') || current_setting('full_page_writes') || \
                  current_setting('synchronous_commit')";
    assert_eq!(query(&Server::start().unwrap(), safety), "offoffoff");
    assert_eq!(query(&Server::builder().durable().start().unwrap(), safety), "ononon");
}

/// Not a fact but the owner in those above, which run it as a process of its own.
#[test]
fn owner() {
    let Ok(role) = std::env::var(ROLE) else { return };
    if role == "find" {
        println!("\nfound: {:?}", find_programs());
        return;
    }
    if role == "fail" {
        let started = Server::builder().setting("no_such_setting", "1").start();
        println!("\nerror: {:?}", started.unwrap_err());
        return;
    }
    let server = Server::start().unwrap();
    println!("\nurl: {}", server.url());
    if role == "beget" {
        let child =
            Command::new("sleep").arg("600").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        println!("child: {}", child.unwrap().id());
    }
    // Until the test lets go, or kills.
    std::io::stdin().lines().for_each(drop);
    match role.as_str() {
        "abort" => std::process::abort(),
        "leak" => std::mem::forget(server),
        _ => {}
    }
}

/// A process that has a server; killed if it is dropped.
struct Owner {
    process: Child,
    output: BufReader<ChildStdout>,
    url: String,
}

impl Owner {
    fn spawn(role: &str, change: impl FnOnce(&mut Command)) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["owner", "--exact", "--nocapture"]);
        change(&mut command);
        command.env(ROLE, role);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = command.spawn().unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        Self { process, output, url: String::new() }
    }

    fn start(role: &str, change: impl FnOnce(&mut Command)) -> Self {
        let mut owner = Self::spawn(role, change);
        if role != "fail" {
            owner.url = owner.line("url: ");
        }
        owner
    }

    fn url(&self) -> String {
        self.url.clone()
    }

    fn traces(&self) -> Traces {
        Traces::at(&self.url)
    }

    /// The rest of the line of the output that begins with the label.
    fn line(&mut self, label: &str) -> String {
        let mut lines = (&mut self.output).lines().map_while(Result::ok);
        let line = lines.find_map(|line| line.strip_prefix(label).map(ToOwned::to_owned));
        line.unwrap_or_else(|| panic!("the owner did not say {label:?}"))
    }

    /// Its error, when it has ended.
    fn finish(mut self) -> String {
        let error = self.line("error: ");
        self.let_go();
        error
    }

    /// Ends its wait, and waits for its end.
    fn let_go(&mut self) {
        drop(self.process.stdin.take());
        self.process.wait().unwrap();
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The traces of a server that nobody has cleaned up.
struct Traces {
    directory: PathBuf,
    pid: String,
}

impl Traces {
    fn of(server: &Server) -> Self {
        Self::at(server.url())
    }

    fn at(url: &str) -> Self {
        let directory = PathBuf::from(url.split_once("?host=").unwrap().1);
        let lock = query_at(url, "select pg_read_file('postmaster.pid')").unwrap();
        Self { directory, pid: lock.lines().next().unwrap().to_owned() }
    }

    fn vanish(&self) {
        eventually("the server to die", || !is_alive(&self.pid));
        eventually("its directory to go", || !self.directory.exists());
    }
}

/// A directory under /tmp, which every user can reach.
struct Scratch {
    path: PathBuf,
}

impl Scratch {
    fn new(name: &str) -> Self {
        let path = Path::new("/tmp").join(format!("embedded-{name}-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(match name {
            "closed" => 0o700,
            _ => 0o755,
        });
        fs::set_permissions(&path, mode).unwrap();
        Self { path }
    }

    fn owner(&self) -> u32 {
        fs::metadata(&self.path).unwrap().uid()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

fn query(server: &Server, sql: &str) -> String {
    query_at(server.url(), sql).unwrap()
}

fn query_at(url: &str, sql: &str) -> Result<String, String> {
    let mut psql = Command::new(find_programs().unwrap().join("psql"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("PG")) {
        psql.env_remove(name);
    }
    // It must be the URL that names the port.
    psql.env("PGPORT", "1");
    psql.args(["-XAtq", "-v", "ON_ERROR_STOP=1", "-c", sql, url]);
    let output = psql.output().unwrap();
    if output.status.success() {
        Ok(String::from_utf8(output.stdout).unwrap().trim_end().to_owned())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

fn is_alive(pid: &str) -> bool {
    signal("0", pid)
}

fn signal(name: &str, pid: &str) -> bool {
    let mut kill = Command::new("/bin/sh");
    kill.args(["-c", r#"kill -s "$1" -- "$2""#, "sh", name, pid]).stderr(Stdio::null());
    kill.status().unwrap().success()
}

fn eventually(what: &str, fact: impl Fn() -> bool) {
    for _ in 0..15_000 {
        if fact() {
            return;
        }
        sleep(Duration::from_millis(20));
    }
    panic!("waited in vain for {what}");
}

/// Set in the processes that are owners.
const ROLE: &str = "TOLLGATE_EMBEDDED_OWNER";
