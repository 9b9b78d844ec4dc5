//! What may come back: charges that lapse, receipts that are used once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use chrono::{DateTime, Utc};
use fastrand::Rng;
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tollgate::{Charge, DAY, Decision, Error, Grant, HOUR, Limit, MINUTE, Receipt, Request, SECOND, Sweeper, Tokens};

use crate::gate::stage::{patient, pool, soon};
use crate::teller::{Teller, both, tokens};
use crate::world::{ON_CALL, World, limiter, second};

/// Ten a day, in either table.
fn ten() -> [Limit; 2] {
    both(&Limit::token_bucket("ten", 10, DAY))
}

/// The holds of a row as the column has them.
async fn column(conn: &mut PgConnection, table: &str, key: &str) -> Option<Vec<i64>> {
    let sql = AssertSqlSafe(format!("select holds from tollgate.{table} where key = $1"));
    sqlx::query_scalar(sql).persistent(false).bind(key).fetch_one(conn).await.unwrap()
}

/// How many rows of both tables have holds.
async fn laden(conn: &mut PgConnection) -> i64 {
    let sql = "select (select count(*) from tollgate.ephemeral where cardinality(holds) > 0)
                    + (select count(*) from tollgate.durable where cardinality(holds) > 0)";
    sqlx::query_scalar(sql).persistent(false).fetch_one(conn).await.unwrap()
}

async fn settle(teller: &mut Teller, at: f64, receipt: impl Into<Receipt>, actual: u32) -> Result<Tokens, Error> {
    let settled = limiter().at(second(at)).settle(&mut teller.tx, receipt, actual).await;
    settled.map(|balance| balance.value)
}

#[tokio::test]
async fn a_receipt_is_used_once_and_the_row_forgets_it() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    for (limit, table) in ten().into_iter().zip(["durable", "ephemeral"]) {
        let grant = teller.consume(0.0, limit.key(1).cost(6).tracked_for(HOUR)).await.granted().unwrap();
        let stored = serde_json::to_string(&Receipt::from(grant)).unwrap();
        let receipt = || serde_json::from_str::<Receipt>(&stored).unwrap();
        assert_eq!(column(&mut teller.tx, table, "1").await.unwrap().len(), 3);
        assert_eq!(settle(&mut teller, 0.0, receipt(), 2).await.unwrap(), tokens(8));
        assert_eq!(column(&mut teller.tx, table, "1").await, None);
        let error = settle(&mut teller, 1.0, receipt(), 2).await.unwrap_err();
        assert!(matches!(error, Error::ReceiptUsed { .. }), "{error}");
        let error = limiter().at(second(3_600.0)).cancel(&mut teller.tx, receipt()).await.unwrap_err();
        assert!(matches!(error, Error::Lapsed { .. }), "{error}");
    }
}

#[tokio::test]
async fn a_gate_and_a_limiter_settle_what_the_other_has_charged() {
    let world = World::new().await;
    let gate = patient(&pool(&world.url(), 3).await).build();
    for limit in ten() {
        let asked = || limit.key("shared").cost(3).lapses_after(HOUR);
        let of_gate = gate.consume(asked()).await.unwrap().granted().unwrap();
        let mut tx = world.begin().await;
        let of_limiter = limiter().consume(&mut tx, asked()).await.unwrap().granted().unwrap();
        let balance = limiter().settle(&mut tx, of_gate.clone(), 1).await.unwrap();
        assert_eq!(balance.value.micros() / 1_000_000, 6);
        tx.commit().await.unwrap();
        let balance = gate.settle(of_limiter.clone(), 0).await.unwrap();
        assert_eq!(balance.value.micros() / 1_000_000, 9);
        for used in [of_gate, of_limiter] {
            let error = gate.settle(used, 0).await.unwrap_err();
            assert!(matches!(error, Error::ReceiptUsed { .. }), "{error}");
        }
    }
}

