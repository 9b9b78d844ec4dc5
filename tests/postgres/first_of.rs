//! Alternatives and split costs, in the joined transaction and through the gate.

use std::collections::HashMap;
use std::time::Duration;

use fastrand::Rng;
use sqlx::{Connection, PgConnection};
use tokio::task::JoinSet;
use tollgate::{Call, Decision, Denied, Grant, HOUR, Limit, OnFailure, SECOND, Source, Tokens, first_of, split};

use crate::gate::stage::{EVER, deadlocks, nowhere, one_connection, patient, pool, soon, until_alone};
use crate::proxy::Proxy;
use crate::teller::tokens;
use crate::world::{World, is_distributed, is_unnamed, limiter, pid, second};

const PLAN: Limit = Limit::token_bucket("plan", 2, EVER);
const CREDITS: Limit = Limit::wallet("credits");

fn plan_else_credits() -> Call {
    first_of([PLAN.key("k"), CREDITS.key("k")])
}

async fn balance(world: &World, limit: &Limit, key: &str) -> Option<Tokens> {
    world.left(limit, key).await
}

/// While the plan pays, nobody looks for the wallet's lock, or inserts its row.
#[tokio::test]
async fn rows_behind_the_alternative_that_is_taken_are_left_alone() {
    let world = World::new().await;
    let gate = patient(&pool(&world.url(), 2).await).lock_timeout(HOUR).build();
    let mut holder = world.connect().await;
    let mut held = holder.begin().await.unwrap();
    limiter().credit(&mut held, CREDITS.key("k").cost(5)).await.unwrap();
    let mut conn = world.connect().await;
    let mut tx = conn.begin().await.unwrap();
    let grant = soon(limiter().consume(&mut tx, plan_else_credits())).await.unwrap().granted().unwrap();
    assert_eq!(grant.alternative, 0);
    tx.commit().await.unwrap();
    // The gate swaps the row that is there, and claims the one that is missing.
    let gone = || first_of([PLAN.key("new"), CREDITS.key("k")]);
    for call in [plan_else_credits(), gone()] {
        assert_eq!(soon(gate.consume(call)).await.unwrap().granted().unwrap().alternative, 0);
    }
    held.commit().await.unwrap();
    assert_eq!(gate.consume(plan_else_credits()).await.unwrap().granted().unwrap().alternative, 1);
    assert_eq!(balance(&world, &CREDITS, "k").await, Some(tokens(4)));
    assert_eq!(balance(&world, &CREDITS, "new").await, None);
}

/// The look chose the plan, whose last tokens somebody takes meanwhile.
#[tokio::test]
async fn where_another_alternative_is_due_under_locks_it_is_taken() {
    let world = World::new().await;
    let gate = patient(&pool(&world.url(), 2).await).lock_timeout(HOUR).build();
    gate.credit(CREDITS.key("k").cost(5)).await.unwrap();
    gate.consume(PLAN.key("k")).await.unwrap().granted().unwrap();
    let (mut holder, mut waiter) = (world.connect().await, world.connect().await);
    let waiter_pid = pid(&mut waiter).await;
    let mut held = holder.begin().await.unwrap();
    limiter().consume(&mut held, PLAN.key("k")).await.unwrap().granted().unwrap();
    let mut tx = waiter.begin().await.unwrap();
    let (limiter, mut of_gate) = (limiter(), Box::pin(gate.consume(plan_else_credits())));
    let joined = limiter.consume(&mut tx, plan_else_credits());
    let (decision, ()) = tokio::join!(joined, async {
        world.until_blocked(waiter_pid).await;
        let by_then = tokio::time::timeout(Duration::from_millis(50), &mut of_gate).await;
        assert!(by_then.is_err(), "the row is locked");
        held.commit().await.unwrap();
    });
    assert_eq!(decision.unwrap().granted().unwrap().alternative, 1);
    tx.commit().await.unwrap();
    assert_eq!(soon(of_gate).await.unwrap().granted().unwrap().alternative, 1);
    assert_eq!(balance(&world, &CREDITS, "k").await, Some(tokens(3)));
    assert_eq!(balance(&world, &PLAN, "k").await, Some(tokens(0)));
}

