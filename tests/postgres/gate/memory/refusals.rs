//! Refusals that are remembered: they cost no query, and refuse nobody whom the database would let through.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use chrono::{DateTime, Utc};
use fastrand::Rng;
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tokio::task::JoinSet;
use tollgate::{Balance, Decision, Denied, Error, Gate, HOUR, Limit, MINUTE, Receipt, Request, SECOND, Source, Tokens};

use crate::gate::stage::{EVER, one_connection, patient, pool, soon};
use crate::proxy::Proxy;
use crate::teller::both;
use crate::world::{World, limiter, second};

/// A gate that remembers, by a clock that the test turns, over a wire that counts statements.
struct Stage {
    gate: Gate,
    now: Arc<AtomicI64>,
    proxy: Proxy,
    pool: PgPool,
    world: World,
}

impl Stage {
    async fn new(keys: usize) -> Self {
        let world = World::new().await;
        let proxy = Proxy::new(&world.url());
        let pool = one_connection(proxy.options()).await;
        let now = Arc::new(AtomicI64::new(second(0.0).timestamp_micros()));
        let gate = patient(&pool).remember_refusals(HOUR).remembered_keys(keys).clock(clock(&now)).build();
        Self { gate, now, proxy, pool, world }
    }

    /// Another gate by the same clock.
    fn other(&self) -> Gate {
        patient(&self.pool).clock(clock(&self.now)).build()
    }

    fn pass(&self, span: Duration) {
        self.now.fetch_add(i64::try_from(span.as_micros()).unwrap(), Ordering::SeqCst);
    }

    async fn ok(&self, request: Request) {
        let grant = self.gate.consume(request).await.unwrap().granted().unwrap();
        assert_eq!(grant.source, Source::Database);
    }

    /// Refused by the database.
    async fn asked(&self, request: Request) -> Denied {
        let before = self.proxy.statements();
        let denied = self.gate.consume(request).await.unwrap().denied().unwrap();
        assert_eq!(denied.source, Source::Database);
        assert!(self.proxy.statements() > before);
        denied
    }

    /// Refused from memory.
    async fn remembered(&self, request: Request) -> Denied {
        let before = self.proxy.statements();
        let denied = self.gate.consume(request).await.unwrap().denied().unwrap();
        assert_eq!(denied.source, Source::Memory);
        assert_eq!(self.proxy.statements(), before);
        denied
    }
}

fn clock(now: &Arc<AtomicI64>) -> impl Fn() -> DateTime<Utc> + Send + Sync + 'static {
    let now = now.clone();
    move || DateTime::from_timestamp_micros(now.load(Ordering::SeqCst)).unwrap()
}

/// One token a minute, of every kind and in both tables.
fn ones() -> Vec<Limit> {
    let ones = [
        Limit::fixed_window("window", 1, MINUTE),
        Limit::fixed_window("aligned", 1, MINUTE).start(7 * SECOND),
        Limit::token_bucket("drip", 1, MINUTE),
        Limit::stepped_bucket("steps", 1, MINUTE),
    ];
    ones.iter().flat_map(both).collect()
}

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

/// Whatever raises a row forgets it.
#[tokio::test]
async fn credit_reset_settle_and_cancel_go_past_the_memory_and_clear_it() {
    let stage = Stage::new(100).await;
    for limit in ones().into_iter().filter(|limit| limit.name() != "drip") {
        let spent = || async {
            stage.pass(HOUR);
            let grant = stage.gate.consume(limit.key("k")).await.unwrap().granted().unwrap();
            stage.asked(limit.key("k")).await;
            stage.remembered(limit.key("k")).await;
            grant
        };
        spent().await;
        stage.gate.credit(limit.key("k")).await.unwrap();
        stage.ok(limit.key("k")).await;
        spent().await;
        stage.gate.reset(limit.key("k")).await.unwrap();
        stage.ok(limit.key("k")).await;
        let grant = spent().await;
        stage.gate.settle(grant, 0).await.unwrap();
        stage.ok(limit.key("k")).await;
        let grant = spent().await;
        stage.gate.cancel(grant).await.unwrap();
        stage.ok(limit.key("k")).await;
    }
}

/// The same where the call is decided under a lock, as one over both tables is.
#[tokio::test]
async fn settling_a_receipt_over_both_tables_clears_the_memory() {
    let stage = Stage::new(100).await;
    let limits = [Limit::token_bucket("durable", 1, EVER), Limit::token_bucket("ephemeral", 1, EVER).ephemeral()];
    for _ in 0..2 {
        let grant = stage.gate.consume(limits.each_ref().map(|limit| limit.key("k"))).await;
        let grant = grant.unwrap().granted().unwrap();
        for limit in &limits {
            stage.asked(limit.key("k")).await;
            stage.remembered(limit.key("k")).await;
        }
        stage.gate.settle(grant, 0).await.unwrap();
        for limit in &limits {
            stage.ok(limit.key("k")).await;
            stage.gate.reset(limit.key("k")).await.unwrap();
        }
    }
}

