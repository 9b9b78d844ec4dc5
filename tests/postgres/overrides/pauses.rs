//! Limits that are paused because the other side asked for it.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::AssertSqlSafe;
use tollgate::{
    DAY, Decision, Effect, HOUR, Key, Limit, MINUTE, NewOverride, Override, OverrideError, Overrides, Reason, SECOND,
    Tokens, first_of, split,
};

use super::clocks::ahead;
use super::slow_down::{SLOWLY, reporters};
use super::{TEN, now, on_call, until};
use crate::teller::run;
use crate::world::{OWNER, World, is_distributed, limiter, patient, second, sweeper};

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
    // Nor until the end of a pause that an operator lifts.
    let (mut conn, key) = (world.connect_as(OWNER).await, Key::new("slowed").unwrap());
    let (lasts, before) = (slowed.ends_at.unwrap() - slowed.starts_at, now(&world).await);
    assert!(NewOverride::remove(&mut conn, "ten", Some(&key), "pause").await.unwrap());
    let slowed =
        Overrides::read(&mut conn).await.unwrap().all().into_iter().find(|said| said.key.as_ref() == Some(&key));
    let (starts_at, ends_at) = slowed.map(|said| (said.starts_at, said.ends_at.unwrap())).unwrap();
    assert!((before..=now(&world).await).contains(&starts_at) && ends_at - starts_at == lasts, "{starts_at}");
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

/// SQL pauses one of two limits.
#[tokio::test]
async fn alternatives_pass_over_a_paused_limit_and_a_split_is_refused() {
    let (world, overrides) = reporters().await;
    let gate = patient(&world.pool).overrides(&overrides).build();
    let other = Limit::token_bucket("other", 10, DAY).key("k");
    run(&mut world.connect_as(OWNER).await, "select tollgate.pause('ten', 'k', lasting => '1 hour')").await;
    until(async || gate.check(TEN.key("k")).await.unwrap().denied()).await;
    let granted = gate.consume(first_of([[TEN.key("k")], [other.clone()]])).await.unwrap().granted().unwrap();
    assert_eq!((granted.alternative, granted.remaining), (1, Tokens::new(9)));
    for both in [split(3, [TEN.key("k"), other.clone()]), split(3, [other.clone(), TEN.key("k")])] {
        let denied = gate.consume(both).await.unwrap().denied().unwrap();
        assert_eq!((denied.reason, &*denied.limit), (Reason::Paused, "ten"));
    }
    assert!(gate.balance(other).await.unwrap().remaining >= Tokens::new(9));
}

/// A hundred tokens come back in a thousand seconds.
const SLOW: Limit = Limit::token_bucket("slow", 100, SECOND.saturating_mul(1_000)).capacity(101);

/// All tokens are used, and an hour of pause passes.
#[tokio::test]
async fn no_burst_follows_a_pause_whoever_asks() {
    // SQL decides over plain tables alone.
    if is_distributed() {
        return;
    }
    let world = ahead("0").await;
    let mut conn = world.connect_as(OWNER).await;
    run(&mut conn, "select tollgate.define('slow', 'token_bucket', 100, '1000 seconds', 101)").await;
    let overrides = Overrides::watch(world.pool.clone()).await.unwrap();
    let limiter = limiter().overrides(&overrides);
    let [gate, ahead] =
        [Duration::ZERO, HOUR].map(|age| patient(&world.pool).overrides(&overrides).prefetch(age).build());
    for key in ["limiter", "gate", "sql", "sql_all", "debit"] {
        run(&mut conn, &format!("select tollgate.debit('slow', '{key}', 101)")).await;
    }
    while ahead.prefetched(&SLOW.key("ahead")) < Tokens::new(2) {
        ahead.consume(SLOW.key("ahead")).await.unwrap().granted().unwrap();
    }
    let left = ahead.balance(SLOW.key("ahead")).await.unwrap().remaining;
    run(&mut conn, "select tollgate.pause('slow', every_key => true, lasting => '1 hour')").await;
    until(async || ahead.consume(SLOW.key("ahead")).await.unwrap().denied()).await;
    world.set_ahead("1 hour").await;
    until(async || gate.check(SLOW.key("another")).await.unwrap().granted().ok()).await;

    // Some seconds have passed besides the hour.
    let few = |tokens: Tokens| assert!(tokens < Tokens::new(20), "{tokens:?}");
    let mut tx = world.begin().await;
    few(limiter.balance(&mut tx, SLOW.key("limiter")).await.unwrap().remaining);
    let denied = limiter.consume(&mut tx, SLOW.key("limiter").cost(20)).await.unwrap().denied().unwrap();
    drop(tx);
    few(gate.balance(SLOW.key("gate")).await.unwrap().remaining);
    gate.consume(SLOW.key("gate").cost(20)).await.unwrap().denied().unwrap();
    // The gate loses the tokens that it had taken ahead.
    let after = ahead.balance(SLOW.key("ahead")).await.unwrap().remaining;
    few(after.checked_sub(left).unwrap_or(Tokens::ZERO));
    assert_eq!(ahead.prefetched(&SLOW.key("ahead")), Tokens::ZERO);
    let sql = "select (tollgate.balance('slow', 'sql') < 20::numeric
                       and not (tollgate.consume('slow', 'sql', 20)).granted
                       and not (tollgate.check('slow', 'sql', 20)).granted
                       and not (tollgate.consume_all(array[tollgate.request('slow', 'sql_all', 20)])).granted
                       and tollgate.debit('slow', 'debit', 0.000001) < 20::numeric)";
    assert!(sqlx::query_scalar::<_, bool>(sql).fetch_one(&mut conn).await.unwrap());
    // The refusal says when they are there, and a key that nobody has asked is full.
    assert!(denied.retry_after().unwrap() < SECOND * 200, "{denied}");
    gate.consume(SLOW.key("another").cost(101)).await.unwrap().granted().unwrap();
}

/// A pause counts for as long again as it has lasted, and the sweeper leaves the limit's rows alone until then.
#[tokio::test]
async fn no_row_is_swept_whose_bucket_stood_still() {
    for (paused, expected) in [("k", [1, 0, 0, 1]), ("", [0, 0, 0, 2])] {
        let world = World::new().await;
        let pause = format!(
            "insert into tollgate.overrides (name, key, label, effect, starts_at, ends_at, reason, set_by, set_at)
             values ('ten', '{paused}', 'pause', 'deny', '2023-11-14 22:13:21Z', '2023-11-15 22:13:21Z', 'x', 'x',
                     '2023-11-14Z')"
        );
        run(&mut world.connect_as(OWNER).await, &pause).await;
        let limit = Limit::token_bucket("ten", 10, SECOND);
        let mut tx = world.begin().await;
        for key in ["k", "other"] {
            limiter().at(second(0.0)).debit(&mut tx, limit.key(key).cost(20)).await.unwrap();
        }
        tx.commit().await.unwrap();
        let mut swept = Vec::new();
        for hours in [1.0, 25.0, 47.0, 49.0] {
            swept.push(sweeper().at(second(hours * 3_600.0)).sweep(&world.pool).await.unwrap().durable);
        }
        assert_eq!(swept, expected, "{paused:?}");
    }
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
