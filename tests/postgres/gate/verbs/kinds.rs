//! Every verb has the same outcome at every kind of gate as at a limiter: the same answers, and the same balances once
//! the gate is closed. Answers from memory may know less of the remaining tokens, and differ in nothing else.

pub(super) mod scripts;

use std::fmt::Debug;
use std::time::Duration;

use futures_util::future::join_all;
use sqlx::{Connection, PgConnection};
use tollgate::{Balance, Decision, Denied, Error, Gate, Limiter, Receipt, Reservation, Settlement, Source, Tokens};

use crate::gate::kind::{HOT, Kind, SPENT, WARM};
use crate::gate::stage::{pool, soon};
use crate::world::{World, limiter, sweeper};
use scripts::{LIMITS, MONEY, Step, scripts, told};

/// An answer, and the tokens that remain after it, where the gate knows them.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Told {
    what: String,
    left: Option<Tokens>,
    /// All of the answer, which agrees where both go by one clock.
    pub(super) exact: String,
}

impl Told {
    fn new(what: &impl Debug) -> Self {
        Self { what: format!("{what:?}"), ..Self::default() }
    }

    fn exactly(self, all: &impl Debug) -> Self {
        Self { exact: format!("{all:?}"), ..self }
    }

    fn error(error: &Error) -> Self {
        Self::new(&error.to_string())
    }

    fn balance(answer: Result<Balance, Error>) -> Self {
        let told = |balance: Balance| Self::new(&(balance.remaining, balance.is_full())).exactly(&balance);
        answer.map_or_else(|error| Self::error(&error), told)
    }

    fn grant(answer: Result<Decision, Error>, receipts: &mut Vec<Receipt>) -> Self {
        let grant = match answer {
            Ok(Decision::Granted(grant)) => grant,
            Ok(Decision::Denied(denied)) => return Self::denied(&denied),
            Err(error) => return Self::error(&error),
        };
        let is_repeat = grant.source == Source::Repeated;
        let what = (grant.amount, grant.alternative, charges(&grant.receipt.charges), is_repeat);
        let left = (grant.source != Source::Prefetched).then_some(grant.remaining);
        let crossed: Vec<_> = grant.standings.iter().map(|standing| standing.crossed(0.5)).collect();
        let exact = (grant.decided_at, grant.source, crossed, &grant.receipt.charges);
        let told = Self { left, ..Self::new(&what).exactly(&exact) };
        receipts.push(grant.receipt);
        told
    }

    fn denied(denied: &Denied) -> Self {
        Self::new(&(&denied.limit, &denied.key, denied.reason, denied.remaining)).exactly(denied)
    }

    fn booking(answer: Result<Decision<Reservation>, Error>, receipts: &mut Vec<Receipt>) -> Self {
        match answer {
            Ok(Decision::Granted(booked)) => {
                let told = Self::new(&charges(&booked.receipt.charges));
                let told = told.exactly(&(booked.ready_at, booked.decided_at, &booked.receipt.charges));
                receipts.push(booked.receipt);
                told
            }
            Ok(Decision::Denied(denied)) => Self::denied(&denied),
            Err(error) => Self::error(&error),
        }
    }

    fn settlement(answer: Result<Settlement, Error>) -> Self {
        let told = |settled: Settlement| Self::new(&charges(&settled.charges)).exactly(&settled);
        answer.map_or_else(|error| Self::error(&error), told)
    }

    fn agrees_with(&self, other: &Self) -> bool {
        self.what == other.what && self.left.zip(other.left).is_none_or(|(one, other)| one == other)
    }
}

fn charges(charges: &[tollgate::Charge]) -> Vec<String> {
    let told = |charge: &tollgate::Charge| format!("{} of {} {}", charge.cost, charge.limit(), charge.key);
    charges.iter().map(told).collect()
}

