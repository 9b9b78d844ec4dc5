//! The same story, played to the database and to the pure plan, ends the same, step by step and row by row.

use std::cell::RefCell;

use chrono::{DateTime, TimeDelta, Utc};
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{FileFailurePersistence, TestCaseResult, TestRunner};
use sqlx::PgConnection;
use tollgate::algebra::State;
use tollgate::plan::{self, Answer, RowId};
use tollgate::{
    Balance, BegunByHand, Call, Charge, Decision, Denied, Error, Grant, Limit, Limiter, MINUTE, Receipt, Request,
    SECOND, Settlement, Tokens, first_of, split,
};

use crate::memory::World as Memory;
use crate::teller::{both, rows, run};
use crate::world::{World, second};

#[test]
fn the_database_decides_as_the_pure_plan_does() {
    // Limits that agree about no name, and some that do: a row is read under whichever definition asks.
    let limits = [grids(), first_use(), redefined()].concat();
    tell(64, limits, false);
}

#[test]
fn sweeping_full_rows_changes_no_answer() {
    tell(64, grids(), true);
}

/// Limits whose refill does not depend on when a row was made.
fn grids() -> Vec<Limit> {
    let micro = std::time::Duration::from_micros(1);
    let mut limits = vec![
        Limit::token_bucket("bounded", 10, MINUTE).max_reserved(5),
        Limit::token_bucket("owing", 10, MINUTE).capacity(20).unbounded_reservations(),
        Limit::token_bucket("queue", 1, SECOND).capacity(0).unbounded_reservations(),
        Limit::fixed_window("owing_windows", 10, MINUTE).unbounded_reservations(),
        Limit::fixed_window("owing_grid", 7, 10 * SECOND).start(3 * SECOND).max_reserved(20),
    ];
    for limit in [
        Limit::token_bucket("drips", 10, MINUTE),
        Limit::token_bucket("thirds", 1, SECOND)
            .rate_and_capacity(Tokens::from_micros(333_333), Tokens::from_micros(5_000_001)),
        Limit::token_bucket("vast", 1, micro).rate_and_capacity(Tokens::MAX, Tokens::MAX),
        Limit::token_bucket("slow", 1, Limit::MAX_PERIOD).capacity(20),
        Limit::fixed_window("spread", 10, MINUTE),
        Limit::fixed_window("rolling", 5, 7 * SECOND).capacity(20),
        Limit::fixed_window("aligned", 10, 10 * SECOND).start(3 * SECOND),
    ] {
        limits.extend(both(&limit));
    }
    limits
}

fn first_use() -> Vec<Limit> {
    let owing = Limit::stepped_bucket("owing_steps", 5, 10 * SECOND).capacity(20).unbounded_reservations();
    let mut limits = vec![owing];
    limits.extend(both(&Limit::stepped_bucket("uploads", 5, 10 * SECOND).capacity(20)));
    limits
}

fn redefined() -> Vec<Limit> {
    let old = Limit::token_bucket("redefined", 10, MINUTE).capacity(20);
    let new = Limit::stepped_bucket("redefined", 5, 10 * SECOND).capacity(5);
    let newest = Limit::fixed_window("redefined", 5, 10 * SECOND).capacity(10);
    [old, new, newest].iter().flat_map(both).collect()
}

/// Tells stories about limits, until one ends in two ways.
fn tell(cases: u32, limits: Vec<Limit>, is_swept: bool) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _entered = runtime.enter();
    let world = runtime.block_on(World::new());
    let conn = RefCell::new(runtime.block_on(world.connect()));
    let regressions = FileFailurePersistence::Direct("tests/postgres/replay.regressions");
    let config =
        ProptestConfig { failure_persistence: Some(Box::new(regressions)), ..ProptestConfig::with_cases(cases) };
    let mut runner = TestRunner::new(config);
    let told = runner.run(&prop::collection::vec(step(limits), 1..40), |steps| {
        runtime.block_on(replay(&mut conn.borrow_mut(), steps, is_swept))
    });
    told.unwrap_or_else(|difference| panic!("{difference}"));
}

/// A verb at one instant, and how it is called.
#[derive(Clone, Debug)]
struct Step {
    after: After,
    verb: Verb,
    manner: Manner,
    swept: Index,
}

