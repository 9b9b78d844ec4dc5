//! The header fields of older formats.

use std::time::Duration;

use http::HeaderMap;
use tollgate::{DAY, Decision, Limit, MINUTE, SECOND};
use tollgate_http::{Fields, Format};

use crate::parser::{dictionary, integer};
use crate::world::{World, millis};

/// A grant and a refusal of one limit of ten a minute, and of another that has no window to speak of.
fn decisions() -> [Decision; 2] {
    let minute = Limit::token_bucket("minute", 10, MINUTE);
    let second = Limit::token_bucket("second", 50, SECOND).capacity(20);
    let mut world = World::default();
    let mut ask = |cost: u32| world.consume([minute.global().cost(cost), second.global()], millis(1_700_000_000_500));
    [ask(10), ask(2)]
}

fn fields(format: Format) -> [HeaderMap; 2] {
    decisions().map(|decision| Fields::new(format).of(&decision))
}

#[test]
fn draft_7_is_a_dictionary() {
    let [granted, refused] = fields(Format::Draft7);
    let expected = |reset| [("limit", 10), ("remaining", 0), ("reset", reset)].map(|(key, is)| (key.to_owned(), is));
    assert_eq!(dictionary(&granted, "ratelimit"), expected(6).into());
    assert_eq!(dictionary(&refused, "ratelimit"), expected(12).into());
    assert_eq!(granted["ratelimit-policy"], "10;w=60", "a policy without a window is not one of draft 7");
    assert_eq!((integer(&granted, "retry-after"), integer(&refused, "retry-after")), (None, Some(12)));
}

#[test]
fn draft_6_counts_from_now() {
    let [granted, refused] = fields(Format::Draft6);
    let read = |headers: &HeaderMap| {
        ["ratelimit-limit", "ratelimit-remaining", "ratelimit-reset", "retry-after"].map(|name| integer(headers, name))
    };
    assert_eq!(read(&granted), [Some(10), Some(0), Some(6), None]);
    assert_eq!(read(&refused), [Some(10), Some(0), Some(12), Some(12)]);
    assert_eq!(granted["ratelimit-policy"], "10;w=60");
}

#[test]
fn x_rate_limit_counts_from_the_epoch() {
    let [granted, refused] = fields(Format::XRateLimit);
    let read = |headers: &HeaderMap| {
        ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset", "retry-after"]
            .map(|name| integer(headers, name))
    };
    assert_eq!(read(&granted), [Some(10), Some(0), Some(1_700_000_007), None], "half past, rounded up");
    assert_eq!(read(&refused), [Some(10), Some(0), Some(1_700_000_013), Some(12)]);
    assert_eq!(granted.len(), 3);
}

/// The grant takes all ten, and the refusal nothing: after both, all ten are back in a minute.
#[test]
fn a_full_reset_is_when_all_is_back() {
    let full = |format: Format, name| decisions().map(|it| integer(&Fields::new(format).full_reset().of(&it), name));
    assert_eq!(full(Format::Draft6, "ratelimit-reset"), [Some(60); 2]);
    assert_eq!(full(Format::XRateLimit, "x-ratelimit-reset"), [Some(1_700_000_061); 2]);
    assert_eq!(full(Format::XRateLimit, "retry-after"), [None, Some(12)]);
}

#[test]
fn none_still_says_when_to_come_back() {
    let [granted, refused] = fields(Format::None);
    assert_eq!((granted.len(), refused.len()), (0, 2));
    assert_eq!(refused["cache-control"], "no-store");
    assert_eq!(integer(&refused, "retry-after"), Some(12));
}

#[test]
fn a_full_limit_is_reset_now() {
    let limit = Limit::token_bucket("full", 10, MINUTE);
    let decision = World::default().consume([limit.global().cost(0)], millis(2_000));
    assert_eq!(integer(&Fields::new(Format::Draft6).of(&decision), "ratelimit-reset"), Some(0));
    assert_eq!(integer(&Fields::new(Format::XRateLimit).of(&decision), "x-ratelimit-reset"), Some(2));
}

#[test]
fn two_policies_of_one_quota_are_one_before_they_had_names() {
    let [minute, daily] = [("minute", MINUTE), ("daily", DAY)].map(|(name, per)| Limit::fixed_window(name, 10, per));
    let limits = [minute.start(Duration::ZERO).global(), daily.start(Duration::ZERO).global()];
    let decision = World::default().consume(limits, millis(0));
    assert_eq!(Fields::new(Format::Draft7).of(&decision)["ratelimit-policy"], "10;w=60");
}

#[test]
fn a_policy_without_a_window_hides_none_of_its_quota() {
    let (at_once, minute) = (Limit::concurrency("at_once", 10, MINUTE), Limit::fixed_window("minute", 10, MINUTE));
    let decision = World::default().consume([at_once.global(), minute.start(Duration::ZERO).global()], millis(0));
    assert_eq!(Fields::new(Format::Draft7).of(&decision)["ratelimit-policy"], "10;w=60");
}

#[test]
fn of_a_wallet_the_older_formats_tell_what_remains_alone() {
    let wallet = Limit::wallet("credits");
    let refused = World::default().consume([wallet.global().cost(1)], millis(2_000));
    for (format, field, told) in [
        (Format::Draft7, "ratelimit", "remaining=0"),
        (Format::Draft6, "ratelimit-remaining", "0"),
        (Format::XRateLimit, "x-ratelimit-remaining", "0"),
    ] {
        let headers = Fields::new(format).of(&refused);
        assert_eq!(headers.keys().collect::<Vec<_>>(), ["cache-control", field]);
        assert_eq!(headers[field], told);
    }
}

/// A client that reads 0 without a time holds itself back for ever.
#[test]
fn of_a_wallet_its_overdraft_is_left_too() {
    let (wallet, mut world) = (Limit::wallet("credits").overdraft(10), World::default());
    for (cost, left) in [(4, 6), (6, 0), (1, 0)] {
        let headers = Fields::default().of(&world.consume([wallet.global().cost(cost)], millis(0)));
        assert_eq!(headers["ratelimit"], format!("\"credits\";r={left}"));
    }
}
