//! Known figures of the literature and of other limiters, and how clients behave.

use crate::{counts, number, recorded, stdout, trials};

#[test]
fn twenty_tokens_and_five_each_ten_seconds_keep_their_grid() {
    let granted = |calls: &str| number(&recorded(&["--limit", UPLOADS], &format!("time,cost\n{calls}")), "granted");
    assert_eq!(granted("0,5\n10,18\n20,7\n"), 3, "20 - 5 + 5 - 18 + 5 leaves 7");
    assert_eq!(granted("0,5\n10,18\n20,7.000001\n"), 2);
    // Only whole periods count, and none is lost.
    assert_eq!(granted("0,15\n15,10\n20,5\n29,1\n30,5\n"), 4, "the call at 29 s comes a second early");
}

#[test]
fn ten_of_ten_a_minute_spent_the_next_is_there_after_six_seconds() {
    let ten = r#"ten = { kind = "token_bucket", rate = 10, per = "1m" }"#;
    let trial = recorded(&["--limit", ten], "time,cost\n0,10\n0,1\n5.999999,1\n6,1\n");
    assert_eq!((counts(&trial), number(&trial, "worst_retry_after_us")), ([4, 2, 2], 6_000_000));
}

#[test]
fn traffic_within_the_rate_is_never_refused() {
    let granted = |kind: &str, numbers: &str, traffic: &str| {
        let limit = format!("any = {{ kind = \"{kind}\", {numbers} }}");
        number(&trials(&["--limit", &limit, "--traffic", traffic])[0], "granted")
    };
    for kind in ["token_bucket", "stepped_bucket"] {
        let five = r#"rate = 5, per = "10s", capacity = 20"#;
        assert_eq!(granted(kind, five, "constant rate=1 per=9s for=1h"), 400);
        assert_eq!(granted(kind, r#"rate = 10, per = "1m""#, "constant rate=1 per=6s for=1h"), 600);
        assert_eq!(granted(kind, r#"rate = 100, per = "1s""#, "constant rate=50 per=1s for=1m"), 3_000);
    }
    // A capacity of one refuses half of the calls that come a little early.
    let early = "constant rate=1 per=59s for=3658s";
    assert_eq!(granted("token_bucket", r#"rate = 1, per = "1m""#, early), 31);
    assert_eq!(granted("token_bucket", r#"rate = 1, per = "1m", capacity = 2"#, early), 61);
}

#[test]
fn a_flood_gets_fifty_at_once_then_one_in_six() {
    let api = r#"api = { kind = "token_bucket", rate = 10, per = "1s", capacity = 50 }"#;
    let traffic = ["--traffic", "burst size=50 every=1m for=1s", "--traffic", "constant rate=60 per=1s for=10s"];
    let flood = &trials(&[&["--limit", api][..], &traffic].concat())[0];
    // At 0 s fifty; then a token each 0.1 s, which is each sixth call from the sixth on: 599 / 6 = 99.
    assert_eq!(counts(flood), [650, 50 + 99, 501]);
}

#[test]
fn a_reservation_is_ready_when_its_debt_is_paid() {
    let ten = r#"ten = { kind = "token_bucket", rate = 10, per = "1m", max_reserved = 12 }"#;
    let trial = recorded(&["--limit", ten, "--reserve"], "time,cost\n0,5\n6,16\n36,5\n36,9\n");
    // After 16 of 6 tokens at 6 s ten are owed; 30 s later five, and another five make ten again.
    assert_eq!(counts(&trial), [4, 3, 1]);
    assert_eq!((number(&trial, "waited"), number(&trial, "worst_wait_us")), (2, 60_000_000));
}

#[test]
fn what_was_not_used_is_granted_again_and_of_a_dead_client_after_its_lapse() {
    let budget = r#"budget = { kind = "sliding_window", rate = 10, per = "1h" }"#;
    let ends = ["--work", "3s", "--used", "4", "--dies", "3", "--lapses-after", "10s"];
    let calls = "time,cost\n0,10\n2.999999,1\n3,6\n12.999999,1\n13,6\n16,2\n";
    // At 3 s six of ten come back. The caller that takes them dies: they come back at 13 s, and two of them, unused, at
    // 16 s.
    assert_eq!(counts(&recorded(&[&["--limit", budget][..], &ends].concat(), calls)), [6, 4, 2]);
}

#[test]
fn what_comes_back_behind_the_last_call_is_drawn() {
    let trial =
        &trials(&["--limit", UPLOADS, "--traffic", "burst size=20 every=1h for=4s", "--work", "2s", "--used", "0"])[0];
    let bins = trial["series"]["bins"].as_array().unwrap();
    assert_eq!(bins.last().unwrap()["levels"][0]["high"], 20);
}

#[test]
fn several_limits_are_taken_all_or_none() {
    let each = r#"each = { kind = "token_bucket", rate = 2, per = "1m" }"#;
    let total = r#"total = { kind = "token_bucket", rate = 3, per = "1m" }"#;
    let calls = "time,key\n0,ada\n0,ada\n0,ada\n0,bob\n0,bob\n";
    // Ada's third call takes nothing from the total, so that one of Bob's fits beside two of hers.
    let together = recorded(&["--limit", each, "--global", total], calls);
    assert_eq!((together["label"].as_str(), counts(&together)), (Some("each and total"), [5, 3, 2]));
    assert_eq!(together["callers"][1]["granted"], 1);
    let compared = trials(&["--compare", "--limit", each, "--global", total, "--traffic", "burst size=5 every=1h"]);
    assert_eq!(compared.iter().map(counts).collect::<Vec<_>>(), [[5, 2, 3], [5, 3, 2]]);
}

/// Shares that divide to the microsecond: four shards are counted and drawn as one row.
#[test]
fn a_limit_with_shards_is_counted_and_drawn_as_one() {
    let drawn = |shards: u16| {
        let numbers = format!(r#"rate = 8, per = "1s", capacity = 16, shards = {shards}"#);
        let limit = format!("ten = {{ kind = \"token_bucket\", {numbers} }}");
        let mut trial = trials(&["--limit", &limit, "--traffic", "burst size=20 every=2s for=10s"]).remove(0);
        trial["limits"].take();
        trial
    };
    assert_eq!(drawn(4), drawn(1));
}

#[test]
fn a_call_that_no_wait_lets_through_is_counted_and_the_run_goes_on() {
    let ten = r#"ten = { kind = "token_bucket", rate = 10, per = "1m" }"#;
    let trial = recorded(&["--limit", ten], "time,cost\n0,11\n0,10\n0,11\n");
    assert_eq!((counts(&trial), number(&trial, "impossible")), ([3, 1, 0], 2));
}

#[test]
fn limits_of_a_file_are_tried_by_name() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/tollgate.toml");
    let traffic = ["--limits", file, "--traffic", "burst size=15 every=1m for=30s clients=2"];
    let tried = |option: &str| trials(&[&[option, "send_message"][..], &traffic].concat()).remove(0);
    assert_eq!(counts(&tried("--limit")), [30, 30, 0]);
    assert_eq!(counts(&tried("--global")), [30, 20, 10]);
    assert!(stdout(&[&["--global", "send_message"][..], &traffic].concat()).contains(", for all callers together\n"));
}

const UPLOADS: &str = r#"uploads = { kind = "stepped_bucket", rate = 5, per = "10s", capacity = 20 }"#;

#[test]
fn in_turn_a_call_that_the_plan_refuses_takes_from_the_wallet() {
    let plan = r#"plan = { kind = "fixed_window", rate = 2, per = "1m", start = "0s" }"#;
    let credits = r#"credits = { kind = "wallet" }"#;
    let calls = "time,cost\n0,1\n1,2\n2,1\n3,2\n60,3\n";
    let args = ["--limit", plan, "--limit", credits, "--funds", "3", "--in-turn"];
    let trial = recorded(&args, calls);
    assert_eq!(trial["label"], "plan, else credits");
    // The plan grants 1 and 1, the wallet 2: one is left in it, and three fit into neither.
    assert_eq!(counts(&trial), [5, 3, 2]);
    let without = recorded(&args[..4], calls);
    assert_eq!(counts(&without), [5, 0, 4], "an empty wallet, and all limits are asked at once");
}