#[tokio::test]
async fn what_nobody_settles_is_back_at_the_instant_that_a_refusal_names() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    for limit in ten() {
        let estimate = || limit.global().cost(10).lapses_after(MINUTE);
        let lost = teller.consume(0.0, estimate()).await.granted().unwrap();
        let denied = teller.consume(1.0, estimate()).await.denied().unwrap();
        assert_eq!(denied.retry_at, second(60.0));
        assert!(!teller.consume(59.999_999, estimate()).await.is_granted());
        // The estimate of SQL must not refuse what has come back by a lapse.
        assert!(teller.consume(60.0, estimate()).await.is_granted());
        let error = settle(&mut teller, 61.0, lost, 3).await.unwrap_err();
        assert!(matches!(error, Error::Lapsed { .. }), "{error}");
    }
}

#[tokio::test]
async fn those_who_wait_in_line_are_served_as_charges_lapse() {
    let world = World::new().await;
    let gate = patient(&pool(&world.url(), 3).await).build();
    for limit in ten() {
        for span in [300, 600] {
            let request = limit.global().cost(5).lapses_after(Duration::from_millis(span));
            assert!(gate.consume(request).await.unwrap().is_granted());
        }
        let wait = || gate.wait(limit.global().cost(5), MINUTE);
        let (one, two) = soon(async { tokio::join!(wait(), wait()) }).await;
        // By refill alone the first would wait for half a day.
        assert!(one.unwrap().is_granted() && two.unwrap().is_granted());
        assert!(!gate.wait(limit.global(), MINUTE).await.unwrap().is_granted(), "nothing lapses any more");
    }
}

#[tokio::test]
async fn holds_of_several_limits_are_written_by_one_statement() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    let plain = Limit::token_bucket("plain", 100, DAY);
    let ([durable, _], ephemeral) = (ten(), Limit::token_bucket("eleven", 11, DAY).ephemeral());
    let asked = || {
        [
            durable.key(7).cost(2).tracked_for(HOUR),
            plain.key(7),
            ephemeral.key(7).cost(2).lapses_after(MINUTE),
            Limit::token_bucket("zz", 9, DAY).key(7).cost(2).tracked_for(MINUTE),
        ]
    };
    let limiter = limiter().at(second(0.0));
    let first = limiter.consume_all(&mut teller.tx, asked()).await.unwrap().granted().unwrap();
    let second = limiter.consume_all(&mut teller.tx, asked()).await.unwrap().granted().unwrap();
    let held = |charge: &Charge| charge.hold.is_some();
    assert_eq!(first.charges.iter().map(held).collect::<Vec<_>>(), [true, false, true, true]);
    assert_eq!(laden(&mut teller.tx).await, 3);
    assert_eq!(column(&mut teller.tx, "ephemeral", "7").await.unwrap().len(), 6, "two holds");
    let _ = limiter.cancel(&mut teller.tx, first.clone()).await.unwrap();
    let error = limiter.cancel(&mut teller.tx, first).await.unwrap_err();
    assert!(matches!(error, Error::ReceiptUsed { .. }), "{error}");
    let _ = limiter.cancel(&mut teller.tx, second).await.unwrap();
    assert_eq!(laden(&mut teller.tx).await, 0);
}

#[tokio::test]
async fn a_gate_writes_rows_with_and_without_holds_in_one_batch() {
    let world = World::new().await;
    let gate = patient(&pool(&world.url(), 3).await).lanes(1).build();
    for limit in ten() {
        // The rows are there: what follows is swapped.
        for key in 0..4 {
            let _ = gate.consume(limit.key(key)).await.unwrap();
        }
        let mut calls = JoinSet::new();
        for key in 0..4 {
            let (gate, request) = (gate.clone(), limit.key(key).cost(2));
            let request = if key % 2 == 0 { request.tracked_for(HOUR) } else { request };
            calls.spawn(async move { (key, gate.consume(request).await.unwrap().granted().unwrap()) });
        }
        for (key, grant) in calls.join_all().await {
            assert_eq!(grant.charges[0].hold.is_some(), key % 2 == 0);
            let is_settled = gate.settle(grant.clone(), 0).await.is_ok();
            assert!(is_settled);
            assert_eq!(gate.settle(grant, 0).await.is_ok(), key % 2 == 1, "a receipt without a hold is not watched");
        }
    }
    assert_eq!(laden(&mut world.connect().await).await, 0);
}

