//! `tollgate inspect`.

use std::process::Output;

use serde_json::{Value, json};
use tollgate::{HOUR, Limit};

use super::limits::Scratch;
use super::{EXAMPLE, failure, run, stdout, text, tollgate};
use crate::world::World;

#[tokio::test]
async fn a_key_is_shown_as_it_is_now_by_the_definition() {
    let world = World::new().await;
    world
        .sql(
            "insert into tollgate.durable values
             (0, 'sign_ups', 'ada', 0, -30000000, '2020-01-01 22:00Z', '2020-01-03 22:00Z')",
        )
        .await;
    let told = stdout(&inspect(&world, Some(EXAMPLE), &["sign_ups", "ada", "--cost", "101"]));
    assert_eq!(
        told,
        "limit     sign_ups: fixed window, 100 each 1day, steps from 22h after the epoch on\n\
         key       ada\n\
         remaining 100 of 100, 0 used\n\
         full      now\n\
         cost 101  never: more than the capacity\n\
         row       30 used at 2020-01-01T22:00:00.000000Z, durable\n"
    );
    let absent = stdout(&inspect(&world, Some(EXAMPLE), &["sign_ups", "--global"]));
    assert!(
        absent.contains("key       (all callers)\n") && absent.ends_with("row       none, which means full\n"),
        "{absent}"
    );
}

#[tokio::test]
async fn a_debt_says_when_it_is_repaid_and_when_the_next_call_is_granted() {
    let world = World::new().await;
    world
        .sql(
            "insert into tollgate.durable values
             (0, 'llm_tokens', 'a', 0, -160000000000, clock_timestamp(), '9999-01-01')",
        )
        .await;
    let report = page(&inspect(&world, Some(EXAMPLE), &["llm_tokens", "a", "--cost", "20000", "--json"]));
    assert!(report["debt"].as_f64().unwrap() > 30_000.0, "{report}");
    let (next, full) = (&report["next"], report["full_in_ms"].as_u64().unwrap());
    assert_eq!(next["cost"], 20_000);
    assert!((100_000..=210_000).contains(&next["wait_ms"].as_u64().unwrap()), "{report}");
    assert!((130_000..=240_000).contains(&full), "{report}");
    assert_eq!(report["rows"][0]["storage"], "durable");
}

#[tokio::test]
async fn rows_that_share_a_limit_are_added_up() {
    let file = Scratch::new("spread.toml", "[spread]\nkind = 'token_bucket'\nrate = 9\nper = '1h'\nshards = 3");
    let world = World::new().await;
    // The rows of three have the numbers zero to two; a fourth is left from before.
    world
        .sql(
            "insert into tollgate.durable
             select 0, 'spread', '', shard, value, clock_timestamp(), clock_timestamp() + interval '1 hour'
               from (values (3, 0), (0, -2000000), (2, -5000000)) r (shard, value)",
        )
        .await;
    let inspect = |args: &[&str]| inspect(&world, file.0.to_str(), args);
    let report = page(&inspect(&["spread", "--global", "--cost", "2", "--json"]));
    let told = stdout(&inspect(&["spread", "--global"]));
    let listed = stdout(&inspect(&["spread"]));
    // One, three that are not there, and two owed: exactly two but for the tokens that have come back meanwhile.
    let balance = report["remaining"].as_f64().unwrap();
    assert!((2.0..3.0).contains(&balance) && report["capacity"].as_f64() == Some(9.0), "{report}");
    assert_eq!(report["next"]["wait_ms"], 0, "{report}");
    assert!(told.contains("shard 3, a stale shard: the limit has another number of shards now"), "{told}");
    let row = listed.lines().nth(1).and_then(|row| row.trim_start().strip_prefix("(all callers)"));
    assert!(listed.lines().count() == 2 && row.is_some_and(|row| row.trim_start().starts_with('2')), "{listed}");
}

