//! Every verb comes at every kind of gate to what it comes to at a limiter: the same answers, and the same balances
//! once the gate is closed. Memory may know less of what is left, and nothing else.

use std::convert::Infallible;
use std::fmt::Debug;
use std::future::ready;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use http::{Response, request};
use sqlx::{Connection, PgConnection, PgPool};
use tollgate::tower::{Rule, TollgateLayer};
use tollgate::{
    Balance, DAY, Decision, Error, Gate, GateBuilder, HOUR, Limit, NewOverride, OnFailure, Overrides, Receipt, Request,
    Reservation, Settlement, Source, Tokens, first_of, split,
};
use tower::{Layer, ServiceExt, service_fn};

use super::stage::{EVER, patient, pool, soon};
use crate::world::{ON_CALL, World, limiter, second, sweeper};

/// What a gate may be told besides; the last one all of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    Plain,
    Prefetching,
    Remembering,
    Overridden,
    Open,
    All,
}

impl Kind {
    pub(crate) const ALL: [Self; 6] =
        [Self::Plain, Self::Prefetching, Self::Remembering, Self::Overridden, Self::Open, Self::All];

    pub(crate) fn of(self, gate: GateBuilder, overrides: &Overrides, max_age: Duration) -> GateBuilder {
        let is = |kind| self == kind || self == Self::All;
        let gate = if is(Self::Prefetching) { gate.prefetch(max_age) } else { gate };
        let gate = if is(Self::Remembering) { gate.remember_refusals(HOUR).count_refusals(100) } else { gate };
        let gate = if is(Self::Overridden) { gate.overrides(overrides) } else { gate };
        if is(Self::Open) { gate.on_failure(OnFailure::Open) } else { gate }
    }
}

/// A gate of a kind that changes from process to process, for a process of a storm: its number is in the environment.
pub(crate) async fn any_kind(pool: &PgPool, max_age: Duration) -> GateBuilder {
    let number: usize = std::env::var(KIND).unwrap().parse().unwrap();
    let overrides = loop {
        // The server may be down.
        if let Ok(overrides) = Overrides::watch(pool.clone()).await {
            break overrides;
        }
    };
    Kind::ALL[number % Kind::ALL.len()].of(Gate::builder(pool.clone()), &overrides, max_age)
}

/// Names the number of the kind that a process of a storm has.
pub(crate) const KIND: &str = "TOLLGATE_TEST_KIND";

/// The number of the next one.
pub(crate) fn next_kind() -> String {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed).to_string()
}

/// Nothing comes back while the test runs. Of the first, tokens are taken ahead.
const HOT: Limit = Limit::stepped_bucket("hot", 99_999, DAY).capacity(100_000).unbounded_reservations();
const WARM: Limit = Limit::stepped_bucket("warm", 99_999, DAY).capacity(100_000).ephemeral();
const FEW: Limit = Limit::fixed_window("few", 5, EVER);
const LAST: Limit = Limit::sliding_window("last", 5, EVER);
const BROAD: Limit = Limit::token_bucket("broad", 400, EVER).shards(4);
const MONEY: Limit = Limit::wallet("money").overdraft(5);
const SLOTS: Limit = Limit::concurrency("slots", 2, HOUR);
const LIMITS: [Limit; 7] = [HOT, WARM, FEW, LAST, BROAD, MONEY, SLOTS];

