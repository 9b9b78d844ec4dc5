//! A waiting caller asks again when a row is raised: at once where this gate raised it or an override did, and else
//! within seconds. Nothing comes back by itself here, so nothing else would wake the callers.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::sync::mpsc::unbounded_channel;
use tokio::task::{JoinHandle, JoinSet, yield_now};
use tollgate::{
    DAY, Gate, GateBuilder, Grant, HOUR, Key, Limit, NewOverride, Overrides, Receipt, Request, SECOND, Tokens,
    first_of, split,
};

use crate::gate::stage::{EVER, one_connection, patient, pool, soon};
use crate::proxy::Proxy;
use crate::world::{ON_CALL, World, limiter, second};

const TEN: Limit = Limit::token_bucket("ten", 1, EVER).capacity(10);
const STEPS: Limit = Limit::stepped_bucket("steps", 1, EVER).capacity(10);
const SLIDES: Limit = Limit::sliding_window("slides", 10, EVER);
const WINDOW: Limit = Limit::fixed_window("window", 10, EVER);
const SHARDS: Limit = Limit::token_bucket("shards", 2, EVER).capacity(10).shards(2);
const LATER: Limit = Limit::token_bucket("later", 1, EVER).capacity(10).max_reserved(10);
const SLOTS: Limit = Limit::concurrency("slots", 10, HOUR);
const SPENT: Limit = Limit::token_bucket("spent", 1, EVER);
const FREE: Limit = Limit::fixed_window("free", 1_000_000, EVER);
const FENCE: Limit = Limit::fixed_window("fence", 1_000_000, EVER);

/// A gate, over one connection.
async fn one_lane(world: &World, with: impl FnOnce(GateBuilder) -> GateBuilder) -> Gate {
    with(patient(&pool(&world.url(), 1).await)).build()
}

/// A caller that waits by now.
async fn waiting<T: Send + 'static>(gate: &Gate, wait: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    let task = tokio::spawn(wait);
    fence(gate).await;
    assert!(!task.is_finished(), "it waits");
    task
}

/// Returns once every earlier caller has an answer: a lane takes all calls in turn.
async fn fence(gate: &Gate) {
    for _ in 0..3 {
        yield_now().await;
        gate.balance(FENCE.key("k")).await.unwrap();
    }
}

/// How callers wait for five tokens.
const WAYS: usize = 7;

/// Waits in one of these ways, for ever.
async fn wait(gate: Gate, way: usize, request: Request) -> Grant {
    let request = request.cost(5);
    let other = SPENT.key("other").cost(1);
    let decision = match way {
        0 => gate.wait(request, Duration::MAX).await,
        1 => gate.wait([FREE.key("k"), request], Duration::MAX).await,
        2 => gate.wait(first_of([[request], [other]]), Duration::MAX).await,
        3 => gate.wait(first_of([vec![other], vec![FREE.key("k"), request]]), Duration::MAX).await,
        // A part of the cost, whichever limit comes first; what counts its holders cannot be split.
        4 | 5 if request.limit().lease().is_none() => {
            let both = if way == 4 { [request, other] } else { [other, request] };
            gate.wait(split(5, both), Duration::MAX).await
        }
        6 => {
            let lease = gate.acquire_within([FREE.key("k"), request], Duration::MAX).await.unwrap();
            return lease.granted().unwrap().grant().clone();
        }
        _ => {
            let lease = gate.acquire_within(request, Duration::MAX).await.unwrap();
            return lease.granted().unwrap().grant().clone();
        }
    };
    decision.unwrap().granted().unwrap()
}

/// An action of a gate that raises a row.
#[derive(Clone, Copy, Debug)]
enum Raise {
    Credit,
    Reset,
    Settle,
    SettleEach,
    /// Cancels a call that is booked ahead.
    Cancel,
    Stream,
    Lapse,
    Release,
    /// Settles a lease.
    SettleLease,
}

