//! Sliding windows, against a log of their grants.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use tollgate::algebra::{Account, List, State, Terms};
use tollgate::plan::{Answer, Verb};
use tollgate::{DAY, Grant, HOUR, Key, Limit, LimitFault, LimitKind, LimitSpec, MINUTE, Receipt, SECOND};

use crate::story::config;
use crate::world::{World, at, due, micros, ms, sec, tokens};

fn window(n: i64, period: u64, resolution: Option<u16>) -> Limit {
    let spec = LimitSpec::new("limit", LimitKind::SlidingWindow, micros(n), Duration::from_micros(period));
    spec.with(|spec| spec.resolution = resolution).try_into().unwrap()
}

proptest! {
    #![proptest_config(config())]

    /// A sliding window is the log of its grants: it grants if and only if they leave room, each at the amount that it
    /// is settled at. Tokens used beyond a grant are a grant of their own, at the instant of the settlement. In steps
    /// the window is never over, and no stricter than a window that is a step longer.
    #[test]
    fn a_sliding_window_is_a_log_of_its_grants(
        n in 1_i64..12,
        period in 1_u64..20,
        resolution in prop::option::of(1_u16..8),
        story in vec((0_i64..6, 0_i64..8, prop::option::weighted(0.4, (0_usize..6, 0_i64..8))), 1..30),
    ) {
        let limit = window(n, period, resolution);
        let span = i64::try_from(period).unwrap();
        let tick = resolution.map_or(1, |steps| (span - 1) / i64::from(steps) + 1);
        let (mut world, mut log, mut now) = (World::default(), Vec::<(i64, i64, Option<Receipt>)>::new(), 0);
        for (gap, cost, settle) in story {
            now += gap;
            if let Some((which, actual)) = settle {
                let Some(which) = which.checked_rem(log.len()) else { continue };
                let (_, kept, receipt) = &mut log[which];
                let Some(receipt) = Option::take(receipt) else { continue };
                let settled = world.settled(Verb::Settle(receipt, micros(actual)), at(now)).unwrap();
                let comes_to = settled.charges[0].cost.micros();
                let beyond = (comes_to - *kept).max(0);
                *kept = comes_to - beyond;
                log.push((now, beyond, None));
                continue;
            }
            let cost = cost.min(n);
            let counted = |span| -> i64 {
                log.iter().filter(|(at, ..)| now < at + span).map(|(_, kept, _)| kept).sum()
            };
            let (used, longer) = (counted(span), counted(span + tick - 1));
            match world.call(Verb::consume(limit.global().cost(micros(cost))), at(now)).unwrap() {
                Answer::Granted { grant: Grant { receipt, .. }, .. } => {
                    prop_assert!(used + cost <= n, "over: {used} + {cost} of {n} at {now}");
                    log.push((now, cost, Some(receipt)));
                }
                _ => prop_assert!(longer + cost > n, "too strict: {longer} + {cost} of {n} at {now}"),
            }
        }
    }

    /// More than 64 grants are listed by rounded instants. The window is never over, and a grant that has not left it
    /// is given back whole.
    #[test]
    fn a_long_list_is_never_over_and_gives_back_whole(
        n in 70_i64..200,
        period in 100_u64..1_000,
        story in vec(
            (0_i64..5, 1_i64..4, prop::option::weighted(0.3, (any::<prop::sample::Index>(), 0_i64..6))),
            80..300,
        ),
    ) {
        let (limit, span) = (window(n, period, None), i64::try_from(period).unwrap());
        let (mut world, mut log, mut now) = (World::default(), Vec::<(i64, i64, Option<Receipt>)>::new(), 0);
        for (gap, cost, settle) in story {
            now += gap;
            if let Some((which, actual)) = settle.filter(|_| !log.is_empty()) {
                let which = which.index(log.len());
                let (granted_at, kept, receipt) = &mut log[which];
                let Some(receipt) = Option::take(receipt) else { continue };
                let comes_to = world.settled(Verb::Settle(receipt, micros(actual)), at(now)).unwrap().charges[0].cost;
                let has_left = now >= *granted_at + span;
                let expected = if has_left { actual.max(*kept) } else { actual };
                let story = format!("granted at {granted_at}, {actual} of {kept} at {now}");
                prop_assert_eq!(comes_to, micros(expected), "{}", story);
                let beyond = (expected - *kept).max(0);
                *kept = expected - beyond;
                log.push((now, beyond, None));
                continue;
            }
            let used: i64 = log.iter().filter(|(at, ..)| now < at + span).map(|(_, kept, _)| kept).sum();
            if let Answer::Granted { grant: Grant { receipt, .. }, .. } =
                world.call(Verb::consume(limit.global().cost(micros(cost))), at(now)).unwrap()
            {
                prop_assert!(used + cost <= n, "over: {used} + {cost} of {n} at {now}");
                log.push((now, cost, Some(receipt)));
            }
        }
    }

    /// A sliding window whose n changes, whose period gets shorter, and whose clock goes back: each grant keeps within
    /// the definition of its day, and nobody waits for longer than a period.
    #[test]
    fn a_changed_sliding_window_counts_at_once(
        story in vec((0_i64..6, 1_i64..6, prop::option::weighted(0.2, (1_i64..9, 0_u64..6)), 0_i64..20), 1..30),
    ) {
        let (mut n, mut period) = (5_i64, 30_u64);
        let (mut world, mut log, mut now) = (World::default(), Vec::<(i64, i64)>::new(), 100);
        for (gap, cost, change, back) in story {
            now += gap;
            if let Some((other, shorter)) = change {
                (n, period) = (other, period.saturating_sub(shorter).max(1));
            }
            let limit = window(n, period, None);
            let row = world.state(&limit.global());
            // For a row that is further on, time stands still.
            let asked = if back == 0 { now - 15 } else { now };
            let instant = row.as_ref().map_or(asked, |row| asked.max(row.ts.micros()));
            let span = i64::try_from(period).unwrap();
            match world.call(Verb::consume(limit.global().cost(micros(cost.min(n)))), at(asked)).unwrap() {
                Answer::Granted { .. } => {
                    log.push((instant, cost.min(n)));
                    let used: i64 = log.iter().filter(|(at, _)| *at > instant - span).map(|(_, cost)| cost).sum();
                    prop_assert!(used <= n, "{used} of {n} in {span} at {instant}");
                }
                Answer::Denied(denied) => {
                    let retry_at = due(denied.retry_at).micros();
                    prop_assert!(retry_at <= row.unwrap().ts.micros() + span, "{denied:?}");
                }
                Answer::Done(_) | Answer::Settled(_) => unreachable!(),
            }
        }
    }
}

