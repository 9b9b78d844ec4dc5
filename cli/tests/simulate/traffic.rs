//! Generated calls, seen through a limit that grants all of them.

use serde_json::Value;

use crate::{number, run, stdout, trials};

#[test]
fn constant_calls_are_spaced_without_drift() {
    // Bins of a millisecond, of which the last call is in the 67th.
    assert_eq!(made("constant rate=3 per=100ms for=100ms", 1), [(0, 1), (33, 1), (66, 1)]);
}

#[test]
fn bursts_are_at_one_instant() {
    assert_eq!(made("burst size=2 every=50ms from=1s for=60ms", 1), [(0, 2), (50, 2)]);
}

#[test]
fn each_client_makes_all_calls() {
    let calls = |traffic: &str| {
        let trial = wide(traffic, 1);
        let callers = trial["callers"].as_array().unwrap().clone();
        callers.iter().map(|caller| (caller["key"].as_str().unwrap().to_owned(), number(caller, "calls"))).collect()
    };
    let calls: Vec<_> = calls("constant rate=2 per=1s for=2s clients=3");
    assert_eq!(calls, [("client-1".into(), 4), ("client-2".into(), 4), ("client-3".into(), 4)]);
}

/// Random traffic is the same on every machine and in every release: these are records.
#[test]
fn random_calls_are_the_same_for_one_seed_and_others_for_another() {
    assert_eq!(made("poisson rate=100 per=1s for=100ms", 1), FIRST);
    assert_ne!(made("poisson rate=100 per=1s for=100ms", 2), FIRST);
    // Another client changes nothing for the first ones.
    let of_first = |clients: u16| {
        let trial = wide(&format!("poisson rate=50 per=1s for=10s clients={clients}"), 7);
        let callers = trial["callers"].as_array().unwrap().clone();
        callers.into_iter().find(|caller| caller["key"] == "client-1").unwrap()
    };
    assert_eq!(of_first(2), of_first(3));
}

#[test]
fn random_calls_come_as_often_as_they_should() {
    // Ten thousand with a deviation of a hundred: this seed is within two of it.
    let calls = number(&wide("poisson rate=100 per=1s for=100s", 1), "calls");
    assert!((9_800..10_200).contains(&calls), "{calls}");
}

#[test]
fn a_long_series_stays_short_and_loses_nothing() {
    for traffic in ["constant rate=7 per=1s for=1h", "burst size=40 every=100h for=10000h"] {
        let trial = wide(traffic, 1);
        crate::counts(&trial);
        let bins = trial["series"]["bins"].as_array().unwrap().len();
        assert!((80..=160).contains(&bins), "{bins} bins of {traffic}");
    }
}

#[test]
fn wrong_traffic_says_what_is_wrong() {
    let faults = [
        ("steady rate=1 per=1s", "\"steady\" is no pattern of traffic (burst, constant or poisson)"),
        (
            "constant rate=1 per=1s till=1m",
            "\"till=1m\": there is no such field (rate, per, for, from, clients, cost, key)",
        ),
        ("burst rate=1 per=1s", "\"rate=1\": there is no such field (size, every, "),
        ("constant rate=1.5 per=1s", "\"rate=1.5\": it is no whole number"),
        ("constant rate=1 per=never", "\"per=never\": "),
        ("constant rate=1 per=1s cost=-1", "a number of tokens is negative"),
        ("constant rate=1 per=1s clients=100001", "it is no whole number, or too large"),
        ("constant rate=1 per=1s for=365001d", "it is longer than 1000 years"),
        ("constant rate=1 per=1s key=", "the key: a key is empty"),
        ("constant", "this traffic makes no calls (give rate and per, each more than zero)"),
        ("burst size=1 every=0s", "this traffic makes no calls (give size and every, each more than zero)"),
        ("poisson rate=1 per=1s for=0s", "this traffic makes no calls"),
    ];
    for (traffic, message) in faults {
        let output = run(&["--limit", WIDE, "--traffic", traffic]);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(64), "{traffic:?}");
        assert!(error.contains(message), "{traffic:?}: {error}");
    }
}

#[test]
fn traffic_denser_than_the_clock_is_made_at_the_same_instants() {
    let text = stdout(&["--limit", WIDE, "--traffic", "burst size=1000 every=1us for=10us"]);
    assert!(text.contains(" 10000 "), "{text}");
}

/// Which milliseconds have how many calls.
fn made(traffic: &str, seed: u32) -> Vec<(usize, u64)> {
    let trial = wide(traffic, seed);
    assert_eq!(number(&trial["series"], "width_us"), 1_000);
    let bins = trial["series"]["bins"].as_array().unwrap().clone();
    bins.iter().map(|bin| number(bin, "granted")).enumerate().filter(|(_, granted)| *granted > 0).collect()
}

fn wide(traffic: &str, seed: u32) -> Value {
    trials(&["--limit", WIDE, "--traffic", traffic, "--seed", &seed.to_string()]).remove(0)
}

const WIDE: &str = r#"wide = { kind = "token_bucket", rate = 1_000_000, per = "1s" }"#;
const FIRST: [(usize, u64); 9] = [(0, 1), (11, 1), (21, 1), (26, 1), (28, 1), (32, 1), (35, 1), (64, 1), (80, 1)];
