//! The gate answers as the limiter does, and leaves the same rows: alone, and when many callers share a batch.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::task::Poll;

use chrono::{DateTime, Utc};
use fastrand::Rng;
use sqlx::{Connection, PgConnection};
use tollgate::{
    Charge, Decision, Error, Gate, Limit, LimitKind, MINUTE, Receipt, Request, SECOND, Settlement, Tokens, first_of,
    split,
};

use crate::gate::stage::{one_connection, patient, soon};
use crate::proxy::Proxy;
use crate::teller::{both, rows, run};
use crate::world::{World, limiter, part, second};

/// Of every kind, in both tables.
fn limits() -> Vec<Limit> {
    let mut limits = vec![
        Limit::token_bucket("bounded", 10, MINUTE).max_reserved(5),
        Limit::token_bucket("owing", 10, MINUTE).capacity(20).unbounded_reservations(),
        Limit::token_bucket("queue", 1, SECOND).capacity(0).unbounded_reservations(),
        Limit::fixed_window("owing_windows", 10, MINUTE).unbounded_reservations(),
    ];
    for limit in [
        Limit::token_bucket("drips", 10, MINUTE),
        Limit::token_bucket("thirds", 1, SECOND)
            .rate_and_capacity(Tokens::from_micros(333_333), Tokens::from_micros(5_000_001)),
        Limit::stepped_bucket("uploads", 5, 10 * SECOND).capacity(20),
        Limit::fixed_window("spread", 10, MINUTE),
        Limit::fixed_window("aligned", 10, 10 * SECOND).start(3 * SECOND),
    ] {
        limits.extend(both(&limit));
    }
    limits
}

/// A definition, or another one of the same kind: the numbers of a limit change while it is used.
fn any_numbers(dice: &mut Rng, limit: &Limit) -> Limit {
    let (dividend, divisor) = [(1, 1), (1, 1), (1, 1), (3, 1), (1, 2)][dice.usize(..5)];
    let changed = |amount: Tokens| Tokens::from_micros(amount.micros() * dividend / divisor);
    let spec = limit.spec().with(|spec| {
        (spec.rate, spec.capacity) = (changed(spec.rate), spec.capacity.map(changed));
    });
    spec.try_into().unwrap()
}

/// A call; the gate and the limiter each use the receipt at the same place of their own pile.
#[derive(Clone, Debug)]
enum Ask {
    Balance(Request),
    Cancel(usize),
    Check(Request),
    Consume(Vec<Request>),
    Credit(Request),
    Debit(Request),
    Reserve(Vec<Request>),
    Reset(Request),
    Settle(usize, Tokens),
}

impl Ask {
    fn any(dice: &mut Rng, limits: &[Limit], key: &str, receipts: usize) -> Self {
        let request = |dice: &mut Rng| {
            let which = dice.usize(..limits.len());
            let limit = any_numbers(dice, &limits[which]);
            let cost = match dice.u32(..8) {
                0 => Tokens::from_micros(dice.i64(0..=30_000_000)),
                1 => Tokens::MAX,
                _ => Tokens::new(dice.u32(0..=6)),
            };
            let request = if dice.u32(..4) == 0 { limit.key(key) } else { limit.global() }.cost(cost);
            let has_steps = matches!(limit.spec().kind, LimitKind::FixedWindow | LimitKind::SteppedBucket);
            if has_steps && dice.u32(..3) == 0 {
                let start = second(f64::from(30 * dice.u32(..4)));
                request.period(start, start + MINUTE * dice.u32(1..=2))
            } else {
                request
            }
        };
        let some = |dice: &mut Rng| (0..dice.usize(1..=3)).map(|_| request(dice)).collect::<Vec<_>>();
        match dice.u32(..22) {
            0 => Self::Balance(request(dice)),
            1 => Self::Check(request(dice)),
            2 => Self::Credit(request(dice)),
            3 => Self::Debit(request(dice)),
            4 => Self::Reset(request(dice)),
            5..=6 if receipts > 0 => Self::Cancel(dice.usize(..receipts)),
            7..=9 if receipts > 0 => Self::Settle(dice.usize(..receipts), Tokens::new(dice.u32(..8))),
            10..=11 => Self::Reserve(vec![request(dice)]),
            12 => Self::Reserve(some(dice)),
            13..=14 => Self::Consume(some(dice)),
            15 => {
                let (cost, least) = (dice.u32(2..=6), dice.u32(1..=2));
                let part = |request: Request| request.cost(cost).up_to(least);
                Self::Consume(some(dice).into_iter().map(part).collect())
            }
            16 => Self::Consume(vec![request(dice).leaving(dice.u32(0..=4))]),
            17 => Self::Consume(first_of((0..dice.usize(1..=3)).map(|_| some(dice)))),
            18 => {
                let mut shares: Vec<_> = limits.iter().map(Limit::global).collect();
                shares.dedup_by_key(|request| request.limit().name().to_owned());
                let whole = split(dice.u32(1..=20), shares);
                Self::Consume(if dice.bool() { whole } else { first_of([some(dice), whole]) })
            }
            _ => Self::Consume(vec![request(dice)]),
        }
    }

