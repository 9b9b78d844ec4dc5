//! Sliding windows, and the tokens that windows keep while calls are settled and lapse.

use std::time::Duration;

use chrono::{DateTime, Utc};
use fastrand::Rng;
use tokio::task::JoinSet;
use tollgate::{Decision, Gate, HOUR, Limit, MINUTE, Receipt, Sweeper, Tokens};

use crate::gate::stage::{patient, pool, soon};
use crate::teller::{Teller, both, tokens};
use crate::world::{World, limiter, second, sweeper};

/// Ten in any minute, in either table.
fn sliding() -> [Limit; 2] {
    both(&Limit::sliding_window("sliding", 10, MINUTE))
}

#[tokio::test]
async fn a_sliding_window_gives_back_each_grant_a_period_later() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    for limit in sliding() {
        for (at, cost) in [(0.0, 4), (20.0, 4), (50.0, 2)] {
            assert!(teller.consume(at, limit.global().cost(cost)).await.is_granted());
        }
        for (cost, retry_at) in [(1, 60.0), (5, 80.0), (9, 110.0)] {
            let denied = teller.consume(55.0, limit.global().cost(cost)).await.denied().unwrap();
            assert_eq!(denied.retry_at, Some(second(retry_at)), "{cost}");
        }
        assert!(!teller.consume(59.999_999, limit.global()).await.is_granted());
        assert!(teller.consume(60.0, limit.global().cost(4)).await.is_granted());
        assert!(!teller.consume(60.0, limit.global()).await.is_granted());
        assert_eq!(teller.credit(60.0, limit.global().cost(1)).await, tokens(1));
        assert_eq!(teller.debit(60.0, limit.global().cost(3)).await, tokens(-2));
        assert_eq!(teller.reset(60.0, limit.global()).await, tokens(10));
    }
}

#[tokio::test]
async fn a_sliding_window_is_never_passed_however_many_ask_at_once() {
    let world = World::new().await;
    let gate = patient(&pool(&world.url(), 4).await).build();
    for limit in
        [Limit::sliding_window("hour", 40, HOUR), Limit::sliding_window("coarse", 40, HOUR).resolution(5).ephemeral()]
    {
        let mut callers = JoinSet::new();
        for caller in 0..60 {
            let (gate, limit, pool) = (gate.clone(), limit.clone(), world.pool.clone());
            callers.spawn(async move {
                if caller % 4 > 0 {
                    return gate.consume(limit.global()).await.unwrap().is_granted();
                }
                let mut tx = pool.begin().await.unwrap();
                let decision = limiter().consume(&mut tx, limit.global()).await.unwrap();
                tx.commit().await.unwrap();
                decision.is_granted()
            });
        }
        let granted = soon(callers.join_all()).await.into_iter().filter(|is_granted| *is_granted).count();
        assert_eq!(granted, 40);
    }
}

#[tokio::test]
async fn a_row_of_a_sliding_window_goes_when_its_last_grant_has_left_it() {
    let world = World::new().await;
    for limit in sliding() {
        let mut teller = Teller::of(&world).await;
        for at in [0.0, 30.0] {
            assert!(teller.consume(at, limit.global().cost(2)).await.is_granted());
        }
        teller.commit().await;
        let sweeper = Sweeper::new().share(100).margin(Duration::ZERO);
        assert_eq!(sweeper.clone().at(second(89.999_999)).sweep(&world.pool).await.unwrap().rows(), 0);
        assert_eq!(sweeper.at(second(90.0)).sweep(&world.pool).await.unwrap().rows(), 1);
    }
}

#[tokio::test]
async fn a_waiter_comes_when_enough_has_left_the_window() {
    let world = World::new().await;
    let gate = patient(&pool(&world.url(), 3).await).build();
    let limit = Limit::sliding_window("short", 2, Duration::from_millis(300));
    for _ in 0..2 {
        assert!(gate.consume(limit.global()).await.unwrap().is_granted());
    }
    let wait = || gate.wait(limit.global(), MINUTE);
    let waiting: Vec<_> = (0..3).map(|_| Box::pin(wait())).collect();
    let decisions = soon(futures_util::future::join_all(waiting)).await;
    assert!(decisions.into_iter().all(|decision| decision.unwrap().is_granted()));
}

