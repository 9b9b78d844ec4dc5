//! Rows store the tokens used: definitions and overrides that change count at once, and nothing is forgiven or lost.

use sqlx::{AssertSqlSafe, PgConnection};

use super::owner;
use crate::teller::run;
use crate::world::World;

/// The answer to a call on a day: how much is left, or when it would be granted. A call of several limits, which is
/// rolled back, gives the same, and leaves the same row.
async fn ask(conn: &mut PgConnection, key: &str, cost: i32, day: f64) -> String {
    run(conn, "begin").await;
    let call = "_ask_all(array[row('calls', $1, $2, false)::tollgate.request], false, false, to_timestamp($3 * 86400))";
    let of_several = told(conn, call, key, cost, day).await;
    run(conn, "rollback").await;
    let call = "_ask('calls', $1, $2, false, false, to_timestamp($3 * 86400))";
    let (answer, row) = told(conn, call, key, cost, day).await;
    assert_eq!(of_several, (answer.clone(), row), "{key} {cost} {day}");
    answer
}

/// The answer to a call, and the key's row after it.
async fn told(conn: &mut PgConnection, call: &str, key: &str, cost: i32, day: f64) -> (String, Option<String>) {
    let sql = format!(
        "select case when granted then 'left ' || trim_scale(remaining)
                     else 'on day ' || trim_scale(extract(epoch from retry_at) / 86400) end
           from tollgate.{call}"
    );
    let asked = sqlx::query_scalar(AssertSqlSafe(sql)).bind(key).bind(cost).bind(day).persistent(false);
    let answer = asked.fetch_one(&mut *conn).await.unwrap();
    let row = "select concat_ws(' ', value, ts, full_at) from tollgate.durable where key = $1";
    (answer, sqlx::query_scalar(row).bind(key).persistent(false).fetch_optional(conn).await.unwrap())
}

async fn define(conn: &mut PgConnection, numbers: &str) {
    run(conn, &format!("select tollgate.define('calls', {numbers})")).await;
}

async fn override_for(conn: &mut PgConnection, kind: &str, rate: i32, until_day: f64) {
    run(
        conn,
        &format!(
            "delete from tollgate.overrides;
             insert into tollgate.overrides (name, key, effect, kind, rate, period, capacity, max_reserved, starts_at,
                                             ends_at, reason, set_by, set_at)
             values ('calls', '', 'numbers', '{kind}', {rate}000000, 86400000000, {rate}000000, 0, 'epoch',
                     to_timestamp({until_day} * 86400), 'x', 'x', 'epoch')"
        ),
    )
    .await;
}

const MONTH: &str = "'30 days', start => '0'";

#[tokio::test]
async fn a_limit_that_is_raised_counts_at_once_for_a_key_that_is_used_up() {
    let world = World::new().await;
    let mut conn = owner(&world).await;
    define(&mut conn, &format!("'fixed_window', 1000, {MONTH}")).await;
    assert_eq!(ask(&mut conn, "ada", 1_000, 1.0).await, "left 0");
    assert_eq!(ask(&mut conn, "ada", 1, 2.0).await, "on day 30");
    define(&mut conn, &format!("'fixed_window', 10000, {MONTH}")).await;
    assert_eq!(ask(&mut conn, "ada", 0, 3.0).await, "left 9000");
    assert_eq!(ask(&mut conn, "ada", 9_000, 3.0).await, "left 0");
}

/// It waits no longer than the larger limit would have taken.
#[tokio::test]
async fn a_limit_that_is_lowered_forgives_nothing_and_is_there_again_when_the_larger_one_would_be() {
    let world = World::new().await;
    let mut conn = owner(&world).await;
    define(&mut conn, &format!("'fixed_window', 10000, {MONTH}")).await;
    assert_eq!(ask(&mut conn, "ada", 9_000, 1.0).await, "left 1000");
    define(&mut conn, &format!("'fixed_window', 1000, {MONTH}")).await;
    assert_eq!(ask(&mut conn, "ada", 1, 2.0).await, "on day 30");
    assert_eq!(ask(&mut conn, "ada", 1, 30.0).await, "left 999");
}

