//! Rights of roles, and row security.

use serde_json::Value;
use tollgate::migrate::{Callers, grants};

use super::{examine, expect, findings};
use crate::command::failure::as_role;
use crate::command::{EXAMPLE, failure, run, stdout, tollgate};
use crate::world::{ON_CALL, OWNER, SERVICE, World};

#[tokio::test]
async fn missing_rights_are_named_with_the_grants() {
    let world = World::new().await;
    let role = world.role().await;
    world
        .sql(&format!(
            "grant usage on schema tollgate to {role};
             grant select, insert, update on tollgate.durable to {role};
             grant select, insert, update, delete on tollgate.ephemeral, tollgate.calls to {role};
             grant select on tollgate.overrides to {role}"
        ))
        .await;
    for findings in [findings(&world.command_url(), &["--role", &role]), findings(&as_role(&world, &role), &[])] {
        let finding = findings.iter().find(|finding| finding["check"] == "rights").unwrap();
        assert_eq!(finding["what"], format!("role {role} lacks delete on tollgate.durable"));
        assert_eq!(finding["remedy"], format!("grant delete on tollgate.durable to {role};"));
    }
    assert_eq!(examine(&world.command_url(), &["--role", &role]).status.code(), Some(1));
}

#[tokio::test]
async fn a_role_that_calls_functions_alone_needs_them_and_no_table() {
    let world = World::new().await;
    let role = world.role().await;
    let told = || {
        let findings = findings(&world.command_url(), &["--role", &role]);
        let told = |of: &str, finding: &Value| finding[of].as_str().unwrap().to_owned();
        let found = findings.iter().find(|finding| finding["check"] == "rights");
        found.map(|finding| [told("what", finding), told("remedy", finding)])
    };
    assert!(told().unwrap()[0].contains("delete on tollgate.calls"), "a role without rights is a service's");
    for (callers, taken, option) in [
        (Callers::Applications, "tollgate.check_all", "--grant"),
        (Callers::Operators, "tollgate.cancel", "--grant-operator"),
    ] {
        world.sql(&grants(&role, callers)).await;
        assert_eq!(told(), None);
        world.sql(&format!("revoke execute on function {taken} from {role}")).await;
        let what = format!("role {role} lacks execute on function {taken}");
        assert_eq!(told(), Some([what, format!("tollgate migrate up {option} {role}")]));
        world.sql(&grants(&role, callers)).await;
    }
    world.sql(&format!("revoke usage on schema tollgate from {role}")).await;
    let remedy = format!("grant usage on schema tollgate to {role};");
    assert_eq!(told(), Some([format!("role {role} lacks usage on schema tollgate"), remedy]));
}

/// As a dump without rights leaves the functions.
#[tokio::test]
async fn who_may_give_write_and_read_is_named_and_public_is_an_error() {
    let world = World::new().await;
    let role = world.role().await;
    world.sql(&grants(&role, Callers::Applications)).await;
    world
        .sql(&format!(
            "grant select (key) on tollgate.calls to {role}; revoke {role} from {SERVICE}, {ON_CALL}, {OWNER}"
        ))
        .await;
    let owner = world.url_of(OWNER);
    let validate = || run(tollgate().args(["migrate", "validate", "--database-url", &owner]));
    let rights = || examine(&world.command_url(), &["--json"]);
    let rights = || serde_json::from_slice::<Value>(&rights().stdout).unwrap()["rights"].clone();
    let roles = |may: &str| -> Vec<String> { serde_json::from_value(rights()[may].clone()).unwrap() };
    assert_eq!(roles("may_ask"), [&role, OWNER]);
    assert_eq!(roles("may_give"), [ON_CALL, OWNER]);
    assert_eq!(roles("may_write"), [ON_CALL, OWNER, SERVICE]);
    assert_eq!(roles("may_read"), [&role, ON_CALL, OWNER, SERVICE]);
    let told = stdout(&validate());
    assert!(told.contains(&format!("\nmay give: {ON_CALL}, {OWNER}\n")), "{told}");

    world.sql("update pg_proc set proacl = null where pronamespace = 'tollgate'::regnamespace").await;
    expect(&world, &[], "rights", "error", "PUBLIC has EXECUTE on tollgate._admit");
    assert_eq!(roles("may_give"), ["PUBLIC", ON_CALL, OWNER]);
    assert!(failure(&validate()).starts_with("error: PUBLIC has EXECUTE on tollgate._admit, "));
    let up = run(tollgate().args(["migrate", "up", "--grant", &role, "--database-url", &owner]));
    assert_eq!(stdout(&up), "nothing to do: the schema is up to date\n");
    assert_eq!(roles("may_give"), [ON_CALL, OWNER]);
    assert_eq!(roles("may_ask"), [&role, OWNER]);
    assert!(stdout(&validate()).starts_with("the schema is"));
}

#[tokio::test]
async fn row_security_is_an_error_of_the_doctor_and_of_each_command() {
    let world = World::new().await;
    for table in ["ephemeral", "durable"] {
        let row = "(0, 'send_message', 'ada', 0, 0, now(), now())";
        world.sql(&format!("insert into tollgate.{table} values {row}")).await;
        world.sql(&format!("alter table tollgate.{table} enable row level security")).await;
    }
    for role in [SERVICE, ON_CALL] {
        let what = format!("row security hides rows of tollgate.durable from role {role}");
        expect(&world, &["--role", role], "row_security", "error", &what);
    }
    for args in [
        &["check", "send_message", "ada"][..],
        &["consume", "send_message", "ada"],
        &["reset", "send_message", "ada"],
        &["reset", "send_message", "--all", "--yes"],
        &["sweep"],
    ] {
        let mut command = tollgate();
        command.args(args).env("DATABASE_URL", world.command_url()).env("TOLLGATE_LIMITS", EXAMPLE);
        let told = failure(&run(&mut command));
        assert!(told.contains("bypassrls"), "{args:?}: {told}");
    }
    assert!(findings(&world.url_of(OWNER), &[]).iter().all(|finding| finding["check"] != "row_security"));
    world.sql("alter table tollgate.durable force row level security").await;
    // A URL with a search path of its own, and a pooler that takes none, keep the session's settings.
    let url = world.command_url();
    let url = format!("{url}{}options=-csearch_path%3Dpublic", if url.contains('?') { '&' } else { '?' });
    for args in [&["forget", "ada"][..], &["reset", "send_message", "--all", "--yes"], &["sweep", "--dry-run"]] {
        let told = failure(&run(tollgate().args(args).env("DATABASE_URL", &url).env("TOLLGATE_LIMITS", EXAMPLE)));
        assert!(told.contains("bypassrls"), "{args:?}: {told}");
    }
    let what = format!("row security hides rows of tollgate.durable from role {OWNER}");
    expect(&world, &["--role", OWNER], "row_security", "error", &what);
}
