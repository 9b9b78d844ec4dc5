//! Many callers at once: nobody is granted too much, nobody deadlocks, nobody fails.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tollgate::{Decision, Grant, Limit, Limiter, MINUTE, Request, SECOND, Storage, Tokens};

use crate::gate::stage::{soon, sweep};
use crate::proxy::Proxy;
use crate::world::{World, limiter, part, pid};

static LIMITER: LazyLock<Limiter> = LazyLock::new(limiter);

/// So long that nothing comes back while a test runs.
const EVER: Duration = Limit::MAX_PERIOD;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_key_grants_sixty_four_callers_its_capacity_and_no_more() {
    const CALLERS: usize = 64;
    const KEYS: usize = 4;
    let world = World::new().await;
    let limits = [
        Limit::token_bucket("continuous", 10, EVER),
        Limit::stepped_bucket("stepped", 10, EVER).capacity(20),
        Limit::fixed_window("window", 10, EVER),
        Limit::token_bucket("continuous", 10, EVER).ephemeral(),
        Limit::stepped_bucket("stepped", 10, EVER).capacity(20).ephemeral(),
        Limit::fixed_window("window", 10, EVER).ephemeral(),
    ];
    let (start, granted) = (Arc::new(Barrier::new(CALLERS)), Arc::new(Mutex::new(BTreeMap::new())));
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS {
        let (url, limits, start, granted) = (world.url(), limits.clone(), start.clone(), granted.clone());
        callers.spawn(async move {
            let mut conn = PgConnection::connect(&url).await.unwrap();
            for (which, limit) in limits.iter().enumerate() {
                for key in 0..KEYS {
                    start.wait().await;
                    if take(&mut conn, limit.key(key)).await.is_some() {
                        *granted.lock().unwrap().entry((which, key)).or_default() += 1;
                    }
                }
            }
        });
    }
    callers.join_all().await;
    let expected = (0..limits.len()).flat_map(|which| (0..KEYS).map(move |key| (which, key)));
    let expected: BTreeMap<_, _> = expected.map(|at| (at, if at.0 % 3 == 1 { 20 } else { 10 })).collect();
    assert_eq!(*granted.lock().unwrap(), expected);
}

/// Between a caller's lock and its insert the row appears, and between its insert and its lock it vanishes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_beside_resets_and_sweeps_never_fail_and_get_what_the_resets_allow() {
    for limit in [Limit::token_bucket("swept", 5, EVER), Limit::stepped_bucket("swept", 5, EVER).ephemeral()] {
        let world = World::new().await;
        let (done, granted) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let mut callers = JoinSet::new();
        for _ in 0..8 {
            let (url, limit, done, granted) = (world.url(), limit.clone(), done.clone(), granted.clone());
            callers.spawn(async move {
                let mut conn = PgConnection::connect(&url).await.unwrap();
                while !done.load(Ordering::SeqCst) {
                    granted.fetch_add(take(&mut conn, limit.key("k")).await.is_some().into(), Ordering::SeqCst);
                }
            });
        }
        let (sweeper, mut resets) = (Sweeper::start(&world), 0);
        let mut conn = world.connect().await;
        let reset_until_enough_was_seen = async {
            while granted.load(Ordering::SeqCst) < 100 || sweeper.deleted() < 3 {
                let mut tx = conn.begin().await.unwrap();
                assert!(LIMITER.reset(&mut tx, limit.key("k")).await.unwrap().is_full());
                tx.commit().await.unwrap();
                resets += 1;
            }
        };
        tokio::time::timeout(10 * MINUTE, reset_until_enough_was_seen).await.unwrap();
        done.store(true, Ordering::SeqCst);
        callers.join_all().await;
        sweeper.stop().await;
        let granted = granted.load(Ordering::SeqCst);
        assert!(granted <= 5 * (resets + 1), "{granted} granted of a capacity of 5 with {resets} resets");
    }
}

