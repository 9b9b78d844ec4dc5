//! `tollgate suggest`: its answers, the table, the picture, and the line for the limits file.

use std::fmt::Write as _;

use serde_json::{Value, json};
use tollgate::Limits;
use tollgate_simulation::{Arrivals, Traffic};

use crate::{Dir, fed, told, verb};

/// The guide's example and its picture are what the command says and draws. After a change run this test with
/// `UPDATE_SNAPSHOTS=1`.
#[test]
fn the_example_in_the_guide_is_not_stale() {
    let dir = Dir::new("suggest");
    let (trace, picture) = (dir.path("calls.csv"), dir.path("suggest.svg"));
    std::fs::write(&trace, calls(&TRAFFIC)).unwrap();
    let output = verb("suggest", &["--trace", "calls.csv", "--name", "api", "--svg", "suggest.svg"])
        .current_dir(&dir.0)
        .output();
    let (text, drawn) = (told(output.unwrap()), std::fs::read_to_string(picture).unwrap());
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/suggest.svg"), &drawn).unwrap();
        std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/simulate/suggest.txt"), &text).unwrap();
    }
    assert_eq!(text, include_str!("suggest.txt"));
    let guide = include_str!("../../../docs/numbers.md");
    let command = "$ tollgate suggest --trace calls.csv --name api --svg suggest.svg\n";
    assert!(guide.contains(&format!("{command}{text}```")), "the command is there, and what it prints");
    assert!(guide.contains("](suggest.svg)"), "the picture is there");
    assert!(drawn == include_str!("../../../docs/suggest.svg"), "the picture is what it draws");
}

#[test]
fn the_line_is_one_that_a_limits_file_takes() {
    let names = ["api", "per-user_7", "two words", "a \"quoted\" \\ name", "zoë|1", "\u{7f}\u{1}\n", "[x]", "a.b"];
    for (kind, name) in ["token_bucket", "fixed_window", "sliding_window"].into_iter().cycle().zip(names) {
        let found = document(&["--kind", kind, "--name", name, "--per", "1h 30m"], CALLS);
        let limits = Limits::from_toml(found["toml"].as_str().unwrap()).unwrap();
        let [limit] = &limits.iter().collect::<Vec<_>>()[..] else { panic!("one limit") };
        assert_eq!(limit.name(), name);
        assert_eq!(serde_json::to_value(limit).unwrap(), found["limit"], "{found}");
    }
}

#[test]
fn json_holds_all_that_is_told() {
    let found = document(&["--refuse-at-most", "10%", "--per", "10s"], CALLS);
    assert_eq!(
        found,
        json!({
            "trace": "standard input", "format": "csv", "skipped": 0,
            "calls": 11, "keys": 2, "span_us": 20_000_000, "refuse_at_most": "10 %",
            "allowed_calls": 1, "allowed_keys": 0,
            "choices": [
                { "rate": 1, "capacity": 7, "refused_calls": 0, "refused_keys": 0 },
                { "rate": 2, "capacity": 5, "refused_calls": 0, "refused_keys": 0 },
            ],
            "chosen": 1,
            "limit": {
                "name": "suggested", "kind": "token_bucket", "rate": 2, "period": "10s", "capacity": 5, "start": null,
                "resolution": null, "max_reserved": 0, "shards": 1, "storage": "durable",
            },
            "toml": "suggested = { kind = \"token_bucket\", rate = 2, per = \"10s\", capacity = 5 }",
            "caveats": [
                "10 % of 2 keys is less than one, so none may be refused: it takes 10 keys to tell",
                "the bucket takes 25s to fill, and the trace spans 20s: a longer one may need a higher rate",
            ],
        })
    );
    let global = document(&["--refuse-at-most", "50%", "--per", "10s", "--global"], CALLS);
    assert_eq!((&global["allowed_keys"], &global["choices"][0]["refused_keys"]), (&Value::Null, &Value::Null));
}