/// Ten in any minute.
const SLIDING: Limit = Limit::sliding_window("sliding", 10, MINUTE);

#[test]
fn a_sliding_window_gives_back_each_grant_a_period_later() {
    let mut world = World::default();
    for (now, cost) in [(0, 4), (20, 4), (50, 2)] {
        world.granted(SLIDING.global().cost(cost), sec(now));
    }
    for (cost, retry) in [(1, 60), (4, 60), (5, 80), (8, 80), (9, 110)] {
        let denied = world.denied(SLIDING.global().cost(cost), sec(55));
        assert_eq!(due(denied.retry_at), sec(retry), "{cost}");
    }
    assert_eq!(world.look(SLIDING.global(), sec(110)).remaining, tokens(10));
    assert_eq!(due(world.look(SLIDING.global(), sec(55)).full_at), sec(110));
}

#[test]
fn where_two_counts_let_a_window_pass_twice_a_sliding_window_lets_it_pass_once() {
    // n at the end of a window, and as many as the fading count allows in the next one.
    let hundred = Limit::sliding_window("hundred", 100, MINUTE);
    let mut world = World::default();
    world.granted(hundred.global().cost(100), sec(59));
    assert_eq!(world.look(hundred.global(), at(118_999_999)).remaining, tokens(0));
    assert_eq!(world.look(hundred.global(), sec(119)).remaining, tokens(100));
}

