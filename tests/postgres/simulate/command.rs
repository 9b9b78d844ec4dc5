//! `tollgate simulate`, as people run it.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

#[test]
fn a_preset_is_told_in_plots_words_and_figures() {
    assert_eq!(stdout(&["--preset", "dashboard"]), DASHBOARD);
}

#[test]
fn without_plots_there_are_words_and_figures() {
    let text = stdout(&["--preset", "retries", "--no-plot"]);
    assert!(text.starts_with("constant rate=12 per=1s for=1m\n\nnever\nAllows a burst of 50"), "{text}");
    assert!(
        text.ends_with(
            "
  calls granted refused  share   tries      told  waited   99 % in     worst
    720     649      71  9.9 %     720  16.667ms       0         -         -  never
    720     720       0  0.0 %   15985     100ms     425    6.968s    7.084s  when told
    720     669      51  7.1 %    1358  16.667ms      20    8.004s       10s  each second
"
        ),
        "{text}"
    );
}

#[test]
fn every_preset_is_listed_and_runs() {
    let listed = stdout(&["--list-presets"]);
    assert_eq!(listed.lines().count(), 8);
    for line in listed.lines() {
        let name = line.split(' ').next().unwrap();
        let text = stdout(&["--preset", name]);
        assert!(text.contains("Allows ") && !text.contains('\u{1b}'), "{text}");
        assert!(
            text.lines().take_while(|line| !line.contains("granted refused")).all(|line| line.chars().count() <= 80)
        );
    }
}

#[test]
fn limits_of_a_file_are_tried_by_name() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/tollgate.toml");
    let traffic = ["--traffic", "burst size=30 every=1m for=30s", "--no-plot", "--limits", file];
    let each = said(&[&["--limit", "send_message"][..], &traffic].concat());
    assert!(each.contains("Allows a burst of 20 and 10 a minute for each key: 10 of 30 calls"), "{each}");
    let global = said(&[&["--limit", "send_message global"][..], &traffic].concat());
    assert!(global.contains("a burst of 20 and 10 a minute for all together"), "{global}");
    let output = run(&[&["--limit", "send_mesage"][..], &traffic].concat());
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("did you mean \"send_message\"?"), "{output:?}");
}

/// Shares that divide: what is drawn of four shards is what is drawn of one row.
#[test]
fn a_limit_with_shards_is_drawn_as_one_and_named_with_them() {
    let drawn = |limit: &str| stdout(&["--limit", limit, "--traffic", "burst size=20 every=2s for=10s key=dashboard"]);
    let one = drawn("token_bucket rate=8 per=1s capacity=16");
    let four = drawn("token_bucket rate=8 per=1s capacity=16 shards=4");
    assert!(one.contains("       16 ┤") && one.contains("capacity 16\n"), "{one}");
    assert_eq!(four, one.replace("capacity 16", "capacity 16, 4 shards"));
}

#[test]
fn limits_are_asked_together_or_compared() {
    let limits = ["--limit", "token_bucket rate=2 per=1s", "--limit", "token_bucket rate=3 per=1s global name=total"];
    let traffic = ["--traffic", "burst size=5 every=1m clients=2", "--no-plot"];
    let together = said(&[&limits[..], &traffic].concat());
    assert!(together.contains(" token bucket 2 per 1s and token bucket 3 per 1s, for all together "), "{together}");
    assert!(together.contains("7 of 10 calls (70.0 %) were refused"), "{together}");
    assert!(together.contains(" Granted: client-1 2 of 5, client-2 1 of 5. "), "{together}");
    let compared = said(&[&limits[..], &traffic, &["--compare"]].concat());
    assert!(compared.contains("6 of 10 calls (60.0 %) were refused"), "{compared}");
    assert!(compared.contains("7 of 10 calls (70.0 %) were refused"), "{compared}");
    let on_preset = said(&["--preset", "flood", "--limit", "token_bucket rate=60 per=1s capacity=60", "--no-plot"]);
    assert!(on_preset.contains("none of 650 calls was refused"), "own limits on a preset's traffic: {on_preset}");
}

#[test]
fn clients_that_reserve_or_come_back_wait() {
    let limit =
        ["--limit", "token_bucket rate=1 per=1s max_reserved=2", "--traffic", "burst size=5 every=1m", "--no-plot"];
    let reserved = said(&[&limit[..], &["--reserve"]].concat());
    assert!(reserved.contains("2 of the 3 granted waited, 2s at worst"), "{reserved}");
    let told = said(&[&limit[..], &["--retry", "when-told"]].concat());
    assert!(told.contains("4 of the 5 granted waited, 4s at worst; the limits were asked 15 times"), "{told}");
    let impatient = said(&[&limit[..], &["--retry", "100ms", "--patience", "2s"]].concat());
    assert!(impatient.contains("2 of 5 calls (40.0 %) were refused"), "{impatient}");
}

