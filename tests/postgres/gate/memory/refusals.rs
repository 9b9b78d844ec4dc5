//! Refusals that are remembered: they cost no query, and refuse no call that the database would let through.

use std::sync::atomic::Ordering;
use std::time::Duration;

use chrono::DateTime;
use fastrand::Rng;
use tollgate::{Balance, Decision, Denied, Error, Gate, HOUR, Limit, MINUTE, Receipt, SECOND, Source, Tokens};

use super::stage::{Stage, ones};
use crate::gate::stage::{EVER, patient, pool, soon};
use crate::teller::both;
use crate::world::{World, limiter};

#[tokio::test]
async fn a_refusal_lapses_when_the_row_is_full_again() {
    let stage = Stage::new(100).await;
    for limit in ones() {
        stage.ok(limit.key("k")).await;
        stage.asked(limit.key("k")).await;
        stage.remembered(limit.key("k")).await;
        stage.pass(2 * MINUTE);
        stage.ok(limit.key("k")).await;
    }
}

#[tokio::test]
async fn what_a_gate_shows_for_debugging_names_no_key() {
    let stage = Stage::new(100).await;
    let limit = Limit::fixed_window("window", 1, MINUTE);
    stage.ok(limit.key("secret")).await;
    stage.asked(limit.key("secret")).await;
    stage.remembered(limit.key("secret")).await;
    let shown = format!("{:?}", stage.gate);
    assert!(shown.contains("lock_timeout") && !shown.contains("secret"), "{shown}");
}

/// At the very instant that the refusal names, and not a microsecond before.
#[tokio::test]
async fn a_remembered_refusal_lapses_at_its_own_instant() {
    let stage = Stage::new(100).await;
    for limit in ones() {
        stage.ok(limit.key("k")).await;
        let denied = stage.asked(limit.key("k")).await;
        stage.pass(denied.retry_after().unwrap().checked_sub(Duration::from_micros(1)).unwrap());
        assert_eq!(stage.remembered(limit.key("k")).await.retry_after(), Some(Duration::from_micros(1)));
        stage.pass(Duration::from_micros(1));
        stage.ok(limit.key("k")).await;
    }
}

#[tokio::test]
async fn so_many_keys_are_remembered_and_those_beyond_ask() {
    let stage = Stage::new(3).await;
    let limit = Limit::fixed_window("window", 1, MINUTE);
    for key in 0..5 {
        stage.ok(limit.key(key)).await;
        stage.asked(limit.key(key)).await;
    }
    for key in 0..3 {
        stage.remembered(limit.key(key)).await;
    }
    for key in 3..5 {
        stage.asked(limit.key(key)).await;
    }
    stage.pass(2 * MINUTE);
    stage.ok(limit.key(0)).await;
}

/// The second half of F54: lapsed refusals are swept, so that others can be remembered.
#[tokio::test]
async fn lapsed_refusals_make_room() {
    let stage = Stage::new(3).await;
    let limit = Limit::fixed_window("window", 1, MINUTE);
    for key in 0..3 {
        stage.ok(limit.key(key)).await;
        stage.asked(limit.key(key)).await;
    }
    stage.pass(2 * MINUTE);
    stage.ok(limit.key("fourth")).await;
    stage.asked(limit.key("fourth")).await;
    stage.remembered(limit.key("fourth")).await;
    stage.ok(limit.key(0)).await;
}

/// Each settlement raises a row of its own, and each refusal of a concurrency limit is one that may end at any time:
/// none takes the room of what can be remembered.
#[tokio::test]
async fn settlements_and_leases_do_not_switch_the_memory_off() {
    let stage = Stage::new(3).await;
    let (window, slots) = (Limit::fixed_window("window", 1, MINUTE), Limit::concurrency("slots", 1, HOUR));
    for key in 0..20 {
        let grant = stage.gate.consume(window.key(key)).await.unwrap().granted().unwrap();
        stage.gate.settle(grant, 0).await.unwrap();
        let lease = Receipt::from(stage.gate.consume(slots.key(key)).await.unwrap().granted().unwrap());
        stage.asked(slots.key(key)).await;
        let _ = stage.gate.renew(&lease).await.unwrap();
    }
    stage.ok(window.key("k")).await;
    stage.asked(window.key("k")).await;
    stage.remembered(window.key("k")).await;
}

#[tokio::test]
async fn a_refusal_from_memory_says_what_the_database_would() {
    let stage = Stage::new(100).await;
    for limit in ones() {
        stage.ok(limit.key("k")).await;
        let asked = stage.asked(limit.key("k")).await;
        assert!(asked.remaining < Tokens::ONE);
        let span = asked.retry_after().unwrap() / 20;
        for _ in 0..19 {
            stage.pass(span);
            let expected = stage.other().consume(limit.key("k")).await.unwrap().denied().unwrap();
            let mut told = stage.remembered(limit.key("k")).await;
            assert_eq!(told.retry_at, asked.retry_at);
            told.source = Source::Database;
            assert_eq!(told, expected);
            let mut told = stage.gate.check(limit.key("k")).await.unwrap().denied().unwrap();
            assert_eq!(told.source, Source::Memory);
            told.source = Source::Database;
            assert_eq!(told, expected);
        }
    }
}

