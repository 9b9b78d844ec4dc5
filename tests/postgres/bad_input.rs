//! For any input of callers, and for any rows written by hand: an answer or an error with a name, never a panic and
//! never a token too many.

use chrono::{DateTime, Utc};
use proptest::prelude::{any, prop};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use sqlx::{Executor, PgTransaction};
use tollgate::{
    BegunByHand, CallError, DAY, Error, FitError, Limit, LimitKind, LimitSpec, Limiter, MINUTE, Receipt, Request,
    SECOND, Storage, Tokens,
};

use crate::teller::{Teller, both, left, run, tokens, wait};
use crate::transactions::terminate;
use crate::world::{ON_CALL, World, second};

const LIMITER: Limiter = Limiter::new();

/// Every kind of refill, in either table.
fn kinds() -> impl Iterator<Item = Limit> {
    [
        Limit::token_bucket("drips", 10, MINUTE),
        Limit::stepped_bucket("steps", 10, MINUTE),
        Limit::fixed_window("spread", 10, MINUTE),
        Limit::fixed_window("aligned", 10, MINUTE).start(7 * SECOND),
    ]
    .into_iter()
    .flat_map(|limit| both(&limit))
    .chain([Limit::token_bucket("owes", 10, MINUTE).unbounded_reservations()])
}

/// Texts that have been trouble somewhere.
fn texts() -> Vec<String> {
    let picked = [
        "é",
        "e\u{301}",
        "Å",
        "A\u{30a}",
        "ﬁ",
        "fi",
        "İ",
        "i\u{307}",
        "ß",
        "ss",
        "שלום",
        "\u{202e}abc",
        "\u{200f}",
        "\u{200b}",
        "\u{feff}",
        "🚦",
        "👩\u{200d}👩\u{200d}👧",
        "\u{10ffff}",
        "\u{ffff}",
        "\u{fffd}",
        "\u{1}",
        "\u{7f}",
        "\u{85}",
        "\n",
        "\r\n",
        "\t",
        " ",
        "  ",
        "a ",
        " a",
        "a",
        "A",
        "'",
        "''",
        "\"",
        "\\",
        "\\\\",
        "|",
        "||",
        "\\|",
        "a|b",
        "a\\|b",
        "%",
        "_",
        "$1",
        "{}",
        "{a,b}",
        "NULL",
        "null",
        "\\N",
        "--",
        "/*",
        ";",
        "'; drop table tollgate.ephemeral; --",
        "0",
        "00",
        "-0",
        "1e3",
        "∅",
        "ＡＢＣ",
        "ΑΒΓ",
        "АВС",
    ];
    let mut runner = TestRunner::deterministic();
    let any = prop::collection::vec(any::<char>().prop_filter("NUL", |c| *c != '\0'), 1..40);
    let random = (0..200).map(|_| any.new_tree(&mut runner).unwrap().current().into_iter().collect());
    let mut texts: Vec<String> = picked.map(str::to_owned).into_iter().chain(random).collect();
    texts.extend([("ü".repeat(127)), ("東".repeat(85)), ("🚦".repeat(63))]);
    texts.retain(|text| text.len() <= 255);
    texts.sort();
    texts.dedup();
    texts
}

#[tokio::test]
async fn any_text_is_a_key_of_its_own() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    for limit in both(&Limit::token_bucket("unicode", 1_000, MINUTE)) {
        let limiter = LIMITER.at(second(0.0));
        let texts = texts();
        // One by one, each with a cost of its own, and all in one statement.
        for (cost, text) in (1_u32..).zip(&texts) {
            assert_eq!(
                left(teller.consume(0.0, limit.key(text).cost(cost)).await),
                Tokens::new(1_000 - cost),
                "{text:?}"
            );
        }
        let grant = limiter.consume(&mut teller.tx, texts.iter().map(|text| limit.key(text))).await.unwrap();
        let grant = grant.granted().unwrap();
        assert_eq!(grant.receipt.charges.len(), texts.len());
        let stored = teller.rows().await.into_iter().filter(|row| row.storage == limit.spec().storage);
        let mut stored: Vec<(String, Tokens)> = stored.map(|row| (row.key, row.value)).collect();
        let mut expected: Vec<(String, Tokens)> = (1_u32..)
            .zip(&grant.receipt.charges)
            .map(|(cost, charge)| (charge.key.as_str().to_owned(), used(cost + 1)))
            .collect();
        stored.sort();
        expected.sort();
        assert_eq!(stored, expected);
        for (cost, text) in (1_u32..).zip(&texts) {
            assert_eq!(teller.balance(0.0, limit.key(text)).await.remaining, Tokens::new(999 - cost), "{text:?}");
        }
    }
}

