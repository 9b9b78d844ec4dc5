//! The answers of the functions, and the state that they leave untouched.

use chrono::{DateTime, Utc};
use fastrand::Rng;
use serde_json::Value;
use sqlx::{AssertSqlSafe, PgConnection};
use tollgate::{Key, Limit, Limiter, MINUTE, SECOND, Tokens};

use super::{define, fails, owner};
use crate::gate::stage::EVER;
use crate::teller::run;
use crate::world::World;

pub(super) async fn one<T>(conn: &mut PgConnection, sql: &str) -> T
where
    T: for<'r> sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres> + Send + Unpin,
{
    sqlx::query_scalar(AssertSqlSafe(sql.to_owned()))
        .fetch_one(conn)
        .await
        .unwrap_or_else(|error| panic!("{error}: {sql}"))
}

/// Limits of each kind, of those that SQL decides and of those that it does not.
pub(super) async fn defined(conn: &mut PgConnection) {
    for limit in [
        Limit::token_bucket("ten", 10, EVER),
        Limit::token_bucket("owing", 10, EVER).max_reserved(5),
        Limit::fixed_window("window", 10, EVER),
        Limit::wallet("money").overdraft(5),
        Limit::sliding_window("sliding", 10, MINUTE),
        Limit::concurrency("running", 10, MINUTE),
        Limit::token_bucket("sharded", 10, MINUTE).shards(2),
    ] {
        define(conn, &limit).await;
    }
}

#[tokio::test]
async fn a_refusal_is_a_row_and_granted_makes_it_an_error() {
    let world = World::new().await;
    let mut conn = owner(&world).await;
    run(&mut conn, "select tollgate.define('ten', 'token_bucket', 10, '10 minutes')").await;
    run(&mut conn, "begin; select tollgate.granted(tollgate.consume('ten', 'ada', 8.5))").await;
    let told: (bool, String, bool, String) = sqlx::query_as(
        "select granted, remaining::text, retry_at = decided_at + retry_after
                and retry_after_seconds = extract(epoch from retry_after)::float8, refused_by
           from tollgate.consume('ten', 'ada', 2)",
    )
    .fetch_one(&mut conn)
    .await
    .unwrap();
    assert!(!told.0);
    assert!(told.1.starts_with("1.5"), "{told:?}");
    assert!(told.2);
    assert_eq!(told.3, "ten");
    let error = sqlx::raw_sql("select tollgate.granted(tollgate.consume('ten', 'ada', 2))").execute(&mut conn).await;
    let error = error.unwrap_err();
    let error = error.as_database_error().unwrap().downcast_ref::<sqlx::postgres::PgDatabaseError>();
    assert_eq!(error.code(), "PT429");
    assert!(error.message().starts_with("limit 'ten' exhausted (retry in 2"), "{error}");
    let detail: Value = serde_json::from_str(error.detail().unwrap()).unwrap();
    assert_eq!(detail["limit"], "ten");
    assert!(detail["retry_at"].is_string() && detail["remaining"].is_number(), "{detail}");
}

#[tokio::test]
async fn a_refusal_that_no_wait_ends_says_so() {
    let world = World::new().await;
    let mut conn = owner(&world).await;
    defined(&mut conn).await;
    let error = sqlx::raw_sql("select tollgate.granted(tollgate.consume('money', 'k', 6))").execute(&mut conn).await;
    let error = error.unwrap_err().into_database_error().unwrap();
    assert_eq!(error.message(), "limit 'money' exhausted (waiting does not help)");
}

