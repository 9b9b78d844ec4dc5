//! The gate answers as the limiter does, and leaves the same rows: alone, and when many callers share a batch.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::task::Poll;

use chrono::DateTime;
use fastrand::Rng;
use sqlx::PgConnection;
use tollgate::{Call, HOUR, Limit, LimitKind, MINUTE, Receipt, Request, SECOND, Tokens, first_of, split};

use super::kinds::scripts::Step;
use super::kinds::{ask_gate, ask_limiter};
use crate::gate::kind::Kind;
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
        Limit::monthly("month", 10),
        Limit::billing("plan", 10),
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

/// A call; where one of some receipts is to be used, a settlement or a cancellation now and then.
fn any_step(dice: &mut Rng, limits: &[Limit], key: &str, has_receipts: bool) -> Step {
    let request = |dice: &mut Rng| {
        let which = dice.usize(..limits.len());
        let limit = any_numbers(dice, &limits[which]);
        let cost = match dice.u32(..8) {
            0 => Tokens::from_micros(dice.i64(0..=30_000_000)),
            1 => Tokens::MAX,
            _ => Tokens::new(dice.u32(0..=6)),
        };
        let request = if dice.u32(..4) == 0 { limit.key(key) } else { limit.global() }.cost(cost);
        if limit.spec().kind == LimitKind::Billing && dice.u32(..8) > 0 {
            let start = second(f64::from(30 * dice.u32(..4)));
            request.period(start, start + MINUTE * dice.u32(1..=2))
        } else {
            request
        }
    };
    let some = |dice: &mut Rng| (0..dice.usize(1..=3)).map(|_| request(dice)).collect::<Call>();
    match dice.u32(..22) {
        0 => Step::Balance(request(dice)),
        1 => Step::Check(request(dice).into()),
        2 => Step::Credit(request(dice).into()),
        3 => Step::Debit(request(dice).into()),
        4 => Step::Reset(request(dice)),
        5..=6 if has_receipts => Step::Cancel,
        7..=9 if has_receipts => Step::Settle(dice.u32(..8)),
        10..=11 => Step::Reserve(request(dice).into()),
        12 => Step::Reserve(some(dice)),
        13..=14 => Step::Consume(some(dice)),
        15 => {
            let (cost, least) = (dice.u32(2..=6), dice.u32(1..=2));
            let part = |request: Request| request.cost(cost).up_to(least);
            Step::Consume(some(dice).requests().cloned().map(part).collect())
        }
        16 => Step::Consume(request(dice).leaving(dice.u32(0..=4)).into()),
        17 => Step::Consume(first_of((0..dice.usize(1..=3)).map(|_| some(dice)))),
        18 => {
            let mut shares: Vec<_> = limits.iter().map(Limit::global).collect();
            shares.dedup_by_key(|request| request.limit().name().to_owned());
            let whole = split(dice.u32(1..=20), shares);
            Step::Consume(if dice.bool() { whole } else { first_of([some(dice), whole]) })
        }
        _ => Step::Consume(request(dice).into()),
    }
}

fn asks_several(step: &Step) -> bool {
    matches!(step, Step::Consume(call) | Step::Check(call) | Step::Reserve(call) if call.requests().count() > 1)
}

