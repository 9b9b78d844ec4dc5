//! Bad input: one clear sentence with the remedy, the right exit status, and no backtrace.

use std::process::Output;

use tollgate_embedded::Server;

use super::limits::Scratch;
use super::{EXAMPLE, failure, run, stdout, tollgate};
use crate::world::{LATE, OWNER, World};

#[tokio::test]
async fn a_wrong_password_a_missing_role_and_a_missing_database_have_a_sentence_each() {
    // The shared server trusts everybody.
    let rules =
        Scratch::new("pg_hba.conf", "local all postgres trust\nlocal all none reject\nlocal all all scram-sha-256\n");
    let server = Server::builder().setting("hba_file", rules.0.display().to_string()).start().unwrap();
    let url = server.url().to_owned();
    let told = |user: &str, database: &str| {
        let url = url
            .replace("postgres://postgres@", &format!("postgres://{user}@"))
            .replace("/postgres?", &format!("/{database}?"));
        failure(&run(tollgate().args(["migrate", "status", "--database-url", &url])))
    };
    assert_eq!(
        told("ada:s3cret", "postgres"),
        "error: could not connect to the database: password authentication failed for user \"ada\" \
         (check the user and the \
         password in --database-url)\n"
    );
    assert!(told("none", "postgres").ends_with("(create the role, or let it in by the server's pg_hba.conf)\n"));
    assert_eq!(
        told("postgres", "nowhere"),
        "error: could not connect to the database: database \"nowhere\" does not exist \
         (create the database, or check its name in \
         --database-url)\n"
    );
}

#[test]
fn a_server_that_does_not_answer_is_given_up() {
    // Connections are accepted by the system, and nobody ever answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("postgres://postgres@{}/postgres", silent.local_addr().unwrap());
    let waited = run(tollgate().args(["inspect", "quota", "--connect-timeout", "50ms", "--database-url", &url]));
    assert_eq!(
        failure(&waited),
        "error: could not connect to the database within 50ms (check the host in --database-url, or give it \
         longer with \
         --connect-timeout)\n"
    );
}

#[tokio::test]
async fn without_the_schema_every_command_names_the_remedy() {
    let world = World::unmigrated().await;
    for args in [
        &["inspect", "send_message"][..],
        &["inspect", "send_message", "ada"],
        &["consume", "send_message", "ada"],
        &["check", "send_message", "ada"],
        &["reset", "send_message", "ada"],
        &["reset", "send_message", "--all", "--yes"],
        &["run", "send_message", "ada", "--", "true"],
    ] {
        let told = failure(&ask(&world, args));
        assert!(told.contains("run `tollgate migrate up`"), "{args:?}: {told}");
        assert_eq!(told.lines().count(), 1, "{args:?}: {told}");
    }
}

#[tokio::test]
async fn a_schema_from_a_newer_release_is_no_obstacle() {
    let world = World::new().await;
    world.sql("insert into tollgate.schema_history values (99, 'from_the_future', '2030-01-01T00:00:00Z', '1')").await;
    stdout(&ask(&world, &["consume", "send_message", "ada"]));
    let up = run(tollgate().args(["migrate", "up"]).env("DATABASE_URL", world.url_of(OWNER)));
    assert_eq!(stdout(&up), "nothing to do: the schema is up to date\n");
    let status = stdout(&ask(&world, &["migrate", "status"]));
    assert!(
        status.contains("newer    V99__from_the_future  (from a newer release, which this one works with)\n"),
        "{status}"
    );
    let status: serde_json::Value =
        serde_json::from_str(&stdout(&ask(&world, &["migrate", "status", "--json"]))).unwrap();
    assert_eq!((&status["newer"][0]["version"], &status["is_current"]), (&99.into(), &true.into()), "{status}");
    let doctor = stdout(&ask(&world, &["doctor"]));
    assert!(
        doctor.contains("note: the schema is from a newer release than this command (V99__from_the_future)\n"),
        "{doctor}"
    );
}

