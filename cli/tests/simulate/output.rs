//! The table, the picture, the JSON document, and the errors.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use serde_json::{Value, json};

use crate::{Dir, command, piped, run, stdout, told};

#[test]
fn a_preset_is_told_in_a_table() {
    assert_eq!(stdout(&["--preset", "dashboard"]), include_str!("dashboard.txt"));
}

#[test]
fn callers_have_a_line_each_where_there_are_several() {
    let text = stdout(&["--preset", "noisy_neighbour"]);
    let caller = text.lines().find(|line| line.starts_with("  noisy ")).unwrap();
    let figures: Vec<_> = caller.split_whitespace().collect();
    assert_eq!(figures, ["noisy", "12000", "1219", "10781", "89.8", "%"]);
}

#[test]
fn json_holds_all_that_is_drawn() {
    let document: Value = serde_json::from_str(&stdout(&["--preset", "dashboard", "--seed", "3", "--json"])).unwrap();
    assert_eq!(document["calls"], json!(["burst size=10 every=2s for=10s key=dashboard seed=3"]));
    let mut trial = document["trials"][1].clone();
    let mut series = trial["series"].take();
    assert_eq!(
        trial,
        json!({
            "label": "capacity_5",
            "limits": ["capacity_5: token bucket, 5 each 1s"], "drawn": "dashboard",
            "calls": 50, "granted": 25, "refused": 25, "impossible": 0,
            "worst_retry_after_us": 200_000, "waited": 0, "worst_wait_us": 0,
            "callers": [{ "key": "dashboard", "calls": 50, "granted": 25 }],
            "series": null,
        })
    );
    let bins: Vec<Value> = serde_json::from_value(series["bins"].take()).unwrap();
    assert_eq!(series, json!({ "start": "2025-01-01T00:00:00Z", "width_us": 64_000, "bins": null }));
    assert_eq!(bins.len(), 157, "ten seconds");
    assert_eq!(bins[0], json!({ "granted": 5, "refused": 5, "levels": [{ "low": 0, "high": 5 }] }));
    assert_eq!(bins[1], json!({ "granted": 0, "refused": 0, "levels": [{ "low": 0.32, "high": 0.64 }] }));
    assert_eq!(bins[156]["levels"], json!([{ "low": 5, "high": 5 }]), "up to the end, where there is no call");
}

#[test]
fn the_picture_is_a_document_that_shows_the_series() {
    let dir = Dir::new("picture");
    let file = dir.path("picture.svg");
    stdout(&["--preset", "dashboard", "--svg", &file]);
    let text = std::fs::read_to_string(&file).unwrap();
    let document = roxmltree::Document::parse(&text).unwrap();
    let texts: Vec<_> =
        document.descendants().filter(roxmltree::Node::is_text).filter_map(|node| node.text()).map(str::trim).collect();
    for label in ["capacity_10", "capacity_5", "capacity_5: token bucket, 5 each 1s", "0 s", "10 s"] {
        assert!(texts.contains(&label), "{label:?} is not among {texts:?}");
    }
    let bars = |color: &'static str| {
        let rectangles = document.descendants().filter(|node| node.has_tag_name("rect"));
        rectangles.filter(|bar| bar.attribute("fill") == Some(color)).collect::<Vec<_>>()
    };
    let (granted, refused) = (bars("#009E73"), bars("#D55E00"));
    assert_eq!((granted.len(), refused.len()), (10, 5), "one for each burst in which a call was granted, or refused");
    let height = |bar: &roxmltree::Node<'_, '_>| bar.attribute("height").unwrap().parse::<u32>().unwrap();
    for (granted, refused) in granted[5..].iter().zip(&refused) {
        assert!(height(granted).abs_diff(height(refused)) <= 1, "half of each burst");
    }
    let lines = document.descendants().filter(|node| node.attribute("stroke") == Some("#0072B2"));
    let points: Vec<_> = lines.map(|line| line.attribute("points").unwrap().split_whitespace().count()).collect();
    assert_eq!(points, [2 * 157; 2], "the most and the least of each bin, for each limit");
}

#[test]
fn names_that_are_markup_elsewhere_are_only_names() {
    let dir = Dir::new("markup");
    let file = dir.path("picture.svg");
    let limit = r#""<b>&'\u001b[2J" = { kind = "token_bucket", rate = 1, per = "1s" }"#;
    let text = stdout(&["--preset", "dashboard", "--limit", limit, "--svg", &file]);
    assert!(!text.contains('\u{1b}'), "{text:?}");
    let text = std::fs::read_to_string(&file).unwrap();
    let document = roxmltree::Document::parse(&text).unwrap();
    let name = "<b>&'\\u{1b}[2J";
    assert!(document.descendants().any(|node| node.text().is_some_and(|text| text.trim() == name)), "{text}");
}

#[test]
fn what_steers_a_terminal_or_a_reader_is_escaped_and_letters_of_any_script_are_not() {
    let told = |key: &str| {
        let calls = format!("time,key\n1,\"{key}\"\n1,other\n");
        told(piped(&["--limit", ONE, "--trace", "-"], calls.as_bytes()))
    };
    let hidden = "\u{1b}\u{9b}\u{7f}\n\u{202e}\u{2066}\u{200b}\u{200f}\u{ad}\u{feff}\u{e0041}\u{a0}\u{2028}";
    let escaped: String = hidden.chars().map(|c| c.escape_unicode().to_string()).collect();
    let text = told(&format!("a{hidden}b"));
    assert!(text.contains(&format!("\n  a{escaped}b ")), "{text}");
    let text = told("it's a/b zoë e\u{301} हिन्दी 名前 שלום 🦀");
    assert!(text.contains("\n  it's a/b zoë e\u{301} हिन्दी 名前 שלום 🦀 "), "{text}");
}

