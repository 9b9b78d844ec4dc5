//! Overrides that are set while the database's clock is ahead, and that clock steps back.

use sqlx::AssertSqlSafe;
use tollgate::migrate::{Callers, grants};
use tollgate::{DAY, HOUR, Key, Limit, MINUTE, NewOverride, Overrides};

use super::slow_down::{SLOWLY, THEIRS, share};
use super::{TEN, lift, now, on_call, say, until};
use crate::teller::run;
use crate::world::{OWNER, SERVICE, World, is_on_citus, limiter, patient};

/// A world whose clock is ahead.
pub(super) async fn ahead(span: &str) -> World {
    let world = World::with_clock().await;
    world.sql(&grants(SERVICE, Callers::Reporters)).await;
    let define = "select tollgate.define('ten', 'token_bucket', 10, '1000 days'),
                         tollgate.define('theirs', 'token_bucket', 1000, '1 second', 200)";
    run(&mut world.connect_as(OWNER).await, define).await;
    world.set_ahead(span).await;
    world
}

/// Whether a token is granted to a key now: by a limiter, by a gate and by the functions.
async fn is_granted(world: &World, limit: &Limit, key: &str, cost: u32) -> bool {
    let overrides = Overrides::read(&mut world.connect().await).await.unwrap();
    let ask = || limit.key(key).cost(cost);
    let mut tx = world.begin().await;
    let by_limiter =
        limiter().overrides(&overrides).check(&mut tx, ask()).await.is_ok_and(|decision| decision.is_granted());
    drop(tx);
    let gate = patient(&world.pool).overrides(&overrides).build();
    assert_eq!(gate.check(ask()).await.is_ok_and(|decision| decision.is_granted()), by_limiter, "{key}");
    if !is_on_citus() {
        let sql = format!("select granted from tollgate.check('{}', '{key}', {cost})", limit.name());
        let by_function = sqlx::query_scalar::<_, bool>(AssertSqlSafe(sql));
        let by_function = by_function.fetch_one(&mut world.connect_as(OWNER).await).await;
        assert_eq!(by_function.unwrap_or(false), by_limiter, "{key}");
    }
    by_limiter
}

#[tokio::test]
async fn whoever_names_no_start_means_from_now_on_whatever_the_clock_says_later() {
    for span in ["11 seconds", "1 hour"] {
        let world = ahead(span).await;
        let more = Limit::token_bucket("ten", 100, DAY);
        say(&world, NewOverride::deny(&TEN).key("denied")).await;
        say(&world, NewOverride::deny(&TEN).key("denied for a day").lasting(DAY)).await;
        say(&world, NewOverride::unlimited(&TEN).key("free")).await;
        say(&world, NewOverride::numbers(&more).key("more")).await;
        let reporter = Overrides::watch(world.pool.clone()).await.unwrap();
        reporter.pause_for(TEN.key("paused"), HOUR).await.unwrap().unwrap();
        let slowed = reporter.slow_down(THEIRS.key("slowed"), &SLOWLY).await.unwrap();
        world.set_ahead("0").await;

        for (key, cost, granted) in [
            ("denied", 1, false),
            ("denied for a day", 1, false),
            ("paused", 1, false),
            ("free", 1_000, true),
            ("more", 100, true),
            ("other", 10, true),
        ] {
            assert_eq!(is_granted(&world, &TEN, key, cost).await, granted, "{key}, set {span} ahead");
        }
        let overrides = Overrides::read(&mut world.connect().await).await.unwrap();
        let applied = overrides.applied(&THEIRS, &Key::new("slowed").unwrap()).unwrap();
        assert_eq!(applied.share, Some(share(&slowed)), "the share of the start, until the clock is there again");
        // A process that has read the clock of then goes by the next reading.
        say(&world, NewOverride::deny(&TEN).key("afterwards")).await;
        until(async || reporter.all().iter().any(|said| said.key == Key::new("afterwards").ok()).then_some(())).await;
        assert!(reporter.applied(&TEN, &Key::new("denied").unwrap()).is_some(), "set {span} ahead");
        assert!(lift(&world, &TEN, Some("denied")).await);
        assert!(is_granted(&world, &TEN, "denied", 1).await);
    }
}

