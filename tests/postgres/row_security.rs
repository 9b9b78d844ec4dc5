//! Row security that somebody has switched on hides rows without a word. No reader takes that for a row that is not
//! there.

use sqlx::PgConnection;
use tollgate::{HOUR, Key, Limit, Limits, MINUTE, NewOverride, Overrides, Storage};

use crate::functions::fails;
use crate::teller::run;
use crate::world::{ON_CALL, OWNER, World, limiter, sweeper};

/// The row security that an auditor may switch on for a table, with policies of its own: some let everything in, and
/// hide it.
const HOW: [&str; 4] = [
    "",
    "create policy none on {table} using (false)",
    "create policy few on {table} using (name = 'another') with check (true)",
    "create policy all_in on {table} using (true); \
     create policy few_out on {table} as restrictive for select using (false)",
];

async fn switch_on(world: &World, table: &str, how: &str) {
    let table = format!("tollgate.{table}");
    let policies = how.replace("{table}", &table);
    world.sql(&format!("alter table {table} enable row level security, force row level security; {policies}")).await;
}

macro_rules! is_told {
    ($($call:expr),+ $(,)?) => {$(
        let error = $call.await.map(drop).expect_err(stringify!($call));
        assert!(error.to_string().contains("row security hides rows"), "{}: {error}", stringify!($call));
    )+};
}

const TEN: Limit = Limit::token_bucket("ten", 10, HOUR);
const SLOTS: Limit = Limit::concurrency("slots", 1, HOUR);
const SPREAD: Limit = Limit::token_bucket("spread", 16, HOUR).shards(2);

#[tokio::test]
async fn no_verb_takes_a_hidden_row_for_a_full_one() {
    for (storage, how) in [Storage::Durable, Storage::Ephemeral].into_iter().flat_map(|s| HOW.map(|how| (s, how))) {
        let world = World::new().await;
        let of = |limit: Limit| if storage == Storage::Ephemeral { limit.ephemeral() } else { limit };
        let (ten, slots, spread) = (of(TEN), of(SLOTS), of(SPREAD));
        let gate = world.gate();
        let receipt = gate.consume(ten.key("k").cost(10)).await.unwrap().granted().unwrap().receipt;
        gate.consume(spread.key("k").cost(16)).await.unwrap().granted().unwrap();
        let held = gate.acquire(slots.key("k")).await.unwrap().granted().unwrap().into_receipt();
        switch_on(&world, &storage.to_string(), how).await;
        for key in ["k", "fresh"] {
            is_told!(
                gate.check(ten.key(key)),
                gate.balance(ten.key(key)),
                gate.consume(ten.key(key)),
                gate.consume(ten.key(key).cost(0)),
                gate.consume(spread.key(key)),
                gate.check(spread.key(key)),
                gate.consume([ten.key(key), spread.key(key)]),
                gate.credit(ten.key(key).cost(1)),
                gate.debit(ten.key(key).cost(1)),
                gate.reset(ten.key(key)),
                gate.reset(spread.key(key)),
                gate.check(slots.key(key)),
                limiter().check(&mut *world.begin().await, ten.key(key)),
                limiter().balance(&mut *world.begin().await, ten.key(key)),
                limiter().consume(&mut world.begin().await, ten.key(key)),
                limiter().consume(&mut world.begin().await, ten.key(key).cost(0)),
                limiter().consume(&mut world.begin().await, spread.key(key)),
                limiter().consume(&mut world.begin().await, [ten.key(key), spread.key(key)]),
                limiter().credit(&mut world.begin().await, ten.key(key).cost(1)),
                limiter().debit(&mut world.begin().await, ten.key(key).cost(1)),
                limiter().reset(&mut world.begin().await, ten.key(key)),
                limiter().reset(&mut world.begin().await, spread.key(key)),
            );
        }
        is_told!(
            gate.settle(receipt.clone(), 3),
            gate.cancel(receipt.clone()),
            gate.renew(&held),
            gate.release(held.clone()),
            limiter().settle(&mut world.begin().await, receipt.clone(), 3),
            limiter().cancel(&mut world.begin().await, receipt.clone()),
            limiter().renew(&mut world.begin().await, &held),
            limiter().release(&mut world.begin().await, held),
            sweeper().only(storage).sweep(&world.pool),
        );
    }
}

