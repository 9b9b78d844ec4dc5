//! Limits from files: the limits that are read, and the errors of a file that is wrong.

use std::time::Duration;

use tollgate::{Limit, LimitFault, Limits, LimitsError, MINUTE, SECOND, Tokens};

#[test]
fn a_file_says_what_a_constant_says() {
    let limits = Limits::from_toml(
        "
        [token]
        kind = 'token_bucket'
        rate = 0.5
        per = '1m 30s'
        capacity = '20.25'
        max_reserved = 'unbounded'

        [window]
        kind = 'fixed_window'
        rate = 1_000
        period = '1d'
        start = '22h'

        ['with space']
        kind = 'stepped_bucket'
        rate = 5
        per = '10s'
        capacity = 20
        storage = 'ephemeral'

        [slides]
        kind = 'sliding_window'
        rate = 100
        per = '1m'
        resolution = 10
        ",
    )
    .unwrap();
    let half = Limit::token_bucket("token", 1, Duration::from_secs(90)).unbounded_reservations();
    let tokens = |text: &str| text.parse::<Tokens>().unwrap();
    assert_eq!(limits.get("token").unwrap(), &half.rate_and_capacity(tokens("0.5"), tokens("20.25")));
    let window = Limit::fixed_window("window", 1_000, MINUTE * 60 * 24).start(MINUTE * 60 * 22);
    assert_eq!(limits.get("window").unwrap(), &window);
    let stepped = Limit::stepped_bucket("with space", 5, SECOND * 10).capacity(20).ephemeral();
    assert_eq!(limits.get("with space").unwrap(), &stepped);
    let slides = Limit::sliding_window("slides", 100, MINUTE).resolution(10);
    assert_eq!(limits.get("slides").unwrap(), &slides);
    assert_eq!(
        limits.iter().map(|limit| limit.name()).collect::<Vec<_>>(),
        ["slides", "token", "window", "with space"]
    );
}

#[test]
fn json_says_the_same() {
    let json = r#"{ "mail": { "kind": "token_bucket", "rate": 10, "per": "1m", "capacity": null } }"#;
    let toml = "[mail]\nkind = 'token_bucket'\nrate = 10\nper = '1m'";
    assert_eq!(Limits::from_json(json).unwrap(), Limits::from_toml(toml).unwrap());
}

#[test]
fn every_fault_is_reported_with_its_place_and_what_was_meant() {
    let text = "\
[uploads]
kind = 'steped_bucket'
rate = 0
per = 10
capcity = 20

[mail]
kind = 'token_bucket'
rate = -1
per = '0s'
capacity = -2
start = '1h'
max_reserved = 5
storage = 'ephemeral'
storge = 'durable'

[empty]
";
    let expected = r#"
2:8: limit "uploads": kind: unknown variant `steped_bucket`, expected one of `concurrency`, `fixed_window`, `sliding_window`, `stepped_bucket`, `token_bucket`, `wallet` (did you mean "stepped_bucket"?)
3:8: limit "uploads": the rate must be positive
4:7: limit "uploads": per: invalid type: integer `10`, expected a string (did you mean "10s"?)
5:1: limit "uploads": unknown field "capcity" (did you mean "capacity"?)
9:8: limit "mail": the rate must be positive
10:7: limit "mail": the period is zero
11:12: limit "mail": the capacity is negative
12:9: limit "mail": a token bucket refills all the time and has no start (use a fixed window)
14:11: limit "mail": an ephemeral limit takes no reservations: a crash would forget them (drop one of the two)
15:1: limit "mail": unknown field "storge" (did you mean "storage"?)
17:2: limit "empty": the field "kind" is missing (add kind = "token_bucket", "fixed_window", "stepped_bucket", "sliding_window", "concurrency" or "wallet")
17:2: limit "empty": the field "rate" is missing (add a number of tokens, such as rate = 10)
17:2: limit "empty": the field "per" is missing (add a span of time with its unit, such as per = "1h 30m")"#;
    assert_eq!(format!("\n{}", toml_faults(text)), expected);
}

