//! Wrong questions: errors of the functions' own class, each with its remedy, that charge nothing.

use tollgate::Limit;

use super::asked::defined;
use super::{define, fails, owner};
use crate::gate::stage::EVER;
use crate::teller::run;
use crate::world::World;

#[tokio::test]
async fn a_wrong_limit_key_or_cost_is_an_error_of_our_class_and_charges_nothing() {
    let world = World::new().await;
    let mut conn = owner(&world).await;
    defined(&mut conn).await;
    let long = format!("'{}'", "x".repeat(513));
    let of_limits = [
        ("'unknown'", "TG001"),
        ("null", "TG002"),
        ("''", "TG002"),
        ("'sliding'", "TG005"),
        ("'running'", "TG005"),
        ("'sharded'", "TG005"),
    ];
    let of_keys = [("null", "TG002"), ("''", "TG002"), (&*long, "TG002")];
    let of_costs = [
        ("null", "TG002"),
        ("'NaN'", "TG002"),
        ("'Infinity'", "TG002"),
        ("0.0000001", "TG002"),
        ("-1", "TG002"),
        ("9223372036855", "TG002"),
    ];
    for verb in ["consume", "reserve", "check", "credit", "debit"] {
        for (limit, code) in of_limits {
            assert_eq!(
                fails(&mut conn, &format!("select tollgate.{verb}({limit}, 'k', 1)")).await,
                code,
                "{verb} {limit}"
            );
        }
        for (key, code) in of_keys {
            assert_eq!(
                fails(&mut conn, &format!("select tollgate.{verb}('ten', {key}, 1)")).await,
                code,
                "{verb} {key}"
            );
        }
        for (cost, code) in of_costs {
            let sql = format!("select tollgate.{verb}('ten', 'k', {cost})");
            assert_eq!(fails(&mut conn, &sql).await, code, "{verb} {cost}");
        }
    }
    for call in [
        "balance('ten', {})",
        "reset('ten', {})",
        "settle('ten', {}, 1, 0, now())",
        "cancel('ten', {}, 1, now(), now())",
    ] {
        for (key, code) in of_keys {
            let sql = format!("select tollgate.{}", call.replace("{}", key));
            assert_eq!(fails(&mut conn, &sql).await, code, "{sql}");
        }
    }
    assert_eq!(world.rows().await, 0);
    // The longest ones are right.
    run(&mut conn, "select tollgate.consume('ten', repeat('x', 512))").await;
    run(&mut conn, "select tollgate.credit('ten', 'k', 1, repeat('x', 255), '365000 days')").await;
}

#[tokio::test]
async fn a_wrong_call_of_several_or_wrong_options_are_errors_of_our_class() {
    let world = World::new().await;
    let mut conn = owner(&world).await;
    defined(&mut conn).await;
    for (several, code) in [
        ("null", "TG002"),
        ("'{}'", "TG002"),
        ("array[null]::tollgate.request[]", "TG002"),
        ("array[tollgate.request('ten', '')]", "TG002"),
        ("array[tollgate.request('ten', null)]", "TG002"),
        ("array[tollgate.request('window', null)]", "TG002"),
        ("array[tollgate.request('ten', 'k'), tollgate.request('window', null)]", "TG002"),
        ("array[tollgate.request('ten', 'k'), tollgate.request('ten', 'k', 'NaN')]", "TG002"),
        ("array[tollgate.request('ten', 'k'), tollgate.request('unknown', 'k')]", "TG001"),
        ("array[tollgate.request('ten', 'k'), tollgate.request('sliding', 'k')]", "TG005"),
        ("array[tollgate.request('ten', 'k', 6), tollgate.request('ten', 'k', 6)]", "TG004"),
        ("array[tollgate.request('ten', 'k', 9e12), tollgate.request('ten', 'k', 9e12)]", "TG004"),
    ] {
        for verb in ["consume_all", "reserve_all", "check_all"] {
            assert_eq!(fails(&mut conn, &format!("select tollgate.{verb}({several})")).await, code, "{verb} {several}");
        }
    }
    for (sql, code) in [
        ("select tollgate.consume('ten', 'k', 11)", "TG004"),
        ("select tollgate.consume_global('ten', 11)", "TG004"),
        ("select tollgate.settle('ten', 'k', 1, null, now())", "TG002"),
        ("select tollgate.settle('ten', 'k', 1, 0, null)", "TG002"),
        ("select tollgate.settle('ten', 'k', 1, 0, 'infinity')", "TG002"),
        ("select tollgate.cancel('ten', 'k', 1, now(), null)", "TG002"),
        ("select tollgate.credit('ten', 'k', 1, '')", "TG002"),
        ("select tollgate.credit('ten', 'k', 1, repeat('x', 256))", "TG002"),
        ("select tollgate.credit('ten', 'k', 1, 'id', '-1s')", "TG002"),
        ("select tollgate.granted(null)", "TG002"),
        ("select tollgate.granted(d) from (values (1)) one left join tollgate.check('ten', 'k') d on false", "TG002"),
        ("select tollgate.cancel('ten', 'k', 1, now(), '294276-12-31')", "TG002"),
        ("select tollgate.credit('ten', 'k', 1, 'id', '0')", "TG002"),
        ("select tollgate.credit('ten', 'k', 1, 'id', '365001 days')", "TG002"),
        ("select tollgate.consume('ten', 'k', 5, up_to => 0)", "TG002"),
        ("select tollgate.consume('ten', 'k', 5, up_to => 6)", "TG002"),
        ("select tollgate.consume('ten', 'k', 5, up_to => 'NaN')", "TG002"),
        ("select tollgate.consume('ten', 'k', 0, up_to => 1)", "TG002"),
        ("select tollgate.consume('ten', 'k', 5, leaving => -1)", "TG002"),
        ("select tollgate.consume('ten', 'k', 5, leaving => 0.0000001)", "TG002"),
        ("select tollgate.consume('ten', 'k', 20, up_to => 11)", "TG004"),
        ("select tollgate.check('ten', 'k', 5, leaving => 6)", "TG004"),
        ("select tollgate.consume_global('ten', 5, leaving => 11)", "TG004"),
        // No overload takes a cost for a key.
        ("select tollgate.consume('ten', 1)", "42883"),
    ] {
        assert_eq!(fails(&mut conn, sql).await, code, "{sql}");
    }
    assert_eq!(world.rows().await, 0);
}

