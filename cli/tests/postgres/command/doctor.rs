//! `tollgate doctor`: each ill is made, found, and named.

use std::process::Output;
use std::time::Duration;

use serde_json::Value;
use sqlx::{Connection as _, PgConnection};
use tollgate::migrate::{self, Callers, grants};
use tollgate::{Limit, Limiter};
use tollgate_embedded::Server;

use super::failure::as_role;
use super::limits::Scratch;
use super::{EXAMPLE, failure, run, stdout, text, tollgate};
use crate::pgbouncer::PgBouncer;
use crate::world::{ON_CALL, OWNER, SERVICE, World, soon};

#[tokio::test]
async fn a_healthy_database_has_no_errors_and_exits_with_0() {
    let world = World::new().await;
    set(&world, "synchronous_commit = on").await;
    let output = examine(&world.command_url(), &[]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let told = text(&output.stdout);
    assert!(told.trim_end().lines().last().unwrap().starts_with("healthy: 0 errors, "), "{told}");
    for check in findings(&world.command_url(), &[]).iter().map(|finding| finding["check"].as_str().unwrap()) {
        // The finding is about the server that all tests share, which is set up to forget.
        assert_eq!(check, "durability");
    }
}

#[tokio::test]
async fn each_finding_says_what_it_means_and_what_to_do() {
    let world = World::new().await;
    world.sql("create index slow on tollgate.durable (value)").await;
    let told = text(&examine(&world.command_url(), &[]).stdout);
    assert!(
        told.contains(
            "warning: tollgate.durable has indexes that are not ours: tollgate.slow\n  An index on a column that \
             changes is \
             written with every decision, and takes away cheap updates (HOT).\n  → drop index tollgate.slow;\n"
        ),
        "{told}"
    );
}

#[tokio::test]
async fn a_missing_and_a_damaged_schema_are_errors() {
    let world = World::unmigrated().await;
    assert_eq!(examine(&world.command_url(), &[]).status.code(), Some(1));
    expect(&world, &[], "schema", "error", "migration V1__create_ephemeral is not applied");
    let world = World::new().await;
    world.sql("alter table tollgate.durable drop column full_at cascade").await;
    expect(&world, &[], "schema", "error", "tollgate.durable lacks column \"full_at\"");
}

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

#[tokio::test]
async fn a_pooler_that_loses_named_statements_is_found() {
    let world = World::new().await;
    let pooler = PgBouncer::start(&world.command_url(), 2);
    let url = pooler.url(world.name());
    let found = findings(&url, &[]);
    let finding = found.iter().find(|finding| finding["check"] == "pooler").unwrap();
    assert_eq!(finding["severity"], "error", "{finding}");
    assert!(
        finding["what"].as_str().unwrap().contains("does not follow named statements: prepared statement"),
        "{finding}"
    );

    for _ in 0..3 {
        let consumed =
            run(tollgate().args(["consume", "send_message", "ada", "--limits", EXAMPLE, "--database-url", &url]));
        assert_eq!(consumed.status.code(), Some(0), "the command itself works through it: {consumed:?}");
    }
}

#[tokio::test]
async fn a_driver_that_keeps_no_statement_is_found() {
    let world = World::new().await;
    let url = world.command_url();
    let url = format!("{url}{}statement-cache-capacity=0", if url.contains('?') { '&' } else { '?' });
    let found = findings(&url, &[]);
    let finding = found.iter().find(|finding| finding["check"] == "statements").unwrap();
    assert_eq!(finding["severity"], "warning", "{finding}");
    assert!(finding["remedy"].as_str().unwrap().contains("unnamed_statements()"), "{finding}");
}

#[tokio::test]
async fn settings_that_lose_grants_or_break_calls_are_found() {
    for (setting, check, severity) in [
        ("synchronous_commit = off", "synchronous_commit", "warning"),
        ("default_transaction_isolation = 'serializable'", "isolation", "warning"),
        ("default_transaction_read_only = on", "read_only", "error"),
    ] {
        let world = World::new().await;
        set(&world, setting).await;
        expect(&world, &[], check, severity, "");
    }
}

#[tokio::test]
async fn an_old_snapshot_is_found_with_who_holds_it() {
    let world = World::new().await;
    let mut tx = world.pool.begin().await.unwrap();
    sqlx::raw_sql("set transaction isolation level repeatable read; set application_name = 'report'; select 1")
        .execute(&mut *tx)
        .await
        .unwrap();
    expect(&world, &["--old-snapshot", "0s"], "snapshots", "warning", "report, idle in transaction)");
    assert!(
        findings(&world.command_url(), &["--old-snapshot", "1h"]).iter().all(|finding| finding["check"] != "snapshots"),
        "a young one is none"
    );
}

#[tokio::test]
async fn dead_rows_and_costly_updates_are_found() {
    let world = World::new().await;
    let mut conn = world.admin().await;
    for statement in [
        "alter table tollgate.durable set (autovacuum_enabled = false, fillfactor = 100)",
        "create index slow on tollgate.durable (value)",
        "insert into tollgate.durable select 0, 'quota', n::text, 0, 0, now(), now() from generate_series(1, 500) n",
        "do $$ begin for turn in 1..25 loop update tollgate.durable set value = value + 1; end loop; end $$",
    ] {
        sqlx::raw_sql(statement).execute(&mut conn).await.unwrap();
    }
    // The statistics are there once the session that made them has ended.
    conn.close().await.unwrap();
    let counted = "select n_tup_upd >= 12500 from pg_stat_user_tables where relname = 'durable'";
    soon(async { while !sqlx::query_scalar::<_, bool>(counted).fetch_one(&world.pool).await.unwrap() {} }).await;
    expect(&world, &[], "dead_rows", "warning", "tollgate.durable has 12500 dead rows to 500 live ones");
    expect(&world, &[], "hot_updates", "warning", "only 0 % of the updates of tollgate.durable");
    expect(&world, &[], "autovacuum", "warning", "autovacuum is switched off for tollgate.durable");
}

#[tokio::test]
async fn a_log_of_whole_pages_is_found_until_they_are_compressed() {
    // The log is the server's, so it has one of its own.
    let builder = Server::builder().setting("full_page_writes", "on");
    let server = tokio::task::spawn_blocking(|| builder.start()).await.unwrap().unwrap();
    let mut conn = PgConnection::connect(server.url()).await.unwrap();
    migrate::run(&mut conn).await.unwrap();
    let rows = "insert into tollgate.durable
                select 0, 'quota', n::text, 0, 0, now(), now() from generate_series(1, 20000) n";
    sqlx::raw_sql(rows).execute(&mut conn).await.unwrap();
    // A row of each page, again and again after a checkpoint.
    for _ in 0..60 {
        let some = "update tollgate.durable set value = value - 1 where key::int % 100 = 0";
        sqlx::raw_sql("checkpoint").execute(&mut conn).await.unwrap();
        sqlx::raw_sql(some).execute(&mut conn).await.unwrap();
    }
    conn.close().await.unwrap();
    let mut conn = PgConnection::connect(server.url()).await.unwrap();
    let counted = "select n_tup_upd >= 12000 from pg_stat_user_tables where relname = 'durable'";
    soon(async { while !sqlx::query_scalar::<_, bool>(counted).fetch_one(&mut conn).await.unwrap() {} }).await;
    let found = || findings(server.url(), &[]).into_iter().find(|finding| finding["check"] == "log");
    let finding = found().expect("most of the log are pages");
    assert_eq!(finding["severity"], "warning", "{finding}");
    assert!(finding["remedy"].as_str().unwrap().contains("wal_compression"), "{finding}");
    sqlx::raw_sql("alter system set wal_compression = on").execute(&mut conn).await.unwrap();
    sqlx::raw_sql("select pg_reload_conf()").execute(&mut conn).await.unwrap();
    soon(async { while found().is_some() {} }).await;
}

#[tokio::test]
async fn rows_that_do_not_fit_the_limits_file_are_warnings() {
    let world = World::new().await;
    world
        .sql(
            "insert into tollgate.durable values
             (0, 'send_mesage', 'ada', 0, 0, '2020-01-01', '2020-01-01'),
             (0, 'all_traffic', '', 0, 0, '2020-01-01', '2020-01-01'),
             (0, 'llm_tokens', 'deep', 0, -300000000000, clock_timestamp(), '9999-01-01'),
             (0, 'llm_tokens', 'fine', 0, -100000000000, clock_timestamp(), '9999-01-01'),
             (0, 'llm_tokens', 'long ago', 0, -300000000000, '2020-01-01', '2020-01-01'),
             (0, 'sign_ups', 'slow', 0, -4100000000, clock_timestamp(), '9999-01-01');
             insert into tollgate.ephemeral values
             (0, 'all_traffic', 'laden', 0, 0, '2020-01-01', '2020-01-01',
               (select array[2] || array_agg(number) from generate_series(1, 201) n,
                 unnest(array[1, 1, 0, n]) number))",
        )
        .await;
    let with = ["--limits", EXAMPLE];
    expect(
        &world,
        &with,
        "unknown_limit",
        "warning",
        "1 durable row of \"send_mesage\", which the limits file does not know (did somebody mean \"send_message\"?)",
    );
    expect(&world, &with, "moved_limit", "warning", "1 durable row left of \"all_traffic\", which is ephemeral now");
    expect(
        &world,
        &with,
        "deep_debts",
        "warning",
        "1 durable row of \"llm_tokens\" with a debt deeper than it lets anybody reserve",
    );
    expect(&world, &with, "old_debts", "warning", "a debt of \"sign_ups\" is repaid only in 1month 9days");
    expect(&world, &with, "many_leases", "warning", "1 ephemeral row of \"all_traffic\" with more than 200 leases");
    assert_eq!(examine(&world.command_url(), &with).status.code(), Some(0), "warnings are no errors");
    expect(&world, &[], "unknown_limit", "note", "the rows were not compared with a limits file");
}

#[tokio::test]
async fn a_limit_that_is_in_both_tables_is_found() {
    let world = World::new().await;
    world
        .sql(
            "insert into tollgate.durable values
             (0, 'moved', 'ada', 0, 0, now(), now()), (0, 'moved', 'bob', 0, 0, now(), now()),
             (0, 'stays', 'ada', 0, 0, now(), now()), (0, 'stays', 'bob', 0, 0, now(), now());
             insert into tollgate.ephemeral values
             (0, 'moved', 'ada', 0, 0, now(), now()), (0, 'other', 'ada', 0, 0, now(), now())",
        )
        .await;
    let what = "\"moved\" is in both tables: 2 durable rows, 1 ephemeral row";
    expect(&world, &[], "two_storages", "warning", what);
    let found = findings(&world.command_url(), &[]);
    assert_eq!(found.iter().filter(|finding| finding["check"] == "two_storages").count(), 1, "{found:#?}");
}

/// A limit of six shards, with a row from when it had more: each row may owe a sixth, and gets a sixth an hour.
#[tokio::test]
async fn a_row_of_a_sharded_limit_is_judged_by_its_share() {
    let limit = "[spread]\nkind = 'token_bucket'\nrate = 6\nper = '1h'\nmax_reserved = 6000\nshards = 6";
    let file = Scratch::new("doctor_spread.toml", limit);
    let debts = async |rows: &str| {
        let world = World::new().await;
        let now = "clock_timestamp(), '9999-01-01'";
        world
            .sql(&format!(
                "insert into tollgate.durable
                 select 0, 'spread', '', shard, (debt + 1) * -1000000::int8, {now} from (values {rows}) r (shard, debt)"
            ))
            .await;
        let found = findings(&world.command_url(), &["--limits", file.0.to_str().unwrap()]);
        let of = |check: &str| {
            let what = |finding: &Value| finding["what"].as_str().unwrap().to_owned();
            found.iter().find(|finding| finding["check"] == check).map(what)
        };
        (of("deep_debts"), of("old_debts"))
    };
    let deep = |rows: &str| Some(format!("{rows} of \"spread\" with a debt deeper than it lets anybody reserve"));
    assert_eq!(debts("(0, 700), (6, 700)").await, (None, None));
    assert_eq!(debts("(0, 700), (1, 1001)").await.0, deep("1 durable row"));
    assert_eq!(debts("(6, 1001), (5, 1001)").await.0, deep("2 durable rows"));
    let old = debts("(0, 800)").await.1.unwrap();
    assert!(old.starts_with("a debt of \"spread\" is repaid only in 1month"), "one an hour: {old}");
}

#[tokio::test]
async fn rows_from_the_future_are_an_error() {
    let world = World::new().await;
    world
        .sql("insert into tollgate.ephemeral values (0, 'all_traffic', 'ada', 0, 0, now() + interval '3 days', now())")
        .await;
    expect(&world, &[], "future_rows", "error", "1 ephemeral row of \"all_traffic\" in the future, up to 3days ahead");
}

#[tokio::test]
async fn rows_that_cannot_be_read_are_an_error_and_the_remedy_mends_them() {
    let world = World::new().await;
    world
        .sql(
            "insert into tollgate.durable values
             (0, 'sign_ups', 'it''s', 0, 0, now(), now(), '{{1, 2}}'),
             (0, 'sign_ups', 'fine', 0, 0, now(), now(), '{1}')",
        )
        .await;
    expect(&world, &[], "corrupt_rows", "error", "1 durable row of \"sign_ups\" whose list cannot be read");
    let found = findings(&world.command_url(), &[]);
    let remedy = found.iter().find(|finding| finding["check"] == "corrupt_rows").unwrap()["remedy"].as_str().unwrap();
    world.sql(remedy.split_once(": ").unwrap().1).await;
    assert!(findings(&world.command_url(), &[]).iter().all(|finding| finding["check"] != "corrupt_rows"));
}

#[tokio::test]
async fn calls_that_nobody_gives_back_are_named() {
    let world = World::new().await;
    let lapsed = async |id: &str, ago: &str| {
        world
            .sql(&format!(
                "insert into tollgate.calls (part, name, key, id, asked, charges, charged_at, lapses_at, kept_until)
                 select 0, 'sign_ups', 'ada', '{id}', 0, '[]', lapse, lapse, lapse
                   from (select clock_timestamp() - interval '{ago}') l (lapse)"
            ))
            .await;
    };
    lapsed("young", "20 seconds").await;
    assert!(findings(&world.command_url(), &[]).iter().all(|finding| finding["check"] != "overdue_calls"));
    lapsed("older", "2 hours").await;
    lapsed("oldest", "3 hours").await;
    let what = "2 calls lapsed more than a minute ago, the first 3h";
    expect(&world, &[], "overdue_calls", "warning", what);
    expect(&world, &[], "overdue_calls", "warning", "ago (\"oldest\" of \"sign_ups\", key \"ada\")");
}

/// A wallet that is full takes nothing back.
#[tokio::test]
async fn a_call_that_a_sweep_cannot_give_back_is_named() {
    let world = World::new().await;
    let wallet = Limit::wallet("full");
    let mut tx = world.begin().await;
    Limiter::new().credit(&mut tx, wallet.key("ada").cost(5)).await.unwrap();
    let asked = wallet.key("ada").cost(5).once("stuck").lapses_after(Duration::from_micros(1));
    Limiter::new().consume(&mut tx, asked).await.unwrap().granted().unwrap();
    tx.commit().await.unwrap();
    world.sql(&format!("update tollgate.durable set value = {}, full_at = '9999-01-01'", i64::MAX)).await;
    world.sql("update tollgate.calls set lapses_at = clock_timestamp() - interval '2 minutes'").await;
    stdout(&run(tollgate().arg("sweep").env("DATABASE_URL", world.command_url())));
    expect(&world, &[], "overdue_calls", "warning", "ago (\"stuck\" of \"full\", key \"ada\")");
}

#[tokio::test]
async fn a_table_without_its_empty_megabyte_is_named() {
    let world = World::new().await;
    world.sql("truncate tollgate.ephemeral").await;
    expect(&world, &[], "small_table", "note", "tollgate.ephemeral lacks the empty megabyte that it begins with");
}

#[tokio::test]
async fn what_takes_too_long_is_left_out_and_said() {
    let world = World::new().await;
    let mut tx = world.pool.begin().await.unwrap();
    sqlx::raw_sql("lock table tollgate.durable").execute(&mut *tx).await.unwrap();
    expect(
        &world,
        &["--timeout", "50ms"],
        "rows",
        "warning",
        "could not look: canceling statement due to statement timeout",
    );
}

/// For connections to come.
async fn set(world: &World, setting: &str) {
    let database: String = sqlx::query_scalar("select current_database()").fetch_one(&world.pool).await.unwrap();
    world.sql(&format!("alter database {database} set {setting}")).await;
}

#[tokio::test]
async fn overrides_that_cannot_be_read_or_do_not_apply_are_named() {
    let world = World::new().await;
    world
        .sql(
            "alter table tollgate.overrides drop constraint an_effect_is_known;
             alter table tollgate.overrides drop constraint numbers_are_those_of_a_limit;
             insert into tollgate.overrides (name, key, label, effect, kind, rate, period, capacity, max_reserved,
                                             starts_at, ends_at, reason, set_by, set_at)
             select 'send_message', v.*, 'epoch', 'infinity', 'x', 'y', 'epoch'
               from (values ('ada', 'odd', 'ban', null, null::int8, null::int8, null::int8, null::int8),
                            ('', 'old', 'numbers', 'fixed_window', 1, 1, 1, 0),
                            ('b', '', 'numbers', 'leaky', 1, 1, 1, 0)) v",
        )
        .await;
    expect(&world, &["--limits", EXAMPLE], "overrides", "error", "for ada with label \"odd\" cannot be read");
    let found = findings(&world.command_url(), &["--limits", EXAMPLE]);
    let what =
        |text: &str| found.iter().any(|it| it["severity"] == "warning" && it["what"].as_str().unwrap().contains(text));
    assert!(
        what("for every key with label \"old\" is for a fixed window and does not apply to this token bucket"),
        "{found:?}"
    );
    assert!(what("1 override of a kind of limit"), "{found:?}");
}

/// Demands a finding of this check, and no second one in the same words.
fn expect(world: &World, args: &[&str], check: &str, severity: &str, what: &str) {
    let found = findings(&world.command_url(), args);
    let matching = |finding: &&Value| finding["check"] == check && finding["what"].as_str().unwrap().contains(what);
    let matches: Vec<_> = found.iter().filter(matching).collect();
    let [finding] = matches.as_slice() else { panic!("{check} of {what:?} is not there once in {found:#?}") };
    assert_eq!(finding["severity"], severity, "{finding}");
}

fn findings(url: &str, args: &[&str]) -> Vec<Value> {
    let output = examine(url, &[&["--json"], args].concat());
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    report["findings"].as_array().unwrap().clone()
}

fn examine(url: &str, args: &[&str]) -> Output {
    let patience: &[&str] = if args.contains(&"--timeout") { &[] } else { &["--timeout", "5m"] };
    run(tollgate().arg("doctor").args(patience).args(args).args(["--database-url", url]))
}
