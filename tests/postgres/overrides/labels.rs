//! Several overrides of one key, each by its label, and which one counts.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use tollgate::{
    Effect, HOUR, Key, Limit, Limiter, NewOverride, Override, OverrideError, OverrideSet, Overrides, Reason, SECOND,
    Tokens,
};

use super::{TEN, on_call, until};
use crate::functions::fails;
use crate::gate::stage::EVER;
use crate::teller::run;
use crate::world::{OWNER, World, parts, patient, second};

const DEFINE: &str = "select tollgate.define('ten', 'token_bucket', 10, '1000 days')";

fn with(rate: u64) -> Limit {
    Limit::token_bucket("ten", rate, EVER)
}

async fn set(conn: &mut PgConnection, said: NewOverride) -> OverrideSet {
    said.reason("a test").set(conn).await.unwrap()
}

fn labels(of: &[Override]) -> Vec<&str> {
    of.iter().map(|said| &*said.label).collect()
}

/// The override that counts for a key at an instant, to the library and to the functions: `denied`, `unlimited`, or the
/// capacity.
async fn counts(conn: &mut PgConnection, limit: &Limit, key: &str, at: DateTime<Utc>) -> String {
    run(conn, "begin").await;
    let overrides = Overrides::read(conn).await.unwrap();
    let limiter = Limiter::new().parts(parts()).overrides(&overrides).at(at);
    let capacity = limiter.balance(conn, limit.key(key)).await.unwrap().capacity;
    let asked = limiter.check(conn, limit.key(key)).await.unwrap();
    run(conn, "rollback").await;
    match asked.granted() {
        Err(denied) if denied.reason == Reason::Override => "denied".to_owned(),
        Ok(grant) if grant.remaining == Tokens::MAX => "unlimited".to_owned(),
        _ => capacity.to_string(),
    }
}

async fn counts_in_sql(conn: &mut PgConnection, key: &str, at: DateTime<Utc>) -> String {
    let sql = "select effect, most from tollgate._overridden('ten', $1, $2)";
    let told = sqlx::query_as::<_, (Option<String>, i64)>(sql).bind(key).bind(at).persistent(false);
    let (effect, most) = told.fetch_one(conn).await.unwrap();
    match effect.as_deref() {
        Some("deny") => "denied".to_owned(),
        Some("unlimited") => "unlimited".to_owned(),
        _ => Tokens::from_micros(most).to_string(),
    }
}

#[tokio::test]
async fn each_label_is_set_replaced_and_removed_by_itself() {
    let world = World::new().await;
    let mut conn = on_call(&world).await;
    let contract = || NewOverride::numbers(&with(5_000)).key("ada").label("contract");
    let first = set(&mut conn, contract()).await;
    assert_eq!(first, OverrideSet::default());
    set(&mut conn, NewOverride::numbers(&with(20))).await;
    set(&mut conn, NewOverride::deny(&TEN).key("bob")).await;
    set(&mut conn, NewOverride::numbers(&with(30)).key("ada").label("later").from(second(4e9))).await;

    let banned = set(&mut conn, NewOverride::deny(&TEN).key("ada").lasting(HOUR)).await;
    assert_eq!(banned.replaced, None);
    assert_eq!(labels(&banned.others), ["contract", ""], "its own first, and none that begins later");
    assert!(matches!(banned.others[0].effect, Effect::Numbers { rate, .. } if rate == Tokens::new(5_000)));
    assert_eq!(banned.others[1].key, None);
    set(&mut conn, NewOverride::numbers(&with(40)).key("ada").label("another")).await;
    let banned = set(&mut conn, NewOverride::deny(&TEN).key("ada").lasting(HOUR)).await;
    assert_eq!(labels(&banned.others), ["another", "contract", ""], "what was set last first");

    // Renewing the contract does not lift the ban.
    let renewed = set(&mut conn, contract()).await;
    assert_eq!(renewed.replaced.map(|said| said.label), Some("contract".to_owned()));
    assert_eq!(renewed.others[0].effect, Effect::Deny);
    let all = Overrides::read(&mut conn).await.unwrap().all();
    assert_eq!(labels(&all), ["", "", "another", "contract", "later", ""]);
    let ada = Key::new("ada").unwrap();
    let mut remove = async |label| NewOverride::remove(&mut conn, "ten", Some(&ada), label).await.unwrap();
    assert!(remove("contract").await && !remove("contract").await && remove("").await && remove("later").await);
}