/// Also of the deepest debt that a row can hold, and under an override.
#[tokio::test]
async fn a_balance_is_told_however_deep_the_debt_is() {
    let world = World::new().await;
    let mut conn = owner(&world).await;
    let owing = Limit::token_bucket("owing", 10, EVER).unbounded_reservations();
    define(&mut conn, &owing).await;
    let debit = "select tollgate.debit('owing', 'k', 9223372036854.775807), tollgate.debit('owing', 'k', 0.000001)";
    run(&mut conn, debit).await;
    let balance = "select tollgate.balance('owing', 'k')::text";
    assert_eq!(one::<String>(&mut conn, balance).await, "-9223372036844.775808");
    run(&mut conn, "select tollgate.set_override('owing', 'k', 'deny', reason => 'a test')").await;
    assert_eq!(one::<String>(&mut conn, balance).await, "-9223372036844.775808");
}

/// A refusal leaves no transaction id, and no lock that outlasts its statement.
#[tokio::test]
async fn a_refusal_and_a_look_write_nothing_and_lock_nothing() {
    let world = World::new().await;
    let mut conn = owner(&world).await;
    defined(&mut conn).await;
    run(&mut conn, "select tollgate.consume('ten', 'k', 8), tollgate.consume('window', 'k', 8)").await;
    let mut other = owner(&world).await;
    for sql in [
        "select granted from tollgate.consume('ten', 'k', 3)",
        "select granted from tollgate.consume('window', 'k', 3)",
        "select granted from tollgate.consume('money', 'k', 6)",
        "select granted from tollgate.consume_all(array[tollgate.request('owing', 'k'), \
         tollgate.request('ten', 'k', 3)])",
        "select not granted from tollgate.check('ten', 'k', 2)",
        "select not granted from tollgate.check('ten', 'new', 2)",
        "select not granted from tollgate.check_all(array[tollgate.request('ten', 'k', 2)])",
        "select not granted from tollgate.consume('ten', 'k', 0)",
        "select tollgate.balance('ten', 'k') > 3",
    ] {
        run(&mut conn, "begin").await;
        assert!(!one::<bool>(&mut conn, sql).await, "{sql}");
        assert!(one::<bool>(&mut conn, "select txid_current_if_assigned() is null").await, "{sql}");
        let rows = "select count(*) from (select from tollgate.durable for update nowait) r";
        assert_eq!(one::<i64>(&mut other, rows).await, 2, "{sql}");
        run(&mut conn, "rollback").await;
    }
    assert_eq!(world.rows().await, 2);
}

/// More than the capacity is for those to grant that reserve. A trigger does not.
#[tokio::test]
async fn who_does_not_reserve_takes_no_debt() {
    let world = World::new().await;
    let mut conn = owner(&world).await;
    defined(&mut conn).await;
    let several = "array[tollgate.request('owing', 'k', 12)]";
    for call in [
        "consume('owing', 'k', 12)",
        "consume_global('owing', 12)",
        "check('owing', 'k', 12)",
        &format!("consume_all({several})"),
        &format!("check_all({several})"),
    ] {
        assert_eq!(fails(&mut conn, &format!("select tollgate.{call}")).await, "TG004", "{call}");
    }
    for (call, left) in [("reserve('owing', 'k', 12)", "-2"), (&format!("reserve_all({several})"), "-2")] {
        let reserve = format!("select granted and ready_at > decided_at from tollgate.{call}");
        assert!(one::<bool>(&mut conn, &reserve).await, "{call}");
        let balance = "select tollgate.balance('owing', 'k')::int::text";
        assert_eq!(one::<String>(&mut conn, balance).await, left, "{call}");
        run(&mut conn, "select tollgate.reset('owing', 'k')").await;
    }
    for (table, trigger) in [
        ("one", "before insert on public.one for each row execute function tollgate.limit_rows"),
        (
            "many",
            "after insert on public.many referencing new table as inserted for each statement
               execute function tollgate.limit_inserts",
        ),
    ] {
        run(&mut conn, &format!("create table public.{table} (); create trigger limited {trigger}('owing')")).await;
        run(&mut conn, "truncate tollgate.durable; select tollgate.consume_global('owing', 10)").await;
        let insert = format!("insert into public.{table} default values");
        assert_eq!(fails(&mut conn, &insert).await, "PT429", "{table}");
    }
}