#[tokio::test]
async fn the_longest_keys_are_stored_whole() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    for limit in both(&Limit::token_bucket("long", 10, MINUTE)) {
        for (unit, count) in [("x", 512), ("ü", 256), ("🚦", 128), ("|", 256), ("\\", 256)] {
            let key = unit.repeat(count);
            left(teller.consume(0.0, limit.key(&key)).await);
            assert_eq!(left(teller.consume(0.0, limit.key(&key)).await), tokens(8));
            let error = LIMITER.consume(&mut teller.tx, limit.key(key + "x")).await.unwrap_err();
            assert!(matches!(error, Error::Key { .. }), "{error:?}");
        }
        let stored = teller.rows().await;
        assert!(stored.iter().all(|row| row.key.len() == 512 && row.value == tokens(-2)), "{stored:?}");
    }
}

#[tokio::test]
async fn keys_of_several_components_are_not_the_key_of_one() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    for limit in both(&Limit::token_bucket("several", 10, MINUTE)) {
        let asked = [
            limit.key(("a", "b")),
            limit.key("a|b"),
            limit.key("a\\|b"),
            limit.key(("a\\", "b")),
            limit.key(("a", "b", "")),
        ];
        for request in asked {
            assert_eq!(left(teller.consume(0.0, request).await), tokens(9));
        }
    }
}

#[tokio::test]
async fn any_text_is_a_limit_of_its_own() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    for storage in [Storage::Ephemeral, Storage::Durable] {
        let named = |name: &String| {
            let mut spec = LimitSpec::new(name, LimitKind::TokenBucket, tokens(1_000), MINUTE);
            spec.storage = storage;
            Limit::try_from(spec).unwrap()
        };
        let texts = texts();
        for (cost, text) in (1_u32..).zip(&texts) {
            left(teller.consume(0.0, named(text).key("k").cost(cost)).await);
        }
        let stored: Vec<_> = teller.rows().await.into_iter().filter(|row| row.storage == storage).collect();
        let expected: Vec<_> = (1_u32..).zip(&texts).map(|(cost, text)| (text, used(cost))).collect();
        assert_eq!(stored.iter().map(|row| (&row.name, row.value)).collect::<Vec<_>>(), expected, "sorted alike, too");
    }
}