#[tokio::test]
async fn each_alternative_takes_so_many_round_trips() {
    if is_distributed() || is_unnamed() {
        return; // More statements, or more round trips for each.
    }
    let world = World::new().await;
    let proxy = Proxy::new(&world.url());
    let pool = one_connection(proxy.options()).await;
    let mut conn = pool.acquire().await.unwrap();
    let mut counted = Vec::new();
    for key in ["cold", "warm"] {
        let mut tx = conn.begin().await.unwrap();
        limiter().credit(&mut tx, CREDITS.key(key).cost(4)).await.unwrap();
        counted.clear();
        // The plan twice, the wallet, and a refusal.
        for cost in [1, 1, 3, 5] {
            let before = proxy.trips();
            let call = first_of([PLAN.key(key).cost(cost.min(2)), CREDITS.key(key).cost(cost)]);
            let decision = limiter().consume(&mut tx, call).await.unwrap();
            counted.push((decision.granted().ok().map(|grant| grant.alternative), proxy.trips() - before));
        }
        let before = proxy.trips();
        let call = split(1, [PLAN.key(key), CREDITS.key(key)]);
        limiter().consume(&mut tx, call).await.unwrap().granted().unwrap();
        counted.push((None, proxy.trips() - before));
        tx.commit().await.unwrap();
    }
    // Look, savepoint, lock, write; without the savepoint where all rows are locked.
    assert_eq!(counted, [(Some(0), 4), (Some(0), 4), (Some(1), 3), (None, 1), (None, 3)]);
}

/// A retry is answered as the first call was, by each gate, though the plan would pay by now.
#[tokio::test]
async fn a_repeat_is_told_the_alternative_that_was_charged() {
    let world = World::new().await;
    let gates = [1, 2].map(|_| world.gate());
    let call =
        |cost: u32| first_of([PLAN.key("k").cost(cost).into(), split(3, [PLAN.key("k"), CREDITS.key("k")])]).once("a");
    let told = |decision: Decision| {
        let Grant { alternative, source, receipt, standings, .. } = decision.granted().unwrap();
        let costs: Vec<_> =
            standings.iter().map(|standing| (standing.limit.name().to_owned(), standing.cost)).collect();
        (alternative, source, receipt.charges.len(), costs)
    };
    let both = || vec![("plan".to_owned(), tokens(1)), ("credits".to_owned(), tokens(2))];
    gates[0].credit(CREDITS.key("k").cost(2)).await.unwrap();
    gates[0].consume(PLAN.key("k")).await.unwrap().granted().unwrap();
    assert_eq!(told(gates[0].consume(call(2)).await.unwrap()), (1, Source::Database, 2, both()));
    gates[0].reset(PLAN.key("k")).await.unwrap();
    let mut tx = world.begin().await;
    assert_eq!(told(limiter().consume(&mut tx, call(2)).await.unwrap()), (1, Source::Repeated, 2, both()));
    tx.commit().await.unwrap();
    let repeated = told(gates[1].consume(call(2)).await.unwrap());
    assert_eq!(repeated, (1, Source::Repeated, 2, both()));
    assert_eq!(balance(&world, &PLAN, "k").await, Some(tokens(2)));
    let other = gates[1].consume(call(1)).await.unwrap_err();
    assert!(matches!(other, tollgate::Error::OnceMismatch { .. }), "{other}");
}