/// Many callers settle each of many receipts at the same moment, through gates and in transactions.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_all_who_settle_one_receipt_at_once_one_succeeds() {
    const RECEIPTS: usize = 30;
    const CALLERS: usize = 6;
    let world = World::new().await;
    let limit = Limit::token_bucket("raced", 1_000, DAY);
    let gate = patient(&pool(&world.url(), 3).await).build();
    let mut receipts = Vec::new();
    for _ in 0..RECEIPTS {
        let grant = gate.consume(limit.global().cost(10).tracked_for(HOUR)).await.unwrap().granted().unwrap();
        receipts.push(Receipt::from(grant));
    }
    let (barrier, used) = (Arc::new(Barrier::new(CALLERS)), Arc::new(AtomicU32::new(0)));
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        let (gate, receipts, barrier, used) = (gate.clone(), receipts.clone(), barrier.clone(), used.clone());
        let pool = pool(&world.url(), 1).await;
        callers.spawn(async move {
            for receipt in receipts {
                barrier.wait().await;
                let answer = if caller % 2 == 0 {
                    gate.settle(receipt, 4).await
                } else {
                    let mut tx = pool.begin().await.unwrap();
                    let answer = limiter().settle(&mut tx, receipt, 4).await;
                    tx.commit().await.unwrap();
                    answer
                };
                match answer {
                    Ok(_) => used.fetch_add(1, Ordering::Relaxed),
                    Err(Error::ReceiptUsed { .. }) => 0,
                    Err(error) => panic!("{error}"),
                };
            }
        });
    }
    soon(callers.join_all()).await;
    assert_eq!(used.load(Ordering::Relaxed) as usize, RECEIPTS);
    let left = gate.balance(limit.global()).await.unwrap().value.micros() / 1_000_000;
    assert!((880..900).contains(&left), "{left}: thirty times four are spent");
}

#[tokio::test]
async fn a_refusal_does_not_wait_for_a_held_row_with_holds() {
    let world = World::new().await;
    for limit in ten() {
        let mut tx = world.begin().await;
        let _ = limiter().consume(&mut tx, limit.global().cost(10).lapses_after(HOUR)).await.unwrap();
        tx.commit().await.unwrap();
        let mut holder = world.begin().await;
        let _ = limiter().credit(&mut holder, limit.global()).await.unwrap();
        let mut other = world.begin().await;
        let denied = soon(limiter().consume(&mut other, limit.global().cost(5))).await.unwrap().denied().unwrap();
        assert!(denied.retry_after() <= HOUR, "the hold lapses: {denied:?}");
        other.rollback().await.unwrap();
        holder.rollback().await.unwrap();
    }
}

