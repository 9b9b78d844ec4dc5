//! Calls that were recorded.

use std::io::{self, Read};

use tollgate::algebra::Timestamp;
use tollgate::simulate::{Arrival, Trace};
use tollgate::{Key, Tokens};

#[test]
fn csv_is_read_with_or_without_a_header_in_any_order() {
    let expected = vec![
        call(1_735_689_600_000_000, "ada", 1_000_000),
        call(1_735_689_600_250_000, "bob|7", 500_000),
        call(1_735_689_601_000_000, "", 1_000_000),
    ];
    let plain = "1735689600,ada\n\n2025-01-01T00:00:00.25Z, bob|7 , 0.5\n1735689601.0000009\n";
    assert_eq!(csv(plain), expected);
    let header =
        "\u{feff}status,Cost,KEY,Time\r\n200,,ada,1735689600\r\n429,0.5,bob|7,1735689600.25\r\n200,1,,1735689601\r\n";
    assert_eq!(csv(header), expected);
    assert_eq!(csv("time\n2025-01-01T02:00:01+02:00"), [call(1_735_689_601_000_000, "", 1_000_000)]);
    assert_eq!(csv(""), []);
}

#[test]
fn ndjson_is_read_with_numbers_or_texts() {
    let text = concat!(
        r#"{"time": 1735689600, "key": "ada", "status": 200}"#,
        "\n\n  \n",
        r#"{"cost": 0.5, "key": 7, "time": "1735689600.25"}"#,
        "\r\n",
        r#"{"time": "2025-01-01T00:00:01Z", "key": "", "cost": "2"}"#,
    );
    assert_eq!(
        Trace::ndjson(text.as_bytes()).collect::<Result<Vec<_>, _>>().unwrap(),
        [
            call(1_735_689_600_000_000, "ada", 1_000_000),
            call(1_735_689_600_250_000, "7", 500_000),
            call(1_735_689_601_000_000, "", 2_000_000),
        ]
    );
}

#[test]
fn a_fault_is_told_with_its_line() {
    let faults = [
        (
            "1,a\n2,b\nnow,c\n",
            "line 3: \"now\" is no time (use RFC 3339, as in 2025-01-01T00:00:00Z, or seconds since 1970)",
        ),
        (
            "1,a\n1e3,b\n",
            "line 2: \"1e3\" is no time (use RFC 3339, as in 2025-01-01T00:00:00Z, or seconds since 1970)",
        ),
        (
            "1,a\n253402300800\n",
            "line 2: \"253402300800\" is no time (use RFC 3339, as in 2025-01-01T00:00:00Z, or seconds since 1970)",
        ),
        ("2,a\n1,a\n", "line 2: its time is before that of the line before it (sort the lines by time)"),
        ("1,a,-1\n", "line 1: the cost: a number of tokens is negative"),
        ("1,a,lots\n", "line 1: the cost: not a plain decimal number such as 12 or 0.5"),
        ("1,a\0b\n", "line 1: the key: a key contains a NUL character"),
        ("time,key\n,a\n", "line 2: there is no time (columns are time, key, cost, or as a header names them)"),
        ("key,cost\na,1\n", "line 1: there is no time (columns are time, key, cost, or as a header names them)"),
        ("1,a,1,200\n", "line 1: it has 4 fields (without a header there are three: time, key, cost)"),
    ];
    for (text, message) in faults {
        assert_eq!(fault(Trace::csv(text.as_bytes())), message, "{text:?}");
    }
    let faults = [
        ("{\"time\": 1}\n{\"time\": 2", "line 2: EOF while parsing an object at column 10"),
        ("{\"time\": 1}\n\n{}", "line 3: there is no time"),
        (
            "{\"time\": 1, \"cost\": []}",
            "line 1: invalid type: sequence, expected a number of tokens, or a decimal string",
        ),
        ("{\"time\": [1]}", "line 1: \"[1]\" is no time"),
    ];
    for (text, message) in faults {
        assert!(
            fault(Trace::ndjson(text.as_bytes())).starts_with(message),
            "{text:?}: {}",
            fault(Trace::ndjson(text.as_bytes()))
        );
    }
    for trace in [Trace::csv, Trace::ndjson] {
        assert_eq!(fault(trace(&b"\n2,\xff\n"[..])), "line 2: it is not UTF-8");
    }
}

#[test]
fn quotes_are_those_of_csv_and_none_reaches_beyond_its_line() {
    let expected = [call(1_000_000, "a,b", 1_000_000), call(2_000_000, "say \"hi\"", 1_000_000)];
    assert_eq!(csv("1,\"a,b\"\n2,\"say \"\"hi\"\"\"\n"), expected);
    let unclosed = format!("1,\"a\n{}", "2,b\n".repeat(50_000));
    assert_eq!(csv(&unclosed).len(), 50_001);
}

#[test]
fn after_a_fault_there_is_nothing() {
    let mut trace = Trace::csv("1,a\nnow,a\n3,a\n".as_bytes());
    assert!(trace.next().unwrap().is_ok());
    assert!(trace.next().unwrap().is_err());
    assert!(trace.next().is_none());
}

#[test]
fn a_line_without_an_end_does_not_fill_the_memory() {
    for begin in ["1,", "{\"key\": \"", ""] {
        let endless = || "1,a\n".as_bytes().chain(begin.as_bytes()).chain(io::repeat(b'x'));
        let message = fault(Trace::csv(endless()));
        assert_eq!(message, "line 2: it is longer than 64 KiB");
    }
    let message = fault(Trace::ndjson("{\"time\": 1}\n".as_bytes().chain(io::repeat(b' '))));
    assert_eq!(message, "line 2: it is longer than 64 KiB");
}

#[test]
fn a_long_file_of_short_lines_is_read_to_its_end() {
    let lines = "1735689600,ada\n".repeat(20_000);
    assert_eq!(csv(&lines).len(), 20_000);
    let longest = format!("1,{}\n", "x".repeat(Trace::<&[u8]>::MAX_LINE_BYTES));
    assert!(fault(Trace::csv(longest.as_bytes())).ends_with("it is longer than 64 KiB"));
}

#[test]
fn a_reader_that_fails_is_told_as_that() {
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::other("the disk is gone"))
        }
    }
    assert_eq!(fault(Trace::csv("1,a\n".as_bytes().chain(Broken))), "line 2: could not read it: the disk is gone");
    assert_eq!(fault(Trace::ndjson(Broken)), "line 1: could not read it: the disk is gone");
}

fn csv(text: &str) -> Vec<Arrival> {
    Trace::csv(text.as_bytes()).collect::<Result<_, _>>().unwrap()
}

fn fault<R: Read>(trace: Trace<R>) -> String {
    trace.collect::<Result<Vec<_>, _>>().unwrap_err().to_string()
}

fn call(micros: i64, key: &str, cost: i64) -> Arrival {
    let key = if key.is_empty() { Key::GLOBAL } else { Key::new(key).unwrap() };
    Arrival { at: Timestamp::from_micros(micros), key, cost: Tokens::from_micros(cost) }
}