type Later = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Raise {
    const ALL: [Self; 9] = [
        Self::Credit,
        Self::Reset,
        Self::Settle,
        Self::SettleEach,
        Self::Cancel,
        Self::Stream,
        Self::Lapse,
        Self::Release,
        Self::SettleLease,
    ];

    /// The limits that it can be done to.
    fn limits(self) -> Vec<Limit> {
        match self {
            Self::Credit | Self::Reset | Self::Settle => vec![TEN, STEPS, SLIDES, WINDOW, SHARDS, TEN.ephemeral()],
            Self::SettleEach | Self::Stream | Self::Lapse => vec![TEN, WINDOW],
            Self::Cancel => vec![LATER],
            Self::Release | Self::SettleLease => vec![SLOTS],
        }
    }

    /// Takes all that there is of a key. The returned future raises the row again.
    async fn take(self, gate: &Gate, request: &Request) -> Later {
        let all = request.clone().cost(10);
        let (gate, request) = (gate.clone(), request.clone());
        if let Self::Cancel = self {
            let booked = gate.reserve(all.cost(12)).await.unwrap().granted().unwrap();
            return Box::pin(async move { drop(gate.cancel(booked).await.unwrap()) });
        }
        if let Self::Stream = self {
            let stream = gate.stream([all]).await.unwrap().granted().unwrap();
            return Box::pin(async move { drop(stream) });
        }
        let all = if let Self::Lapse = self { all.lapses_after(SECOND) } else { all.into() };
        let receipt = Receipt::from(gate.consume(all).await.unwrap().granted().unwrap());
        Box::pin(async move {
            match self {
                Self::Credit => drop(gate.credit(request.cost(5)).await.unwrap()),
                Self::Reset => drop(gate.reset(request).await.unwrap()),
                Self::Settle | Self::SettleLease => drop(gate.settle(receipt, 2).await.unwrap()),
                Self::SettleEach => drop(gate.settle_each(receipt, &[Tokens::new(3)]).await.unwrap()),
                Self::Release => drop(gate.release(receipt).await.unwrap()),
                Self::Cancel | Self::Stream | Self::Lapse => {}
            }
        })
    }
}

/// Without a wake they would sleep for ever, and with the bound alone for seconds, in which the lane answers thousands
/// of calls.
#[tokio::test]
async fn whatever_raises_a_row_in_this_gate_wakes_whoever_waits_for_it() {
    let world = World::new().await;
    let overrides = Overrides::watch(world.pool.clone()).await.unwrap();
    let gates = [
        one_lane(&world, |gate| gate).await,
        one_lane(&world, |gate| gate.remember_refusals(HOUR)).await,
        one_lane(&world, |gate| gate.remember_refusals(HOUR).prefetch(HOUR).overrides(&overrides)).await,
    ];
    gates[0].consume(SPENT.key("other")).await.unwrap().granted().unwrap();
    for (number, gate) in gates.iter().enumerate() {
        for raise in Raise::ALL {
            let (mut raises, mut waits) = (Vec::new(), JoinSet::new());
            for (limit, way) in
                raise.limits().into_iter().flat_map(|limit| (0..WAYS).map(move |way| (limit.clone(), way)))
            {
                let request = limit.key(format!("{number} {raise:?} {:?} {way}", limit.spec().storage));
                raises.push(raise.take(gate, &request).await);
                waits.spawn(wait(gate.clone(), way, request));
            }
            fence(gate).await;
            if !matches!(raise, Raise::Lapse) {
                assert!(waits.try_join_next().is_none(), "they wait");
            }
            for raise in raises {
                raise.await;
            }
            let mut asked = 0;
            while !waits.is_empty() {
                fence(gate).await;
                while let Some(grant) = waits.try_join_next() {
                    let standing = &grant.unwrap().standings;
                    assert!(!standing.is_empty());
                }
                asked += 1;
                assert!(asked < 100 || matches!(raise, Raise::Lapse), "{} of {raise:?} sleep, {number}", waits.len());
            }
        }
    }
}