/// A refusal is remembered only where each alternative is.
#[tokio::test]
async fn memory_refuses_where_all_alternatives_are_refused() {
    let world = World::new().await;
    let proxy = Proxy::new(&world.url());
    let gate = patient(&one_connection(proxy.options()).await).remember_refusals(HOUR).build();
    gate.consume(PLAN.key("k").cost(2)).await.unwrap().granted().unwrap();
    gate.consume(PLAN.key("k")).await.unwrap().denied().unwrap();
    gate.credit(CREDITS.key("k")).await.unwrap();
    // The plan is remembered, the wallet pays.
    let grant = gate.consume(plan_else_credits()).await.unwrap().granted().unwrap();
    assert_eq!((grant.alternative, grant.source), (1, Source::Database));
    let denied = gate.consume(plan_else_credits()).await.unwrap().denied().unwrap();
    assert_eq!((denied.source, denied.limit.as_ref()), (Source::Database, "plan"));
    let before = proxy.statements();
    let remembered = gate.consume(plan_else_credits()).await.unwrap().denied().unwrap();
    assert_eq!((remembered.source, remembered.limit.as_ref()), (Source::Memory, "plan"));
    assert_eq!(proxy.statements(), before);
    // A split call is refused by none of its limits alone.
    let denied = gate.consume(split(1, [PLAN.key("k"), CREDITS.key("k")])).await.unwrap().denied().unwrap();
    assert_eq!(denied.source, Source::Database);
    gate.credit(CREDITS.key("k")).await.unwrap();
    assert!(gate.consume(plan_else_credits()).await.unwrap().is_granted());
}

/// It waits as long as the soonest alternative demands, and no alternative that can never be granted counts.
#[tokio::test]
async fn who_waits_is_granted_by_the_alternative_that_is_there_first() {
    let world = World::new().await;
    let gate = world.gate();
    let soonest = Limit::token_bucket("soonest", 20, SECOND).capacity(1);
    let slow = Limit::token_bucket("slow", 1, EVER);
    let call = || first_of([slow.key("k"), CREDITS.key("k"), soonest.key("k").cost(2), soonest.key("k")]);
    assert_eq!(gate.consume(call()).await.unwrap().granted().unwrap().alternative, 0);
    let mut waiters = JoinSet::new();
    for _ in 0..4 {
        let (gate, call) = (gate.clone(), call());
        waiters.spawn(async move { gate.wait(call, HOUR).await.unwrap().granted().unwrap().alternative });
    }
    assert_eq!(soon(waiters.join_all()).await, [3; 4]);
    // A caller whose other alternative is free does not wait behind callers that wait for the first.
    gate.credit(CREDITS.key("k")).await.unwrap();
    let (only, request) = (gate.clone(), slow.key("k"));
    let waits = tokio::spawn(async move { only.wait(request, 2 * EVER).await });
    tokio::task::yield_now().await;
    // Asked behind it, and answered with it: then it stands in the line.
    gate.check(slow.key("k")).await.unwrap().denied().unwrap();
    for _ in 0..8 {
        tokio::task::yield_now().await;
    }
    let first = soon(gate.wait(first_of([slow.key("k"), CREDITS.key("k")]), HOUR));
    assert_eq!(first.await.unwrap().granted().unwrap().alternative, 1);
    waits.abort();
}

/// Memory cannot take money back, and takes the alternatives that it can.
#[tokio::test]
async fn an_outage_is_answered_by_the_alternatives_that_memory_can_keep() {
    let gate = |policy| patient(&nowhere()).on_failure(policy).build();
    let local = gate(OnFailure::Local(1.0));
    let spare = Limit::token_bucket("spare", 1, EVER);
    let call = || first_of([CREDITS.key("k"), PLAN.key("k").cost(2), spare.key("k")]);
    let mut told = Vec::new();
    for _ in 0..3 {
        told.push(local.consume(call()).await.unwrap().granted().map(|grant| grant.alternative));
    }
    assert!(matches!(&told[..], [Ok(1), Ok(2), Err(Denied { source: Source::Degraded, .. })]), "{told:?}");
    assert!(local.consume(split(1, [PLAN.key("k"), CREDITS.key("k")])).await.is_err());
    let open = gate(OnFailure::Open).consume(call()).await.unwrap().granted().unwrap();
    assert_eq!((open.alternative, open.amount), (0, Tokens::ONE));
}

