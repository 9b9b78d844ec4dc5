//! Nothing of a stranger runs with the rights of whoever migrates.

mod ties;

use sqlx::{AssertSqlSafe, PgConnection};
use tollgate::migrate::{self, MigrateError};

use crate::functions::fails;
use crate::teller::run;
use crate::world::{OWNER, World};

/// A role that once could create in the database and in the schema. Code of its own that anybody else runs counts in
/// `evil.thefts`, which no rollback undoes.
pub(crate) struct Stranger {
    pub(crate) world: World,
    pub(crate) role: String,
    session: PgConnection,
}

impl Stranger {
    /// In a database where nobody has migrated.
    pub(crate) async fn first() -> Self {
        Self::of(World::unmigrated().await).await
    }

    /// In a schema that the owner has made, with nothing in it.
    async fn inside() -> Self {
        let stranger = Self::first().await;
        stranger.world.sql(&format!("create schema tollgate authorization {OWNER}")).await;
        stranger.let_in().await;
        stranger
    }

    /// In a schema that is migrated.
    pub(crate) async fn late() -> Self {
        let stranger = Self::of(World::new().await).await;
        stranger.let_in().await;
        stranger
    }

    async fn of(world: World) -> Self {
        let role = world.role().await;
        world
            .sql(&format!(
                "revoke {role} from tollgate_service, tollgate_on_call, {OWNER};
                 grant create on database {} to {role};
                 create schema evil authorization {role}; grant usage on schema evil to public;
                 create sequence evil.thefts; grant all on sequence evil.thefts to public;
                 set session authorization {role}; {MAKE}",
                world.name()
            ))
            .await;
        let mut session = world.admin().await;
        run(&mut session, &format!("set session authorization {role}")).await;
        Self { world, role, session }
    }

    async fn let_in(&self) {
        self.world.sql(&format!("grant create, usage on schema tollgate to {}", self.role)).await;
    }

    pub(crate) async fn run(&mut self, sql: &str) {
        run(&mut self.session, sql).await;
    }

    pub(crate) async fn stole(&self) -> bool {
        let stole = sqlx::query_scalar("select is_called from evil.thefts");
        stole.fetch_one(&mut self.world.admin().await).await.unwrap()
    }

    /// Each way to migrate, as the owner and as the administrator, fails and names all of these things of a stranger.
    /// None of them runs.
    async fn is_refused(&self, things: &[&str]) {
        let things: Vec<_> = things.iter().map(|thing| format!("{thing} belongs to {}", self.role)).collect();
        for mut conn in [self.world.connect_as(OWNER).await, self.world.admin().await] {
            for refused in [
                migrate::run(&mut conn).await.map(drop),
                migrate::dry_run(&mut conn).await.map(drop),
                migrate::status(&mut conn).await.map(drop),
                migrate::validate(&mut conn).await,
            ] {
                let Err(MigrateError::Strangers { what, .. }) = refused else { panic!("{things:?}: {refused:?}") };
                assert_eq!(things.iter().find(|thing| !what.contains(thing)), None, "{what:?}");
            }
            let refused = sqlx::raw_sql(AssertSqlSafe(migrate::sql())).execute(&mut conn).await.unwrap_err();
            let told = refused.as_database_error().unwrap().message().to_owned();
            assert!(told.contains(&format!("belongs to {}", self.role)) && told.contains("--owner"), "{told}");
        }
        assert!(!self.stole().await, "{things:?}");
    }
}

/// Functions of the stranger.
const MAKE: &str = "
    create function evil.steal() returns bool language plpgsql as $$ begin
        if current_user <> pg_get_userbyid((select nspowner from pg_namespace where nspname = 'evil')) then
            perform nextval('evil.thefts');
        end if;
        return true;
    end $$;
    create function evil.on_write() returns trigger language plpgsql as
        $$ begin perform evil.steal(); return new; end $$";

/// The table that refinery makes, with a trigger behind it.
const HISTORY: &str = "
    create table tollgate.schema_history (version int4 primary key, name varchar(255), applied_on varchar(255),
                                          checksum varchar(255));
    create trigger steal before insert on tollgate.schema_history for each row execute function evil.on_write();
    grant all on tollgate.schema_history to public";

#[tokio::test]
async fn whoever_makes_the_schema_first_gets_no_right_of_whoever_migrates() {
    let mut stranger = Stranger::first().await;
    stranger.run(&format!("create schema tollgate; grant all on schema tollgate to public; {HISTORY}")).await;
    stranger.is_refused(&["schema tollgate", "table tollgate.schema_history"]).await;
}

#[tokio::test]
async fn a_whole_schema_of_a_stranger_is_not_taken_for_ours() {
    let mut stranger = Stranger::first().await;
    stranger.run(&migrate::sql()).await;
    stranger.is_refused(&["schema tollgate", "table tollgate.durable", "function tollgate._parts()"]).await;
    migrate::validate(&mut stranger.session).await.unwrap();
}

