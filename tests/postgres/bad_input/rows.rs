//! Rows that were written by hand.

use sqlx::PgTransaction;
use tollgate::{Call, DAY, Error, FitError, Limit, Limiter, Receipt, SECOND};

use super::{LIMITER, kinds};
use crate::teller::{Teller, both, left, run, tokens};
use crate::world::{ON_CALL, World, second};

/// The outcome of every verb on a row: an answer, whose numbers are checked, or an error.
async fn outcomes(
    limiter: Limiter,
    tx: &mut PgTransaction<'_>,
    limit: &Limit,
    receipt: &Receipt,
) -> Vec<Result<(), Error>> {
    let ask = || limit.key("k");
    let within = |balance: tollgate::Balance| {
        assert!(balance.remaining <= balance.capacity && balance.capacity == tokens(10), "{balance:?}");
    };
    let granted = |decision: tollgate::Decision| {
        if let Ok(grant) = decision.granted() {
            assert!(grant.remaining <= tokens(9), "{grant:?}");
        }
    };
    let booked =
        |decision: tollgate::Decision<tollgate::Reservation>| drop(decision.granted().map(|booked| booked.wait()));
    // Each on the row as it was.
    let mut outcomes = Vec::new();
    for verb in 0..11 {
        run(tx, "savepoint before").await;
        outcomes.push(match verb {
            0 => limiter.consume(tx, ask()).await.map(granted),
            1 => limiter.consume(tx, [ask(), limit.key("another")]).await.map(granted),
            2 => limiter.reserve(tx, ask().cost(10)).await.map(booked),
            3 => limiter.check(tx, ask()).await.map(granted),
            4 => limiter.balance(tx, ask()).await.map(within),
            5 => limiter.credit(tx, ask()).await.map(within),
            6 => limiter.debit(tx, ask()).await.map(within),
            7 => limiter.settle(tx, receipt.clone(), 0).await.map(drop),
            8 => limiter.settle(tx, receipt.clone(), 9).await.map(drop),
            9 => limiter.cancel(tx, receipt.clone()).await.map(drop),
            _ => limiter.reset(tx, ask()).await.map(|balance| assert_eq!(balance.remaining, tokens(10))),
        });
        run(tx, "rollback to savepoint before").await;
    }
    outcomes
}

#[tokio::test]
async fn a_row_with_an_impossible_value_gives_an_answer_or_an_error_with_a_name() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    let years = [
        "4713-11-24 00:00:00+00 BC",
        "4700-01-01 00:00:00+00 BC",
        "2023-11-14 22:13:20+00",
        "9999-12-31 00:00:00+00",
        "262142-12-31 23:59:59.999999+00",
    ];
    for limit in kinds() {
        let receipt = Receipt::from(teller.consume(0.0, limit.key("k")).await.granted().unwrap());
        for year in years {
            for micros in [i64::MIN, i64::MIN + 1, -1, 10_000_001, i64::MAX] {
                let (table, name) = (limit.storage, limit.name());
                let sql = format!("update tollgate.{table} set value = {micros}, ts = '{year}' where name = '{name}'");
                run(&mut teller.tx, &sql).await;
                for (verb, outcome) in
                    outcomes(LIMITER.at(second(0.0)), &mut teller.tx, &limit, &receipt).await.iter().enumerate()
                {
                    let is_named = match outcome {
                        // The row may stand at an instant at which the charge is ready.
                        Ok(()) | Err(Error::TooLateToCancel { .. }) => true,
                        // Only a row at the very bottom cannot be lowered, and only one at the very top cannot be
                        // raised.
                        Err(Error::DoesNotFit { source: FitError::DebtTooDeep, .. }) => micros <= i64::MIN + 1,
                        Err(Error::DoesNotFit { source: FitError::BalanceTooLarge, .. }) => micros == i64::MAX,
                        Err(_) => false,
                    };
                    assert!(is_named, "{} verb {verb} of {micros} in {year}: {outcome:?}", limit.name());
                }
            }
        }
    }
}

#[tokio::test]
async fn a_row_with_an_infinite_instant_is_corrupt_for_every_verb() {
    let world = World::new().await;
    world.sql("alter table tollgate.ephemeral drop constraint ephemeral_row").await;
    world.sql("alter table tollgate.durable drop constraint durable_row").await;
    let mut teller = Teller::of(&world).await;
    for limit in kinds() {
        let receipt = Receipt::from(teller.consume(0.0, limit.key("k")).await.granted().unwrap());
        for (end, micros) in [("infinity", 0), ("-infinity", 0), ("infinity", 10_000_000), ("-infinity", -10_000_000)] {
            let (table, name) = (limit.storage, limit.name());
            let sql = format!("update tollgate.{table} set value = {micros}, ts = '{end}' where name = '{name}'");
            run(&mut teller.tx, &sql).await;
            for limiter in [LIMITER.at(second(0.0)), LIMITER.lock_timeout(SECOND)] {
                for (verb, outcome) in outcomes(limiter, &mut teller.tx, &limit, &receipt).await.into_iter().enumerate()
                {
                    let Err(error) = outcome else { panic!("{} verb {verb} of {end}", limit.name()) };
                    assert!(
                        matches!(&error, Error::CorruptRow { limit: name, .. } if name == limit.name()),
                        "{error:?}"
                    );
                    assert!(!error.is_retryable());
                }
            }
        }
    }
}