#[tokio::test]
async fn without_a_limits_file_it_shows_what_is_on_disk() {
    let world = World::new().await;
    world
        .sql(
            "insert into tollgate.durable values (0, 'quota', 'ada', 0, -2500000,
               '2020-01-01 00:00Z', '2020-01-01 01:00Z');
             insert into tollgate.ephemeral values (0, 'quota', 'ada', 0, -1000000,
               '2020-01-01 00:00Z', '2020-01-01 01:00Z')",
        )
        .await;
    let told = stdout(&inspect(&world, None, &["quota", "ada"]));
    assert_eq!(
        told,
        "limit     quota\n\
         key       ada\n\
         row       2.5 used at 2020-01-01T00:00:00.000000Z, durable, full by now\n\
         row       1 used at 2020-01-01T00:00:00.000000Z, ephemeral, full by now\n"
    );
    assert_eq!(
        failure(&inspect(&world, None, &["quota", "bob"])),
        "error: there is no row of limit \"quota\" for \"bob\", and no definition to say what that means \
         (check both names \
         with `tollgate inspect quota`, or pass --limits FILE)\n"
    );
}

#[tokio::test]
async fn grants_and_leases_of_a_row_are_counted_and_listed() {
    let world = World::new().await;
    world
        .sql(
            "insert into tollgate.durable values
             (0, 'quota', 'ada', 0, -2000000, '2020-01-01 00:00Z', '2020-01-01 01:00Z',
                 '{1, 1577838600000000, 500000, 1577840400000000, 1500000}'),
             (0, 'slots', 'ada', 0, -500000, '2020-01-01 00:00Z', '2020-01-01 01:00Z',
                 '{2, 1577838600000000, 500000, 0, 84}')",
        )
        .await;
    let told = stdout(&inspect(&world, None, &["quota", "ada"]));
    assert!(told.ends_with("durable, full by now, 2 grants, the first until 2020-01-01T00:30:00.000000Z\n"), "{told}");
    let told = stdout(&inspect(&world, None, &["slots", "ada"]));
    // It has ended.
    assert!(told.ends_with("durable, full by now, 1 lease, the first until 2020-01-01T00:30:00.000000Z\n"), "{told}");
    let row = |name| page(&inspect(&world, None, &[name, "ada", "--json"]))["rows"][0].take();
    let half = json!({ "amount": 0.5, "ends_at": "2020-01-01T00:30:00.000000Z" });
    let more = json!({ "amount": 1.5, "ends_at": "2020-01-01T01:00:00.000000Z" });
    let (quota, slots) = (row("quota"), row("slots"));
    assert_eq!((&quota["grants"], &quota["leases"]), (&json!([half, more]), &json!([])));
    assert_eq!((&slots["grants"], &slots["leases"]), (&json!([]), &json!([half])));
}

#[tokio::test]
async fn calls_with_a_name_are_listed_with_what_they_have_charged() {
    let world = World::new().await;
    let (gate, quota) = (world.gate(), Limit::token_bucket("quota", 100, HOUR));
    let other = Limit::token_bucket("quota_of_all", 100, HOUR).global().cost(9);
    let lapsing = quota.key("ada").cost(7).once("first").lapses_after(HOUR);
    gate.consume(lapsing.and(other)).await.unwrap().granted().unwrap();
    let used = gate.consume(quota.key("ada").cost(5).once("second").tracked_for(HOUR)).await.unwrap();
    gate.settle(used.granted().unwrap(), 5).await.unwrap();
    let told = stdout(&inspect(&world, None, &["quota", "ada"]));
    let calls: Vec<_> = told.lines().filter(|line| line.starts_with("call ")).collect();
    let [first, second] = calls[..] else { panic!("{told}") };
    assert!(first.starts_with("call      7 charged, lapses in ") && first.ends_with("id first"), "{told}");
    assert!(second.starts_with("call      5 charged, used, known until ") && second.ends_with("id second"), "{told}");
    let told = page(&inspect(&world, None, &["quota", "ada", "--json", "--limit", "1"]))["calls"].take();
    assert_eq!((told.as_array().unwrap().len(), &told[0]["charged"], &told[0]["used"]), (1, &json!(7), &json!(false)));
    assert_eq!(told[0]["id"], "first");
    let of_all = page(&inspect(&world, None, &["quota", "--json"]));
    assert!(of_all["keys"][0].get("calls").is_none(), "{of_all}");

    world.sql("update tollgate.calls set charges = '[7]' where id = 'first'").await;
    let told = stdout(&inspect(&world, None, &["quota", "ada"]));
    assert!(
        told.contains("\ncall      charges that cannot be read, lapses in ") && told.contains("id second"),
        "{told}"
    );
}

