//! The definitions of a service, beside those of the table.

use std::time::Duration;

use sqlx::PgConnection;
use tollgate::{DAY, Limit, Limits, MINUTE, StartError, Tollgate};

use crate::traced::traced;
use crate::world::{SERVICE, World};

const SEND: Limit = Limit::token_bucket("send", 120, MINUTE);
const SIGN_UPS: Limit = Limit::fixed_window("sign_ups", 100, DAY).start(Duration::from_hours(22));
const ALL: [&Limit; 8] = [
    &SEND,
    &SIGN_UPS,
    &Limit::stepped_bucket("uploads", 5, MINUTE).capacity(20).ephemeral(),
    &Limit::sliding_window("their_api", 100, MINUTE).resolution(10),
    &Limit::concurrency("renders", 8, MINUTE),
    &Limit::meter("bill"),
    &Limit::token_bucket("hot", 100, MINUTE).shards(8),
    &Limit::token_bucket("later", 100, MINUTE).max_reserved(500),
];

async fn may_insert(world: &World) {
    world.sql(&format!("grant insert on tollgate.limits to {SERVICE}")).await;
}

async fn start<'l>(world: &World, limits: impl IntoIterator<Item = &'l Limit>) {
    let tollgate = Tollgate::builder(world.pool.clone()).limits(limits).start().await.unwrap();
    tollgate.stop().await;
}

async fn stored(conn: &mut PgConnection) -> Vec<Limit> {
    Limits::from_table(conn).await.unwrap().iter().cloned().collect()
}

#[test]
fn definitions_that_the_table_lacks_are_inserted_where_the_role_may() {
    let log = traced(async {
        let world = World::new().await;
        may_insert(&world).await;
        for _ in 0..2 {
            start(&world, ALL).await;
            let all = Limits::of(ALL).unwrap();
            assert_eq!(stored(&mut world.connect().await).await, all.iter().cloned().collect::<Vec<_>>());
        }
    });
    assert!(!log.contains("tollgate limits push"), "{log}");
}

#[test]
fn definitions_that_differ_are_logged_and_never_overwritten() {
    let other = Limit::token_bucket("send", 100, MINUTE);
    let before = other.clone();
    let log = traced(async move {
        let world = World::new().await;
        may_insert(&world).await;
        start(&world, [&before]).await;
        start(&world, [&SEND.capacity(200), &SIGN_UPS]).await;
        start(&world, [&SEND]).await;
        assert_eq!(stored(&mut world.connect().await).await, [other, SIGN_UPS]);
    });
    let said = |line: &str| log.lines().filter(|said| said.contains(" WARN ") && said.contains(line)).count();
    assert_eq!(said("\"send\" has rate 120 here and 100 in the table: `tollgate limits push`"), 1, "{log}");
    assert_eq!(said("\"send\" has capacity 200 here and null in the table, rate 120 here"), 1, "{log}");
    assert_eq!(said("`tollgate limits push`"), 2, "one line for each difference: {log}");
}

#[test]
fn a_role_that_may_not_insert_starts_and_says_what_is_missing() {
    let log = traced(async {
        let world = World::new().await;
        start(&world, [&SEND, &SIGN_UPS]).await;
        assert!(stored(&mut world.connect().await).await.is_empty());
        // Nor does a start fail where the role may not even read the table.
        world.sql(&format!("revoke select on tollgate.limits from {SERVICE}")).await;
        start(&world, [&SEND]).await;
    });
    assert!(log.contains("tollgate.limits lacks \"send\", \"sign_ups\", and this role may not insert"), "{log}");
    assert!(log.contains("were not compared") && log.contains("permission denied"), "{log}");
}

#[test]
fn a_definition_of_a_later_release_hides_no_other() {
    let log = traced(async {
        let world = World::new().await;
        may_insert(&world).await;
        world
            .sql(
                "alter table tollgate.limits drop constraint a_kind_is_known;
                 insert into tollgate.limits (name, kind, rate, period, capacity) values ('send', 'leaky', 1, 1, 1)",
            )
            .await;
        start(&world, [&SEND, &SIGN_UPS]).await;
        let names = sqlx::query_scalar("select name from tollgate.limits order by name");
        let names: Vec<String> = names.fetch_all(&world.pool).await.unwrap();
        assert_eq!(names, ["send", "sign_ups"]);
    });
    assert!(log.contains("\"send\" in tollgate.limits is no definition that this release knows"), "{log}");
}

/// A push locks the table, and its operator may have gone to lunch.
#[test]
fn a_push_that_is_under_way_does_not_hold_up_a_start() {
    let log = traced(async {
        let world = World::new().await;
        may_insert(&world).await;
        let mut tx = world.pool.begin().await.unwrap();
        let mut admin = world.admin().await;
        sqlx::raw_sql("begin; lock table tollgate.limits in share row exclusive mode")
            .execute(&mut admin)
            .await
            .unwrap();
        start(&world, [&SEND]).await;
        sqlx::raw_sql("rollback").execute(&mut admin).await.unwrap();
        assert!(stored(&mut tx).await.is_empty());
    });
    assert!(log.contains("were not compared") && log.contains("lock timeout"), "{log}");
}

#[tokio::test]
async fn two_definitions_of_one_name_are_refused() {
    let world = World::new().await;
    let two = [SEND, SEND.capacity(7)];
    let error = Tollgate::builder(world.pool.clone()).limits(&two).start().await.unwrap_err();
    assert!(matches!(&error, StartError::TwoDefinitions { limit, .. } if limit == "send"), "{error}");
    assert!(Limits::of(&two).unwrap_err().to_string().contains("\"send\" has two definitions"));
    start(&world, [&SEND, &SEND]).await;
}
