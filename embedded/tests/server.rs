//! The launcher, with real servers: `psql` from the launcher's own programs talks to them, and owners are separate
//! processes, so that they can die in every way.
#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "clippy allows it in tests, but not in their helpers")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use tollgate_embedded::{Server, StartError, find_programs};

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

#[test]
fn a_crash_keeps_logged_rows_and_empties_unlogged_ones() {
    let mut server = Server::builder().durable().start().unwrap();
    fill_tables(&server);
    let url = server.url().to_owned();
    server.crash().unwrap();
    query_at(&url, "select 1").unwrap_err();
    server.restart().unwrap();
    assert_eq!(server.url(), url);
    assert_eq!(rows_of_tables(&server), "1 0");
    assert!(server.log().contains("was not properly shut down"), "{}", server.log());
}

#[test]
fn a_clean_stop_keeps_all_rows() {
    let mut server = Server::start().unwrap();
    fill_tables(&server);
    server.stop().unwrap();
    query_at(server.url(), "select 1").unwrap_err();
    server.stop().unwrap();
    server.restart().unwrap();
    assert_eq!(rows_of_tables(&server), "1 1");
    server.restart().unwrap();
    assert_eq!(rows_of_tables(&server), "1 1");
    assert!(!server.log().contains("was not properly shut down"), "{}", server.log());
}

#[test]
fn a_server_that_died_by_itself_can_be_restarted() {
    let mut server = Server::start().unwrap();
    let pid = Traces::of(&server).pid;
    assert!(signal("QUIT", &pid));
    eventually("the server to die", || !is_alive(&pid));
    server.restart().unwrap();
    assert_eq!(query(&server, "select 1"), "1");
}

#[test]
fn dropping_leaves_nothing() {
    let mut server = Server::start().unwrap();
    let traces = Traces::of(&server);
    assert!(traces.directory.exists() && is_alive(&traces.pid));
    assert_eq!(fs::metadata(&traces.directory).unwrap().mode() & 0o777, 0o700, "it is private");
    drop(server);
    assert!(!traces.directory.exists());
    assert!(!is_alive(&traces.pid));

    server = Server::start().unwrap();
    let directory = Traces::of(&server).directory;
    server.stop().unwrap();
    drop(server);
    assert!(!directory.exists(), "of a stopped server");
}

#[test]
fn a_failed_start_leaves_nothing() {
    let owner = Owner::start("fail", |_| {});
    let id = owner.process.id();
    assert!(owner.finish().starts_with("Startup"));
    assert!(homes_of(id).is_empty());
}

#[test]
fn data_in_a_directory_of_the_users_own_stay() {
    let parent = Scratch::new("kept");
    let data = parent.path.join("not/yet/there");
    let server = Server::builder().data_dir(&data).start().unwrap();
    fill_tables(&server);
    let private = Traces::of(&server).directory;
    drop(server);
    assert!(!private.exists());
    let again = Server::builder().data_dir(&data).start().unwrap();
    assert_eq!(rows_of_tables(&again), "1 1");

    let second = Server::builder().data_dir(&data).start().unwrap_err();
    assert!(second.to_string().contains("postmaster.pid"), "{second}");
    assert_eq!(rows_of_tables(&again), "1 1");
}

#[test]
fn tcp_works_and_the_port_stays_over_a_restart() {
    let mut server = Server::builder().tcp().start().unwrap();
    let url = server.url().to_owned();
    assert!(url.starts_with("postgres://postgres@127.0.0.1:"), "{url}");
    assert_eq!(query(&server, "select inet_server_addr()"), "127.0.0.1");
    server.restart().unwrap();
    assert_eq!(server.url(), url);
    assert_eq!(query(&server, "select 1"), "1");
}

#[test]
fn without_tcp_nobody_listens_on_it() {
    let server = Server::start().unwrap();
    assert_eq!(query(&server, "show listen_addresses"), "");
    assert_eq!(query(&server, "select inet_server_addr() is null"), "t");
}

#[test]
fn settings_arrive_as_given() {
    let name = r#"it's $HOME\n "x" `id` = ä"#;
    let server = Server::builder().setting("max_connections", "7").setting("tollgate.probe", name).start().unwrap();
    assert_eq!(query(&server, "show max_connections"), "7");
    assert_eq!(query(&server, "show tollgate.probe"), name);
}

#[test]
fn the_users_setting_comes_after_ours() {
    assert_eq!(query(&Server::builder().setting("fsync", "on").start().unwrap(), "show fsync"), "on");
}

#[test]
fn what_is_no_name_is_refused() {
    for (name, value) in [("", "1"), ("a=b", "1"), ("a b", "1"), ("-c", "1"), ("work_mem", "1\0"), ("Port", "1")] {
        let error = Server::builder().setting(name, value).start().unwrap_err();
        assert!(matches!(error, StartError::Setting { .. }), "{name}: {error}");
    }
}

#[test]
fn a_bad_setting_is_answered_with_the_servers_reason() {
    let error = Server::builder().setting("no_such_setting", "1").start().unwrap_err();
    assert!(matches!(error, StartError::Startup { .. }), "{error:?}");
    let reason = r#"unrecognized configuration parameter "no_such_setting""#;
    assert!(error.to_string().contains(reason), "{error}");
}

