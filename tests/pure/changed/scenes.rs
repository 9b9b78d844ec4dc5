//! Scenes of a limit whose definition changes.

use std::time::Duration;

use tollgate::algebra::State;
use tollgate::plan::{Answer, Verb};
use tollgate::{DAY, HOUR, Limit, MINUTE, Tokens};

use crate::world::{World, at, due, micros, receipt, sec, tokens};

#[test]
fn a_raised_limit_counts_at_once() {
    let both = |numbers: [u64; 2]| {
        [
            numbers.map(|n| Limit::fixed_window("plan", n, DAY).start(Duration::ZERO)),
            numbers.map(|n| Limit::token_bucket("plan", n, DAY)),
            numbers.map(|n| Limit::stepped_bucket("plan", n, DAY)),
            numbers.map(|n| Limit::sliding_window("plan", n, DAY)),
        ]
    };
    for [small, large] in both([1_000, 10_000]) {
        let mut world = World::default();
        world.granted(small.global().cost(1_000), sec(9));
        world.denied(small.global(), sec(9));
        let balance = world.look(large.global(), sec(9));
        assert_eq!((balance.remaining, balance.used), (tokens(9_000), tokens(1_000)), "{}", large.spec().kind);
        assert_eq!(world.granted(large.global().cost(9_000), sec(9)), tokens(0));
        world.denied(large.global(), sec(9));
    }
}

#[test]
fn a_lowered_limit_forgives_nothing_and_grants_again_when_the_larger_one_would_be_full() {
    let window = |n| Limit::fixed_window("plan", n, DAY).start(Duration::ZERO);
    let bucket = |n| Limit::token_bucket("plan", n, DAY);
    let sliding = |n| Limit::sliding_window("plan", n, DAY);
    let stepped = |n| Limit::stepped_bucket("plan", n, DAY);
    for ([large, small], full_at) in [
        ([window(10_000), window(1_000)], sec(86_400)),
        ([bucket(10_000), bucket(1_000)], at(9 * 8_640_000_000 + 3_600_000_000)),
        ([sliding(10_000), sliding(1_000)], sec(90_000)),
        ([stepped(10_000), stepped(1_000)], sec(90_000)),
    ] {
        let mut world = World::default();
        world.granted(large.global().cost(9_000), sec(3_600));
        let denied = world.denied(small.global(), sec(3_600));
        assert_eq!((denied.remaining, due(denied.retry_at)), (tokens(-8_000), full_at), "{}", small.spec().kind);
        assert_eq!(world.granted(small.global().cost(1_000), full_at), tokens(0));
    }
}

#[test]
fn the_end_of_larger_numbers_takes_back_what_they_gave_on_one_grid() {
    let own = Limit::fixed_window("plan", 10, DAY).start(Duration::ZERO);
    let larger = Limit::fixed_window("plan", 1_000, DAY).start(Duration::ZERO);
    let mut world = World::default();
    world.granted(own.global().cost(10), sec(9));
    world.granted(larger.global().cost(40), sec(9));
    let balance = world.look(own.global(), sec(10));
    assert_eq!((balance.remaining, balance.used, due(balance.full_at)), (tokens(-40), tokens(50), sec(86_400)));
    assert_eq!(world.granted(own.global(), sec(86_400)), tokens(9));
    // A larger rate makes the row full sooner: that is within the bound of both.
    let faster = Limit::token_bucket("plan", 1_000, HOUR);
    let slow = Limit::token_bucket("plan", 10, DAY);
    let mut world = World::default();
    world.granted(slow.global().cost(10), sec(0));
    world.granted(faster.global(), sec(0));
    assert_eq!(world.look(slow.global(), sec(39)).remaining, micros(-995_487));
    world.denied(slow.global(), at(39_599_999));
    assert_eq!(world.granted(slow.global().cost(10), at(39_600_000)), tokens(0));
}

/// A call under the smaller plan adds the time in which its tokens come back, and no more.
#[test]
fn a_call_under_a_smaller_plan_keeps_the_end_of_what_the_larger_one_used() {
    let [large, small] = [10_000, 1_000].map(|n| Limit::token_bucket("plan", n, 30 * DAY));
    let mut world = World::default();
    world.granted(large.global().cost(500), sec(0));
    world.granted(small.global().cost(100), sec(0));
    let day = 86_400;
    assert_eq!(due(world.look(small.global(), sec(0)).full_at), sec(day * 3 / 2 + 3 * day));
    let full = world.look(small.global(), sec(day * 9 / 2)).remaining;
    assert_eq!(full, tokens(1_000));
}

#[test]
fn who_changes_plans_each_day_gets_no_more_than_the_larger_one_in_its_period() {
    let start = |limit: Limit| limit.start(Duration::ZERO);
    let (free, pro) =
        (start(Limit::fixed_window("plan", 100, DAY)), start(Limit::fixed_window("plan", 10_000, 30 * DAY)));
    let (mut world, mut got) = (World::default(), 0);
    for day in 0..30 {
        let now = sec(day * 86_400);
        if let Ok(Answer::Granted { .. }) = world.call(Verb::consume(free.global()), now) {
            got += 1;
        }
        let left = world.look(pro.global(), now).remaining;
        if left > Tokens::ZERO {
            world.granted(pro.global().cost(left), now);
            got += left.micros() / 1_000_000;
        }
    }
    assert_eq!(got, 10_000);
}

