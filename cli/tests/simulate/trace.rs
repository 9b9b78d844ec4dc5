//! Recorded calls.

use serde_json::json;

use crate::{Dir, number, piped, recorded, told, trials};

#[test]
fn columns_are_in_any_order_under_a_header() {
    let files = [
        "time,key,cost\n1735689600,ada,0.5\n\n2025-01-01T00:00:00.25Z, bob|7 , 0.5\n2025-01-01T02:00:01+02:00\t,ada,\n",
        "\u{feff}status,Cost,key,time\r\n200,0.5,ada,1735689600\r\n429,0.5,bob|7,1735689600.25\r\n\
         200,,ada,1735689601.000000\r\n",
    ];
    for file in files {
        let trial = recorded(&["--limit", WIDE], &file.replace("Cost", "cost"));
        assert_eq!(trial["series"]["start"], json!("2025-01-01T00:00:00Z"));
        let callers =
            json!([{ "key": "ada", "calls": 2, "granted": 2 }, { "key": "bob\\|7", "calls": 1, "granted": 1 }]);
        assert_eq!(trial["callers"], callers);
        let lows = trial["series"]["bins"].as_array().unwrap().iter().map(|bin| bin["levels"][0]["low"].clone());
        assert!(lows.into_iter().any(|low| low == json!(99.5)), "half a token of the first caller is gone: {trial}");
    }
    let trial = recorded(&["--limit", WIDE], "time\n1\n1\n");
    assert_eq!(trial["callers"], json!([{ "key": "", "calls": 2, "granted": 2 }]), "without keys there is one caller");
}

#[test]
fn quotes_are_those_of_csv() {
    let trial = recorded(&["--limit", WIDE], "time,key\n1,\"a,b\"\n2,\"say \"\"hi\"\"\"\n");
    let keys: Vec<_> = trial["callers"].as_array().unwrap().iter().map(|caller| &caller["key"]).collect();
    assert_eq!(keys, ["a,b", "say \"hi\""]);
}

#[test]
fn a_fault_is_told_with_its_line() {
    let faults = [
        (
            "time,key\n1,a\n2,b\nnow,c\n",
            "line 4: \"now\" is no time (use RFC 3339, as in 2025-01-01T00:00:00Z, or seconds",
        ),
        ("time\n1\n1e3\n", "line 3: \"1e3\" is no time"),
        ("time\n253402300800\n", "line 2: \"253402300800\" is no time"),
        ("time,cost\n1,-1\n", "line 2: the cost: a number of tokens is negative"),
        ("time,cost\n1,lots\n", "line 2: the cost: not a plain decimal number such as 12 or 0.5"),
        ("time,key\n1,a\0b\n", "line 2: the key: a key contains a NUL character"),
        ("time,key\n,a\n", "line 2: \"\" is no time"),
        ("1,a\n2,a\n", "the first line names no column `time`"),
        ("time,key\n1,a,1,200\n", "line 2: it has not as many fields as the first line"),
        ("time\n1\n\"2\n3\n", "line 3: \"2\\n3\" is no time"),
        ("", "nobody calls (the traffic or the trace is empty)"),
    ];
    for (text, message) in faults {
        assert!(fault(text.as_bytes()).contains(message), "{text:?}: {}", fault(text.as_bytes()));
    }
    let message = fault(b"time,key\n1,\xff\n");
    assert!(message.contains("line 2: it is not UTF-8"), "{message}");
}

#[test]
fn the_traces_are_those_of_suggest() {
    let nginx = r#"10.0.0.1 - - [01/Jan/2025:00:00:02 +0000] "GET / HTTP/1.1" 200 612 "-" "curl/8"
10.0.0.1 - - [01/Jan/2025:00:00:00 +0000] "GET / HTTP/1.1" 200 612 "-" "curl/8"
something else
"#;
    let trial = recorded(&["--limit", WIDE, "--skip-faulty"], nginx);
    assert_eq!(trial["callers"], json!([{ "key": "10.0.0.1", "calls": 2, "granted": 2 }]));
    assert_eq!(trial["series"]["start"], json!("2025-01-01T00:00:00Z"), "in whatever order they are");
    let jsonl = "{\"time\":1,\"key\":\"x\",\"user\":\"ada\"}\n";
    let trial = recorded(&["--limit", WIDE, "--key", "user"], jsonl);
    assert_eq!(trial["callers"][0]["key"], "ada");
    let output = piped(&["--limit", WIDE, "--trace", "-", "--skip-faulty"], nginx.as_bytes());
    assert!(told(output).contains("\ntrace standard input, 1 line skipped\n"));
}

#[test]
fn keys_that_were_refused_come_first_and_the_picture_names_the_one_that_it_draws() {
    let dir = Dir::new("refused");
    let busy: String = (0..12).map(|key| format!("1,busy {key}\n").repeat(3)).collect();
    let (trace, picture) = (dir.path("calls.csv"), dir.path("calls.svg"));
    std::fs::write(&trace, format!("time,key,cost\n{}2,quiet,99\n2,quiet,2\n", busy.replace('\n', ",0.1\n"))).unwrap();
    let trial = &trials(&["--limit", WIDE, "--trace", &trace, "--svg", &picture])[0];
    assert_eq!(trial["callers"][0], json!({ "key": "quiet", "calls": 2, "granted": 1 }));
    assert_eq!(trial["drawn"], "busy 0");
    let picture = std::fs::read_to_string(picture).unwrap();
    assert!(picture.contains("wide: token bucket, 100 each 1h, for busy 0\n"), "{picture}");
}

#[test]
fn a_long_file_is_read_to_its_end() {
    let trial = recorded(&["--limit", WIDE], &format!("time,key\n{}", "1735689600,ada\n".repeat(20_000)));
    assert_eq!(number(&trial, "calls"), 20_000);
}

fn fault(text: &[u8]) -> String {
    let output = piped(&["--limit", WIDE, "--trace", "-"], text);
    assert_eq!((output.status.code(), output.stdout), (Some(1), Vec::new()));
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(message.lines().count(), 1, "{message}");
    message
}

const WIDE: &str = r#"wide = { kind = "token_bucket", rate = 100, per = "1h" }"#;
