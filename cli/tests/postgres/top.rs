//! `tollgate top`, on a terminal and without one.

use std::process::{Command, Stdio};

use sqlx::{AssertSqlSafe, Connection};
use tollgate::{DAY, HOUR, Limit};

use crate::command::limits::Scratch;
use crate::command::{failure, run, signal, stdout, tollgate};
use crate::terminal::Terminal;
use crate::world::{OWNER, World, soon};

const MESSAGES: Limit = Limit::token_bucket("messages", 10, HOUR).capacity(20);
const IMPORTS: Limit = Limit::token_bucket("imports", 1, DAY).max_reserved(10);

fn start(world: &World) -> Terminal {
    Terminal::start(world, &["top", "--interval", "100ms"], None)
}

/// One frame.
fn once(world: &World, args: &[&str]) -> Command {
    once_after(world, "100ms", args)
}

fn once_after(world: &World, interval: &str, args: &[&str]) -> Command {
    let mut command = tollgate();
    command.args(["top", "--once", "--interval", interval]).args(args).env("DATABASE_URL", world.command_url());
    command
}

/// The first of two texts stands above the second, below the line that shows the time.
fn above(text: &str, upper: &str, lower: &str) -> bool {
    let (_, text) = text.split_once('\n').unwrap_or_default();
    matches!((text.find(upper), text.find(lower)), (Some(upper), Some(lower)) if upper < lower)
}

#[tokio::test]
async fn it_follows_and_sorts_keys_and_gives_the_terminal_back() {
    let world = World::new().await;
    let gate = world.gate();
    gate.consume(MESSAGES.key("ada").cost(3)).await.unwrap().granted().unwrap();
    let mut terminal = start(&world);
    terminal.until(|text| text.contains("ada") && text.contains("by tokens taken")).await;
    assert!(terminal.shown.lock().unwrap().screen().alternate_screen());

    gate.reserve(IMPORTS.key("zoe").cost(5)).await.unwrap().granted().unwrap();
    terminal.until(|text| text.contains("zoe")).await;
    terminal.press("n");
    terminal.until(|text| text.contains("by name") && above(text, "imports", "messages")).await;
    terminal.press("f");
    terminal.until(|text| text.contains("by time until full") && above(text, "zoe", "ada")).await;
    terminal.press("r");
    terminal.until(|text| text.contains("by remaining") && above(text, "zoe", "ada")).await;
    terminal.press("q");
    assert_eq!(terminal.ended().await, 0);
}

/// Of names that begin alike, and numbers as long as they get.
#[tokio::test]
async fn eighty_columns_show_limit_key_debt_and_slow_down() {
    let limit = |name| Limit::token_bucket(name, 100_000, DAY).max_reserved(9_000_000);
    let [minute, day] = ["outgoing_messages_minute", "outgoing_messages_day"].map(limit);
    let world = World::new().await;
    let gate = world.gate();
    for (limit, cost) in [(&minute, 8_234_567), (&day, 5)] {
        let key = "customer-00000000000017";
        gate.debit(limit.key(key).cost(cost)).await.unwrap();
    }
    let report = "select tollgate.slow_down('outgoing_messages_minute', 'customer-00000000000017', percent => 49,
                                            recovers => '1 day', forgets => '0')";
    sqlx::raw_sql(report).execute(&mut world.connect_as(OWNER).await).await.unwrap();
    let limits = ["minute", "day"].map(|name| {
        let numbers = "kind = 'token_bucket'\nrate = 100000\nper = '1d'\nmax_reserved = 9000000\n";
        format!("[outgoing_messages_{name}]\n{numbers}")
    });
    let file = Scratch::new("top_narrow.toml", &limits.concat());
    let args = ["top", "--interval", "100ms", "--sort", "remaining"];
    let mut terminal = Terminal::of_width(80, &world, &args, file.0.to_str());
    terminal.until(|text| text.contains("TAKEN/s") && text.contains("since")).await;
    let text = terminal.text();
    let rows: Vec<_> = text.lines().filter(|line| line.starts_with("outg")).collect();
    assert!(rows[0].contains("minute ") && rows[1].contains("_day "), "{text}");
    assert!(text.lines().take(6).all(|line| line.chars().count() <= 80), "{text}");
    assert!(rows[0].contains("▕········▏") && rows[0].contains(" -81345") && rows[0].contains(" at 49 % "), "{text}");
    assert!(rows[1].contains(" 99995") && rows[1].contains("▕███████·▏"), "{text}");
    assert!(rows.iter().all(|row| row.contains("17 ") && row.contains("  cust")), "{text}");
    terminal.press("q");
    assert_eq!(terminal.ended().await, 0);
}