/// The answer names the label that counts.
#[tokio::test]
async fn a_ban_outlasts_a_contract_and_a_contract_outlasts_a_ban() {
    let world = World::new().await;
    let mut conn = on_call(&world).await;
    set(&mut conn, NewOverride::deny(&TEN).key("ada")).await;
    set(&mut conn, NewOverride::numbers(&with(5_000)).key("ada").label("contract")).await;
    let overrides = Overrides::watch(world.pool.clone()).await.unwrap();
    let gate = patient(&world.pool).overrides(&overrides).build();
    let denied = gate.consume(TEN.key("ada").cost(100)).await.unwrap().denied().unwrap();
    assert_eq!((denied.reason, &*denied.standings[0].override_label), (Reason::Override, ""));
    // Meanwhile the balance is read by the contract.
    assert_eq!(gate.balance(TEN.key("ada")).await.unwrap().capacity, Tokens::new(5_000));
    NewOverride::remove(&mut conn, "ten", Some(&Key::new("ada").unwrap()), "").await.unwrap();
    let grant = until(async || gate.consume(TEN.key("ada").cost(100)).await.unwrap().granted().ok()).await;
    assert_eq!((grant.standings[0].overridden, &*grant.standings[0].override_label), (true, "contract"));
}

#[tokio::test]
async fn of_several_the_strictest_effect_counts_and_of_numbers_the_last_that_was_set() {
    let world = World::new().await;
    run(&mut world.connect_as(OWNER).await, DEFINE).await;
    let mut conn = world.connect_as(OWNER).await;
    let each = |said: NewOverride, label: &str| said.label(label).from(second(0.0));
    let steps: [(NewOverride, &str, &str); 9] = [
        (each(NewOverride::numbers(&with(20)), "a"), "20", "20"),
        (each(NewOverride::numbers(&with(30)).key("ada"), "z"), "30", "20"),
        // Set last, though every key's: those of the key count.
        (each(NewOverride::numbers(&with(40)), "b"), "30", "40"),
        (each(NewOverride::numbers(&with(50)).key("ada"), "a"), "50", "40"),
        // Numbers that do not apply are passed over.
        (each(NewOverride::numbers(&Limit::fixed_window("ten", 7, EVER)).key("bob"), "w"), "50", "40"),
        (each(NewOverride::unlimited(&TEN), "all"), "unlimited", "unlimited"),
        (each(NewOverride::deny(&TEN).key("ada").until(second(4e9)), "ban"), "denied", "unlimited"),
        (each(NewOverride::unlimited(&TEN).key("ada"), "vip"), "denied", "unlimited"),
        (each(NewOverride::deny(&TEN).until(second(5e9)), "stop"), "denied", "denied"),
    ];
    for (said, ada, bob) in steps {
        let what = format!("{said:?}");
        // The functions take no kind but the definition's.
        if what.contains("FixedWindow") {
            run(&mut conn, "delete from tollgate.limits").await;
            set(&mut conn, said).await;
            run(&mut conn, DEFINE).await;
        } else {
            set(&mut conn, said).await;
        }
        for (key, wanted) in [("ada", ada), ("bob", bob)] {
            assert_eq!(counts(&mut conn, &TEN, key, second(3e9)).await, wanted, "{key}: {what}");
            assert_eq!(counts_in_sql(&mut conn, key, second(3e9)).await, wanted, "{key}: {what}");
        }
    }
    // Two deny: until the last of them ends.
    let overrides = Overrides::read(&mut conn).await.unwrap();
    run(&mut conn, "begin").await;
    let limiter = Limiter::new().parts(parts()).overrides(&overrides).at(second(3e9));
    let denied = limiter.check(&mut conn, TEN.key("ada")).await.unwrap().denied().unwrap();
    assert_eq!(denied.retry_at, Some(second(5e9)));
    run(&mut conn, "rollback").await;
    let ends_at = sqlx::query_scalar("select ends_at from tollgate._overridden('ten', 'ada', $1)").bind(second(3e9));
    assert_eq!(ends_at.fetch_one(&mut conn).await.ok(), Some(second(5e9)));
    // They end one after the other.
    for (at, ada, bob) in [(4.5e9, "denied", "denied"), (5.5e9, "unlimited", "unlimited")] {
        for (key, wanted) in [("ada", ada), ("bob", bob)] {
            assert_eq!(counts(&mut conn, &TEN, key, second(at)).await, wanted);
            assert_eq!(counts_in_sql(&mut conn, key, second(at)).await, wanted);
        }
    }
}