#[test]
fn a_fault_in_json_has_its_place_too() {
    let text = r#"{
  "mail": { "kind": "token_bucket", "rte": 1,
    "rate": true, "per": ["1m"] },
  "x": 3, "mail": {}
}"#;
    let told = faults(Limits::from_json(text));
    for line in [
        r#"2:37: limit "mail": unknown field "rte" (did you mean "rate"?)"#,
        r#"3:13: limit "mail": rate: invalid type: boolean `true`, expected a number of tokens, or a decimal string"#,
        r#"3:26: limit "mail": per: it is an array"#,
        r#"4:3: "x" is not a table with the fields of a limit"#,
        r#"4:11: "mail" occurs twice"#,
    ] {
        assert!(told.contains(line), "{line} is not in\n{told}");
    }
    assert!(
        faults(Limits::from_json("{ \"mail\": \n ? }")).starts_with("2:2: expected value"),
        "a syntax error has one"
    );
}

#[test]
fn all_syntax_errors_are_reported() {
    let told = toml_faults("[mail\nrate = 1\nper = = 2\n");
    assert!(told.lines().count() >= 2 && told.starts_with("1:"), "{told}");
}

/// Only a limit's own table has fields: what lies deeper is a fault, however deep it is.
#[test]
fn what_is_nested_deeper_than_a_field_is_a_fault_and_no_overflow() {
    const DEEP: usize = 20_000;
    let told = |text: &str, format: fn(&str) -> Result<Limits, LimitsError>| faults(format(text));
    let nested = |open: &str, close: &str| format!("{}1{}", open.repeat(DEEP), close.repeat(DEEP));
    for value in [nested("{\"a\":", "}"), nested("[", "]"), nested("[{\"a\":", "}]")] {
        let known = format!("{{\"x\": {{ \"kind\": \"token_bucket\", \"per\": \"1s\", \"rate\": {value} }} }}");
        let told_of = told(&known, Limits::from_json);
        assert!(told_of.starts_with("1:54: limit \"x\": rate: it is an "), "{told_of}");
        assert!(
            told(&format!("{{\"x\": {{ \"a\": {value} }} }}"), Limits::from_json)
                .contains("1:9: limit \"x\": unknown field \"a\"")
        );
        assert!(told(&value, Limits::from_json).starts_with("1:"));
    }
    let path = vec!["a"; DEEP].join(".");
    for text in [
        format!("[x]\nrate.{path} = 1"),
        format!("[x.rate.{path}]\nb = 1"),
        format!("x.rate.{path} = 1"),
        format!("[x]\nrate = {}", nested("{a=", "}")),
        format!("[x]\nrate = {}", nested("[", "]")),
        format!("[x]\nrate = {{ {path} = 1 }}"),
    ] {
        let told_of = told(&text, Limits::from_toml);
        assert!(told_of.starts_with("1:") || told_of.starts_with("2:"), "{told_of:.200}");
    }
}

#[test]
fn what_no_number_holds_is_a_fault_and_no_panic() {
    for (value, reason) in [
        ("nan", "a number that is not finite"),
        ("inf", "a number that is not finite"),
        ("99999999999999999999999", "too large"),
        ("1e300", "too large"),
        ("0.0000001", "below half a millionth"),
        ("'ten'", "\"ten\": not a plain decimal"),
        ("1979-05-27", "it is a date"),
        ("{ a = 1 }", "it is a table"),
    ] {
        let told = toml_faults(&format!("[x]\nkind = 'token_bucket'\nper = '1s'\nrate = {value}"));
        assert!(told.starts_with("4:8: limit \"x\": rate: ") && told.contains(reason), "{value}: {told}");
        assert_eq!(told.lines().count(), 1, "{told}");
    }
    let name = "n".repeat(256);
    let told = toml_faults(&format!("[{name}]\nkind = 'token_bucket'\nrate = 1\nper = '1s'"));
    assert!(told.starts_with("1:2: ") && told.ends_with("the name is longer than 255 bytes"), "{told}");
}

