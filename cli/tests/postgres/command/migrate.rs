//! `tollgate migrate` where others could make objects, where default privileges speak, and with names of every kind.

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;
use sqlx::{AssertSqlSafe, Connection};
use tollgate::migrate::{Callers, grants};
use tollgate_embedded::{Server, find_programs};

use super::doctor::findings;
use super::{failure, run, stdout, text, tollgate};
use crate::world::{ON_CALL, OWNER, SERVICE, World};

/// Names that would be SQL, or a command of psql, if something did not quote them.
const NAMES: [&str; 12] = [
    "a$tollgate$;create table public.stolen();do $tollgate$begin--",
    "$$; create table public.stolen (); --",
    "a\"; create table public.stolen (); --",
    "a'; create table public.stolen (); --",
    "a\\'; create table public.stolen (); --",
    "a\\",
    "\n\\! touch stolen\n",
    ":stolen :'stolen' :\"stolen\"",
    "/* -- %I %1$s",
    "PUBLIC",
    "Ä'ß\u{2028}☃",
    "x'||(create table stolen)||'",
];

/// As psql runs it, on a server where a backslash ends nothing and on one where it does.
#[test]
fn a_name_of_a_role_stays_a_name_wherever_it_stands() {
    let server = Server::start().unwrap();
    let dir = std::env::temp_dir();
    let migrate = |args: &[&str]| run(tollgate().arg("migrate").args(args).args(["--database-url", server.url()]));
    stdout(&migrate(&["up"]));
    for conforming in ["on", "off"] {
        let query = |sql: &str| psql(&server, conforming, &dir, sql);
        for name in NAMES {
            let quoted = name.replace('"', "\"\"");
            query(&format!("create role \"{quoted}\""));
            let may = |function: &str| {
                let text = name.replace('\\', "\\\\").replace('\'', "\\'");
                query(&format!(
                    "select has_function_privilege(r.oid, p.oid, 'execute') from pg_roles r, pg_proc p
                                 where r.rolname = E'{text}' and p.proname = '{function}'"
                ))
            };
            for (option, function) in
                [("--grant", "consume"), ("--grant-operator", "reset"), ("--grant-reporter", "pause")]
            {
                let sql = stdout(&migrate(&["sql", option, name, "--owner", name]));
                query(&sql);
                assert_eq!(may(function), "t\n", "{name:?} {option} {conforming}");
            }
            stdout(&migrate(&["up", "--grant", name, "--owner", name]));
            assert_eq!((&*may("consume"), &*may("reset")), ("t\n", "f\n"), "{name:?}");
            query(&format!("drop owned by \"{quoted}\"; drop role \"{quoted}\""));
            let none = query("select count(*) from pg_class where relname = 'stolen'");
            assert_eq!((&*none, dir.join("stolen").exists()), ("0\n", false), "{name:?}");
        }
        // PostgreSQL cuts a name of more than 63 bytes, and would find the role of the first 63.
        let long = "a".repeat(63);
        query(&format!("create role {long}"));
        let sql = stdout(&migrate(&["sql", "--grant", &format!("{long}b")]));
        let cut = psql_output(&server, conforming, &dir, &sql);
        assert!(String::from_utf8_lossy(&cut.stderr).contains("does not exist"), "{cut:?}");
        query(&format!("drop role {long}"));
    }
}