/// A caller waits for a row that somebody else is inserting, and decides by its end: committed, deleted or rolled back.
#[tokio::test]
async fn a_row_that_appears_or_comes_and_goes_while_it_is_inserted_is_decided_anew() {
    let world = World::new().await;
    let limit = Limit::token_bucket("slow", 10, EVER);
    let spend = "begin; insert into tollgate.durable values (0, 'slow', 'k', 0, -8000000, now(), '9999-01-01')";
    let (mut holder, mut waiter) = (world.connect().await, world.connect().await);
    let waiter_pid = pid(&mut waiter).await;
    for (end, cost, remaining) in [
        ("commit", 3, None),
        ("commit", 2, Some(0)),
        ("delete from tollgate.durable; commit", 10, Some(0)),
        ("rollback", 10, Some(0)),
    ] {
        sqlx::raw_sql(spend).execute(&mut holder).await.unwrap();
        let mut tx = waiter.begin().await.unwrap();
        let (decision, ()) = tokio::join!(LIMITER.consume(&mut tx, limit.key("k").cost(cost)), async {
            world.until_blocked(waiter_pid).await;
            sqlx::raw_sql(end).execute(&mut holder).await.unwrap();
        });
        let found = decision.unwrap().granted().ok().map(|grant| grant.remaining);
        assert_eq!(found, remaining.map(Tokens::new), "{cost} after {end}");
        tx.commit().await.unwrap();
        world.sql("truncate tollgate.durable").await;
    }
}

/// Sets of rows that are there, that are not, and that come and go, asked in every order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_asked_together_in_any_order_never_deadlock_and_balance_to_the_token() {
    const CALLERS: u64 = 32;
    const ROUNDS: u64 = 32;
    const KEYS: u64 = 4;
    const CAPACITY: i64 = 12;
    let world = World::new().await;
    let limits = [
        Limit::token_bucket("a", 12, EVER),
        Limit::stepped_bucket("b", 12, EVER),
        Limit::token_bucket("c", 12, EVER).ephemeral(),
    ];
    let taken: Arc<[AtomicI64; 12]> = Arc::default();
    let granted = Arc::new(AtomicU64::new(0));
    let sweeper = Sweeper::start(&world);
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        let (url, limits, taken, granted) = (world.url(), limits.clone(), taken.clone(), granted.clone());
        callers.spawn(async move {
            let (mut conn, mut dice) = (PgConnection::connect(&url).await.unwrap(), Dice(caller));
            for round in 0..ROUNDS {
                let (rows, cost) = (dice.some(2..=6, 3 * KEYS), 1 + dice.below(3));
                let count = |sign: i64| {
                    let cost = sign * i64::try_from(cost).unwrap();
                    for row in &rows {
                        taken[*row].fetch_add(cost, Ordering::SeqCst);
                    }
                };
                let ask = || rows.iter().map(|row| limits[row % 3].key(row / 3).cost(cost));
                let mut tx = conn.begin().await.unwrap();
                let decision = LIMITER.consume(&mut tx, ask()).await.unwrap();
                if !decision.is_granted() {
                    tx.commit().await.unwrap();
                    continue;
                }
                granted.fetch_add(1, Ordering::SeqCst);
                if dice.below(4) == 0 {
                    tx.rollback().await.unwrap();
                    continue;
                }
                tx.commit().await.unwrap();
                count(1);
                // All is given back until near the end, so that rows fill up, vanish and are made anew.
                if round < ROUNDS - 4 || dice.below(2) == 0 {
                    for request in ask() {
                        let mut tx = conn.begin().await.unwrap();
                        LIMITER.credit(&mut tx, request).await.unwrap();
                        tx.commit().await.unwrap();
                    }
                    count(-1);
                }
            }
        });
    }
    callers.join_all().await;
    assert!(sweeper.deleted() > 0, "the rows never vanished");
    sweeper.stop().await;
    assert!(granted.load(Ordering::SeqCst) > CALLERS * ROUNDS / 8);
    for (row, taken) in taken.iter().enumerate() {
        let (limit, taken) = (&limits[row % 3], taken.load(Ordering::SeqCst));
        let found = world.left(limit, &(row / 3).to_string()).await;
        let found = found.map_or(CAPACITY * 1_000_000, tollgate::Tokens::micros);
        assert_eq!(found, (CAPACITY - taken) * 1_000_000, "row {row}: {taken} taken and kept");
    }
}

