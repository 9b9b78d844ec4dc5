//! A role that may ask, and give where it is an operator, tries to have its own code run with the owner's rights. It
//! lays out all that a role can make, and calls each function and each trigger amid that.

mod triggers;

use std::collections::BTreeSet;

use sqlx::PgConnection;
use tollgate::migrate::{self, Callers, grants};

use super::asked::one;
use super::owner;
use crate::teller::run;
use crate::world::{OWNER, World};

/// Every function that runs as the owner, and a call of it. Functions without a call are triggers.
const CALLS: [(&str, &str); 21] = [
    ("balance", "tollgate.balance('ten', 'k')"),
    ("cancel", "tollgate.cancel('ten', 'k', 0, '2026-01-01', '2100-01-01')"),
    ("check", "tollgate.check('ten', 'k')"),
    ("check_all", "tollgate.check_all(array[tollgate.request('ten', 'k'), tollgate.request('shown', 'k')])"),
    ("consume", "tollgate.consume('ten', 'k'), tollgate.consume('shown', 'k', 2, 1, 1)"),
    ("consume_all", "tollgate.consume_all(array[tollgate.request('ten', 'k'), tollgate.request('shown', 'k')])"),
    ("consume_global", "tollgate.consume_global('ten')"),
    ("credit", "tollgate.credit('ten', 'k', 1, once => 'payment')"),
    ("debit", "tollgate.debit('ten', 'k', 1)"),
    ("define", "tollgate.define('another', 'fixed_window', 10, '1 day')"),
    // It names tables of Citus.
    ("hold_shard", "1"),
    ("limit_inserts", ""),
    ("limit_rows", ""),
    ("pause", "tollgate.pause('ten', 'other', lasting => '1 s')"),
    ("remove_override", "tollgate.remove_override('ten', 'k')"),
    ("reserve", "tollgate.reserve('ten', 'k')"),
    ("reserve_all", "tollgate.reserve_all(array[tollgate.request('ten', 'k')])"),
    ("reset", "tollgate.reset('ten', 'k')"),
    ("set_override", "tollgate.set_override('ten', 'k', rate => 20, reason => 'test')"),
    ("settle", "tollgate.settle('ten', 'k', 1, 0, '2026-01-01')"),
    ("slow_down", "tollgate.slow_down('ten', 'other')"),
];

/// A role that may call all functions, in a session of its own. Every run of its code as the owner counts in
/// `evil.thefts`, which no rollback undoes.
struct Attacker {
    conn: PgConnection,
    world: World,
}

impl Attacker {
    async fn new() -> Self {
        let world = World::new().await;
        let define = "select tollgate.define('ten', 'token_bucket', 10, '100 days'),
                             tollgate.define('shown', 'fixed_window', 10, '100 days')";
        run(&mut owner(&world).await, define).await;
        let role = world.role().await;
        for callers in [Callers::Applications, Callers::Operators, Callers::Reporters] {
            world.sql(&grants(&role, callers)).await;
        }
        world.sql(&format!("create schema evil authorization {role}; grant usage on schema evil to public")).await;
        let mut conn = world.connect().await;
        run(
            &mut conn,
            &format!(
                "set role {role};
                 set search_path = evil, strangers, pg_catalog;
                 create sequence evil.thefts;
                 grant all on sequence evil.thefts to public;
                 create function evil.steal() returns bool language plpgsql immutable as $$ begin
                     if current_user = '{OWNER}' then
                         perform nextval('evil.thefts');
                     end if;
                     return true;
                 end $$;
                 create table evil.plain (author text, \"od\"\"d\" text);"
            ),
        )
        .await;
        Self { conn, world }
    }

    async fn run(&mut self, sql: &str) {
        run(&mut self.conn, sql).await;
    }

    async fn stole(&mut self) -> bool {
        one(&mut self.conn, "select is_called from evil.thefts").await
    }

    async fn left(&mut self, key: &str) -> i32 {
        one(&mut self.conn, &format!("select tollgate.balance('ten', '{key}')::int")).await
    }

    /// Another session of the same role.
    async fn other(&self) -> PgConnection {
        let mut conn = self.world.connect().await;
        run(&mut conn, &format!("set role {}_role", self.world.name())).await;
        conn
    }
}

#[tokio::test]
async fn what_runs_as_the_owner_is_called_here() {
    let world = World::new().await;
    let mut conn = world.admin().await;
    let definers = "select p.proname::text from pg_proc p
                     where p.pronamespace = 'tollgate'::regnamespace and p.prosecdef group by 1 order by 1";
    let definers: Vec<String> = sqlx::query_scalar(definers).fetch_all(&mut conn).await.unwrap();
    assert_eq!(definers, CALLS.map(|(name, _)| name));
    let lax = "select p.proname::text from pg_proc p
                where p.pronamespace = 'tollgate'::regnamespace and p.prosecdef
                  and (p.proconfig @> array['search_path=pg_catalog, pg_temp', 'row_security=off']) is not true";
    let lax: Vec<String> = sqlx::query_scalar(lax).fetch_all(&mut conn).await.unwrap();
    assert_eq!(lax, Vec::<String>::new());
}

/// With that search path a function or an operator without a schema is PostgreSQL's own, and a relation or a type could
/// be a temporary one.
#[tokio::test]
async fn no_body_names_a_relation_or_a_type_without_its_schema() {
    let world = World::new().await;
    let mut conn = world.admin().await;
    let bare: Vec<String> = sqlx::query_scalar(include_str!("bare.sql")).fetch_all(&mut conn).await.unwrap();
    // Variables, and the transition table, which `limit_inserts` looks for.
    let known = [
        "cool_down",
        "d",
        "ends_at",
        "errcode",
        "forgets",
        "inserted",
        "items",
        "kept",
        "l",
        "named",
        "nodes",
        "q",
        "recovers",
        "requests",
        "retry",
        "seen_list",
        "tg_argv",
        "was",
        "written",
    ];
    assert_eq!(bare, known);
}

/// For each word of the sources there is a view or a domain of this name in the caller's temporary schema. A relation
/// named `inserted` would be an error of `limit_inserts`.
#[tokio::test]
async fn no_call_runs_what_its_caller_has_laid_out() {
    let source = migrate::sql();
    let is_of_a_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let words = source.split(|c| !is_of_a_name(c)).filter(|word| !["", "inserted"].contains(word));
    let words: BTreeSet<_> = words.collect();
    for bait in [
        "view pg_temp.\"{}\" as select 1 as a where evil.steal()",
        "domain pg_temp.\"{}\" as text check (evil.steal())",
    ] {
        let mut attacker = Attacker::new().await;
        let baits: Vec<_> = words.iter().map(|word| format!("create {};", bait.replace("{}", word))).collect();
        attacker.run(&baits.concat()).await;
        attacker
            .run(
                "create trigger rows before insert on evil.plain for each row
                        execute function tollgate.limit_rows('ten', 'author', 'od\"d');
                 create trigger statements after insert on evil.plain referencing new table as inserted
                        for each statement execute function tollgate.limit_inserts('ten', 'author')",
            )
            .await;
        for (name, call) in CALLS {
            let call =
                if call.is_empty() { "insert into evil.plain values ('ada', 'x')" } else { &format!("select {call}") };
            attacker.run(call).await;
            assert!(!attacker.stole().await, "{name}");
        }
        assert_eq!([attacker.left("ada").await, attacker.left("ada|x").await], [8, 8], "each trigger has run");
    }
}