fn psql(server: &Server, conforming: &str, dir: &PathBuf, sql: &str) -> String {
    let output = psql_output(server, conforming, dir, sql);
    assert!(output.status.success(), "{}: {sql}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn psql_output(server: &Server, conforming: &str, dir: &PathBuf, sql: &str) -> std::process::Output {
    let script = dir.join(format!("tollgate_{}.sql", std::process::id()));
    std::fs::write(&script, sql).unwrap();
    let mut psql = Command::new(find_programs().unwrap().join("psql"));
    psql.args(["--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "--set=ON_ERROR_STOP=1", "--set=stolen=x"]);
    psql.args(["--dbname", server.url()]).arg("--file").arg(&script).current_dir(dir);
    psql.env("PGOPTIONS", format!("-c standard_conforming_strings={conforming} -c backslash_quote=on"));
    run(&mut psql)
}

#[tokio::test]
async fn a_schema_of_somebody_else_is_migrated_by_those_who_name_it() {
    let world = World::unmigrated().await;
    world.sql(&format!("create schema tollgate authorization {OWNER}")).await;
    let admin = world.admin_url();
    let migrate = |args: &[&str]| run(tollgate().arg("migrate").args(args).args(["--database-url", &admin]));
    let told = format!("error: schema tollgate belongs to {OWNER}");
    assert!(failure(&migrate(&["up"])).starts_with(&told));
    stdout(&run(tollgate().args(["migrate", "up", "--database-url", &world.url_of(OWNER)])));
    for args in [&["up"][..], &["up", "--dry-run"], &["status"], &["validate"]] {
        assert!(failure(&migrate(args)).starts_with(&told), "{args:?}");
        stdout(&migrate(&[args, &["--owner", OWNER]].concat()));
    }
    let (refused, taken) = (stdout(&migrate(&["sql"])), stdout(&migrate(&["sql", "--owner", OWNER])));
    let mut conn = world.admin().await;
    let refused = sqlx::raw_sql(AssertSqlSafe(refused)).execute(&mut conn).await.unwrap_err().to_string();
    assert!(refused.contains(&told["error: ".len()..]), "{refused}");
    sqlx::raw_sql(AssertSqlSafe(taken)).execute(&mut conn).await.unwrap();
    conn.close().await.unwrap();
    // A role that only looks takes the owner of the tables as given; one that could migrate does not.
    world
        .sql(&format!(
            "grant usage on schema tollgate to {ON_CALL}; grant select on all tables in schema tollgate to {ON_CALL}"
        ))
        .await;
    let of_schema =
        |url: &str, args: &[&str]| findings(url, args).iter().filter(|finding| finding["check"] == "schema").count();
    assert_eq!(of_schema(&world.url_of(ON_CALL), &["--role", OWNER]), 0);
    assert_eq!(of_schema(&admin, &[]), 1);
    assert_eq!(of_schema(&admin, &["--owner", OWNER]), 0);
    let look = |what: &str| run(tollgate().args(["migrate", what, "--database-url", &world.url_of(ON_CALL)]));
    for what in ["status", "validate"] {
        stdout(&look(what));
    }
    // As after migrations of an administrator in a schema of somebody else: most of it is not its owner's.
    world.sql(&format!("alter schema tollgate owner to {SERVICE}; grant usage on schema tollgate to {ON_CALL}")).await;
    for what in ["status", "validate"] {
        assert!(failure(&look(what)).starts_with(&format!("error: schema tollgate belongs to {SERVICE} (")));
    }
    assert_eq!(of_schema(&world.url_of(ON_CALL), &["--role", OWNER]), 1);
}

/// `up` prints what it could not put right, and `doctor` counts it.
#[tokio::test]
async fn what_default_privileges_give_is_taken_back_or_named() {
    let world = World::unmigrated().await;
    let role = world.role().await;
    let to = format!("alter default privileges for role {OWNER}");
    world
        .sql(&format!(
            "{to} grant execute on functions to {role}; {to} grant all on tables to {role};
             {to} grant all on schemas to {role}; {to} grant usage on types to {role}"
        ))
        .await;
    let owner = world.url_of(OWNER);
    let migrate = |args: &[&str]| run(tollgate().arg("migrate").args(args).args(["--database-url", &owner]));
    let has = async |what: &str| -> i64 {
        let sql = format!(
            "select count(*) from pg_proc p where pronamespace = 'tollgate'::regnamespace
                and has_function_privilege('{role}', p.oid, 'execute') and {what}"
        );
        sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(&mut world.admin().await).await.unwrap()
    };
    let told = stdout(&migrate(&["up"]));
    assert!(told.lines().all(|line| line.starts_with("applied ")), "{told}");
    assert_eq!(has("true").await, 0);
    let on_tables = format!(
        "select count(*) from pg_class c, aclexplode(relacl) a
          where relnamespace = 'tollgate'::regnamespace and a.grantee = '{role}'::regrole"
    );
    let on_tables: i64 =
        sqlx::query_scalar(AssertSqlSafe(on_tables)).fetch_one(&mut world.admin().await).await.unwrap();
    assert_eq!(on_tables, 0);

    // As after a restore without rights: what is there was not made by the run.
    world
        .sql(&format!(
            "grant execute on all functions in schema tollgate to {role}; grant insert on tollgate.limits to {role}"
        ))
        .await;
    let told = stdout(&migrate(&["up"]));
    let lines: Vec<_> = told.lines().collect();
    let [nothing, execute, insert] = lines.as_slice() else { panic!("{told}") };
    assert_eq!(*nothing, "nothing to do: the schema is up to date");
    assert!(execute.starts_with(&format!("left: {role} has EXECUTE on tollgate.balance, ")), "{told}");
    assert!(["define", "reset", "set_override"].iter().all(|name| execute.contains(&format!("tollgate.{name},"))));
    assert!(
        insert.starts_with(&format!("left: {role} has INSERT on tollgate.limits by default privileges of {OWNER}"))
    );
    let validated = stdout(&migrate(&["validate"]));
    assert!(validated.contains(execute) && validated.contains(insert), "{validated}");
    let errors = |url: &str| -> Vec<Value> {
        let is_error = |finding: &Value| finding["check"] == "rights" && finding["severity"] == "error";
        findings(url, &[]).into_iter().filter(is_error).collect()
    };
    let found = errors(&owner);
    assert_eq!(found.len(), 2, "{found:?}");
    for finding in found {
        world.sql(finding["remedy"].as_str().unwrap()).await;
    }
    assert_eq!(has("true").await, 0);
    assert_eq!(errors(&owner), Vec::<Value>::new());
    assert_eq!(stdout(&migrate(&["up"])), "nothing to do: the schema is up to date\n");
}

#[tokio::test]
async fn what_a_stranger_has_left_is_named_and_stops_nothing() {
    let world = World::new().await;
    let role = world.role().await;
    world
        .sql(&format!(
            "revoke {role} from {OWNER}, {ON_CALL}; grant create, usage on schema tollgate to {role}; set role {role};
             create function tollgate.zz(int) returns int language sql as 'select 1';
             create table tollgate.notes (a serial primary key);
             alter table tollgate.notes enable row level security"
        ))
        .await;
    let owner = world.url_of(OWNER);
    let told = stdout(&run(tollgate().args(["migrate", "up", "--grant", ON_CALL, "--database-url", &owner])));
    assert_eq!(
        told,
        format!(
            "nothing to do: the schema is up to date\n\
             left: function tollgate.zz(integer) belongs to {role} (if that is wrong: drop function tollgate.zz(integer))\n\
             left: table tollgate.notes belongs to {role} (if that is wrong: drop table tollgate.notes)\n"
        )
    );
    for url in [world.url_of(ON_CALL), owner] {
        let found = findings(&url, &[]);
        let found: Vec<_> = found.iter().filter(|finding| finding["check"] == "schema").collect();
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found.iter().all(|finding| finding["severity"] == "warning"), "{found:?}");
    }
}

/// A person copies the remedy into a shell, and reads the name on a terminal.
#[tokio::test]
async fn names_that_strangers_choose_neither_run_in_a_shell_nor_steer_a_terminal() {
    let world = World::new().await;
    let role = world.role().await;
    let named = format!("{role}'; touch stolen; \u{1b}[2J");
    world
        .sql(&format!(
            "revoke {role} from {OWNER}, {ON_CALL}, {SERVICE}; alter role {role} rename to \"{named}\";
             grant create, usage on schema tollgate to \"{named}\"; set role \"{named}\";
             create function tollgate.\"\u{1b}[2J\"() returns int language sql as 'select 1';
             create function tollgate.reset() returns int language sql as 'select 1'; reset role"
        ))
        .await;
    for callers in [Callers::Applications, Callers::Reporters] {
        world.sql(&grants(&named, callers)).await;
    }
    world.sql(&format!("revoke execute on function tollgate.pause from \"{named}\"")).await;
    let owner = world.url_of(OWNER);
    let doctor = run(tollgate().args(["doctor", "--role", &named, "--database-url", &owner]));
    let told = [failure(&run(tollgate().args(["migrate", "up", "--database-url", &owner]))), text(&doctor.stdout)];
    world.sql(&format!("drop function tollgate.reset(); alter role \"{named}\" rename to {role}")).await;
    assert!(told.iter().all(|told| !told.contains('\u{1b}') && told.contains(r"\u{1b}[2J")), "{told:?}");
    let remedy = format!(r"--grant-reporter '{role}'\''; touch stolen; \u{{1b}}[2J'");
    assert!(told[1].contains(&remedy), "{}", told[1]);
}