pub(super) async fn ask_gate(gate: &Gate, step: Step, receipts: &mut Vec<Receipt>) -> Vec<Told> {
    let one = match step {
        Step::ConsumeEach(calls) => {
            let told = gate.consume_each(calls).await.into_iter();
            return told.map(|answer| Told::grant(answer, receipts)).collect();
        }
        Step::Lease(request, is_dropped) => {
            let (slots, before) = (request.clone(), gate.balance(request.clone()).await.unwrap().remaining);
            match gate.acquire(request).await {
                Ok(Decision::Granted(lease)) => {
                    let told = Told::grant(Ok(Decision::Granted(lease.grant().clone())), &mut Vec::new());
                    if is_dropped {
                        // Its release is then on its way, and nobody awaits it.
                        drop(lease);
                        soon(async { while gate.balance(slots.clone()).await.unwrap().remaining < before {} }).await;
                    } else {
                        lease.release().await.unwrap();
                    }
                    told
                }
                Ok(Decision::Denied(denied)) => Told::denied(&denied),
                Err(error) => Told::error(&error),
            }
        }
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
        Step::Wait(requests) => Told::grant(gate.wait(requests, Duration::ZERO).await, receipts),
        of_both => told!(of_both, receipts, gate),
    };
    vec![one]
}

/// In a transaction of its own, as a gate does.
pub(super) async fn ask_limiter(
    limiter: &Limiter,
    conn: &mut PgConnection,
    step: Step,
    receipts: &mut Vec<Receipt>,
) -> Vec<Told> {
    let mut tx = conn.begin().await.unwrap();
    let told = match step {
        Step::ConsumeEach(calls) => {
            let told = limiter.consume_each(&mut tx, calls).await.unwrap().into_iter();
            told.map(|answer| Told::grant(answer, receipts)).collect()
        }
        Step::Lease(request, _) => {
            let mut unheard = Vec::new();
            let told = Told::grant(limiter.consume(&mut tx, request).await, &mut unheard);
            if let Some(receipt) = unheard.pop() {
                limiter.release(&mut tx, receipt).await.unwrap();
            }
            vec![told]
        }
        Step::Stream(requests, used, _) => {
            let grant = limiter.consume(&mut tx, requests).await.unwrap().granted().unwrap();
            limiter.settle(&mut tx, grant, used).await.unwrap();
            vec![Told::default()]
        }
        Step::Wait(requests) => vec![Told::grant(limiter.consume(&mut tx, requests).await, receipts)],
        of_both => vec![told!(of_both, receipts, limiter, &mut tx)],
    };
    tx.commit().await.unwrap();
    told
}

/// The balance of each limit for a key, once nothing is left to lapse.
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
        left.push((balance.remaining, balance.is_full()));
    }
    left
}

/// The outcome of a script: the answers to each step, and the balance of each limit at the end.
type Outcome = (Vec<Vec<Told>>, Vec<(Tokens, bool)>);

async fn expected() -> Vec<Outcome> {
    let world = World::new().await;
    let (mut conn, mut expected) = (world.connect().await, Vec::new());
    for (key, steps) in scripts() {
        let before = [
            Step::Credit(MONEY.key(key).cost(SPENT).into()),
            Step::Consume([HOT, WARM].map(|hot| hot.key(key).cost(SPENT)).into()),
        ];
        let (mut told, mut receipts) = (Vec::new(), Vec::new());
        for step in before.into_iter().chain(steps) {
            told.push(ask_limiter(&limiter(), &mut conn, step, &mut receipts).await);
        }
        expected.push((told.split_off(2), left(&world, &mut conn, key).await));
    }
    expected
}

/// The pairs of a kind that disagree.
async fn disagreeing(kind: Kind, expected: &[Outcome]) -> Vec<String> {
    let world = World::new().await;
    let overrides = kind.overrides(&world).await;
    let (pool, mut conn) = (pool(&world.url(), 4).await, world.connect().await);
    let mut wrong = Vec::new();
    for ((key, steps), (expected, expected_left)) in scripts().into_iter().zip(expected) {
        let gate = kind.with_spent(&pool, &overrides, key).await;
        gate.credit(MONEY.key(key).cost(SPENT)).await.unwrap();
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
