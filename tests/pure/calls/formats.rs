//! The stored form of a call, and calls that no row can store.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::json;
use tollgate::algebra::List;
use tollgate::plan::{Plan, Under, Verb};
use tollgate::{Call, CallError, Error, HOUR, Limit, LimitFault, MINUTE, Receipt, SECOND, first_of, split};

use super::{ORG, USER, WALLET, take};
use crate::story::config;
use crate::world::{World, at, sec, tokens};

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_list_comes_back_from_its_column(column in vec(-3_i64..9, 0..9)) {
        if let Some(list) = List::from_column(&column) {
            prop_assert!(list.entries().is_sorted_by_key(|entry| entry.ends_at));
            prop_assert_eq!(list.to_column(), Some(column));
        }
    }
}

#[test]
fn what_cannot_be_stored_is_an_error_before_anything_is_taken() {
    let longest = Duration::from_hours(1_000 * 365 * 24);
    let long = longest + Duration::from_micros(1);
    // The longest there is: ids are measured in bytes, and an é has two.
    for kept in [
        USER.global().lapses_after(longest),
        USER.global().tracked_for(longest),
        USER.global().once_for(1, longest),
        USER.global().once("i".repeat(255)),
        USER.global().once(format!("i{}", "é".repeat(127))),
    ] {
        let _ = take(&mut World::default(), kept, sec(0));
    }
    for (call, expected) in [
        (Verb::consume(USER.global().once("")), CallError::IdEmpty),
        (Verb::consume(USER.global().once("i".repeat(256))), CallError::IdTooLong),
        (Verb::consume(USER.global().once("é".repeat(128))), CallError::IdTooLong),
        (Verb::consume(USER.global().lapses_after(long)), CallError::SpanOutOfRange),
        (Verb::consume(USER.global().once_for(1, long)), CallError::SpanOutOfRange),
        (Verb::credit(USER.global().once_for(1, long)), CallError::SpanOutOfRange),
        (Verb::consume(USER.global().once("\0")), CallError::IdNul),
        (Verb::consume(USER.global().lapses_after(Duration::ZERO)), CallError::SpanOutOfRange),
        (Verb::consume(USER.global().tracked_for(long)), CallError::SpanOutOfRange),
        (Verb::consume(USER.global().once_for(1, Duration::from_nanos(1))), CallError::SpanNotWholeMicros),
        (Verb::consume([USER.global(), USER.global().flat()]), CallError::FlatDiffers),
        (Verb::credit(USER.global().lapses_after(HOUR)), CallError::WrongVerb { option: "lapses_after" }),
        (Verb::debit(USER.global().tracked_for(HOUR)), CallError::WrongVerb { option: "tracked_for" }),
        (Verb::credit([USER.global(), ORG.global()]), CallError::WrongVerb { option: "several requests" }),
    ] {
        let error = World::default().call(call, sec(0)).unwrap_err();
        assert!(matches!(&error, Error::Call { source, .. } if *source == expected), "{error} {expected}");
        assert!(error.is_bad_input());
    }
    for (spec, fault) in [
        (WALLET.spec().with(|spec| spec.rate = tokens(1)), LimitFault::WalletWithMore),
        (WALLET.spec().with(|spec| spec.shards = 2), LimitFault::WalletWithMore),
        (WALLET.spec().with(|spec| spec.storage = tollgate::Storage::Ephemeral), LimitFault::EphemeralWallet),
        (WALLET.spec().with(|spec| spec.max_reserved = tokens(-1)), LimitFault::NegativeMaxReserved),
    ] {
        assert_eq!(Limit::try_from(spec).unwrap_err().fault, fault);
    }
    let text = r#"{ "name": "wallet", "kind": "wallet", "overdraft": 5 }"#;
    assert_eq!(serde_json::from_str::<Limit>(text).unwrap(), WALLET);
}

