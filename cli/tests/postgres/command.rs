//! The `tollgate` command, as people run it.

mod customer;
mod distribute;
mod doctor;
mod failure;
mod guide;
mod help;
mod inspect;
mod leases;
pub(crate) mod limits;
mod migrate;
mod overrides;
mod parts;
mod pooler;
mod usage;
mod verbs;

use std::fmt::Display;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use sqlx::AssertSqlSafe;

use crate::world::{OWNER, World};

#[tokio::test]
async fn migrate_goes_from_nothing_to_valid() {
    let world = World::unmigrated().await;
    let migrate = |args: &[&str]| run(tollgate().arg("migrate").args(args).env("DATABASE_URL", world.command_url()));

    assert!(stdout(&migrate(&["status"])).starts_with("pending  V1__create_ephemeral\n"));
    assert_eq!(
        failure(&migrate(&["validate"])),
        "error: migration V1__create_ephemeral is not applied (run `tollgate migrate up`)\n"
    );
    assert!(stdout(&migrate(&["up", "--dry-run"])).starts_with("would apply V1__create_ephemeral\nwould apply V2__"));
    assert!(stdout(&migrate(&["up"])).starts_with("applied V1__create_ephemeral\napplied V2__create_durable\n"));
    assert_eq!(stdout(&migrate(&["up"])), "nothing to do: the schema is up to date\n");
    assert!(stdout(&migrate(&["status"])).starts_with("applied  V1__create_ephemeral  2"));
    assert!(stdout(&migrate(&["validate"])).starts_with("the schema is what tollgate "));
}

#[tokio::test]
async fn the_sql_it_prints_is_the_schema_it_validates() {
    let world = World::unmigrated().await;
    let sql = stdout(&run(tollgate().args(["migrate", "sql"])));
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(&world.pool).await.unwrap();
    let url = world.command_url();
    assert!(
        stdout(&run(tollgate().args(["migrate", "validate", "--database-url", &url]))).starts_with("the schema is")
    );
}

#[tokio::test]
async fn roles_are_granted_the_functions_of_their_set() {
    let world = World::new().await;
    let role = world.role().await;
    let may = async |function: &str| {
        let sql = "select has_function_privilege($1, $2, 'execute')";
        sqlx::query_scalar::<_, bool>(sql).bind(&role).bind(function).fetch_one(&world.pool).await.unwrap()
    };
    let (asks, mints) = ("tollgate.balance(text, text)", "tollgate.reset(text, text)");
    assert_eq!((may(asks).await, may(mints).await), (false, false));
    let owner = world.url_of(OWNER);
    stdout(&run(tollgate().args(["migrate", "up", "--grant", &role, "--database-url", &owner])));
    assert_eq!((may(asks).await, may(mints).await), (true, false));
    let sql = stdout(&run(tollgate().args(["migrate", "sql", "--owner", OWNER, "--grant-operator", &role])));
    world.sql(&sql).await;
    assert_eq!((may(asks).await, may(mints).await), (true, true));
}

#[tokio::test]
async fn migrations_that_cannot_get_their_lock_end_with_one_sentence() {
    let world = World::unmigrated().await;
    let mut holder = world.pool.acquire().await.unwrap();
    let lock = i64::from_be_bytes(*b"tollgate");
    sqlx::query("select pg_advisory_lock($1)").bind(lock).execute(&mut *holder).await.unwrap();
    let url = failure::with_options(&world.direct_url(), "lock_timeout", "20ms");
    let error = failure(&run(tollgate().args(["migrate", "up"]).env("DATABASE_URL", url)));
    assert!(error.starts_with("error: another session keeps the lock of the migrations"), "{error}");
    assert!(error.contains("select pid from pg_locks") && error.lines().count() == 1, "{error}");
}

#[test]
fn what_is_missing_is_one_sentence_with_the_remedy() {
    let migrate = |url: Option<&str>| {
        let mut command = tollgate();
        command.args(["migrate", "up"]).env_remove("DATABASE_URL");
        url.map(|url| command.args(["--database-url", url]));
        failure(&run(&mut command))
    };
    assert_eq!(
        migrate(None),
        "error: no database is given (set DATABASE_URL, or pass \
         --database-url postgres://user:password@host/database)\n"
    );
    let (away, wrong) = ("check --database-url, and that the server runs", "write --database-url as postgres://");
    for (url, remedy) in [("postgres://nobody@127.0.0.1:1/none", away), ("nonsense", wrong), ("mysql://x", wrong)] {
        let error = migrate(Some(url));
        assert!(error.starts_with("error: could not connect to the database: "), "{error}");
        assert!(error.contains(remedy), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}

#[test]
fn wrong_usage_exits_with_64_for_2_is_a_refusal() {
    let without_key = ["consume", "send_message"];
    for args in [&["migrate"][..], &["migrate", "down"], &["fly"], &[], &without_key, &["run", "a", "b"]] {
        assert_eq!(run(tollgate().args(args)).status.code(), Some(64), "{args:?}");
    }
    for args in [["--help"], ["--version"]] {
        assert_eq!(run(tollgate().args(args)).status.code(), Some(0), "{args:?}");
    }
}

#[test]
fn a_reader_that_leaves_early_is_no_error() {
    let mut child = tollgate().args(["migrate", "sql"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut first = String::new();
    // The pipe closes here, long before the text would fit into its buffer twice.
    BufReader::with_capacity(64, child.stdout.take().unwrap()).read_line(&mut first).unwrap();
    assert!(first.starts_with("-- tollgate "), "{first}");
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), String::from_utf8(output.stderr).unwrap().as_str()), (Some(0), ""));
}

#[test]
fn a_reader_of_errors_that_leaves_early_changes_no_exit_status() {
    let mut command = tollgate();
    command.args(["migrate", "up", "--database-url", "postgres://nobody@127.0.0.1:1/none"]);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stderr.take());
    assert_eq!(child.wait().unwrap().code(), Some(1));
}

/// The command, without the variables of this environment.
pub(crate) fn tollgate() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    // A directory where no tollgate.toml lies about.
    command.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests"));
    for name in ["CLICOLOR_FORCE", "COLUMNS", "DATABASE_URL", "NO_COLOR", "TOLLGATE_LIMITS"] {
        command.env_remove(name);
    }
    command
}

pub(crate) fn run(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).output().unwrap()
}

/// Sends a signal, as Ctrl-C or `docker stop` does.
pub(crate) fn signal(name: &str, process: impl Display) {
    let kill = format!("kill -s {name} -- {process}");
    assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
}

pub(crate) fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    text(&output.stdout)
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Compares a text with the one that is kept under this name, or keeps it where `UPDATE_SNAPSHOTS` is set.
fn snapshot(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/postgres/command/snapshots/{name}.txt"));
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(
        text, kept,
        "{name} has changed (if it should: UPDATE_SNAPSHOTS=1 cargo test -p tollgate-cli --test postgres command)"
    );
}

/// A limits file for all.
const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/tollgate.toml");

pub(crate) fn failure(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stdout));
    text(&output.stderr)
}