/// A limit with shards counts by the sum of its rows, also in a call of alternatives, and in a split.
#[tokio::test]
async fn shards_of_an_alternative_are_asked_together() {
    let world = World::new().await;
    let sharded = Limit::token_bucket("sharded", 8, EVER).shards(4);
    let gate = world.gate();
    gate.credit(CREDITS.key("k").cost(10)).await.unwrap();
    let mut tx = world.begin().await;
    let call = |cost: u32| first_of([sharded.key("k").cost(cost), CREDITS.key("k").cost(cost)]);
    // No row has five.
    let grant = limiter().consume(&mut tx, call(5)).await.unwrap().granted().unwrap();
    assert_eq!((grant.alternative, grant.remaining), (0, tokens(3)));
    let grant = limiter().consume(&mut tx, split(6, [sharded.key("k"), CREDITS.key("k")])).await.unwrap();
    let receipt = grant.granted().unwrap().receipt;
    assert_eq!(receipt.by_request().count(), 1);
    limiter().settle(&mut tx, receipt, 4).await.unwrap();
    assert_eq!(limiter().balance(&mut tx, CREDITS.key("k")).await.unwrap().remaining, tokens(9));
    assert_eq!(limiter().balance(&mut tx, sharded.key("k")).await.unwrap().remaining, tokens(0));
    tx.commit().await.unwrap();
    assert_eq!(gate.consume(call(2)).await.unwrap().granted().unwrap().alternative, 1);
}

/// Nothing comes back while it runs, so an alternative that was refused once is refused at the end: a call that took a
/// later alternative, or none, would have got none of the earlier ones. The books balance, and no order of alternatives
/// deadlocks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_storm_of_alternatives_takes_the_first_that_is_there() {
    const CALLERS: u64 = 24;
    const ROUNDS: usize = 40;
    let world = World::new().await;
    let plan = Limit::token_bucket("plan", 80, EVER);
    let shared = Limit::token_bucket("shared", 260, EVER).ephemeral();
    let spare = Limit::stepped_bucket("spare", 90, EVER);
    let limits = [plan, shared, spare, CREDITS];
    let starts = [80, 260, 90, 100_000].map(tokens);
    let pools = [pool(&world.url(), 4).await, pool(&world.url(), 4).await];
    let gates = pools.each_ref().map(|pool| patient(pool).build());
    for key in 0..3 {
        gates[0].credit(CREDITS.key(key).cost(starts[3])).await.unwrap();
    }
    let before = deadlocks(&mut world.connect().await).await;
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        let (gate, url, limits) = (gates[usize::try_from(caller % 2).unwrap()].clone(), world.url(), limits.clone());
        callers.spawn(async move {
            let (mut conn, mut dice) = (PgConnection::connect(&url).await.unwrap(), Rng::with_seed(caller));
            let mut told = Vec::new();
            for _ in 0..ROUNDS {
                let asked = asked(&mut dice);
                let call = requests(&limits, &asked);
                let decision = if caller % 3 == 0 {
                    let mut tx = conn.begin().await.unwrap();
                    let decision = limiter().consume(&mut tx, call).await.unwrap();
                    if dice.u8(..4) == 0 {
                        tx.rollback().await.unwrap();
                        continue;
                    }
                    tx.commit().await.unwrap();
                    decision
                } else {
                    gate.consume(call).await.unwrap()
                };
                told.push((asked, decision));
            }
            told
        });
    }
    let told: Vec<_> = callers.join_all().await.into_iter().flatten().collect();
    let mut left: HashMap<(String, String), Tokens> = HashMap::new();
    for (limit, start) in limits.iter().zip(starts) {
        for key in ["0", "1", "2", ""] {
            left.insert((limit.name().to_owned(), key.to_owned()), start);
        }
    }
    for charge in told.iter().filter_map(|(_, told)| granted(told)).flat_map(|grant| &grant.receipt.charges) {
        let left = left.get_mut(&(charge.limit().to_owned(), charge.key.to_string())).unwrap();
        *left = left.checked_sub(charge.cost).unwrap();
    }
    for ((name, key), left) in &left {
        let limit = limits.iter().find(|limit| limit.name() == name).unwrap();
        // Some rows are nobody's.
        if let Some(found) = balance(&world, limit, key).await {
            assert_eq!(found, *left, "{name} {key}");
        }
    }
    let mut counts = [0; 4];
    for (asked, decision) in &told {
        let taken = granted(decision).map(|grant| grant.alternative);
        counts[taken.unwrap_or(3)] += 1;
        for earlier in &asked[..taken.unwrap_or(asked.len())] {
            assert!(!earlier.is_there(&limits, &left), "{earlier:?} of {asked:?}: {decision:?}");
        }
    }
    assert!(counts.iter().all(|count| *count > 10), "{counts:?}");
    world.pool.close().await;
    for pool in pools {
        pool.close().await;
    }
    let mut conn = world.connect().await;
    until_alone(&mut conn).await;
    assert_eq!(deadlocks(&mut conn).await, before);
}

