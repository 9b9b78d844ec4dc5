//! Known cases, each by the letter under which limiters are compared: one token a second, ten for each of n shards.

use std::time::Duration;

use sqlx::Connection;
use tollgate::{BegunByHand, Error, Limit, SECOND, Tokens};

use super::stage::{EVER, put, shards, versions, whole};
use crate::gate::stage::{patient, soon};
use crate::teller::{Teller, both, left, retry, wait};
use crate::world::{World, limiter, second};

const ONE: i64 = 1_000_000;

fn limit(n: u16) -> Limit {
    Limit::token_bucket("d", 1, SECOND).capacity(10 * u64::from(n)).shards(n)
}

/// How many rows were written between two looks at their versions.
fn written(before: &[(i16, String)], after: &[(i16, String)]) -> usize {
    assert_eq!(before.len(), after.len());
    before.iter().zip(after).filter(|(before, after)| before != after).count()
}

#[tokio::test]
async fn one_shard_is_taken_from_and_an_empty_limit_refuses() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    for n in 1..=16_u16 {
        for limit in both(&limit(n)) {
            let mut ones = vec![ONE; n.into()];
            if n >= 3 {
                ones[2] = -ONE;
            }
            for values in [vec![ONE; n.into()], ones] {
                put(&mut teller.tx, &limit, &values, second(0.0)).await;
                let before = versions(&mut teller.tx, &limit).await;
                let sum: i64 = values.iter().sum();
                assert_eq!(left(teller.consume(0.0, limit.global()).await).micros(), sum - ONE, "D1, D4: {n}");
                assert_eq!(written(&before, &versions(&mut teller.tx, &limit).await), 1, "{n}");
            }
            put(&mut teller.tx, &limit, &vec![0; n.into()], second(0.0)).await;
            let before = versions(&mut teller.tx, &limit).await;
            // Together they drip as fast as one: a full second, give or take what each rounds off.
            let late = retry(teller.consume(0.0, limit.global()).await);
            assert!(late >= SECOND && late <= SECOND + Duration::from_micros(n.into()), "D3: {n} {late:?}");
            assert!(!teller.consume(late.as_secs_f64() - 1e-6, limit.global()).await.is_granted());
            assert_eq!(versions(&mut teller.tx, &limit).await, before, "a refusal writes nothing");
            assert!(teller.consume(late.as_secs_f64(), limit.global()).await.is_granted());
        }
    }
}

#[tokio::test]
async fn reservations_are_held_by_one_shard_if_it_can() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    for n in 1..=16_u16 {
        let owing = limit(n).unbounded_reservations();
        put(&mut teller.tx, &owing, &vec![0; n.into()], second(0.0)).await;
        let before = versions(&mut teller.tx, &owing).await;
        // The rate does not divide for every n, and the shard is any.
        let waits = wait(teller.reserve(0.0, owing.global()).await);
        let exact = SECOND * u32::from(n);
        assert!(waits.abs_diff(exact) <= Duration::from_micros(u64::from(n).pow(2)), "D2: {n} {waits:?}");
        assert_eq!(written(&before, &versions(&mut teller.tx, &owing).await), 1);
        assert_eq!(shards(&mut teller.tx, &owing).await.iter().map(|(_, value)| value).sum::<i64>(), -ONE);
    }
}

#[tokio::test]
async fn shards_are_pooled_where_one_has_too_little() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    for n in 2..=16_u16 {
        for limit in both(&limit(n)) {
            put(&mut teller.tx, &limit, &vec![ONE / 2; n.into()], second(0.0)).await;
            let before = versions(&mut teller.tx, &limit).await;
            assert!(teller.consume(0.0, limit.global()).await.is_granted(), "D7: {n}");
            let after = shards(&mut teller.tx, &limit).await;
            assert_eq!(after.iter().filter(|(_, value)| *value == 0).count(), 2, "both end at 0");
            assert_eq!(written(&before, &versions(&mut teller.tx, &limit).await), 2);

            // D8, D9: fresh rows; more than a share, and more than all.
            super::stage::clear(&mut teller.tx, &limit).await;
            let all = 10 * u64::from(n);
            assert_eq!(
                left(teller.consume(0.0, limit.global().cost(11)).await).micros(),
                ONE * (10 * i64::from(n) - 11)
            );
            let error = limiter().consume(&mut teller.tx, limit.global().cost(all + 1)).await.unwrap_err();
            assert!(
                matches!(error, Error::CostExceedsCapacity { max, .. } if max.micros() == 10 * ONE * i64::from(n)),
                "{error}"
            );
        }
    }
}