#[test]
fn spans_have_two_units_and_are_never_too_short() {
    for (micros, text) in [
        (1, "1ms"),
        (59_949_000, "59s 949ms"),
        (59_999_001, "1m"),
        (3_600_000_001, "1h 1m"),
        (3_661_000_000, "1h 2m"),
        (90_061_000_000_u64, "1day 2h"),
    ] {
        let limit = format!("one = {{ kind = \"token_bucket\", rate = 1, per = \"{micros}us\" }}");
        let told = stdout(&["--limit", &limit, "--traffic", "burst size=2 every=1h for=1h"]);
        let waits = format!("  50.0 %  {text:>11}  ");
        assert!(told.contains(&waits), "{waits:?} is not in {told}");
    }
}

/// The guides' pictures are what their commands draw. After a change of one, run its command again.
#[test]
fn the_pictures_in_the_guides_are_not_stale() {
    let [numbers, fairness] = [include_str!("../../../docs/numbers.md"), include_str!("../../../docs/fairness.md")];
    let output = include_str!("dashboard.txt");
    assert!(numbers.contains(&format!("--svg docs/simulate.svg\n{output}")), "the command prints that");
    for (guide, preset, name, picture) in [
        (numbers, "dashboard", "simulate.svg", include_str!("../../../docs/simulate.svg")),
        (fairness, "fair_shares", "fairness.svg", include_str!("../../../docs/fairness.svg")),
    ] {
        let dir = Dir::new(preset);
        let file = dir.path(name);
        assert!(guide.contains(&format!("$ tollgate simulate --preset {preset} --svg docs/{name}\n")), "{name}");
        assert!(guide.contains(&format!("]({name})")), "the picture {name} is there");
        stdout(&["--preset", preset, "--svg", &file]);
        assert!(std::fs::read_to_string(&file).unwrap() == picture, "run the command of {name} again");
    }
}

#[test]
fn what_is_wrong_is_one_sentence() {
    let dir = Dir::new("wrong");
    let (missing, wrong_file) = (dir.path("missing.csv"), dir.path("no/such/folder.svg"));
    let traffic = ["--traffic", "constant rate=1 per=1s"];
    let faults = [
        (vec!["--limit", ONE, "--trace", &missing], format!("could not open {missing}: No such file or directory")),
        ([&["--limit", ONE, "--svg", &wrong_file][..], &traffic].concat(), format!("could not draw {wrong_file}: ")),
        (
            [&["--limit", ONE, "--limit", TWO][..], &traffic].concat(),
            "the call for limit \"same\" is wrong: the limit is asked under two definitions in one call (use one)"
                .to_owned(),
        ),
        (
            [&["--limit", "same = { kind = \"token_bucket\", rat = 1, per = \"1s\" }"][..], &traffic].concat(),
            "unknown field `rat`, expected one of `name`, `kind`, `rate`".to_owned(),
        ),
        (
            [&["--limit", ONE, "--work", "1s", "--used=-1"][..], &traffic].concat(),
            "a number of tokens is negative".to_owned(),
        ),
        ([&["--limit", WALLET, "--funds=-1"][..], &traffic].concat(), "a number of tokens is negative".to_owned()),
        (
            [&["--limits", EXAMPLE, "--limit", "send_mesage"][..], &traffic].concat(),
            "did you mean \"send_message\"?".to_owned(),
        ),
    ];
    for (args, message) in faults {
        let output = run(&args);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), output.stdout, error.lines().count()), (Some(1), Vec::new(), 1), "{error}");
        assert!(error.starts_with("error: ") && error.contains(&message), "{error}");
    }
}

#[test]
fn wrong_usage_is_told_from_a_refusal_and_says_what_is_meant() {
    let usages = [
        (vec!["--preset", "dashbord"], "a similar value exists: 'dashboard'"),
        (vec!["--traffic", "constant rate=1 per=1s"], "--limit <NAME|LINE>"),
        (vec!["--limit", ONE], "--traffic <PATTERN>"),
        (vec!["--limit", ONE, "--trace", "-", "--traffic", "constant rate=1 per=1s"], "cannot be used with"),
        (vec!["--seed", "some"], "invalid value 'some' for '--seed <N>'"),
        (vec!["--preset", "dashboard", "--used", "1"], "--work <SPAN>"),
        (vec!["--preset", "dashboard", "--dies", "5"], "--work <SPAN>"),
        (vec!["--preset", "dashboard", "--work", "1s", "--dies", "0"], "0 is not in 1.."),
        (vec!["--limit", ONE, "--in-turn", "--reserve", "--traffic", "constant rate=1 per=1s"], "cannot be used with"),
        (vec!["--preset", "dashboard", "--lapses-after", "0s"], "1us is the least"),
    ];
    for (args, message) in usages {
        let output = run(&args);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(64), "{args:?}");
        assert!(error.contains(message), "{error}");
    }
}

#[test]
fn a_reader_that_leaves_early_is_no_error() {
    let mut command = command(&["--preset", "noisy_neighbour", "--json"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut reader = BufReader::with_capacity(64, child.stdout.take().unwrap());
    // The pipe closes after these bytes, long before the document would fit into its buffer.
    assert!(reader.fill_buf().unwrap().starts_with(b"{"));
    drop(reader);
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), String::from_utf8(output.stderr).unwrap().as_str()), (Some(0), ""));
}

const ONE: &str = r#"same = { kind = "token_bucket", rate = 1, per = "1s" }"#;
const WALLET: &str = r#"credits = { kind = "wallet" }"#;
const TWO: &str = r#"same = { kind = "token_bucket", rate = 2, per = "1s" }"#;
const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/tollgate.toml");
