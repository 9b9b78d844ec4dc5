//! When a row goes: at its `full_at`, so that no answer changes.

use std::collections::BTreeMap;
use std::slice;
use std::time::Duration;

use fastrand::Rng;
use tollgate::algebra::{Account, Ask, State, Terms, Timestamp, Verdict};
use tollgate::{Decision, Key, Limit, Limiter, MINUTE, SECOND, Storage, Sweeper, Tokens};

use super::quick;
use crate::teller::Teller;
use crate::world::{World, second};

const LIMITER: Limiter = Limiter::new();
const MICRO: f64 = 1e-6;

/// One of each kind, in one table.
fn kinds(storage: Storage) -> Vec<Limit> {
    let limits = [
        Limit::token_bucket("drips", 10, MINUTE),
        Limit::token_bucket("thirds", 1, SECOND)
            .rate_and_capacity(Tokens::from_micros(333_333), Tokens::from_micros(5_000_001)),
        Limit::fixed_window("spread", 10, MINUTE),
        Limit::fixed_window("rolling", 5, 7 * SECOND).capacity(20),
        Limit::fixed_window("aligned", 10, 10 * SECOND).start(3 * SECOND),
    ];
    limits.into_iter().map(|limit| if storage == Storage::Ephemeral { limit.ephemeral() } else { limit }).collect()
}

#[tokio::test]
async fn a_row_goes_at_the_instant_at_which_it_is_full_whatever_it_owes_and_not_a_microsecond_before() {
    let world = World::new().await;
    let limit = Limit::token_bucket("debts", 10, MINUTE).unbounded_reservations();
    for (taken, full_after) in [(20.0, 120.0), (10.0, 60.0), (5.0, 30.0), (0.5, 3.0)] {
        for sweeper in [quick()] {
            let mut teller = Teller::of(&world).await;
            teller.debit(0.0, limit.key("k").cost(taken)).await;
            teller.tx.commit().await.unwrap();
            let swept = sweeper.clone().at(second(full_after - MICRO)).sweep(&world.pool).await.unwrap();
            assert_eq!((swept.rows(), world.rows().await), (0, 1), "{taken} taken");
            let swept = sweeper.at(second(full_after)).sweep(&world.pool).await.unwrap();
            assert_eq!((swept.durable, world.rows().await), (1, 0), "{taken} taken");
        }
    }
    // One that is full goes at once.
    let mut teller = Teller::of(&world).await;
    teller.debit(0.0, limit.key("k")).await;
    teller.reset(1.0, limit.key("k")).await;
    teller.tx.commit().await.unwrap();
    assert_eq!(quick().at(second(1.0)).sweep(&world.pool).await.unwrap().durable, 1);
}

/// The rows that are never swept are kept by the pure algebra.
#[tokio::test]
async fn the_answers_are_the_same_with_and_without_sweeps_at_every_moment() {
    for storage in [Storage::Durable, Storage::Ephemeral] {
        let world = World::new().await;
        let (limits, mut dice) = (kinds(storage), Rng::with_seed(39));
        let mut kept: BTreeMap<(usize, u8), State> = BTreeMap::new();
        let (mut micros, mut deleted) = (second(0.0).timestamp_micros(), 0);
        for _ in 0..400 {
            let longest = if dice.bool() { 20_000_000 } else { 500_000 };
            micros += dice.i64(0..=longest);
            let now = Timestamp::from_micros(micros);
            let (which, id, cost) = (dice.usize(..limits.len()), dice.u8(..4), dice.u32(1..=5));
            let limit = &limits[which];
            let mut tx = world.pool.begin().await.unwrap();
            let answer = LIMITER.at(now.into()).consume(&mut tx, limit.key(id).cost(cost)).await.unwrap();
            tx.commit().await.unwrap();

            let (terms, ask) = (Terms::of(limit, &Key::new(id).unwrap()), Ask::consume(Tokens::new(cost)));
            let row = [kept.get(&(which, id)).cloned()];
            match (Account::new(&terms, &row, now).decide(ask).unwrap(), answer) {
                (Verdict::Granted { portions, remaining, .. }, Decision::Granted(grant)) => {
                    assert_eq!(grant.remaining, remaining);
                    kept.insert((which, id), portions[0].next.clone());
                }
                (Verdict::Denied { remaining, retry_at, .. }, Decision::Denied(denied)) => {
                    assert_eq!((denied.remaining, denied.retry_at), (remaining, Some(retry_at.into())));
                }
                (verdict, answer) => panic!("{verdict:?} without sweeps, {answer:?} with"),
            }
            deleted += quick().at(now.into()).sweep(&world.pool).await.unwrap().rows();
        }
        assert!(deleted > 50, "{deleted} rows went");
    }
}