/// Not the first in lock order.
#[tokio::test]
async fn of_several_limits_the_one_whose_row_is_corrupt_is_named() {
    let world = World::new().await;
    world.sql("alter table tollgate.ephemeral drop constraint ephemeral_row").await;
    world.sql("alter table tollgate.durable drop constraint durable_row").await;
    for corrupt in both(&Limit::token_bucket("b", 10, DAY)) {
        let table = corrupt.storage;
        let asks = || {
            let beside = ["a", "c"].map(|name| Limit::token_bucket(name, 10, DAY).key("k"));
            let ephemeral = ["a-", "c-"].map(|name| Limit::token_bucket(name, 10, DAY).ephemeral().key("k"));
            beside.into_iter().chain(ephemeral).chain([corrupt.key("k")])
        };
        for fault in ["ts = 'infinity'", "list = '{7}'"] {
            let mut teller = Teller::of(&world).await;
            LIMITER.consume(&mut teller.tx, asks().collect::<Call>()).await.unwrap().granted().unwrap();
            // One verb reads the rows first, and one locks them without a look.
            let booked = LIMITER.reserve(&mut teller.tx, asks().collect::<Call>()).await.unwrap().granted().unwrap();
            run(&mut teller.tx, &format!("update tollgate.{table} set {fault} where name = 'b'")).await;
            let taken = LIMITER.consume(&mut teller.tx, asks().collect::<Call>()).await.map(drop);
            let settled = LIMITER.settle(&mut teller.tx, booked, 2).await.map(drop);
            for answer in [taken, settled] {
                assert!(matches!(&answer, Err(Error::CorruptRow { limit, .. }) if limit == "b"), "{fault}: {answer:?}");
            }
        }
    }
}

#[tokio::test]
async fn a_row_from_the_future_is_shown_as_such_followed_and_mended_by_reset() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    for limit in kinds() {
        teller.put(&limit, "k", tokens(3), second(86_400.0)).await;
        let balance = teller.balance(0.0, limit.key("k")).await;
        assert_eq!((balance.ahead(), balance.observed_at, balance.remaining), (DAY, second(0.0), tokens(3)));
        let grant = teller.consume(0.0, limit.key("k")).await.granted().unwrap();
        assert_eq!((grant.remaining, grant.decided_at), (tokens(2), second(86_400.0)));
        assert_eq!(teller.balance(3_600.0, limit.key("k")).await.remaining, tokens(2), "nothing refills meanwhile");
        assert_eq!(teller.reset(0.0, limit.key("k")).await, tokens(10));
        let mended = teller.balance(0.0, limit.key("k")).await;
        assert_eq!((mended.ahead(), mended.is_full()), (std::time::Duration::ZERO, true));
        left(teller.consume(0.0, limit.key("k").cost(10)).await);
        assert_eq!(teller.balance(60.0, limit.key("k")).await.remaining, tokens(10), "and time goes on");
    }
}

#[tokio::test]
async fn a_row_that_a_hand_has_written_hides_no_other_from_the_view() {
    let world = World::new().await;
    let (first, last) = ("4714-11-24 00:00+00 BC", "262142-12-31 23:59:59.999999+00");
    let rows = [
        (i64::MIN, first, last, "null"),
        (i64::MAX, last, first, "'{}'"),
        (1, first, first, "'{-9223372036854775808}'"),
        (1, last, last, "'{9223372036854775807,9223372036854775807,1,9223372036854775807}'"),
        (1, first, first, "'{null,null}'"),
        (1, first, first, "'{{1,2},{3,4}}'"),
        (1, first, first, "'[-1:0]={1,2}'"),
    ];
    for table in ["ephemeral", "durable"] {
        for (key, (value, ts, full_at, holds)) in rows.iter().enumerate() {
            let row = format!("0, 'n', '{key}', 0, {value}, '{ts}', '{full_at}', {holds}");
            world.sql(&format!("insert into tollgate.{table} values ({row})")).await;
        }
    }
    let sql = "select b.used::text, b.balance::text from tollgate.balances b where b::text is not null order by key";
    let shown: Vec<(String, Option<String>)> =
        sqlx::query_as(sql).fetch_all(&mut world.connect_as(ON_CALL).await).await.unwrap();
    assert_eq!(shown.len(), 2 * rows.len());
    let text = |used: &str| (used.to_owned(), None);
    assert_eq!(shown[0], text("9223372036854.775808"), "to the last digit");
    assert_eq!(shown[2], text("0.000000"));
}