#[tokio::test]
async fn an_override_counts_at_once_for_a_key_that_is_used_up_and_its_end_takes_it_back() {
    for (kind, again) in
        [("token_bucket", "on day 2.25"), ("stepped_bucket", "on day 2.25"), ("fixed_window", "on day 2")]
    {
        let world = World::new().await;
        let mut conn = owner(&world).await;
        let start = if kind == "fixed_window" { ", start => '0'" } else { "" };
        define(&mut conn, &format!("'{kind}', 10, '1 day'{start}")).await;
        assert_eq!(ask(&mut conn, "ada", 10, 1.25).await, "left 0", "{kind}");
        override_for(&mut conn, kind, 20, 1.5).await;
        assert_eq!(ask(&mut conn, "ada", 10, 1.25).await, "left 0", "{kind}");
        // The smaller numbers feel the use under the larger ones until the larger ones would have it back.
        assert_eq!(ask(&mut conn, "ada", 10, 1.5).await, again, "{kind}");
    }
}

/// Ten thousand a month and a hundred a day take turns.
#[tokio::test]
async fn who_flips_plans_each_day_gets_no_more_than_the_larger_one_in_its_month() {
    let world = World::new().await;
    let mut conn = owner(&world).await;
    let mut granted = 0;
    for day in 0..30 {
        for (numbers, cost) in [("100, '1 day', start => '0'", 10), ("10000, '30 days', start => '0'", 1_000)] {
            define(&mut conn, &format!("'fixed_window', {numbers}")).await;
            while ask(&mut conn, "ada", cost, f64::from(day)).await.starts_with("left") {
                granted += cost;
            }
        }
    }
    assert!((9_000..=10_000 + 30 * 100).contains(&granted), "{granted}");
}

/// The grid of a stepped bucket is the exception.
#[tokio::test]
async fn a_key_that_was_swept_equals_one_that_was_not() {
    for kind in ["token_bucket", "fixed_window"] {
        let world = World::new().await;
        let mut conn = owner(&world).await;
        define(&mut conn, &format!("'{kind}', 10, '1 day'")).await;
        for key in ["swept", "left"] {
            assert_eq!(ask(&mut conn, key, 10, 1.0).await, "left 0");
        }
        let sql = "delete from tollgate.durable where key = 'swept' and full_at <= to_timestamp(3 * 86400)";
        run(&mut conn, sql).await;
        assert_eq!(world.rows().await, 1);
        // A definition of slower numbers, by which the row would not be full.
        define(&mut conn, &format!("'{kind}', 10, '100 days'")).await;
        for key in ["swept", "left"] {
            assert_eq!(ask(&mut conn, key, 10, 3.0).await, "left 0", "{kind} {key}");
        }
    }
}

#[tokio::test]
async fn what_was_used_beyond_a_charge_counts_on_a_row_that_was_swept() {
    let world = World::new().await;
    let mut conn = owner(&world).await;
    define(&mut conn, "'token_bucket', 10, '1 day'").await;
    let settle = "select tollgate._change('settle', 'calls', 'ada', 1, 8, 'epoch', 'epoch', null, null,
                                          to_timestamp(5 * 86400))";
    run(&mut conn, settle).await;
    assert_eq!(ask(&mut conn, "ada", 3, 5.0).await, "left 0");
    assert_eq!(ask(&mut conn, "ada", 1, 5.0).await, "on day 5.1");
}

#[tokio::test]
async fn a_definition_that_no_row_can_hold_is_refused() {
    let world = World::new().await;
    let mut conn = owner(&world).await;
    let wrong = "select tollgate.define('calls', 'token_bucket', 1, '1s', 9000000000000, 9000000000000)";
    assert_eq!(super::fails(&mut conn, wrong).await, "TG002");
    let unbounded = "select tollgate.define('calls', 'token_bucket', 1, '1s', 9000000000000, 9223372036854.775807)";
    run(&mut conn, unbounded).await;
    assert_eq!(ask(&mut conn, "ada", 0, 1.0).await, "left 9000000000000");
    // A row written by hand at the end of the range, and one that is above full.
    let rows = "insert into tollgate.durable (part, name, key, shard, value, ts, full_at)
                values (0, 'calls', 'low', 0, -9223372036854775808, 'epoch', '2100-01-01'),
                       (0, 'calls', 'high', 0, 9223372036854775807, 'epoch', '2100-01-01')";
    run(&mut conn, rows).await;
    assert_eq!(ask(&mut conn, "high", 0, 1.0).await, "left 9000000000000");
    assert!(ask(&mut conn, "low", 1, 1.0).await.starts_with("on day "));
    assert_eq!(super::fails(&mut conn, "select tollgate.debit('calls', 'low', 9223372036854)").await, "TG003");
}