#[tokio::test]
async fn a_wallet_has_no_capacity_and_grants_only_after_a_credit() {
    let file = Scratch::new("wallet.toml", "[credits]\nkind = 'wallet'\noverdraft = 5\n");
    let world = World::new().await;
    let inspect = |args: &[&str]| inspect(&world, file.0.to_str(), args);
    let told = stdout(&inspect(&["credits", "ada", "--cost", "5"]));
    assert_eq!(
        told,
        "limit     credits: wallet, overdraft of 5\n\
         key       ada\n\
         remaining 0\n\
         cost 5    would be granted now\n\
         row       none, which means empty\n"
    );
    world.gate().credit(Limit::wallet("credits").key("ada").cost(20)).await.unwrap();
    let told = stdout(&inspect(&["credits", "ada", "--cost", "26"]));
    assert!(told.contains("\nremaining 20\ncost 26   only after a credit\nrow       20 at "), "{told}");
    let told = stdout(&inspect(&["credits"]));
    let listed: Vec<_> = told.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(listed, ["ada", "20", "never"], "{told}");
    let report = page(&inspect(&["credits", "ada", "--json"]));
    assert_eq!((&report["full_at"], &report["next"]["wait_ms"]), (&json!(null), &json!(0)), "{report}");
}

#[tokio::test]
async fn a_meter_owes_nothing() {
    let file = Scratch::new("meter.toml", "[usage]\nkind = 'meter'\n");
    let world = World::new().await;
    let inspect = |args: &[&str]| stdout(&inspect(&world, file.0.to_str(), args));
    let told = inspect(&["usage", "ada"]);
    assert_eq!(told, "limit     usage: meter\nkey       ada\nused      0\nrow       none, which means nothing used\n");
    world.gate().debit(Limit::meter("usage").key("ada").cost(550)).await.unwrap();
    let told = inspect(&["usage", "ada"]);
    assert!(told.contains("\nused      550\nrow       550 used at "), "{told}");
    assert_eq!(inspect(&["usage"]), "KEY  USED\nada   550\n");
}

/// With any row written by hand, the other rows are still shown.
#[tokio::test]
async fn a_row_whose_calls_are_errors_is_said_to_be_corrupt_and_hides_no_other() {
    let world = World::new().await;
    let lists = ["{5, null}", "{{1, 2}}", "{5}", "{1, 5, -1}", "[2:3]={1, 2}"];
    for (key, list) in lists.into_iter().enumerate() {
        world
            .sql(&format!(
                "insert into tollgate.durable values (0, 'sign_ups', '{key}', 0, 100000000, now(), now(), '{list}')"
            ))
            .await;
        let told = stdout(&inspect(&world, Some(EXAMPLE), &["sign_ups", &key.to_string()]));
        let corrupt = "durable, corrupt: its list cannot be read, so each call of it is an error\n";
        assert!(told.ends_with(corrupt) && !told.contains("remaining"), "{list}: {told}");
        let call = ["check", "sign_ups", &key.to_string(), "--limits", EXAMPLE, "--database-url", &world.command_url()];
        assert!(failure(&run(tollgate().args(call))).contains("is corrupt: its list cannot be read"), "{list}");
    }
    let extremes = "insert into tollgate.durable values
                (0, 'sign_ups', 'last', 0, 0, now(), '262142-12-31 23:59:59.999999+00'),
                (0, 'sign_ups', 'first', 0, -9223372036854775808, '4713-01-01 BC', '4712-01-01 BC')";
    world.sql(extremes).await;
    for limits in [None, Some(EXAMPLE)] {
        let told = stdout(&inspect(&world, limits, &["sign_ups"]));
        assert_eq!((told.lines().count(), told.matches("corrupt").count()), (8, 5), "{told}");
        let page = page(&inspect(&world, limits, &["sign_ups", "--json"]));
        let faults = page["keys"].as_array().unwrap().iter().filter(|key| key["rows"][0]["fault"].is_string());
        assert_eq!(faults.count(), 5, "{page}");
    }
    let told = stdout(&run(tollgate()
        .args(["top", "--once", "--interval", "100ms", "--limits", EXAMPLE])
        .env("DATABASE_URL", world.command_url())));
    assert!(told.contains("last"), "{told}");
}