/// Settling and cancelling lock several rows too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reserving_settling_and_cancelling_several_limits_never_deadlock() {
    let world = World::new().await;
    let limits =
        ["a", "b", "c", "d"].map(|name| Limit::token_bucket(name, 5, EVER).capacity(0).unbounded_reservations());
    let mut callers = JoinSet::new();
    for caller in 0..16 {
        let (url, limits) = (world.url(), limits.clone());
        callers.spawn(async move {
            let (mut conn, mut dice) = (PgConnection::connect(&url).await.unwrap(), Dice(caller));
            for _ in 0..20 {
                let ask = dice.some(2..=4, 4).into_iter().map(|which| limits[which].key("k").cost(2));
                let mut tx = conn.begin().await.unwrap();
                let mut booked = LIMITER.reserve(&mut tx, ask).await.unwrap().granted().unwrap();
                tx.commit().await.unwrap();
                // In any order: the plan sorts them.
                booked.receipt.charges.reverse();
                let mut tx = conn.begin().await.unwrap();
                let settled = if dice.below(2) == 0 {
                    LIMITER.settle(&mut tx, booked, 0).await
                } else {
                    LIMITER.cancel(&mut tx, booked).await
                };
                settled.unwrap();
                tx.commit().await.unwrap();
            }
        });
    }
    callers.join_all().await;
    for limit in &limits {
        let left = world.left(limit, "k").await.unwrap();
        assert_eq!(left, Tokens::ZERO, "{}", limit.name());
    }
}

#[tokio::test]
async fn refusals_leave_no_row_behind() {
    let world = World::new().await;
    let spent = Limit::token_bucket("spent", 1, EVER);
    let others = [Limit::token_bucket("a", 5, EVER), Limit::token_bucket("z", 5, EVER).ephemeral()];
    let mut conn = world.connect().await;
    take(&mut conn, spent.global()).await.unwrap();
    let mut tx = conn.begin().await.unwrap();
    for other in &others {
        for ask in [vec![spent.global(), other.key(1)], vec![other.key(1), other.key(2), spent.global()]] {
            let denied = LIMITER.consume(&mut tx, ask).await.unwrap().denied().unwrap();
            assert_eq!(denied.limit, "spent");
        }
    }
    tx.commit().await.unwrap();
    assert_eq!(world.rows().await, 1);
}

/// The call reads enough in the limit, waits for a row of the set, and finds it spent: the row that the call inserted
/// is gone again.
#[tokio::test]
async fn a_refusal_after_a_wait_leaves_no_row_behind() {
    let world = World::new().await;
    let limit = Limit::token_bucket("raced", 1, EVER);
    // The second key has a row; the first is inserted before the wait.
    world.sql("insert into tollgate.durable values (0, 'raced', 'b', 0, 0, now(), now())").await;
    let (mut holder, mut waiter) = (world.connect().await, world.connect().await);
    let waiter_pid = pid(&mut waiter).await;
    let mut held = holder.begin().await.unwrap();
    LIMITER.consume(&mut held, limit.key("b")).await.unwrap().granted().unwrap();
    let mut tx = waiter.begin().await.unwrap();
    let ask = LIMITER.consume(&mut tx, [limit.key("a"), limit.key("b")]);
    let (decision, ()) = tokio::join!(ask, async {
        world.until_blocked(waiter_pid).await;
        held.commit().await.unwrap();
    });
    assert_eq!(decision.unwrap().denied().unwrap().key.as_str(), "b");
    tx.commit().await.unwrap();
    assert_eq!(world.row(Storage::Durable, "raced", "a").await, None);
}