#[derive(Clone, Copy, Debug)]
enum After {
    /// Microseconds, back as well as forth.
    Micros(i64),
    /// So many microseconds past the instant that the last refusal named.
    Retry(i64),
}

#[derive(Clone, Debug)]
enum Verb {
    Balance(Request),
    Cancel(Index),
    Check(Request),
    Consume(Call),
    Credit(Request),
    Debit(Request),
    Reserve(Call),
    Reset(Request),
    Settle(Index, Tokens),
}

/// How the limiter is set up, which must not matter.
#[derive(Clone, Copy, Debug)]
enum Manner {
    Plain,
    Unnamed,
    WithTimeout,
}

/// An answer, of the database or of the plan.
#[derive(Debug, PartialEq)]
enum Outcome {
    Denied(Denied),
    Done(Balance),
    Failed(String),
    Granted { decided_at: DateTime<Utc>, last: Last, charges: Vec<Charge> },
    Settled(Settlement),
}

/// The last field of an answer: of a grant, or of a reservation.
#[derive(Debug, PartialEq)]
enum Last {
    ReadyAt(DateTime<Utc>),
    Remaining(Tokens),
}

fn step(limits: Vec<Limit>) -> impl Strategy<Value = Step> {
    let after = prop_oneof![
        2 => Just(After::Micros(0)),
        2 => (0..2_000_000_i64).prop_map(After::Micros),
        2 => (0..600_000_000_i64).prop_map(After::Micros),
        2 => (1..7_i64, -1..=1_i64).prop_map(|(steps, more)| After::Micros(steps * 10_000_000 + more)),
        1 => (-90_000_000..0_i64).prop_map(After::Micros),
        1 => Just(After::Micros(400 * 86_400_000_000)),
        4 => (-1..=1_i64).prop_map(After::Retry),
    ];
    let cost = prop_oneof![
        6 => (0..=20_u32).prop_map(Tokens::new),
        2 => (0..=30_000_000_i64).prop_map(Tokens::from_micros),
        1 => Just(Tokens::from_micros(1)),
        1 => Just(Tokens::MAX),
    ];
    let key = prop::sample::select(vec!["", "a", "b", "ü|\\"]);
    let asked = (prop::sample::select(limits), key, cost.clone());
    let request =
        asked.prop_map(|(limit, key, cost)| if key.is_empty() { limit.global() } else { limit.key(key) }.cost(cost));
    let one = || request.clone();
    let requests = || prop::collection::vec(one(), 1..4);
    let receipt = any::<Index>;
    let verb = prop_oneof![
        6 => one().prop_map(|request| Verb::Consume(request.into())),
        3 => requests().prop_map(|requests| Verb::Consume(requests.into())),
        2 => prop::collection::vec(requests(), 1..4).prop_map(|each| Verb::Consume(first_of(each))),
        1 => (1..=40_u32, requests()).prop_map(|(cost, requests)| Verb::Consume(split(cost, requests))),
        3 => one().prop_map(|request| Verb::Reserve(request.into())),
        2 => requests().prop_map(|requests| Verb::Reserve(requests.into())),
        1 => one().prop_map(Verb::Check),
        1 => one().prop_map(Verb::Balance),
        1 => one().prop_map(Verb::Credit),
        1 => one().prop_map(Verb::Debit),
        1 => one().prop_map(Verb::Reset),
        3 => (receipt(), cost).prop_map(|(receipt, actual)| Verb::Settle(receipt, actual)),
        2 => receipt().prop_map(Verb::Cancel),
    ];
    let manner = prop::sample::select(vec![Manner::Plain, Manner::Plain, Manner::Unnamed, Manner::WithTimeout]);
    (after, verb, manner, any::<Index>()).prop_map(|(after, verb, manner, swept)| Step { after, verb, manner, swept })
}