#[tokio::test]
async fn the_list_has_the_most_exhausted_first() {
    let world = World::new().await;
    // In the order of their balances now, not of those on disk: `rested` has had time to refill.
    world
        .sql(
            "insert into tollgate.durable values
             (0, 'send_message', 'some', 0, -40000000, clock_timestamp(), '9999-01-01'),
             (0, 'send_message', 'rested', 0, -500000000, '2020-01-01', '2020-01-02'),
             (0, 'send_message', 'owes', 0, -110000000, clock_timestamp(), '9999-01-01'),
             (0, 'send_message', '', 0, -60000000, clock_timestamp(), '9999-01-01'),
             (0, 'sign_ups', 'other', 0, 0, clock_timestamp(), clock_timestamp())",
        )
        .await;
    let list = |most: &str| page(&inspect(&world, Some(EXAMPLE), &["send_message", "--json", "--limit", most]));
    let (three, all) = (list("3"), list("20"));
    assert_eq!(keys(&three), ["owes", "", "some"], "{three}");
    assert_eq!(keys(&all), ["owes", "", "some", "rested"], "{all}");
    assert_eq!(all["keys"][3]["remaining"], 20);

    let told = stdout(&inspect(&world, Some(EXAMPLE), &["send_message", "--limit", "2"]));
    let lines: Vec<_> = told.lines().collect();
    assert_eq!(lines[0].split_whitespace().collect::<Vec<_>>(), ["KEY", "REMAINING", "OF", "FULL", "IN"]);
    assert!(lines[1].starts_with("owes ") && lines[2].starts_with("(all callers) "), "{told}");
    assert_eq!(lines[3], "there may be more keys (--limit)");
}

#[tokio::test]
async fn windows_are_listed_by_what_they_have_and_not_by_when_they_start() {
    let world = World::new().await;
    world
        .sql(
            "insert into tollgate.durable
             select 0, 'sign_ups', 'key ' || n, 0, n * 1000000 - 100000000,
                 (date_trunc('day', (now() at time zone 'UTC') - interval '22 hours')
                     + interval '22 hours') at time zone 'UTC',
                    now() + n * interval '1 hour'
               from generate_series(1, 5) n",
        )
        .await;
    let list = page(&inspect(&world, Some(EXAMPLE), &["sign_ups", "--json"]));
    assert_eq!(keys(&list), ["key 1", "key 2", "key 3", "key 4", "key 5"], "{list}");
}

#[tokio::test]
async fn without_a_limits_file_the_list_goes_by_what_is_on_disk() {
    let world = World::new().await;
    world
        .sql(
            "insert into tollgate.durable values
             (0, 'quota', 'low', 0, -1000000, now(), now() + interval '1 hour'),
             (0, 'quota', 'lower', 0, -3000000, now(), now() + interval '1 hour'),
             (0, 'quota', 'full again', 0, -9000000, '2020-01-01', '2020-01-02')",
        )
        .await;
    let list = page(&inspect(&world, None, &["quota", "--json"]));
    assert_eq!(keys(&list), ["lower", "low", "full again"], "{list}");
    assert_eq!(stdout(&inspect(&world, None, &["nothing"])), "no rows of nothing: a key without a row is full\n");
}

