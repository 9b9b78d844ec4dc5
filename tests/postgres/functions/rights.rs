//! The rights of each role to the functions.

use sqlx::PgConnection;
use tollgate::migrate::{self, Callers, grants};

use super::asked::one;
use super::{fails, owner};
use crate::teller::run;
use crate::world::{ON_CALL, OWNER, World};

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
async fn each_function_for_callers_is_granted_to_some() {
    let world = World::new().await;
    let all = "select p.proname::text from pg_proc p
                where p.pronamespace = 'tollgate'::regnamespace and p.proname !~ '^_'";
    let mut all: Vec<String> = sqlx::query_scalar(all).fetch_all(&mut world.admin().await).await.unwrap();
    let granted = [Callers::Applications, Callers::Operators, Callers::Reporters].map(Callers::functions);
    let mut granted = granted.concat();
    all.sort_unstable();
    granted.sort_unstable();
    assert_eq!(all, granted);
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
        "select tollgate.granted(tollgate.consume_all(array[tollgate.request('ten', 'k'), \
         tollgate.request_global('ten')]))",
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
        "select tollgate.cancel('ten', 'k', 5, now(), '2100-01-01')",
        "select tollgate.define('ten', 'token_bucket', 100, '1 day')",
        // A role that could name the instant could pass over the clock.
        "select tollgate._ask('ten', 'k', 1, false, false, '2100-01-01')",
        "select tollgate._ask_all(array[tollgate.request('ten', 'k')], false, false, '2100-01-01')",
        "select tollgate._change('credit', 'ten', 'k', 1, 0, null, null, null, null, null)",
        "select tollgate._write('durable', 'ten', 'k', null, null, null, null, 1, 1, 1, null)",
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
                tollgate.cancel('ten', 'k', 5, now(), '2100-01-01')",
    )
    .await;
    assert_eq!(fails(&mut conn, "select tollgate.consume('ten', 'k')").await, "42501");
    assert_eq!(fails(&mut conn, "update tollgate.limits set rate = 10").await, "42501");
}

/// A role that inserts needs no right to the functions.
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

/// The rights of PUBLIC, and the rights of others that are the owner's alone.
async fn wrong_rights(world: &World) -> Vec<String> {
    let sql = "
        select format('%s: execute %s', grantee::regrole, p.proname)
          from pg_proc p, aclexplode(coalesce(proacl, acldefault('f', proowner)))
         where pronamespace = 'tollgate'::regnamespace and grantee <> proowner and (grantee = 0 or proname ^@ '_')
        union all
        select format('%s: %s %s', grantee::regrole, privilege_type, c.relname)
          from pg_class c, aclexplode(relacl) where relnamespace = 'tollgate'::regnamespace and grantee = 0
        union all
        select format('%s: %s %s.%s', grantee::regrole, privilege_type, c.relname, a.attname)
          from pg_class c join pg_attribute a on attrelid = c.oid, aclexplode(attacl)
         where relnamespace = 'tollgate'::regnamespace and grantee = 0
        union all
        select format('%s: %s in the schema', grantee::regrole, privilege_type)
          from pg_namespace, aclexplode(nspacl)
            where nspname = 'tollgate' and grantee <> nspowner and privilege_type = 'CREATE'";
    sqlx::query_scalar(sql).fetch_all(&mut world.admin().await).await.unwrap()
}

/// However the schema was made, and whichever rights were granted before or besides.
#[tokio::test]
async fn migrations_take_back_what_nobody_should_have() {
    for wrong in [
        // As a dump without rights leaves them.
        "update pg_proc set proacl = null where pronamespace = 'tollgate'::regnamespace",
        "grant execute on all functions in schema tollgate to public, {role}",
        "grant execute on function tollgate.check, tollgate._ask to public",
        "grant execute on function tollgate._change to {role} with grant option",
        "grant execute on function tollgate.reset to {role} with grant option;
         set role {role}; grant execute on function tollgate.reset to public; reset role",
        "grant all on all tables in schema tollgate to public",
        "grant select (key), update (value) on tollgate.durable to public",
        "grant create on schema tollgate to public",
        "grant all on schema tollgate to {role}",
    ] {
        for by_text in [false, true] {
            let world = World::new().await;
            let role = world.role().await;
            world.sql(&format!("grant usage on schema tollgate to {role}; {}", wrong.replace("{role}", &role))).await;
            let told = migrate::validate(&mut world.connect_as(OWNER).await).await.expect_err(wrong).to_string();
            assert!(told.starts_with("PUBLIC has ") || told.starts_with(&format!("{role} has ")), "{told}");
            let mut conn = world.connect_as(OWNER).await;
            if by_text {
                run(&mut conn, &migrate::sql()).await;
            } else {
                assert_eq!(migrate::run(&mut conn).await.unwrap(), []);
            }
            assert_eq!(wrong_rights(&world).await, Vec::<String>::new(), "{wrong}");
            migrate::validate(&mut conn).await.unwrap();
        }
    }
}