/// A row that was inserted only to be locked is deleted, and no other.
#[tokio::test]
async fn a_debit_of_nothing_leaves_no_row_and_the_others() {
    let world = World::new().await;
    let mut conn = owner(&world).await;
    for limit in [Limit::token_bucket("ten", 10, EVER), Limit::token_bucket("unlogged", 10, EVER).ephemeral()] {
        define(&mut conn, &limit).await;
        let name = limit.name();
        run(&mut conn, &format!("select tollgate.consume('{name}', 'k', 8), tollgate.debit('{name}', 'new', 0)")).await;
        assert!(one::<bool>(&mut conn, &format!("select tollgate.balance('{name}', 'k') < 3")).await, "{name}");
    }
    assert_eq!(world.rows().await, 2);
}

/// The transaction of the call may have begun long ago.
#[tokio::test]
async fn an_override_is_dated_when_it_is_set() {
    let world = World::new().await;
    let mut conn = owner(&world).await;
    defined(&mut conn).await;
    run(&mut conn, "begin").await;
    let before: DateTime<Utc> = one(&mut conn, "select clock_timestamp()").await;
    run(&mut conn, "select tollgate.set_override('ten', 'k', 'deny', reason => 'a test')").await;
    run(&mut conn, "select tollgate.slow_down('ten', 'k'), tollgate.pause('ten', 'k', lasting => '1 minute')").await;
    let dated = format!("select count(*) from tollgate.overrides where least(set_at, starts_at) > '{before}'");
    assert_eq!(one::<i64>(&mut conn, &dated).await, 3);
}

#[tokio::test]
async fn a_part_is_granted_where_it_will_do_and_what_must_stay_behind_stays() {
    let world = World::new().await;
    let mut conn = owner(&world).await;
    run(&mut conn, "select tollgate.define('ten', 'token_bucket', 10, '100 days')").await;
    for (call, told) in [
        ("check('ten', 'k', 25, up_to => 2)", "t 10"),
        ("consume('ten', 'k', 25, up_to => 2, leaving => 3)", "t 7"),
        ("consume('ten', 'k', 1, leaving => 3)", "f 0"),
        ("consume('ten', 'k', 25, up_to => 4)", "f 0"),
        ("consume('ten', 'k', 25, up_to => 2)", "t 3"),
        ("consume_global('ten', 25, up_to => 2, leaving => 4)", "t 6"),
        // Whole tokens, unless the part is none.
        ("consume('ten', 'halves', 2.5)", "t 2.5"),
        ("check('ten', 'halves', 25, up_to => 2)", "t 7"),
        ("check('ten', 'halves', 25, up_to => 0.5)", "t 7.5"),
        ("check('ten', 'halves', 25.5, up_to => 2)", "t 7.5"),
    ] {
        let sql = format!("select concat_ws(' ', granted, round(amount, 3)::float8) from tollgate.{call}");
        assert_eq!(one::<String>(&mut conn, &sql).await, told, "{call}");
    }
}

#[tokio::test]
async fn what_is_unlimited_may_cost_more_than_the_capacity() {
    let world = World::new().await;
    let mut conn = owner(&world).await;
    defined(&mut conn).await;
    run(&mut conn, "select tollgate.set_override('ten', 'k', 'unlimited', reason => 'a test')").await;
    for call in ["consume('ten', 'k', 11)", "consume_all(array[tollgate.request('ten', 'k', 11)])"] {
        run(&mut conn, &format!("select tollgate.granted(tollgate.{call})")).await;
    }
    assert_eq!(world.rows().await, 0);
}

