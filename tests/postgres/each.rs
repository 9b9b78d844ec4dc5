//! Many calls in one go, each decided by itself, and waiting for several limits at once.

use std::time::Duration;

use fastrand::Rng;
use sqlx::Connection;
use tollgate::{
    Call, CallError, Decision, Error, HOUR, Limit, MINUTE, Request, SECOND, Source, Tokens, first_of, split,
};

use crate::gate::stage::{EVER, one_connection, patient, pool, soon};
use crate::proxy::Proxy;
use crate::teller::{rows, tokens};
use crate::world::{World, is_distributed, is_unnamed, limiter, second};

/// The fields of an answer that can be compared.
fn told(answer: Result<Decision, Error>) -> String {
    match answer {
        Ok(Decision::Granted(grant)) => {
            let charges: Vec<_> = grant.receipt.charges.iter().map(|charge| (charge.limit(), charge.cost)).collect();
            format!("{} {} {:?} {:?}", grant.amount, grant.remaining, grant.source, charges)
        }
        other => format!("{:?}", other.map_err(|error| error.to_string())),
    }
}

/// Any calls in one go and in turn, at one instant: the same answers and the same rows.
#[tokio::test]
async fn many_calls_in_one_go_are_what_they_are_in_turn_at_one_instant() {
    let (together, in_turn) = (World::new().await, World::new().await);
    let (mut one, mut other) = (together.connect().await, in_turn.connect().await);
    let limits = [
        Limit::token_bucket("drips", 10, MINUTE),
        Limit::fixed_window("window", 8, MINUTE).ephemeral(),
        Limit::sliding_window("sliding", 9, MINUTE),
        Limit::stepped_bucket("uploads", 5, 10 * SECOND).capacity(12),
    ];
    let mut dice = Rng::with_seed(7);
    for round in 0..60 {
        let limiter = limiter().at(second(f64::from(round) * 3.7));
        let request = |dice: &mut Rng| {
            let limit = &limits[dice.usize(..limits.len())];
            let request = limit.key(dice.u8(..3)).cost(dice.u32(0..14));
            match dice.u32(..8) {
                0 => request.cost(4).up_to(2),
                1 => request.leaving(2),
                _ => request,
            }
        };
        let call = |dice: &mut Rng| {
            let call: Call = (0..dice.usize(1..4)).map(|_| request(dice)).collect();
            if dice.u32(..6) == 0 {
                return first_of([
                    call,
                    request(dice).into(),
                    split(7, limits.iter().map(|limit| limit.key(dice.u8(..3)))),
                ]);
            }
            if dice.u32(..5) == 0 {
                let first = limits[0].key(dice.u8(..3)).once(dice.u8(..40));
                return first.and(call.requests().skip(1).cloned());
            }
            call
        };
        let calls: Vec<_> = (0..dice.usize(1..12)).map(|_| call(&mut dice)).collect();
        let mut tx = one.begin().await.unwrap();
        let answers = limiter.consume_each(&mut tx, calls.clone()).await.unwrap();
        tx.commit().await.unwrap();
        assert_eq!(answers.len(), calls.len());
        for (call, answer) in calls.into_iter().zip(answers) {
            let mut tx = other.begin().await.unwrap();
            assert_eq!(told(answer), told(limiter.consume(&mut tx, call).await));
            tx.commit().await.unwrap();
        }
        let of = |rows: Vec<crate::teller::Stored>| {
            rows.into_iter().map(|row| (row.name, row.key, row.value, row.ts)).collect::<Vec<_>>()
        };
        assert_eq!(of(rows(&mut one).await), of(rows(&mut other).await));
    }
}

/// As many statements as one call of two limits takes, and none after a refusal of all.
#[tokio::test]
async fn a_hundred_calls_take_the_round_trips_of_one() {
    if is_distributed() || is_unnamed() {
        return; // More statements, or more round trips for each.
    }
    let world = World::new().await;
    let proxy = Proxy::new(&world.url());
    let pool = one_connection(proxy.options()).await;
    let limit = Limit::token_bucket("limit", 1, EVER);
    let mut tx = pool.begin().await.unwrap();
    limiter().consume(&mut tx, [limit.key("a"), limit.key("b")]).await.unwrap().granted().unwrap();
    let before = proxy.statements();
    limiter().consume(&mut tx, [limit.key("c"), limit.key("d")]).await.unwrap().granted().unwrap();
    let of_one = proxy.statements() - before;
    let calls = || (0..100).map(|key| [limit.key(key)]);
    let before = proxy.statements();
    let answers = limiter().consume_each(&mut tx, calls()).await.unwrap();
    assert!(answers.iter().all(|answer| answer.as_ref().unwrap().is_granted()));
    assert_eq!(proxy.statements() - before, of_one);
    let before = proxy.statements();
    let answers = limiter().consume_each(&mut tx, calls()).await.unwrap();
    assert!(answers.into_iter().all(|answer| answer.unwrap().denied().is_some()));
    assert_eq!(proxy.statements() - before, 1);
    tx.commit().await.unwrap();
}