#[tokio::test]
async fn a_row_is_not_swept_while_a_receipt_lives() {
    let world = World::new().await;
    for limit in ten() {
        let mut teller = Teller::of(&world).await;
        let grant = teller.consume(0.0, limit.global().cost(4).tracked_for(HOUR)).await.granted().unwrap();
        teller.reset(0.0, limit.global()).await;
        teller.commit().await;
        for knowing in [Sweeper::new(), Sweeper::new().knows([limit.clone()])] {
            let sweeper = knowing.share(100).margin(Duration::ZERO).at(second(3_599.0));
            assert_eq!(sweeper.sweep(&world.pool).await.unwrap().rows(), 0, "it is full, and has a receipt");
        }
        let mut teller = Teller::of(&world).await;
        assert_eq!(settle(&mut teller, 3_599.0, grant.clone(), 1).await.unwrap(), tokens(10));
        teller.tx.rollback().await.unwrap();
        let sweeper = Sweeper::new().share(100).margin(Duration::ZERO).at(second(3_600.0));
        assert_eq!(sweeper.sweep(&world.pool).await.unwrap().rows(), 1);
        let mut teller = Teller::of(&world).await;
        let error = settle(&mut teller, 3_600.0, grant, 1).await.unwrap_err();
        assert!(matches!(error, Error::Lapsed { .. }), "{error}");
    }
}

#[tokio::test]
async fn holds_that_cannot_be_read_are_an_error_with_a_name() {
    let world = World::new().await;
    let gate = patient(&pool(&world.url(), 3).await).build();
    for limit in ten() {
        let _ = gate.consume(limit.key("torn")).await.unwrap();
        for holds in ["{1}", "{1,-1,null}", "{1,-5,1}"] {
            world
                .sql(
                    &["ephemeral", "durable"]
                        .map(|table| format!("update tollgate.{table} set holds = '{holds}'"))
                        .join(";"),
                )
                .await;
            let mut tx = world.begin().await;
            let error = limiter().consume(&mut tx, limit.key("torn")).await.unwrap_err();
            assert!(matches!(error, Error::CorruptRow { .. }), "{error:?}");
            tx.rollback().await.unwrap();
            let mut tx = world.begin().await;
            let both = [limit.key("torn"), Limit::token_bucket("other", 1, DAY).key("torn")];
            let error = limiter().consume_all(&mut tx, both).await.unwrap_err();
            assert!(matches!(error, Error::CorruptRow { .. }), "{error:?}");
            tx.rollback().await.unwrap();
            let error = gate.consume(limit.key("torn")).await.unwrap_err();
            assert!(matches!(error, Error::CorruptRow { .. }), "{error:?}");
        }
    }
}

#[tokio::test]
async fn a_limit_that_gets_shards_keeps_the_holds_of_its_row_within_its_part() {
    let world = World::new().await;
    let limit = Limit::token_bucket("grown", 8, DAY).capacity(8);
    let mut teller = Teller::of(&world).await;
    let grant = teller.consume(0.0, limit.global().cost(4).lapses_after(HOUR)).await.granted().unwrap();
    let sharded = limit.shards(2);
    // Four in each; the first has four left, which nobody may take twice.
    assert_eq!(teller.balance(0.0, sharded.global()).await.value, tokens(8));
    for _ in 0..4 {
        assert!(teller.consume(0.0, sharded.global().cost(2)).await.is_granted());
    }
    assert!(!teller.consume(9.0, sharded.global().cost(2)).await.is_granted());
    settle(&mut teller, 10.0, grant.clone(), 0).await.unwrap();
    let error = settle(&mut teller, 10.0, grant, 0).await.unwrap_err();
    assert!(matches!(error, Error::ReceiptUsed { .. }), "{error}");
    assert!(!teller.consume(10.0, sharded.global().cost(0.5)).await.is_granted(), "the part was full without it");
    assert_eq!(laden(&mut teller.tx).await, 0);
}

