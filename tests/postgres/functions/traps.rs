//! What the guides warn of, as it is.

use sqlx::Executor;
use tokio::task::JoinSet;

use super::asked::one;
use super::{fails, owner};
use crate::gate::stage::soon;
use crate::teller::run;
use crate::world::World;

const TEN: &str = "select tollgate.define('ten', 'token_bucket', 10, '100 days')";

#[tokio::test]
async fn a_composite_that_is_taken_apart_calls_once_for_each_column() {
    let world = World::new().await;
    let mut conn = owner(&world).await;
    run(&mut conn, TEN).await;
    run(&mut conn, "select (tollgate.consume('ten', 'apart')).*").await;
    run(&mut conn, "select * from tollgate.consume('ten', 'from')").await;
    let left = "select concat_ws(' ', tollgate.balance('ten', 'apart')::int, tollgate.balance('ten', 'from')::int)";
    assert_eq!(one::<String>(&mut conn, left).await, "2 9");
}

#[tokio::test]
async fn a_condition_charges_each_row_that_is_looked_at() {
    let world = World::new().await;
    let mut conn = owner(&world).await;
    run(&mut conn, TEN).await;
    run(
        &mut conn,
        "select n from generate_series(1, 3) n where (tollgate.consume('ten', 'k')).granted order by n limit 1",
    )
    .await;
    assert_eq!(one::<i32>(&mut conn, "select tollgate.balance('ten', 'k')::int").await, 7);
}

#[tokio::test]
async fn who_does_not_look_at_granted_is_not_limited() {
    let world = World::new().await;
    let mut conn = owner(&world).await;
    run(&mut conn, TEN).await;
    let insert = "insert into pg_temp.messages values ('hello')";
    run(&mut conn, "create temporary table messages (body text); select tollgate.consume('ten', 'k', 10)").await;
    run(&mut conn, &format!("begin; select tollgate.consume('ten', 'k'); {insert}; commit")).await;
    let looking = format!("begin; select tollgate.granted(tollgate.consume('ten', 'k')); {insert}; commit");
    assert_eq!(fails(&mut conn, &looking).await, "PT429");
    run(&mut conn, "rollback").await;
    assert_eq!(one::<i64>(&mut conn, "select count(*) from pg_temp.messages").await, 1);
}

#[tokio::test]
async fn two_calls_in_opposite_orders_deadlock() {
    let world = World::new().await;
    let (mut ada, mut bob) = (owner(&world).await, owner(&world).await);
    run(&mut ada, TEN).await;
    run(&mut ada, "select tollgate.consume('ten', 'a'), tollgate.consume('ten', 'b')").await;
    run(&mut ada, "begin; select tollgate.consume('ten', 'a')").await;
    run(&mut bob, "begin; select tollgate.consume('ten', 'b')").await;
    let by_ada = ada.execute("select tollgate.consume('ten', 'b')");
    let by_bob = bob.execute("select tollgate.consume('ten', 'a')");
    let told: [_; 2] = soon(Box::pin(async { tokio::join!(by_ada, by_bob) })).await.into();
    let codes =
        told.map(|told| told.err().map(|error| error.as_database_error().unwrap().code().unwrap().into_owned()));
    assert!(codes.contains(&None) && codes.contains(&Some("40P01".to_owned())), "{codes:?}");
}

#[tokio::test]
async fn a_granted_row_is_locked_until_the_commit() {
    let world = World::new().await;
    let (mut conn, mut other) = (owner(&world).await, owner(&world).await);
    run(&mut conn, TEN).await;
    run(&mut conn, "select tollgate.consume('ten', 'k')").await;
    run(&mut conn, "begin; select tollgate.consume('ten', 'k')").await;
    let free = "select from tollgate.durable for update nowait";
    assert_eq!(fails(&mut other, free).await, "55P03");
    run(&mut conn, "commit").await;
    run(&mut other, free).await;
}

/// The scene of docs/compare.md: all have read the count before the first of them may write.
#[tokio::test]
async fn of_twenty_five_callers_of_a_count_that_is_read_first_all_pass() {
    let world = World::new().await;
    let mut conn = owner(&world).await;
    let scene = include_str!("../../../docs/compare.md").split("```sql").nth(1).unwrap().split("```").next().unwrap();
    run(&mut conn, &format!("set search_path = public; {scene}; {TEN}")).await;
    for (ask, passing) in
        [("select check_rate_limit('ada', 10)", 25), ("select granted from tollgate.consume('ten', 'ada')", 8)]
    {
        run(&mut conn, &format!("begin; {ask}; commit; begin; {ask}")).await;
        let mut callers = JoinSet::new();
        for _ in 0..25 {
            let mut caller = owner(&world).await;
            run(&mut caller, "set search_path = public").await;
            callers.spawn(async move { one::<bool>(&mut caller, ask).await });
        }
        let waiting = "select count(*) from pg_stat_activity
                        where datname = current_database() and wait_event_type = 'Lock'";
        let mut admin = world.admin().await;
        soon(Box::pin(async { while one::<i64>(&mut admin, waiting).await < 25 {} })).await;
        run(&mut conn, "commit").await;
        let told = soon(callers.join_all()).await;
        assert_eq!(told.into_iter().filter(|passes| *passes).count(), passing, "{ask}");
    }
}