#[tokio::test]
async fn b9y_d14_e2_e4_e5_for_every_number_of_shards() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    for n in 1..=16_u16 {
        let all = 7 * i64::from(n) + 3;
        let rate = all.unsigned_abs();
        for limit in [Limit::token_bucket("each", rate, EVER), Limit::fixed_window("each", rate, EVER)] {
            for limit in both(&limit.shards(n)) {
                assert_eq!(teller.balance(0.0, limit.global()).await.remaining, whole(all), "E2: {n}");
                assert_eq!(left(teller.consume(0.0, limit.global().cost(4)).await), whole(all - 4), "E4: {n}");
                let before = versions(&mut teller.tx, &limit).await;
                for _ in 0..2 {
                    assert_eq!(teller.balance(0.0, limit.global()).await.remaining, whole(all - 4), "D14, E5: {n}");
                }
                assert_eq!(versions(&mut teller.tx, &limit).await, before, "E5: {n}");
                let rest = u64::try_from(all - 4).unwrap();
                assert_eq!(left(teller.consume(0.0, limit.global().cost(rest)).await), Tokens::ZERO);
                assert!(!teller.consume(0.0, limit.global()).await.is_granted());
                assert_eq!(teller.reset(0.0, limit.global()).await, whole(all), "B9y: {n}");
                assert_eq!(left(teller.consume(0.0, limit.global()).await), whole(all - 1), "B9y: {n}");
                super::stage::clear(&mut teller.tx, &limit).await;
            }
        }
    }
}

/// The rows together hold too little, even with a transaction at work on one of them: the refusal waits for nobody.
#[tokio::test]
async fn an_evident_refusal_waits_for_no_shard_and_leaves_no_trace() {
    let world = World::new().await;
    let gate = patient(&world.pool).build();
    for limit in both(&Limit::token_bucket("evident", 40, EVER).shards(4)) {
        let mut conn = world.connect().await;
        put(&mut conn, &limit, &[ONE; 4], second(0.0)).await;
        let mut holder = world.pool.begin().await.unwrap();
        limiter().debit(&mut holder, limit.global().cost(2)).await.unwrap();
        let mut tx = conn.begin().await.unwrap();
        let ask = || limit.global().cost(9);
        for refused in [soon(limiter().consume(&mut tx, ask())).await, soon(gate.consume(ask())).await] {
            assert!(!refused.unwrap().is_granted());
        }
        let xid = "select txid_current_if_assigned()";
        assert_eq!(sqlx::query_scalar::<_, Option<i64>>(xid).fetch_one(&mut *tx).await.unwrap(), None);
    }
}

#[tokio::test]
async fn outside_a_transaction_nothing_is_taken() {
    let world = World::new().await;
    let mut conn = world.connect().await;
    for limit in both(&Limit::token_bucket("auto", 40, EVER).shards(4)) {
        for values in [vec![], vec![10 * ONE; 4], vec![ONE; 4]] {
            put(&mut conn, &limit, &values, second(0.0)).await;
            let before = shards(&mut conn, &limit).await;
            for cost in [1, 3] {
                let refused =
                    limiter().at(second(0.0)).consume(&mut BegunByHand(&mut conn), limit.global().cost(cost)).await;
                assert!(matches!(refused, Err(Error::NotInTransaction)), "{values:?} {cost}: {refused:?}");
                assert_eq!(shards(&mut conn, &limit).await, before);
            }
        }
    }
}