/// Whether PostgreSQL would refuse it itself, read it, or prefer it to ours later.
#[tokio::test]
async fn whatever_has_a_name_of_ours_is_refused_if_it_is_a_strangers() {
    for (made, what) in [
        (&[HISTORY][..], &["table tollgate.schema_history"][..]),
        (&["create view tollgate.schema_history as select evil.steal()"], &["view tollgate.schema_history"]),
        (&["create table tollgate.schema_history (a int) partition by list (a)"], &["table tollgate.schema_history"]),
        (&RELATIONS.map(|(made, _)| made), &RELATIONS.map(|(_, what)| what)),
        (&OTHERS.map(|(made, _)| made), &OTHERS.map(|(_, what)| what)),
    ] {
        let mut stranger = Stranger::inside().await;
        for made in made {
            stranger.run(made).await;
        }
        stranger.is_refused(what).await;
    }
}

const RELATIONS: [(&str, &str); 7] = [
    ("create table tollgate.durable (a int)", "table tollgate.durable"),
    (
        "create materialized view tollgate.balances as select evil.steal() as a with no data",
        "materialized view tollgate.balances",
    ),
    ("create sequence tollgate.limits", "sequence tollgate.limits"),
    ("create table tollgate.mine (a int); create index calls_lapse on tollgate.mine (a)", "index tollgate.calls_lapse"),
    ("create table tollgate.key_of (a int constraint calls primary key)", "index tollgate.calls"),
    (
        "create table tollgate.identity (a int generated always as identity (sequence name tollgate.overrides))",
        "sequence tollgate.overrides",
    ),
    ("create view tollgate.ephemeral as select 1 as a", "view tollgate.ephemeral"),
];

const OTHERS: [(&str, &str); 9] = [
    ("create type tollgate.decision as (a int)", "type tollgate.decision"),
    ("create type tollgate.override as enum ('a')", "type tollgate.override"),
    // PostgreSQL names the array of it `_verdict`.
    ("create type tollgate.verdict as enum ('a')", "type tollgate.verdict[]"),
    // `tollgate.key('ada')` would be a cast to it.
    ("create domain tollgate.key as text check (evil.steal())", "type tollgate.key"),
    ("create function tollgate.key(text) returns text language sql as 'select $1'", "function tollgate.key(text)"),
    (
        "create function tollgate._tokens(int) returns int8 language sql as 'select 1::int8'",
        "function tollgate._tokens(integer)",
    ),
    ("create procedure tollgate.reset() language sql as 'select'", "procedure tollgate.reset()"),
    ("create aggregate tollgate.consume(int) (sfunc = int4pl, stype = int)", "aggregate tollgate.consume(integer)"),
    ("create collation tollgate.request from \"C\"", "collation tollgate.request"),
];

#[tokio::test]
async fn whoever_is_a_member_of_the_owner_migrates_and_an_administrator_has_to_name_it() {
    let stranger = Stranger::inside().await;
    let mut admin = stranger.world.admin().await;
    let refused = migrate::run(&mut admin).await.unwrap_err().to_string();
    assert!(refused.starts_with(&format!("schema tollgate belongs to {OWNER} (")), "{refused}");
    migrate::run(&mut stranger.world.connect_as(OWNER).await).await.unwrap();
    let member = format!("{}_member", stranger.world.name());
    stranger.world.sql(&format!("create role {member} login; grant {OWNER} to {member}")).await;
    let mut conn = stranger.world.admin().await;
    run(&mut conn, &format!("set session authorization {member}")).await;
    let migrated = (migrate::run(&mut conn).await, migrate::validate(&mut conn).await);
    drop(conn);
    stranger.world.sql(&format!("drop role {member}")).await;
    assert!(matches!(migrated, (Ok(_), Ok(()))), "{migrated:?}");
}

/// To a stranger every object of the migrations is in the way: none is left over, as one without a name of ours would
/// be.
#[tokio::test]
async fn each_object_that_migrations_make_has_a_name_of_ours() {
    let world = World::new().await;
    assert_eq!(migrate::Migrator::new().left(&mut world.admin().await).await.unwrap(), []);
}

/// As soon as the lock is free, migrations look at what is there then.
#[tokio::test]
async fn what_a_stranger_makes_while_migrations_wait_is_seen() {
    for made in [HISTORY, "create function tollgate.key(text) returns text language sql as 'select $1'"] {
        let mut stranger = Stranger::inside().await;
        stranger.run(&format!("select pg_advisory_lock({})", i64::from_be_bytes(*b"tollgate"))).await;
        let mut conn = stranger.world.connect_as(OWNER).await;
        let pid = crate::world::pid(&mut conn).await;
        let migrating = tokio::spawn(async move { migrate::run(&mut conn).await });
        stranger.world.until_blocked(pid).await;
        stranger.run(made).await;
        stranger.run("select pg_advisory_unlock_all()").await;
        let told = migrating.await.unwrap().expect_err(made).to_string();
        assert!(told.contains(&format!("belongs to {}", stranger.role)), "{told}");
        assert!(!stranger.stole().await, "{made}");
    }
}

