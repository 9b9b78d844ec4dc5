//! Rows that are not there, and rows that nobody of this release wrote.

use sqlx::Connection;
use tollgate::{DAY, Error, FitError, Limit, LimitFault, LimitKind, LimitSpec, MINUTE, SECOND, Tokens};

use super::stage::{EVER, put, shards, table, whole};
use crate::gate::stage::patient;
use crate::teller::{Teller, both, left, tokens};
use crate::world::{World, limiter, second};

const ONE: i64 = 1_000_000;

#[test]
fn a_number_of_shards_that_cannot_be_is_a_fault_with_a_name() {
    let fault = |shards, rate| {
        let spec = LimitSpec::new("spread", LimitKind::TokenBucket, rate, MINUTE);
        Limit::try_from(spec.with(|spec| spec.shards = shards)).unwrap_err().fault
    };
    assert_eq!(fault(0, tokens(1)), LimitFault::ShardsZero);
    assert_eq!(fault(Limit::MAX_SHARDS + 1, tokens(1)), LimitFault::ShardsTooMany);
    assert_eq!(fault(u16::MAX, tokens(1)), LimitFault::ShardsTooMany);
    assert_eq!(fault(3, Tokens::from_micros(2)), LimitFault::ShardsWithoutRate);
    let stepped = LimitSpec::new("spread", LimitKind::SteppedBucket, tokens(1), MINUTE);
    let stepped = Limit::try_from(stepped.with(|spec| spec.shards = 2)).unwrap_err();
    assert_eq!(stepped.fault, LimitFault::ShardsOfFirstUse);
}

/// An absent row is a full one, whichever it is: the sum of all rows is granted, to the token, and no more.
#[tokio::test]
async fn rows_that_are_missing_are_full_ones() {
    let world = World::new().await;
    let mut conn = world.connect().await;
    let gate = patient(&world.pool).clock(|| second(0.0)).build();
    let limiter = limiter().at(second(0.0));
    for n in 2..=16_u16 {
        for limit in both(&Limit::token_bucket("missing", 10 * u64::from(n), EVER).shards(n)) {
            for kept in [1, 0b10, 0b101, u16::MAX << 1, !(1 << (n - 1))] {
                let sets = (0..n).map(|shard| if kept >> shard & 1 == 1 { 3 * ONE } else { 10 * ONE });
                let (values, sum) = (sets.clone().collect::<Vec<_>>(), sets.sum::<i64>());
                put(&mut conn, &limit, &values, second(0.0)).await;
                world.sql(&format!("delete from tollgate.{} where value = 0", table(&limit))).await;
                let mut tx = conn.begin().await.unwrap();
                assert_eq!(limiter.balance(&mut tx, limit.global()).await.unwrap().remaining.micros(), sum);
                let all = limit.global().cost(Tokens::from_micros(sum - 4 * ONE));
                assert!(limiter.consume(&mut tx, all).await.unwrap().is_granted(), "{n}: {kept:b}");
                tx.commit().await.unwrap();
                for left in (0..4).rev() {
                    let grant = gate.consume(limit.global()).await.unwrap().granted().unwrap();
                    assert_eq!(grant.remaining, whole(left));
                }
                assert!(!gate.consume(limit.global()).await.unwrap().is_granted());
                assert_eq!(shards(&mut conn, &limit).await.iter().map(|(_, value)| value).sum::<i64>(), 0);
            }
        }
    }
}

/// One row is ahead, because the clock was: all rows are read as of its instant, nothing comes back until then, and a
/// reset mends it.
#[tokio::test]
async fn a_shard_from_the_future_is_followed_and_mended_by_reset() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    for limit in both(&Limit::token_bucket("ahead", 12, MINUTE).shards(4)) {
        put(&mut teller.tx, &limit, &[0, 0, 0, ONE], second(86_400.0)).await;
        let sql = format!("update tollgate.{} set ts = $1 where name = 'ahead' and shard <> 3", table(&limit));
        let query = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(second(86_380.0));
        query.execute(&mut *teller.tx).await.unwrap();
        let balance = teller.balance(0.0, limit.global()).await;
        // Three times a share of three a minute, for twenty seconds.
        assert_eq!((balance.ahead(), balance.remaining), (DAY, whole(4)));
        let denied = teller.consume(0.0, limit.global().cost(5)).await.denied().unwrap();
        assert_eq!(denied.decided_at, second(86_400.0), "time does not go back");
        assert_eq!(denied.retry_at, Some(second(86_405.0)), "one more at twelve a minute");
        assert_eq!(left(teller.consume(0.0, limit.global().cost(4)).await), Tokens::ZERO);
        assert_eq!(teller.balance(3_600.0, limit.global()).await.remaining, Tokens::ZERO, "nothing refills meanwhile");
        assert_eq!(teller.reset(0.0, limit.global()).await, tokens(12));
        let mended = teller.balance(0.0, limit.global()).await;
        assert_eq!((mended.ahead(), mended.is_full()), (std::time::Duration::ZERO, true));
        left(teller.consume(0.0, limit.global().cost(12)).await);
        assert_eq!(teller.balance(60.0, limit.global()).await.remaining, tokens(12), "and time goes on");
    }
}

/// One bad row among good ones spoils every verb, and none of them ends in anything but an error with a name.
#[tokio::test]
async fn a_shard_with_an_infinite_instant_is_corrupt_and_one_with_any_value_is_answered() {
    let world = World::new().await;
    world.sql("alter table tollgate.durable drop constraint durable_row").await;
    let mut conn = world.connect().await;
    let limit = Limit::token_bucket("bad", 9, MINUTE).max_reserved(9).shards(3);
    let gate = patient(&world.pool).build();
    let at = limiter().at(second(0.0));
    for (value, ts) in [
        (i64::MIN, "2023-01-01"),
        (i64::MAX, "2023-01-01"),
        (-1, "294000-01-01"),
        (0, "4713-11-24 BC"),
        (0, "infinity"),
        (0, "-infinity"),
    ] {
        let is_corrupt = ts.contains("infinity");
        for bad in 0..3 {
            for verb in 0..9 {
                put(&mut conn, &limit, &[ONE; 3], second(0.0)).await;
                let sql = format!("update tollgate.durable set value = {value}, ts = '{ts}' where shard = {bad}");
                world.sql(&sql).await;
                let mut tx = conn.begin().await.unwrap();
                let ask = || limit.global();
                let answer = match verb {
                    0 => at.consume(&mut tx, ask()).await.map(drop),
                    1 => at.clone().lock_timeout(SECOND).consume(&mut tx, ask().cost(2)).await.map(drop),
                    2 => at.reserve(&mut tx, ask().cost(9)).await.map(drop),
                    3 => at.check(&mut tx, ask()).await.map(drop),
                    4 => at.balance(&mut tx, ask()).await.map(drop),
                    5 => at.credit(&mut tx, ask()).await.map(drop),
                    6 => at.debit(&mut tx, ask()).await.map(drop),
                    7 => gate.consume(ask()).await.map(drop),
                    _ => gate.balance(ask()).await.map(drop),
                };
                let is_named = match &answer {
                    Ok(()) => !is_corrupt,
                    Err(Error::CorruptRow { limit, .. }) => is_corrupt && limit == "bad",
                    Err(error) => {
                        matches!(error, Error::DoesNotFit { source: FitError::DebtTooDeep, .. }) && value == i64::MIN
                    }
                };
                assert!(is_named, "{value} {ts}, verb {verb}, row {bad}: {answer:?}");
            }
        }
    }
}