#[tokio::test]
async fn a_row_whose_list_may_be_money_is_an_error() {
    let world = World::new().await;
    let mut conn = owner(&world).await;
    defined(&mut conn).await;
    // A list that this release does not know may be money.
    for (limit, lists) in
        [("ten", ["'{}'", "'{4}'", "'{3}'", "'{6,1,1}'"]), ("money", ["'{}'", "'{4}'", "'{1}'", "null"])]
    {
        for list in lists {
            let row = format!("0, '{limit}', $${list}$$, 0, 5, now(), '2100-01-01', {list}");
            run(&mut conn, &format!("insert into tollgate.durable values ({row})")).await;
            for call in [
                "consume('{}', $${list}$$)",
                "consume_all(array[tollgate.request('{}', $${list}$$)])",
                "credit('{}', $${list}$$, 1)",
            ] {
                let call = call.replace("{}", limit).replace("{list}", list);
                assert_eq!(fails(&mut conn, &format!("select tollgate.{call}")).await, "TG006", "{call}");
            }
        }
    }
    // That of a window is not, and does not count. Nothing is given back on it.
    run(&mut conn, "insert into tollgate.durable values (0, 'ten', 'slid', 0, -5000000, now(), '2100-01-01', '{1}')")
        .await;
    run(
        &mut conn,
        "select 1 / (tollgate.settle('ten', 'slid', 2, 0, now()) = 2)::int;
         select tollgate.granted(tollgate.consume('ten', 'slid', 25, up_to => 5))",
    )
    .await;
    // Where another limit of the call is denied, nothing reads the row.
    run(&mut conn, "select tollgate.set_override('owing', 'k', 'deny', reason => 'a test')").await;
    let both = "select tollgate.granted(tollgate.consume_all(array[tollgate.request('ten', $$'{3}'$$), \
                                                                   tollgate.request('owing', 'k')]))";
    assert_eq!(fails(&mut conn, both).await, "PT429");
}