#[tokio::test]
async fn a_signal_and_an_interrupt_give_the_terminal_back() {
    let world = World::new().await;
    let mut terminal = start(&world);
    terminal.until(|text| text.contains("durable")).await;
    terminal.press("\u{3}");
    assert_eq!(terminal.ended().await, 0);
    let terminal = start(&world);
    terminal.until(|text| text.contains("durable")).await;
    signal("TERM", terminal.child.process_id().unwrap());
    assert_eq!(terminal.ended().await, 0);
}

#[tokio::test]
async fn a_lost_connection_is_told_and_opened_anew() {
    let world = World::new().await;
    let mut terminal = start(&world);
    terminal.until(|text| text.contains("durable")).await;
    let end = "select pg_terminate_backend(pid) from pg_stat_activity
        where application_name = 'tollgate' and datname = current_database()";
    // The note is gone with the next good look.
    let limit = |connections| format!("alter database {} connection limit {connections}", world.name());
    world.sql(&limit(0)).await;
    world.sql(end).await;
    terminal.until(|text| text.contains("could not look at the tables")).await;
    world.sql(&limit(-1)).await;
    world.gate().consume(MESSAGES.key("later")).await.unwrap().granted().unwrap();
    terminal.until(|text| text.contains("later") && !text.contains("could not look")).await;
    terminal.press("q");
    assert_eq!(terminal.ended().await, 0);
}

#[tokio::test]
async fn once_prints_what_a_limits_file_makes_exact() {
    let world = World::new().await;
    let gate = world.gate();
    gate.consume(IMPORTS.key("ada")).await.unwrap().granted().unwrap();
    gate.reserve(IMPORTS.key("bob").cost(3)).await.unwrap().granted().unwrap();
    gate.consume(MESSAGES.key("\u{1b}[2Jeve").cost(20)).await.unwrap().granted().unwrap();
    gate.consume(Limit::token_bucket("traffic", 1, HOUR).ephemeral().global()).await.unwrap().granted().unwrap();
    let imports = "[imports]\nkind = 'token_bucket'\nrate = 1\nper = '1d'\nmax_reserved = 10\n";
    let file = Scratch::new("top_imports.toml", imports);
    let with_file = |args: &[&str]| stdout(&run(once(&world, args).arg("--limits").arg(&file.0)));
    let text = with_file(&["--sort", "name"]);
    for told in [
        "tollgate top  2",
        "tollgate.ephemeral: 1 row not full",
        "tollgate.durable: 3 rows not full",
        "Refusals write nothing",
        r"\u{1b}[2Jeve",
        "(all callers)",
    ] {
        assert!(text.contains(told), "{told:?} is not in\n{text}");
    }
    assert!(!text.contains('\u{1b}'), "{text:?}");
    let bob: Vec<_> = text.lines().find(|line| line.contains(" bob ")).unwrap().split_whitespace().collect();
    // A day for each token that was reserved beyond the first, and one more until it is full.
    assert_eq!((bob[0], &bob[3..6], bob[7]), ("imports", &["of", "1", "▕········▏"][..], "3days"), "{bob:?}");
    assert!(bob[2].starts_with("-1.9") || bob[2] == "-2", "{bob:?}");

    let json: serde_json::Value =
        serde_json::from_str(&with_file(&["--json", "--sort", "remaining", "--filter", "imp"])).unwrap();
    let keys = json["keys"].as_array().unwrap();
    assert_eq!(keys.len(), 2, "{json}");
    assert_eq!((&keys[0]["key"], &keys[1]["key"]), (&"bob".into(), &"ada".into()));
    assert!(keys[0]["clears_in_seconds"].as_f64().unwrap() > 170_000.0, "{json}");
    assert_eq!(keys[1]["clears_in_seconds"], serde_json::Value::Null);
    assert_eq!((&keys[0]["taken_per_second"], &keys[0]["written"]), (&0.0.into(), &false.into()));
    // Some of it has come back by now.
    let [remaining, used] = ["remaining", "used"].map(|field| keys[0][field].as_f64().unwrap());
    assert!(remaining < -1.9 && (remaining + used - 1.0).abs() < 1e-6, "{json}");
}

