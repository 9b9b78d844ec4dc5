//! Rows that somebody wrote by hand, and a table that somebody has locked.

use sqlx::postgres::PgPoolOptions;
use sqlx::{Connection, PgConnection};
use tollgate::{Effect, Key, Limit, MINUTE, NewOverride, Overrides, Reason, SECOND};

use super::{TEN, say, until};
use crate::teller::run;
use crate::world::{OWNER, World, limiter, patient};

/// Lets in any row, as an owner may, or a restore of an older schema.
async fn unchecked(world: &World) -> PgConnection {
    let mut owner = world.connect_as(OWNER).await;
    run(&mut owner, "set search_path = pg_catalog").await;
    run(
        &mut owner,
        "do $$ declare c text; begin
             for c in select conname from pg_constraint
                       where conrelid = 'tollgate.overrides'::regclass and contype = 'c'
             loop execute format('alter table tollgate.overrides drop constraint %I', c); end loop;
         end $$",
    )
    .await;
    // A text of its own: Citus passes on the whole text that a change of a table is part of.
    run(&mut owner, "alter table tollgate.overrides alter reason drop not null, alter set_by drop not null").await;
    owner
}

/// A row with one column of its own.
fn row(key: &str, column: &str, value: &str) -> String {
    let columns = ["effect", "kind", "rate", "period", "capacity", "max_reserved", "starts_at", "ends_at", "set_at"];
    let usual = ["'deny'", "null", "null", "null", "null", "null", "'epoch'", "'infinity'", "'epoch'"];
    let values = columns.iter().zip(usual).map(|(name, usual)| if *name == column { value } else { usual });
    format!(
        "insert into tollgate.overrides (name, key, {}, reason, set_by) values ('ten', '{key}', {}, 'x', 'y')",
        columns.join(", "),
        values.collect::<Vec<_>>().join(", ")
    )
}

/// It counts as it is written: a deny goes on denying.
#[tokio::test]
async fn a_row_with_an_instant_that_is_none_hides_no_other() {
    let world = World::new().await;
    let mut owner = unchecked(&world).await;
    say(&world, NewOverride::deny(&TEN).key("good")).await;
    let overrides = Overrides::watch(world.pool.clone()).await.unwrap();
    for (key, column, value) in [
        ("a", "set_at", "'infinity'"),
        ("b", "set_at", "'-infinity'"),
        ("c", "set_at", "'294276-12-31'"),
        ("d", "starts_at", "'-infinity'"),
        ("e", "ends_at", "'294276-12-31'"),
    ] {
        run(&mut owner, &row(key, column, value)).await;
    }
    run(&mut owner, &row("later", "starts_at", "'294276-12-31'")).await;
    let gate = patient(&world.pool).overrides(&overrides).build();
    until(async || (overrides.all().len() == 7).then_some(())).await;
    for key in ["a", "b", "c", "d", "e", "good"] {
        let denied = gate.consume(TEN.key(key)).await.unwrap().denied().unwrap();
        assert_eq!(denied.reason, Reason::Override, "{key}");
    }
    assert!(gate.consume(TEN.key("later")).await.unwrap().is_granted());
    // Numbers among them apply.
    let numbers = "update tollgate.overrides set effect = 'numbers', kind = 'token_bucket', rate = 20000000,
                          period = 1000000, capacity = 20000000, max_reserved = 0 where key = 'a'";
    run(&mut owner, numbers).await;
    until(async || gate.consume(TEN.key("a").cost(15)).await.ok()?.granted().ok()).await;
}

/// It may be a deny, so it denies; each is shown, and the others count.
#[tokio::test]
async fn a_row_that_cannot_be_read_denies_and_is_shown() {
    let world = World::new().await;
    let mut owner = unchecked(&world).await;
    run(&mut owner, "select tollgate.define('ten', 'token_bucket', 10, '1 day')").await;
    run(&mut owner, &row("a", "effect", "'ban'")).await;
    run(&mut owner, &row("b", "effect", "''")).await;
    // The last two are of a kind that a later release may have, and of a key that nobody has.
    let numbers = "insert into tollgate.overrides (name, key, effect, kind, rate, period, capacity, max_reserved,
                                                   starts_at, ends_at, reason, set_by, set_at)
                   select 'ten', v.*, 0, 'epoch', 'infinity', null, null, 'epoch'
                     from (values ('c', 'numbers', 'token_bucket', -1, 1, 1),
                                  ('d', 'numbers', 'token_bucket', 1, -1, 1),
                                  ('e', 'numbers', 'token_bucket', 1, null, 1),
                                  ('f', 'numbers', 'leaky', 1, 1, 1),
                                  (repeat('g', 513), 'deny', null, null, null, null)) v";
    run(&mut owner, numbers).await;
    say(&world, NewOverride::numbers(&Limit::token_bucket("ten", 30, SECOND)).key("good")).await;
    let overrides = Overrides::read(&mut world.connect().await).await.unwrap();
    let all = overrides.all();
    let keys =
        |wanted| all.iter().filter(move |said| (said.effect == Effect::Unreadable) == wanted).map(|said| &said.key);
    let key = |text: &str| Some(Key::new(text).unwrap());
    assert!(keys(true).eq(&["a", "b", "c", "d", "e"].map(key)));
    assert!(keys(false).eq(&[key("good")]));
    let (gate, limiter) = (patient(&world.pool).overrides(&overrides).build(), limiter().overrides(&overrides));
    let mut tx = world.begin().await;
    for key in ["a", "b", "c", "d", "e"] {
        assert_eq!(gate.consume(TEN.key(key)).await.unwrap().denied().unwrap().reason, Reason::Override, "{key}");
        assert_eq!(limiter.consume(&mut tx, TEN.key(key)).await.unwrap().denied().unwrap().reason, Reason::Override);
    }
    assert!(gate.consume(TEN.key("f")).await.unwrap().is_granted());
    assert!(gate.consume(TEN.key("good").cost(20)).await.unwrap().is_granted());
    for key in ["a", "b"] {
        let granted = sqlx::query_scalar::<_, bool>("select granted from tollgate.consume('ten', $1)").bind(key);
        assert!(!granted.fetch_one(&mut owner).await.unwrap(), "{key}");
    }
}

/// A reading that waited for the lock would keep the connection, and the next reading would take another.
#[tokio::test]
async fn a_locked_table_keeps_no_connection_from_callers() {
    let world = World::new().await;
    let pool = PgPoolOptions::new().max_connections(1).acquire_timeout(MINUTE).connect(&world.url()).await.unwrap();
    let overrides = Overrides::watch(pool.clone()).await.unwrap();
    let gate = patient(&pool).overrides(&overrides).build();
    let mut admin = world.admin().await;
    let mut holder = admin.begin().await.unwrap();
    sqlx::query("lock table tollgate.overrides").execute(&mut *holder).await.unwrap();
    world.until_anyone_is_blocked().await;
    assert!(gate.consume(TEN.key("ada")).await.unwrap().is_granted());
}