#[tokio::test]
async fn bad_input_is_found_before_any_sql() {
    let world = World::new().await;
    let limit = Limit::token_bucket("ten", 10, MINUTE);
    let mut teller = Teller::of(&world).await;
    let receipt = Receipt::from(teller.consume(0.0, limit.key(1)).await.granted().unwrap());
    let mut mixed = receipt.clone();
    mixed.charges.extend(teller.consume(0.0, limit.key(2).cost(2)).await.granted().unwrap().receipt.charges);

    let mut empty = receipt.clone();
    empty.charges.clear();

    // Anything sent over this connection would be another error.
    let mut dead = world.connect().await;
    run(&mut dead, "begin").await;
    terminate(&world, &mut dead).await;
    let tx = &mut BegunByHand(&mut dead);
    let other = Limit::token_bucket("ten", 11, MINUTE);
    for limiter in [LIMITER, LIMITER.lock_timeout(SECOND), LIMITER.unnamed_statements()] {
        let errors = [
            limiter.consume(tx, limit.key("")).await.unwrap_err(),
            limiter.reserve(tx, limit.key("a\0")).await.unwrap_err(),
            limiter.check(tx.0, limit.key("x".repeat(513))).await.unwrap_err(),
            limiter.balance(tx.0, limit.key("")).await.unwrap_err(),
            limiter.reset(tx, limit.key("")).await.unwrap_err(),
            limiter.credit(tx, limit.key(1).cost(f64::NAN)).await.unwrap_err(),
            limiter.debit(tx, limit.key(1).cost(-1)).await.unwrap_err(),
            limiter.consume(tx, limit.key(1).cost(u64::MAX)).await.unwrap_err(),
            limiter.consume(tx, limit.key(1).cost(0.000_000_1)).await.unwrap_err(),
            limiter.consume(tx, limit.key(1).cost(tokens(-1))).await.unwrap_err(),
            limiter.consume(tx, limit.key(1).cost(11)).await.unwrap_err(),
            limiter.reserve(tx, limit.key(1).cost(11)).await.unwrap_err(),
            limiter.check(tx.0, limit.key(1).cost(11)).await.unwrap_err(),
            limiter.consume(tx, [limit.key(1).cost(6), limit.key(2), limit.key(1).cost(5)]).await.unwrap_err(),
            limiter.consume(tx, [limit.key(1), other.key(1)]).await.unwrap_err(),
            limiter.consume(tx, []).await.unwrap_err(),
            limiter.reserve(tx, Vec::<Request>::new()).await.unwrap_err(),
            limiter.settle(tx, receipt.clone(), f64::INFINITY).await.unwrap_err(),
            limiter.settle(tx, mixed.clone(), 1).await.unwrap_err(),
            limiter.settle(tx, empty.clone(), 1).await.unwrap_err(),
        ];
        for (nth, error) in errors.iter().enumerate() {
            let is_bad_input = matches!(
                error,
                Error::Key { .. }
                    | Error::CostExceedsCapacity { .. }
                    | Error::Call {
                        source: CallError::Cost(_)
                            | CallError::ConflictingDefinitions
                            | CallError::NothingAsked
                            | CallError::MixedCosts,
                        ..
                    }
            );
            assert!(is_bad_input && !error.is_retryable(), "{nth}: {error:?}");
        }
        let sent = limiter.consume(tx, limit.key(1)).await.unwrap_err();
        assert!(matches!(sent, Error::Database { .. }), "{sent:?}");
    }
}

#[tokio::test]
async fn extreme_limits_are_decided_like_any_other() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    let micro = std::time::Duration::from_micros(1);
    let stories = [
        Limit::token_bucket("most", 1, micro).rate_and_capacity(Tokens::MAX, Tokens::MAX),
        Limit::token_bucket("most_slowly", 1, Limit::MAX_PERIOD).rate_and_capacity(Tokens::MAX, Tokens::MAX),
        Limit::token_bucket("least", 1, Limit::MAX_PERIOD)
            .rate_and_capacity(Tokens::from_micros(1), Tokens::from_micros(1)),
        Limit::stepped_bucket("steps", 1, micro).rate_and_capacity(Tokens::MAX, Tokens::MAX),
        Limit::stepped_bucket("slow_steps", 1, Limit::MAX_PERIOD)
            .rate_and_capacity(Tokens::from_micros(1), Tokens::MAX),
        Limit::fixed_window("windows", 1, micro).rate_and_capacity(Tokens::MAX, Tokens::MAX),
        Limit::fixed_window("long_windows", 1, Limit::MAX_PERIOD)
            .rate_and_capacity(Tokens::from_micros(1), Tokens::MAX),
    ];
    for limit in stories.iter().flat_map(both) {
        let all = limit.spec().capacity.unwrap();
        let ask = || limit.global().cost(all);
        assert_eq!(left(teller.consume(0.0, ask()).await), Tokens::ZERO, "{}", limit.name());
        let denied = teller.consume(0.0, ask()).await.denied().unwrap();
        let retry_at = denied.retry_at.unwrap_or(DateTime::<Utc>::MAX_UTC);
        assert!(retry_at > second(0.0), "{denied:?}");
        // At that instant, not a microsecond earlier, unless it lies beyond the end of time.
        if retry_at < DateTime::<Utc>::MAX_UTC - 2 * micro {
            let early = LIMITER.at(retry_at - micro).consume(&mut teller.tx, ask()).await.unwrap();
            assert!(!early.is_granted(), "{denied:?}");
            let due = LIMITER.at(retry_at).consume(&mut teller.tx, ask()).await.unwrap();
            assert!(due.is_granted(), "{denied:?} {due:?}");
        }
        assert_eq!(teller.credit(0.0, ask()).await, all);
        let _ = teller.debit(0.0, ask()).await;
        // Twice the largest amount does not fit into a row.
        let twice = LIMITER.at(second(0.0)).debit(&mut teller.tx, ask()).await;
        assert!(
            matches!(twice, Err(Error::DoesNotFit { source: FitError::DebtTooDeep, .. })) == (all == Tokens::MAX),
            "{twice:?}"
        );
        assert_eq!(teller.reset(0.0, ask()).await, all);
    }
    let deep = Limit::token_bucket("deep", 1, Limit::MAX_PERIOD).unbounded_reservations();
    for _ in 0..1_000_000 {
        match LIMITER.at(second(0.0)).reserve(&mut teller.tx, deep.global().cost(9_000_000_000_000_u64)).await {
            Ok(booked) => assert!(wait(booked) > 365 * DAY),
            Err(error) => {
                assert!(matches!(error, Error::DoesNotFit { source: FitError::DebtTooDeep, .. }), "{error:?}");
                break;
            }
        }
    }
    let (debt, _) = teller.row(&deep, "").await.unwrap();
    assert!(debt < tokens(-1_000), "{debt}");
    let _ = teller.debit(0.0, deep.key("debit").cost(Tokens::MAX)).await;
    let error = LIMITER.debit(&mut teller.tx, deep.key("debit").cost(Tokens::MAX)).await.unwrap_err();
    assert!(matches!(error, Error::DoesNotFit { source: FitError::DebtTooDeep, .. }), "{error:?}");
}