#[test]
fn what_was_used_beyond_a_charge_is_not_lost_on_a_swept_row() {
    let limit = Limit::token_bucket("plan", 10, MINUTE);
    for swept in [false, true] {
        let mut world = World::default();
        let receipt = world.taken(Verb::consume(limit.global()), sec(0));
        if swept {
            world.sweep(sec(100));
        }
        world.settled(Verb::Settle(receipt, tokens(6)), sec(100)).unwrap();
        assert_eq!(world.look(limit.global(), sec(100)).remaining, tokens(5), "swept: {swept}");
    }
}

/// However many settlements come to more than their charges, a lowered plan waits no longer than the larger one needs
/// to bring all of it back.
#[test]
fn settlements_above_their_charges_put_the_end_off_no_further_than_their_own_rate() {
    let month = 30 * DAY;
    let window = |n| Limit::fixed_window("plan", n, month).start(Duration::ZERO);
    let bucket = |n| Limit::token_bucket("plan", n, month);
    let stepped = |n| Limit::stepped_bucket("plan", n, month);
    for [large, small] in [[10_000, 1_000].map(window), [10_000, 1_000].map(bucket), [10_000, 1_000].map(stepped)] {
        let mut world = World::default();
        let receipts: Vec<_> = (0..9).map(|_| world.taken(Verb::consume(large.global().cost(1_000)), sec(0))).collect();
        for receipt in receipts {
            world.settled(Verb::Settle(receipt, tokens(1_001)), sec(0)).unwrap();
        }
        let kind = large.spec().kind;
        assert_eq!(due(world.denied(small.global(), sec(0)).retry_at), sec(30 * 86_400), "{kind}");
        assert_eq!(world.granted(small.global(), sec(30 * 86_400)), tokens(999), "{kind}");
    }
}

/// A charge of a faster definition that is settled late ends no use of a slower one.
#[test]
fn a_settlement_above_its_charge_makes_no_row_full_sooner() {
    let [fast, slow] = [Limit::token_bucket("plan", 1_000, HOUR), Limit::token_bucket("plan", 10, DAY)];
    let mut world = World::default();
    let receipt = world.taken(Verb::consume(fast.global()), sec(0));
    world.granted(slow.global().cost(10), sec(100));
    world.settled(Verb::Settle(receipt, tokens(2)), sec(200)).unwrap();
    assert_eq!(due(world.denied(slow.global().cost(10), sec(200)).retry_at), sec(86_500));
}

/// A row that another kind has used comes back by the terms of that kind, though an operator changes it under a sliding
/// window.
#[test]
fn a_credit_or_a_debit_of_a_sliding_window_ends_no_use_of_another_kind() {
    let bucket = Limit::token_bucket("plan", 1_000, 30 * DAY);
    let leases = Limit::concurrency("plan", 1_000, 27 * DAY);
    let sliding = Limit::sliding_window("plan", 100, MINUTE);
    for other in [bucket, leases] {
        for (change, left) in [
            (Verb::credit as fn(tollgate::Request) -> Verb, -799),
            (Verb::debit as fn(tollgate::Request) -> Verb, -801),
        ] {
            let mut world = World::default();
            world.granted(other.global().cost(900), sec(0));
            let answer = world.call(change(sliding.global()), sec(1));
            let Ok(Answer::Done(balance)) = answer else { panic!("it was changed") };
            assert_eq!(balance.remaining, tokens(left));
            assert_eq!(due(world.denied(sliding.global(), sec(120)).retry_at), sec(27 * 86_400));
            assert!(world.look(other.global(), sec(120)).remaining < tokens(102));
        }
    }
}

/// A row that a hand has written above full reads as full.
#[test]
fn a_row_above_full_reads_as_full() {
    for limit in [Limit::token_bucket("plan", 10, MINUTE), Limit::fixed_window("plan", 10, MINUTE)] {
        let mut world = World::holding(&limit.global(), State::new(Tokens::MAX, sec(0)).full_at(sec(1_000)));
        let balance = world.look(limit.global(), sec(0));
        assert_eq!((balance.remaining, balance.used), (tokens(10), Tokens::ZERO));
        assert_eq!(world.granted(limit.global(), sec(0)), tokens(9));
    }
}

/// A receipt is right under any definition: it says all that it needs.
#[test]
fn a_receipt_of_a_larger_definition_gives_back_under_a_smaller_one() {
    let [large, small] = [100, 10].map(|n| Limit::token_bucket("plan", n, DAY));
    let mut world = World::default();
    let taken = world.taken(Verb::consume(large.global().cost(50)), sec(0));
    assert_eq!(world.look(small.global(), sec(0)).remaining, tokens(-40));
    world.settled(Verb::Settle(receipt(&taken.charges), tokens(45)), sec(0)).unwrap();
    assert_eq!(world.look(small.global(), sec(0)).remaining, tokens(-35));
    world.settled(Verb::Settle(receipt(&taken.charges), tokens(5)), sec(0)).unwrap();
    assert_eq!(world.look(small.global(), sec(0)).remaining, tokens(10), "no more than is missing");
}