#[test]
fn more_than_64_grants_in_a_period_count_for_a_63rd_of_it_longer_at_most() {
    let wide = Limit::sliding_window("wide", 1_000, MINUTE);
    let (mut world, step) = (World::default(), 60_000_000_i64 / 63 + 1);
    for nth in 0..600 {
        let _ = world.granted(wide.global(), ms(nth * 100));
        let list = world.state(&wide.global()).unwrap().list;
        assert!(list.entries().len() <= 65, "{} after {nth}", list.entries().len());
    }
    for nth in 1..=600 {
        let left = |instant| world.look(wide.global(), instant).remaining;
        let instant = ms(60_000 + (nth - 1) * 100);
        assert!(left(instant) <= tokens(400 + nth), "never over");
        assert!(left(at(instant.micros() + step)) >= tokens(400 + nth), "{nth}");
    }
}

#[test]
fn credits_debits_and_resets_of_a_sliding_window() {
    let mut world = World::default();
    let receipt = world.taken(Verb::consume(SLIDING.global().cost(2).tracked_for(MINUTE)), sec(0));
    world.granted(SLIDING.global().cost(4), sec(10));
    world.granted(SLIDING.global().cost(4), sec(20));
    assert_eq!(world.balance(Verb::credit(SLIDING.global().cost(5)), sec(30)).remaining, tokens(5));
    assert_eq!(world.look(SLIDING.global(), sec(70)).remaining, tokens(6), "of what leaves soonest");
    assert_eq!(world.balance(Verb::debit(SLIDING.global().cost(9)), sec(30)).remaining, tokens(-4));
    assert_eq!(world.look(SLIDING.global(), sec(89)).remaining, tokens(1));
    assert_eq!(world.look(SLIDING.global(), sec(90)).remaining, tokens(10));
    assert_eq!(world.balance(Verb::Reset(SLIDING.global()), sec(40)).remaining, tokens(10));
    world.settled(Verb::Settle(receipt, tokens(1)), sec(40)).unwrap();
    assert_eq!(world.look(SLIDING.global(), sec(40)).remaining, tokens(10), "it was forgiven");
}

#[test]
fn what_was_used_beyond_a_grant_counts_for_a_period_from_its_settlement_on() {
    let mut world = World::default();
    let [first, second] = [2, 3].map(|cost| world.taken(Verb::consume(SLIDING.global().cost(cost)), sec(0)));
    world.granted(SLIDING.global().cost(3), sec(10));
    // The balance falls at once, and behind a clock that went back at the row's instant.
    world.settled(Verb::Settle(first, tokens(6)), sec(5)).unwrap();
    assert_eq!(world.state(&SLIDING.global()).unwrap().list.to_column().unwrap()[3..], [70_000_000, 7_000_000]);
    world.settled(Verb::Settle(second, tokens(13)), sec(65)).unwrap();
    for (now, left) in [(65_000_000, -7), (69_999_999, -7), (70_000_000, 0), (124_999_999, 0), (125_000_000, 10)] {
        assert_eq!(world.look(SLIDING.global(), at(now)).remaining, tokens(left), "{now}");
    }
    assert_eq!(due(world.denied(SLIDING.global(), sec(66)).retry_at), sec(125));
    world.sweep(at(124_999_999));
    assert!(world.state(&SLIDING.global()).is_some());
    world.sweep(sec(125));
    assert_eq!(world.state(&SLIDING.global()), None);
}

/// More than 64 grants are listed by rounded instants, which may lie behind entries that are listed later.
#[test]
fn what_is_given_back_is_given_back_whole_also_where_instants_were_rounded() {
    for grants in [64, 65, 66, 130] {
        let limit = Limit::sliding_window("day", 10_000, DAY);
        let mut world = World::default();
        let mut take = |now| world.taken(Verb::consume(limit.global().cost(10)), sec(now));
        let mut receipts: Vec<_> = (0..grants).map(&mut take).collect();
        let [first, last] = [receipts.remove(0), receipts.pop().unwrap()];
        world.settled(Verb::Settle(last, tokens(11)), sec(200)).unwrap();
        let settled = world.settled(Verb::Settle(first, tokens(0)), sec(200)).unwrap();
        assert_eq!(settled.charges[0].cost, tokens(0), "{grants}");
        for receipt in receipts {
            world.settled(Verb::Settle(receipt, tokens(0)), sec(200)).unwrap();
        }
        assert_eq!(world.look(limit.global(), sec(200)).remaining, tokens(10_000 - 11), "{grants}");
    }
}