#[tokio::test]
async fn rows_of_a_name_that_the_limits_file_does_not_know_are_shown_and_a_slip_is_told() {
    let world = World::new().await;
    world.sql("insert into tollgate.durable values (0, 'send_mesage', 'ada', 0, -5000000, '2020-01-01', now())").await;
    let hint = format!("there is no limit \"send_mesage\" in {EXAMPLE} (did you mean \"send_message\"?)");
    for args in [&["send_mesage"][..], &["send_mesage", "ada"]] {
        let output = inspect(&world, Some(EXAMPLE), args);
        assert!(stdout(&output).contains("2020-01-01T"), "{output:?}");
        assert_eq!(text(&output.stderr), format!("{hint}: this is what is on disk\n"));
    }
    assert_eq!(failure(&inspect(&world, Some(EXAMPLE), &["send_mesage", "bob"])), format!("error: {hint}\n"));
}

#[tokio::test]
async fn a_row_from_the_future_and_one_in_the_wrong_table_are_marked() {
    let world = World::new().await;
    world
        .sql(
            "insert into tollgate.durable values
             (0, 'sign_ups', 'ada', 0, 0, clock_timestamp() + interval '90 minutes', now()),
             (0, 'all_traffic', 'ada', 0, 0, '2020-01-01', now())",
        )
        .await;
    let told = stdout(&inspect(&world, Some(EXAMPLE), &["sign_ups", "ada"]));
    assert!(told.contains(" in the future (reset mends it)\n"), "{told}");
    let told = stdout(&inspect(&world, Some(EXAMPLE), &["all_traffic", "ada"]));
    assert!(told.contains("remaining 2000 of 2000, 0 used\n"), "{told}");
    assert!(told.contains("durable, which the limit does not use any more\n"), "{told}");
}

#[tokio::test]
async fn a_key_cannot_steer_the_terminal() {
    let world = World::new().await;
    world.sql("insert into tollgate.durable values (0, 'quota', E'a\\033[2Jb\\n\\u202Ec', 0, 0, now(), now())").await;
    let told = stdout(&inspect(&world, None, &["quota"]));
    assert!(told.contains(r"$'a\U0000001b[2Jb\U0000000a\U0000202ec'"), "{told}");
    let told = stdout(&inspect(&world, None, &["quota", "--json"]));
    assert!(told.contains(r"a\u001b[2Jb\n\u202ec"), "{told}");
    assert_eq!(keys(&serde_json::from_str(&told).unwrap()), ["a\u{1b}[2Jb\n\u{202e}c"]);
}

#[tokio::test]
async fn a_list_that_takes_too_long_is_given_up() {
    let world = World::new().await;
    let mut tx = world.pool.begin().await.unwrap();
    sqlx::raw_sql("lock table tollgate.durable").execute(&mut *tx).await.unwrap();
    let error = failure(&inspect(&world, None, &["quota", "--timeout", "50ms"]));
    assert_eq!(
        error,
        "error: canceling statement due to statement timeout (give it longer: with --timeout, or by the \
         statement_timeout of the role)\n"
    );
}

fn keys(page: &Value) -> Vec<&str> {
    page["keys"].as_array().unwrap().iter().map(|listed| listed["key"].as_str().unwrap()).collect()
}

fn page(output: &Output) -> Value {
    serde_json::from_str(&stdout(output)).unwrap()
}

fn inspect(world: &World, limits: Option<&str>, args: &[&str]) -> Output {
    let mut command = tollgate();
    let patience: &[&str] = if args.contains(&"--timeout") { &[] } else { &["--timeout", "5m"] };
    command.arg("inspect").args(patience).args(args).env("DATABASE_URL", world.command_url());
    limits.map(|limits| command.env("TOLLGATE_LIMITS", limits));
    run(&mut command)
}