/// An alternative of the storm: limits by their place, all of one cost, or one that they share.
#[derive(Clone, Debug)]
struct Asked {
    limits: Vec<(usize, u8)>,
    cost: u32,
    is_split: bool,
}

fn asked(dice: &mut Rng) -> Vec<Asked> {
    fn of(dice: &mut Rng, limits: &[usize], is_split: bool) -> Asked {
        // All tenants share a row of the second limit.
        let keyed = limits.iter().map(|limit| (*limit, if *limit == 1 { 3 } else { dice.u8(..3) })).collect();
        Asked { limits: keyed, cost: dice.u32(1..=4), is_split }
    }
    let mut all = vec![
        of(dice, &[0], false),
        of(dice, &[1, 0], false),
        of(dice, &[2, 1], true),
        of(dice, &[0, 2], false),
        of(dice, &[2, 3], true),
    ];
    if dice.bool() {
        all.push(of(dice, &[3], false));
    }
    dice.shuffle(&mut all);
    all.truncate(dice.usize(1..=3));
    all
}

fn requests(limits: &[Limit], asked: &[Asked]) -> Call {
    first_of(asked.iter().map(|asked| {
        let of = |(limit, key): &(usize, u8)| {
            let limit = &limits[*limit];
            if *key == 3 { limit.global() } else { limit.key(*key) }.cost(asked.cost)
        };
        let requests = asked.limits.iter().map(of);
        if asked.is_split { split(asked.cost, requests) } else { requests.collect() }
    }))
}

impl Asked {
    /// Whether it would be granted over these balances.
    fn is_there(&self, limits: &[Limit], left: &HashMap<(String, String), Tokens>) -> bool {
        let has = |(limit, key): &(usize, u8)| {
            let key = if *key == 3 { String::new() } else { key.to_string() };
            left[&(limits[*limit].name().to_owned(), key)].micros() / 1_000_000
        };
        let has = self.limits.iter().map(has);
        if self.is_split { has.sum::<i64>() >= self.cost.into() } else { has.min().unwrap() >= self.cost.into() }
    }
}

fn granted(decision: &Decision) -> Option<&Grant> {
    if let Decision::Granted(grant) = decision { Some(grant) } else { None }
}

/// Many calls in one go, of alternatives and others: each is decided in turn, on what those before it left.
#[tokio::test]
async fn calls_of_alternatives_in_one_go_see_each_other() {
    let world = World::new().await;
    let at = limiter().at(second(0.0));
    let mut tx = world.begin().await;
    at.credit(&mut tx, CREDITS.key("k")).await.unwrap();
    let calls = [plan_else_credits(), PLAN.key("k").into(), plan_else_credits(), plan_else_credits()];
    let told = at.consume_each(&mut tx, calls).await.unwrap().into_iter();
    let told: Vec<_> = told.map(|told| told.unwrap().granted().ok().map(|grant| grant.alternative)).collect();
    assert_eq!(told, [Some(0), Some(0), Some(1), None]);
    tx.commit().await.unwrap();
    assert_eq!(world.left(&PLAN, "k").await.unwrap(), tokens(0));
}
