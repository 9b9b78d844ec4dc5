//! The clock steps, before a sweep, during one, and after it: a row that is gone is missing for good.

use std::collections::BTreeMap;

use fastrand::Rng;
use tollgate::algebra::{Account, Ask, State, Terms, Timestamp, Verdict};
use tollgate::{Decision, Key, Limit, Limiter, MINUTE, SECOND, Storage, Sweeper, Tokens};

use super::quick;
use crate::gate::stage::soon;
use crate::teller::Teller;
use crate::traced::traced;
use crate::world::{World, second};

const LIMITER: Limiter = Limiter::new();
const DRIP: Limit = Limit::token_bucket("drip", 10, MINUTE);

/// So much that it is repaid within the hour.
async fn owe(world: &World) {
    let mut tx = world.pool.begin().await.unwrap();
    LIMITER.debit(&mut tx, DRIP.key("owes").cost(500)).await.unwrap();
    tx.commit().await.unwrap();
}

#[tokio::test]
async fn a_step_back_of_no_more_than_the_margin_after_a_sweep_grants_nothing_twice() {
    let world = World::new().await;
    for sweeper in [Sweeper::new()] {
        let sweep = async |at| sweeper.clone().share(100).at(second(at)).sweep(&world.pool).await.unwrap().rows();
        let mut teller = Teller::of(&world).await;
        teller.consume(0.0, DRIP.key("k").cost(10)).await.granted().unwrap();
        teller.tx.commit().await.unwrap();
        // Five minutes ahead, and back; six seconds ahead of the instant at which the row is full, and back.
        assert_eq!([sweep(300.0).await, sweep(66.0).await, sweep(659.999_999).await], [0; 3]);
        let mut teller = Teller::of(&world).await;
        assert!(!teller.consume(0.03, DRIP.key("k")).await.is_granted());
        teller.consume(30.0, DRIP.key("k").cost(5)).await.granted().unwrap();
        assert!(!teller.consume(30.0, DRIP.key("k")).await.is_granted());
        teller.reset(30.0, DRIP.key("k")).await;
        teller.tx.commit().await.unwrap();
        // A row that goes at 630 is full from 30 on.
        assert_eq!([sweep(629.999_999).await, sweep(630.0).await], [0, 1]);
    }
}

/// Each sweep is made under a clock that is ahead, by the margin at most, and has gone back when the next call comes.
/// The rows that are never swept are kept by the pure algebra.
#[tokio::test]
async fn the_answers_are_the_same_with_and_without_sweeps_where_the_clock_steps_back_by_no_more_than_the_margin() {
    const MARGIN: i64 = 20_000_000;
    let world = World::new().await;
    let limits = [
        Limit::token_bucket("drips", 10, MINUTE),
        Limit::fixed_window("spread", 10, MINUTE),
        Limit::fixed_window("aligned", 10, 10 * SECOND).start(3 * SECOND),
        Limit::token_bucket("owes", 10, MINUTE).unbounded_reservations(),
    ];
    let mut dice = Rng::with_seed(12);
    let mut kept: BTreeMap<(usize, u8), State> = BTreeMap::new();
    let (mut micros, mut deleted) = (second(0.0).timestamp_micros(), 0);
    for _ in 0..300 {
        micros += dice.i64(0..=MARGIN);
        let now = Timestamp::from_micros(micros);
        let (which, id, cost) = (dice.usize(..limits.len()), dice.u8(..4), dice.u32(1..=8));
        let limit = &limits[which];
        let mut tx = world.pool.begin().await.unwrap();
        let answer = LIMITER.at(now.into()).consume(&mut tx, limit.key(id).cost(cost)).await.unwrap();
        tx.commit().await.unwrap();

        let (terms, row) = (Terms::of(limit, &Key::new(id).unwrap()), [kept.get(&(which, id)).cloned()]);
        match (Account::new(&terms, &row, now).decide(Ask::consume(Tokens::new(cost))).unwrap(), answer) {
            (Verdict::Granted { portions, remaining, .. }, Decision::Granted(grant)) => {
                assert_eq!(grant.remaining, remaining);
                kept.insert((which, id), portions[0].next.clone());
            }
            (Verdict::Denied { remaining, retry_at, .. }, Decision::Denied(denied)) => {
                assert_eq!((denied.remaining, denied.retry_at), (remaining, Some(retry_at.into())));
            }
            (verdict, answer) => panic!("{verdict:?} without sweeps, {answer:?} with"),
        }
        let ahead = Timestamp::from_micros(micros + dice.i64(0..=MARGIN));
        let sweeper = quick().margin(SECOND * u32::try_from(MARGIN / 1_000_000).unwrap()).at(ahead.into());
        deleted += sweeper.sweep(&world.pool).await.unwrap().rows();
    }
    assert!(deleted > 30, "{deleted} rows went");
}