#[tokio::test]
async fn a_smaller_cost_is_asked_unless_it_must_be_refused_too() {
    let stage = Stage::new(100).await;
    for limit in both(&Limit::token_bucket("bucket", 10, EVER)) {
        stage.ok(limit.key("k").cost(5)).await;
        let ten = stage.asked(limit.key("k").cost(10)).await;
        let (eight, six) =
            (stage.remembered(limit.key("k").cost(8)).await, stage.remembered(limit.key("k").cost(6)).await);
        assert!(six.retry_at < eight.retry_at && eight.retry_at < ten.retry_at);
        assert_eq!((six.remaining, eight.remaining), (Tokens::new(5), Tokens::new(5)));
        stage.ok(limit.key("k").cost(1)).await;
        // Four are left, and the gate knows that, because it took the one token itself.
        stage.remembered(limit.key("k").cost(6)).await;
        stage.remembered(limit.key("k").cost(5)).await;
        stage.ok(limit.key("k").cost(4)).await;
        // Nothing is left, and the gate knows that, too.
        stage.remembered(limit.key("k").cost(1)).await;
        stage.remembered(limit.key("k").cost(10)).await;
    }
}

/// A balance that this gate itself has lowered since: the instant is that of the row as it is, not as it was.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_from_memory_knows_what_the_gate_has_taken_since() {
    let stage = Stage::new(100).await;
    let limit = Limit::token_bucket("bucket", 10, MINUTE);
    stage.ok(limit.key("k").cost(5)).await;
    stage.asked(limit.key("k").cost(10)).await;
    stage.ok(limit.key("k").cost(4)).await;
    let expected = stage.other().consume(limit.key("k").cost(10)).await.unwrap().denied().unwrap();
    let told = stage.gate.consume(limit.key("k").cost(10)).await.unwrap().denied().unwrap();
    assert_eq!((told.remaining, told.retry_at), (expected.remaining, expected.retry_at));
}

#[tokio::test]
async fn a_cost_above_the_capacity_blocks_nobody() {
    let stage = Stage::new(100).await;
    let limit = Limit::token_bucket("bucket", 10, MINUTE);
    let error = stage.gate.consume(limit.key("k").cost(11)).await.unwrap_err();
    assert!(matches!(error, Error::CostExceedsCapacity { .. }), "{error:?}");
    assert_eq!(stage.proxy.statements(), 0);
    stage.ok(limit.key("k").cost(10)).await;
    stage.asked(limit.key("k")).await;
    // It is no refusal, not even for a key that is remembered.
    let error = stage.gate.consume(limit.key("k").cost(11)).await.unwrap_err();
    assert!(matches!(error, Error::CostExceedsCapacity { .. }), "{error:?}");
}

#[tokio::test]
async fn reservations_credits_debits_and_looks_are_never_decided_from_memory() {
    let stage = Stage::new(100).await;
    let limit = Limit::token_bucket("owing", 1, MINUTE).max_reserved(5);
    stage.ok(limit.key("k")).await;
    stage.asked(limit.key("k")).await;
    let before = stage.proxy.statements();
    assert_eq!(stage.gate.balance(limit.key("k")).await.unwrap().remaining, Tokens::ZERO);
    stage.remembered(limit.key("k")).await;
    assert_eq!(stage.gate.debit(limit.key("k")).await.unwrap().remaining, Tokens::from_micros(-1_000_000));
    stage.remembered(limit.key("k")).await;
    stage.gate.reserve(limit.key("k").cost(4)).await.unwrap().granted().unwrap();
    stage.remembered(limit.key("k")).await;
    let refused = stage.gate.reserve(limit.key("k")).await.unwrap().denied().unwrap();
    assert_eq!(refused.source, Source::Database);
    assert!(stage.proxy.statements() >= before + 6);
}

/// Any of them refuses for all, and a row that is not remembered is not named.
#[tokio::test]
async fn a_call_of_several_limits_is_refused_by_the_one_that_is_remembered() {
    let stage = Stage::new(100).await;
    let (tight, loose) = (Limit::token_bucket("tight", 1, MINUTE), Limit::token_bucket("loose", 9, EVER).ephemeral());
    stage.ok(tight.key("k")).await;
    stage.asked(tight.key("k")).await;
    let before = stage.proxy.trips();
    let denied = stage.gate.consume([loose.key("k"), tight.key("k")]).await.unwrap().denied().unwrap();
    assert_eq!((denied.source, &*denied.limit, denied.others.len()), (Source::Memory, "tight", 0));
    assert_eq!(stage.proxy.trips(), before);
    // Where several refuse, the latest one is named.
    stage.ok(loose.key("k").cost(9)).await;
    stage.asked(loose.key("k")).await;
    let denied = stage.gate.consume([tight.key("k"), loose.key("k")]).await.unwrap().denied().unwrap();
    assert_eq!((denied.source, &*denied.limit, denied.others.len()), (Source::Memory, "loose", 1));
}

