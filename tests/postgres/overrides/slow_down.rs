//! Limits that follow the other side: reports slow them down, and they recover.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use sqlx::{Connection, PgConnection};
use tokio::task::JoinSet;
use tollgate::migrate::{Callers, grants};
use tollgate::{
    DAY, Decision, Effect, HOUR, Key, Limit, Limiter, NewOverride, Override, Overrides, Reason, Receipt, SECOND,
    SlowDown, Source, Tokens, first_of, split,
};

use super::{on_call, until};
use crate::teller::run;
use crate::traced::on_one_thread;
use crate::world::{OWNER, SERVICE, World, is_on_citus, parts, patient, second};

/// Each report counts, and the rate grows back so slowly that a test sees no growth.
pub(super) const SLOWLY: SlowDown = SlowDown::new().percent(70).recovers(DAY).forgets(Duration::ZERO);

pub(super) const THEIRS: Limit = Limit::token_bucket("theirs", 1_000, SECOND).capacity(200);

/// A world in which the service may report, and the overrides that it watches.
pub(super) async fn reporters() -> (World, Overrides) {
    let world = World::new().await;
    world.sql(&grants(SERVICE, Callers::Reporters)).await;
    let overrides = Overrides::watch(world.pool.clone()).await.unwrap();
    (world, overrides)
}

pub(super) fn share(said: &Override) -> u32 {
    match said.effect {
        Effect::Slowed { share } => share,
        effect => panic!("{effect:?}"),
    }
}

/// Writes a slow-down as it would be after reports at an instant.
pub(super) async fn slowed(world: &World, key: &str, share: i64, from: DateTime<Utc>, until: DateTime<Utc>) {
    let sql =
        "insert into tollgate.overrides (name, key, label, effect, rate, starts_at, ends_at, reason, set_by, set_at)
               values ('theirs', $1, 'slowdown', 'slowed', $2, $3, $4, 'x', 'x', $3)";
    let insert = sqlx::query(sql).bind(key).bind(share).bind(from).bind(until);
    insert.execute(&mut world.connect_as(OWNER).await).await.unwrap();
}

#[tokio::test]
async fn the_fleet_is_slowed_down_once_however_many_report() {
    let (world, overrides) = reporters().await;
    let mut reports = JoinSet::new();
    for _ in 0..8 {
        let pool = world.pool.clone();
        reports.spawn(async move {
            let overrides = Overrides::watch(pool).await.unwrap();
            overrides.slow_down(THEIRS.global(), &SLOWLY.cool_down(HOUR)).await.unwrap()
        });
    }
    let said = reports.join_all().await;
    assert!(said.iter().all(|said| *said == said.clone() && share(said) == 700_000), "{said:?}");
    assert!(said.windows(2).all(|two| two[0] == two[1]), "{said:?}");
    assert_eq!((&*said[0].label, said[0].key.as_ref(), &*said[0].set_by), ("slowdown", None, SERVICE));
    let hours = (said[0].ends_at.unwrap() - said[0].starts_at).num_seconds();
    assert_eq!(hours, 3 * 86_400 / 10, "three tenths of the time in which the whole rate grows back");

    // The others hear of it within a poll.
    until(async || overrides.applied(&THEIRS, &Key::new("k").unwrap())).await;
    // A process that knows of it asks nothing, and without a cool-down each report counts, down to the least share.
    let again = overrides.slow_down(THEIRS.global(), &SLOWLY.cool_down(HOUR)).await.unwrap();
    assert_eq!(again, said[0]);
    let each = SLOWLY.cool_down(Duration::ZERO).least_percent(40);
    let mut shares = Vec::new();
    for _ in 0..4 {
        shares.push(share(&overrides.slow_down(THEIRS.global(), &each).await.unwrap()) / 10_000);
    }
    assert_eq!(shares, [49, 40, 40, 40]);
    // A reporter that would leave more speeds nothing up.
    let more = each.least_percent(90);
    assert_eq!(share(&overrides.slow_down(THEIRS.global(), &more).await.unwrap()) / 10_000, 40);
    let hundredth = each.percent(1).least_percent(1);
    assert_eq!(share(&overrides.slow_down(THEIRS.global(), &hundredth).await.unwrap()), 10_000);
    // An operator lifts it.
    assert!(NewOverride::remove(&mut on_call(&world).await, "theirs", None, "slowdown").await.unwrap());
    until(async || overrides.applied(&THEIRS, &Key::GLOBAL).is_none().then_some(())).await;
}

