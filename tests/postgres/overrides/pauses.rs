//! Limits that are paused because the other side asked for it.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::AssertSqlSafe;
use tollgate::{
    DAY, Decision, Effect, HOUR, Key, Limit, MINUTE, NewOverride, Override, OverrideError, Overrides, Reason,
};

use super::slow_down::{SLOWLY, reporters};
use super::{TEN, now, on_call, until};
use crate::teller::run;
use crate::world::{OWNER, patient, second};

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

/// One answer was wrong, and another one says so. Nobody shortens what somebody else wants.
#[tokio::test]
async fn an_answer_corrects_one_that_named_far_longer_and_no_other_pause() {
    let (world, overrides) = reporters().await;
    let minutes = |said: Result<Option<Override>, OverrideError>| {
        let said = said.unwrap().unwrap();
        (said.ends_at.unwrap() - said.set_at).num_minutes()
    };
    // The function goes by the table alone, and the library by its memory, too.
    let told = async |key: &str, span: Duration| {
        let lasts = minutes(overrides.pause_as_told(TEN.key(key), span).await);
        let sql =
            "select set_at, ends_at from tollgate.pause('ten', $1, lasting => $2::text::interval, as_told => true)";
        let said =
            sqlx::query_as::<_, (DateTime<Utc>, DateTime<Utc>)>(sql).bind(key).bind(format!("{}s", span.as_secs()));
        let (set_at, ends_at) = said.fetch_one(&world.pool).await.unwrap();
        assert_eq!((ends_at - set_at).num_minutes(), lasts);
        lasts
    };
    for (span, lasts) in [(60, 60), (40, 60), (1, 1), (20, 20), (0, 20), (9, 9)] {
        assert_eq!(told("answers", MINUTE * span).await, lasts, "{span}");
    }
    assert_eq!(minutes(overrides.pause_for(TEN.key("first"), HOUR).await), 60);
    for (span, lasts) in [(1, 60), (120, 120), (1, 120)] {
        assert_eq!(told("first", MINUTE * span).await, lasts, "{span}");
    }
    assert_eq!(told("later", HOUR).await, 60);
    assert!(minutes(overrides.pause_for(TEN.key("later"), MINUTE).await) >= 59);
    assert!(told("later", MINUTE).await >= 59);
    let sql = "select tollgate.pause('ten', 'of another role', lasting => '1 hour', as_told => true)";
    run(&mut world.connect_as(OWNER).await, sql).await;
    assert_eq!(told("of another role", MINUTE).await, 60);

    // A rate does not stand still until the end that was wrong.
    told("slowed", HOUR).await;
    overrides.slow_down(TEN.key("slowed"), &SLOWLY).await.unwrap();
    told("slowed", MINUTE).await;
    let all = Overrides::read(&mut on_call(&world).await).await.unwrap().all();
    let [pause, slowed] = &all.iter().filter(|said| said.key == Key::new("slowed").ok()).collect::<Vec<_>>()[..] else {
        panic!("{all:?}")
    };
    assert_eq!(Some(slowed.starts_at), pause.ends_at);
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