#[test]
fn what_the_trace_does_not_tell_is_said_with_the_figure() {
    let text = told(fed(verb("suggest", &["--trace", "-"]), CALLS.as_bytes()));
    for line in [
        "caution: 0.1 % of 11 calls is less than one, so none may be refused: it takes 1000 calls to tell",
        "caution: 0.1 % of 2 keys is less than one, so none may be refused: it takes 1000 keys to tell",
        "caution: the trace spans 20s, less than the period of 1m: it tells nothing of a second period",
    ] {
        assert!(text.lines().any(|told| told == line), "{line:?} is not in {text}");
    }
}

#[test]
fn the_picture_marks_the_answer_on_each_line() {
    let dir = Dir::new("suggest-picture");
    let file = dir.path("choices.svg");
    for (args, lines) in [(&["--kind", "token_bucket"][..], 4), (&["--kind", "fixed_window"], 2), (&["--global"], 3)] {
        told(fed(verb("suggest", &[args, &["--trace", "-", "--svg", &file]].concat()), CALLS.as_bytes()));
        let text = std::fs::read_to_string(&file).unwrap();
        let document = roxmltree::Document::parse(&text).unwrap();
        assert_eq!(document.descendants().filter(|node| node.has_tag_name("circle")).count(), lines, "{args:?}");
    }
}

#[test]
fn wrong_usage_and_what_cannot_be_written_are_told() {
    let dir = Dir::new("suggest-wrong");
    let wrong_file = dir.path("no/such/folder.svg");
    let faults: [(&[&str], i32, &str); 7] = [
        (&["--refuse-at-most", "0.1"], 64, "it has no per cent sign (write 0.1%)"),
        (&["--refuse-at-most", "101%"], 64, "a share is from 0% to 100%"),
        (&["--per", "1month"], 64, "is longer in some months and years than in others"),
        (&["--kind", "wallet"], 64, "invalid value 'wallet'"),
        (&["--per", "0s"], 1, "limit \"suggested\": the period is zero"),
        (&["--name", ""], 1, "the name is empty"),
        (&["--svg", &wrong_file], 1, "could not draw "),
    ];
    for (args, code, message) in faults {
        let output = fed(verb("suggest", &[args, &["--trace", "-"]].concat()), CALLS.as_bytes());
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{args:?}: {error}");
        assert!(error.contains(message), "{error}");
    }
    let output = verb("suggest", &["--trace", &dir.path("missing.csv")]).output().unwrap();
    assert!(String::from_utf8(output.stderr).unwrap().contains("missing.csv: No such file or directory"));
}

fn document(args: &[&str], text: &str) -> Value {
    let output = fed(verb("suggest", &[args, &["--trace", "-", "--json"]].concat()), text.as_bytes());
    serde_json::from_str(&told(output)).unwrap()
}

/// Made-up traffic as a recorded trace.
fn calls(traffic: &[&str]) -> String {
    let traffic: Vec<Traffic> = traffic.iter().map(|text| text.parse().unwrap()).collect();
    Arrivals::new(&traffic, 1).fold("time,key\n".to_owned(), |mut text, call| {
        let micros = call.at.micros();
        writeln!(text, "{}.{:06},{}", micros / 1_000_000, micros % 1_000_000, call.key).unwrap();
        text
    })
}

/// Readers who open a page now and then, editors who work for some seconds, a script, and a crawler that comes once.
const TRAFFIC: [&str; 6] = [
    "burst size=4 every=15m for=1h clients=900 key=reader",
    "constant rate=1 per=1s for=15s from=10m clients=90 key=editor",
    "constant rate=1 per=1s for=10s from=40m clients=90 key=editor",
    "poisson rate=3 per=1m for=1h clients=10 key=client",
    "constant rate=10 per=1m for=1h key=script",
    "burst size=20 every=1h key=crawler",
];

/// Five calls at once, two after ten and two after twenty seconds; and another key.
const CALLS: &str = "time,key\n0,a\n0,a\n0,a\n0,a\n0,a\n10,a\n10,a\n20,a\n20,a\n0,b\n20,b\n";
