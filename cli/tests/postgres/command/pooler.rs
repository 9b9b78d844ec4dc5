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
const LEFT: [&str; 6] = [
    "search_path = nowhere",
    "role = ROLE",
    "default_transaction_read_only = on",
    "default_transaction_isolation = 'repeatable read'",
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
            leave(&pooler, &world, &left.replace("ROLE", &role)).await;
            let mut tollgate = tollgate();
            tollgate.args(command).args(["--database-url", &pooler.url(world.name())]);
            if !matches!(command[0], "sweep" | "override") || command.contains(&"set") {
                tollgate.args(["--limits", &file]);
            }
            let output = run(&mut tollgate);
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

/// A timeout that was left counts until the message that brings the command's own settings has replaced it. So it is
/// longer than such a message takes on a busy machine.
#[tokio::test]
async fn the_command_waits_longer_than_a_timeout_that_another_client_left() {
    if pgbouncer::is_missing() {
        return;
    }
    let world = World::new().await;
    let (file, pooler) = (limits_file(&world), PgBouncer::start(&world.url_of(ON_CALL), 1));
    for timeout in ["statement_timeout", "lock_timeout"] {
        leave(&pooler, &world, &format!("{timeout} = '200ms'")).await;
        let [mut holder, mut witness] = [world.admin().await, world.admin().await];
        let hold = "begin; lock table tollgate.durable in access exclusive mode";
        sqlx::raw_sql(hold).execute(&mut holder).await.unwrap();
        let (url, file) = (pooler.url(world.name()), file.clone());
        let command = move || run(tollgate().args(["check", "d", "k", "--limits", &file, "--database-url", &url]));
        let mut command = tokio::task::spawn_blocking(command);
        let ended = tokio::select! {
            () = world.until_anyone_is_blocked() => None,
            output = &mut command => Some(output),
        };
        // When somebody who came later has given up, the command is past its time, too.
        let ask = format!("set {timeout} = '200ms'; select from tollgate.durable");
        sqlx::raw_sql(AssertSqlSafe(ask)).execute(&mut witness).await.unwrap_err();
        holder.close().await.unwrap();
        let output = if let Some(output) = ended { output } else { command.await }.unwrap();
        assert!(output.status.success(), "{timeout}: {}", text(&output.stderr));
        pooler.command("reconnect").await;
    }
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

/// Lets another client of the pooler leave a setting in its session.
async fn leave(pooler: &PgBouncer, world: &World, setting: &str) {
    let mut other = PgConnection::connect(&pooler.url(world.name())).await.unwrap();
    sqlx::raw_sql(AssertSqlSafe(format!("set {setting}"))).execute(&mut other).await.unwrap();
    other.close().await.unwrap();
}

/// A file with the limit that the commands are about.
fn limits_file(world: &World) -> String {
    let file = std::env::temp_dir().join(format!("{}.toml", world.name()));
    std::fs::write(&file, "[d]\nkind = \"token_bucket\"\nrate = 100\nperiod = \"1d\"\n").unwrap();
    file.to_str().unwrap().to_owned()
}
