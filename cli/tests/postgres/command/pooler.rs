//! The command, through a PgBouncer in transaction mode.

use std::fmt::Write as _;

use sqlx::{AssertSqlSafe, Connection, PgConnection};

use super::{run, text, tollgate};
use crate::pgbouncer::{self, PgBouncer};
use crate::world::{ON_CALL, World};

#[tokio::test]
async fn the_command_migrates_through_a_pooler() {
    if pgbouncer::is_missing() {
        return;
    }
    let world = World::unmigrated().await;
    let pooler = PgBouncer::start(&world.direct_url(), 1);
    for (verb, said) in [
        ("up", "applied V1__"),
        ("up", "nothing to do"),
        ("status", "applied  V1__"),
        ("validate", "the schema is what"),
    ] {
        let url = pooler.url(world.name());
        let output = run(tollgate().args(["migrate", verb, "--database-url", &url]));
        let told = text(&output.stdout);
        assert!(told.starts_with(said), "{told}{}", text(&output.stderr));
    }
}

/// Settings that another client of the pooler leaves in the session that the command gets. `ROLE` has no rights.
const LEFT: [&str; 8] = [
    "search_path = nowhere",
    "role = ROLE",
    "default_transaction_read_only = on",
    "default_transaction_isolation = 'repeatable read'",
    "statement_timeout = '1ms'",
    "lock_timeout = '1ms'",
    "idle_in_transaction_session_timeout = '1ms'",
    "timezone = 'Asia/Kathmandu'",
];

const COMMANDS: [&[&str]; 9] = [
    &["consume", "d", "k"],
    &["check", "d", "k"],
    &["credit", "d", "k"],
    &["override", "set", "d", "k", "--unlimited", "--reason", "x"],
    &["override", "list"],
    &["override", "remove", "d", "k"],
    &["inspect", "d", "k"],
    &["reset", "d", "k"],
    &["sweep"],
];

#[tokio::test]
async fn the_command_goes_by_no_setting_that_another_client_of_the_pooler_left() {
    if pgbouncer::is_missing() {
        return;
    }
    let world = World::new().await;
    let file = limits_file(&world);
    let pooler = PgBouncer::start(&world.url_of(ON_CALL), 1);
    let role = world.role().await;
    let (mut shown, mut wrong) = (String::new(), 0);
    for left in LEFT {
        write!(shown, "{left:<50}").unwrap();
        for command in COMMANDS {
            let mut other = PgConnection::connect(&pooler.url(world.name())).await.unwrap();
            let set = AssertSqlSafe(format!("set {}", left.replace("ROLE", &role)));
            sqlx::raw_sql(set).execute(&mut other).await.unwrap();
            other.close().await.unwrap();
            let mut tollgate = tollgate();
            tollgate.args(command).args(["--database-url", &pooler.url(world.name())]);
            if !matches!(command[0], "sweep" | "override") || command.contains(&"set") {
                tollgate.args(["--limits", &file]);
            }
            let mut output = run(&mut tollgate);
            // On a busy machine a millisecond may be over before the message that brings the command's own settings.
            if left.starts_with("statement_timeout") && text(&output.stderr).contains("canceling statement") {
                output = run(&mut tollgate);
            }
            if output.status.success() {
                shown.push_str(" ok");
            } else {
                wrong += 1;
                write!(shown, "\n    {command:?}: {}", text(&output.stderr)).unwrap();
            }
            pooler.command("reconnect").await;
        }
        shown.push('\n');
    }
    println!("{shown}");
    assert_eq!(wrong, 0, "{shown}");
}

#[tokio::test]
async fn in_statement_mode_the_command_names_the_remedy() {
    if pgbouncer::is_missing() {
        return;
    }
    let world = World::new().await;
    let file = limits_file(&world);
    let pooler = PgBouncer::configured(&world.url_of(ON_CALL), 1, "auth_type = any\npool_mode = statement", None);
    for command in [&["doctor"][..], &["check", "d", "k"], &["consume", "d", "k"]] {
        let url = pooler.url(world.name());
        let output = run(tollgate().args(command).args(["--limits", &file, "--database-url", &url]));
        let told = format!("{}{}", text(&output.stdout), text(&output.stderr));
        assert!(!output.status.success() && told.contains("set pool_mode = transaction"), "{command:?}: {told}");
    }
}

/// A file with the limit that the commands are about.
fn limits_file(world: &World) -> String {
    let file = std::env::temp_dir().join(format!("{}.toml", world.name()));
    std::fs::write(&file, "[d]\nkind = \"token_bucket\"\nrate = 100\nperiod = \"1d\"\n").unwrap();
    file.to_str().unwrap().to_owned()
}
