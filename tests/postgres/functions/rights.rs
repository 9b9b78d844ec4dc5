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

/// Who inserts needs no right. Nor does a trigger lend the owner's to anybody: neither to a cast that json would call,
/// nor to whoever comes first in the search path.
#[tokio::test]
async fn a_trigger_lends_nobody_its_rights() {
    let world = World::new().await;
    run(&mut owner(&world).await, "select tollgate.define('ten', 'token_bucket', 10, '1 day')").await;
    let mut conn = session(&world, &[Callers::Applications]).await;
    let role: String = sqlx::query_scalar("select current_user::text").fetch_one(&mut conn).await.unwrap();
    world.sql(&format!("create schema evil authorization {role}; grant usage on schema evil to public")).await;
    run(
        &mut conn,
        "set search_path = evil, pg_catalog;
         create table evil.stolen (by text);
         grant insert on evil.stolen to public;
         create function evil.steal() returns boolean language plpgsql as
             $$ begin insert into evil.stolen values (current_user); return true; end $$;
         create function evil.equal(text, text) returns boolean language plpgsql as 'begin return evil.steal(); end';
         create function evil.equal(int8, int8) returns boolean language plpgsql as 'begin return evil.steal(); end';
         create function evil.format(text, text) returns text language plpgsql as 'begin perform evil.steal(); return $2; end';
         create function evil.consume(text, text, numeric) returns text language plpgsql as 'begin perform evil.steal(); return $2; end';
         create operator evil.= (leftarg = text, rightarg = text, function = evil.equal);
         create operator evil.= (leftarg = int8, rightarg = int8, function = evil.equal);
         create type evil.author as enum ('ada');
         create type evil.pair as (author evil.author);
         create function evil.to_json(evil.author) returns json language plpgsql as
             $$ begin perform evil.steal(); return '\"ada\"'; end $$;
         create function evil.to_text(evil.author) returns text language plpgsql as
             $$ begin perform evil.steal(); return 'ada'; end $$;
         create cast (evil.author as json) with function evil.to_json(evil.author);
         create table evil.rows (author evil.author, \"od\"\"d\" text);
         create trigger limited before insert on evil.rows for each row
                execute function tollgate.limit_rows('ten', 'author', 'od\"d');
         create trigger limited_together after insert on evil.rows referencing new table as inserted for each statement
                execute function tollgate.limit_inserts('ten', 'author')",
    )
    .await;
    run(&mut conn, "insert into evil.rows values ('ada', 'x')").await;
    run(&mut conn, "select tollgate.granted(tollgate.consume_all(array[tollgate.request('ten', 'ada')]))").await;
    run(&mut conn, "select * from tollgate.consume('ten', 'ada')").await;
    let stolen: Vec<String> =
        sqlx::query_scalar("select by from evil.stolen where by <> current_user").fetch_all(&mut conn).await.unwrap();
    assert_eq!(stolen, Vec::<String>::new());
    let left = "select tollgate.balance('ten', 'ada')::int";
    assert_eq!(sqlx::query_scalar::<_, i32>(left).fetch_one(&mut conn).await.unwrap(), 7);

    // Who may insert into the table, and nothing else.
    let other = format!("{role}_inserting");
    world
        .sql(&format!(
            "drop role if exists {other}; create role {other}; grant usage on schema evil to {other};
                        grant insert on evil.rows to {other}"
        ))
        .await;
    let mut admin = world.admin().await;
    run(&mut admin, &format!("set role {other}; insert into evil.rows values ('ada', 'x'); reset role")).await;
    run(&mut admin, &format!("drop owned by {other}; drop role {other}")).await;
}