/// An entry of nothing would keep the row for a period.
#[test]
fn a_grant_that_is_given_back_whole_leaves_the_list() {
    let mut world = World::default();
    let [first, second] = [2, 3].map(|cost| world.taken(Verb::consume(SLIDING.global().cost(cost)), sec(cost)));
    world.settled(Verb::Settle(second, tokens(0)), sec(5)).unwrap();
    assert_eq!(world.state(&SLIDING.global()).unwrap().list.to_column().unwrap()[1..], [62_000_000, 2_000_000]);
    world.settled(Verb::Settle(first, tokens(0)), sec(5)).unwrap();
    world.sweep(sec(5));
    assert_eq!(world.state(&SLIDING.global()), None);
    // By a credit, too.
    world.granted(SLIDING.global().cost(2), sec(6));
    world.granted(SLIDING.global().cost(3), sec(7));
    world.balance(Verb::credit(SLIDING.global().cost(2)), sec(8));
    assert_eq!(world.state(&SLIDING.global()).unwrap().list.to_column().unwrap()[1..], [67_000_000, 3_000_000]);
}

/// Its entry leaves the earlier for that; another's is not touched.
#[test]
fn a_charge_whose_entry_a_shorter_window_has_cut_gives_nothing_back() {
    let [short, long] = [10, 60].map(|period| window(4_000_000, period * 1_000_000, None));
    let mut world = World::default();
    let receipt = world.taken(Verb::consume(long.global().cost(1)), sec(0));
    world.granted(short.global().cost(1), sec(1));
    world.granted(long.global().cost(2), sec(5));
    let settled = world.settled(Verb::Settle(receipt, tokens(0)), sec(6)).unwrap();
    assert_eq!(settled.charges[0].cost, tokens(1));
    for (now, left) in [(9_999_999, 0), (10_000_000, 1), (11_000_000, 2), (64_999_999, 2), (65_000_000, 4)] {
        assert_eq!(world.look(long.global(), at(now)).remaining, tokens(left), "{now}");
    }
}

/// The number of grants of two windows after each second of ten minutes; one of the two asks for a token in each
/// second. Receipts are settled at nothing after some seconds. An entry in the row's list is never pushed later.
fn granted_in_turns(both: [&Limit; 2], turn: fn(i64) -> usize, settled_after: i64) -> Vec<usize> {
    let (mut world, mut receipts) = (World::default(), Vec::new());
    let mut granted = Vec::new();
    for now in 0..600 {
        let listed = |world: &World| -> Vec<i64> {
            let entries = world.state(&both[0].global()).map_or_else(Vec::new, |row| row.list.entries().to_vec());
            let live = |instant| entries.iter().filter(move |entry| entry.ends_at > sec(instant));
            (now..now + 60).map(|instant| live(instant).map(|entry| entry.amount.micros()).sum()).collect()
        };
        let (limit, before) = (both[turn(now)], listed(&world));
        let answer = world.call(Verb::consume(limit.global()), sec(now)).unwrap();
        let own = if let Answer::Granted { grant: Grant { receipt, .. }, .. } = answer {
            receipts.push((now, Some(receipt)));
            i64::try_from(limit.spec().period.as_secs()).unwrap()
        } else {
            0
        };
        let most = before.iter().zip(0..).map(|(listed, later)| listed + if later < own { 1_000_000 } else { 0 });
        assert!(listed(&world).into_iter().zip(most).all(|(listed, most)| listed <= most), "at {now}");
        for (_, receipt) in receipts.iter_mut().filter(|(at, _)| at + settled_after == now) {
            let before = listed(&world);
            world.settled(Verb::Settle(receipt.take().unwrap(), tokens(0)), sec(now)).unwrap();
            assert!(listed(&world).iter().zip(before).all(|(listed, before)| *listed <= before), "at {now}");
        }
        granted.push(receipts.len());
    }
    granted
}