/// A charge that was unlimited took nothing, so its settlement gives nothing back.
#[tokio::test]
async fn overrides_count_for_looks_and_settlements() {
    let world = World::new().await;
    let mut conn = owner(&world).await;
    defined(&mut conn).await;
    run(&mut conn, "select tollgate.consume('ten', 'vip', 5)").await;
    run(
        &mut conn,
        "select tollgate.set_override('ten', 'vip', 'unlimited', reason => 'a test'),
                tollgate.set_override('ten', 'ban', 'deny', reason => 'a test')",
    )
    .await;
    let settled = "select tollgate.settle('ten', 'vip', 3, 0, now()) = 3 and tollgate.balance('ten', 'vip') < 6";
    assert!(one::<bool>(&mut conn, settled).await);
    for of in ["check('ten', 'ban')", "check_all(array[tollgate.request('ten', 'ban')])"] {
        let denied =
            format!("select concat_ws(' ', granted, retry_at, amount::float8, remaining::float8) from tollgate.{of}");
        assert_eq!(one::<String>(&mut conn, &denied).await, "f 0 0", "{of}");
    }
    // Its own reservations count.
    let owing = "select tollgate.set_override('ten', 'owing', rate => 10, max_reserved => 5, reason => 'a test'),
                        tollgate.granted(tollgate.reserve('ten', 'owing', 14))";
    run(&mut conn, owing).await;
}

#[tokio::test]
async fn where_a_snapshot_is_too_old_the_transaction_is_to_be_repeated() {
    let world = World::new().await;
    let (mut conn, mut other) = (owner(&world).await, owner(&world).await);
    run(
        &mut conn,
        "select tollgate.define('ten', 'token_bucket', 10, '1 day'), tollgate.define('w', 'fixed_window', 10, '1 day')",
    )
    .await;
    run(&mut conn, "select tollgate.consume('ten', 'there'), tollgate.consume('w', 'there')").await;
    for (limit, key) in [("ten", "there"), ("ten", "new"), ("w", "there"), ("w", "new")] {
        for sql in [
            format!("select tollgate.consume('{limit}', '{key}')"),
            format!("select tollgate.consume_all(array[tollgate.request('{limit}', '{key}')])"),
            format!("select tollgate.debit('{limit}', '{key}', 1)"),
        ] {
            run(&mut conn, "begin isolation level repeatable read; select 1").await;
            run(&mut other, &format!("select tollgate.consume('{limit}', '{key}')")).await;
            assert_eq!(fails(&mut conn, &sql).await, "40001", "{sql}");
            run(&mut conn, "rollback").await;
            if key == "new" {
                run(&mut other, "delete from tollgate.durable where key = 'new'").await;
            }
        }
    }
}

#[tokio::test]
async fn keys_are_those_of_the_library() {
    let world = World::new().await;
    let mut conn = owner(&world).await;
    let mut dice = Rng::new();
    let mut parts = Vec::new();
    for _ in 0..20_000 {
        let part = |dice: &mut Rng| {
            (0..dice.usize(1..6)).map(|_| dice.choice(['|', '\\', 'a', 'é', ' ']).unwrap()).collect::<String>()
        };
        parts.push((part(&mut dice), part(&mut dice)));
    }
    let (ones, others): (Vec<_>, Vec<_>) = parts.iter().cloned().unzip();
    let sql = "select tollgate.key(a) || ' ' || tollgate.key(a, b)
        from unnest($1::text[], $2::text[]) with ordinality u (a, b, n) order by n";
    let keys: Vec<String> = sqlx::query_scalar(sql).bind(ones).bind(others).fetch_all(&mut conn).await.unwrap();
    for (key, (one, other)) in keys.into_iter().zip(parts) {
        let (alone, both) = (Key::new(&one).unwrap(), Key::new((&one, &other)).unwrap());
        assert_eq!(key, format!("{alone} {both}"));
    }
    assert!(one::<bool>(&mut conn, "select tollgate.key('a', null) is null and tollgate.key(null) is null").await);
}