#[test]
fn a_trace_is_read_from_a_file_or_from_standard_input() {
    let dir = Dir::new("trace");
    let (csv, ndjson) =
        ("1,ada\n1,ada\n1,bob\n3,ada\n", "{\"time\":1,\"key\":\"ada\"}\n{\"time\":1,\"key\":\"ada\"}\n");
    let limit = ["--limit", "token_bucket rate=1 per=1s", "--json", "--trace"];
    let counts = |document: Value| (document["scenes"][0]["calls"].clone(), document["scenes"][0]["granted"].clone());
    let file = dir.file("calls.csv", csv);
    assert_eq!(counts(json_of(&[&limit[..], &[&file]].concat())), (json!(4), json!(3)));
    let file = dir.file("calls.ndjson", ndjson);
    assert_eq!(counts(json_of(&[&limit[..], &[&file]].concat())), (json!(2), json!(1)));
    assert_eq!(counts(parsed(&piped(&[&limit[..], &["-"]].concat(), csv))), (json!(4), json!(3)));
    assert_eq!(
        counts(parsed(&piped(&[&limit[..], &["-", "--format", "ndjson"]].concat(), ndjson))),
        (json!(2), json!(1))
    );
    let compared = [&limit[..], &["-", "--compare", "--limit", "token_bucket rate=9 per=1s"]].concat();
    let document = parsed(&piped(&compared, csv));
    assert_eq!(document["scenes"][1]["granted"], json!(4), "one reading serves both");
}

#[test]
fn json_holds_all_that_is_plotted() {
    let document = json_of(&["--preset", "dashboard", "--seed", "3", "--json"]);
    assert_eq!(
        document["calls"]["traffic"],
        json!({ "patterns": ["burst size=10 every=2s for=10s key=dashboard"], "seed": 3 })
    );
    let scene = &document["scenes"][1];
    assert_eq!((&scene["label"], &scene["refused"]), (&json!("capacity 5"), &json!(25)));
    assert!(scene["sentence"].as_str().unwrap().starts_with("Allows a burst of 5"));
    assert_eq!(scene["series"]["bins"].as_array().unwrap().len(), 320);
    assert_eq!(scene["series"]["bins"][0], json!({ "granted": 5, "refused": 5, "levels": [{ "low": 0, "high": 5 }] }));
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
    for label in
        ["capacity 10", "capacity 5", "tokens: dashboard: token bucket 5 per 1s, capacity 10", "0s", "5s", "10s"]
    {
        assert!(texts.contains(&label), "{label:?} is not among {texts:?}");
    }
    let shapes = |name: &'static str| document.descendants().filter(move |node| node.has_tag_name(name));
    assert_eq!(shapes("polygon").count(), 2, "a band of tokens for each scene");
    let points = shapes("polygon").next().unwrap().attribute("points").unwrap().split_whitespace().count();
    assert_eq!(points, 2 * 320, "the least and the most of each bin");
    let bars = |color: &'static str| shapes("rect").filter(move |node| node.attribute("fill") == Some(color));
    let heights =
        |color| bars(color).map(|bar| bar.attribute("height").unwrap().parse::<u32>().unwrap()).collect::<Vec<_>>();
    let (granted, refused) = (heights("#009E73"), heights("#D55E00"));
    assert_eq!(
        (granted.len(), refused.len()),
        (10, 5),
        "a bar for each burst in which somebody was granted, or refused"
    );
    for (granted, refused) in granted[5..].iter().zip(&refused) {
        assert!(granted.abs_diff(*refused) <= 1, "half of each burst: {granted}, {refused}");
    }
}

#[test]
fn names_that_are_markup_elsewhere_are_only_names() {
    let dir = Dir::new("markup");
    let file = dir.path("picture.svg");
    stdout(&["--preset", "flood", "--limit", "token_bucket rate=1 per=1s name=<b>&\"'\u{1b}[2J", "--svg", &file]);
    let text = std::fs::read_to_string(&file).unwrap();
    let document = roxmltree::Document::parse(&text).unwrap();
    let name = "tokens: <b>&\"'\u{fffd}[2J: token bucket 1 per 1s";
    assert!(document.descendants().any(|node| node.text().is_some_and(|text| text.trim() == name)), "{text}");
}

