//! `tollgate override` and `tollgate forget`.

use std::process::Output;

use serde_json::Value;
use tollgate::{Limit, MINUTE, Overrides};

use super::limits::Scratch;
use super::{EXAMPLE, failure, run, stdout, text, tollgate};
use crate::terminal::Terminal;
use crate::world::{OWNER, World};

fn command(world: &World, args: &[&str]) -> Output {
    run(tollgate().args(args).env("DATABASE_URL", world.command_url()).env("TOLLGATE_LIMITS", EXAMPLE))
}

#[tokio::test]
async fn an_override_counts_is_listed_and_can_be_removed() {
    let world = World::new().await;
    let told = |args: &[&str]| stdout(&command(&world, args));
    let set = ["override", "set", "send_message", "ada", "--rate", "500", "--for", "1h", "--reason", "ticket 4711"];
    let said = told(&[&set[..], &["--by", "bob"]].concat());
    assert!(said.starts_with("set: send_message for ada: 500 each 1m, at most 500, ends in "), "{said}");
    assert!(said.ends_with("(bob: ticket 4711)\n"), "{said}");
    let checked = told(&["check", "send_message", "ada", "--cost", "400"]);
    assert!(checked.starts_with("would be granted"), "{checked}");
    let inspected = told(&["inspect", "send_message", "ada"]);
    assert!(inspected.contains("remaining 500 of 500, 0 used\n") && inspected.contains("override"), "{inspected}");

    told(&[
        "override",
        "set",
        "send_message",
        "--every-key",
        "--deny",
        "--until",
        "2100-01-01T12:30:00Z",
        "--reason",
        "x",
    ]);
    let refused = command(&world, &["check", "send_message", "bob"]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    let inspected = told(&["inspect", "send_message", "ada"]);
    assert!(inspected.contains("denied, ends in ") && inspected.contains("2100-01-01T12:30:00"), "{inspected}");
    let listed: Value = serde_json::from_str(&told(&["override", "list", "--json"])).unwrap();
    assert_eq!(listed["overrides"].as_array().unwrap().len(), 2, "{listed}");
    assert_eq!(listed["overrides"][1]["effect"]["numbers"]["rate"], 500, "{listed}");
    assert_eq!(told(&["override", "list", "send_message"]).lines().count(), 2);
    assert_eq!(told(&["override", "list", "sign_ups"]), "no overrides\n");

    assert_eq!(told(&["override", "remove", "send_message", "--every-key"]), "removed: send_message for every key\n");
    let again = failure(&command(&world, &["override", "remove", "send_message", "--every-key"]));
    assert!(again.contains("there is no override of limit \"send_message\" for every key"), "{again}");
}

#[tokio::test]
async fn what_is_set_says_what_it_replaces_what_else_is_live_and_where_the_key_stands() {
    let world = World::new().await;
    let told = |args: &[&str]| stdout(&command(&world, args));
    let set = |args: &[&str]| {
        told(&[&["override", "set", "send_message", "ada"], args, &["--reason", "x", "--by", "me"]].concat())
    };
    told(&["consume", "send_message", "ada", "--cost", "20"]);

    let first = set(&["--rate", "5", "--yes"]);
    let lines: Vec<_> = first.lines().collect();
    assert_eq!(lines[0], "set: send_message for ada: 5 each 1m, at most 5, until it is removed (me: x)");
    assert!(lines[1].starts_with("now: ") && lines[1].contains(" of 5 used; granted again in "), "{first}");
    assert!(lines[1].ends_with("; --reset forgives") && lines.len() == 2, "{first}");

    let again = set(&["--rate", "6", "--reset"]);
    assert!(again.ends_with("\ninstead of: 5 each 1m, at most 5, until it is removed (me: x)\n"), "{again}");

    let contract = set(&["--rate", "50", "--label", "contract"]);
    assert!(contract.contains("(label contract, me: x)\nbeside: send_message for ada: 6 each 1m"), "{contract}");

    // It replaces the operator's override, and leaves the contract.
    let banned = set(&["--deny", "--for", "1h"]);
    assert!(banned.contains("\ninstead of: 6 each 1m, at most 6, until it is removed (me: x)\n"), "{banned}");
    assert!(
        banned.ends_with(
            "\nbeside: send_message for ada: 50 each 1m, at most 50, until it is removed (label contract, me: x)\n"
        ),
        "{banned}"
    );
    let renewed = set(&["--rate", "70", "--label", "contract"]);
    assert!(
        renewed.contains("\nbeside: send_message for ada: denied, ends in ")
            && renewed.contains("; denied by an operator until "),
        "{renewed}"
    );
    assert_eq!(command(&world, &["check", "send_message", "ada"]).status.code(), Some(2));

    let document: Value = serde_json::from_str(&set(&["--unlimited", "--label", "vip", "--json"])).unwrap();
    assert_eq!((&document["label"], &document["replaced"]), (&"vip".into(), &Value::Null), "{document}");
    assert_eq!(document["others"].as_array().unwrap().len(), 2, "{document}");
    assert_eq!(document["standing"]["is_denied"], true, "{document}");
    let inspected = told(&["inspect", "send_message", "ada"]);
    assert!(inspected.contains("(label contract, me: x)") && inspected.contains("(label vip, me: x)"), "{inspected}");
    let listed = told(&["override", "list", "send_message", "ada"]);
    assert!(listed.contains("unlimited, until it is removed (label vip, me: x)"), "{listed}");
    assert_eq!(listed.lines().count(), 3, "{listed}");

    // A later override, under a label that counts now.
    let later =
        ["override", "set", "send_message", "ada", "--unlimited", "--from", "2100-01-01T00:00:00Z", "--reason", "x"];
    let refused = failure(&command(&world, &[&later[..], &["--label", "contract"]].concat()));
    assert!(refused.contains("is live, and this one begins later (give it another label"), "{refused}");
    told(&[&later[..], &["--label", "2100"]].concat());

    let remove = |args: &[&str]| command(&world, &[&["override", "remove", "send_message", "ada"], args].concat());
    assert_eq!(stdout(&remove(&["--label", "vip"])).lines().next(), Some("removed: send_message for ada, label vip"));
    let gone = failure(&remove(&["--label", "vip"]));
    assert!(gone.contains("there is no override of limit \"send_message\" for ada, label vip"), "{gone}");
    assert!(stdout(&remove(&[])).starts_with("removed: send_message for ada\n"));
    told(&["check", "send_message", "ada", "--cost", "6"]);
}

/// Where nobody can answer. `send_message` gives 10 each minute, at most 20.
#[tokio::test]
async fn numbers_below_those_that_count_are_set_only_with_yes() {
    let plan = ["ada", "--rate", "100000", "--per", "1d", "--label", "plan"];
    let stories: [(&[&str], &[&str], Option<&str>); 14] = [
        (&[], &["ada", "--rate", "9", "--capacity", "20"], Some("ada, from 10 each 1m, at most 20 (its definition)")),
        (&[], &["ada", "--rate", "10"], Some("ada, from 10 each 1m, at most 20 (its definition)")),
        (&[], &["ada", "--rate", "20", "--per", "121s"], Some("(its definition)")),
        (&[], &["ada", "--rate", "20", "--per", "2m"], None),
        (&[], &["--every-key", "--rate", "5"], Some("every key, from 10 each 1m, at most 20 (its definition)")),
        (&plan, &["ada", "--rate", "5000", "--per", "1d", "--label", "support"], Some("(label plan, me: x)")),
        (&plan, &["ada", "--rate", "5000", "--per", "1h", "--label", "support"], Some("at most 100000")),
        (&plan, &["ada", "--rate", "100000", "--per", "1d", "--label", "support"], None),
        (&plan, &["ada", "--rate", "99999", "--per", "1d", "--label", "plan"], Some("from 100000 each 1day")),
        (&plan, &["bob", "--rate", "5000", "--label", "support"], None),
        (&plan, &["ada", "--rate", "5000", "--from", "2100-01-01T00:00:00Z"], Some("(label plan, me: x)")),
        (&["ada", "--unlimited"], &["ada", "--rate", "5000"], Some("from unlimited, until it is removed (me: x)")),
        (&["ada", "--unlimited"], &["ada", "--rate", "5", "--label", "support"], None),
        (&["--every-key", "--rate", "500"], &["ada", "--rate", "400"], Some("from 500 each 1m, at most 500")),
    ];
    for (before, after, lowered) in stories {
        let world = World::new().await;
        let set = |args: &[&str]| {
            command(&world, &[&["override", "set", "send_message"], args, &["--reason", "x", "--by", "me"]].concat())
        };
        if !before.is_empty() {
            stdout(&set(before));
        }
        let count = async || Overrides::read(&mut world.connect().await).await.unwrap().all();
        let there = count().await;
        let Some(lowered) = lowered else {
            assert_eq!(text(&set(after).stderr), "", "{after:?}");
            continue;
        };
        let warned = set(after);
        let told = text(&warned.stderr);
        assert!(told.starts_with("warning: this lowers send_message for ") && told.contains(lowered), "{told}");
        let remedy = "\nerror: nothing was set: this asks first, and nobody can answer here (say --yes)\n";
        assert!(told.ends_with(remedy) && warned.status.code() == Some(1), "{told}");
        assert_eq!(count().await, there, "{after:?}");
        let meant = set(&[after, &["--yes", "--json"]].concat());
        assert!(text(&meant.stderr).contains(lowered), "{meant:?}");
        let document: Value = serde_json::from_str(&stdout(&meant)).unwrap();
        assert_eq!(document["limit"], "send_message");
        assert_ne!(count().await, there, "{after:?}");
    }
}

#[tokio::test]
async fn a_deny_and_a_free_pass_are_set_unasked() {
    let world = World::new().await;
    for effect in ["--deny", "--unlimited"] {
        let set = command(&world, &["override", "set", "send_message", "ada", effect, "--reason", "x"]);
        assert_eq!((text(&set.stderr), set.status.code()), (String::new(), Some(0)));
    }
}

#[tokio::test]
async fn an_overdraft_and_slots_are_not_lowered_unasked_either() {
    let file = Scratch::new(
        "lowered.toml",
        "[credits]\nkind = 'wallet'\noverdraft = 50\n[jobs]\nkind = 'concurrency'\nrate = 5\nlease = '1m'",
    );
    let world = World::new().await;
    let set = |args: &[&str]| {
        let all = [&["override", "set"], args, &["--reason", "x"]].concat();
        run(tollgate().args(all).env("DATABASE_URL", world.command_url()).env("TOLLGATE_LIMITS", &file.0))
    };
    for (less, from) in [
        (&["credits", "ada", "--overdraft", "49"][..], "from overdraft of 50 (its definition)"),
        (&["jobs", "ada", "--rate", "4"], "from 5 each 1m, at most 5 (its definition)"),
    ] {
        let refused = set(less);
        assert!(failure(&refused).contains("say --yes") && text(&refused.stderr).contains(from), "{refused:?}");
    }
    for more in [&["credits", "ada", "--overdraft", "51"][..], &["jobs", "ada", "--rate", "5", "--per", "10m"]] {
        assert_eq!(text(&set(more).stderr), "");
    }
}

#[tokio::test]
async fn at_a_terminal_somebody_is_asked_whether_lower_numbers_are_meant() {
    let world = World::new().await;
    let args = ["override", "set", "send_message", "ada", "--rate", "5", "--reason", "x"];
    for (answer, code, there) in [("n\r", 1, 0), ("\r", 1, 0), ("y\r", 0, 1)] {
        let mut terminal = Terminal::start(&world, &args, Some(EXAMPLE));
        terminal.until(|text| text.contains("(its definition)") && text.contains("Set it all the same? [y/N] ")).await;
        terminal.press(answer);
        assert_eq!(terminal.ended().await, code, "{answer:?}");
        assert_eq!(Overrides::read(&mut world.connect().await).await.unwrap().all().len(), there, "{answer:?}");
    }
}

#[tokio::test]
async fn what_a_key_has_without_an_override_is_told_where_it_is_removed() {
    let world = World::new().await;
    let told = |args: &[&str]| stdout(&command(&world, args));
    told(&["override", "set", "send_message", "ada", "--rate", "30", "--reason", "x"]);
    told(&["consume", "send_message", "ada", "--cost", "30"]);
    let removed = told(&["override", "remove", "send_message", "ada"]);
    assert!(removed.starts_with("removed: send_message for ada\nnow: "), "{removed}");
    assert!(removed.contains(" used; granted again in ") && removed.ends_with("; --reset forgives\n"), "{removed}");
}

/// Then the clock steps back.
#[tokio::test]
async fn an_override_that_is_set_ahead_of_the_clock_has_begun() {
    let world = World::with_clock().await;
    let told = |args: &[&str]| stdout(&command(&world, args));
    world.set_ahead("1 hour").await;
    told(&["override", "set", "send_message", "ada", "--deny", "--reason", "x"]);
    world.set_ahead("0").await;
    assert_eq!(command(&world, &["check", "send_message", "ada"]).status.code(), Some(2));
    for args in [&["override", "list"][..], &["inspect", "send_message", "ada"]] {
        let said = told(args);
        assert!(said.contains("denied, until it is removed"), "{said}");
    }
}

#[tokio::test]
async fn each_command_names_the_override_that_refuses_a_key() {
    let world = World::new().await;
    let told = |args: &[&str]| text(&command(&world, args).stdout);
    let deny = ["override", "set", "send_message", "ada", "--deny", "--reason"];
    told(&[&deny[..], &["spam", "--label", "abuse", "--until", "2100-01-01T12:30:00Z"]].concat());
    told(&[&deny[..], &["shorter", "--for", "1h"]].concat());
    let ban = "denied by an operator until 2100-01-01T12:30:00.000000Z, label abuse: spam";
    for verb in [&["consume"][..], &["check"], &["consume", "--reserve"]] {
        let refused = command(&world, &[verb, &["send_message", "ada"]].concat());
        assert_eq!(text(&refused.stdout), format!("refused: 1 of \"send_message\" for ada; {ban}\n"), "{verb:?}");
        assert_eq!(refused.status.code(), Some(2));
    }
    let ran = command(&world, &["run", "send_message", "ada", "--", "true"]);
    assert_eq!(text(&ran.stderr), format!("refused: 1 of \"send_message\" for ada; {ban}\n"));
    for verb in ["reset", "credit", "debit"] {
        let changed = told(&[verb, "send_message", "ada"]);
        assert!(changed.ends_with(&format!("\nit stays refused: {ban}\n")), "{changed}");
    }
    let inspected = told(&["inspect", "send_message", "ada"]);
    assert!(inspected.contains(&format!("\ncost 1    {ban}\n")), "{inspected}");
    let removed = told(&["override", "remove", "send_message", "ada"]);
    assert!(removed.ends_with(&format!("; {ban}\n")), "{removed}");

    let every = "override set sign_ups --every-key --deny --label abuse --reason x";
    told(&every.split(' ').collect::<Vec<_>>());
    let refused = told(&["check", "sign_ups", "bob"]);
    assert!(
        refused.ends_with("; denied by an operator for every key until it is removed, label abuse: x\n"),
        "{refused}"
    );
    let all = told(&["reset", "sign_ups", "--all", "--yes"]);
    assert!(
        all.ends_with(
            "\nevery key stays refused: denied by an operator for every key until it is removed, \
                           label abuse: x\n"
        ),
        "{all}"
    );
}

#[tokio::test]
async fn a_pause_that_was_reported_is_not_called_a_deny() {
    let world = World::new().await;
    let pause = "select tollgate.pause('send_message', 'ada', lasting => '1 hour')";
    sqlx::raw_sql(pause).execute(&mut world.connect_as(OWNER).await).await.unwrap();
    for args in [&["check", "send_message", "ada"][..], &["inspect", "send_message", "ada"], &["override", "list"]] {
        let told = text(&command(&world, args).stdout);
        assert!(told.contains("paused, because trouble was reported, "), "{told}");
        assert!(!told.contains("denied") && !told.contains("operator"), "{told}");
    }
}

#[tokio::test]
async fn a_wrong_override_is_one_sentence() {
    let world = World::new().await;
    let (set, reason) = (["override", "set", "send_message"], ["--reason", "x"]);
    let fails = |args: &[&str]| command(&world, &[&set[..], args, &reason].concat());
    for usage in [&["ada"][..], &["--deny"], &["ada", "--deny", "--unlimited"], &["ada", "--per", "1m", "--deny"]] {
        assert_eq!(fails(usage).status.code(), Some(64), "{usage:?}");
    }
    let zero = failure(&fails(&["ada", "--rate", "0"]));
    assert!(zero.contains("the rate must be positive"), "{zero}");
    let over = failure(&fails(&["ada", "--deny", "--until", "2020-01-01T00:00:00Z"]));
    assert!(over.contains("it ends before it starts, or is over"), "{over}");
    for when in ["--until", "--from"] {
        let told = text(&fails(&["ada", "--deny", when, "friday 18:00"]).stderr);
        let form = format!("'friday 18:00' for '{when} <TIME>': write it as 2026-11-24T12:30:00Z");
        assert!(told.contains(&form), "{told}");
    }
    let unknown = failure(&command(&world, &["override", "set", "send_mesage", "ada", "--deny", "--reason", "x"]));
    assert!(unknown.contains("did you mean \"send_message\"?"), "{unknown}");
    let wallet = failure(&fails(&["ada", "--overdraft", "5"]));
    assert!(wallet.contains("limit \"send_message\" is no wallet (a wallet has an --overdraft"), "{wallet}");
    assert!(Overrides::read(&mut world.connect().await).await.unwrap().all().is_empty());
}

#[tokio::test]
async fn an_override_for_all_callers_is_that_for_every_key() {
    let world = World::new().await;
    let told = |args: &str| text(&command(&world, &args.split(' ').collect::<Vec<_>>()).stdout);
    assert!(
        told("override set send_message --global --deny --reason x").contains("send_message for every key: denied")
    );
    assert!(told("check send_message --global").starts_with("refused"));
    assert_eq!(told("override remove send_message --global"), "removed: send_message for every key\n");
}

#[tokio::test]
async fn who_names_no_label_of_an_override_is_told_those_that_there_are() {
    let world = World::new().await;
    for (whom, label) in [("ada", "abuse"), ("ada", "a plan"), ("--every-key", "outage")] {
        stdout(&command(
            &world,
            &["override", "set", "send_message", whom, "--unlimited", "--label", label, "--reason", "x"],
        ));
    }
    for (args, there) in [
        (&["ada"][..], "there is no override of limit \"send_message\" for ada (say --label: it has 'a plan', abuse)"),
        (&["ada", "--label", "spam"], "for ada, label spam (say --label: it has 'a plan', abuse)"),
        (&["--every-key"], "for every key (say --label: it has outage)"),
        (&["bob"], "for bob (`tollgate override list` says which there are)"),
    ] {
        let told = failure(&command(&world, &[&["override", "remove", "send_message"], args].concat()));
        assert!(told.contains(there), "{told}");
    }
}

#[tokio::test]
async fn a_deny_of_a_limit_that_nobody_defines_is_set_and_says_so() {
    let world = World::new().await;
    let args = ["override", "set", "send_mesage", "--every-key", "--deny", "--reason", "x"];
    let set = stdout(&run(tollgate().args(args).env("DATABASE_URL", world.command_url()).current_dir("/")));
    assert!(set.contains("defines this limit: mind its name"), "{set}");
    assert_eq!(Overrides::read(&mut world.connect().await).await.unwrap().all().len(), 1);
}

#[tokio::test]
async fn a_key_is_forgotten_in_all_limits_and_nobody_else() {
    let world = World::new().await;
    let limits = [
        Limit::token_bucket("send_message", 10, MINUTE).capacity(20),
        Limit::token_bucket("all_traffic", 2_000, MINUTE).ephemeral(),
        Limit::token_bucket("not_in_the_file", 10, MINUTE),
    ];
    let gate = world.gate();
    for (limit, key) in limits.iter().flat_map(|limit| [(limit, "ada"), (limit, "bob")]) {
        gate.consume(limit.key(key).once("job")).await.unwrap().granted().unwrap();
    }
    stdout(&command(&world, &["override", "set", "send_message", "ada", "--unlimited", "--reason", "x"]));
    let told = stdout(&command(&world, &["forget", "ada"]));
    assert!(told.starts_with("forgot ada: 2 rows, 2 calls, 1 override, of "), "{told}");
    assert_eq!(world.rows().await, 4);
    let calls: i64 = sqlx::query_scalar("select count(*) from tollgate.calls").fetch_one(&world.pool).await.unwrap();
    assert_eq!(calls, 4);
}

/// A limit that follows a service in trouble says so wherever an operator looks, and can be lifted.
#[tokio::test]
async fn a_slow_down_is_shown_and_lifted() {
    let world = World::new().await;
    let told = |args: &[&str]| stdout(&command(&world, args));
    let report = "select tollgate.slow_down('send_message', 'ada', percent => 49, recovers => '1 day',
                                            forgets => '0'),
                         tollgate.slow_down('send_message', 'bob', forgets => '1 hour')";
    sqlx::raw_sql(report).execute(&mut world.connect_as(OWNER).await).await.unwrap();
    told(&["consume", "send_message", "ada"]);
    let listed = told(&["override", "list"]);
    assert!(listed.starts_with("send_message for ada: slowed down to 49 % of its rate, ends in "), "{listed}");
    assert!(listed.contains("(label slowdown, tollgate_owner: trouble was reported)"), "{listed}");
    assert!(
        listed.contains("\nsend_message for bob: not slowed down, for few calls have failed, ends in "),
        "{listed}"
    );
    let inspected: Value = serde_json::from_str(&told(&["inspect", "send_message", "ada", "--json"])).unwrap();
    assert!((0.49..0.50).contains(&inspected["rate_share"].as_f64().unwrap()), "{inspected}");
    let top = told(&["top", "--once", "--interval", "100ms"]);
    assert!(top.contains("ada  at 49 %"), "{top}");
    let reserved = ["override", "set", "send_message", "ada", "--deny", "--label", "pause", "--reason", "x"];
    let reserved = failure(&command(&world, &reserved));
    assert!(reserved.contains("this label belongs to slow_down and pause"), "{reserved}");
    assert!(told(&["override", "remove", "send_message", "ada", "--label", "slowdown"]).starts_with("removed"));
    assert!(told(&["override", "remove", "send_message", "bob", "--label", "slowdown"]).starts_with("removed"));
    assert_eq!(told(&["override", "list"]), "no overrides\n");
}