#[test]
fn a_window_only_ever_shortens_what_a_longer_one_has_listed() {
    let [short, long] = [10, 60].map(|period| Limit::sliding_window("x", 10, SECOND * period));
    let turns: [fn(i64) -> usize; 4] = [
        |now| usize::from(now % 2 == 0),
        |now| usize::from(now % 7 > 0),
        |now| usize::from(now % 60 != 30),
        |now| usize::from(now % 50 < 25),
    ];
    for turn in turns {
        let alone = granted_in_turns([&short, &long], |_| 1, 600);
        let in_turns = granted_in_turns([&short, &long], turn, 600);
        assert!(
            in_turns.iter().zip(alone).all(|(in_turns, alone)| *in_turns >= alone),
            "none is later than of the longer"
        );
        for settled_after in [3, 7, 9, 20, 45] {
            granted_in_turns([&short, &long], turn, settled_after);
        }
    }
}

#[test]
fn a_row_that_another_kind_of_limit_wrote_counts_until_it_is_full() {
    let bucket = Limit::token_bucket("sliding", 1, HOUR).capacity(10);
    let mut world = World::default();
    world.granted(bucket.global().cost(9), sec(0));
    assert_eq!(world.look(SLIDING.global(), at(9 * 3_600_000_000 - 1)).remaining, tokens(1));
    assert_eq!(world.look(SLIDING.global(), sec(9 * 3_600)).remaining, tokens(10));
}

/// No list says when that use ends. A debit lasts a period, as a grant does.
#[test]
fn a_debit_and_a_credit_leave_the_use_of_another_kind_in_the_row() {
    let (terms, rows) = (Terms::of(&SLIDING, &Key::GLOBAL), [Some(State::new(tokens(-4), sec(0)).full_at(sec(40)))]);
    let account = Account::new(&terms, &rows, sec(10));
    let debited = account.debit(tokens(3)).unwrap().remove(0);
    assert_eq!(debited.next, State::new(tokens(-7), sec(0)).full_at(sec(70)));
    assert_eq!(debited.taken, tokens(3));
    let credited = account.credit(tokens(1)).remove(0);
    assert_eq!(credited.next, State::new(tokens(-3), sec(0)).full_at(sec(40)));
    assert_eq!(credited.taken, tokens(-1));
}

/// A credit gave back what another kind had used.
#[test]
fn a_row_of_another_kind_of_which_nothing_is_used_lists_nothing() {
    let row = State::new(tokens(0), sec(0)).full_at(sec(40));
    let read = Terms::of(&SLIDING, &Key::GLOBAL).refill(&row, sec(10));
    assert_eq!((read.list, read.full_at), (List::Grants(Vec::new()), sec(10)));
}

#[test]
fn what_is_no_sliding_window_is_a_fault_with_a_name() {
    let spec = || SLIDING.spec();
    for (spec, fault) in [
        (spec().with(|spec| spec.shards = 2), LimitFault::ShardsOfCounting),
        (spec().with(|spec| spec.max_reserved = tokens(1)), LimitFault::ReservationsOfCounting),
        (spec().with(|spec| spec.capacity = Some(tokens(20))), LimitFault::CapacityOfCounting),
        (spec().with(|spec| spec.start = Some(SECOND)), LimitFault::StartOfCounting),
        (spec().with(|spec| spec.resolution = Some(0)), LimitFault::ResolutionOutOfRange),
        (spec().with(|spec| spec.resolution = Some(64)), LimitFault::ResolutionOutOfRange),
        (
            Limit::token_bucket("ten", 10, MINUTE).spec().with(|spec| spec.resolution = Some(1)),
            LimitFault::ResolutionWithoutSliding,
        ),
    ] {
        assert_eq!(Limit::try_from(spec).unwrap_err().fault, fault);
    }
    let coarse = SLIDING.resolution(10).ephemeral();
    assert_eq!(Limit::try_from(coarse.spec()).unwrap(), coarse);
    let text = serde_json::to_string(&coarse).unwrap();
    assert_eq!(serde_json::from_str::<Limit>(&text).unwrap(), coarse, "{text}");
}
