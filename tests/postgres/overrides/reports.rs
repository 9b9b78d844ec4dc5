//! Reports of trouble: those that are wrong, those that are over, and who may report.

use std::time::Duration;

use chrono::{DateTime, Utc};
use tollgate::migrate::{Callers, grants};
use tollgate::{DAY, HOUR, Limit, LimitKind, NewOverride, OverrideError, Overrides, SECOND, SlowDown, SlowDownFault};

use super::slow_down::{SLOWLY, THEIRS, reporters, slowed};
use super::{TEN, on_call};
use crate::functions::fails;
use crate::teller::run;
use crate::world::{OWNER, World, is_distributed, second};

#[tokio::test]
async fn a_report_that_is_wrong_has_a_name_before_sql() {
    let (world, overrides) = reporters().await;
    let fault = async |limit: Limit, how: SlowDown| match overrides.slow_down(limit.key("k"), &how).await {
        Err(OverrideError::SlowDown { fault, .. }) => fault,
        other => panic!("{other:?}"),
    };
    world.pool.close().await;
    let how = SlowDown::new();
    for percent in [0, 100, 255] {
        assert_eq!(fault(TEN, how.percent(percent)).await, SlowDownFault::Percent);
        assert_eq!(fault(TEN, how.least_percent(percent)).await, SlowDownFault::LeastPercent);
    }
    for span in [Duration::ZERO, SECOND / 2, DAY + SECOND, SECOND + Duration::from_nanos(1)] {
        assert_eq!(fault(TEN, how.recovers(span)).await, SlowDownFault::Recovers);
    }
    assert_eq!(fault(TEN, how.cool_down(DAY + SECOND)).await, SlowDownFault::CoolDown);
    assert_eq!(fault(TEN, how.forgets(DAY + SECOND)).await, SlowDownFault::Forgets);
    assert_eq!(fault(Limit::wallet("money"), how).await, SlowDownFault::Kind(LimitKind::Wallet));
    assert_eq!(fault(Limit::monthly("llm", 9), how).await, SlowDownFault::Kind(LimitKind::Monthly));
    assert_eq!(fault(Limit::billing("llm", 9), how).await, SlowDownFault::Kind(LimitKind::Billing));
    let usage = Limit::meter("usage");
    let slowed = overrides.slow_down(usage.key("k"), &how).await;
    let paused = overrides.pause_for(usage.key("k"), HOUR).await;
    assert!(matches!(slowed, Err(OverrideError::Meter { .. })), "{slowed:?}");
    assert!(matches!(paused, Err(OverrideError::Meter { .. })), "{paused:?}");
    let key = overrides.slow_down(TEN.key(""), &how).await;
    assert!(matches!(key, Err(OverrideError::Key { .. })), "{key:?}");
    let closed = overrides.slow_down(TEN.key("k"), &how).await;
    assert!(matches!(closed, Err(OverrideError::Database { .. })), "{closed:?}");
    let once = Overrides::read(&mut on_call(&World::new().await).await).await.unwrap();
    assert!(matches!(once.slow_down(TEN.key("k"), &how).await, Err(OverrideError::NotWatched)));
    assert!(matches!(once.pause_for(TEN.key("k"), HOUR).await, Err(OverrideError::NotWatched)));
}

#[tokio::test]
async fn a_report_that_is_wrong_is_an_error_of_our_class_in_sql() {
    let world = World::new().await;
    let mut conn = world.connect_as(OWNER).await;
    run(&mut conn, "select tollgate.define('money', 'wallet'), tollgate.define('bill', 'meter')").await;
    for wrong in [
        "slow_down('x', null)",
        "slow_down('x', '')",
        "slow_down('x', 'k', every_key => true)",
        "slow_down('', 'k')",
        "slow_down(repeat('x', 256), 'k')",
        "slow_down(null, 'k')",
        "slow_down('x', 'k', percent => 0)",
        "slow_down('x', 'k', percent => 100)",
        "slow_down('x', 'k', percent => null)",
        "slow_down('x', 'k', least_percent => 0)",
        "slow_down('x', 'k', recovers => '0')",
        "slow_down('x', 'k', recovers => '2 days')",
        "slow_down('x', 'k', recovers => null)",
        "slow_down('x', 'k', cool_down => '-1 s')",
        "slow_down('x', 'k', cool_down => null)",
        "slow_down('x', 'k', forgets => '-1 s')",
        "slow_down('x', 'k', forgets => '2 days')",
        "slow_down('money', 'k')",
        "slow_down('bill', 'k')",
        "pause('bill', 'k', lasting => '1 s')",
        "pause('x', 'k')",
        "pause('x', 'k', until => now(), lasting => '1 s')",
        "pause('x', null, lasting => '1 s')",
        "set_override('x', 'k', 'deny', reason => 'x', label => 'pause')",
        "set_override('x', 'k', 'deny', reason => 'x', label => 'slowdown')",
        "set_override('x', 'k', 'slowed', reason => 'x')",
    ] {
        assert_eq!(fails(&mut conn, &format!("select tollgate.{wrong}")).await, "TG002", "{wrong}");
    }
    for nothing in ["lasting => '-1 h'", "until => '-infinity'"] {
        let sql = format!("select (tollgate.pause('x', 'k', {nothing})).name is null");
        assert!(sqlx::query_scalar::<_, bool>(sqlx::AssertSqlSafe(sql)).fetch_one(&mut conn).await.unwrap());
    }
    assert!(Overrides::read(&mut conn).await.unwrap().all().is_empty());
}

