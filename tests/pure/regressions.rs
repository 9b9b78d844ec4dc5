//! Faults that the properties have found, each with the story that showed it.

use tollgate::algebra::{List, State, Timestamp};
use tollgate::plan::{Answer, Verb};
use tollgate::{CallError, DAY, Error, Grant, Limit, MINUTE, Receipt, SECOND, Tokens, TokensError};

use crate::world::{World, at, due, micros, receipt, sec, tokens};

/// The instant of the decision was once the latest of all rows asked, also of rows that grant. Where one of those lay
/// in the future, it was later than the instant to come back at, and the wait was zero.
#[test]
fn a_row_from_the_future_that_grants_does_not_shorten_the_wait_for_one_that_refuses() {
    let (ahead, empty) = (Limit::token_bucket("ahead", 10, MINUTE), Limit::token_bucket("empty", 1, SECOND));
    let mut world = World::default();
    world.put_left(&ahead.global(), tokens(5), sec(3_600));
    world.put_left(&empty.global(), tokens(0), sec(0));
    let answer = world.call(Verb::consume([ahead.global(), empty.global()]), sec(0));
    let Ok(Answer::Denied(denied)) = answer else { panic!("{answer:?}") };
    assert_eq!(denied.retry_after().unwrap(), SECOND);
}

/// A reservation of nothing writes nothing, so its instant must follow from the row as it stays, not as it was
/// refilled: flooring the refill made it late by a microsecond.
#[test]
fn a_free_reservation_on_a_debt_is_ready_at_the_exact_instant() {
    let limit = Limit::token_bucket("7/min", 7, MINUTE).unbounded_reservations();
    let mut world = World::left(&limit.global(), tokens(-1), sec(0));
    let (_, ready_at) = world.reserved(limit.global().cost(0), at(1));
    assert_eq!(ready_at, at(8_571_429));
}

/// An actual cost below zero would give back more than was charged.
#[test]
fn a_receipt_cannot_be_settled_for_less_than_nothing() {
    let limit = Limit::token_bucket("settled", 1, MINUTE).capacity(10);
    let mut world = World::default();
    let Ok(Answer::Granted { grant: Grant { receipt: Receipt { charges, .. }, .. }, .. }) =
        world.call(Verb::consume(limit.global()), sec(0))
    else {
        panic!()
    };
    let settled = world.call(Verb::Settle(receipt(&charges), micros(-5_000_000)), sec(0));
    assert!(matches!(settled, Err(Error::Call { source: CallError::Cost(TokensError::Negative), .. })), "{settled:?}");
}

/// Each write rounds the refill down, to less than a micro-token here: within the contract, and documented in the
/// guide.
#[test]
fn a_slow_limit_gains_nothing_between_writes_that_are_closer_than_a_micro_token() {
    let limit = Limit::token_bucket("1/day", 1, DAY);
    let idle = World::left(&limit.global(), tokens(0), sec(0));
    let mut busy = idle.clone();
    for write in 1..=2_701 {
        // Two writes, within 740 and 741 microseconds each.
        for (half, change) in
            [Verb::credit(limit.global().cost(0.5)), Verb::debit(limit.global().cost(0.5))].into_iter().enumerate()
        {
            let nth = 2 * (write - 1) + 1 + i64::try_from(half).unwrap();
            busy.call(change, at(nth * 4_000_000 / 5_402)).unwrap();
        }
    }
    let value = |world: &World| world.look(limit.global(), sec(4)).remaining;
    assert_eq!((value(&busy), value(&idle)), (tokens(0), micros(46)));
}

/// A hand has listed more than an amount holds. The wait was computed from the largest amount, so a caller that came
/// back then was refused again.
#[test]
fn a_list_of_more_than_any_amount_is_waited_for_to_its_end() {
    let limit = Limit::concurrency("leases", 10, MINUTE);
    let list = List::from_column(&[2, 60_000_000, i64::MAX, 0, 1, 61_000_000, i64::MAX, 0, 2]).unwrap();
    let mut world = World::holding(&limit.global(), State { list, ..State::new(Tokens::MIN, sec(0)) });
    let retry_at = due(world.denied(limit.global(), sec(0)).retry_at);
    assert_eq!(retry_at, sec(61));
    world.granted(limit.global(), retry_at);
}

/// A charge says how much the charges in front of it took. A settlement subtracted this from the cost before it checked
/// the receipt, and a lapse from the use that a row reports.
#[test]
fn numbers_at_the_ends_of_their_range_are_a_corrupt_receipt_or_nothing_and_no_panic() {
    let limit = Limit::token_bucket("settled", 10, MINUTE);
    let mut world = World::default();
    let charged = world.taken(Verb::consume(limit.global().cost(3)), sec(0));
    let with_before = |before: &str| -> Receipt {
        let mut written = serde_json::to_value(&charged).unwrap();
        written["charges"][0]["before"] = before.into();
        serde_json::from_value(written).unwrap()
    };
    for call in [
        Verb::Settle(with_before("-9223372036854.775808"), tokens(1)),
        Verb::SettleEach(with_before("-9223372036854.775808"), vec![tokens(0)]),
    ] {
        let settled = world.settled(call, sec(0));
        assert!(matches!(settled, Err(Error::Call { source: CallError::CorruptReceipt, .. })), "{settled:?}");
    }

    let _ = world.taken(Verb::consume(limit.global().cost(3).once("id").lapses_after(SECOND)), sec(0));
    let mut row = world.lapsing().remove(0);
    (row.charges, row.reported) = (with_before("0.000001").charges, Tokens::MIN);
    world.calls.insert(row.name.clone(), row.clone());
    let settlement = world.settled(Verb::Lapse(row), sec(1)).unwrap();
    assert_eq!(settlement.charges[0].cost, tokens(0), "below zero it reports nothing");
}

/// A hand has put a row near the last instant that there is, where everything that is granted seems to have left
/// already.
#[test]
fn what_is_counted_until_the_end_of_time_counts_for_ever() {
    let limits = [
        Limit::sliding_window("exact", 10, MINUTE),
        Limit::sliding_window("coarse", 10, MINUTE).resolution(1),
        Limit::concurrency("leases", 10, MINUTE),
    ];
    for limit in limits {
        for before in [0, 1, 1_000_000, 60_000_000, 61_000_000] {
            let ts = at(Timestamp::MAX.micros() - before);
            let mut world = World::left(&limit.global(), tokens(10), ts);
            for left in (0..10).rev() {
                assert_eq!(world.granted(limit.global(), sec(0)), tokens(left), "{} {before}", limit.name());
            }
            for now in [sec(0), ts] {
                world.denied(limit.global(), now);
                assert_eq!(world.look(limit.global(), now).remaining, tokens(0));
            }
            assert_eq!(world.balance(Verb::Reset(limit.global()), sec(0)).remaining, tokens(10), "a reset mends it");
            assert_eq!(world.granted(limit.global(), sec(0)), tokens(9));
        }
    }
}