/// README's picture is what its command draws. After a change of it, run that command again.
#[test]
fn the_picture_in_the_readme_is_not_stale() {
    let dir = Dir::new("readme");
    let file = dir.path("simulate.svg");
    let readme = include_str!("../../../README.md");
    assert!(readme.contains("tollgate simulate --preset dashboard --svg docs/simulate.svg"), "the command is named");
    assert!(readme.contains(DASHBOARD), "the output is what it prints");
    stdout(&["--preset", "dashboard", "--svg", &file]);
    let drawn = std::fs::read_to_string(&file).unwrap();
    assert!(
        drawn == include_str!("../../../docs/simulate.svg"),
        "run `tollgate simulate --preset dashboard --svg docs/simulate.svg`"
    );
}

#[test]
fn what_is_wrong_is_one_sentence() {
    let dir = Dir::new("wrong");
    let traffic = ["--traffic", "constant rate=1 per=1s"];
    let limit = ["--limit", "token_bucket rate=1 per=1s"];
    let csv = dir.file("wrong.csv", "1,ada\nyesterday,ada\n");
    let missing = dir.path("missing.csv");
    let wrong_file = dir.path("no/such/folder.svg");
    let faults = [
        (traffic.to_vec(), "error: no limit is given (pass --limit 'token_bucket rate=10 per=1m capacity=20', or --preset, see --list-presets)\n".to_owned()),
        (limit.to_vec(), "error: no traffic is given (pass --traffic 'poisson rate=12 per=1s for=5m', --trace FILE, or --preset, see --list-presets)\n".to_owned()),
        ([&limit[..], &["--trace", &csv]].concat(), format!("error: {csv}: line 2: \"yesterday\" is no time (use RFC 3339, as in 2025-01-01T00:00:00Z, or seconds since 1970)\n")),
        ([&limit[..], &["--trace", &missing]].concat(), format!("error: could not open {missing}: No such file or directory (os error 2)\n")),
        ([&limit[..], &traffic, &["--svg", &wrong_file]].concat(), format!("error: could not draw {wrong_file}: No such file or directory (os error 2)\n")),
        ([&traffic[..], &["--limit", "token_bucket name=a rate=1 per=1s", "--limit", "token_bucket name=a rate=2 per=1s"]].concat(), "error: limit \"a\" is asked under two definitions in one call (use one)\n".to_owned()),
    ];
    for (args, message) in faults {
        let output = run(&args);
        assert_eq!((output.status.code(), String::from_utf8(output.stderr).unwrap()), (Some(1), message));
        assert_eq!(output.stdout, b"", "{args:?}");
    }
}

#[test]
fn wrong_usage_is_told_from_a_refusal_and_says_what_is_meant() {
    let usages = [
        (vec!["--preset", "flod"], "there is no preset \"flod\" (there are dashboard, flood, "),
        (vec!["--limit", "token_bucket rate=1 per=1s capcity=2"], "unknown field `capcity`, expected one of"),
        (vec!["--traffic", "steady rate=1 per=1s"], "\"steady\" is no kind of traffic"),
        (vec!["--retry", "soon"], "invalid value 'soon' for '--retry <WHEN>'"),
        (vec!["--watch", ""], "a key is empty"),
        (vec!["--list-presets", "--json"], "cannot be used with"),
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
    let mut child =
        command(&["--preset", "day", "--json"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut reader = BufReader::with_capacity(64, child.stdout.take().unwrap());
    // The pipe closes after these bytes, long before the document would fit into its buffer.
    assert_eq!(&reader.fill_buf().unwrap()[..9], b"{\"calls\":");
    drop(reader);
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), String::from_utf8(output.stderr).unwrap().as_str()), (Some(0), ""));
}

/// A directory of its own, gone with the value.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("simulate-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    fn file(&self, name: &str, text: &str) -> String {
        std::fs::write(self.0.join(name), text).unwrap();
        self.path(name)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.arg("simulate").args(args).stdin(Stdio::null());
    command
}

fn run(args: &[&str]) -> Output {
    command(args).output().unwrap()
}

fn stdout(args: &[&str]) -> String {
    let output = run(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// What it prints, in one line.
fn said(args: &[&str]) -> String {
    stdout(args).split_whitespace().collect::<Vec<_>>().join(" ")
}

fn json_of(args: &[&str]) -> Value {
    parsed(&stdout(args))
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

/// What the command prints that reads this text.
fn piped(args: &[&str], text: &str) -> String {
    let mut child = command(args).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

const DASHBOARD: &str = include_str!("dashboard.txt");