/// Reports that are over do not stay in the table, which all processes read.
#[tokio::test]
async fn a_report_removes_those_that_are_over() {
    let (world, overrides) = reporters().await;
    let (past, future) = (second(-1e9), second(1e9));
    for key in ["a", "b"] {
        slowed(&world, key, 1_000, past, past + HOUR).await;
    }
    slowed(&world, "live", 1_000, past, future).await;
    NewOverride::deny(&THEIRS).key("c").until(future).reason("x").set(&mut on_call(&world).await).await.unwrap();
    overrides.slow_down(THEIRS.key("k"), &SLOWLY).await.unwrap();
    let all = Overrides::read(&mut on_call(&world).await).await.unwrap().all();
    let keys: Vec<_> = all.iter().map(|said| said.key.as_ref().unwrap().as_str()).collect();
    assert_eq!(keys, ["c", "k", "live"]);
}

/// Whatever the limits and keys are called: each process reads all of them.
#[tokio::test]
async fn reports_are_bounded_and_one_too_many_has_a_name() {
    let (world, overrides) = reporters().await;
    let mut conn = world.connect_as(OWNER).await;
    let bound = "create or replace function tollgate._max_reports() returns int4 language sql immutable as 'select 3'";
    run(&mut conn, bound).await;
    slowed(&world, "over", 1_000, second(-1e9), second(0.0)).await;
    NewOverride::deny(&TEN).key("of an operator").reason("x").set(&mut on_call(&world).await).await.unwrap();
    run(&mut conn, "select tollgate.pause('a', 'k', lasting => '1 h'), tollgate.slow_down('b', 'k')").await;
    overrides.pause_for(TEN.key("k"), HOUR).await.unwrap();
    for wrong in ["pause('c', 'k', lasting => '1 s')", "slow_down('b', 'other')", "slow_down('a', every_key => true)"] {
        assert_eq!(fails(&mut conn, &format!("select tollgate.{wrong}")).await, "TG011", "{wrong}");
    }
    for error in [
        overrides.slow_down(THEIRS.key("k"), &SLOWLY).await.unwrap_err(),
        overrides.pause_for(THEIRS.key("k"), HOUR).await.unwrap_err(),
    ] {
        assert!(matches!(&error, OverrideError::TooManyReports { limit, .. } if limit == "theirs"), "{error:?}");
    }
    // Those that are there can be reported again, and one that is lifted makes room.
    overrides.pause_for(TEN.key("k"), 2 * HOUR).await.unwrap();
    run(&mut conn, "select tollgate.remove_override('a', 'k', label => 'pause')").await;
    overrides.slow_down(THEIRS.key("k"), &SLOWLY).await.unwrap();
}

/// Of a session in a zone whose clock is put forward or back at the next midnight.
#[tokio::test]
async fn a_day_has_24_hours_whatever_the_zone_of_the_session() {
    // SQL decides over plain tables alone.
    if is_distributed() {
        return;
    }
    for offset in ["1", "-1"] {
        let world = World::new().await;
        let mut conn = world.connect_as(OWNER).await;
        let zone = format!("select set_config('timezone', format('AAA0BBB{offset},%s/0,%s/0', d, (d + 9) % 365), false)
                              from (select extract(doy from (now() at time zone 'UTC') + interval '1 day')::int - 1) t (d)");
        run(&mut conn, &zone).await;
        run(
            &mut conn,
            "select tollgate.define('day', 'wallet'), tollgate.pause('day', 'lasting', lasting => '1 day'),
                    tollgate.pause('day', 'until', until => 'infinity'),
                    tollgate.set_override('day', 'said', 'deny', lasting => '1 day', reason => 'x'),
                    tollgate.debit('day', 'k', 1, once => 'id', kept => '1 day'),
                    tollgate.slow_down('theirs', 'k', percent => 1, least_percent => 1, recovers => '1 day',
                                       cool_down => '0')",
        )
        .await;
        let spans = "select key, starts_at, ends_at from tollgate.overrides
                      union all select id, charged_at, kept_until from tollgate.calls";
        let spans = sqlx::query_as::<_, (String, DateTime<Utc>, DateTime<Utc>)>(spans).fetch_all(&mut conn).await;
        for (what, from, until) in spans.unwrap() {
            // The rate grows back from a hundredth, and a pause ends at a whole second.
            let day = if what == "k" { DAY * 99 / 100 } else { DAY };
            assert!((day..=day + SECOND).contains(&(until - from).to_std().unwrap()), "{what}: {from} to {until}");
        }
    }
}

#[tokio::test]
async fn a_reporter_may_report_and_nothing_else() {
    let world = World::new().await;
    let role = world.role().await;
    let mut conn = world.connect().await;
    world.sql(&grants(&role, Callers::Applications)).await;
    run(&mut conn, &format!("set role {role}")).await;
    assert_eq!(fails(&mut conn, "select tollgate.slow_down('ten', 'k')").await, "42501");
    world.sql(&grants(&role, Callers::Reporters)).await;
    run(&mut conn, "select tollgate.slow_down('ten', 'k'), tollgate.pause('ten', 'k', lasting => '1 s')").await;
    run(&mut conn, "select tollgate.check('ten', 'k') from tollgate.request('ten', 'k') where false").await;
    for wrong in [
        "select tollgate.set_override('ten', 'k', 'deny', reason => 'x')",
        "select tollgate.remove_override('ten', 'k', label => 'pause')",
        "select tollgate._report('ten', 'k', 'x', 'deny', null, now(), now(), now(), null, 'x', null)",
        "delete from tollgate.overrides",
    ] {
        assert_eq!(fails(&mut conn, wrong).await, "42501", "{wrong}");
    }
    let rights = tollgate::migrate::rights(&mut world.connect_as(OWNER).await).await.unwrap();
    assert!(rights.may_report.contains(&role) && !rights.may_give.contains(&role), "{rights:?}");
}