#[tokio::test]
async fn on_a_grid_of_first_use_a_sweep_is_never_in_the_callers_favour() {
    let world = World::new().await;
    let limit = Limit::stepped_bucket("uploads", 2, 10 * SECOND).capacity(4);
    let (mut dice, mut micros, mut row) = (Rng::with_seed(40), second(0.0).timestamp_micros(), None);
    let (mut with, mut without, mut deleted) = (0, 0, 0);
    let terms = Terms::of(&limit, &Key::GLOBAL);
    for _ in 0..300 {
        let longest = if dice.u8(..8) == 0 { 40_000_000 } else { 4_000_000 };
        micros += dice.i64(0..=longest);
        let now = Timestamp::from_micros(micros);
        deleted += quick().at(now.into()).sweep(&world.pool).await.unwrap().rows();
        let mut tx = world.pool.begin().await.unwrap();
        with += i32::from(LIMITER.at(now.into()).consume(&mut tx, limit.global()).await.unwrap().is_granted());
        tx.commit().await.unwrap();
        let verdict = Account::new(&terms, slice::from_ref(&row), now).decide(Ask::consume(Tokens::ONE)).unwrap();
        if let Verdict::Granted { portions, .. } = verdict {
            row = Some(portions[0].next.clone());
            without += 1;
        }
        assert!(with <= without, "{with} granted with sweeps, {without} without");
    }
    assert!(deleted > 5, "{deleted} times it went");
}

/// Under any later definition a row that was swept and one that was not are the same.
#[tokio::test]
async fn a_swept_row_equals_one_that_was_not_under_every_definition() {
    let world = World::new().await;
    let old = Limit::token_bucket("changed", 10, MINUTE);
    for new in [
        Limit::token_bucket("changed", 5, MINUTE).capacity(10),
        Limit::token_bucket("changed", 10, MINUTE).capacity(30),
        Limit::fixed_window("changed", 5, MINUTE).capacity(10).start(Duration::ZERO),
        Limit::sliding_window("changed", 7, MINUTE),
        Limit::token_bucket("changed", 20, MINUTE).capacity(10),
    ] {
        let most = new.spec().capacity.unwrap_or(new.spec().rate);
        for sweeps in [false, true] {
            world.sql("truncate tollgate.durable").await;
            let mut teller = Teller::of(&world).await;
            teller.consume(0.0, old.key("k").cost(10)).await.granted().unwrap();
            teller.tx.commit().await.unwrap();
            let swept = |at| quick().at(second(at));
            assert_eq!(swept(60.0 - MICRO).sweep(&world.pool).await.unwrap().rows(), 0, "{new:?}");
            if sweeps {
                assert_eq!(swept(60.0).sweep(&world.pool).await.unwrap().rows(), 1, "{new:?}");
            }
            let mut teller = Teller::of(&world).await;
            assert_eq!(teller.balance(60.0, new.key("k")).await.remaining, most, "{new:?}");
            teller.tx.rollback().await.unwrap();
        }
    }
}

/// A small plan that goes on lets the row go when the large one would have ended its use.
#[tokio::test]
async fn while_two_definitions_are_live_a_row_goes_when_its_use_has_ended_under_both() {
    let world = World::new().await;
    let (old, new) = (Limit::token_bucket("d", 60, MINUTE).capacity(600), Limit::token_bucket("d", 60, MINUTE));
    let mut teller = Teller::of(&world).await;
    teller.consume(0.0, old.key("k").cost(600)).await.granted().unwrap();
    teller.consume(541.0, new.key("k")).await.granted().unwrap();
    teller.tx.commit().await.unwrap();
    assert_eq!(quick().at(second(601.0 - MICRO)).sweep(&world.pool).await.unwrap().rows(), 0);
    assert_eq!(quick().at(second(601.0)).sweep(&world.pool).await.unwrap().rows(), 1);
}

#[tokio::test]
async fn rows_of_whatever_limit_go_after_a_margin() {
    let world = World::new().await;
    let limit = Limit::token_bucket("unknown", 10, MINUTE);
    // The limit has another storage now: rows left in the other table are under another definition.
    let moved = Limit::token_bucket("moved", 10, MINUTE);
    let mut teller = Teller::of(&world).await;
    teller.consume(0.0, limit.key("k").cost(10)).await.granted().unwrap();
    teller.consume(0.0, moved.key("k").cost(10)).await.granted().unwrap();
    teller.tx.commit().await.unwrap();
    // A part of a limit that several rows share.
    let part = "insert into tollgate.durable
                select part, name, key, 1, value, ts, full_at from tollgate.durable where name = 'moved'";
    world.sql(part).await;
    let sweeper = Sweeper::new().share(100);
    assert_eq!(sweeper.clone().at(second(660.0 - MICRO)).sweep(&world.pool).await.unwrap().rows(), 0);
    assert_eq!(sweeper.at(second(660.0)).sweep(&world.pool).await.unwrap().durable, 3);
}