#[tokio::test]
async fn what_is_wrong_with_one_call_is_its_own_error() {
    let world = World::new().await;
    let gate = patient(&pool(&world.url(), 2).await).build();
    let limit = Limit::token_bucket("limit", 3, EVER).max_reserved(2);
    let calls = || {
        let id = |cost: u32| limit.key(1).cost(cost).once("job");
        [
            id(1),
            limit.key("").into(),
            Call::from([]),
            limit.key(1).cost(4).into(),
            id(1),
            id(2),
            limit.key(1).cost(2).into(),
        ]
    };
    let mut tx = world.begin().await;
    let of_limiter = limiter().consume_each(&mut tx, calls()).await.unwrap();
    let none: [[Request; 0]; 0] = [];
    assert!(limiter().consume_each(&mut tx, none).await.unwrap().is_empty());
    let reserved = limiter().reserve_each(&mut tx, [[limit.key(1).cost(1)], [limit.key(1).cost(2)]]).await.unwrap();
    assert_eq!(reserved.iter().map(|answer| answer.as_ref().unwrap().is_granted()).collect::<Vec<_>>(), [true, false]);
    tx.rollback().await.unwrap();
    let of_gate = gate.consume_each(calls()).await;
    for answers in [of_limiter, of_gate] {
        let [first, key, nothing, large, again, other, last] = answers.try_into().unwrap();
        assert!(matches!(
            (key, nothing),
            (Err(Error::Key { .. }), Err(Error::Call { source: CallError::NothingAsked, .. }))
        ));
        assert!(matches!((large, other), (Err(Error::CostExceedsCapacity { .. }), Err(Error::OnceMismatch { .. }))));
        let [first, again, last] =
            [first, again, last].map(|answer: Result<Decision, _>| answer.unwrap().granted().unwrap());
        assert_eq!([first.source, again.source, last.source], [Source::Database, Source::Repeated, Source::Database]);
        assert_eq!(last.remaining, tokens(0));
    }
}

/// Calls of one key are decided in their order, and together in a few statements.
#[tokio::test]
async fn a_gate_decides_a_list_of_calls_in_few_batches() {
    let world = World::new().await;
    let proxy = Proxy::new(&world.url());
    let gate = patient(&one_connection(proxy.options()).await).build();
    let limit = Limit::token_bucket("limit", 60, EVER);
    gate.consume(limit.key(0)).await.unwrap().granted().unwrap();
    let answers = gate.consume_each((0..100).map(|_| [limit.key(0)])).await;
    let left: Vec<_> =
        answers.into_iter().map(|answer| answer.unwrap().granted().ok().map(|grant| grant.remaining)).collect();
    let expected: Vec<_> = (0..100).map(|nth| (nth < 59).then(|| Tokens::new(58 - nth))).collect();
    assert_eq!(left, expected);
    let before = proxy.statements();
    assert!(
        gate.consume_each((1..101).map(|key| [limit.key(key)]))
            .await
            .iter()
            .all(|answer| answer.as_ref().unwrap().is_granted())
    );
    let asked = proxy.statements() - before;
    assert!(asked < 40, "{asked} statements");
}

/// A slot and a token: whichever refuses, it is waited for, and both are taken at once.
#[tokio::test]
async fn who_waits_for_several_limits_gets_all_of_them_or_none() {
    let world = World::new().await;
    let gate = patient(&pool(&world.url(), 3).await).build();
    let (slots, tokens_of) =
        (Limit::concurrency("slots", 1, HOUR), Limit::token_bucket("tokens", 20, SECOND).capacity(1));
    let both = || [slots.global(), tokens_of.global()];
    let held = gate.acquire_within(both(), HOUR).await.unwrap().granted().unwrap();
    assert!(gate.acquire_within(both(), Duration::ZERO).await.unwrap().denied().is_some());
    let mut waiting = tokio::task::JoinSet::new();
    for _ in 0..6 {
        let (gate, both) = (gate.clone(), both());
        waiting.spawn(async move {
            gate.acquire_within(both, HOUR).await.unwrap().granted().unwrap().release().await.unwrap();
        });
    }
    held.release().await.unwrap();
    soon(waiting.join_all()).await;
    assert_eq!(gate.balance(slots.global()).await.unwrap().remaining, tokens(1));
    let (first, second) =
        (Limit::token_bucket("first", 40, SECOND).capacity(1), Limit::fixed_window("second", 2, SECOND / 10));
    let mut waiting = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let (gate, both) = (gate.clone(), [first.global(), second.global()]);
        waiting.spawn(async move { gate.wait(both, HOUR).await.unwrap().granted().unwrap() });
    }
    soon(waiting.join_all()).await;
    let never = Limit::wallet("never");
    assert!(gate.wait([first.global(), never.global()], HOUR).await.unwrap().denied().unwrap().retry_at.is_none());
}