#[tokio::test]
async fn the_rate_grows_back_each_second_for_library_and_functions() {
    let world = World::new().await;
    let mut conn = world.connect_as(OWNER).await;
    let (from, span) = (second(100.0), TimeDelta::microseconds(21_000_003));
    slowed(&world, "k", 300_001, from, from + span).await;
    run(&mut conn, "select tollgate.define('theirs', 'token_bucket', 1000, '1 second', 200)").await;
    let overrides = Overrides::read(&mut conn).await.unwrap();
    let said = &overrides.all()[0];
    let mut dice = fastrand::Rng::new();
    for _ in 0..500 {
        let at = from + TimeDelta::microseconds(dice.i64(-2_000_000..24_000_000));
        let present = said.share(at).map_or(1_000_000_000, |share| i64::from(share) * 1_000);
        expect_in_sql(&mut conn, at, present).await;
    }
    let shares = [-1, 0, 999_999, 1_000_000, 20_999_999, 21_000_002, 21_000_003];
    let shares = shares.map(|micros| said.share(from + TimeDelta::microseconds(micros)));
    let (one, twenty) = (300_001 + 33_333, 300_001 + 666_665);
    // It has begun, even where the clock steps back.
    assert_eq!(shares, [Some(300_001), Some(300_001), Some(300_001), Some(one), Some(twenty), Some(999_999), None]);

    // An empty bucket shows the rate, and the capacity stays.
    let mut tx = conn.begin().await.unwrap();
    let limiter = |seconds| Limiter::new().parts(parts()).overrides(&overrides).at(second(seconds));
    limiter(110.0).debit(&mut tx, THEIRS.key("k").cost(200)).await.unwrap();
    let after = limiter(110.1).balance(&mut tx, THEIRS.key("k")).await.unwrap();
    assert_eq!((after.capacity, after.remaining), (Tokens::new(200), Tokens::from_micros(63_333_300)));
    let other = limiter(110.1).balance(&mut tx, THEIRS.key("other")).await.unwrap();
    assert_eq!(other.remaining, Tokens::new(200));
}

/// The rate that counts for a key at an instant, to the library and the functions.
async fn rate(conn: &mut PgConnection, at: DateTime<Utc>) -> Tokens {
    let mut tx = conn.begin().await.unwrap();
    let overrides = Overrides::read(&mut tx).await.unwrap();
    let limiter = Limiter::new().parts(parts()).overrides(&overrides).at(at);
    let rate = match limiter.check(&mut tx, THEIRS.key("k")).await.unwrap() {
        Decision::Granted(grant) => grant.standings[0].limit.rate,
        Decision::Denied(denied) => denied.standings[0].limit.rate,
    };
    expect_in_sql(&mut tx, at, rate.micros()).await;
    tx.rollback().await.unwrap();
    rate
}

/// Asks the functions for the rate of a key; on Citus they decide nothing.
async fn expect_in_sql(conn: &mut PgConnection, at: DateTime<Utc>, micros: i64) {
    if is_on_citus() {
        return;
    }
    let sql = "select rate from tollgate._overridden('theirs', 'k', $1)";
    let rate: i64 = sqlx::query_scalar(sql).bind(at).fetch_one(conn).await.unwrap();
    assert_eq!(rate, micros, "at {at}");
}