#[tokio::test]
async fn what_a_meter_counts_never_clears() {
    let world = World::new().await;
    world.gate().debit(Limit::meter("usage").key("ada").cost(2)).await.unwrap();
    let file = Scratch::new("top_usage.toml", "[usage]\nkind = 'wallet'\n");
    let told = stdout(&run(once(&world, &["--json", "--limits"]).arg(&file.0)));
    let json: serde_json::Value = serde_json::from_str(&told).unwrap();
    let ada = &json["keys"][0];
    assert_eq!((&ada["remaining"], &ada["clears_in_seconds"]), (&(-2).into(), &serde_json::Value::Null), "{json}");
    for kind in ["[usage]\nkind = 'meter'\n", "[other]\nkind = 'meter'\n"] {
        let file = Scratch::new("top_meter.toml", kind);
        let told = stdout(&run(once(&world, &["--limits"]).arg(&file.0)));
        assert!(told.contains(" 2 used "), "{told}");
    }
}

#[tokio::test]
async fn each_row_of_a_sharded_limit_is_named_and_measured_by_its_share() {
    const SPREAD: Limit = Limit::token_bucket("spread", 6, HOUR).max_reserved(30).shards(3);
    let world = World::new().await;
    let gate = world.gate();
    gate.reserve(SPREAD.key("ada").cost(12)).await.unwrap().granted().unwrap();
    let limits = "[spread]\nkind = 'token_bucket'\nrate = 6\nper = '1h'\nmax_reserved = 30\nshards = 3";
    let file = Scratch::new("top_spread.toml", limits);
    let told = stdout(&run(once(&world, &["--json", "--sort", "name", "--limits"]).arg(&file.0)));
    let json: serde_json::Value = serde_json::from_str(&told).unwrap();
    let keys = json["keys"].as_array().unwrap();
    // Three of six times two are owed: each row two of its two, and two of those to come, of which it gets two an hour.
    assert_eq!(keys.iter().map(|row| row["shard"].as_u64().unwrap()).collect::<Vec<_>>(), [0, 1, 2], "{json}");
    for row in keys {
        let clears_in = row["clears_in_seconds"].as_f64().unwrap();
        assert_eq!(row["capacity"].as_f64(), Some(2.0), "{row}");
        assert!((3_400.0..=3_600.0).contains(&clears_in), "{row}");
    }
    let told = stdout(&run(&mut once(&world, &[])));
    assert!(["ada ", "ada #1", "ada #2"].iter().all(|row| told.contains(row)), "{told}");
}

/// Ten a minute: a sixth of a token comes back in the second before the row is written.
#[tokio::test]
async fn what_was_taken_is_at_least_what_is_missing_and_exact_where_the_limit_is_known() {
    let limits = "[messages]\nkind = 'token_bucket'\nrate = 10\nper = '1m'\ncapacity = 20\n";
    let file = Scratch::new("top_taken.toml", limits);
    for (limits, taken) in [(&[][..], 10.0), (&["--limits", file.0.to_str().unwrap()][..], 10.166_666)] {
        let mut json = looked_twice(limits, "3s").await;
        if json["keys"][0]["written"] == false {
            // The machine did not write between the two looks.
            json = looked_twice(limits, "1m").await;
        }
        let rate = json["keys"][0]["taken_per_second"].as_f64().unwrap();
        let told = rate * json["seconds"].as_f64().unwrap();
        assert!((told - taken).abs() < 1e-6, "{taken} in {json}");
        assert_eq!(json["keys"][0]["written"], true);
    }
}