#[tokio::test]
async fn the_balances_view_shows_what_may_come_back() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    let [limit, _] = ten();
    let _ = teller.consume(0.0, limit.key("held").cost(2.5).lapses_after(MINUTE)).await;
    let _ = teller.consume(0.0, limit.key("held").cost(1).tracked_for(HOUR)).await;
    let _ = teller.consume(0.0, limit.key("plain")).await;
    // Named and unnamed, in any order.
    let [limit, _] = sliding();
    let _ = teller.consume(0.0, limit.key("slides").cost(2.5)).await;
    let _ = teller.consume(1.0, limit.key("slides").cost(1).tracked_for(HOUR)).await;
    let _ = teller.consume(2.0, limit.key("slides").cost(3).lapses_after(SECOND)).await;
    let _ = teller.consume(2.0, limit.key("slides").cost(0.5)).await;
    teller.commit().await;
    let sql = "select key, held::text, lapses_at from tollgate.balances order by key";
    let rows: Vec<(String, String, Option<DateTime<Utc>>)> =
        sqlx::query_as(sql).fetch_all(&mut world.connect_as(ON_CALL).await).await.unwrap();
    let row = |key: &str, held: &str, lapses_at| (key.to_owned(), held.to_owned(), lapses_at);
    let held = [row("held", "3.500000", Some(second(60.0))), row("plain", "0.000000", None)];
    assert_eq!(rows, [&held[..], &[row("slides", "7.000000", Some(second(3.0)))]].concat());
}

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
            assert_eq!(denied.retry_at, second(retry_at), "{cost}");
        }
        assert!(!teller.consume(59.999_999, limit.global()).await.is_granted());
        assert!(teller.consume(60.0, limit.global().cost(4)).await.is_granted());
        assert!(!teller.consume(60.0, limit.global()).await.is_granted());
        assert_eq!(teller.credit(60.0, limit.global().cost(1)).await, tokens(1));
        assert_eq!(teller.debit(60.0, limit.global().cost(3)).await, tokens(-2));
        assert_eq!(teller.reset(60.0, limit.global()).await, tokens(10));
    }
    assert_eq!(laden(&mut teller.tx).await, 0, "nothing is counted after a reset");
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
        for knowing in [Sweeper::new(), Sweeper::new().knows([limit.clone()])] {
            let sweeper = knowing.share(100).margin(Duration::ZERO);
            let early = sweeper.clone().at(second(89.999_999)).sweep(&world.pool).await.unwrap().rows();
            assert_eq!(early, 0);
        }
        let sweeper = Sweeper::new().knows([limit]).share(100).margin(Duration::ZERO).at(second(90.0));
        assert_eq!(sweeper.sweep(&world.pool).await.unwrap().rows(), 1);
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
    let (one, two, three) = soon(async { tokio::join!(wait(), wait(), wait()) }).await;
    assert!([one, two, three].into_iter().all(|decision| decision.unwrap().is_granted()));
}

/// Of every kind, so narrow that most calls are refused. Rates are whole micro-tokens per microsecond.
fn narrow() -> [Limit; 3] {
    [
        Limit::token_bucket("drip", 300, SECOND).capacity(20),
        Limit::token_bucket("owing", 300, SECOND).capacity(10).max_reserved(15),
        Limit::fixed_window("window", 30, Duration::from_millis(100)).start(Duration::from_millis(30)).ephemeral(),
    ]
}

/// Promise 1 with holds: of all spans of the recorded clock, what was granted and kept is within the bound.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn never_over_while_charges_lapse_and_are_settled() {
    let world = World::new().await;
    let sql = "select clock_timestamp() + interval '3 seconds'";
    let end: DateTime<Utc> = sqlx::query_scalar(sql).fetch_one(&world.pool).await.unwrap();
    let gates = [4, 2].map(|lanes| (lanes, world.url()));
    let mut callers = JoinSet::new();
    for (lanes, url) in gates {
        let gate = patient(&pool(&url, 4).await).lanes(lanes).max_batch(16).build();
        for caller in 0..8 {
            callers.spawn(spend(gate.clone(), end, caller + lanes as u64 * 100));
        }
    }
    callers.spawn(join_in(world.url(), end));
    let spent = soon(callers.join_all()).await.concat();
    for limit in narrow() {
        let mut kept: Vec<_> = spent
            .iter()
            .filter(|(name, ..)| name == limit.name())
            .map(|(_, at, kept)| (at.timestamp_micros(), *kept))
            .collect();
        // A starved machine grants few in three seconds.
        assert!(kept.len() > 10, "only {} grants of {limit:?}", kept.len());
        kept.sort_unstable();
        let refilled = |instant: i64| match limit.name() {
            "window" => 30_000_000 * (instant - 30_000).div_euclid(100_000),
            _ => 300 * instant,
        };
        let spec = limit.spec();
        let most = spec.capacity.unwrap().micros() + spec.max_reserved.micros();
        let (mut sum, mut allowed) = (0, i64::MAX);
        for (instant, cost) in kept {
            allowed = allowed.min(sum - refilled(instant) + most);
            sum += cost;
            assert!(sum - refilled(instant) <= allowed, "over at {instant}: {limit:?}");
        }
    }
    assert!(spent.iter().filter(|(.., kept)| *kept == 0).count() > 5, "charges come back");
}

