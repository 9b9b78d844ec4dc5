//! Limits from files: the limits that are read, and the fault of a file that is wrong.

use std::time::Duration;

use tollgate::{Limit, Limits, MINUTE, SECOND, Tokens};

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
fn the_first_fault_is_reported_with_its_place() {
    let limit = |line: &str| format!("[mail]\nkind = 'token_bucket'\nrate = 10\nper = '1m'\n{line}\n");
    for (line, told) in [
        ("capcity = 20", "5:1: unknown field `capcity`, expected one of"),
        ("storage = 'disk'", "5:11: unknown variant `disk`, expected `ephemeral` or `durable`"),
        ("start = 10", "5:9: invalid type: integer `10`, expected a string"),
        ("rate = 5", "5:1: duplicate key"),
        ("period = '5m'", "1:1: duplicate field `period`"),
        ("name = 'mail'", "1:1: the table's name is the limit's name (remove the field `name`)"),
        (
            "start = '1h'",
            "1:1: limit \"mail\": a token bucket refills all the time and has no start (use a fixed window)",
        ),
        ("capacity = -2", "1:1: limit \"mail\": the capacity is negative"),
        ("[mail]", "5:2: duplicate key"),
        ("[x]\nkind = 'steped_bucket'", "6:8: unknown variant `steped_bucket`, expected one of"),
        ("[empty]", "5:1: missing field `kind`"),
        ("[late]\nkind = 'token_bucket'", "5:1: limit \"late\": the period is zero"),
        ("shards = 65", "1:1: limit \"mail\": there are too many shards"),
        ("shards = -1", "5:10: invalid value: integer `-1`, expected u16"),
        ("per = = 2", "5:7: "),
    ] {
        let found = toml_fault(&limit(line));
        assert!(found.starts_with(told), "{found}");
    }
    assert!(toml_fault("x = 3").starts_with("1:5: invalid type: integer `3`, expected struct LimitSpec"));
}

#[test]
fn a_fault_in_json_has_its_place_too() {
    for (text, told) in [
        ("{\n  \"mail\": { \"kind\": \"token_bucket\", \"rte\": 1 } }", "2:41: unknown field `rte`, expected one of"),
        ("{ \"mail\": { \"rate\": true } }", "1:24: invalid type: boolean `true`, expected a number of tokens"),
        ("{ \"mail\":\n{ \"kind\": \"wallet\", \"rate\": 1 } }", "2:33: limit \"mail\": a wallet"),
        ("{ \"é\": { \"kind\": \"wallet\", \"kind\": \"wallet\" } }", "1:33: duplicate field `kind`"),
        ("{ \"mail\": 3 }", "1:11: invalid type: integer `3`, expected struct LimitSpec"),
        ("{ \"mail\": \n ? }", "2:2: expected value"),
        ("[]", "1:1: invalid type: sequence, expected limits by name"),
    ] {
        let found = json_fault(text);
        assert!(found.starts_with(told), "{found}");
    }
}

/// Serde's own map would take the last of them.
#[test]
fn a_limit_that_occurs_twice_is_a_fault_in_both_formats() {
    let json = json_fault("{ \"mail\": { \"kind\": \"wallet\" },\n  \"mail\": { \"kind\": \"wallet\" } }");
    assert_eq!(json, "2:8: the limit \"mail\" occurs twice (keep one of them)");
    for text in ["[mail]\nkind = 'wallet'\n[mail]\n", "mail.kind = 'wallet'\nmail = { kind = 'wallet' }"] {
        assert!(toml_fault(text).contains("duplicate key"), "{text}");
    }
}

/// Only a limit's own table has fields: what lies deeper is a fault, however deep it is.
#[test]
fn what_is_nested_deeper_than_a_field_is_a_fault_and_no_overflow() {
    const DEEP: usize = 20_000;
    let nested = |open: &str, close: &str| format!("{}1{}", open.repeat(DEEP), close.repeat(DEEP));
    for value in [nested("{\"a\":", "}"), nested("[", "]"), nested("[{\"a\":", "}]")] {
        for text in [format!("{{\"x\": {{ \"rate\": {value} }} }}"), format!("{{\"x\": {{ \"a\": {value} }} }}"), value]
        {
            assert!(json_fault(&text).starts_with("1:"), "{text:.80}");
        }
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
        let told = toml_fault(&text);
        assert!(told.starts_with("1:") || told.starts_with("2:"), "{told:.200}");
    }
}