/// Default privileges grant rights on new objects that the migrations do not grant.
#[tokio::test]
async fn default_privileges_do_not_count() {
    for by_text in [false, true] {
        let world = World::unmigrated().await;
        let role = world.role().await;
        let to = format!("alter default privileges for role {OWNER} grant all on");
        world.sql(&format!("{to} functions to public, {role}; {to} tables to public; {to} schemas to public")).await;
        let mut conn = world.connect_as(OWNER).await;
        if by_text {
            run(&mut conn, &migrate::sql()).await;
        } else {
            migrate::run(&mut conn).await.unwrap();
        }
        assert_eq!(wrong_rights(&world).await, Vec::<String>::new());
    }
}

/// The role that migrates may be another than the owner of the schema.
#[tokio::test]
async fn who_owns_the_tables_may_make_more_of_them() {
    let world = World::unmigrated().await;
    world.sql(&format!("create schema tollgate; grant create, usage on schema tollgate to {OWNER}")).await;
    let mut conn = world.connect_as(OWNER).await;
    for _ in 0..2 {
        migrate::run(&mut conn).await.unwrap();
        migrate::validate(&mut conn).await.unwrap();
    }
}

#[tokio::test]
async fn who_cannot_take_a_right_back_or_grant_one_is_told_so() {
    let world = World::new().await;
    let role = world.role().await;
    world
        .sql(&format!(
            "grant all on schema tollgate to {role}; grant select on tollgate.schema_history to {role};
             grant execute on function tollgate.reset to public"
        ))
        .await;
    let mut conn = world.admin().await;
    run(&mut conn, &format!("set session authorization {role}")).await;
    let migrator = migrate::Migrator::new().owner(OWNER);
    let told = migrator.run(&mut conn).await.expect_err("it cannot").to_string();
    assert!(told.starts_with("PUBLIC has EXECUTE on tollgate.reset"), "{told}");
    assert_eq!(fails(&mut conn, &migrator.sql()).await, "42501");

    let other = format!("grant execute on all functions in schema tollgate to {ON_CALL}");
    run(&mut owner(&world).await, &other).await;
    let mut conn = world.connect_as(ON_CALL).await;
    assert_eq!(fails(&mut conn, &grants(&role, Callers::Applications)).await, "42501");
}

/// A role that is granted the right to ask is no operator, unless it is named as one after that, or may write the
/// tables anyway.
#[tokio::test]
async fn a_grant_to_ask_takes_back_what_gives() {
    let world = World::new().await;
    let role = world.role().await;
    let may = async |function: &str| {
        let sql = format!("select has_function_privilege('{role}', 'tollgate.{function}', 'execute')");
        one::<bool>(&mut world.admin().await, &sql).await
    };
    let (ask, give) = ("balance(text, text)", "reset(text, text)");
    let grant = async |callers| run(&mut owner(&world).await, &grants(&role, callers)).await;
    world.sql(&format!("grant execute on all functions in schema tollgate to {role}")).await;
    grant(Callers::Applications).await;
    assert_eq!((may(ask).await, may(give).await), (true, false));
    grant(Callers::Operators).await;
    assert_eq!((may(ask).await, may(give).await), (true, true));
    world.sql(&format!("grant update on tollgate.durable to {role}")).await;
    grant(Callers::Applications).await;
    assert_eq!((may(ask).await, may(give).await), (true, true));
}

/// Where others may have made objects before, one of theirs may fit a call of ours better than our own function.
#[tokio::test]
async fn a_function_of_somebody_else_beside_ours_is_refused() {
    let world = World::new().await;
    let role = world.role().await;
    world
        .sql(&format!(
            "grant create, usage on schema tollgate to {role}; set role {role};
             create function tollgate.key(text) returns text language plpgsql as 'begin return $1; end';
             revoke execute on function tollgate.key(text) from public;
             grant execute on function tollgate.key(text) to {OWNER}"
        ))
        .await;
    let mut conn = world.connect_as(OWNER).await;
    let told = format!("{role} has made tollgate.key(text) beside a function of tollgate (drop it), a right");
    for error in [migrate::validate(&mut conn).await.map(drop), migrate::run(&mut conn).await.map(drop)] {
        let error = error.expect_err("it is not ours").to_string();
        assert!(error.starts_with(&told), "{error}");
    }
    assert_eq!(fails(&mut conn, &migrate::sql()).await, "42501");
    world.sql("drop function tollgate.key(text)").await;
    migrate::run(&mut conn).await.unwrap();
    migrate::validate(&mut conn).await.unwrap();
}