/// What is asked. Receipts are those of the last grants, the latest first.
#[derive(Clone, Debug)]
enum Step {
    Balance(Request),
    Cancel,
    Check(Vec<Request>),
    CheckEach(Vec<Vec<Request>>),
    Consume(Vec<Request>),
    ConsumeEach(Vec<Vec<Request>>),
    Credit(Request),
    Debit(Request),
    /// Behind the layer, by a key, with estimates; the response says what was used of each.
    Layer(&'static str, Vec<(Limit, u32)>, u32),
    /// A guard that is dropped, or released.
    Lease(Request, bool),
    Release,
    Renew,
    Reserve(Vec<Request>),
    ReserveEach(Vec<Vec<Request>>),
    Reset(Request),
    Settle(u32),
    SettleEach(Vec<Tokens>),
    /// What is used of an estimate; the guard is dropped, or settled.
    Stream(Vec<Request>, u32, bool),
    Wait(Vec<Request>),
}

use Step::{
    Balance as Look, Cancel, Check, CheckEach, Consume, ConsumeEach, Credit, Debit, Layer as Serve, Lease as Hold,
    Release, Renew, Reserve, ReserveEach, Reset, Settle, SettleEach, Stream, Wait,
};

/// What is asked of one key, and its name.
type Script = (&'static str, Vec<Step>);

fn script(name: &'static str, steps: impl Fn(&dyn Fn(&Limit, u32) -> Request) -> Vec<Step>) -> Script {
    (name, steps(&|limit, cost| limit.key(name).cost(cost)))
}

fn scripts() -> Vec<Script> {
    [verbs(), settlements(), options(), guards()].concat()
}

fn verbs() -> Vec<Script> {
    vec![
        script("consume", |of| {
            vec![Consume(vec![of(&HOT, 3)]), Consume(vec![of(&HOT, 40_000)]), Consume(vec![of(&HOT, 1)])]
        }),
        script("all", |of| {
            let (one, two) = (vec![of(&HOT, 2), of(&WARM, 3)], vec![of(&HOT, 1), of(&HOT, 2), of(&MONEY, 4)]);
            vec![Consume(one.clone()), Consume(two), Consume(one), Consume(vec![of(&HOT, 1), of(&BROAD, 9)])]
        }),
        script("all_denied", |of| {
            let both = vec![of(&HOT, 1), of(&LAST, 5)];
            vec![Consume(both.clone()), Consume(both.clone()), Consume(both), Consume(vec![of(&HOT, 100_000)])]
        }),
        script("each", |of| {
            vec![ConsumeEach(vec![vec![of(&HOT, 1)], vec![of(&MONEY, 9)], vec![of(&LAST, 6)], vec![of(&WARM, 7)]])]
        }),
        script("check", |of| {
            let least = |cost| Check(vec![of(&HOT, cost)]);
            let each = vec![vec![of(&HOT, 99_900)], vec![of(&HOT, 99_901)], vec![of(&MONEY, 106)]];
            vec![least(99_900), least(99_901), Check(vec![of(&HOT, 99_900), of(&WARM, 99_901)]), CheckEach(each)]
        }),
        script("reserve", |of| {
            let each = vec![vec![of(&HOT, 7)], vec![of(&HOT, 8)]];
            let steps = [Reserve(vec![of(&HOT, 5)]), Reserve(vec![of(&HOT, 9)]), Cancel, Settle(2)];
            steps.into_iter().chain([Reserve(vec![of(&HOT, 6), of(&HOT, 1)]), ReserveEach(each)]).collect()
        }),
        script("debt", |of| vec![Reserve(vec![of(&HOT, 100_000)]), Consume(vec![of(&HOT, 1)]), Look(of(&HOT, 1))]),
        script("balance", |of| LIMITS.iter().map(|limit| Look(of(limit, 1))).collect()),
        script("credit", |of| {
            vec![Credit(of(&HOT, 7)), Credit(of(&MONEY, 7)), Consume(vec![of(&HOT, 1)]), Credit(of(&HOT, 500))]
        }),
        script("debit", |of| vec![Debit(of(&HOT, 7)), Debit(of(&MONEY, 200)), Consume(vec![of(&HOT, 1)])]),
        script("reset", |of| {
            vec![Reset(of(&HOT, 1)), Consume(vec![of(&HOT, 1)]), Reset(of(&MONEY, 1)), Reset(of(&WARM, 1))]
        }),
    ]
}

fn settlements() -> Vec<Script> {
    vec![
        script("settle", |of| {
            let ten = || Consume(vec![of(&HOT, 10)]);
            vec![
                ten(),
                Settle(4),
                ten(),
                Settle(14),
                ten(),
                Settle(0),
                ten(),
                ten(),
                Settle(3),
                Settle(30),
                ten(),
                Settle(200),
            ]
        }),
        script("settle_each", |of| {
            let both = || Consume(vec![of(&HOT, 10), of(&WARM, 10)]);
            let costs = |one: u32, two: u32| SettleEach(vec![Tokens::new(one), Tokens::new(two)]);
            vec![both(), costs(3, 12), both(), costs(0, 0), both(), costs(11, 300)]
        }),
        script("cancel", |of| {
            vec![Consume(vec![of(&HOT, 10)]), Cancel, Consume(vec![of(&HOT, 9), of(&FEW, 2)]), Cancel]
        }),
        script("once", |of| {
            let job = |cost| Consume(vec![of(&HOT, cost).once("job")]);
            let paid = || Credit(of(&HOT, 50).once("paid"));
            vec![job(5), job(5), job(6), Settle(2), job(5), paid(), paid(), Debit(of(&HOT, 9).once("fee"))]
        }),
        script("lapses", |of| {
            let call = |span| Consume(vec![of(&HOT, 9).lapses_after(span), of(&FEW, 1)]);
            vec![call(HOUR), Settle(2), call(HOUR), Cancel, Consume(vec![of(&HOT, 1)]), call(MOMENT)]
        }),
        script("tracked", |of| {
            let call = || Consume(vec![of(&HOT, 9).tracked_for(HOUR)]);
            vec![call(), Settle(2), call(), Settle(12), call()]
        }),
    ]
}

fn options() -> Vec<Script> {
    vec![
        script("first_of", |of| {
            let either = || Consume(first_of([vec![of(&FEW, 2)], vec![of(&HOT, 3)], vec![of(&MONEY, 1)]]));
            vec![either(), either(), either(), either(), Settle(1), either()]
        }),
        script("first_is_hot", |of| {
            let either = |cost| Consume(first_of([vec![of(&HOT, cost)], vec![of(&FEW, 2), of(&WARM, 1)]]));
            vec![either(1), either(99_000), either(99_000), either(99_000), either(99_000), either(1)]
        }),
        script("split", |of| {
            let whole = |cost| Consume(split(cost, [of(&FEW, 1), of(&HOT, 1), of(&WARM, 1)]));
            vec![whole(7), whole(7), Settle(3), whole(120_000), whole(120_000)]
        }),
        script("up_to", |of| {
            let some = |limit, cost, least: u32| Consume(vec![of(limit, cost).up_to(least)]);
            vec![some(&FEW, 3, 1), some(&FEW, 3, 1), some(&FEW, 3, 1), some(&HOT, 100_000, 50), some(&HOT, 5, 1)]
        }),
        script("leaving", |of| {
            let all = |limit, cost, left: u32| Consume(vec![of(limit, cost).leaving(left)]);
            vec![all(&HOT, 1, 99_899), all(&HOT, 1, 99_899), all(&FEW, 2, 3), all(&FEW, 2, 3), all(&MONEY, 90, 10)]
        }),
        script("shadow", |of| {
            let tried = |cost| Consume(vec![of(&HOT, 1), of(&FEW, 3).shadow(), of(&WARM, cost).shadow()]);
            vec![tried(1), tried(99_999), tried(1), Consume(vec![of(&HOT, 2).shadow()]), Look(of(&HOT, 1))]
        }),
        script("wait", |of| {
            vec![Wait(vec![of(&HOT, 1)]), Wait(vec![of(&FEW, 5), of(&HOT, 1)]), Wait(vec![of(&FEW, 1)])]
        }),
        script("refused", |of| {
            let few = |cost| Consume(vec![of(&FEW, cost)]);
            let raised = [few(5), few(1), few(1), Settle(3), few(2), few(1), few(1), Credit(of(&FEW, 1)), few(1)];
            raised.into_iter().chain([few(1), Reset(of(&FEW, 1)), few(5), few(1), Cancel, few(5)]).collect()
        }),
        script("period", |of| {
            let (start, end) = (second(0.0), second(0.0) + 36_500 * DAY);
            let paid = |limit, cost| Consume(vec![of(limit, cost).period(start, end)]);
            vec![paid(&HOT, 9), paid(&HOT, 1), paid(&FEW, 5), paid(&FEW, 1), Consume(vec![of(&HOT, 1)])]
        }),
    ]
}

fn guards() -> Vec<Script> {
    vec![
        script("slots", |of| {
            let one = || Consume(vec![of(&SLOTS, 1)]);
            vec![
                one(),
                one(),
                one(),
                Renew,
                Release,
                one(),
                Release,
                Release,
                Consume(vec![of(&HOT, 1), of(&SLOTS, 1)]),
                Renew,
            ]
        }),
        script("lease", |of| {
            let hold = |dropped| Hold(of(&SLOTS, 1), dropped);
            vec![hold(true), hold(false), hold(false), hold(true), Consume(vec![of(&SLOTS, 2)]), hold(true)]
        }),
        script("stream", |of| {
            let stream = |used, dropped| Stream(vec![of(&HOT, 50).lapses_after(HOUR)], used, dropped);
            vec![stream(20, true), stream(70, false), stream(0, true), Stream(vec![of(&HOT, 50)], 9, false)]
        }),
        script("layer", |_| {
            let serve = |used| Serve("layer", vec![(HOT, 5)], used);
            let two = |used| Serve("layer", vec![(HOT, 5), (WARM, 5)], used);
            let slot = Serve("layer", vec![(HOT, 5), (SLOTS, 1)], 0);
            vec![serve(0), serve(5), serve(9), two(0), two(7), slot, serve(2)]
        }),
        script("layer_refuses", |of| {
            let serve = |used| Serve("layer_refuses", vec![(HOT, 5), (FEW, 3)], used);
            vec![serve(3), serve(3), serve(3), Reset(of(&FEW, 1)), serve(0), serve(1)]
        }),
    ]
}

/// What an answer comes to, and what is left by it, where whoever answered knows.
#[derive(Debug, Default)]
struct Told {
    what: String,
    left: Option<Tokens>,
}

impl Told {
    fn new(what: &impl Debug) -> Self {
        Self { what: format!("{what:?}"), left: None }
    }

    fn error(error: &Error) -> Self {
        Self::new(&error.to_string())
    }

    fn balance(answer: Result<Balance, Error>) -> Self {
        answer.map_or_else(|error| Self::error(&error), |balance| Self::new(&(balance.value, balance.is_full())))
    }

    fn grant(answer: Result<Decision, Error>, receipts: &mut Vec<Receipt>) -> Self {
        let grant = match answer {
            Ok(Decision::Granted(grant)) => grant,
            Ok(Decision::Denied(denied)) => {
                return Self::new(&(denied.limit, denied.key, denied.reason, denied.remaining));
            }
            Err(error) => return Self::error(&error),
        };
        let would_deny: Vec<_> = grant.would_deny.iter().map(|by| (by.limit.clone(), by.reason)).collect();
        let is_repeat = grant.source == Source::Repeated;
        let what = (grant.amount, grant.alternative, charges(&grant.receipt.charges), would_deny, is_repeat);
        let left = (grant.source != Source::Prefetched).then_some(grant.remaining);
        receipts.push(grant.receipt);
        Self { left, ..Self::new(&what) }
    }

    fn booking(answer: Result<Decision<Reservation>, Error>, receipts: &mut Vec<Receipt>) -> Self {
        match answer {
            Ok(Decision::Granted(booked)) => {
                let told = Self::new(&charges(&booked.receipt.charges));
                receipts.push(booked.receipt);
                told
            }
            Ok(Decision::Denied(denied)) => Self::new(&(denied.limit, denied.key, denied.reason, denied.remaining)),
            Err(error) => Self::error(&error),
        }
    }

    fn settlement(answer: Result<Settlement, Error>) -> Self {
        answer.map_or_else(|error| Self::error(&error), |settled| Self::new(&charges(&settled.charges)))
    }

    fn agrees_with(&self, other: &Self) -> bool {
        self.what == other.what && self.left.zip(other.left).is_none_or(|(one, other)| one == other)
    }
}

fn charges(charges: &[tollgate::Charge]) -> Vec<String> {
    let told = |charge: &tollgate::Charge| format!("{} of {} {}", charge.cost, charge.limit(), charge.key);
    charges.iter().map(told).collect()
}

async fn ask_gate(gate: &Gate, step: Step, receipts: &mut Vec<Receipt>) -> Vec<Told> {
    let one = match step {
        Step::Balance(request) => Told::balance(gate.balance(request).await),
        Step::Cancel => Told::settlement(gate.cancel(receipts.pop().unwrap()).await),
        Step::Check(requests) => Told::grant(gate.check_all(requests).await, &mut Vec::new()),
        Step::CheckEach(calls) => {
            let told = gate.check_each(calls).await.into_iter();
            return told.map(|answer| Told::grant(answer, &mut Vec::new())).collect();
        }
        Step::Consume(requests) => Told::grant(gate.consume_all(requests).await, receipts),
        Step::ConsumeEach(calls) => {
            let told = gate.consume_each(calls).await.into_iter();
            return told.map(|answer| Told::grant(answer, receipts)).collect();
        }
        Step::Credit(request) => Told::balance(gate.credit(request).await),
        Step::Debit(request) => Told::balance(gate.debit(request).await),
        Step::Layer(key, rules, used) => serve(gate, key, rules, used).await,
        Step::Lease(request, is_dropped) => {
            let (slots, before) = (request.clone(), gate.balance(request.clone()).await.unwrap().value);
            let held = gate.acquire(request).await;
            match held {
                // Its release is then on its way, and nobody awaits it.
                Ok(Decision::Granted(lease)) if is_dropped => {
                    let told = Told::grant(Ok(Decision::Granted(lease.grant().clone())), &mut Vec::new());
                    drop(lease);
                    soon(async { while gate.balance(slots.clone()).await.unwrap().value < before {} }).await;
                    told
                }
                Ok(Decision::Granted(lease)) => {
                    let told = Told::grant(Ok(Decision::Granted(lease.grant().clone())), &mut Vec::new());
                    lease.release().await.unwrap();
                    told
                }
                Ok(Decision::Denied(denied)) => Told::grant(Ok(Decision::Denied(denied)), &mut Vec::new()),
                Err(error) => Told::error(&error),
            }
        }
        Step::Release => Told::settlement(gate.release(receipts.pop().unwrap()).await),
        Step::Renew => {
            let renewed = gate.renew(receipts.last().unwrap()).await.unwrap();
            let told = Told::new(&charges(&renewed.charges));
            *receipts.last_mut().unwrap() = renewed;
            told
        }
        Step::Reserve(requests) => Told::booking(gate.reserve_all(requests).await, receipts),
        Step::ReserveEach(calls) => {
            let told = gate.reserve_each(calls).await.into_iter();
            return told.map(|answer| Told::booking(answer, receipts)).collect();
        }
        Step::Reset(request) => Told::balance(gate.reset(request).await),
        Step::Settle(actual) => Told::settlement(gate.settle(receipts.pop().unwrap(), actual).await),
        Step::SettleEach(costs) => Told::settlement(gate.settle_each(receipts.pop().unwrap(), &costs).await),
        Step::Stream(requests, used, is_dropped) => {
            let stream = gate.stream(requests).await.unwrap().granted().unwrap();
            stream.add(Tokens::new(used));
            if is_dropped {
                drop(stream);
            } else {
                stream.settle().await.unwrap();
            }
            Told::default()
        }
        Step::Wait(requests) => Told::grant(gate.wait_all(requests, Duration::ZERO).await, receipts),
    };
    vec![one]
}

async fn serve(gate: &Gate, key: &'static str, rules: Vec<(Limit, u32)>, used: u32) -> Told {
    let key = move |_: &request::Parts| Some(key);
    let rules =
        rules.into_iter().map(|(limit, cost)| Rule::new(limit).key(key).cost(cost).settle_by(move |_| Some(used)));
    let layer = rules.fold(TollgateLayer::new(gate.clone()), TollgateLayer::limit);
    let inner = service_fn(|_: http::Request<()>| ready(Ok::<_, Infallible>(Response::new(String::new()))));
    let response = layer.layer(inner).oneshot(http::Request::new(())).await.unwrap();
    Told::new(&response.status().as_u16())
}

/// In a transaction of its own, as a gate does.
async fn ask_limiter(conn: &mut PgConnection, step: Step, receipts: &mut Vec<Receipt>) -> Vec<Told> {
    let (limiter, mut tx) = (limiter(), conn.begin().await.unwrap());
    let mut unheard = Vec::new();
    let told = match step {
        Step::Balance(request) => vec![Told::balance(limiter.balance(&mut tx, request).await)],
        Step::Cancel => vec![Told::settlement(limiter.cancel(&mut tx, receipts.pop().unwrap()).await)],
        Step::Check(requests) => vec![Told::grant(limiter.check_all(&mut tx, requests).await, &mut unheard)],
        Step::CheckEach(calls) => {
            let told = limiter.check_each(&mut tx, calls).await.unwrap().into_iter();
            told.map(|answer| Told::grant(answer, &mut unheard)).collect()
        }
        Step::Consume(requests) | Step::Wait(requests) => {
            vec![Told::grant(limiter.consume_all(&mut tx, requests).await, receipts)]
        }
        Step::ConsumeEach(calls) => {
            let told = limiter.consume_each(&mut tx, calls).await.unwrap().into_iter();
            told.map(|answer| Told::grant(answer, receipts)).collect()
        }
        Step::Credit(request) => vec![Told::balance(limiter.credit(&mut tx, request).await)],
        Step::Debit(request) => vec![Told::balance(limiter.debit(&mut tx, request).await)],
        Step::Layer(key, rules, used) => {
            let asked = rules.iter().map(|(limit, cost)| limit.key(key).cost(*cost));
            let answer = limiter.consume_all(&mut tx, asked).await.unwrap();
            let status = if answer.is_granted() { 200 } else { 429 };
            if let Ok(grant) = answer.granted() {
                let costs =
                    rules.iter().map(|(limit, _)| if *limit == SLOTS { Tokens::ZERO } else { Tokens::new(used) });
                limiter.settle_each(&mut tx, grant, &costs.collect::<Vec<_>>()).await.unwrap();
            }
            vec![Told::new(&status)]
        }
        Step::Lease(request, _) => {
            let told = Told::grant(limiter.consume(&mut tx, request).await, &mut unheard);
            if let Some(receipt) = unheard.pop() {
                limiter.release(&mut tx, receipt).await.unwrap();
            }
            vec![told]
        }
        Step::Release => vec![Told::settlement(limiter.release(&mut tx, receipts.pop().unwrap()).await)],
        Step::Renew => {
            let renewed = limiter.renew(&mut tx, receipts.last().unwrap()).await.unwrap();
            *receipts.last_mut().unwrap() = renewed;
            vec![Told::new(&charges(&receipts.last().unwrap().charges))]
        }
        Step::Reserve(requests) => vec![Told::booking(limiter.reserve_all(&mut tx, requests).await, receipts)],
        Step::ReserveEach(calls) => {
            let told = limiter.reserve_each(&mut tx, calls).await.unwrap().into_iter();
            told.map(|answer| Told::booking(answer, receipts)).collect()
        }
        Step::Reset(request) => vec![Told::balance(limiter.reset(&mut tx, request).await)],
        Step::Settle(actual) => {
            vec![Told::settlement(limiter.settle(&mut tx, receipts.pop().unwrap(), actual).await)]
        }
        Step::SettleEach(costs) => {
            vec![Told::settlement(limiter.settle_each(&mut tx, receipts.pop().unwrap(), &costs).await)]
        }
        Step::Stream(requests, used, _) => {
            let grant = limiter.consume_all(&mut tx, requests).await.unwrap().granted().unwrap();
            limiter.settle(&mut tx, grant, used).await.unwrap();
            vec![Told::default()]
        }
    };
    tx.commit().await.unwrap();
    told
}

/// What each limit holds for a key, once nothing is left to lapse.
async fn left(world: &World, conn: &mut PgConnection, key: &str) -> Vec<(Tokens, bool)> {
    let lapsed = "select exists (select from tollgate.calls where lapses_at < now())";
    soon(async {
        while sqlx::query_scalar(lapsed).fetch_one(&mut *conn).await.unwrap() {
            sweeper().reap(&world.pool).await.unwrap();
        }
    })
    .await;
    let mut left = Vec::new();
    for limit in LIMITS {
        let balance = limiter().balance(conn, limit.key(key)).await.unwrap();
        left.push((balance.value, balance.is_full()));
    }
    left
}

/// What came before each script: money, and calls by which tokens are taken ahead, where they are.
const SPENT: u32 = 100;

/// What a script comes to: the answers to each step, and the balance of each limit at the end.
type Outcome = (Vec<Vec<Told>>, Vec<(Tokens, bool)>);

async fn expected() -> Vec<Outcome> {
    let world = World::new().await;
    let (mut conn, mut expected) = (world.connect().await, Vec::new());
    for (key, steps) in scripts() {
        let before =
            [Credit(MONEY.key(key).cost(SPENT)), Consume([HOT, WARM].map(|hot| hot.key(key).cost(SPENT)).into())];
        let (mut told, mut receipts) = (Vec::new(), Vec::new());
        for step in before.into_iter().chain(steps) {
            told.push(ask_limiter(&mut conn, step, &mut receipts).await);
        }
        expected.push((told.split_off(2), left(&world, &mut conn, key).await));
    }
    expected
}

/// The pairs of a kind that disagree.
async fn disagreeing(kind: Kind, expected: &[Outcome]) -> Vec<String> {
    let world = World::new().await;
    let mut admin = world.connect_as(ON_CALL).await;
    // The same numbers for everybody; or something about somebody else, for nothing is taken ahead of what is
    // overridden.
    let about = if kind == Kind::All { NewOverride::deny(&HOT).key("somebody") } else { NewOverride::numbers(&HOT) };
    about.lasting(DAY).reason("a test").set(&mut admin).await.unwrap();
    let overrides = Overrides::watch(world.pool.clone()).await.unwrap();
    let (pool, mut conn) = (pool(&world.url(), 4).await, world.connect().await);
    let mut wrong = Vec::new();
    for ((key, steps), (expected, expected_left)) in scripts().into_iter().zip(expected) {
        let gate = kind.of(patient(&pool), &overrides, HOUR).build();
        gate.credit(MONEY.key(key).cost(SPENT)).await.unwrap();
        let takes_ahead = matches!(kind, Kind::Prefetching | Kind::All);
        let cost = if takes_ahead { 1 } else { SPENT };
        for _ in 0..SPENT / cost {
            gate.consume_all([HOT, WARM].map(|hot| hot.key(key).cost(cost))).await.unwrap().granted().unwrap();
        }
        assert_eq!(gate.prefetched(&HOT.key(key)) > Tokens::ZERO, takes_ahead, "{kind:?}");
        let mut receipts = Vec::new();
        for (place, (step, expected)) in steps.into_iter().zip(expected).enumerate() {
            let told = soon(ask_gate(&gate, step.clone(), &mut receipts)).await;
            if told.len() != expected.len() || told.iter().zip(expected).any(|(one, other)| !one.agrees_with(other)) {
                wrong.push(format!("{kind:?} × {key}, step {place} {step:?}: {told:?}, not {expected:?}"));
                break;
            }
        }
        soon(gate.close()).await;
        let left = left(&world, &mut conn, key).await;
        if left != *expected_left {
            wrong.push(format!("{kind:?} × {key}: {left:?} is left, not {expected_left:?}"));
        }
    }
    wrong
}

#[tokio::test]
async fn every_verb_comes_at_every_kind_of_gate_to_what_it_comes_to_at_a_limiter() {
    let expected = expected().await;
    let wrong = join_all(Kind::ALL.map(|kind| disagreeing(kind, &expected))).await.concat();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// After so long a call has lapsed once anybody looks.
const MOMENT: Duration = Duration::from_micros(1);