/// The tokens in memory come back with the call of the caller that was woken.
#[tokio::test]
async fn what_is_taken_ahead_keeps_nobody_waiting_once_a_row_is_raised() {
    let world = World::new().await;
    let gate = one_lane(&world, |gate| gate.prefetch(HOUR)).await;
    let limit = Limit::stepped_bucket("thousand", 999, DAY).capacity(1_000);
    let grant = gate.consume(limit.key("k").cost(100)).await.unwrap().granted().unwrap();
    let waiting = waiting(&gate, {
        let (gate, limit) = (gate.clone(), limit.clone());
        async move { gate.wait(limit.key("k").cost(950), Duration::MAX).await.unwrap().granted().unwrap() }
    })
    .await;
    while gate.prefetched(&limit.key("k")) < Tokens::new(5) {
        gate.consume(limit.key("k")).await.unwrap().granted().unwrap();
    }
    gate.settle(grant, 0).await.unwrap();
    soon(waiting).await.unwrap();
    assert_eq!(gate.prefetched(&limit.key("k")), Tokens::ZERO);
}

/// The caller that came first gets the tokens, in whichever way it waits; a caller that comes while the row is raised
/// joins the line.
#[tokio::test]
async fn whoever_comes_while_a_row_is_raised_overtakes_nobody() {
    let world = World::new().await;
    let gate = one_lane(&world, |gate| gate).await;
    gate.consume(TEN.key("k").cost(10)).await.unwrap().granted().unwrap();
    gate.consume(SPENT.key("other")).await.unwrap().granted().unwrap();
    let (say, mut said) = unbounded_channel();
    let come = |number: usize, way: usize| {
        let (gate, say) = (gate.clone(), say.clone());
        tokio::spawn(async move {
            wait(gate, way, TEN.key("k")).await;
            say.send(number).unwrap();
        });
    };
    // A split call waits in the line of its first limit.
    let ways: Vec<_> = (0..WAYS).filter(|way| *way != 5).collect();
    for (number, way) in ways.iter().enumerate() {
        come(number, *way);
        fence(&gate).await;
    }
    for number in 0..2 * ways.len() {
        if number < ways.len() {
            come(ways.len() + number, ways[number]);
        }
        gate.credit(TEN.key("k").cost(5)).await.unwrap();
        assert_eq!(soon(said.recv()).await, Some(number));
        assert!(said.try_recv().is_err());
    }
}

/// Nobody tells this process. So the first one of a line asks every few seconds, and it alone.
#[tokio::test]
async fn what_others_raise_is_found_within_seconds_by_the_first_of_a_line() {
    const CALLERS: u64 = 40;
    let world = World::new().await;
    let proxy = Proxy::new(&world.url());
    let gate = patient(&one_connection(proxy.options()).await).remember_refusals(HOUR).build();
    let others = patient(&world.pool).build();
    let mut waits = JoinSet::new();
    for by in ["gate", "limiter", "lapse"] {
        let all = TEN.key(by).cost(10);
        let all = if by == "lapse" { all.lapses_after(SECOND) } else { all.into() };
        others.consume(all).await.unwrap().granted().unwrap();
        for _ in 0..CALLERS {
            waits.spawn(wait(gate.clone(), 0, TEN.key(by)));
        }
    }
    fence(&gate).await;
    let asked = proxy.statements();
    others.credit(TEN.key("gate").cost(5)).await.unwrap();
    let mut tx = world.begin().await;
    limiter().credit(&mut tx, TEN.key("limiter").cost(5)).await.unwrap();
    tx.commit().await.unwrap();
    // The other gate gives back all tokens that have lapsed.
    for _ in 0..4 {
        soon(waits.join_next()).await.unwrap().unwrap();
    }
    // Two statements for a grant, and one for each caller that looks.
    let asked = proxy.statements() - asked;
    assert!(asked < 60, "{asked} statements");
}