#[tokio::test]
async fn a_role_without_rights_is_told_which_it_needs() {
    let world = World::new().await;
    let role = world.role().await;
    let url = as_role(&world, &role);
    let told = |args: &[&str]| {
        failure(&run(tollgate().args(args).args(["--database-url", &url]).env("TOLLGATE_LIMITS", EXAMPLE)))
    };
    for args in
        [&["inspect", "send_message"][..], &["consume", "send_message", "ada"], &["reset", "send_message", "ada"]]
    {
        let told = told(args);
        assert!(
            told.contains("permission denied for schema tollgate (grant usage on schema tollgate, and select, "),
            "{told}"
        );
        assert_eq!(told.lines().count(), 1, "{told}");
    }
    let told = told(&["migrate", "up"]);
    assert!(told.starts_with("error: schema tollgate belongs to tollgate_owner; "), "{told}");
}

#[tokio::test]
async fn what_can_never_be_granted_is_an_error_and_no_refusal() {
    let world = World::new().await;
    for (args, told) in [
        (
            &["consume", "send_message", "ada", "--cost", "21"][..],
            "limit \"send_message\" can never grant 21 tokens at once, at most 20 \
             (raise its capacity or max_reserved, or ask for less)",
        ),
        (
            &["debit", "send_message", "ada", "--cost", "-1"],
            "the call for limit \"send_message\" is wrong: the cost is invalid: a number of tokens is negative",
        ),
        (
            &["consume", "send_mesage", "ada"],
            "there is no limit \"send_mesage\" in {EXAMPLE} (did you mean \"send_message\"?)",
        ),
    ] {
        assert_eq!(failure(&ask(&world, args)), format!("error: {}\n", told.replace("{EXAMPLE}", EXAMPLE)));
    }
    let nobody = run(tollgate().args(["consume", "mail", "ada", "--database-url", &world.command_url()]));
    assert_eq!(
        failure(&nobody),
        "error: what limit \"mail\" allows is not known here (pass --limits FILE, set TOLLGATE_LIMITS, run it where \
         tollgate.toml is, or fill tollgate.limits by `tollgate limits push`)\n"
    );
}

#[tokio::test]
async fn a_row_that_somebody_holds_is_not_waited_for_without_end() {
    let world = World::new().await;
    let mut tx = world.pool.begin().await.unwrap();
    world.sql("insert into tollgate.durable values (0, 'send_message', 'ada', 0, 0, now(), now())").await;
    sqlx::query("select from tollgate.durable for update").execute(&mut *tx).await.unwrap();
    let output = ask(&world, &["reset", "send_message", "ada"]);
    assert!(failure(&output).contains("another transaction locks a row of limit \"send_message\" for too long"));
}

#[tokio::test]
async fn functions_of_strangers_are_not_called() {
    let world = World::new().await;
    let url = with_options(&world.command_url(), "search_path", LATE);
    for args in [
        &["consume", "send_message", "ada"][..],
        &["check", "send_message", "ada"],
        &["doctor"],
        &["inspect", "send_message"],
        &["inspect", "send_message", "ada"],
        &["reset", "send_message", "--all", "--yes"],
        &["sweep"],
        &["top", "--once", "--interval", "100ms"],
    ] {
        stdout(&run(tollgate().args(args).env("DATABASE_URL", &url).env("TOLLGATE_LIMITS", EXAMPLE)));
    }
}

/// The same database as somebody else.
pub(super) fn as_role(world: &World, role: &str) -> String {
    with_options(&world.command_url(), "role", role)
}

/// The same database with another setting.
pub(super) fn with_options(url: &str, setting: &str, value: &str) -> String {
    let separator = if url.contains('?') { '&' } else { '?' };
    format!("{url}{separator}options[{setting}]={value}")
}

fn ask(world: &World, args: &[&str]) -> Output {
    run(tollgate().args(args).env("DATABASE_URL", world.command_url()).env("TOLLGATE_LIMITS", EXAMPLE))
}