/// A slow-down leaves a share of the numbers that count, and the smallest of several shares counts. A deny comes first.
#[tokio::test]
async fn a_slow_down_meets_the_other_overrides() {
    let world = World::new().await;
    let mut conn = world.connect_as(OWNER).await;
    run(&mut conn, "select tollgate.define('theirs', 'token_bucket', 1000, '1 second', 200)").await;
    let (from, at) = (second(0.0), second(0.5));
    slowed(&world, "", 500_000, from, from + DAY).await;
    assert_eq!(rate(&mut conn, at).await, Tokens::new(500));
    let contract = Limit::token_bucket("theirs", 3_000, SECOND).capacity(600);
    NewOverride::numbers(&contract).key("k").label("contract").from(from).reason("x").set(&mut conn).await.unwrap();
    assert_eq!(rate(&mut conn, at).await, Tokens::new(1_500));
    slowed(&world, "k", 100_000, from, from + DAY).await;
    assert_eq!(rate(&mut conn, at).await, Tokens::new(300));
    let overrides = Overrides::read(&mut conn).await.unwrap();
    let said = overrides.live_for("theirs", &Key::new("k").unwrap(), at);
    assert_eq!(said.iter().filter_map(|said| said.share(at)).min(), Some(100_000));

    let limiter = Limiter::new().parts(parts()).overrides(&overrides).at(at);
    let mut tx = conn.begin().await.unwrap();
    let seen = limiter.consume(&mut tx, THEIRS.key("k")).await.unwrap().granted().unwrap();
    assert_eq!((seen.standings[0].overridden, &*seen.standings[0].override_label), (true, "slowdown"));
    tx.rollback().await.unwrap();
    NewOverride::deny(&THEIRS).key("k").label("ban").from(from).reason("x").set(&mut conn).await.unwrap();
    let overrides = Overrides::read(&mut conn).await.unwrap();
    let mut tx = conn.begin().await.unwrap();
    let limiter = Limiter::new().parts(parts()).overrides(&overrides).at(at);
    let denied = limiter.consume(&mut tx, THEIRS.key("k")).await.unwrap().denied().unwrap();
    assert_eq!((denied.reason, &*denied.standings[0].override_label), (Reason::Override, "ban"));
}

/// Every call goes by the present rate: one for later, alternatives, parts of a cost, a repeat, and a settlement.
#[tokio::test]
async fn a_slow_down_meets_the_other_calls() {
    let world = World::new().await;
    let mut conn = world.connect_as(OWNER).await;
    slowed(&world, "", 500_000, second(0.0), second(0.0) + 10_000 * DAY).await;
    let overrides = Overrides::read(&mut conn).await.unwrap();
    let limiter = |seconds| Limiter::new().parts(parts()).overrides(&overrides).at(second(seconds));
    let theirs = THEIRS.max_reserved(1_000);
    let other = Limit::token_bucket("other", 1_000, SECOND).capacity(200);
    let mut tx = conn.begin().await.unwrap();
    limiter(0.0).debit(&mut tx, theirs.key("k").cost(200)).await.unwrap();
    let booked = limiter(0.0).reserve(&mut tx, theirs.key("k").cost(100)).await.unwrap().granted().unwrap();
    assert_eq!(booked.ready_at, second(0.2), "at 500 a second");
    let receipt = Receipt::from(booked);

    // 300 tokens are used, of which 50 come back in a tenth of a second.
    let either = first_of([[theirs.key("k").cost(10)], [other.key("k").cost(10)]]);
    let chosen = limiter(0.1).consume(&mut tx, either).await.unwrap().granted().unwrap();
    assert_eq!((chosen.alternative, chosen.standings[0].overridden), (1, false));
    limiter(0.1).cancel(&mut tx, receipt).await.unwrap();
    let left = limiter(0.3).balance(&mut tx, theirs.key("k")).await.unwrap().remaining;
    assert_eq!(left, Tokens::new(150), "two hundred less what comes back in three tenths");
    let parts_of = limiter(0.3).consume(&mut tx, split(160, [theirs.key("k"), other.key("k")])).await.unwrap();
    let costs: Vec<_> = parts_of.granted().unwrap().receipt.charges.iter().map(|charge| charge.cost).collect();
    assert_eq!(costs, [Tokens::new(150), Tokens::new(10)]);

    let once = || theirs.key("once").cost(50).once("call");
    let first = limiter(0.0).consume(&mut tx, once()).await.unwrap().granted().unwrap();
    let again = limiter(0.02).consume(&mut tx, once()).await.unwrap().granted().unwrap();
    assert_eq!((first.source, again.source), (Source::Database, Source::Repeated));
    limiter(0.02).settle(&mut tx, Receipt::from(first), 20).await.unwrap();
    let left = limiter(0.02).balance(&mut tx, theirs.key("once")).await.unwrap();
    assert_eq!((left.used, left.full_at), (Tokens::new(10), Some(second(0.04))));
}