/// It looks whether its tokens are there before they are due. Where nobody answers it sleeps on.
#[tokio::test]
async fn whoever_looks_early_during_an_outage_sleeps_on() {
    let world = World::new().await;
    let proxy = Proxy::new(&world.url());
    let overrides = Overrides::read(&mut world.connect().await).await.unwrap();
    let looks = Arc::new(AtomicU32::new(0));
    let clock = {
        let looks = looks.clone();
        move || {
            looks.fetch_add(1, Ordering::SeqCst);
            second(0.0)
        }
    };
    let gate = Gate::builder(one_connection(proxy.options()).await).acquire_timeout(SECOND);
    let gate = gate.overrides(&overrides).clock(clock).build();
    gate.consume(TEN.key("k").cost(10)).await.unwrap().granted().unwrap();
    let waiting = waiting(&gate, wait(gate.clone(), 0, TEN.key("k"))).await;
    proxy.lead_to("postgres://nobody@localhost/none?host=/nowhere");
    proxy.cut().await;
    let before = looks.load(Ordering::SeqCst);
    soon(async {
        while looks.load(Ordering::SeqCst) < before + 2 {
            tokio::time::sleep(SECOND / 20).await;
        }
    })
    .await;
    assert!(!waiting.is_finished());
    proxy.lead_to(&world.url());
    patient(&world.pool).clock(|| second(0.0)).build().reset(TEN.key("k")).await.unwrap();
    assert_eq!(soon(waiting).await.unwrap().amount, Tokens::new(5));
}

/// The number of effects that an override can have here.
const EFFECTS: usize = 4;

#[tokio::test]
async fn whoever_waits_hears_of_an_override_as_soon_as_its_process_does() {
    let world = World::new().await;
    let overrides = Overrides::watch(world.pool.clone()).await.unwrap();
    let mut on_call = world.connect_as(ON_CALL).await;
    let gates = [
        one_lane(&world, |gate| gate.overrides(&overrides)).await,
        one_lane(&world, |gate| gate.overrides(&overrides).remember_refusals(HOUR).prefetch(HOUR)).await,
    ];
    gates[0].consume(SPENT.key("other")).await.unwrap().granted().unwrap();
    let fast = Limit::token_bucket("ten", 100, SECOND);
    for effect in 0..EFFECTS {
        let key = |number: usize, way: usize| format!("{effect} {number} {way}");
        let all = (0..gates.len()).flat_map(|number| (0..WAYS).map(move |way| (number, way)));
        let mut waits = JoinSet::new();
        for (number, way) in all.clone() {
            let request = TEN.key(key(number, way));
            if effect == 0 {
                let deny = NewOverride::deny(&TEN).key(key(number, way)).lasting(HOUR).reason("a test");
                deny.set(&mut on_call).await.unwrap();
            } else {
                gates[number].consume(request.cost(10)).await.unwrap().granted().unwrap();
            }
        }
        let is_said = || {
            let said = all.clone().map(|(number, way)| overrides.applied(&TEN, &Key::new(key(number, way)).unwrap()));
            said.flatten().count()
        };
        until(|| effect > 0 || is_said() == 2 * WAYS).await;
        for (number, way) in all.clone() {
            waits.spawn(wait(gates[number].clone(), way, TEN.key(key(number, way))));
        }
        for gate in &gates {
            fence(gate).await;
        }
        assert!(waits.try_join_next().is_none(), "they wait");
        for (number, way) in all.clone() {
            let own = Key::new(key(number, way)).unwrap();
            let said = match effect {
                0 => {
                    assert!(NewOverride::remove(&mut on_call, "ten", Some(&own), "").await.unwrap());
                    continue;
                }
                1 => NewOverride::unlimited(&TEN).of_key(own),
                2 => NewOverride::unlimited(&TEN),
                _ => NewOverride::numbers(&fast).of_key(own),
            };
            said.reason("a test").set(&mut on_call).await.unwrap();
        }
        until(|| is_said() == if effect == 0 { 0 } else { 2 * WAYS }).await;
        let mut asked = 0;
        while !waits.is_empty() {
            for gate in &gates {
                fence(gate).await;
            }
            while let Some(grant) = waits.try_join_next() {
                drop(grant.unwrap());
            }
            asked += 1;
            assert!(asked < 100 || effect == 3, "{} sleep, {effect}", waits.len());
        }
        NewOverride::remove(&mut on_call, "ten", None, "").await.unwrap();
        until(|| overrides.applied(&TEN, &Key::new("nobody").unwrap()).is_none()).await;
    }
}

/// Returns once it is so.
async fn until(is_so: impl Fn() -> bool) {
    soon(async {
        while !is_so() {
            tokio::time::sleep(SECOND / 50).await;
        }
    })
    .await;
}