/// What was granted, when, and what of it was kept in the end.
type Spent = Vec<(String, DateTime<Utc>, i64)>;

async fn spend(gate: tollgate::Gate, end: DateTime<Utc>, seed: u64) -> Spent {
    let (mut dice, mut spent) = (Rng::with_seed(seed), Vec::new());
    loop {
        let (request, lapses) = ask(&mut dice);
        let reserved = gate.reserve(request).await.unwrap();
        let (now, charges) = match reserved {
            Decision::Granted(booked) => (booked.decided_at, booked.charges),
            Decision::Denied(denied) => (denied.decided_at, Vec::new()),
        };
        for charge in charges {
            let actual = Tokens::from_micros(dice.i64(0..=charge.cost.micros()));
            let settled = if charge.hold.is_none() || dice.u8(..3) == 0 {
                None
            } else {
                let receipt: Receipt = serde_json::from_value(serde_json::json!({ "charges": [charge] })).unwrap();
                let [one, two] = [receipt.clone(), receipt];
                let (one, two) = tokio::join!(gate.settle(one, actual), gate.settle(two, actual));
                assert!(one.is_err() || two.is_err(), "used twice");
                one.or(two).ok().map(|_| actual.micros())
            };
            let left = if lapses { 0 } else { charge.cost.micros() };
            spent.push((charge.limit.name().to_owned(), now, settled.unwrap_or(left)));
        }
        if now >= end {
            return spent;
        }
    }
}

/// The same in transactions of the caller's own, some of which are rolled back.
async fn join_in(url: String, end: DateTime<Utc>) -> Spent {
    let (mut conn, mut dice) = (PgConnection::connect(&url).await.unwrap(), Rng::with_seed(99));
    let mut spent = Vec::new();
    loop {
        let (request, lapses) = ask(&mut dice);
        let mut tx = conn.begin().await.unwrap();
        let decision = limiter().consume(&mut tx, request).await.unwrap();
        let now = match &decision {
            Decision::Granted(Grant { decided_at, .. }) => *decided_at,
            Decision::Denied(denied) => denied.decided_at,
        };
        let is_lost = dice.bool();
        if is_lost {
            tx.rollback().await.unwrap();
        } else {
            tx.commit().await.unwrap();
        }
        for charge in decision.granted().into_iter().flat_map(|grant| grant.charges).filter(|_| !is_lost) {
            spent.push((charge.limit.name().to_owned(), now, if lapses { 0 } else { charge.cost.micros() }));
        }
        if now >= end {
            return spent;
        }
    }
}

/// A request, and whether it comes back by itself.
fn ask(dice: &mut Rng) -> (Request, bool) {
    let limit = &narrow()[dice.usize(..3)];
    let request = limit.global().cost(Tokens::from_micros(dice.i64(100_000..6_000_000)));
    let span = Duration::from_micros(dice.u64(1..60_000));
    match dice.u8(..3) {
        0 => (request, false),
        1 => (request.tracked_for(span), false),
        _ => (request.lapses_after(span), true),
    }
}
