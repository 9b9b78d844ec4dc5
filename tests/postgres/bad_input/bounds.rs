//! How many keys one call may ask.

use tollgate::{BegunByHand, Call, CallError, Decision, Error, Gate, Limit, MINUTE, Tokens, first_of};

use crate::teller::run;
use crate::transactions::terminate;
use crate::world::{World, limiter, patient};

const TEN: Limit = Limit::token_bucket("ten", 10, MINUTE);

fn of(keys: u32) -> Call {
    (0..20_000).map(move |n| TEN.key(n % keys).cost(0.000_1)).collect()
}

#[track_caller]
fn expect_too_many<T: std::fmt::Debug>(answer: Result<T, Error>, keys: usize, most: usize) {
    let Err(error) = answer else { panic!("{answer:?}") };
    let wanted = CallError::TooManyKeys { keys, most };
    assert!(matches!(&error, Error::Call { source, .. } if *source == wanted), "{error:?}");
    assert!(error.is_bad_input() && !error.is_retryable(), "{error:?}");
}

/// A call of 20 000 keys would keep its locks from others for seconds.
#[tokio::test]
async fn a_call_of_too_many_keys_is_refused_before_any_sql() {
    let world = World::new().await;
    // Anything sent over this connection would be another error.
    let mut dead = world.connect().await;
    run(&mut dead, "begin").await;
    terminate(&world, &mut dead).await;
    let tx = &mut BegunByHand(&mut dead);
    expect_too_many(limiter().consume(tx, of(20_000)).await, 20_000, 2_000);
    expect_too_many(limiter().reserve(tx, of(2_001)).await, 2_001, 2_000);
    expect_too_many(limiter().check(tx.0, of(2_001)).await, 2_001, 2_000);
    expect_too_many(limiter().max_keys(3).consume(tx, of(4)).await, 4, 3);
    expect_too_many(limiter().consume(tx, first_of([of(1_500), of(1_501)])).await, 3_001, 2_000);
    // All calls of a list are locked together.
    let calls = |keys| (0..keys).map(|key| [TEN.key(key), TEN.global()]);
    expect_too_many(limiter().consume_each(tx, calls(2_000)).await, 2_001, 2_000);
    expect_too_many(limiter().max_keys(10).consume_each(tx, calls(10)).await, 11, 10);

    let nowhere = sqlx::postgres::PgPoolOptions::new().connect_lazy("postgres://nobody@127.0.0.1:9/nowhere").unwrap();
    let gate = Gate::new(nowhere.clone());
    expect_too_many(gate.consume(of(20_000)).await, 20_000, 2_000);
    expect_too_many(gate.reserve(of(2_001)).await, 2_001, 2_000);
    expect_too_many(gate.check(of(2_001)).await, 2_001, 2_000);
    expect_too_many(gate.wait(of(2_001), MINUTE).await, 2_001, 2_000);
    expect_too_many(gate.acquire(of(2_001)).await, 2_001, 2_000);
    expect_too_many(gate.stream(of(2_001)).await, 2_001, 2_000);
    expect_too_many(Gate::builder(nowhere).max_keys(3).build().consume(of(4)).await, 4, 3);
}

/// A batch has the keys of many calls, and a receipt those that were granted under another bound.
#[tokio::test]
async fn what_is_within_the_bound_is_granted_and_what_was_granted_is_settled() {
    let world = World::new().await;
    let mut tx = world.begin().await;
    limiter().consume(&mut tx, of(2_000)).await.unwrap().granted().unwrap();
    let grant = limiter().max_keys(2_100).consume(&mut tx, of(2_100)).await.unwrap().granted().unwrap();
    limiter().settle_each(&mut tx, grant, &vec![Tokens::ZERO; 2_100]).await.unwrap();
    tx.rollback().await.unwrap();
    let gate = patient(&world.pool).max_keys(3).build();
    let each = gate.consume_each((0..12).map(|n| [TEN.key(3 * n), TEN.key(3 * n + 1), TEN.key(3 * n + 2)])).await;
    assert!(each.iter().all(|answer| answer.as_ref().is_ok_and(Decision::is_granted)), "{each:?}");
}