/// The history that another session makes at the same moment is not taken for ours.
#[tokio::test]
async fn a_history_that_is_not_yet_committed_ends_the_migrations() {
    let mut stranger = Stranger::inside().await;
    stranger.run(&format!("begin; {HISTORY}")).await;
    let mut conn = stranger.world.connect_as(OWNER).await;
    let pid = crate::world::pid(&mut conn).await;
    let migrating = tokio::spawn(async move { migrate::run(&mut conn).await });
    stranger.world.until_blocked(pid).await;
    stranger.run("commit").await;
    migrating.await.unwrap().expect_err("the name is taken");
    assert!(!stranger.stole().await);
}

/// Its catalogue would be an old one, in which what a stranger has made since is missing.
#[tokio::test]
async fn a_transaction_that_sees_an_old_state_does_not_migrate() {
    use sqlx::Connection;
    let stranger = Stranger::first().await;
    let mut conn = stranger.world.connect_as(OWNER).await;
    for level in ["repeatable read", "serializable"] {
        let mut tx = conn.begin_with(AssertSqlSafe(format!("begin isolation level {level}"))).await.unwrap();
        let refused = migrate::run(&mut tx).await.unwrap_err();
        assert!(refused.to_string().contains("READ COMMITTED"), "{refused}");
        tx.rollback().await.unwrap();
        run(&mut conn, &format!("set default_transaction_isolation = '{level}'")).await;
        assert_eq!(fails(&mut conn, &migrate::sql()).await, "25004");
    }
    assert!(!migrate::run(&mut conn).await.unwrap().is_empty());
}

/// Every type, collation, operator and function that the migrations and their checks name is PostgreSQL's own, even
/// where the path puts a stranger's first.
#[tokio::test]
async fn a_path_that_puts_strangers_first_leads_nowhere() {
    for by_text in [false, true] {
        let mut stranger = Stranger::first().await;
        let types = ["text", "int4", "int8", "oid", "record", "json", "timestamptz", "name", "bool"];
        let domains = types.map(|of| format!("create domain evil.\"{of}\" as pg_catalog.{of} check (evil.steal());"));
        let of_record = domains.iter().filter(|domain| !domain.contains("record")).cloned().collect::<String>();
        stranger
            .run(&format!(
                "{of_record} create type evil.record as enum ('a');
                 create collation evil.\"C\" (provider = libc, locale = 'C');
                 create function evil.same(text, text) returns bool language sql as 'select evil.steal()';
                 create function evil.same(oid, oid) returns bool language sql as 'select evil.steal()';
                 create function evil.same(name, name) returns bool language sql as 'select evil.steal()';
                 create operator evil.= (leftarg = text, rightarg = text, function = evil.same);
                 create operator evil.= (leftarg = oid, rightarg = oid, function = evil.same);
                 create operator evil.= (leftarg = name, rightarg = name, function = evil.same);
                 create operator evil.<> (leftarg = text, rightarg = text, function = evil.same);
                 create operator evil.<> (leftarg = oid, rightarg = oid, function = evil.same)"
            ))
            .await;
        let mut conn = stranger.world.connect_as(OWNER).await;
        run(&mut conn, "set search_path = evil, public, pg_catalog").await;
        for _ in 0..2 {
            if by_text {
                run(&mut conn, &migrate::sql()).await;
            } else {
                migrate::run(&mut conn).await.unwrap();
            }
            migrate::validate(&mut conn).await.unwrap();
            migrate::rights(&mut conn).await.unwrap();
            run(&mut conn, &migrate::grants(&stranger.role, migrate::Callers::Applications)).await;
        }
        assert!(!stranger.stole().await);
        let path: String = sqlx::query_scalar("show search_path").fetch_one(&mut conn).await.unwrap();
        assert_eq!(path, "evil, public, pg_catalog");
        let of_evil =
            "select exists (select from pg_catalog.pg_attribute a join pg_catalog.pg_type t on t.oid = a.atttypid
                        where a.attrelid::regclass::pg_catalog.text like 'tollgate.%'
                          and t.typnamespace = 'evil'::regnamespace)";
        let of_evil: bool = sqlx::query_scalar(of_evil).fetch_one(&mut stranger.world.admin().await).await.unwrap();
        assert!(!of_evil);
    }
}

#[tokio::test]
async fn an_overload_that_was_given_to_the_owner_is_an_edited_function() {
    let world = World::new().await;
    let mut conn = world.connect_as(OWNER).await;
    run(
        &mut conn,
        "create function tollgate.key(text) returns text language sql as 'select $1';
                     revoke execute on function tollgate.key(text) from public",
    )
    .await;
    let fault = migrate::validate(&mut conn).await;
    assert!(matches!(&fault, Err(MigrateError::EditedFunction { name, .. }) if name == "key"), "{fault:?}");
}