    /// Which receipt it uses up.
    fn receipt(&self) -> Option<usize> {
        if let Self::Cancel(place) | Self::Settle(place, _) = self { Some(*place) } else { None }
    }
}

/// An answer, and its charges.
#[derive(Debug, PartialEq)]
struct Told {
    answer: String,
    charges: Vec<Charge>,
}

impl Told {
    fn new(answer: &impl std::fmt::Debug, charges: Vec<Charge>) -> Self {
        Self { answer: format!("{answer:?}"), charges }
    }

    fn change(answer: Result<tollgate::Balance, Error>) -> Self {
        Self::new(&answer.map_err(|error| error.to_string()), Vec::new())
    }

    fn grant(answer: Result<Decision, Error>) -> Self {
        match answer {
            Ok(Decision::Granted(grant)) => {
                let crossed: Vec<_> = grant.standings.iter().map(|standing| standing.crossed(0.5)).collect();
                let told = (grant.amount, grant.remaining, grant.decided_at, grant.source, crossed);
                let told = (grant.alternative, told);
                Self::new(&told, grant.receipt.charges)
            }
            other => Self::new(&other.map_err(|error| error.to_string()), Vec::new()),
        }
    }

    fn settlement(answer: Result<Settlement, Error>) -> Self {
        Self::new(&answer.map_err(|error| error.to_string()), Vec::new())
    }

    fn booking(answer: Result<Decision<tollgate::Reservation>, Error>) -> Self {
        match answer {
            Ok(Decision::Granted(booked)) => Self::new(&(booked.ready_at, booked.decided_at), booked.receipt.charges),
            other => Self::new(&other.map_err(|error| error.to_string()), Vec::new()),
        }
    }

    /// Keeps the charges, each one by itself.
    fn keep(&self, receipts: &mut Vec<Receipt>) {
        for charge in &self.charges {
            receipts.push(serde_json::from_value(serde_json::json!({ "charges": [charge] })).unwrap());
        }
    }
}

async fn ask_gate(gate: Gate, ask: Ask, receipt: Option<Receipt>) -> Told {
    match (ask, receipt) {
        (Ask::Balance(request), _) => Told::change(gate.balance(request).await),
        (Ask::Check(request), _) => Told::grant(gate.check(request).await),
        (Ask::Consume(requests), _) => Told::grant(gate.consume(requests).await),
        (Ask::Credit(request), _) => Told::change(gate.credit(request).await),
        (Ask::Debit(request), _) => Told::change(gate.debit(request).await),
        (Ask::Reserve(requests), _) => Told::booking(gate.reserve(requests).await),
        (Ask::Reset(request), _) => Told::change(gate.reset(request).await),
        (Ask::Cancel(_), Some(receipt)) => Told::settlement(gate.cancel(receipt).await),
        (Ask::Settle(_, actual), Some(receipt)) => Told::settlement(gate.settle(receipt, actual).await),
        (Ask::Cancel(_) | Ask::Settle(..), None) => unreachable!(),
    }
}

/// In a transaction of its own, as the gate does.
async fn ask_limiter(conn: &mut PgConnection, now: DateTime<Utc>, ask: Ask, receipt: Option<Receipt>) -> Told {
    let limiter = limiter().at(now);
    let mut tx = conn.begin().await.unwrap();
    let told = match (ask, receipt) {
        (Ask::Balance(request), _) => Told::change(limiter.balance(&mut tx, request).await),
        (Ask::Check(request), _) => Told::grant(limiter.check(&mut tx, request).await),
        (Ask::Consume(requests), _) => Told::grant(limiter.consume(&mut tx, requests).await),
        (Ask::Credit(request), _) => Told::change(limiter.credit(&mut tx, request).await),
        (Ask::Debit(request), _) => Told::change(limiter.debit(&mut tx, request).await),
        (Ask::Reserve(requests), _) => Told::booking(limiter.reserve(&mut tx, requests).await),
        (Ask::Reset(request), _) => Told::change(limiter.reset(&mut tx, request).await),
        (Ask::Cancel(_), Some(receipt)) => Told::settlement(limiter.cancel(&mut tx, receipt).await),
        (Ask::Settle(_, actual), Some(receipt)) => Told::settlement(limiter.settle(&mut tx, receipt, actual).await),
        (Ask::Cancel(_) | Ask::Settle(..), None) => unreachable!(),
    };
    tx.commit().await.unwrap();
    told
}