/// Stored by every release: fields that are not set are left out, and unknown fields are read over.
#[test]
fn receipts_and_charges_are_written_the_same_in_every_release() {
    let mut world = World::default();
    let shards = Limit::token_bucket("shards", 4, SECOND).shards(2);
    let leases = Limit::concurrency("leases", 4, SECOND);
    let sliding = Limit::sliding_window("sliding", 4, SECOND).ephemeral();
    let requests =
        Call::from([shards.key("k").cost(3), ORG.global().flat(), leases.global(), sliding.global(), WALLET.global()])
            .lapses_after(SECOND);
    let receipt = world.taken(Verb::consume(requests), sec(1));
    let charge = |limit: &str, more: serde_json::Value| {
        let mut charge = json!({ "limit": limit, "key": "", "cost": 1, "ready_at": 1_000_000 });
        charge.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        charge
    };
    let refill = json!({ "refill": 4, "period": 1_000_000 });
    let with = |more: serde_json::Value| {
        let mut all = refill.clone();
        all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        all
    };
    let id = "00000000000000000000000000000001";
    let expected = json!({
        "charges": [
            charge("shards", json!({ "key": "k", "cost": 2, "refill": 2, "period": 1_000_000 })),
            charge("shards", json!({ "key": "k", "shard": 1, "before": 2, "refill": 2, "period": 1_000_000 })),
            charge("org", json!({ "flat": true, "kind": "window", "refill": 100, "period": 86_400_000_000_i64 })),
            charge("leases", with(json!({ "kind": "lease", "until": 2_000_000, "lease": id }))),
            charge("sliding", with(json!({ "kind": "sliding", "until": 2_000_000, "storage": "ephemeral" }))),
            charge("wallet", json!({ "kind": "wallet" })),
        ],
        "call": { "limit": "sliding", "key": "", "id": id },
        "lapses_at": 2_000_000,
    });
    let written = serde_json::to_value(&receipt).unwrap();
    assert_eq!(written, expected);
    let row = world.calls.values().next().unwrap();
    assert_eq!(serde_json::to_value(&row.charges).unwrap(), expected["charges"], "one encoding");
    let mut later = expected;
    later["new"] = json!(1);
    later["charges"][0]["new"] = json!({});
    assert_eq!(serde_json::from_value::<Receipt>(later.clone()).unwrap(), receipt);
    // This release does not settle a receipt of a version that it does not understand.
    later["charges"][0]["version"] = json!(1);
    let newer: Receipt = serde_json::from_value(later).unwrap();
    assert!(matches!(
        world.settled(Verb::Cancel(newer), sec(1)),
        Err(Error::Call { source: CallError::CorruptReceipt, .. })
    ));
}

/// A receipt is no credential: it comes back from outside.
#[test]
fn a_receipt_that_no_release_has_written_is_an_error_with_a_name() {
    let mut world = World::default();
    let sliding = Limit::sliding_window("sliding", 100, SECOND);
    let receipts = (0..65).map(|now| take(&mut world, sliding.global(), at(now))).collect::<Vec<_>>();
    let written = serde_json::to_value(&receipts[0]).unwrap();
    for (field, value) in [
        ("period", json!(0)),
        ("period", json!(-1)),
        ("version", json!(1)),
        ("shard", json!(64)),
        ("cost", json!(-1)),
        ("before", json!(-1)),
        ("refill", json!(-1)),
        ("limit", json!("")),
    ] {
        let mut torn = written.clone();
        torn["charges"][0][field] = value.clone();
        let Ok(torn) = serde_json::from_value::<Receipt>(torn) else { continue };
        let error = world.settled(Verb::Settle(torn, tokens(3)), at(65)).unwrap_err();
        assert!(matches!(error, Error::Call { source: CallError::CorruptReceipt, .. }), "{field} {value}: {error:?}");
    }
}

/// Stored by every release. The halves of a lease's name stand in the order in which they are read.
#[test]
fn lists_are_written_the_same_in_every_release() {
    let (leases, sliding) = (Limit::concurrency("leases", 9, MINUTE), Limit::sliding_window("sliding", 9, MINUTE));
    let plan =
        Plan::under([Verb::consume(leases.global().cost(2))], &Under { draw: &|| (3 << 64) | 4, ..Under::NOTHING })
            .unwrap();
    let list = plan.decide(&[None], &[], sec(1)).changes.remove(0).state.list;
    let column = [2, 61_000_000, 2_000_000, 3, 4];
    assert_eq!(list.to_column(), Some(column.into()));
    assert_eq!(List::from_column(&column), Some(list));
    let mut world = World::default();
    for (now, cost) in [(1, 2), (5, 3)] {
        world.granted(sliding.global().cost(cost), sec(now));
    }
    let column = vec![1, 61_000_000, 2_000_000, 65_000_000, 3_000_000];
    assert_eq!(world.state(&sliding.global()).unwrap().list.to_column(), Some(column));
    world.balance(Verb::credit(WALLET.global()), sec(0));
    assert_eq!(world.state(&WALLET.global()).unwrap().list.to_column(), Some(vec![3]));
}

