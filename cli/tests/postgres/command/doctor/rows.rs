//! Rows, calls and overrides that are not as they should be.

use std::time::Duration;

use serde_json::Value;
use tollgate::{Limit, Limiter};

use super::{examine, expect, findings};
use crate::command::limits::Scratch;
use crate::command::{EXAMPLE, run, stdout, tollgate};
use crate::world::World;

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
    expect(&world, &[], "unknown_limit", "note", "the rows were not compared with any definitions");
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
                            ('b', '', 'numbers', 'leaky', 1, 1, 1, 0)) v;
             select tollgate.define('llm_month', 'monthly', 100);
             insert into tollgate.overrides (name, key, label, effect, rate, starts_at, ends_at, reason, set_by, set_at)
             values ('llm_month', '', 'slowdown', 'slowed', 500000, 'epoch', '9999-01-01', 'x', 'y', 'epoch')",
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
    let slowed = "for every key with label \"slowdown\" is a slow-down and does not apply to this monthly limit";
    expect(&world, &[], "overrides", "warning", slowed);
}

#[tokio::test]
async fn a_ban_is_a_reminder_of_services_that_ignore_overrides() {
    let world = World::new().await;
    stdout(&run(tollgate()
        .args(["override", "set", "send_message", "ada", "--deny", "--reason", "spam", "--limits", EXAMPLE])
        .env("DATABASE_URL", world.command_url())));
    expect(&world, &[], "overrides", "note", "1 deny is live");
}