#[tokio::test]
async fn numbers_that_were_set_at_one_instant_count_by_their_label() {
    let world = World::new().await;
    run(&mut world.connect_as(OWNER).await, DEFINE).await;
    let mut conn = world.connect_as(OWNER).await;
    for (label, rate) in [("b", 30), ("Z", 20), ("ä", 40), ("a", 50)] {
        set(&mut conn, NewOverride::numbers(&with(rate)).key("ada").label(label)).await;
        run(&mut conn, "update tollgate.overrides set set_at = 'epoch'").await;
    }
    let now = second(4e9);
    assert_eq!(counts(&mut conn, &TEN, "ada", now).await, "40");
    assert_eq!(counts_in_sql(&mut conn, "ada", now).await, "40");
}

#[tokio::test]
async fn one_that_begins_later_changes_nothing_before() {
    let world = World::new().await;
    run(&mut world.connect_as(OWNER).await, DEFINE).await;
    let mut conn = world.connect_as(OWNER).await;
    set(&mut conn, NewOverride::numbers(&with(50)).key("ada")).await;
    let later = || NewOverride::numbers(&with(9_000)).key("ada").from(second(4e9)).reason("x");
    // Under the same label the later override would end the present one now.
    let refused = later().set(&mut conn).await.unwrap_err();
    assert!(matches!(refused, OverrideError::Rejected { .. }), "{refused:?}");
    assert!(refused.to_string().contains("is live, and this one begins later"), "{refused}");
    let sql = "select tollgate.set_override('ten', 'ada', rate => 9, starts_at => '2100-01-01', reason => 'x')";
    assert_eq!(fails(&mut conn, sql).await, "TG002");
    later().label("next year").set(&mut conn).await.unwrap();
    for (at, wanted) in [(3e9, "50"), (5e9, "9000")] {
        assert_eq!(counts(&mut conn, &TEN, "ada", second(at)).await, wanted);
        assert_eq!(counts_in_sql(&mut conn, "ada", second(at)).await, wanted);
    }
    // An override that has not begun can be changed any number of times.
    later().label("next year").from(second(4.1e9)).set(&mut conn).await.unwrap();
}

#[tokio::test]
async fn one_counts_from_its_start_until_its_end() {
    let world = World::new().await;
    run(&mut world.connect_as(OWNER).await, DEFINE).await;
    let mut conn = world.connect_as(OWNER).await;
    for (said, wanted) in [
        (NewOverride::numbers(&with(50)), "50"),
        (NewOverride::deny(&TEN), "denied"),
        (NewOverride::unlimited(&TEN), "unlimited"),
    ] {
        set(&mut conn, said.from(second(4e9)).until(second(5e9))).await;
        for (at, wanted) in [(4e9, wanted), (5e9, "10")] {
            assert_eq!(counts(&mut conn, &TEN, "ada", second(at)).await, wanted);
            assert_eq!(counts_in_sql(&mut conn, "ada", second(at)).await, wanted);
        }
    }
}