/// Tells one story to both. With sweeps the database loses rows that are full by then, and must still answer as the
/// plan does.
async fn replay(conn: &mut PgConnection, steps: Vec<Step>, is_swept: bool) -> TestCaseResult {
    run(conn, "rollback").await;
    run(conn, "begin").await;
    let (mut memory, mut receipts) = (Memory::default(), Vec::new());
    let (mut now, mut retry_at) = (second(0.0), second(0.0));
    for (nth, Step { after, verb, manner, swept }) in steps.into_iter().enumerate() {
        // Not so far that an instant could be taken for the end of time.
        let next = match after {
            After::Micros(micros) => now + TimeDelta::microseconds(micros),
            After::Retry(micros) => retry_at.min(second(1e12)) + TimeDelta::microseconds(micros),
        };
        now = if is_swept { next.max(now) } else { next };
        if is_swept {
            sweep(conn, now, swept).await;
        }
        let limiter = match manner {
            Manner::Plain => Limiter::new(),
            Manner::Unnamed => Limiter::new().unnamed_statements(),
            Manner::WithTimeout => Limiter::new().lock_timeout(SECOND),
        };
        let Some((database, plan)) =
            tell_both(&limiter.at(now), &mut BegunByHand(conn), &mut memory, &mut receipts, &verb, now, is_swept).await
        else {
            continue;
        };
        // A settlement finds nothing to give back to where its row was swept.
        if !(is_swept && matches!((&database, &plan), (Outcome::Settled(_), Outcome::Settled(_)))) {
            prop_assert_eq!(&database, &plan, "step {} at {}: {:?}", nth, now, verb);
        }
        if let Outcome::Denied(denied) = &database {
            // A retry after the end of time is never due.
            retry_at = denied.retry_at.unwrap_or(retry_at);
        }
        if !is_swept {
            prop_assert_eq!(stored(conn).await, written(&memory), "step {} at {}: {:?}", nth, now, verb);
        }
    }
    Ok(())
}

/// The answers of the database and of the plan. `None` for a receipt where there is none.
async fn tell_both(
    limiter: &Limiter,
    tx: &mut BegunByHand<'_>,
    memory: &mut Memory,
    receipts: &mut Vec<Receipt>,
    verb: &Verb,
    now: DateTime<Utc>,
    is_swept: bool,
) -> Option<(Outcome, Outcome)> {
    let mut use_up =
        |receipt: &Index| (!receipts.is_empty()).then(|| receipts.swap_remove(receipt.index(receipts.len())));
    let mut plan = |call| planned(memory.call(call, now.into()));
    let (database, plan) = match verb.clone() {
        Verb::Balance(ask) => (done(limiter.balance(tx.0, ask.clone()).await), plan(plan::Verb::Look(ask))),
        Verb::Cancel(receipt) => {
            let receipt = use_up(&receipt)?;
            (settled(limiter.cancel(tx, receipt.clone()).await), plan(plan::Verb::Cancel(receipt)))
        }
        Verb::Check(ask) => {
            let told = granted(limiter.check(tx.0, ask.clone()).await);
            (told, without_charges(planned(memory.clone().call(plan::Verb::consume(ask), now.into()))))
        }
        Verb::Consume(ask) => {
            let told = granted(limiter.consume(tx, ask.clone()).await);
            (told, plan(plan::Verb::consume(ask)))
        }
        Verb::Credit(ask) => (done(limiter.credit(tx, ask.clone()).await), plan(plan::Verb::credit(ask))),
        Verb::Debit(ask) => (done(limiter.debit(tx, ask.clone()).await), plan(plan::Verb::debit(ask))),
        Verb::Reserve(ask) => {
            let told = match limiter.reserve(tx, ask.clone()).await {
                Ok(Decision::Granted(booked)) => {
                    let last = Last::ReadyAt(booked.ready_at);
                    Outcome::Granted { decided_at: booked.decided_at, last, charges: booked.receipt.charges }
                }
                Ok(Decision::Denied(denied)) => Outcome::Denied(denied),
                Err(error) => Outcome::Failed(error.to_string()),
            };
            (told, booked(memory.call(plan::Verb::reserve(ask), now.into())))
        }
        Verb::Reset(ask) => (done(limiter.reset(tx, ask.clone()).await), plan(plan::Verb::Reset(ask))),
        Verb::Settle(receipt, actual) => {
            let receipt = use_up(&receipt)?;
            // Tokens that are used beyond an estimate are lost where its row was swept.
            let actual = if is_swept { actual.min(receipt.charges[0].cost) } else { actual };
            let told = settled(limiter.settle(tx, receipt.clone(), actual).await);
            if let Outcome::Failed(_) = told {
                // Nothing was changed, so the receipt is still good.
                receipts.push(receipt.clone());
            }
            (told, plan(plan::Verb::Settle(receipt, actual)))
        }
    };
    keep(&database, receipts);
    Some((database, plan))
}