/// The gate looks for lapses by itself; until then the memory refuses.
#[tokio::test]
async fn what_this_gate_gives_back_of_a_lapse_clears_the_memory() {
    let stage = Stage::new(100).await;
    for limit in both(&Limit::token_bucket("bucket", 1, EVER)) {
        stage.ok(limit.key("k").lapses_after(MINUTE)).await;
        stage.asked(limit.key("k")).await;
        let denied = stage.gate.consume(limit.key("k")).await.unwrap().denied().unwrap();
        assert_eq!(denied.source, Source::Memory);
        stage.pass(MINUTE);
        soon(async {
            while !stage.gate.consume(limit.key("k")).await.unwrap().is_granted() {
                tokio::time::sleep(SECOND / 20).await;
            }
        })
        .await;
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

/// The second half of F54: what has lapsed is swept, so that others can be remembered.
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
        // Four are left, and the gate knows, for it took the one itself.
        stage.remembered(limit.key("k").cost(6)).await;
        stage.remembered(limit.key("k").cost(5)).await;
        stage.ok(limit.key("k").cost(4)).await;
        // Nothing is left, and that it knows, too.
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
    // Not even for a key that is remembered is it a refusal.
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
    // Of several that refuse, the latest.
    stage.ok(loose.key("k").cost(9)).await;
    stage.asked(loose.key("k")).await;
    let denied = stage.gate.consume([tight.key("k"), loose.key("k")]).await.unwrap().denied().unwrap();
    assert_eq!((denied.source, &*denied.limit, denied.others.len()), (Source::Memory, "loose", 1));
}

/// Random calls of one gate: whatever is refused from memory would the limiter refuse, with the same words.
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

/// Whoever raises a row and then asks is not refused by what others saw before, in whatever lane they saw it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_that_is_under_way_does_not_outlive_a_credit() {
    const ROUNDS: u32 = 300;
    let world = World::new().await;
    let pool = pool(&world.url(), 8).await;
    let gate = patient(&pool).lanes(4).remember_refusals(HOUR).build();
    let limit = Limit::stepped_bucket("raced", 10, EVER);
    let spent = Limit::stepped_bucket("spent", 1, EVER);
    for key in 0..4 {
        gate.consume(spent.key(key)).await.unwrap().granted().unwrap();
    }
    let done = Arc::new(AtomicBool::new(false));
    let mut others = JoinSet::new();
    for other in 0..8_u32 {
        let (gate, limit, spent, done) = (gate.clone(), limit.clone(), spent.clone(), done.clone());
        others.spawn(async move {
            let mut from_memory = 0_u32;
            while !done.load(Ordering::SeqCst) {
                // They take nothing: some only look, the others ask too much elsewhere, and so in other lanes.
                let decision = if other % 2 == 0 {
                    gate.check(limit.key("k")).await.unwrap()
                } else {
                    gate.consume([spent.key(other % 4), limit.key("k")]).await.unwrap()
                };
                from_memory += u32::from(decision.denied().is_some_and(|denied| denied.source == Source::Memory));
                tokio::task::yield_now().await;
            }
            from_memory
        });
    }
    let all = || limit.key("k").cost(10);
    for round in 0..ROUNDS {
        let grant = gate.consume(all()).await.unwrap().granted().unwrap_or_else(|denied| panic!("{round}: {denied:?}"));
        // Until it is remembered.
        soon(async { while gate.check(limit.key("k")).await.unwrap().denied().unwrap().source == Source::Database {} })
            .await;
        let raised = match round % 4 {
            0 => gate.reset(all()).await,
            1 => gate.credit(all()).await,
            2 => gate.settle(grant, 0).await.and(gate.balance(all()).await),
            _ => gate.cancel(grant).await.and(gate.balance(all()).await),
        };
        if !raised.unwrap().is_full() {
            // A grant is ready at once, and cannot be cancelled any more.
            gate.reset(all()).await.unwrap();
        }
    }
    done.store(true, Ordering::SeqCst);
    let from_memory: Vec<u32> = soon(others.join_all()).await;
    assert!(from_memory.iter().sum::<u32>() > ROUNDS, "{from_memory:?}");
}

