//! What a call does that names no options, and what it stores that names them all.

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