fn done(answer: Result<Balance, Error>) -> Outcome {
    answer.map_or_else(|error| Outcome::Failed(error.to_string()), Outcome::Done)
}

fn settled(answer: Result<Settlement, Error>) -> Outcome {
    answer.map_or_else(|error| Outcome::Failed(error.to_string()), Outcome::Settled)
}

fn granted(answer: Result<Decision, Error>) -> Outcome {
    match answer {
        Ok(Decision::Granted(grant)) => {
            let last = Last::Remaining(grant.remaining);
            Outcome::Granted { decided_at: grant.decided_at, last, charges: grant.receipt.charges }
        }
        Ok(Decision::Denied(denied)) => Outcome::Denied(denied),
        Err(error) => Outcome::Failed(error.to_string()),
    }
}

/// Keeps the charges, to be settled later.
fn keep(outcome: &Outcome, receipts: &mut Vec<Receipt>) {
    if let Outcome::Granted { charges, .. } = outcome {
        // One for each charge, for their costs may differ.
        for charge in charges {
            receipts.push(serde_json::from_value(serde_json::json!({ "charges": [charge] })).unwrap());
        }
    }
}

fn without_charges(mut outcome: Outcome) -> Outcome {
    if let Outcome::Granted { charges, .. } = &mut outcome {
        charges.clear();
    }
    outcome
}

/// The answer of the plan.
fn planned(answer: Result<Answer, Error>) -> Outcome {
    match answer {
        Ok(Answer::Granted { grant: Grant { decided_at, remaining, receipt, .. }, .. }) => {
            let last = Last::Remaining(remaining);
            Outcome::Granted { decided_at, last, charges: receipt.charges }
        }
        Ok(Answer::Denied(denied)) => Outcome::Denied(denied),
        Ok(Answer::Done(balance)) => Outcome::Done(balance),
        Ok(Answer::Settled(settlement)) => Outcome::Settled(settlement),
        Err(error) => Outcome::Failed(error.to_string()),
    }
}

/// The answer of the plan to a reservation.
fn booked(answer: Result<Answer, Error>) -> Outcome {
    let ready_at = if let Ok(Answer::Granted { ready_at, .. }) = &answer { Some(*ready_at) } else { None };
    match (planned(answer), ready_at) {
        (Outcome::Granted { decided_at, charges, .. }, Some(ready_at)) => {
            Outcome::Granted { decided_at, last: Last::ReadyAt(ready_at.into()), charges }
        }
        (outcome, _) => outcome,
    }
}

/// The rows that the plan alone would have written.
fn written(memory: &Memory) -> Vec<Line> {
    let line = |(row, state): (&RowId, &State)| Line {
        row: (format!("{:?}", row.storage()), row.name().to_owned(), row.key().to_string()),
        value: state.value,
        ts: state.ts.into(),
        full_at: state.full_at.into(),
    };
    memory.rows.iter().map(line).collect()
}

/// A row, as far as a plan knows it.
#[derive(Debug, PartialEq)]
struct Line {
    row: (String, String, String),
    value: Tokens,
    ts: DateTime<Utc>,
    full_at: DateTime<Utc>,
}

async fn stored(conn: &mut PgConnection) -> Vec<Line> {
    let line = |row: crate::teller::Stored| Line {
        row: (format!("{:?}", row.storage), row.name, row.key),
        value: row.value,
        ts: row.ts,
        full_at: row.full_at,
    };
    rows(conn).await.into_iter().map(line).collect()
}

/// Deletes some of the rows that are full by now.
async fn sweep(conn: &mut PgConnection, now: DateTime<Utc>, which: Index) {
    // One in four, or all.
    let residue = i32::try_from(which.index(5)).unwrap();
    for sql in [
        "delete from tollgate.ephemeral where full_at <= $1 and ($2 = 4 or mod(abs(hashtext(name || key)), 4) = $2)",
        "delete from tollgate.durable where full_at <= $1 and ($2 = 4 or mod(abs(hashtext(name || key)), 4) = $2)",
    ] {
        sqlx::query(sql).bind(now).bind(residue).execute(&mut *conn).await.unwrap();
    }
}