/// A trigger of theirs runs as whoever writes, and a cast of theirs where a foreign key is checked.
#[tokio::test]
async fn who_may_run_code_as_the_owner_may_give() {
    for (right, code) in [
        ("references on tollgate.durable", ""),
        ("trigger on tollgate.schema_history", ""),
        (
            "trigger on tollgate.calls",
            "create trigger theirs before insert on tollgate.calls for each row execute function theirs.do_it();
             reset role; revoke trigger on tollgate.calls from {role};",
        ),
    ] {
        let world = World::new().await;
        let role = world.role().await;
        world
            .sql(&format!(
                "grant usage on schema tollgate to {role}; grant {right} to {role};
                 create schema theirs authorization {role}; set role {role};
                 create function theirs.do_it() returns trigger language plpgsql as 'begin return new; end'; {}",
                code.replace("{role}", &role)
            ))
            .await;
        let rights = migrate::rights(&mut world.connect_as(OWNER).await).await.unwrap();
        assert!(rights.may_give.contains(&role), "{right}: {rights:?}");
    }
}

/// A role that could once create in the schema leaves objects there. None has a name of ours, so nothing reaches them:
/// migrations take rights back, and go on.
#[tokio::test]
async fn what_a_stranger_leaves_under_its_own_names_stops_no_migration() {
    let left = [
        "function tollgate.f(int) returns int language sql as 'select 1'",
        "procedure tollgate.p() language sql as 'select'",
        "aggregate tollgate.a(int) (sfunc = int4pl, stype = int)",
        "table tollgate.t (a serial primary key)",
        "view tollgate.v as select 1 as a",
        "sequence tollgate.s",
        "type tollgate.e as enum ('a')",
        "domain tollgate.d as text",
        "operator tollgate.= (leftarg = text, rightarg = text, function = texteq)",
        "collation tollgate.c from \"C\"",
        "text search dictionary tollgate.z (template = simple)",
        "function tollgate.to_ours(tollgate.e) returns tollgate.decision language sql as 'select null::tollgate.decision'",
        "cast (tollgate.e as tollgate.decision) with function tollgate.to_ours as implicit",
        // Its functions are an administrator's.
        "extension pg_trgm schema tollgate",
    ];
    for by_text in [false, true] {
        let world = World::new().await;
        let role = world.role().await;
        world
            .sql(&format!(
                "revoke {role} from {OWNER}; grant create on database {} to {role};
                 grant create, usage on schema tollgate to {role};
                 grant execute on function tollgate.reset to public; set session authorization {role};
                 create {}",
                world.name(),
                left.join("; create ")
            ))
            .await;
        let mut conn = world.connect_as(OWNER).await;
        if by_text {
            run(&mut conn, &migrate::sql()).await;
        } else {
            migrate::run(&mut conn).await.unwrap();
        }
        run(&mut conn, &grants(ON_CALL, Callers::Applications)).await;
        migrate::validate(&mut conn).await.unwrap();
        let rights = migrate::rights(&mut conn).await.unwrap();
        assert!(!rights.may_give.contains(&"PUBLIC".to_owned()), "{rights:?}");
        let may = "select has_function_privilege('public', 'tollgate.reset(text, text)', 'execute')
                       or has_schema_privilege($1, 'tollgate', 'create')";
        let may = sqlx::query_scalar::<_, bool>(may).bind(&role).fetch_one(&mut world.admin().await).await;
        assert!(!may.unwrap());
        let mut told = migrate::Migrator::new().left(&mut conn).await.unwrap();
        assert_eq!(told.len(), left.len(), "{told:#?}");
        while let Some(first) = told.first() {
            assert!(first.what.ends_with(&format!(" belongs to {role}")) && !first.is_right, "{first:?}");
            // Some go with others.
            world.sql(&format!("{} cascade", first.remedy)).await;
            told = migrate::Migrator::new().left(&mut conn).await.unwrap();
        }
    }
}

/// A migration that fails for what only a person can drop has taken the rights back.
#[tokio::test]
async fn rights_are_taken_back_even_where_a_migration_fails() {
    for by_text in [false, true] {
        let world = World::new().await;
        let role = world.role().await;
        world
            .sql(&format!(
                "revoke {role} from {OWNER}; grant create, usage on schema tollgate to {role};
                 grant execute on function tollgate.reset to public; grant insert on tollgate.limits to public;
                 set session authorization {role};
                 create function tollgate.reset(int) returns int language sql as 'select 1';
                 revoke execute on function tollgate.reset(int) from public"
            ))
            .await;
        assert_ne!(wrong_rights(&world).await, Vec::<String>::new());
        let mut conn = world.connect_as(OWNER).await;
        if by_text {
            // Each statement by itself, as psql runs a script.
            for statement in migrate::sql().split_inclusive("end $tollgate$;\n") {
                let _ = sqlx::raw_sql(sqlx::AssertSqlSafe(statement.to_owned())).execute(&mut conn).await;
            }
        } else {
            migrate::run(&mut conn).await.unwrap_err();
        }
        assert_eq!(wrong_rights(&world).await, Vec::<String>::new());
        let fault = migrate::validate(&mut conn).await.unwrap_err().to_string();
        assert!(fault.starts_with(&format!("function tollgate.reset(integer) belongs to {role} (")), "{fault}");
    }
}