/// The same asks in chunks at one instant each: a chunk is a batch of the gate, and one transaction each for the
/// limiter. They are about one key, and the global one.
async fn agree(chunk: usize, seeds: std::ops::Range<u64>, chunks: usize, key: &str) {
    let (limiters, gates) = (World::new().await, World::new().await);
    let proxy = Proxy::new(&gates.url());
    let pool = one_connection(proxy.options()).await;
    let now = Arc::new(AtomicI64::new(0));
    let clock = {
        let now = now.clone();
        move || DateTime::from_timestamp_micros(now.load(Ordering::SeqCst)).unwrap()
    };
    let gate = patient(&pool).clock(clock).build();
    let (mut conn, mut gates_conn) = (limiters.connect().await, gates.connect().await);
    let (mut granted, mut denied) = (0, 0);
    for seed in seeds {
        for conn in [&mut conn, &mut gates_conn] {
            run(conn, "delete from tollgate.ephemeral; delete from tollgate.durable").await;
        }
        now.store(second(0.0).timestamp_micros(), Ordering::SeqCst);
        let mut dice = Rng::with_seed(seed);
        // Few rows, so that they run dry.
        let mut limits = limits();
        dice.shuffle(&mut limits);
        limits.truncate(3);
        let (mut limiter_receipts, mut gate_receipts) = (Vec::<Receipt>::new(), Vec::<Receipt>::new());
        for nth in 0..chunks {
            let step = match dice.u32(..10) {
                0..=4 => 0,
                5 => dice.i64(0..10_000_000),
                6 => 10_000_000 * dice.i64(1..7) + dice.i64(-1..=1),
                7 => dice.i64(-30_000_000..0),
                _ => dice.i64(0..2_000_000),
            };
            let at = now.fetch_add(step, Ordering::SeqCst) + step;
            let at = DateTime::from_timestamp_micros(at).unwrap();
            let mut asks = Vec::new();
            while asks.len() < chunk {
                let ask = Ask::any(&mut dice, &limits, key, limiter_receipts.len());
                let receipt = ask.receipt().map(|place| (limiter_receipts.remove(place), gate_receipts.remove(place)));
                asks.push((ask, receipt));
            }

            let mut expected = Vec::new();
            for (ask, receipt) in &asks {
                let receipt = receipt.as_ref().map(|(receipt, _)| receipt.clone());
                expected.push(ask_limiter(&mut conn, at, ask.clone(), receipt).await);
            }
            // All of them come while the lane is held, and so form the batch: in this order.
            proxy.hold_after(0);
            let mut calls: Vec<_> = (asks.iter().cloned())
                .map(|(ask, receipt)| Box::pin(ask_gate(gate.clone(), ask, receipt.map(|(_, receipt)| receipt))))
                .map(|call| (call as Pin<Box<dyn Future<Output = Told>>>, None))
                .collect();
            for (call, told) in &mut calls {
                *told = std::future::poll_fn(|cx| Poll::Ready(Some(call.as_mut().poll(cx)))).await;
            }
            proxy.release();
            for (place, ((call, told), expected)) in calls.into_iter().zip(expected).enumerate() {
                let told = match told {
                    Some(Poll::Ready(told)) => told,
                    _ => soon(call).await,
                };
                granted += u32::from(!expected.charges.is_empty());
                denied += u32::from(expected.answer.contains("retry_at"));
                expected.keep(&mut limiter_receipts);
                told.keep(&mut gate_receipts);
                let ask = &asks[place].0;
                assert_eq!(told, expected, "seed {seed}, chunk {nth}, place {place} at {at}: {ask:?} in {asks:#?}");
            }
            assert_eq!(stored(&mut gates_conn).await, stored(&mut conn).await, "seed {seed}, chunk {nth}: {asks:#?}");
        }
    }
    assert!(granted > 100 && denied > 20, "{granted} granted, {denied} denied");
}

/// All rows, but for where they lie, and when they are full: a batch knows that instant better for a row that it has
/// charged and settled.
async fn stored(conn: &mut PgConnection) -> Vec<crate::teller::Stored> {
    let mut rows = rows(conn).await;
    for row in &mut rows {
        row.place.clear();
        row.full_at = DateTime::UNIX_EPOCH;
    }
    rows
}

#[tokio::test]
async fn every_verb_of_a_gate_answers_as_the_limiter_does() {
    agree(1, 0..30, 30, "k").await;
}

#[tokio::test]
async fn a_merged_batch_answers_as_the_same_calls_one_by_one() {
    // A batch is about one part.
    let key = (0..1000).map(|n| n.to_string()).find(|key| part(key) == part("")).unwrap();
    agree(5, 100..108, 12, &key).await;
    agree(24, 200..208, 4, &key).await;
}