#[tokio::test]
async fn a_credit_with_an_id_is_given_once_whoever_repeats_it() {
    let world = World::new().await;
    let mut conn = owner(&world).await;
    let money = Limit::wallet("money");
    define(&mut conn, &money).await;
    let credit = |amount: &str, id: &str| format!("select tollgate.credit('money', 'ada', {amount}, '{id}')::text");
    assert_eq!(one::<String>(&mut conn, &credit("5.5", "payment 1")).await, "5.500000");
    assert_eq!(one::<String>(&mut conn, &credit("5.5", "payment 1")).await, "5.500000");
    assert_eq!(fails(&mut conn, &credit("6", "payment 1")).await, "TG008");
    assert_eq!(fails(&mut conn, "select tollgate.debit('money', 'ada', 5.5, 'payment 1')").await, "TG008");
    // The library repeats the function's credit, and the functions repeat the library's calls.
    let mut tx = world.pool.begin().await.unwrap();
    let request = |cost: f64, id: &str| money.key("ada").cost(cost).once(id);
    let repeated = Limiter::new().credit(&mut tx, request(5.5, "payment 1")).await.unwrap();
    assert_eq!(repeated.remaining, Tokens::try_from(5.5).unwrap());
    Limiter::new().credit(&mut tx, request(2.0, "payment 2")).await.unwrap();
    Limiter::new().debit(&mut tx, request(1.0, "refund 1")).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(one::<String>(&mut conn, &credit("2", "payment 2")).await, "6.500000");
    assert_eq!(
        one::<String>(&mut conn, "select tollgate.debit('money', 'ada', 1, 'refund 1')::text").await,
        "6.500000"
    );
    // For a month, whoever was first.
    let days = "select array_agg(distinct kept_until - charged_at)::text from tollgate.calls";
    assert_eq!(one::<String>(&mut conn, days).await, "{\"31 days\"}");
    // Under no other limit and key.
    assert_eq!(
        one::<String>(&mut conn, "select tollgate.credit('money', 'bob', 5.5, 'payment 1')::text").await,
        "5.500000"
    );
}

#[tokio::test]
async fn a_charge_is_settled_and_a_window_gives_back_only_in_the_step_of_the_charge() {
    let world = World::new().await;
    let mut conn = owner(&world).await;
    for limit in [Limit::token_bucket("ten", 10, EVER).max_reserved(10), Limit::fixed_window("window", 10, SECOND)] {
        define(&mut conn, &limit).await;
    }
    run(&mut conn, "create temporary table charged as select d.* from tollgate.consume('ten', 'k', 6) d").await;
    let settle =
        "select (tollgate.settle('ten', 'k', 6, 2, decided_at)) || ' ' || tollgate.balance('ten', 'k') from charged";
    assert_eq!(one::<String>(&mut conn, settle).await, "2.000000 8.000000");
    run(&mut conn, "create temporary table booked as select d.* from tollgate.reserve('ten', 'k', 12) d").await;
    let cancel = "select (tollgate.cancel('ten', 'k', 12, decided_at, ready_at)) || ' ' || tollgate.balance('ten', 'k')
        from booked";
    assert_eq!(one::<String>(&mut conn, cancel).await, "0.000000 8.000000");
    let late = "select tollgate.cancel('ten', 'k', 6, decided_at, ready_at)::text from charged";
    assert_eq!(fails(&mut conn, late).await, "TG010");
    // Also where several overrides were live.
    for (effect, charged) in [("'numbers', 9", "0.000000"), ("'unlimited'", "1.000000")] {
        for label in ["a", "b"] {
            let set = format!("select tollgate.set_override('ten', 'k', {effect}, label => '{label}', reason => 'x')");
            run(&mut conn, &set).await;
        }
        let settled = "select tollgate.settle('ten', 'k', 1, 0, decided_at)::text from tollgate.consume('ten', 'k')";
        assert_eq!(one::<String>(&mut conn, settled).await, charged);
    }
    // A charge of an earlier window is settled at its own cost.
    run(&mut conn, "select tollgate.consume('window', 'k', 6)").await;
    let earlier = "select tollgate.settle('window', 'k', 6, 0, now() - interval '1 day')::text";
    assert_eq!(one::<String>(&mut conn, earlier).await, "6.000000");
}
