//! The figures of the presets. Where they follow from arithmetic, it is given.

use serde_json::{Value, json};

use crate::{counts, number, trials};

#[test]
fn a_dashboard_of_ten_calls_wants_a_capacity_of_ten() {
    let [ten, five] = run("dashboard");
    assert_eq!(counts(&ten), [50, 50, 0]);
    // Two seconds refill ten tokens, of which five fit: five of ten each time.
    assert_eq!(counts(&five), [50, 25, 25]);
    assert_eq!(number(&five, "worst_retry_after_us"), 200_000, "a fifth of a second for a token");
}

#[test]
fn a_window_lets_two_hundred_through_around_its_edge() {
    let [window, bucket] = run("window_edge");
    assert_eq!(counts(&window), [200, 200, 0], "two windows' worth within a second");
    // A second refills 100 / 60 of a token: one whole.
    assert_eq!(counts(&bucket), [200, 101, 99]);
    // A third of a token is missing then, at 0.6 s each, rounded up to the microsecond.
    assert_eq!(number(&bucket, "worst_retry_after_us"), 200_001);
}

#[test]
fn a_queue_spaces_its_jobs_by_its_rate() {
    let [spaced, started] = run("queue");
    let waits = |trial: &Value| (number(trial, "waited"), number(trial, "worst_wait_us"));
    assert_eq!((counts(&spaced), waits(&spaced)), ([30, 30, 0], (30, 30_000_000)));
    assert_eq!((counts(&started), waits(&started)), ([30, 30, 0], (25, 25_000_000)), "five start at once");
    assert_eq!(spaced["series"]["bins"][0]["levels"][0], json!({ "low": -30, "high": 0 }), "thirty owed");
}

#[test]
fn a_limit_for_each_tenant_protects_the_others_from_a_noisy_one() {
    let [each, together] = run("noisy_neighbour");
    assert_eq!(quiet(&together), [1_149, 109], "who asks each 5 ms takes nine of ten tokens as they come");
    assert_eq!(quiet(&each), [1_149, 1_149]);
    // Twenty at once and twenty a second until the last call, at 59.995 s.
    assert_eq!(each["callers"][0], json!({ "key": "noisy", "calls": 12_000, "granted": 20 + 1_199 }));
}

#[test]
fn shares_that_are_lent_refuse_no_quiet_tenant_and_leave_nothing_unused() {
    let [each, together, shares] = run("fair_shares");
    let [calls, granted] = quiet(&together);
    assert!(granted < calls / 2, "one limit for all starves them: {granted} of {calls}");
    assert_eq!([quiet(&each), quiet(&shares)], [[calls, calls]; 2]);
    // A hundred a second, and the tokens that are lent at the start.
    assert!((6_000..6_200).contains(&number(&shares, "granted")), "{shares}");
    assert!(number(&each, "granted") < 3_200, "half of the rate is unused");
}

#[test]
fn own_limits_and_own_traffic_come_before_those_of_a_preset() {
    let limit = r#"five = { kind = "token_bucket", rate = 5, per = "1s" }"#;
    let [on_its_traffic] = &trials(&["--preset", "dashboard", "--limit", limit])[..] else { panic!("one trial") };
    assert_eq!(counts(on_its_traffic), [50, 25, 25]);
    let with_its_limits = trials(&["--preset", "dashboard", "--traffic", "burst size=11 every=1h"]);
    assert_eq!(with_its_limits.iter().map(counts).collect::<Vec<_>>(), [[11, 10, 1], [11, 5, 6]]);
}

/// The calls of quiet tenants, and how many were granted.
fn quiet(trial: &Value) -> [u64; 2] {
    let callers = trial["callers"].as_array().unwrap().iter();
    callers
        .filter(|caller| caller["key"].as_str().unwrap().starts_with("quiet"))
        .fold([0, 0], |sums, caller| [sums[0] + number(caller, "calls"), sums[1] + number(caller, "granted")])
}

fn run<const N: usize>(name: &str) -> [Value; N] {
    trials(&["--preset", name]).try_into().unwrap()
}