/// The output of `top` about ten tokens that are taken between its two looks, if these are far enough apart.
async fn looked_twice(limits: &[&str], interval: &str) -> serde_json::Value {
    let world = World::new().await;
    let hour = "clock_timestamp() + interval '1 hour'";
    let row = "(0, 'messages', 'ada', 0, -5000000, '2020-01-01 00:00:00Z'";
    world.sql(&format!("insert into tollgate.durable values {row}, {hour})")).await;
    let mut admin = world.admin().await;
    let mut top = once_after(&world, interval, &["--json"]);
    let mut top = top.args(limits).stdout(Stdio::piped()).spawn().unwrap();
    // Its statements before the look end by a rollback.
    let looked = "select exists (select from pg_stat_activity where datname = current_database()
                                    and application_name = 'tollgate' and state = 'idle' and query ~* 'commit')";
    soon(async {
        while !sqlx::query_scalar::<_, bool>(looked).fetch_one(&mut admin).await.unwrap()
            && top.try_wait().unwrap().is_none()
        {}
    })
    .await;
    let take = "update tollgate.durable set value = -15000000, ts = '2020-01-01 00:00:01Z'";
    sqlx::raw_sql(take).execute(&mut admin).await.unwrap();
    serde_json::from_slice(&top.wait_with_output().unwrap().stdout).unwrap()
}

/// Somebody has locked the table that is read last, and writes to both before it is read.
#[tokio::test]
async fn both_tables_are_seen_in_one_state() {
    let world = World::new().await;
    let row = "(0, 'messages', 'ada', 0, -5000000, now(), now() + interval '1 hour')";
    for table in ["ephemeral", "durable"] {
        world.sql(&format!("insert into tollgate.{table} values {row}")).await;
    }
    let mut admin = world.admin().await;
    let mut writing = admin.begin().await.unwrap();
    sqlx::raw_sql("lock table tollgate.ephemeral").execute(&mut *writing).await.unwrap();
    let top = once(&world, &["--json"]).stdout(Stdio::piped()).spawn().unwrap();
    world.until_anyone_is_blocked().await;
    let take = ["ephemeral", "durable"].map(|table| format!("update tollgate.{table} set value = -15000000"));
    sqlx::raw_sql(AssertSqlSafe(take.join(";"))).execute(&mut *writing).await.unwrap();
    writing.commit().await.unwrap();
    let json: serde_json::Value = serde_json::from_slice(&top.wait_with_output().unwrap().stdout).unwrap();
    for key in json["keys"].as_array().unwrap() {
        assert_eq!(key["written"], true, "{json}");
    }
}

/// So many pages that only some of them are looked at.
#[tokio::test]
async fn of_a_large_table_it_looks_at_a_part_and_says_so() {
    let world = World::new().await;
    world
        .sql(
            "insert into tollgate.durable
             select 0, 'many', repeat('k', 400) || n, 0, 0, now(), now() + interval '1 hour'
               from generate_series(1, 40000) n",
        )
        .await;
    let json: serde_json::Value = serde_json::from_str(&stdout(&run(&mut once(&world, &["--json"])))).unwrap();
    let table = &json["tables"]["durable"];
    let percent = table["percent"].as_f64().unwrap();
    assert!(percent > 10.0 && percent < 60.0, "{table}");
    let counted = table["not_full"].as_f64().unwrap();
    assert!(counted > 0.0 && counted < 40_000.0, "{table}");
    // The same rows in both looks.
    assert_eq!(json["keys"][0]["written"], false);
}

#[tokio::test]
async fn what_is_wrong_is_one_sentence_and_touches_no_terminal() {
    let world = World::unmigrated().await;
    let top = |url: &str, args: &[&str]| failure(&run(tollgate().arg("top").args(args).env("DATABASE_URL", url)));
    assert_eq!(
        top(&world.command_url(), &[]),
        "error: schema \"tollgate\" does not exist (the tables are missing or too old: run `tollgate migrate up`)\n"
    );
    let error = top("postgres://nobody@127.0.0.1:1/none", &["--once"]);
    assert!(error.starts_with("error: could not connect to the database: ") && error.lines().count() == 1, "{error}");
    for wrong in [&["--interval", "1ms"][..], &["--sort", "luck"], &["--rows", "0"]] {
        assert_eq!(run(tollgate().arg("top").args(wrong)).status.code(), Some(64), "{wrong:?}");
    }

    let world = World::new().await;
    assert_eq!(
        top(&world.command_url(), &[]),
        "error: there is no terminal to draw on (print one frame with --once)\n"
    );
    // A reader that is gone.
    let mut command = once(&world, &[]);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0));
}