#[tokio::test]
async fn no_call_that_is_hidden_counts_as_lapsed_or_new() {
    for how in HOW {
        let world = World::new().await;
        let gate = world.gate();
        let asked = |id: &str| TEN.key("k").cost(1).once(id).lapses_after(MINUTE);
        let receipt = gate.consume(asked("known")).await.unwrap().granted().unwrap().receipt;
        world.sql("update tollgate.calls set lapses_at = 'epoch'").await;
        switch_on(&world, "calls", how).await;
        is_told!(
            gate.consume(asked("known")),
            gate.consume(asked("new")),
            gate.settle(receipt.clone(), 0),
            limiter().consume(&mut world.begin().await, asked("known")),
            limiter().settle(&mut world.begin().await, receipt.clone(), 0),
            sweeper().reap(&world.pool),
            sweeper().sweep(&world.pool),
        );
    }
}

#[tokio::test]
async fn no_override_that_is_hidden_counts_as_none() {
    for how in HOW {
        let world = World::new().await;
        run(
            &mut world.connect_as(ON_CALL).await,
            "select tollgate.set_override('ten', 'k', effect => 'deny', reason => 'abuse')",
        )
        .await;
        let watched = Overrides::watch(world.pool.clone()).await.unwrap();
        switch_on(&world, "overrides", how).await;
        is_told!(Overrides::watch(world.pool.clone()), Overrides::read(&mut world.connect().await));
        let key = Key::new("k").unwrap();
        assert!(watched.applied(&TEN, &key).is_some(), "what was read stays");
        is_told!(NewOverride::remove(&mut world.connect_as(ON_CALL).await, "ten", Some(&key), ""));
    }
}

#[tokio::test]
async fn no_definition_that_is_hidden_is_missing() {
    for how in HOW {
        let world = World::new().await;
        run(&mut world.connect_as(OWNER).await, "select tollgate.define('ten', 'token_bucket', 10, '1 hour')").await;
        switch_on(&world, "limits", how).await;
        let error = Limits::from_table(&mut world.connect().await).await.expect_err("they are hidden");
        assert!(format!("{error:?}").contains("row security hides rows of tollgate.limits"), "{error:?}");
    }
}

/// They have the rights of the owner, who sees all unless row security is forced on it, too.
#[tokio::test]
async fn the_functions_see_all_rows_or_fail() {
    for (table, how) in ["durable", "limits", "overrides"].into_iter().flat_map(|table| HOW.map(|how| (table, how))) {
        let world = World::new().await;
        let mut conn = world.connect_as(OWNER).await;
        run(
            &mut conn,
            "select tollgate.define('ten', 'token_bucket', 10, '1 day');
             select tollgate.granted(tollgate.consume('ten', 'k', 9));
             select tollgate.set_override('ten', 'denied', effect => 'deny', reason => 'abuse')",
        )
        .await;
        switch_on(&world, table, how).await;
        for call in [
            "select tollgate.check('ten', 'k', 2)",
            "select tollgate.consume('ten', 'k', 2)",
            "select tollgate.consume_all(array[tollgate.request('ten', 'k', 2)])",
            "select tollgate.balance('ten', 'k')",
            "select tollgate.reset('ten', 'k')",
            "select tollgate.credit('ten', 'k', 1)",
        ] {
            assert_eq!(fails(&mut conn, call).await, "42501", "{table}: {how}: {call}");
        }
        if table == "overrides" {
            assert_eq!(fails(&mut conn, "select tollgate.remove_override('ten', 'denied')").await, "42501");
        }
        world.sql(&format!("alter table tollgate.{table} no force row level security")).await;
        assert_eq!(fails(&mut conn, "select tollgate.granted(tollgate.consume('ten', 'k', 2))").await, "PT429");
        assert_eq!(fails(&mut conn, "select tollgate.granted(tollgate.consume('ten', 'denied'))").await, "PT429");
    }
}

/// Nothing is hidden from it.
#[tokio::test]
async fn whoever_bypasses_row_security_is_served() {
    let world = World::new().await;
    let role = world.role().await;
    world
        .sql(&format!(
            "alter role {role} bypassrls; grant usage on schema tollgate to {role};
             grant select, insert, update, delete on all tables in schema tollgate to {role}"
        ))
        .await;
    for table in ["ephemeral", "durable", "calls", "overrides"] {
        switch_on(&world, table, "").await;
    }
    let mut conn: PgConnection = world.connect().await;
    run(&mut conn, &format!("set role {role}")).await;
    let mut tx = sqlx::Connection::begin(&mut conn).await.unwrap();
    let asked = || TEN.key("k").cost(10).once("known");
    limiter().consume(&mut tx, asked()).await.unwrap().granted().unwrap();
    assert!(limiter().check(&mut tx, TEN.key("k")).await.unwrap().granted().is_err());
    tx.commit().await.unwrap();
    Overrides::read(&mut conn).await.unwrap();
}