#[tokio::test]
async fn a_sweeper_that_saw_the_clock_run_away_forgives_no_debt() {
    let world = World::with_clock().await;
    owe(&world).await;
    let sweeper = Sweeper::new().share(100);
    assert!(!sweeper.sweep(&world.pool).await.unwrap().clock_stepped);
    for ahead in ["2 hours", "2 hours", "0", "-2 hours", "2 hours"] {
        world.set_ahead(ahead).await;
        let swept = sweeper.clone().sweep(&world.pool).await.unwrap();
        assert_eq!((swept.rows(), swept.pages, swept.clock_stepped), (0, 0, true), "{ahead}");
        let counted = sweeper.clone().dry_run().sweep(&world.pool).await.unwrap();
        assert_eq!((counted.rows(), counted.clock_stepped), (0, true), "{ahead}");
    }
    world.set_ahead("0").await;
    let (value, _) = world.row(Storage::Durable, "drip", "owes").await.unwrap();
    assert_eq!(value, Tokens::from_micros(-500_000_000));
}

/// It has no reading from before the step, but its machine has a clock, too.
#[tokio::test]
async fn a_sweeper_that_first_looks_after_the_clock_ran_away_forgives_no_debt() {
    let world = World::with_clock().await;
    owe(&world).await;
    for ahead in ["2 hours", "-2 hours"] {
        world.set_ahead(ahead).await;
        let sweeper = Sweeper::new().share(100);
        for _ in 0..2 {
            let swept = sweeper.sweep(&world.pool).await.unwrap();
            assert_eq!((swept.rows(), swept.pages, swept.clock_stepped), (0, 0, true), "{ahead}");
        }
    }
    // Where the machine's own clock is known to be wrong.
    world.set_ahead("2 hours").await;
    let swept = Sweeper::new().share(100).trusting_the_clock().sweep(&world.pool).await.unwrap();
    assert_eq!((swept.rows(), swept.clock_stepped), (1, false));
}

#[tokio::test]
async fn a_pass_ends_where_the_clock_runs_away_and_a_later_one_goes_on_once_it_keeps_step() {
    let world = World::with_clock().await;
    world
        .sql("insert into tollgate.durable select 0, 'full', n, 0, 0, now(), now() from generate_series(1, 9) n")
        .await;
    let sweeper = quick().batch(2).only(Storage::Durable);
    let mut pass = sweeper.pass(&world.pool);
    assert!(pass.step().await.unwrap());
    world.set_ahead("1 hour").await;
    assert!(!pass.step().await.unwrap());
    let swept = pass.swept();
    assert_eq!((swept.rows(), swept.clock_stepped, world.rows().await), (2, true, 7));
    // A margin of nothing is over at once.
    let swept = sweeper.sweep(&world.pool).await.unwrap();
    assert_eq!((swept.rows(), swept.clock_stepped), (7, false));
}

#[test]
fn a_task_warns_once_of_a_clock_that_ran_away() {
    let log = traced(async {
        let world = World::with_clock().await;
        owe(&world).await;
        let sweeper = Sweeper::new().share(100);
        sweeper.sweep(&world.pool).await.unwrap();
        world.set_ahead("2 hours").await;
        let sweeping = sweeper.clone().spawn(world.pool.clone(), std::time::Duration::from_millis(10));
        // It is seen by the task, or by this.
        soon(async { while !sweeper.sweep(&world.pool).await.unwrap().clock_stepped {} }).await;
        sweeper.sweep(&world.pool).await.unwrap();
        assert_eq!((soon(sweeping.stop()).await.rows(), world.rows().await), (0, 1));
    });
    assert_eq!(log.matches("the database's clock ran away").count(), 1, "{log}");
}