/// A clock read before the wait would grant refill twice: once to the holder, once to the waiter.
#[tokio::test]
async fn the_clock_is_read_after_the_wait_for_a_row() {
    let world = World::new().await;
    let (durable, ephemeral) = (Limit::token_bucket("d", 50, SECOND), Limit::token_bucket("e", 50, SECOND).ephemeral());
    let d = |key: &'static str| durable.key(key);
    let e = |key: &'static str| ephemeral.key(key);
    let mut conn = world.connect().await;
    for request in [d("there"), d("other"), e("there"), e("other")] {
        take(&mut conn, request).await.unwrap();
    }
    // Citus locks only where a statement names the part.
    let there = format!("part = {} and key = 'there'", part("there"));
    let lock = &format!(
        "select from tollgate.durable where {there} for update;
         select from tollgate.ephemeral where {there} for update"
    );
    let update = &format!(
        "update tollgate.durable set value = value - 1 where {there};
         update tollgate.ephemeral set value = value - 1 where {there}"
    );
    for (hold, end, asks) in [
        (lock, "rollback", vec![d("there")]),
        (lock, "commit", vec![e("there")]),
        (update, "commit", vec![d("there")]),
        (update, "rollback", vec![e("there")]),
        (lock, "rollback", vec![d("other"), d("there")]),
        (lock, "rollback", vec![d("there"), d("other")]),
        (update, "commit", vec![e("other"), e("there")]),
        (lock, "rollback", vec![e("other"), d("there")]),
        (lock, "rollback", vec![e("there"), d("other")]),
        (lock, "rollback", vec![d("absent"), d("there")]),
    ] {
        let case = format!("{asks:?} behind {end} of {hold}");
        let (grant, released) = behind(&world, hold, end, asks).await;
        assert!(grant.decided_at >= released, "{case}: decided at {}, released at {released}", grant.decided_at);
        world.sql("delete from tollgate.durable where key = 'absent'").await;
    }
}

