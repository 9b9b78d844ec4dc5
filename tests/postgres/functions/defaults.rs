//! Calls that name no options, and definitions that name all of them.

use super::asked::{defined, one};
use super::owner;
use crate::teller::run;
use crate::world::World;

#[tokio::test]
async fn a_call_without_a_cost_takes_one_token() {
    let world = World::new().await;
    let mut conn = owner(&world).await;
    defined(&mut conn).await;
    for call in [
        "consume('ten', 'k')",
        "consume_global('ten')",
        "reserve('ten', 'k')",
        "check('ten', 'k')",
        "consume_all(array[tollgate.request('ten', 'k')])",
        "consume_all(array[tollgate.request_global('ten')])",
    ] {
        let sql = format!("select remaining::text from tollgate.{call}");
        assert_eq!(one::<String>(&mut conn, &sql).await, "9.000000", "{call}");
        run(&mut conn, "delete from tollgate.durable").await;
    }
}

#[tokio::test]
async fn a_definition_is_stored_to_the_last_microsecond() {
    let world = World::new().await;
    let mut conn = owner(&world).await;
    for (definition, stored) in [
        ("'x', 'token_bucket', 1.5, '1 day'", "token_bucket 1500000 86400000000 1500000 0 1 durable"),
        (
            "'x', 'fixed_window', 1.5, '1 day', 2.5, 3.5, '22:00:00.000001', 'durable', 1",
            "fixed_window 1500000 86400000000 2500000 3500000 79200000001 1 durable",
        ),
        (
            "'x', 'sliding_window', 2, '1 s', storage => 'ephemeral', resolution => 10",
            "sliding_window 2000000 1000000 2000000 0 10 1 ephemeral",
        ),
        ("'x', 'fixed_window', 2, '1 s', shards => 2", "fixed_window 2000000 1000000 2000000 0 2 durable"),
        ("'x', 'wallet'", "wallet 0 0 0 0 1 durable"),
    ] {
        run(&mut conn, &format!("select tollgate.define({definition})")).await;
        let sql =
            "select concat_ws(' ', kind, rate, period, capacity, max_reserved, start, resolution, shards, storage)
                     from tollgate.limits";
        assert_eq!(one::<String>(&mut conn, sql).await, stored, "{definition}");
    }
}

#[tokio::test]
async fn a_report_leaves_sixty_five_percent_and_several_at_least_five() {
    let world = World::new().await;
    let mut conn = owner(&world).await;
    defined(&mut conn).await;
    let first = "select concat_ws(' ', rate, ends_at - starts_at) from tollgate.slow_down('ten', 'k', forgets => '0')";
    assert_eq!(one::<String>(&mut conn, first).await, "650000 00:00:21");
    // Within two seconds another changes nothing.
    assert_eq!(one::<String>(&mut conn, first).await, "650000 00:00:21");
    let last = "select min((tollgate.slow_down('ten', 'k', cool_down => '0', forgets => '0')).rate)::text from generate_series(1, 20)";
    assert_eq!(one::<String>(&mut conn, last).await, "50000");
}

/// A kind whose definition nobody has pushed.
#[tokio::test]
async fn an_override_of_an_unknown_limit_reserves_nothing_unless_it_says_so() {
    let world = World::new().await;
    let mut conn = owner(&world).await;
    for (numbers, stored) in [
        ("kind => 'token_bucket', rate => 10, period => '1 s'", "token_bucket 10000000 1000000 10000000 0"),
        ("kind => 'wallet', max_reserved => 5", "wallet 0 0 0 5000000"),
    ] {
        let set = format!("select tollgate.set_override('unknown', 'k', {numbers}, reason => 'a test', set_by => 'x')");
        run(&mut conn, &set).await;
        let sql = "select concat_ws(' ', kind, rate, period, capacity, max_reserved) from tollgate.overrides";
        assert_eq!(one::<String>(&mut conn, sql).await, stored, "{numbers}");
    }
}
