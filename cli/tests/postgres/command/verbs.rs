//! The verbs, for support staff and scripts: their output, their changes, and their exit status.

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tollgate::{Decision, Limit, MINUTE, Storage, Tokens};

use super::limits::Scratch;
use super::{failure, run, signal, stdout, text, tollgate};
use crate::terminal::Terminal;
use crate::world::{World, soon};

#[tokio::test]
async fn consume_takes_and_says_what_is_left_or_when_to_come_back() {
    let world = World::new().await;
    // Windows that start twelve hours from now.
    let hour = "select (extract(hour from now() at time zone 'UTC')::int4 + 12) % 24";
    let hour: i32 = sqlx::query_scalar(hour).fetch_one(&world.pool).await.unwrap();
    let days = format!("[sign_ups]\nkind = 'fixed_window'\nrate = 100\nper = '1d'\nstart = '{hour}h'");
    let days = Scratch::new("days.toml", &days);
    let ask = |args: &[&str]| run(asking(&world, args).env("TOLLGATE_LIMITS", &days.0));
    let granted = ask(&["consume", "sign_ups", "ada", "--cost", "98.5"]);
    assert_eq!(stdout(&granted), "granted: 98.5 of \"sign_ups\" for ada; 1.5 left\n");

    let refused = ask(&["consume", "sign_ups", "ada", "--cost", "2"]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    let told = text(&refused.stdout);
    assert!(told.starts_with("refused: 2 of \"sign_ups\" for ada; it has 1.5, retry in "), "{told}");
    let start = format!("T{hour:02}:00:00.000000Z");
    assert!(told.trim_end().ends_with(&start), "the next window starts at {hour}:00 UTC: {told}");

    let (value, _) = world.row(Storage::Durable, "sign_ups", "ada").await.unwrap();
    assert_eq!(value, Tokens::from_micros(-98_500_000));
}

#[tokio::test]
async fn check_answers_as_consume_would_and_takes_nothing() {
    let world = World::new().await;
    let told = ask(&world, &["check", "sign_ups", "ada", "--cost", "100"]);
    assert_eq!(stdout(&told), "would be granted: 100 of \"sign_ups\" for ada; 0 left\n");
    assert_eq!(world.rows().await, 0);
    stdout(&ask(&world, &["consume", "sign_ups", "ada", "--cost", "100"]));
    assert_eq!(ask(&world, &["check", "sign_ups", "ada"]).status.code(), Some(2));
}

#[tokio::test]
async fn json_is_what_the_library_answers() {
    let world = World::new().await;
    let decision: tollgate::Decision =
        serde_json::from_str(&stdout(&ask(&world, &["consume", "sign_ups", "--global", "--cost", "40", "--json"])))
            .unwrap();
    assert_eq!(decision.granted().unwrap().remaining, Tokens::new(60));
    let refused = ask(&world, &["consume", "sign_ups", "--global", "--cost", "61", "--json"]);
    assert_eq!(refused.status.code(), Some(2));
    let decision: tollgate::Decision = serde_json::from_slice(&refused.stdout).unwrap();
    assert!(decision.denied().unwrap().key.is_global());
}

#[tokio::test]
async fn a_month_is_a_period_and_a_billing_limit_is_asked_by_one() {
    let world = World::new().await;
    let limits = "[plan]\nkind = 'billing'\nrate = 100\n[llm]\nkind = 'monthly'\nrate = 100";
    let limits = Scratch::new("months.toml", limits);
    let ask = |args: &[&str]| run(asking(&world, args).env("TOLLGATE_LIMITS", &limits.0));
    let months: (String, String, String) = sqlx::query_as(
        "select to_char(now() at time zone 'UTC', 'YYYY-MM'),
                to_char(date_trunc('month', now() at time zone 'UTC'), 'YYYY-MM-DD'),
                to_char(date_trunc('month', now() at time zone 'UTC') + interval '1 month', 'YYYY-MM-DD')",
    )
    .fetch_one(&world.pool)
    .await
    .unwrap();
    let (month, (start, end)) = (months.0, (months.1, months.2));
    let granted = ask(&["consume", "plan", "ada", "--cost", "99", "--month", &month]);
    assert_eq!(stdout(&granted), "granted: 99 of \"plan\" for ada; 1 left\n");
    for verb in ["consume", "check", "debit"] {
        let wrong = ask(&[verb, "plan", "ada"]);
        assert_eq!(wrong.status.code(), Some(1), "{wrong:?}");
        assert!(text(&wrong.stderr).contains("say --month 2026-12, or --period"), "{wrong:?}");
    }
    let debited = ask(&["debit", "plan", "ada", "--cost", "1", "--period", &format!("{start}/{end}")]);
    let has = |left: &str| format!("\"plan\" for ada has {left} of 100; full in ");
    assert!(stdout(&debited).starts_with(&format!("debited: {}", has("0"))), "{debited:?}");
    assert!(stdout(&debited).trim_end().ends_with(&format!("at {end}T00:00:00.000000Z")), "{debited:?}");
    // Support need not say the period: the row knows it.
    let credited = ask(&["credit", "plan", "ada", "--cost", "5"]);
    assert!(stdout(&credited).starts_with(&format!("credited: {}", has("5"))), "{credited:?}");
    let inspected = stdout(&ask(&["inspect", "plan", "ada"]));
    assert!(inspected.contains("95"), "{inspected}");
    stdout(&ask(&["reset", "plan", "ada"]));
    let monthly = stdout(&ask(&["debit", "llm", "ada", "--cost", "40"]));
    assert!(monthly.trim_end().ends_with(&format!("at {end}T00:00:00.000000Z")), "{monthly}");
    let wrong = ask(&["consume", "llm", "ada", "--month", &month]);
    assert!(text(&wrong.stderr).contains("only a billing limit is asked by a period"), "{wrong:?}");
}

#[tokio::test]
async fn a_reservation_is_a_debt_with_an_instant() {
    let world = World::new().await;
    let now = ask(&world, &["consume", "llm_tokens", "--global", "--cost", "40000", "--reserve"]);
    assert_eq!(stdout(&now), "reserved: 40000 of \"llm_tokens\" for (all callers), ready now\n");
    let later = ask(&world, &["consume", "llm_tokens", "--global", "--cost", "100000", "--reserve", "--json"]);
    let decision: Value = serde_json::from_str(&stdout(&later)).unwrap();
    let wait = decision["granted"]["wait_ms"].as_u64().unwrap();
    assert!((50_000..=150_000).contains(&wait), "{decision}");
    let refused = ask(&world, &["consume", "llm_tokens", "--global", "--cost", "200000", "--reserve"]);
    assert_eq!(refused.status.code(), Some(2), "deeper than max_reserved: {refused:?}");
}

#[tokio::test]
async fn credit_debit_and_reset_change_a_balance_whatever_it_is() {
    let world = World::new().await;
    let told = |args: &[&str]| stdout(&ask(&world, args));
    assert!(
        told(&["debit", "sign_ups", "a|b", "--cost", "130"])
            .starts_with("debited: \"sign_ups\" for 'a|b' has -30 of 100; full in ")
    );
    assert!(
        told(&["credit", "sign_ups", "a|b", "--cost", "50"])
            .starts_with("credited: \"sign_ups\" for 'a|b' has 20 of 100; full in ")
    );
    assert_eq!(told(&["reset", "sign_ups", "a|b"]), "reset: \"sign_ups\" for 'a|b' has 100 of 100; full\n");
}

#[tokio::test]
async fn reset_empties_a_wallet() {
    let file = Scratch::new("wallet_to_reset.toml", "[credits]\nkind = 'wallet'");
    let world = World::new().await;
    let told = |args: &[&str]| stdout(&run(asking(&world, args).env("TOLLGATE_LIMITS", &file.0)));
    assert_eq!(told(&["credit", "credits", "ada", "--cost", "50"]), "credited: \"credits\" for ada has 50\n");
    assert_eq!(told(&["reset", "credits", "ada"]), "reset: \"credits\" for ada has 0\n");
}

#[tokio::test]
async fn a_meter_speaks_of_use_and_is_reset_only_by_force() {
    let file = Scratch::new("meter_to_reset.toml", "[llm_usage]\nkind = 'meter'");
    let world = World::new().await;
    let ask = |args: &[&str]| run(asking(&world, args).env("TOLLGATE_LIMITS", &file.0));
    let told = |args: &[&str]| stdout(&ask(args));
    assert_eq!(
        told(&["consume", "llm_usage", "2026-11", "20", "--cost", "550"]),
        "granted: 550 of \"llm_usage\" for '2026-11|20'; 550 used\n"
    );
    let key = ["llm_usage", "2026-11|20"];
    assert_eq!(
        told(&["credit", key[0], key[1], "--cost", "50"]),
        "credited: \"llm_usage\" for '2026-11|20' has 500 used\n"
    );
    let refused = |args: &[&str]| failure(&ask(args));
    assert_eq!(
        refused(&["reset", key[0], key[1]]),
        "error: \"llm_usage\" is a meter: a reset erases a bill (correct the bill with `tollgate credit llm_usage KEY \
         --cost N`, or say --force)\n"
    );
    assert_eq!(
        refused(&["reset", key[0], "--all", "--yes"]),
        "error: \"llm_usage\" is a meter, which --all leaves alone: nothing was reset (correct the bill with `tollgate \
         credit llm_usage KEY --cost N`, or delete rows of bills that are paid)\n"
    );
    for effect in ["--deny", "--unlimited", "--rate=5", "--overdraft=5"] {
        let told = refused(&["override", "set", key[0], key[1], effect, "--reason", "x"]);
        assert_eq!(
            told,
            "error: limit \"llm_usage\" is a meter, which refuses nobody and has no numbers (override the limit beside \
             it)\n"
        );
    }
    assert_eq!(told(&["reset", key[0], key[1], "--force"]), "reset: \"llm_usage\" for '2026-11|20' has 0 used\n");
}

#[tokio::test]
async fn reset_all_asks_whether_to_empty_a_wallet_and_not_to_fill_it() {
    let file = Scratch::new("wallets_to_reset.toml", "[credits]\nkind = 'wallet'");
    let world = World::new().await;
    world.gate().credit(Limit::wallet("credits").key("ada").cost(50)).await.unwrap();
    let mut terminal = Terminal::start(&world, &["reset", "credits", "--all"], file.0.to_str());
    terminal.until(|text| text.contains("Empty 1 key of wallet \"credits\"? [y/N] ")).await;
    terminal.press("y\r");
    terminal.until(|text| text.contains("reset 1 key of \"credits\"")).await;
    assert_eq!(terminal.ended().await, 0);
    let (value, _) = world.row(Storage::Durable, "credits", "ada").await.unwrap();
    assert_eq!(value, Tokens::ZERO);
}

#[tokio::test]
async fn reset_all_asks_first_and_fills_up_every_key() {
    let world = World::new().await;
    // More than one page, with the row of all callers, and another limit that must stay as it is.
    world
        .sql(
            "insert into tollgate.durable
             select 0, 'send_message', case n when 0 then '' else 'key ' || n end, 0, -5000000, now(), now()
               from generate_series(0, 1234) n
             union all select 0, 'sign_ups', 'ada', 0, -7000000, now(), now()",
        )
        .await;
    let unasked = ask(&world, &["reset", "send_message", "--all"]);
    assert_eq!(
        text(&unasked.stderr),
        "error: nothing was reset: this asks first, and nobody can answer here (say --yes)\n"
    );
    assert_eq!(unasked.status.code(), Some(1));
    assert_eq!(below_capacity(&world).await, 1235 + 1);

    let done = ask(&world, &["reset", "send_message", "--all", "--yes"]);
    assert_eq!(stdout(&done), "reset 1235 keys of \"send_message\"\n");
    assert_eq!(below_capacity(&world).await, 1);
    assert_eq!(world.rows().await, 1235 + 1, "rows are updated, not deleted");
}

#[tokio::test]
async fn reset_all_does_nothing_unless_it_is_told_yes() {
    let world = World::new().await;
    world
        .sql(
            "insert into tollgate.durable
             select 0, 'send_message', 'key ' || n, 0, -5000000, now(), now() from generate_series(1, 3) n",
        )
        .await;
    for (typed, told, left) in [
        ("\r", "nothing was reset", 3),
        ("no\r", "nothing was reset", 3),
        ("yes please\r", "nothing was reset", 3),
        ("\u{4}", "nothing was reset", 3),
        ("y\r", "reset 3 keys of \"send_message\"", 0),
    ] {
        let mut terminal = Terminal::start(&world, &["reset", "send_message", "--all"], Some(LIMITS));
        terminal
            .until(|text| text.contains("Fill up 3 keys of limit \"send_message\", and forgive their debts? [y/N] "))
            .await;
        assert_eq!(below_capacity(&world).await, 3, "it asks first");
        terminal.press(typed);
        terminal.until(|text| text.contains(told)).await;
        assert_eq!(terminal.ended().await, 0, "{typed:?}");
        assert_eq!(below_capacity(&world).await, left, "{typed:?}");
    }
}

#[tokio::test]
async fn reset_all_fills_up_every_shard_and_deletes_stale_ones() {
    let file = Scratch::new("reset.toml", "[spread]\nkind = 'token_bucket'\nrate = 60\nper = '1h'\nshards = 3");
    let world = World::new().await;
    // Three shards, one of which is absent, and two from before.
    world
        .sql(
            "insert into tollgate.durable
             select 0, 'spread', key, shard, -5000000, now(), now()
               from (values ('ada', 0), ('ada', 2), ('bob', 3), ('bob', 4)) r (key, shard)",
        )
        .await;
    let mut command = tollgate();
    command
        .args(["reset", "spread", "--all", "--yes", "--limits"])
        .arg(&file.0)
        .env("DATABASE_URL", world.command_url());
    assert_eq!(stdout(&run(&mut command)), "reset 2 keys of \"spread\"\n");
    assert_eq!(below_capacity(&world).await, 0, "a share is full with 20");
    let shards =
        "select key, pg_catalog.array_agg(shard order by shard) from tollgate.durable group by key order by key";
    let shards: Vec<(String, Vec<i16>)> = sqlx::query_as(shards).fetch_all(&world.pool).await.unwrap();
    assert!(shards.iter().flat_map(|(_, shards)| shards).all(|shard| (0..3).contains(shard)), "{shards:?}");
}

async fn below_capacity(world: &World) -> i64 {
    let sql = "select count(*) from tollgate.durable where value < 0";
    sqlx::query_scalar(sql).fetch_one(&world.pool).await.unwrap()
}

#[tokio::test]
async fn the_answer_stands_though_nobody_reads_it() {
    let world = World::new().await;
    stdout(&ask(&world, &["consume", "sign_ups", "ada", "--cost", "100"]));
    let mut command = asking(&world, &["consume", "sign_ups", "ada"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(2), String::new()));
}

#[tokio::test]
async fn run_passes_on_what_the_program_does() {
    let world = World::new().await;
    let ran = ask(
        &world,
        &["run", "sign_ups", "deploys", "--cost", "60", "--", "sh", "-c", "echo out; echo err >&2; exit 7"],
    );
    assert_eq!((ran.status.code(), text(&ran.stdout), text(&ran.stderr)), (Some(7), "out\n".into(), "err\n".into()));

    let refused = ask(&world, &["run", "sign_ups", "deploys", "--cost", "60", "--", "echo", "never"]);
    assert_eq!((refused.status.code(), text(&refused.stdout)), (Some(2), String::new()));
    assert!(text(&refused.stderr).starts_with("refused: 60 of \"sign_ups\" for deploys; it has 40"), "{refused:?}");

    let beyond = ask(&world, &["run", "sign_ups", "deploys", "--cost", "60", "--wait", "1ms", "--", "echo", "never"]);
    assert_eq!(beyond.status.code(), Some(2), "an instant beyond the wait is a refusal at once: {beyond:?}");
}

#[tokio::test]
async fn run_gives_back_what_a_program_that_cannot_start_did_not_use() {
    let world = World::new().await;
    for (program, status) in [("/nonexistent/program", 127), ("/etc/passwd", 126)] {
        let failed = ask(&world, &["run", "sign_ups", "cron", "--", program]);
        assert_eq!(failed.status.code(), Some(status), "{failed:?}");
        assert!(text(&failed.stderr).contains("its tokens were given back"), "{failed:?}");
    }
    let (value, _) = world.row(Storage::Durable, "sign_ups", "cron").await.unwrap();
    assert_eq!(value, Tokens::ZERO);
}

#[tokio::test]
async fn run_waits_for_its_turn() {
    let world = World::new().await;
    // 2000 a second: half a second's worth is owed.
    stdout(&ask(&world, &["debit", "all_traffic", "--global", "--cost", "3000"]));
    let ran = ask(&world, &["run", "all_traffic", "--global", "--wait", "1m", "--", "echo", "done"]);
    assert_eq!(stdout(&ran), "done\n");
}

#[tokio::test]
async fn a_signal_reaches_the_program() {
    let world = World::new().await;
    let script = "trap 'exit 9' TERM; echo ready; while :; do sleep 0.02; done";
    let mut command = asking(&world, &["run", "sign_ups", "jobs", "--", "sh", "-c", script]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut ready = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut ready).unwrap();
    signal("TERM", child.id());
    assert_eq!(child.wait().unwrap().code(), Some(9));
}

#[tokio::test]
async fn a_signal_while_waiting_takes_nothing() {
    let world = World::new().await;
    stdout(&ask(&world, &["consume", "sign_ups", "ada", "--cost", "100"]));
    let mut child =
        asking(&world, &["run", "sign_ups", "ada", "--wait", "100000d", "--", "echo", "never"]).spawn().unwrap();
    // It waits, or is about to ask: in either case it has nothing yet.
    let asked = "select count(*) from pg_stat_activity
                  where datname = current_database() and application_name = 'tollgate' and state = 'idle'";
    let mut admin = world.admin().await;
    soon(async { while sqlx::query_scalar::<_, i64>(asked).fetch_one(&mut admin).await.unwrap() == 0 {} }).await;
    // Not SIGINT: a shell's background job ignores it, and so do its children.
    signal("TERM", child.id());
    assert_eq!(child.wait().unwrap().signal(), Some(15));
    let (value, _) = world.row(Storage::Durable, "sign_ups", "ada").await.unwrap();
    assert_eq!(value, Tokens::from_micros(-100_000_000));
}

#[tokio::test]
async fn no_verb_prints_a_key_that_steers_the_terminal() {
    let world = World::new().await;
    let key = "a\u{1b}[2Jb\u{202e}c";
    for verb in
        [&["check"][..], &["credit"], &["debit"], &["reset"], &["consume", "--reserve"], &["consume", "--cost", "20"]]
    {
        for json in [&[][..], &["--json"]] {
            let told = ask(&world, &[verb, &["sign_ups", key], json].concat());
            let told = format!("{}{}", text(&told.stdout), text(&told.stderr));
            assert!(told.contains("202e") && !told.contains(['\u{1b}', '\u{202e}']), "{verb:?}: {told:?}");
        }
    }
    stdout(&ask(&world, &["debit", "sign_ups", key, "--cost", "1000"]));
    let refused = ask(&world, &["run", "sign_ups", key, "--", "true"]);
    let told = text(&refused.stderr);
    assert!(told.contains(r"$'a\U0000001b[2Jb\U0000202ec'") && !told.contains(['\u{1b}', '\u{202e}']), "{told:?}");
}

fn ask(world: &World, args: &[&str]) -> Output {
    run(&mut asking(world, args))
}

fn asking(world: &World, args: &[&str]) -> Command {
    let mut command = tollgate();
    command.args(args).env("DATABASE_URL", world.command_url()).env("TOLLGATE_LIMITS", LIMITS).stdin(Stdio::null());
    command
}

#[tokio::test]
async fn who_is_refused_by_a_row_ahead_of_the_clock_is_told_a_wait_by_the_clock_as_it_is() {
    let world = World::with_clock().await;
    world.set_ahead("1 hour").await;
    let drip = Limit::token_bucket("drip", 10, MINUTE);
    world.gate().consume(drip.key("k").cost(10)).await.unwrap().granted().unwrap();
    world.set_ahead("0").await;
    let limits = Scratch::new("behind.toml", "[drip]\nkind = 'token_bucket'\nrate = 10\nper = '1m'\n");
    let check = |args: &[&str]| {
        let mut command = tollgate();
        command.args(["check", "drip", "k", "--limits"]).arg(&limits.0).args(args).env("DATABASE_URL", world.url());
        let output = run(&mut command);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let told = check(&[]);
    let is_told = (30..60).any(|minutes| told.contains(&format!("retry in {minutes}m")));
    assert!(is_told || told.contains("retry in 1h"), "{told}");
    let decision: Decision = serde_json::from_str(&check(&["--json"])).unwrap();
    let denied = decision.denied().unwrap();
    assert!(denied.retry_after().unwrap() > 30 * MINUTE, "{denied:?}");
}

const LIMITS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/postgres/command/verbs.toml");