/// A row is read as too low in one lane, and raised in another before the first comes to remember it.
#[tokio::test]
async fn what_was_read_before_a_reset_is_not_remembered_after_it() {
    let world = World::new().await;
    let proxy = Proxy::new(&world.url());
    // So many lanes that the two rows are in different ones.
    let pool = PgPoolOptions::new()
        .max_connections(64)
        .acquire_timeout(5 * MINUTE)
        .connect_with(proxy.options())
        .await
        .unwrap();
    let gate = patient(&pool).lanes(64).remember_refusals(HOUR).build();
    let limit = Limit::stepped_bucket("raced", 1000, EVER);
    let [low, busy] = ["low", "busy"].map(|key| limit.key(key));
    let idle = || {
        soon(async {
            while pool.num_idle() < 1 {
                tokio::task::yield_now().await;
            }
        })
    };
    gate.consume(low.clone().cost(1000)).await.unwrap().granted().unwrap();
    for other in 0..4 {
        // From now on, calls of several rows go where the busy one is.
        idle().await;
        gate.consume([busy.clone(), limit.key(other)]).await.unwrap().granted().unwrap();
    }
    idle().await;
    // One connection over the wire, and all others past it.
    assert_eq!(pool.size(), 1);
    pool.set_connect_options(world.url().parse().unwrap());
    proxy.hold_after(1);
    let (granted, denied, ()) =
        tokio::join!(soon(gate.consume(busy.clone())), soon(gate.consume([low.clone(), busy.clone()])), async {
            soon(proxy.until_held()).await;
            assert!(soon(gate.reset(low.clone())).await.unwrap().is_full());
            proxy.release();
        });
    granted.unwrap().granted().unwrap();
    assert_eq!(denied.unwrap().denied().unwrap().source, Source::Database);
    soon(gate.consume(low.cost(1000))).await.unwrap().granted().unwrap();
}

/// Seen when the memory is stale; a gate that remembers for an hour goes on refusing.
#[tokio::test]
async fn what_another_gate_gave_is_seen_within_the_staleness() {
    let world = World::new().await;
    let pool = pool(&world.url(), 4).await;
    let remembering = |staleness| patient(&pool).remember_refusals(staleness).build();
    let (never, shortly, for_long) =
        (remembering(Duration::ZERO), remembering(Duration::from_millis(20)), remembering(HOUR));
    let limit = Limit::token_bucket("elsewhere", 1, EVER);
    for _ in 0..3 {
        never.consume(limit.key("k")).await.unwrap().granted().unwrap();
        for gate in [&never, &shortly, &for_long] {
            gate.consume(limit.key("k")).await.unwrap().granted().unwrap_err();
        }
        let other = patient(&pool).build();
        other.reset(limit.key("k")).await.unwrap();
        let still = for_long.check(limit.key("k")).await.unwrap().denied().unwrap();
        assert_eq!(still.source, Source::Memory);
        assert!(never.check(limit.key("k")).await.unwrap().is_granted());
        soon(async { while !shortly.check(limit.key("k")).await.unwrap().is_granted() {} }).await;
        // Its own changes it knows.
        for_long.reset(limit.key("k")).await.unwrap();
        assert!(for_long.check(limit.key("k")).await.unwrap().is_granted());
    }
}

/// By the real clocks: whoever waits as long as a refusal says is let through, whoever refused.
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

/// Of several rows none refuses by itself, so nothing is remembered of them.
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

/// Ten keys are counted; the three that are refused most are among them, with counts that are never too low.
#[tokio::test]
async fn the_keys_refused_most_are_known() {
    let world = World::new().await;
    let one = Limit::token_bucket("one", 1, Limit::MAX_PERIOD);
    let gate = patient(&world.pool).count_refusals(10).build();
    let quiet = patient(&world.pool).build();
    let mut asked = Vec::new();
    for (key, times) in (0..40).map(|key| (key, 1)).chain([(100, 60), (101, 50), (102, 40)]) {
        asked.extend(std::iter::repeat_n(key, times));
    }
    Rng::with_seed(7).shuffle(&mut asked);
    for key in &asked {
        drop(quiet.consume(one.key(*key)).await.unwrap());
        assert!(!gate.consume(one.key(*key)).await.unwrap().is_granted());
    }
    let most = gate.most_refused(100);
    assert_eq!(most.len(), 10);
    assert_eq!(most.iter().map(|refused| refused.times).sum::<u64>(), asked.len() as u64);
    for refused in &most {
        let truly = asked.iter().filter(|key| key.to_string() == refused.key.as_str()).count() as u64;
        assert!((refused.times - refused.excess..=refused.times).contains(&truly), "{refused:?}: {truly}");
    }
    let mut first: Vec<_> = gate.most_refused(3).iter().map(|refused| refused.key.to_string()).collect();
    first.sort();
    assert_eq!(first, ["100", "101", "102"]);
    assert_eq!(quiet.most_refused(1), []);
}