/// A label is no right: a role that may call the function may name each of them. A function of one's own holds a role
/// to one.
#[tokio::test]
async fn a_role_is_held_to_a_label_by_a_function_that_names_it() {
    let world = World::new().await;
    let mut owner = world.connect_as(OWNER).await;
    run(&mut owner, DEFINE).await;
    set(&mut on_call(&world).await, NewOverride::deny(&TEN).key("ada")).await;
    let role = world.role().await;
    run(
        &mut owner,
        "create function public.sign(customer text, calls numeric) returns void
         language sql security definer set search_path = pg_catalog, pg_temp as $$
             select tollgate.set_override('ten', customer, rate => calls, label => 'contract', reason => 'a contract',
                                          set_by => session_user::text) $$",
    )
    .await;
    run(&mut owner, "revoke execute on function public.sign from public").await;
    run(&mut owner, &format!("grant execute on function public.sign to {role}")).await;
    let mut app = world.connect_as(OWNER).await;
    run(&mut app, &format!("set role {role}")).await;
    run(&mut app, "select public.sign('ada', 5000)").await;
    let denied = "select tollgate.set_override('ten', 'ada', effect => 'unlimited', reason => 'x')";
    assert_eq!(fails(&mut app, denied).await, "42501");
    assert_eq!(fails(&mut app, "select tollgate.remove_override('ten', 'ada')").await, "42501");
    assert_eq!(fails(&mut app, "delete from tollgate.overrides").await, "42501");
    assert_eq!(counts(&mut owner, &TEN, "ada", second(4e9)).await, "denied");
    assert_eq!(labels(&Overrides::read(&mut owner).await.unwrap().all()), ["", "contract"]);
}

/// The sum of the transactions that wrote the rows stays, where one that began early ends late.
#[tokio::test]
async fn a_watcher_sees_what_a_transaction_changes_that_began_before_another() {
    let world = World::new().await;
    let mut conn = on_call(&world).await;
    let other = || NewOverride::numbers(&with(20)).key("bob").label("x");
    let mut early = on_call(&world).await;
    // The override of `bob` is set just before it.
    set(&mut conn, other()).await;
    run(&mut early, "begin").await;
    sqlx::raw_sql("select pg_catalog.pg_current_xact_id()").execute(&mut early).await.unwrap();
    set(&mut conn, NewOverride::numbers(&with(30)).key("ada").label("x")).await;
    let overrides = Overrides::watch(world.pool.clone()).await.unwrap();
    set(&mut early, NewOverride::deny(&TEN).key("ada").label("x")).await;
    set(&mut early, NewOverride::deny(&TEN).key("bob").label("x")).await;
    run(&mut early, "commit").await;
    let is_denied = |said: &Override| said.effect == Effect::Deny;
    tokio::time::timeout(20 * SECOND, until(async || overrides.all().iter().all(is_denied).then_some(())))
        .await
        .expect("it is seen long before all rows are read whatever the stamp says");
}

/// It would be set, and never apply.
#[tokio::test]
async fn reservations_of_an_ephemeral_limit_are_no_override() {
    let world = World::new().await;
    run(
        &mut world.connect_as(OWNER).await,
        "select tollgate.define('quick', 'token_bucket', 10, '1 day', storage => 'ephemeral')",
    )
    .await;
    let set = "select tollgate.set_override('quick', 'k', rate => 20, reason => 'a test'";
    let mut conn = on_call(&world).await;
    assert_eq!(fails(&mut conn, &format!("{set}, max_reserved => 5)")).await, "TG002");
    run(&mut conn, &format!("{set}, max_reserved => 0)")).await;
}