/// Judged by the instants that the grants themselves record, in whole micro-tokens, without a tolerance.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn never_over_between_any_two_grants_of_a_continuous_limit() {
    for limit in [
        Limit::token_bucket("busy", 200, SECOND).capacity(20),
        Limit::token_bucket("busy", 200, SECOND).capacity(20).ephemeral(),
    ] {
        let world = World::new().await;
        let grants = spend(&world, &limit).await;
        // 200 tokens a second are 200 micro-tokens each microsecond.
        never_over(&grants, |first, last| 20_000_000 + 200 * (last - first));
        assert!(grants.len() > 40, "only {} grants", grants.len());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn never_over_between_any_two_grants_of_a_stepped_limit() {
    const PERIOD: i64 = 100_000;
    for limit in [
        Limit::stepped_bucket("busy", 15, Duration::from_millis(100)).capacity(20),
        Limit::fixed_window("busy", 15, Duration::from_millis(100)).ephemeral(),
    ] {
        let world = World::new().await;
        let grants = spend(&world, &limit).await;
        let (_, step) = world.row(limit.spec().storage, "busy", "k").await.unwrap();
        let step = step.timestamp_micros();
        let capacity = limit.spec().capacity.unwrap_or(Tokens::new(15)).micros();
        let grid = |instant: i64| (instant - step).div_euclid(PERIOD);
        never_over(&grants, |first, last| capacity + 15_000_000 * (grid(last) - grid(first)));
        assert!(grants.len() > 40, "only {} grants", grants.len());
    }
}

/// One token of `request`, in a transaction of its own; none if it is refused.
async fn take(conn: &mut PgConnection, request: Request) -> Option<Grant> {
    let mut tx = conn.begin().await.unwrap();
    let decision = LIMITER.consume(&mut tx, request).await.unwrap();
    tx.commit().await.unwrap();
    decision.granted().ok()
}

/// Asks while another transaction holds what `hold` holds, until it ends by `end`; and the instant at which it did.
async fn behind(world: &World, hold: &str, end: &str, asks: Vec<Request>) -> (Grant, DateTime<Utc>) {
    let (mut holder, mut waiter) = (world.connect().await, world.connect().await);
    let waiter_pid = pid(&mut waiter).await;
    sqlx::raw_sql(AssertSqlSafe(format!("begin; {hold}"))).execute(&mut holder).await.unwrap();
    let mut tx = waiter.begin().await.unwrap();
    let release = async {
        world.until_blocked(waiter_pid).await;
        // On Citus a clock that was read a moment before is near enough.
        let instant = "select clock_timestamp() from pg_sleep(0.01)";
        let instant = sqlx::query_scalar(instant).fetch_one(&mut holder).await.unwrap();
        sqlx::raw_sql(AssertSqlSafe(end.to_owned())).execute(&mut holder).await.unwrap();
        instant
    };
    let (decision, released) = tokio::join!(LIMITER.consume(&mut tx, asks), release);
    tx.rollback().await.unwrap();
    (decision.unwrap().granted().unwrap(), released)
}

/// A grant: its recorded instant in microseconds, and its cost in micro-tokens.
type Spent = (i64, i64);

/// The grants of sixteen callers in about a second, or in as long as enough grants take, in commit order.
async fn spend(world: &World, limit: &Limit) -> Vec<Spent> {
    world.sql("create sequence commits").await;
    let sql = "select clock_timestamp() + interval '1 second'";
    let end: DateTime<Utc> = sqlx::query_scalar(sql).fetch_one(&world.pool).await.unwrap();
    let (mut callers, granted) = (JoinSet::new(), Arc::new(AtomicU64::new(0)));
    for caller in 0..16 {
        let (url, limit, granted) = (world.url(), limit.clone(), granted.clone());
        callers.spawn(async move {
            let (mut conn, mut dice) = (PgConnection::connect(&url).await.unwrap(), Dice(caller));
            let mut spent = Vec::new();
            loop {
                let cost = Tokens::from_micros(100_000 + i64::try_from(dice.below(2_000_000)).unwrap());
                let mut tx = conn.begin().await.unwrap();
                let decided_at = match LIMITER.consume(&mut tx, limit.key("k").cost(cost)).await.unwrap() {
                    Decision::Granted(grant) => {
                        // The row is locked: the next caller commits later.
                        let commit = sqlx::query_scalar::<_, i64>("select nextval('commits')").persistent(false);
                        let commit = commit.fetch_one(&mut *tx).await.unwrap();
                        granted.fetch_add(1, Ordering::SeqCst);
                        spent.push((commit, (grant.decided_at.timestamp_micros(), cost.micros())));
                        grant.decided_at
                    }
                    Decision::Denied(denied) => denied.decided_at,
                };
                tx.commit().await.unwrap();
                if decided_at >= end && granted.load(Ordering::SeqCst) > 40 {
                    return spent;
                }
            }
        });
    }
    let mut spent = soon(callers.join_all()).await.concat();
    spent.sort_unstable();
    spent.into_iter().map(|(_, spent)| spent).collect()
}

/// Checks grants in commit order: time does not go back, and no span holds more than `most` of its ends.
fn never_over(grants: &[Spent], most: impl Fn(i64, i64) -> i64) {
    assert!(grants.is_sorted_by_key(|(instant, _)| instant), "the recorded clock went back");
    for (place, (first, _)) in grants.iter().enumerate() {
        let mut sum = 0;
        for (last, cost) in &grants[place..] {
            sum += cost;
            assert!(sum <= most(*first, *last), "{sum} micro-tokens within {} µs", last - first);
        }
    }
}

/// Deletes full rows of both tables all the time, as a clean-up would.
struct Sweeper {
    deleted: Arc<AtomicU64>,
    done: Arc<AtomicBool>,
    task: tokio::task::JoinHandle<()>,
}

impl Sweeper {
    fn start(world: &World) -> Self {
        let (deleted, done) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (url, count, is_done) = (world.direct_url(), deleted.clone(), done.clone());
        let task = tokio::spawn(async move {
            let mut conn = PgConnection::connect(&url).await.unwrap();
            while !is_done.load(Ordering::SeqCst) {
                count.fetch_add(sweep(&mut conn).await, Ordering::SeqCst);
            }
        });
        Self { deleted, done, task }
    }

    /// How many rows it has deleted so far.
    fn deleted(&self) -> u64 {
        self.deleted.load(Ordering::SeqCst)
    }

    async fn stop(self) {
        self.done.store(true, Ordering::SeqCst);
        self.task.await.unwrap();
    }
}

/// Throws the same numbers in every run, for each seed its own.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    /// Some of the numbers below `bound`, in any order, each once.
    fn some(&mut self, count: std::ops::RangeInclusive<u64>, bound: u64) -> Vec<usize> {
        let count = count.start() + self.below(count.end() - count.start() + 1);
        let mut all: Vec<_> = (0..usize::try_from(bound).unwrap()).collect();
        let picked = (0..count).map(|_| {
            let place = self.below(all.len() as u64);
            all.swap_remove(usize::try_from(place).unwrap())
        });
        picked.collect()
    }
}