/// So narrow that most calls are refused: in a fixed window and in a sliding one.
fn narrow() -> [Limit; 2] {
    [
        Limit::fixed_window("window", 30, Duration::from_millis(100)).start(Duration::from_millis(30)).ephemeral(),
        Limit::sliding_window("slides", 30, Duration::from_millis(100)),
    ]
}

/// Promise 1 of windows, as settled: in no window, and in no period, more than its number was kept.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn windows_are_never_over_while_calls_lapse_and_are_settled() {
    let world = World::new().await;
    let sql = "select clock_timestamp() + interval '3 seconds'";
    let end: DateTime<Utc> = sqlx::query_scalar(sql).fetch_one(&world.pool).await.unwrap();
    let mut callers = JoinSet::new();
    for lanes in [4, 2] {
        let gate = patient(&pool(&world.url(), 4).await).lanes(lanes).max_batch(16).build();
        for caller in 0..8 {
            callers.spawn(spend(gate.clone(), end, caller + lanes as u64 * 100));
        }
    }
    let spent = soon(callers.join_all()).await.concat();
    // All calls that can lapse are given back.
    soon(async {
        let left = "select count(*) from tollgate.calls where lapses_at is not null";
        while sqlx::query_scalar::<_, i64>(left).fetch_one(&world.pool).await.unwrap() > 0 {
            sweeper().reap(&world.pool).await.unwrap();
        }
    })
    .await;
    for limit in narrow() {
        let of_limit = spent.iter().filter(|(name, ..)| name == limit.name());
        let mut kept: Vec<_> = of_limit.map(|(_, at, kept)| (at.timestamp_micros(), *kept)).collect();
        kept.sort_unstable();
        assert!(kept.iter().filter(|(_, kept)| *kept == 0).count() > 5, "calls come back: {limit:?}");
        for (place, (start, _)) in kept.iter().enumerate() {
            let is_together = |at: i64| match limit.name() {
                "window" => (at - 30_000).div_euclid(100_000) == (start - 30_000).div_euclid(100_000),
                _ => at < start + 100_000,
            };
            let sum: i64 = kept[place..].iter().take_while(|(at, _)| is_together(*at)).map(|(_, kept)| kept).sum();
            assert!(sum <= 30_000_000, "{sum} from {start} on: {limit:?}");
        }
    }
}

/// Each grant, its instant, and the part of it that was kept in the end.
type Spent = Vec<(String, DateTime<Utc>, i64)>;

async fn spend(gate: Gate, end: DateTime<Utc>, seed: u64) -> Spent {
    let (mut dice, mut spent) = (Rng::with_seed(seed), Vec::new());
    loop {
        let limit = &narrow()[dice.usize(..2)];
        let cost = dice.i64(100_000..6_000_000);
        let request = limit.global().cost(Tokens::from_micros(cost));
        let span = Duration::from_micros(dice.u64(1..60_000));
        let (request, lapses) = match dice.u8(..3) {
            0 => (request.into(), false),
            1 => (request.tracked_for(span), false),
            _ => (request.lapses_after(span), true),
        };
        let now = match gate.consume(request).await.unwrap() {
            Decision::Denied(denied) => denied.decided_at,
            Decision::Granted(grant) => {
                let (now, receipt) = (grant.decided_at, Receipt::from(grant));
                let actual = Tokens::from_micros(dice.i64(0..=cost));
                let settled = if dice.bool() { gate.settle(receipt, actual).await.ok() } else { None };
                // A charge of a window that is over is kept whole: the settlement says so. Nobody hears of a lapse.
                let kept = match settled {
                    Some(settlement) => settlement.charges[0].cost.micros(),
                    None if lapses => 0,
                    None => cost,
                };
                spent.push((limit.name().to_owned(), now, kept));
                now
            }
        };
        if now >= end {
            return spent;
        }
    }
}