#[tokio::test]
async fn a_definition_that_is_none_is_an_error_of_our_class() {
    let world = World::new().await;
    let mut conn = owner(&world).await;
    for wrong in [
        "null, 'token_bucket', 1, '1s'",
        "'', 'token_bucket', 1, '1s'",
        "repeat('x', 256), 'token_bucket', 1, '1s'",
        "'x', 'leaky', 1, '1s'",
        "'x', null, 1, '1s'",
        "'x', 'token_bucket'",
        "'x', 'token_bucket', 1",
        "'x', 'token_bucket', null, '1s'",
        "'x', 'token_bucket', 'NaN', '1s'",
        "'x', 'token_bucket', 0.0000001, '1s'",
        "'x', 'token_bucket', -1, '1s'",
        "'x', 'token_bucket', 0, '1s'",
        "'x', 'token_bucket', 1, null",
        "'x', 'token_bucket', 1, '1 month'",
        "'x', 'token_bucket', 1, '1 year'",
        "'x', 'token_bucket', 1, '-1s'",
        "'x', 'token_bucket', 1, '400000 days'",
        "'x', 'token_bucket', 1, '1s', capacity => 0",
        "'x', 'token_bucket', 1, '1s', capacity => -1",
        "'x', 'token_bucket', 1, '1s', max_reserved => -1",
        "'x', 'token_bucket', 1, '1s', 9000000000000, 9000000000000",
        "'x', 'token_bucket', 1, '1s', max_reserved => 1, storage => 'ephemeral'",
        "'x', 'token_bucket', 1, '1s', storage => 'memory'",
        "'x', 'token_bucket', 1, '1s', start => '0'",
        "'x', 'fixed_window', 1, '1h', start => '1h'",
        "'x', 'fixed_window', 1, '1000 days', start => '1 month'",
        "'x', 'fixed_window', 1, '1000 days', start => '1 year'",
        "'x', 'token_bucket', 1, '1s', shards => 0",
        "'x', 'token_bucket', 1, '1s', shards => 65",
        "'x', 'token_bucket', 1, '1s', shards => 100000",
        "'x', 'stepped_bucket', 1, '1s', shards => 2",
        "'x', 'sliding_window', 1, '1s', capacity => 2",
        "'x', 'sliding_window', 1, '1s', resolution => 64",
        "'x', 'concurrency', 1001, '1s'",
        "'x', 'wallet', 1",
        "'x', 'wallet', storage => 'ephemeral'",
        "'x', 'meter', 1",
        "'x', 'meter', storage => 'ephemeral'",
        "'x', 'meter', max_reserved => 5",
    ] {
        assert_eq!(fails(&mut conn, &format!("select tollgate.define({wrong})")).await, "TG002", "{wrong}");
    }
    for right in [
        "'x', 'token_bucket', 1, '1s', capacity => 0, max_reserved => 1",
        "'x', 'token_bucket', 1, '1s', 9000000000000, 9223372036854.775807",
        "'x', 'wallet', max_reserved => 5",
        "'x', 'meter'",
        "'x', 'fixed_window', 0.5, '1 day', start => '22h'",
        "'x', 'sliding_window', 10, '1m', resolution => 10",
    ] {
        run(&mut conn, &format!("select tollgate.define({right})")).await;
    }
}

#[tokio::test]
async fn a_message_names_what_is_wrong() {
    let world = World::new().await;
    let mut conn = owner(&world).await;
    defined(&mut conn).await;
    define(&mut conn, &Limit::token_bucket("denied", 10, EVER).max_reserved(5)).await;
    run(&mut conn, "select tollgate.set_override('denied', 'k', 'deny', reason => 'a test')").await;
    let no_key = "limit 'ten': the key is null or empty (consume_global asks everybody's row)";
    for (call, message) in [
        ("consume('', 'k')", "no limit is named"),
        ("consume(null, 'k')", "no limit is named"),
        ("consume('ten', '')", no_key),
        ("consume_all(array[tollgate.request('ten', '')])", no_key),
        (
            "consume('ten', repeat('x', 513))",
            "limit 'ten': the key is longer than 512 bytes (hash it, and use the digest)",
        ),
        ("consume('ten', 'k', -1)", "limit 'ten': -1 is no amount of tokens"),
        ("settle('ten', 'k', -1, 0, now())", "limit 'ten': -1 is no amount of tokens"),
        ("settle('ten', 'k', 1, -2, now())", "limit 'ten': -2 is no amount of tokens"),
        ("settle('ten', 'k', 1, null, now())", "limit 'ten': null is no amount of tokens"),
        ("consume('ten', 'k', 11)", "limit 'ten' can never grant so much at once, at most 10.000000"),
        ("consume('ten', 'k', 5, leaving => 11)", "limit 'ten' can never grant so much at once, at most 0.000000"),
        ("reserve('owing', 'k', 16)", "limit 'owing' can never grant so much at once, at most 15.000000"),
        ("reserve('denied', 'k', 16)", "limit 'denied' can never grant so much at once, at most 15.000000"),
        (
            "reserve_all(array[tollgate.request('owing', 'k', 16)])",
            "limit 'owing' can never grant so much at once, at most 15.000000",
        ),
    ] {
        let error = sqlx::query(sqlx::AssertSqlSafe(format!("select tollgate.{call}"))).execute(&mut conn).await;
        assert_eq!(error.unwrap_err().into_database_error().unwrap().message(), message, "{call}");
    }
}
