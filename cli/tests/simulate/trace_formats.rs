//! The formats that `tollgate suggest` reads, and what it says of lines that are in none.

use serde_json::{Value, json};

use crate::{fed, told, verb};

/// The same calls in each format: two bursts of three, a minute apart, of two clients.
#[test]
fn each_format_tells_the_same_calls() {
    let csv = lines(|time, key| format!("{time},{key},1")).replacen("", "time,key,cost\n", 1);
    let jsonl = lines(|time, key| json!({ "key": key, "time": time, "cost": 1, "other": [] }).to_string());
    let nginx = lines(|time, key| format!(r#"{key} - - [{}] "GET /?a=\x22 HTTP/1.1" 200 612 "-" "curl/8""#, clf(time)));
    let common = lines(|time, key| format!(r#"{key} - a user [{}] "GET / HTTP/1.0" 304 -"#, clf(time)));
    let caddy = lines(|time, key| {
        let request = json!({ "remote_ip": "10.0.0.1", "client_ip": key, "method": "GET", "headers": {} });
        // Written when the response was done.
        json!({ "level": "info", "ts": time + 2, "request": request, "duration": 2.0, "status": 200 }).to_string()
    });
    for (format, text) in [("csv", csv), ("jsonl", jsonl), ("nginx", nginx), ("nginx", common), ("caddy", caddy)] {
        let detected = document(&["--refuse-at-most", "0%"], &text);
        let figures = ["format", "calls", "keys", "span_us", "skipped"].map(|field| detected[field].clone());
        assert_eq!(figures, [json!(format), json!(12), json!(2), json!(60_000_000), json!(0)], "{text}");
        assert_eq!((&detected["limit"]["rate"], &detected["limit"]["capacity"]), (&json!(3), &json!(3)), "{text}");
        assert_eq!(document(&["--refuse-at-most", "0%", "--format", format], &text), detected);
        // In any order, and with empty lines.
        let (head, calls) = if format == "csv" { text.split_once('\n').unwrap() } else { ("", &text[..]) };
        let turned: Vec<_> = calls.lines().rev().flat_map(|line| [line, "", "\r"]).collect();
        assert_eq!(document(&["--refuse-at-most", "0%"], &format!("{head}\n{}", turned.join("\n"))), detected);
    }
}

#[test]
fn the_key_may_be_in_another_field() {
    let keys = |args: &[&str], text: &str| document(args, text)["keys"].clone();
    assert_eq!(keys(&["--key", "user"], "time,key,user\n1,a,x\n2,b,x\n"), 1);
    let jsonl = "{\"time\":1,\"who\":{\"id\":7}}\n{\"time\":2.5,\"who\":{\"id\":8}}\n";
    assert_eq!(keys(&["--key", "/who/id"], jsonl), 2);
    let nginx = lines(|time, key| format!(r#"{key} - ada [{}] "GET / HTTP/1.1" 200 612 "-" "curl/8""#, clf(time)));
    assert_eq!([keys(&["--key", "remote_user"], &nginx), keys(&["--key", "http_user_agent"], &nginx)], [1, 1]);
    let caddy = r#"{"ts":1.5241024,"request":{"remote_ip":"::1"},"user_id":"ada"}"#;
    assert_eq!(keys(&["--key", "/user_id"], caddy), 1);
}

/// As the HTTP layer has it.
#[test]
fn addresses_of_one_network_of_ipv6_are_one_client() {
    let addresses = ["2001:db8::1", "2001:db8::2", "::ffff:192.0.2.1", "192.0.2.1", "host.example"];
    let nginx: Vec<_> = addresses.map(|key| format!(r#"{key} - - [{}] "GET / HTTP/1.1" 200 1"#, clf(0))).into();
    let caddy: Vec<_> = addresses.map(|key| json!({ "ts": 0, "request": { "remote_ip": key } }).to_string()).into();
    for log in [nginx, caddy] {
        assert_eq!(document(&[], &log.join("\n"))["keys"], 3, "{log:?}");
    }
}

#[test]
fn a_line_that_is_not_understood_is_named_or_skipped_and_counted() {
    let good = r#"1.2.3.4 - - [01/Jan/2025:00:00:00 +0000] "GET / HTTP/1.1" 200 1"#;
    let wrong_time = good.replace("01/Jan", "32/Jan");
    let faults = [
        ("csv", "time,key\n1,a\nnow,c\n", "line 3: \"now\" is no time"),
        ("csv", "time,key\n1,a\n1,a,1\n", "line 3: it has not as many fields as the first line"),
        ("jsonl", "{\"time\":1}\n\n{\"time\":\"soon\"}\n", "line 3: \"soon\" is no time"),
        ("jsonl", "{\"time\":1}\n{\"key\":1}\n", "line 2: it has no `time`"),
        ("jsonl", "{\"time\":1}\n{\"time\":2,\"cost\":-1}\n", "line 2: the cost: a number of tokens is negative"),
        ("jsonl", "{\"time\":1}\n{\"time\":1e300}\n", "is no time"),
        ("jsonl", "{\"time\":1}\n{\"time\":1,\"key\":{}}\n", "line 2: `key` is neither a text nor a number"),
        ("jsonl", "{\"time\":1}\n[1]\n", "line 2: it is no JSON object"),
        ("jsonl", "{\"time\":1}\n{\"time\":\n", "line 2: it is no JSON: EOF while parsing"),
        ("nginx", &format!("{good}\n1.2.3.4 GET\n"), "line 2: it is no line of an access log"),
        ("nginx", &format!("{good}\n{wrong_time}\n"), "line 2: \"32/Jan/2025:00:00:00 +0000\" is no time"),
        (
            "caddy",
            "{\"ts\":1,\"request\":{\"remote_ip\":\"a\"}}\n{\"ts\":2,\"msg\":\"up\"}\n",
            "line 2: it has no `request` (is it a line of an access log?)",
        ),
    ];
    for (format, text, message) in faults {
        let (code, error) = fault(&[], text.as_bytes());
        assert_eq!(code, Some(1));
        assert!(error.contains(message) && error.ends_with("(to skip such lines: --skip-faulty)\n"), "{error}");
        let read = document(&["--skip-faulty"], text);
        assert_eq!(
            (&read["format"], &read["calls"], &read["skipped"]),
            (&json!(format), &json!(1), &json!(1)),
            "{text}"
        );
    }
    let (_, error) = fault(&[], b"{\"time\":1}\n{\"time\":2,\"key\":\"\xff\"}\n");
    assert!(error.contains("standard input: line 2: it is not UTF-8"), "{error}");
}

#[test]
fn a_trace_that_is_none_is_one_sentence() {
    let formats = "(a trace is CSV with a column `time`, JSON lines, or an access log of nginx or Caddy)";
    let faults: [(&[&str], &str, &str); 7] = [
        (&[], "", "nobody calls (the trace is empty)"),
        (&[], "\n\n", "nobody calls (the trace is empty)"),
        (&["--skip-faulty"], "{\n", "nobody calls (the trace is empty)"),
        (&["--skip-faulty"], "when,key\n1,a\n", &format!("the first line names no column `time` {formats}")),
        (&["--format", "csv"], "when\n1\n", "the first line names no column `time`\n"),
        (&["--key", "user"], "time,key\n1,a\n", "the first line names no column `user`"),
        (
            &["--format", "nginx", "--key", "status"],
            "",
            "an access log has no \"status\" for a key (use remote_addr, remote_user, http_referer, http_user_agent)",
        ),
    ];
    for (args, text, message) in faults {
        let (code, error) = fault(args, text.as_bytes());
        assert_eq!((code, error.lines().count()), (Some(1), 1), "{error}");
        assert!(error.contains(message), "{args:?} {text:?}: {error}");
    }
}

/// Bytes that are cut off, doubled, or turned into others: an answer or one sentence, and no panic.
#[test]
fn whatever_a_trace_holds_nothing_panics() {
    let seeds = [
        "time,key,cost\n1,\"a\",2\n2.5,b,\n",
        "{\"time\":1.5,\"key\":\"a\",\"cost\":9e12}\n{\"time\":\"2025-01-01T00:00:00Z\"}\n",
        "1.2.3.4 - - [01/Jan/2025:00:00:00 +0000] \"GET / HTTP/1.1\" 200 1 \"-\" \"a\\x22\"\n",
        "{\"ts\":1.5,\"duration\":1e300,\"request\":{\"remote_ip\":\"::1\"}}\n",
    ];
    let mut chance = fastrand::Rng::with_seed(1);
    for seed in seeds.iter().cycle().take(80) {
        let mut bytes = seed.repeat(2).into_bytes();
        for _ in 0..chance.usize(1..4) {
            let place = chance.usize(..bytes.len());
            match chance.u8(..3) {
                0 => bytes[place] = chance.u8(..),
                1 => bytes.insert(place, *b"\"\\{}[]\n,-9e.%\0".get(chance.usize(..15)).unwrap()),
                _ => bytes.truncate(place.max(1)),
            }
        }
        let output = fed(verb("suggest", &["--trace", "-"]), &bytes);
        let error = String::from_utf8(output.stderr).unwrap();
        let is_told = output.status.success() || (output.status.code() == Some(1) && error.lines().count() == 1);
        assert!(is_told, "{}: {error}", String::from_utf8_lossy(&bytes));
    }
}

fn lines(line: impl Fn(i64, &str) -> String) -> String {
    let calls = [0, 0, 0, 60, 60, 60].iter().flat_map(|after| ["192.0.2.1", "192.0.2.2"].map(|key| (after, key)));
    calls.map(|(after, key)| line(1_735_689_600 + after, key) + "\n").collect()
}

/// An instant as an access log has it, in a zone of its own.
fn clf(time: i64) -> String {
    let local = chrono::DateTime::from_timestamp(time, 0)
        .unwrap()
        .with_timezone(&chrono::FixedOffset::east_opt(7_200).unwrap());
    local.format("%d/%b/%Y:%H:%M:%S %z").to_string()
}

fn document(args: &[&str], text: &str) -> Value {
    let output = fed(verb("suggest", &[args, &["--trace", "-", "--json"]].concat()), text.as_bytes());
    serde_json::from_str(&told(output)).unwrap()
}

fn fault(args: &[&str], text: &[u8]) -> (Option<i32>, String) {
    let output = fed(verb("suggest", &[args, &["--trace", "-"]].concat()), text);
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}