/// A window of ten is one of five, whatever its kind, and five run at once instead of ten.
#[tokio::test]
async fn each_kind_that_grows_back_is_slowed_down() {
    let world = World::new().await;
    let mut conn = world.connect_as(OWNER).await;
    let from = second(0.0);
    slowed(&world, "", 500_000, from, from + 1_000 * DAY).await;
    let overrides = Overrides::read(&mut conn).await.unwrap();
    let at = |days: f64| Limiter::new().parts(parts()).overrides(&overrides).at(second(days * 86_400.0));
    for limit in [
        Limit::fixed_window("theirs", 10, DAY).start(Duration::ZERO),
        Limit::fixed_window("theirs", 10, DAY).shards(2),
        Limit::fixed_window("theirs", 10, DAY).ephemeral(),
        Limit::stepped_bucket("theirs", 10, DAY),
        Limit::token_bucket("theirs", 10, DAY),
    ] {
        let mut tx = conn.begin().await.unwrap();
        let key = || limit.key("k");
        at(1.0).debit(&mut tx, key().cost(10)).await.unwrap();
        let later = at(2.0).balance(&mut tx, key()).await.unwrap();
        let half = Tokens::from_micros(5_000_000)..=Tokens::from_micros(5_010_000);
        assert!(half.contains(&later.remaining), "{limit:?}: {later:?}");
        assert_eq!(later.capacity, Tokens::new(10));
        tx.rollback().await.unwrap();
    }
    let mut tx = conn.begin().await.unwrap();
    let sliding = Limit::sliding_window("theirs", 10, DAY);
    let window = at(0.0).balance(&mut tx, sliding.key("k")).await.unwrap();
    assert_eq!(window.capacity, Tokens::new(5));
    let runs = Limit::concurrency("theirs", 10, DAY);
    let balance = at(0.0).balance(&mut tx, runs.key("runs")).await.unwrap();
    assert_eq!(balance.capacity, Tokens::new(5));
}

/// Tokens that were taken ahead under the whole rate go back.
#[tokio::test]
async fn a_slow_down_ends_prefetching_and_gives_tokens_back() {
    let (world, overrides) = reporters().await;
    let limit = Limit::stepped_bucket("theirs", 99_999, DAY).capacity(100_000);
    let gate = patient(&world.pool).overrides(&overrides).prefetch(HOUR).build();
    let ask = async || gate.consume(limit.key("k")).await.unwrap().granted().unwrap();
    while gate.prefetched(&limit.key("k")) < Tokens::new(50) {
        ask().await;
    }
    overrides.slow_down(limit.key("k"), &SLOWLY).await.unwrap();
    until(async || (ask().await.source == Source::Database).then_some(())).await;
    assert_eq!(gate.prefetched(&limit.key("k")), Tokens::ZERO);
    assert_eq!(ask().await.standings[0].limit.rate, Tokens::from_micros(69_999_300_000));
}

#[test]
fn a_gauge_shows_the_least_share_and_that_it_is_whole_again() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let shown = || {
        let snapshot = snapshotter.snapshot().into_vec().into_iter();
        snapshot.filter(|(key, ..)| key.key().name() == "tollgate_rate_share").map(|(.., value)| value).next()
    };
    metrics::with_local_recorder(&recorder, || {
        on_one_thread(async {
            let world = World::new().await;
            slowed(&world, "a", 900_000, second(-1e9), second(1e9)).await;
            slowed(&world, "b", 250_000, second(-1e9), second(1e9)).await;
            let _overrides = Overrides::watch(world.pool.clone()).await.unwrap();
            // Half of the time in which they grow back has passed.
            until(async || shown().filter(|share| matches!(share, DebugValue::Gauge(share) if **share < 0.9))).await;
            let remove = "delete from tollgate.overrides where label = 'slowdown'";
            sqlx::query(remove).execute(&mut world.connect_as(OWNER).await).await.unwrap();
            until(async || shown().filter(|share| *share == DebugValue::Gauge(1.0.into()))).await;
        });
    });
}