#[test]
fn what_has_no_one_length_is_no_period() {
    for word in ["1month", "2 months", "1M", "1year", "1h 1y", "3yrs"] {
        for (field, above) in [("per", "kind = 'fixed_window'"), ("start", "per = '1h'\nkind = 'fixed_window'")] {
            let told = toml_faults(&format!("[x]\nrate = 1\n{field} = '{word}'\n{above}"));
            let fault = format!("limit \"x\": {field}: \"{word}\" is longer in some months and years than in others");
            assert!(told.contains(&fault), "{told}");
            assert!(told.ends_with("(write days, or name each by `Request::period`)"), "{told}");
        }
    }
    let limits = Limits::from_toml("[x]\nkind = 'fixed_window'\nrate = 1\nper = '31days 1m'").unwrap();
    assert_eq!(serde_json::to_value(limits.get("x").unwrap()).unwrap()["period"], "31days 1m");
}

#[test]
fn a_span_of_iso_8601_is_told_how_it_is_written_here() {
    for (iso, span) in [
        ("PT1M", "1m"),
        ("PT1H30M", "1h 30m"),
        ("pt1m", "1m"),
        ("P1D", "1day"),
        ("P1W", "7days"),
        ("P1DT12H", "1day 12h"),
        ("PT0.5S", "500ms"),
        ("PT90S", "1m 30s"),
    ] {
        let told = toml_faults(&format!("[x]\nkind = 'token_bucket'\nrate = 1\nper = '{iso}'"));
        let fault = format!("4:7: limit \"x\": per: \"{iso}\" is a span of ISO 8601 (write \"{span}\")");
        assert_eq!(told, fault);
    }
    for iso in ["P1M", "P1Y", "P1Y2D", "p1y"] {
        let told = toml_faults(&format!("[x]\nkind = 'token_bucket'\nrate = 1\nper = '{iso}'"));
        assert!(told.contains("is longer in some months and years than in others"), "{told}");
    }
    for none in ["P", "PT", "PT1", "PTM", "P1H", "PT1D", "PT1M1", "PT99999999999999999999H", "T1M", "Pé"] {
        let told = toml_faults(&format!("[x]\nkind = 'token_bucket'\nrate = 1\nper = '{none}'"));
        assert!(told.contains("is not a span of time") && !told.contains("ISO"), "{told}");
    }
}