#[tokio::test]
async fn the_far_ends_of_time_are_instants_like_any_other() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    let instants =
        ["-4713-11-24T00:00:00Z", "-0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z", "+262142-01-01T00:00:00Z"];
    for limit in kinds() {
        for at in instants.map(|at| at.parse::<DateTime<Utc>>().unwrap()).into_iter().chain([DateTime::<Utc>::MAX_UTC])
        {
            let limiter = LIMITER.at(at);
            let ask = || limit.key(at.timestamp()).cost(10);
            let grant = limiter.consume(&mut teller.tx, ask()).await.unwrap().granted().unwrap();
            assert_eq!(grant.remaining, Tokens::ZERO, "{} at {at}", limit.name());
            let denied = limiter.consume(&mut teller.tx, ask()).await.unwrap().denied().unwrap();
            assert!(denied.retry_at.is_none_or(|retry_at| retry_at >= denied.decided_at));
            assert_eq!(limiter.balance(&mut teller.tx, ask()).await.unwrap().remaining, Tokens::ZERO);
            limiter.settle(&mut teller.tx, grant, 0).await.unwrap();
            assert_eq!(limiter.balance(&mut teller.tx, ask()).await.unwrap().remaining, tokens(10));
        }
    }
}

/// The value of a row of which so many tokens are used.
fn used(whole: u32) -> Tokens {
    Tokens::from_micros(-1_000_000 * i64::from(whole))
}

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
                        Ok(()) => true,
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
            LIMITER.consume(&mut teller.tx, asks()).await.unwrap().granted().unwrap();
            // One verb reads the rows first, and one locks them without a look.
            let booked = LIMITER.reserve(&mut teller.tx, asks()).await.unwrap().granted().unwrap();
            run(&mut teller.tx, &format!("update tollgate.{table} set {fault} where name = 'b'")).await;
            let taken = LIMITER.consume(&mut teller.tx, asks()).await.map(drop);
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
async fn the_tables_themselves_refuse_what_the_limiter_never_writes() {
    let world = World::new().await;
    let long = "x".repeat(513);
    for table in ["ephemeral", "durable"] {
        for (key, shard, ts, full_at) in [
            ("k", -1, "2023-01-01", "2023-01-01"),
            (&*long, 0, "2023-01-01", "2023-01-01"),
            ("k", 0, "infinity", "2023-01-01"),
            ("k", 0, "-infinity", "2023-01-01"),
            ("k", 0, "262143-01-01 00:00+00", "2023-01-01"),
            ("k", 0, "2023-01-01", "infinity"),
            ("k", 0, "2023-01-01", "-infinity"),
            ("k", 0, "2023-01-01", "262143-01-01 00:00+00"),
        ] {
            let sql = format!("insert into tollgate.{table} values (0, 'n', '{key}', {shard}, 1, '{ts}', '{full_at}')");
            let error = world.pool.execute(sqlx::raw_sql(sqlx::AssertSqlSafe(sql))).await.unwrap_err();
            assert_eq!(error.as_database_error().unwrap().code().unwrap(), "23514", "{error}");
        }
    }
    assert_eq!(world.rows().await, 0);
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