/// The same steps in chunks at one instant each: a chunk is a batch of the gate, and one transaction each for the
/// limiter. They are about one key, and the global one. How many are granted, and how many denied.
async fn agree(kind: Kind, chunk: usize, seeds: std::ops::Range<u64>, chunks: usize, key: &str) -> [usize; 2] {
    let (limiters, gates) = (World::new().await, World::new().await);
    let proxy = Proxy::new(&gates.url());
    let pool = one_connection(proxy.options()).await;
    let now = Arc::new(AtomicI64::new(0));
    let clock = {
        let now = now.clone();
        move || DateTime::from_timestamp_micros(now.load(Ordering::SeqCst)).unwrap()
    };
    let overrides = kind.overrides(&gates).await;
    let (mut conn, mut gates_conn) = (limiters.connect().await, gates.connect().await);
    let mut counts = [0, 0];
    for seed in seeds {
        for conn in [&mut conn, &mut gates_conn] {
            run(conn, "delete from tollgate.ephemeral; delete from tollgate.durable").await;
        }
        now.store(second(0.0).timestamp_micros(), Ordering::SeqCst);
        // Another gate, which remembers nothing of the rows that are gone.
        let gate = kind.of(patient(&pool).clock(clock.clone()), &overrides, HOUR).build();
        let mut dice = Rng::with_seed(seed);
        // Few rows, so that they run dry.
        let mut limits = limits();
        dice.shuffle(&mut limits);
        limits.truncate(3);
        let mut receipts = Vec::<[Receipt; 2]>::new();
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
            let mut steps = Vec::new();
            while steps.len() < chunk {
                let step = any_step(&mut dice, &limits, key, !receipts.is_empty());
                let uses_one = matches!(step, Step::Cancel | Step::Settle(_));
                // The limiter's and the gate's.
                let used = uses_one.then(|| receipts.remove(dice.usize(..receipts.len())));
                steps.push((step, used.map(|used| used.map(|receipt| vec![receipt])).unwrap_or_default()));
            }

            let mut expected = Vec::new();
            for (step, [used, _]) in &steps {
                let mut used = used.clone();
                let told = ask_limiter(&limiter().at(at), &mut conn, step.clone(), &mut used).await;
                expected.push((told, used));
            }
            // All of them come while the lane is held, and so form the batch: in this order.
            proxy.hold_after(0);
            let mut calls: Vec<_> = (steps.iter().cloned())
                .map(|(step, [_, mut used])| {
                    let gate = gate.clone();
                    Box::pin(async move { (ask_gate(&gate, step, &mut used).await, used) })
                })
                .map(|call| (call, None))
                .collect();
            for (call, told) in &mut calls {
                *told = std::future::poll_fn(|cx| Poll::Ready(Some(call.as_mut().poll(cx)))).await;
            }
            proxy.release();
            for (place, ((call, told), (mut expected, taken))) in calls.into_iter().zip(expected).enumerate() {
                let (mut told, taken_by_gate) = match told {
                    Some(Poll::Ready(told)) => told,
                    _ => soon(call).await,
                };
                // A remembered refusal says the same. The memory keeps the limits that refused, and not those beside
                // them.
                for (told, expected) in told.iter_mut().zip(&mut expected) {
                    if told.exact.contains("source: Memory") {
                        told.exact = told.exact.replace("source: Memory", "source: Database");
                        if asks_several(&steps[place].0) {
                            for said in [&mut told.exact, &mut expected.exact] {
                                said.truncate(said.find(", standings: ").unwrap_or(said.len()));
                            }
                        }
                    }
                }
                counts[0] += taken.len();
                counts[1] += expected.iter().filter(|told| told.exact.contains("retry_at")).count();
                receipts.extend(apart(&taken).into_iter().zip(apart(&taken_by_gate)).map(<[Receipt; 2]>::from));
                let step = &steps[place].0;
                let case = format!("{kind:?}, seed {seed}, chunk {nth}, place {place} at {at}");
                assert_eq!(told, expected, "{case}: {step:?} in {steps:#?}");
            }
            assert_eq!(
                stored(&mut gates_conn).await,
                stored(&mut conn).await,
                "{kind:?}, seed {seed}, chunk {nth}: {steps:#?}"
            );
        }
    }
    counts
}

/// A receipt of each charge.
fn apart(receipts: &[Receipt]) -> Vec<Receipt> {
    let charges = receipts.iter().flat_map(|receipt| &receipt.charges);
    charges.map(|charge| serde_json::from_value(serde_json::json!({ "charges": [charge] })).unwrap()).collect()
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

/// A gate that takes tokens ahead leaves other rows.
const KINDS: [Kind; 4] = [Kind::Plain, Kind::Remembering, Kind::Overridden, Kind::Open];

#[tokio::test]
async fn every_verb_of_a_gate_answers_as_the_limiter_does() {
    for (kind, first) in KINDS.into_iter().zip([0, 10, 20, 30]) {
        let [granted, denied] = agree(kind, 1, first..first + 10, 30, "k").await;
        assert!(granted > 40 && denied > 10, "{granted} granted, {denied} denied");
    }
}

#[tokio::test]
async fn a_merged_batch_answers_as_the_same_calls_one_by_one() {
    // A batch is about one part.
    let key = (0..1000).map(|n| n.to_string()).find(|key| part(key) == part("")).unwrap();
    // The memory keeps one limit of a refusal by several.
    let kinds = KINDS.into_iter().filter(|kind| *kind != Kind::Remembering);
    for (kind, first) in kinds.zip([0, 10, 20]) {
        let [granted, denied] = agree(kind, 5, first + 100..first + 103, 12, &key).await;
        assert!(granted > 20 && denied > 5, "{granted} granted, {denied} denied");
        agree(kind, 24, first + 200..first + 203, 4, &key).await;
    }
}