#[test]
fn what_no_number_holds_is_a_fault_and_no_panic() {
    for (value, reason) in [
        ("nan", "not finite"),
        ("inf", "not finite"),
        ("99999999999999999999999", "invalid type: integer `99999999999999999999999`"),
        ("1e300", "too large"),
        ("0.0000001", "below half a millionth"),
        ("'ten'", "\"ten\": not a plain decimal"),
        ("1979-05-27", "invalid type: map"),
        ("{ a = 1 }", "invalid type: map"),
    ] {
        let told = toml_fault(&format!("[x]\nkind = 'token_bucket'\nper = '1s'\nrate = {value}"));
        assert!(told.starts_with("4:8: ") && told.contains(reason), "{value}: {told}");
    }
    let told = toml_fault(&format!("[{}]\nkind = 'wallet'", "n".repeat(256)));
    assert!(told.starts_with("1:1: ") && told.ends_with("the name is longer than 255 bytes"), "{told}");
}

#[test]
fn what_has_no_one_length_is_no_period() {
    for word in ["1month", "2 months", "1M", "1year", "1h 1y", "3yrs"] {
        for (field, above) in [("per", "kind = 'fixed_window'"), ("start", "per = '1h'\nkind = 'fixed_window'")] {
            let told = toml_fault(&format!("[x]\nrate = 1\n{field} = '{word}'\n{above}"));
            let fault = format!("\"{word}\" is longer in some months and years than in others");
            assert!(told.contains(&fault), "{told}");
            assert!(told.ends_with("(write days, or take a monthly or a billing limit)"), "{told}");
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
        let told = toml_fault(&format!("[x]\nkind = 'token_bucket'\nrate = 1\nper = '{iso}'"));
        let fault = format!("4:7: \"{iso}\" is a span of ISO 8601 (write \"{span}\")");
        assert_eq!(told, fault);
    }
    for iso in ["P1M", "P1Y", "P1Y2D", "p1y"] {
        let told = toml_fault(&format!("[x]\nkind = 'token_bucket'\nrate = 1\nper = '{iso}'"));
        assert!(told.contains("is longer in some months and years than in others"), "{told}");
    }
    for none in ["P", "PT", "PT1", "PTM", "P1H", "PT1D", "PT1M1", "PT99999999999999999999H", "T1M", "Pé"] {
        let told = toml_fault(&format!("[x]\nkind = 'token_bucket'\nrate = 1\nper = '{none}'"));
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
    assert!(toml_fault(&format!("\u{feff}{toml}")).starts_with("2:1: unknown field"));
    assert!(json_fault(&format!("\u{feff}{json}")).starts_with("1:14: unknown field"));
    assert!(toml_fault("\u{feff}[x").starts_with("1:"));
}

#[test]
fn a_file_that_cannot_be_read_says_why() {
    let utf_16 = std::env::temp_dir().join(format!("tollgate-limits-{}.toml", std::process::id()));
    std::fs::write(&utf_16, b"\xff\xfe[\0x\0]\0").unwrap();
    let utf_16_path = utf_16.to_str().unwrap();
    for (file, why) in [
        ("limits.yaml", "it is in YAML (write it in TOML or in JSON)"),
        ("/nonexistent/LIMITS.YML", "it is in YAML (write it in TOML or in JSON)"),
        (utf_16_path, "stream did not contain valid UTF-8"),
        ("/nonexistent/tollgate.toml", "No such file or directory (os error 2)"),
    ] {
        let error = Limits::from_file(file).unwrap_err();
        let told = format!("could not read the limits file {file} (check its path, its rights and its format)");
        assert_eq!(error.to_string(), told);
        assert_eq!(std::error::Error::source(&error).unwrap().to_string(), why);
    }
    std::fs::remove_file(&utf_16).unwrap();
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
fn a_meter_is_one_word() {
    let read = |text: &str| Limits::from_toml(text).map(|limits| limits.get("usage").unwrap().clone());
    assert_eq!(read("[usage]\nkind = 'meter'").unwrap(), Limit::meter("usage"));
    let json = serde_json::to_string(&Limit::meter("usage")).unwrap();
    assert_eq!(serde_json::from_str::<Limit>(&json).unwrap(), Limit::meter("usage"));
    for more in ["rate = 5", "capacity = 5", "per = '1h'", "start = '1h'", "shards = 2", "overdraft = 'unbounded'"] {
        let told = read(&format!("[usage]\nkind = 'meter'\n{more}")).unwrap_err().to_string();
        assert!(told.contains("a meter has a name and nothing else"), "{more}: {told}");
    }
    let told = read("[usage]\nkind = 'meter'\nstorage = 'ephemeral'").unwrap_err().to_string();
    assert!(told.contains("a wallet or a meter is durable"), "{told}");
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

fn toml_fault(text: &str) -> String {
    Limits::from_toml(text).unwrap_err().to_string()
}

fn json_fault(text: &str) -> String {
    Limits::from_json(text).unwrap_err().to_string()
}
