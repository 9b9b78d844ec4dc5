//! Who may do what by the functions, and what nobody can make them do.

use sqlx::PgConnection;
use tollgate::migrate::{Callers, grants};

use super::{fails, owner};
use crate::teller::run;
use crate::world::World;

/// A session of a role that was granted these.
async fn session(world: &World, callers: &[Callers]) -> PgConnection {
    let role = world.role().await;
    for callers in callers {
        world.sql(&grants(&role, *callers)).await;
    }
    let mut conn = world.connect().await;
    run(&mut conn, &format!("set role {role}")).await;
    conn
}

#[tokio::test]
async fn an_application_may_ask_and_nothing_else() {
    let world = World::new().await;
    run(&mut owner(&world).await, "select tollgate.define('ten', 'token_bucket', 10, '1 day')").await;
    let mut stranger = session(&world, &[]).await;
    assert_eq!(fails(&mut stranger, "select tollgate.consume('ten', 'k')").await, "42501");
    let mut conn = session(&world, &[Callers::Applications]).await;
    for right in [
        "select * from tollgate.consume('ten', tollgate.key('k'))",
        "select * from tollgate.consume_global('ten')",
        "select * from tollgate.reserve('ten', 'k')",
        "select * from tollgate.check('ten', 'k')",
        "select tollgate.granted(tollgate.consume_all(array[tollgate.request('ten', 'k'), tollgate.request_global('ten')]))",
        "select * from tollgate.reserve_all(array[tollgate.request('ten', 'k')])",
        "select tollgate.balance('ten', 'k')",
    ] {
        run(&mut conn, right).await;
    }
    for wrong in [
        "select tollgate.credit('ten', 'k', 1)",
        "select tollgate.debit('ten', 'k', 1)",
        "select tollgate.reset('ten', 'k')",
        "select tollgate.settle('ten', 'k', 5, 0, now())",
        "select tollgate.cancel('ten', 'k', 5, now(), now())",
        "select tollgate.define('ten', 'token_bucket', 100, '1 day')",
        // Who could name the instant could speak over the clock.
        "select tollgate._ask('ten', 'k', 1, false, false, '2100-01-01')",
        "select tollgate._ask_all(array[tollgate.request('ten', 'k')], false, false, '2100-01-01')",
        "select tollgate._change('credit', 'ten', 'k', 1, 0, null, null, null, null, null)",
        "select tollgate._write('durable', 'ten', 'k', 'c', null, null, 1, 1, 1)",
        "update tollgate.durable set value = 10",
        "select * from tollgate.durable",
        "select * from tollgate.limits",
        "update tollgate.limits set rate = 10",
    ] {
        assert_eq!(fails(&mut conn, wrong).await, "42501", "{wrong}");
    }
}

#[tokio::test]
async fn an_operator_may_give_and_take() {
    let world = World::new().await;
    let mut conn = session(&world, &[Callers::Operators]).await;
    run(
        &mut conn,
        "select tollgate.define('ten', 'token_bucket', 10, '1 day'), tollgate.debit('ten', 'k', 1),
                tollgate.credit('ten', 'k', 1), tollgate.reset('ten', 'k'), tollgate.settle('ten', 'k', 5, 0, now()),
                tollgate.cancel('ten', 'k', 5, now(), now())",
    )
    .await;
    assert_eq!(fails(&mut conn, "select tollgate.consume('ten', 'k')").await, "42501");
    assert_eq!(fails(&mut conn, "update tollgate.limits set rate = 10").await, "42501");
}

/// Who inserts needs no right.
#[tokio::test]
async fn a_trigger_needs_no_right_of_whoever_inserts() {
    let world = World::new().await;
    run(&mut owner(&world).await, "select tollgate.define('ten', 'token_bucket', 10, '1 day')").await;
    let mut conn = session(&world, &[]).await;
    let role: String = sqlx::query_scalar("select current_user::text").fetch_one(&mut conn).await.unwrap();
    world
        .sql(&format!(
            "create table public.posts (author text);
             create trigger limited before insert on public.posts
                for each row execute function tollgate.limit_rows('ten', 'author');
             create trigger limited_together after insert on public.posts referencing new table as inserted
                for each statement execute function tollgate.limit_inserts('ten', 'author');
             grant insert on public.posts to {role}"
        ))
        .await;
    run(&mut conn, "insert into public.posts values ('ada'), ('ada')").await;
    let left = "select tollgate.balance('ten', 'ada')::int";
    assert_eq!(sqlx::query_scalar::<_, i32>(left).fetch_one(&mut owner(&world).await).await.unwrap(), 6);
}