/// As editors of Windows write it.
#[test]
fn a_byte_order_mark_is_no_part_of_a_file() {
    let (toml, json) = ("[x]\nkind = 'wallet'\n", r#"{ "x": { "kind": "wallet" } }"#);
    assert_eq!(Limits::from_toml(&format!("\u{feff}{toml}")).unwrap(), Limits::from_toml(toml).unwrap());
    assert_eq!(Limits::from_json(&format!("\u{feff}{json}")).unwrap(), Limits::from_json(json).unwrap());
    let [toml, json] = [toml, json].map(|text| text.replace("kind", "knd"));
    assert!(toml_faults(&format!("\u{feff}{toml}")).contains("2:1: limit \"x\": unknown field"));
    assert!(faults(Limits::from_json(&format!("\u{feff}{json}"))).contains("1:10: limit \"x\": unknown field"));
    assert!(toml_faults("\u{feff}[x").starts_with("1:"));
}

#[test]
fn a_file_of_another_language_is_one_sentence() {
    for file in ["limits.yaml", "/nonexistent/LIMITS.YML"] {
        let error = Limits::from_file(file).unwrap_err();
        let told = format!("the limits file {file} is in YAML (write it in TOML or in JSON)");
        assert_eq!(error.to_string(), told);
    }
    let folder = std::env::temp_dir().join(format!("tollgate-limits-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let utf_16 = folder.join("utf-16.toml");
    std::fs::write(&utf_16, b"\xff\xfe[\0x\0]\0").unwrap();
    let error = Limits::from_file(&utf_16).unwrap_err();
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!(error.to_string(), format!("the limits file {} is not in UTF-8 (save it so)", utf_16.display()));
}

#[test]
fn names_inside_are_told_what_to_do() {
    let told = toml_faults("[x]\nname = 'x'\nkind = 'token_bucket'\nrate = 1\nper = '1s'");
    assert!(
        told.contains(
            "2:1: limit \"x\": unknown field \"name\" (the table's name is the limit's name: remove this line)"
        ),
        "{told}"
    );
}

#[test]
fn a_wallet_has_neither_a_rate_nor_a_period() {
    let read = |text: &str| Limits::from_toml(text).map(|limits| limits.get("credits").unwrap().clone());
    assert_eq!(read("[credits]\nkind = 'wallet'").unwrap(), Limit::wallet("credits"));
    assert_eq!(read("[credits]\noverdraft = 50\nkind = 'wallet'").unwrap(), Limit::wallet("credits").overdraft(50));
    for more in ["rate = 5", "per = '1h'", "storage = 'ephemeral'", "max_reserved = 5\noverdraft = 5"] {
        assert!(read(&format!("[credits]\nkind = 'wallet'\n{more}")).is_err(), "{more}");
    }
}

#[test]
fn shards_are_a_number_of_rows() {
    let limits = |shards: &str| {
        Limits::from_toml(&format!("[x]\nkind = 'token_bucket'\nrate = 1\nper = '1s'\nshards = {shards}"))
    };
    assert_eq!(limits("16").unwrap().get("x").unwrap().spec().shards, 16);
    for (shards, reason) in [
        ("0", "there are no shards"),
        ("65", "there are too many shards"),
        ("-1", "shards: invalid value: integer `-1`"),
        ("'many'", "a number of rows, such as shards = 16"),
    ] {
        let told = limits(shards).unwrap_err().to_string();
        assert!(told.starts_with("5:10: limit \"x\": ") && told.contains(reason), "{shards}: {told}");
    }
}

#[test]
fn a_fault_names_its_kind_for_programs() {
    let Err(LimitsError::Faulty(faults)) = Limits::from_toml("[x]\nkind = 'token_bucket'\nrate = 0\nper = '1s'") else {
        unreachable!("it is faulty")
    };
    let kinds: Vec<_> = faults.iter().map(|fault| fault.kind.clone()).collect();
    assert_eq!(kinds, [tollgate::FileFaultKind::Limit(LimitFault::RateNotPositive)]);
}

#[test]
fn a_file_that_is_not_there_is_one_sentence() {
    let error = Limits::from_file("/nonexistent/tollgate.toml").unwrap_err();
    let told = "could not read the limits file /nonexistent/tollgate.toml (check its path and rights)";
    assert_eq!(error.to_string(), told);
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert!(cause.starts_with("No such file"), "{cause}");
}

#[test]
fn the_example_file_is_sound() {
    let limits = Limits::from_file("examples/tollgate.toml").unwrap();
    assert_eq!(limits.get("send_message").unwrap().spec().rate, Tokens::new(10));
}

#[test]
fn a_slip_is_recognised_and_another_word_is_not() {
    let text = ["kind", "rate", "per", "capacity", "max_reserved"]
        .map(|name| format!("[{name}]\nkind = 'token_bucket'\nrate = 1\nper = '1s'\n"))
        .concat();
    let limits = Limits::from_toml(&text).unwrap();
    let nearest = |name: &str| limits.get(name).unwrap_err().nearest;
    for (written, meant) in [("capcity", "capacity"), ("Rate", "rate"), ("max-reserve", "max_reserved"), ("pre", "per")]
    {
        assert_eq!(nearest(written).as_deref(), Some(meant));
    }
    assert_eq!(nearest("burst"), None);
    assert_eq!(Limits::from_toml("").unwrap().get("anything").unwrap_err().nearest, None);
}

fn toml_faults(text: &str) -> String {
    faults(Limits::from_toml(text))
}

fn faults(read: Result<Limits, LimitsError>) -> String {
    read.unwrap_err().to_string()
}