/// The row is full when it is inserted, so it must not stand at an instant before others spent its tokens.
#[tokio::test]
async fn the_clock_is_read_after_the_wait_for_an_insert() {
    let world = World::new().await;
    let (durable, ephemeral) = (Limit::token_bucket("d", 50, SECOND), Limit::token_bucket("e", 50, SECOND).ephemeral());
    let (d, e) = (|key: &'static str| durable.key(key), |key: &'static str| ephemeral.key(key));
    let insert = "insert into tollgate.durable values (0, 'd', 'new', 0, 0, clock_timestamp(), clock_timestamp());
         insert into tollgate.ephemeral values (0, 'e', 'new', 0, 0, clock_timestamp(), clock_timestamp())";
    for (end, asks) in [
        ("rollback", vec![d("new")]),
        ("rollback", vec![d("new"), d("other")]),
        ("rollback", vec![e("new"), d("other")]),
        ("commit", vec![d("new"), d("other")]),
        ("commit", vec![e("new")]),
    ] {
        let case = format!("{asks:?} behind {end}");
        let (grant, released) = behind(&world, insert, end, asks).await;
        assert!(grant.decided_at >= released, "{case}: decided at {}, released at {released}", grant.decided_at);
        world.sql("delete from tollgate.durable").await;
        world.sql("delete from tollgate.ephemeral").await;
    }
}

/// The first statement of a call inserts the row that it finds absent. Were it free until the second, others could
/// spend it, and the row refill and be swept in between: twice the capacity within a moment.
#[tokio::test]
async fn never_over_a_row_that_was_absent_is_held_between_the_statements_of_a_call() {
    let world = World::new().await;
    let limit = Limit::token_bucket("slow", 10, EVER);
    let proxy = Proxy::new(&world.url());
    let (mut slow, mut quick) = (proxy.connect().await, world.connect().await);
    let quick_pid = pid(&mut quick).await;
    // Prepares the statements: from here on each is one round trip.
    take(&mut slow, limit.key("warm")).await.unwrap();
    let mut tx = slow.begin().await.unwrap();
    // After the insert.
    proxy.hold_after(2);
    let first = async {
        let decision = LIMITER.consume(&mut tx, limit.key("k").cost(10)).await.unwrap();
        tx.commit().await.unwrap();
        decision.granted().unwrap().remaining
    };
    let second = async {
        proxy.until_held().await;
        let release = async {
            world.until_blocked(quick_pid).await;
            proxy.release();
        };
        tokio::join!(take(&mut quick, limit.key("k")), release).0
    };
    let (first, second) = tokio::join!(first, second);
    assert_eq!(first, Tokens::ZERO);
    assert!(second.is_none(), "{second:?}");
}