/// Random calls of one gate: the limiter would refuse each call that is refused from memory, with the same words.
#[tokio::test]
async fn what_is_refused_from_memory_the_database_would_refuse() {
    let stage = Stage::new(3).await;
    let mut conn = stage.world.connect().await;
    let limits = [
        Limit::token_bucket("drip", 5, 10 * SECOND).max_reserved(3),
        Limit::stepped_bucket("steps", 2, 7 * SECOND).capacity(5),
        Limit::fixed_window("window", 5, 10 * SECOND).ephemeral(),
    ];
    let (mut dice, mut from_memory, mut receipts) = (Rng::with_seed(58), 0, Vec::<Receipt>::new());
    for _ in 0..1500 {
        stage.pass(Duration::from_micros(dice.u64(0..900_000)));
        let request = limits[dice.usize(..3)].key(dice.u32(..2)).cost(Tokens::from_micros(dice.i64(1..=5_000_000)));
        let gate = &stage.gate;
        let changed = |balance: Result<Balance, Error>| drop(balance.unwrap());
        match dice.u32(..16) {
            0 => changed(gate.credit(request).await),
            1 => changed(gate.debit(request).await),
            2 => changed(gate.reset(request).await),
            3 => drop(gate.reserve(request).await.unwrap().granted().map(|booked| receipts.push(booked.into()))),
            4 if !receipts.is_empty() => drop(gate.settle(receipts.swap_remove(0), 1).await),
            5 if !receipts.is_empty() => drop(gate.cancel(receipts.swap_remove(0)).await),
            6 => {
                // Refused by either, in another lane, at another time.
                let other = limits[dice.usize(..3)].key(dice.u32(..2)).cost(5);
                let _ = gate.consume([request, other]).await;
            }
            _ => {
                let at = DateTime::from_timestamp_micros(stage.now.load(Ordering::SeqCst)).unwrap();
                let expected = limiter().at(at).check(&mut conn, request.clone()).await.unwrap();
                match (gate.consume(request.clone()).await.unwrap(), expected) {
                    (Decision::Granted(grant), Decision::Granted(_)) => receipts.push(grant.into()),
                    (Decision::Denied(mut denied), Decision::Denied(expected)) => {
                        from_memory += u32::from(denied.source == Source::Memory);
                        denied.source = Source::Database;
                        // The remembered row may be older than the last debit, and then says less.
                        assert!(denied.retry_at <= expected.retry_at, "{denied:?}, {expected:?}");
                    }
                    (told, expected) => panic!("{request:?}: {told:?}, the database would say {expected:?}"),
                }
            }
        }
    }
    assert!(from_memory > 50, "{from_memory}");
}

/// By the real clocks: a caller that waits as long as a refusal says is let through, after a refusal from memory or
/// from the database.
#[tokio::test]
async fn a_refusal_from_memory_never_says_too_little() {
    let world = World::new().await;
    let gate = patient(&pool(&world.url(), 2).await).remember_refusals(HOUR).build();
    let drip = |period| Limit::token_bucket("drip", 1, period);
    let steps = |period| Limit::fixed_window("steps", 1, period).ephemeral();
    for limit in [&drip as &dyn Fn(Duration) -> Limit, &steps] {
        for round in 0..60 {
            let (limit, denied) = soon(refused_from_memory(&gate, limit)).await;
            tokio::time::sleep(denied.retry_after().unwrap()).await;
            let decision = gate.consume(limit.key("k")).await.unwrap();
            assert!(decision.is_granted(), "round {round}: {denied:?}, then {decision:?}");
        }
    }
}

/// Spends a limit of a period in which the machine can ask three times, and asks once more.
async fn refused_from_memory(gate: &Gate, limit: impl Fn(Duration) -> Limit) -> (Limit, Denied) {
    let mut period = Duration::from_millis(10);
    loop {
        let limit = limit(period);
        gate.reset(limit.key("k")).await.unwrap();
        for _ in 0..2 {
            drop(gate.consume(limit.key("k")).await.unwrap());
        }
        match gate.check(limit.key("k")).await.unwrap() {
            Decision::Denied(denied) if denied.source == Source::Memory => return (limit, denied),
            _ => period *= 2,
        }
    }
}

/// None of several rows refuses by itself, so nothing is remembered of them.
#[tokio::test]
async fn a_refusal_of_a_limit_with_shards_is_asked_anew() {
    let world = World::new().await;
    let limit = Limit::token_bucket("spread", 20, EVER).shards(2);
    let gate = patient(&world.pool).remember_refusals(HOUR).build();
    let other = patient(&world.pool).build();
    gate.debit(limit.key("k").cost(14)).await.unwrap();
    for (cost, is_granted) in [(7, false), (6, true), (1, false)] {
        assert_eq!(gate.consume(limit.key("k").cost(cost)).await.unwrap().is_granted(), is_granted, "{cost}");
    }
    other.credit(limit.key("k").cost(3)).await.unwrap();
    gate.consume(limit.key("k").cost(3)).await.unwrap().granted().unwrap();
}
