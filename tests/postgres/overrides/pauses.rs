//! Limits that are paused because the other side asked for it.

use chrono::{DateTime, Utc};
use sqlx::AssertSqlSafe;
use tollgate::{DAY, Decision, Effect, HOUR, Key, Limit, MINUTE, NewOverride, Overrides, Reason};

use super::slow_down::reporters;
use super::{TEN, now, on_call, until};
use crate::world::{patient, second};

#[tokio::test]
async fn a_pause_refuses_everybody_until_it_ends_and_none_shortens_it() {
    let (world, overrides) = reporters().await;
    let gate = patient(&world.pool).overrides(&overrides).build();
    let now = now(&world).await;
    let said = overrides.pause_for(TEN.key("k"), HOUR).await.unwrap().unwrap();
    assert_eq!((&*said.label, said.effect), ("pause", Effect::Deny));
    let end = said.ends_at.unwrap();
    assert_eq!(end.timestamp_subsec_micros(), 0);
    assert!((now + HOUR..now + HOUR + MINUTE).contains(&end), "{said:?}");
    // This process goes by it at once.
    let denied = until(async || gate.consume(TEN.key("k")).await.unwrap().denied()).await;
    assert_eq!((denied.reason, denied.retry_at), (Reason::Paused, Some(end)));
    assert!(denied.to_string().starts_with("limit \"ten\" paused, because trouble was reported"), "{denied}");
    assert!(gate.consume(TEN.key("other")).await.unwrap().is_granted());
    // A shorter one changes nothing, even where this process does not know of the first.
    for overrides in [&overrides, &Overrides::watch(world.pool.clone()).await.unwrap()] {
        let shorter = overrides.pause_until(TEN.key("k"), now + MINUTE).await.unwrap();
        assert_eq!(shorter.as_ref(), Some(&said));
    }
    let days = overrides.pause_until(TEN.key("k"), now + 9 * DAY).await.unwrap().unwrap();
    assert!((now + DAY..now + DAY + MINUTE).contains(&days.ends_at.unwrap()), "a day at most: {days:?}");
    // An instant that has passed is no pause.
    assert_eq!(overrides.pause_until(TEN.key("other"), now - HOUR).await.unwrap(), None);
    assert_eq!(overrides.pause_until(TEN.key("other"), DateTime::<Utc>::MIN_UTC).await.unwrap(), None);
    let endless = overrides.pause_until(TEN.key("other"), DateTime::<Utc>::MAX_UTC).await.unwrap().unwrap();
    assert!(endless.ends_at.unwrap() <= now + DAY + MINUTE);

    assert!(
        NewOverride::remove(&mut on_call(&world).await, "ten", Some(&Key::new("k").unwrap()), "pause").await.unwrap()
    );
    until(async || gate.consume(TEN.key("k")).await.unwrap().granted().ok()).await;
}

/// The function goes by the table alone, and not by the memory of a process.
#[tokio::test]
async fn a_pause_by_sql_is_written_if_it_ends_later() {
    let (world, _) = reporters().await;
    let pause = async |until: &str| {
        let sql =
            format!("select ends_at::text || ' ' || set_at::text from tollgate.pause('ten', 'k', until => {until})");
        sqlx::query_scalar::<_, Option<String>>(AssertSqlSafe(sql)).fetch_one(&world.pool).await.unwrap()
    };
    world.sql("create table public.instant as select date_trunc('minute', now()) + interval '12 hours' as at").await;
    let end = "(select at from public.instant)";
    let paused = pause(end).await;
    assert!(paused.is_some());
    for no_later in [end, &format!("{end} - interval '1 hour'"), "'2020-01-01'"] {
        assert_eq!(pause(no_later).await, paused, "{no_later}");
    }
    assert_ne!(pause(&format!("{end} + interval '1 hour'")).await, paused);
    world.sql("update tollgate.overrides set starts_at = '2020-01-01', ends_at = '2020-01-02'").await;
    assert_eq!(pause("'2020-01-01'").await, None, "none counts");
}

/// A waiter of a paused limit wakes when an operator lifts the pause.
#[tokio::test]
async fn a_waiter_follows_reports() {
    let (world, overrides) = reporters().await;
    let gate = patient(&world.pool).overrides(&overrides).build();
    overrides.pause_for(TEN.key("k"), DAY).await.unwrap();
    let waiter = tokio::spawn({
        let gate = gate.clone();
        async move { gate.wait(TEN.key("k"), 2 * DAY).await }
    });
    until(async || gate.consume(TEN.key("k")).await.unwrap().denied()).await;
    let key = Key::new("k").unwrap();
    assert!(NewOverride::remove(&mut on_call(&world).await, "ten", Some(&key), "pause").await.unwrap());
    assert!(waiter.await.unwrap().unwrap().is_granted());
}

/// The recipe of the guide `following.md`.
#[tokio::test]
async fn a_lock_out_grows_with_each_one_before() {
    const LOCK_OUTS: Limit = Limit::token_bucket("lock_outs", 6, DAY);
    let (world, overrides) = reporters().await;
    let gate = patient(&world.pool).clock(|| second(0.0)).build();
    let mut minutes = Vec::new();
    for nth in 0..8 {
        let before = match gate.consume(LOCK_OUTS.key("ada")).await.unwrap() {
            Decision::Granted(grant) => 5 - grant.remaining.whole(),
            Decision::Denied(_) => 5,
        };
        // Each is a key of its own: a pause that ends later stays.
        let pause = overrides.pause_for(TEN.key(nth), MINUTE * (1 << before)).await.unwrap().unwrap();
        minutes.push((pause.ends_at.unwrap() - pause.starts_at).num_minutes());
    }
    assert_eq!(minutes, [1, 2, 4, 8, 16, 32, 32, 32]);
}
