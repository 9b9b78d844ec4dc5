//! Receipts of a limit that has another kind or other numbers by now.

use tollgate::algebra::Timestamp;
use tollgate::plan::Verb;
use tollgate::{DAY, Error, HOUR, Limit, LimitKind, MINUTE, SECOND};

use super::{left, take};
use crate::world::{World, at, due, micros, sec, tokens, used};

/// Takes all that is left under a definition; how much that was.
fn drain(world: &mut World, limit: &Limit, now: Timestamp) -> i64 {
    let left = left(world, limit, now).micros();
    if left <= 0 {
        0
    } else {
        world.granted(limit.global().cost(micros(left)), now);
        left / 1_000_000
    }
}

#[test]
fn a_bucket_and_a_window_that_take_turns_grant_what_one_of_them_holds() {
    let (window, bucket) = (Limit::sliding_window("x", 100, MINUTE), Limit::token_bucket("x", 100, MINUTE));
    let (mut world, mut granted) = (World::default(), 0);
    for _ in 0..200 {
        if left(&world, &window, sec(0)) >= tokens(1) {
            world.granted(window.global(), sec(0));
            granted += 1;
        }
        let most = left(&world, &bucket, sec(0)).micros() / 1_000_000 - 1;
        if most > 0 {
            world.granted(bucket.global().cost(most), sec(0));
            granted += most;
        }
    }
    assert_eq!(granted, 100);
}

#[test]
fn receipts_of_another_kind_fill_no_bucket() {
    let (window, bucket) = (Limit::sliding_window("x", 100, MINUTE), Limit::token_bucket("x", 100, MINUTE));
    let leases = Limit::concurrency("x", 100, MINUTE);
    for old in [window, leases] {
        let mut world = World::default();
        let receipts: Vec<_> = (0..50).map(|_| take(&mut world, old.global().cost(2), sec(0))).collect();
        let mut granted = 0;
        for receipt in receipts {
            if old.lease().is_some() {
                // The first lease lasts from now on, and none that the bucket no longer lists.
                let renewed = world.call(Verb::Renew(receipt.clone()), sec(0));
                assert_eq!(renewed.is_ok(), granted == 0, "{renewed:?}");
                assert_eq!(drain(&mut world, &bucket, sec(0)), 0);
            }
            let call =
                if old.lease().is_some() { Verb::Release(receipt.clone()) } else { Verb::Settle(receipt, tokens(1)) };
            world.call(call, sec(0)).ok();
            granted += drain(&mut world, &bucket, sec(0));
        }
        assert!(granted <= 2, "{granted} beyond 100, of which at most a lease came back");
    }
}

#[test]
fn old_receipts_refill_nothing_under_a_lowered_rate() {
    let old = Limit::token_bucket("x", 1_000, SECOND).capacity(100);
    let new = Limit::token_bucket("x", 1, HOUR).capacity(100);
    let mut world = World::default();
    let receipts: Vec<_> = (0..5).map(|_| take(&mut world, old.global().cost(2), sec(0))).collect();
    let _ = take(&mut world, old.global().cost(90), sec(0));
    let mut granted = 0;
    for (receipt, now) in receipts.into_iter().zip(1..) {
        world.settled(Verb::Settle(receipt, tokens(1)), at(now * 20_000)).unwrap();
        granted += drain(&mut world, &new, at(now * 20_000));
    }
    assert_eq!(granted, 5, "what came back, and no more");
}

#[test]
fn old_receipts_of_a_window_that_is_longer_by_now_give_back_once() {
    let (old, new) = (Limit::sliding_window("x", 10, SECOND), Limit::sliding_window("x", 10, MINUTE));
    let (mut world, mut granted) = (World::default(), 0);
    let receipts: Vec<_> = (0..10).map(|_| take(&mut world, old.global(), sec(0))).collect();
    for (receipt, now) in receipts.into_iter().zip(0..) {
        world.settled(Verb::Settle(receipt, tokens(0)), sec(now * 6)).unwrap();
        granted += drain(&mut world, &new, sec(now * 6));
    }
    assert!(granted <= 11, "{granted} of 10 in a minute, and what came back in the first second");
}

#[test]
fn a_drained_bucket_that_becomes_a_window_is_forgiven_nothing() {
    let (bucket, window) = (Limit::token_bucket("x", 10, DAY), Limit::sliding_window("x", 10, MINUTE));
    let mut world = World::default();
    let receipt = take(&mut world, bucket.global().cost(1).tracked_for(DAY), sec(0));
    let _ = take(&mut world, bucket.global().cost(9), sec(0));
    assert_eq!(left(&world, &window, sec(59)), tokens(0));
    world.settled(Verb::Settle(receipt, tokens(0)), sec(59)).unwrap();
    assert_eq!(left(&world, &window, sec(59)), tokens(1));
}

#[test]
fn a_shorter_window_counts_at_once_for_charges_that_are_tracked() {
    let (hour, minute) = (Limit::sliding_window("x", 10, HOUR), Limit::sliding_window("x", 10, MINUTE));
    let mut world = World::default();
    let _ = take(&mut world, hour.global().cost(10).tracked_for(HOUR), sec(0));
    assert_eq!(due(world.denied(minute.global(), sec(1)).retry_at), sec(60));
}

#[test]
fn what_was_used_beyond_a_charge_of_another_kind_lowers_the_row_and_drops_its_list() {
    let (window, bucket) = (Limit::sliding_window("x", 10, MINUTE), Limit::token_bucket("x", 10, MINUTE));
    let leases = Limit::concurrency("x", 10, MINUTE);
    for (old, new) in [(&window, &leases), (&bucket, &window), (&bucket, &leases)] {
        let mut world = World::default();
        let receipt = take(&mut world, old.global(), sec(0));
        let lease = take(&mut world, new.global().cost(2), sec(0));
        assert_eq!(world.state(&new.global()).unwrap().value, tokens(-3));
        world.settled(Verb::Settle(receipt, tokens(4)), sec(5)).unwrap();
        // The row is read as of its own instant: five seconds bring a bucket nothing more.
        assert_eq!(world.state(&new.global()).unwrap(), used(6, sec(0), world.state(&new.global()).unwrap().full_at));
        assert_eq!([&window, &leases].map(|limit| left(&world, limit, sec(5))), [tokens(4); 2]);
        let full_at = world.state(&new.global()).unwrap().full_at;
        if old.spec().kind != LimitKind::TokenBucket || new.lease().is_some() {
            assert_eq!(left(&world, new, at(full_at.micros() - 1)), tokens(4));
        }
        assert_eq!(left(&world, new, full_at), tokens(10));
        if new.lease().is_some() {
            assert!(matches!(world.call(Verb::Release(lease.clone()), sec(5)), Err(Error::ReceiptUsed { .. })));
        }
    }
}