/// By the functions, as `psql` sets them.
#[tokio::test]
async fn what_sql_sets_without_a_start_has_begun_where_the_clock_steps_back() {
    if is_on_citus() {
        return;
    }
    let world = ahead("1 hour").await;
    let mut conn = world.connect_as(OWNER).await;
    run(
        &mut conn,
        "select tollgate.set_override('ten', 'denied', 'deny', reason => 'x'),
                tollgate.set_override('ten', 'free', 'unlimited', reason => 'x'),
                tollgate.set_override('ten', 'more', rate => 100, reason => 'x'),
                tollgate.pause('ten', 'paused', lasting => '1 minute'),
                tollgate.slow_down('theirs', 'slowed', percent => 70, recovers => '1 day', forgets => '0')",
    )
    .await;
    world.set_ahead("0").await;
    for (key, cost, granted) in
        [("denied", 1, false), ("paused", 1, false), ("free", 1_000, true), ("more", 100, true), ("other", 10, true)]
    {
        assert_eq!(is_granted(&world, &TEN, key, cost).await, granted, "{key}");
    }
    let sql = "select rate from tollgate._overridden('theirs', 'slowed', null)";
    assert_eq!(sqlx::query_scalar::<_, i64>(sql).fetch_one(&mut conn).await.unwrap(), 700_000_000);
    // The next one's answer names those that have begun.
    let beside =
        "select (tollgate.set_override('ten', 'denied', 'unlimited', label => 'b', reason => 'x')).others[1].effect";
    assert_eq!(sqlx::query_scalar::<_, String>(beside).fetch_one(&mut conn).await.unwrap(), "deny");
    let later = "select tollgate.set_override('ten', 'denied', 'deny', reason => 'x',
                                              starts_at => clock_timestamp() + interval '1 minute')";
    let refused = sqlx::raw_sql(later).execute(&mut conn).await.unwrap_err().to_string();
    assert!(refused.contains("is live, and this one begins later"), "{refused}");
    // A pause that ends later stays.
    let sql = "select label from tollgate.pause('ten', 'paused', lasting => '1 second')";
    assert_eq!(sqlx::query_scalar::<_, String>(sql).fetch_one(&mut conn).await.unwrap(), "pause");
    let ends = "select count(*) from tollgate.overrides
                 where label = 'pause' and ends_at > clock_timestamp() + interval '1 hour'";
    assert_eq!(sqlx::query_scalar::<_, i64>(ends).fetch_one(&mut conn).await.unwrap(), 1);
}

/// A start that somebody names is meant.
#[tokio::test]
async fn what_is_to_begin_later_begins_then() {
    let world = ahead("1 hour").await;
    let start = now(&world).await + HOUR;
    say(&world, NewOverride::deny(&TEN).key("later").from(start)).await;
    for (ahead, granted) in [("0", true), ("90 minutes", true), ("3 hours", false)] {
        world.set_ahead(ahead).await;
        assert_eq!(is_granted(&world, &TEN, "later", 1).await, granted, "{ahead} ahead");
    }
}

/// After a step of hours a limit that is in trouble now is slowed down further, and within the cool-down it is not.
#[tokio::test]
async fn a_slow_down_that_was_reported_ahead_of_the_clock_can_be_reported_again() {
    let world = ahead("0").await;
    let mut conn = on_call(&world).await;
    for (set, then, percent) in [("1 hour", "0", 49), ("1 second", "0", 70)] {
        world.set_ahead(set).await;
        let reporter = Overrides::watch(world.pool.clone()).await.unwrap();
        reporter.slow_down(THEIRS.global(), &SLOWLY.cool_down(MINUTE)).await.unwrap();
        world.set_ahead(then).await;
        let reporter = Overrides::watch(world.pool.clone()).await.unwrap();
        let again = reporter.slow_down(THEIRS.global(), &SLOWLY.cool_down(MINUTE)).await.unwrap();
        assert_eq!(share(&again) / 10_000, percent, "set {set} ahead");
        assert!(NewOverride::remove(&mut conn, "theirs", None, "slowdown").await.unwrap());
    }
}