/// A row that is deleted whenever it is reset vanishes under each caller again and again: someone has to insert it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_beside_a_clean_up_that_deletes_what_it_resets_are_never_contended() {
    let world = World::new().await;
    let limit = Limit::token_bucket("swept", 5, EVER);
    let done = Arc::new(AtomicBool::new(false));
    let mut callers = JoinSet::new();
    for _ in 0..16 {
        let (url, limit, done) = (world.url(), limit.clone(), done.clone());
        callers.spawn(async move {
            let mut conn = PgConnection::connect(&url).await.unwrap();
            while !done.load(Ordering::SeqCst) {
                let mut tx = conn.begin().await.unwrap();
                let decision = LIMITER.consume(&mut tx, limit.key("k")).await;
                tx.commit().await.unwrap();
                if let Err(error) = decision {
                    done.store(true, Ordering::SeqCst);
                    return Some(error);
                }
            }
            None
        });
    }
    let mut conn = world.connect().await;
    for _ in 0..150 {
        let mut tx = conn.begin().await.unwrap();
        LIMITER.reset(&mut tx, limit.key("k")).await.unwrap();
        sweep(&mut tx).await;
        tx.commit().await.unwrap();
    }
    done.store(true, Ordering::SeqCst);
    let errors: Vec<_> = callers.join_all().await.into_iter().flatten().collect();
    assert!(errors.is_empty(), "{errors:?}");
}

/// The first table's row looks short, so nothing there is locked; while the call waits for the second table's row,
/// tokens come back. To lock the first table's row then, holding the second's, is the wrong order.
#[tokio::test]
async fn a_set_over_both_tables_locks_no_row_of_the_second_table_before_the_first() {
    let world = World::new().await;
    let (first, second) = (Limit::token_bucket("e", 2, SECOND).ephemeral(), Limit::token_bucket("d", 1000, EVER));
    let proxy = Proxy::new(&world.url());
    let (mut slow, mut quick, mut holder) = (proxy.connect().await, world.connect().await, world.connect().await);
    let mut third = world.connect().await;
    let (slow_pid, third_pid) = (pid(&mut slow).await, pid(&mut third).await);
    let both = |cost: Tokens| [first.key("k").cost(cost), second.key("k")];
    let mut tx = slow.begin().await.unwrap();
    LIMITER.consume(&mut tx, [first.key("warm"), second.key("warm")]).await.unwrap().granted().unwrap();
    LIMITER.consume(&mut tx, [first.key("warm"), second.key("warm")]).await.unwrap().granted().unwrap();
    tx.commit().await.unwrap();
    take(&mut quick, second.key("k")).await.unwrap();

    let (mut tx, mut other) = (slow.begin().await.unwrap(), third.begin().await.unwrap());
    // The reads without a lock, one for each table, in which all looks well.
    proxy.hold_after(2);
    let mut slow = pin!(async {
        let answer = LIMITER.consume(&mut tx, both(Tokens::ONE)).await;
        // The third waits for what this one holds.
        tx.rollback().await.unwrap();
        answer
    });
    tokio::select! {
        answer = &mut slow => panic!("{answer:?} over a held wire"),
        () = proxy.until_held() => {}
    }
    let mut held = holder.begin().await.unwrap();
    let lock = "select from tollgate.durable where part = $1 and key = 'k' for update";
    sqlx::query(lock).bind(part("k")).execute(&mut *held).await.unwrap();
    take(&mut quick, first.key("k").cost(2)).await.unwrap();
    proxy.release();
    // Refused at once, or waiting for the second table's row.
    tokio::select! {
        answer = &mut slow => assert!(!answer.unwrap().is_granted()),
        () = world.until_blocked(slow_pid) => {
            let mut looking = quick.begin().await.unwrap();
            soon(async { while !LIMITER.check(&mut looking, first.key("k")).await.unwrap().is_granted() {} }).await;
            let other = LIMITER.consume(&mut other, both(Tokens::from_micros(1)));
            let (answer, other, ()) = tokio::join!(slow, other, async {
                world.until_blocked(third_pid).await;
                held.rollback().await.unwrap();
            });
            assert!(answer.is_ok() && other.is_ok(), "{answer:?}, {other:?}");
        }
    }
}