/// Stored by every release, as receipts are.
#[test]
fn what_a_call_was_answered_is_written_the_same_in_every_release() {
    let mut world = World::default();
    let mut answered = |call, now| {
        let before = world.calls.clone();
        let _ = world.taken(call, sec(now));
        let row = world.calls.values().find(|row| !before.contains_key(&row.name)).unwrap().clone();
        let written = serde_json::to_value(&row.answer).unwrap();
        let mut read = row.clone();
        read.answer = serde_json::from_value(written.clone()).unwrap();
        assert_eq!(read, row);
        (written, row)
    };
    let (plain, mut row) = answered(Verb::consume(USER.key(1).once(1)), 0);
    assert_eq!(plain, json!({}));
    let (kept, _) = answered(Verb::consume(USER.key(2).lapses_after(HOUR)), 0);
    assert_eq!(kept, json!(null), "nobody repeats it");
    let ahead = Limit::try_from(USER.spec().with(|spec| spec.max_reserved = tokens(10))).unwrap();
    let (ahead, _) = answered(Verb::reserve(ahead.key(3).cost(15).once(1)), 0);
    assert_eq!(ahead, json!({ "ready_at": 30_000_000 }));
    let beyond = |least: i64| USER.key(4).cost(20).up_to(least);
    let (answer, _) = answered(Verb::consume(first_of([USER.key(3), beyond(4)]).once(2)), 5);
    assert_eq!(answer, json!({ "part": 10, "alternative": 1 }));
    // No call sets them all. Unknown fields are read over.
    let mut all = answer;
    all["ready_at"] = json!(30_000_000);
    let mut later = all.clone();
    later["new"] = json!(1);
    row.answer = serde_json::from_value(later).unwrap();
    assert_eq!(serde_json::to_value(&row.answer).unwrap(), all);
}

/// Stored by every release: under another number a repeat is an error. Computed once, outside this crate.
#[test]
fn what_a_call_asks_has_the_same_fingerprint_in_every_release() {
    let (user, org) = (|| USER.global().once("a"), || ORG.key("k").cost(2));
    let part = USER.global().cost(5).up_to(2).leaving(3).once("a");
    for (call, expected) in [
        (Verb::consume(user()), -5_436_575_794_920_659_913),
        (Verb::consume(user().lapses_after(HOUR)), -6_088_777_792_055_432_301),
        (Verb::consume(user().tracked_for(HOUR)), 6_349_322_691_516_691_043),
        (Verb::reserve(user()), -7_871_760_832_480_180_029),
        (Verb::consume(user().and(org())), -8_475_863_224_357_022_189),
        (Verb::consume(org().once("a").and(USER.global())), -8_475_863_224_357_022_189),
        (Verb::consume(part), 1_061_317_023_577_818_655),
        (Verb::consume(USER.global().flat().once("a").and(ORG.global())), 3_530_267_419_982_457_668),
        (Verb::consume(first_of([USER.global(), ORG.global()]).once("a")), -4_273_276_954_049_036_595),
        (Verb::consume(split(4, [USER.global(), ORG.global()]).once("a")), -4_598_360_743_429_616_685),
        (Verb::credit(USER.global().cost(2).once("a")), 4_741_984_830_266_452_762),
        (Verb::debit(USER.global().cost(2).once("a")), 2_695_277_227_411_213_905),
    ] {
        let (mut world, what) = (World::default(), format!("{call:?}"));
        world.call(call, sec(0)).unwrap();
        assert_eq!(world.calls.values().map(|row| row.asked).collect::<Vec<_>>(), [expected], "{what}");
    }
}

#[test]
fn what_is_no_list_is_not_read() {
    for column in [&[][..], &[0], &[4], &[3, 1], &[1, 1], &[1, 2, 1, 1, 1], &[1, 1, -1], &[2, 1, 1, 0], &[2, 1, 1]] {
        assert_eq!(List::from_column(column), None, "{column:?}");
    }
    for text in ["", "1,2", "{1,x}", "{1,2}", "{1,2,1,1,1}"] {
        assert_eq!(List::from_text(text), None, "{text:?}");
    }
    assert_eq!(List::from_text("{3}"), Some(List::Wallet));
    assert_eq!(List::from_text("{1,5,7}").unwrap().to_column(), Some(vec![1, 5, 7]));
    assert_eq!(List::None.to_column(), None);
}