#[test]
fn a_wrong_pg_bin_is_named_and_not_ignored() {
    let owner = Owner::start("fail", |command| {
        command.env("PG_BIN", "/nowhere");
    });
    assert_eq!(owner.finish(), r#"WrongPgBin { directory: "/nowhere" }"#);
}

#[test]
fn a_right_pg_bin_decides() {
    let links = Scratch::new("bin");
    for name in PROGRAMS {
        let program = find_programs().unwrap().join(name);
        symlink(program, links.path.join(name)).unwrap();
    }
    let owner = Owner::start("hold", |command| {
        command.env("PG_BIN", &links.path).env("PATH", "/usr/bin:/bin");
    });
    assert_eq!(query_at(&owner.url(), "select 1").unwrap(), "1");
}

#[test]
fn links_lead_to_where_all_programs_are() {
    let place = Scratch::new("linked");
    let (real, links) = (place.path.join("18/bin"), place.path.join("links"));
    install(&real);
    fs::create_dir(&links).unwrap();
    for name in PROGRAMS {
        symlink(real.join(name), links.join(name)).unwrap();
    }
    assert_eq!(found_at(&links), format!("Ok({:?})", real.canonicalize().unwrap()));
}

#[test]
fn wrappers_of_one_program_elsewhere_stay_where_they_are() {
    let place = Scratch::new("wrapped");
    let (bin, elsewhere) = (place.path.join("bin"), place.path.join("initdb"));
    install(&bin);
    fs::rename(bin.join("initdb"), &elsewhere).unwrap();
    symlink(&elsewhere, bin.join("initdb")).unwrap();
    assert_eq!(found_at(&bin), format!("Ok({:?})", bin.canonicalize().unwrap()));
}

#[test]
fn a_client_alone_does_not_count() {
    let place = Scratch::new("client");
    fs::write(place.path.join("initdb"), "").unwrap();
    fs::write(place.path.join("postgres"), "").unwrap();
    assert!(found_at(&place.path).starts_with("Err(WrongPgBin"));
}

#[test]
fn the_users_variables_do_not_reach_the_server() {
    let owner = Owner::start("hold", |command| {
        command.envs([("PGCLIENTENCODING", "LATIN1"), ("PGDATA", "/nowhere")]);
        command.envs([("PGPORT", "1"), ("PGHOST", "/nowhere"), ("PGOPTIONS", "-c x=y")]);
        command.envs([("LC_ALL", "fr_FR.UTF-8"), ("LANGUAGE", "fr")]);
    });
    assert_eq!(query_at(&owner.url(), "show client_encoding").unwrap(), "UTF8");
    assert_eq!(query_at(&owner.url(), "show lc_messages").unwrap(), "C");
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

#[test]
fn programs_closed_to_that_user_are_an_error_that_says_so() {
    let closed = Scratch::new("closed");
    if closed.owner() != 0 {
        return;
    }
    for name in PROGRAMS {
        fs::write(closed.path.join(name), "").unwrap();
    }
    let owner = Owner::start("fail", |command| {
        command.env("PG_BIN", &closed.path);
    });
    let answer = owner.finish();
    assert!(answer.starts_with("ProgramsClosed"), "{answer}");
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

    /// What follows the label in the output.
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

/// What a server leaves if it is not cleaned up.
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

/// What an owner finds if `PG_BIN` is this directory.
fn found_at(directory: &Path) -> String {
    let mut owner = Owner::spawn("find", |command| {
        command.env("PG_BIN", directory);
    });
    owner.line("found: ")
}

fn install(directory: &Path) {
    fs::create_dir_all(directory).unwrap();
    for name in PROGRAMS {
        fs::write(directory.join(name), "").unwrap();
    }
}

fn fill_tables(server: &Server) {
    query(server, "create table logged as select 1; create unlogged table unlogged as select 1");
}

fn rows_of_tables(server: &Server) -> String {
    let counts = "select concat((select count(*) from logged), ' ', \
                  (select count(*) from unlogged))";
    query(server, counts)
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

fn is_alive(pid: &str) -> bool {
    signal("0", pid)
}

fn signal(name: &str, pid: &str) -> bool {
    let mut kill = Command::new("/bin/sh");
    kill.args(["-c", r#"kill -s "$1" -- "$2""#, "sh", name, pid]).stderr(Stdio::null());
    kill.status().unwrap().success()
}

fn nobody() -> (u32, u32) {
    let users = fs::read_to_string("/etc/passwd").unwrap();
    let line = users.lines().find(|line| line.starts_with("nobody:")).unwrap();
    let id = |field| line.split(':').nth(field).unwrap().parse().unwrap();
    (id(2), id(3))
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

/// What the launcher needs.
const PROGRAMS: [&str; 3] = ["initdb", "postgres", "pg_ctl"];

/// Set in the processes that are owners.
const ROLE: &str = "TOLLGATE_EMBEDDED_OWNER";
