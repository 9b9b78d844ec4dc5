//! The share of a rate that a slow-down leaves.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use sqlx::PgConnection;
use tollgate::algebra::Timestamp;
use tollgate::plan::SlowedRate;
use tollgate::{DAY, HOUR, Key, Limit, Limiter, MINUTE, Override, Overrides, SECOND, SlowDown, Tokens};

use super::now;
use super::slow_down::{SLOWLY, THEIRS, reporters, share, slowed};
use crate::memory::paused;
use crate::teller::run;
use crate::world::{OWNER, World, parts, second};

/// A simulation reports to itself by the same formula as the function.
#[tokio::test]
async fn a_report_cuts_the_rate_in_the_function_as_in_the_core() {
    let (world, overrides) = reporters().await;
    let mut conn = world.connect_as(OWNER).await;
    let mut dice = fastrand::Rng::new();
    let first = overrides.slow_down(THEIRS.global(), &SLOWLY).await.unwrap();
    assert_eq!(rate(&first), SlowedRate::reported(None, &SLOWLY, Duration::ZERO, first.starts_at.into()));
    for _ in 0..200 {
        let (percent, floor, recovers) = (dice.u8(1..100), dice.u8(1..100), dice.u32(1_000..86_400_000));
        let how = SlowDown::new().percent(percent).least_percent(floor).recovers(SECOND / 1_000 * recovers);
        // The last cut was reported some seconds ago: it is over, or grows back, or will grow, or is younger than the
        // cool-down. Or the clock has stepped back since.
        let (ago, still) = (dice.i64(-20_000_000..40_000_000), dice.i64(0..60_000_000) * dice.i64(0..2));
        let lasting = 1_000_000 + dice.i64(0..60_000_000) * [1, 1_000][dice.usize(..2)];
        // Citus updates a table of which each node has a copy by constants alone.
        let now = now(&world).await;
        let [set, from, until] =
            [-ago, still - ago, still + lasting - ago].map(|after| now + TimeDelta::microseconds(after));
        // It still counts reports that it has tolerated.
        let forgotten = now + TimeDelta::microseconds(dice.i64(5_000_000..20_000_000));
        let sql =
            "update tollgate.overrides set rate = $1, set_at = $2, starts_at = $3, ends_at = $4, forgotten_at = $5
                    where label = 'slowdown'";
        let last = sqlx::query(sql).bind(dice.i64(1..1_000_001)).bind(set).bind(from).bind(until).bind(forgotten);
        last.execute(&mut conn).await.unwrap();
        let last = found(&mut conn).await;
        // Another pause is over before the statement after it, or is live.
        run(&mut conn, "delete from tollgate.overrides where label = 'pause'").await;
        let mut forgets = dice.u32(0..2) * dice.u32(0..10_000_000);
        if dice.bool() {
            forgets = 0;
            let pause =
                "insert into tollgate.overrides (name, key, label, effect, starts_at, ends_at, reason, set_by, set_at)
                         values ('theirs', '', 'pause', 'deny', $1, $2, 'x', 'x', $1)";
            let [from, until] = [dice.i64(-90..0), dice.i64(0..2) * dice.i64(60..90)];
            let [from, until] = [from, until].map(|after| now + TimeDelta::seconds(after));
            sqlx::query(pause).bind(from).bind(until).execute(&mut conn).await.unwrap();
        }
        // Asked by SQL, for the process may know of an earlier cut.
        let sql =
            "select set_at, (select max(ends_at) from tollgate.overrides where label = 'pause' and ends_at > set_at)
               from tollgate.slow_down('theirs', null, true, $1, $2, $3 * interval '1 millisecond',
                                        forgets => $4 * interval '1 microsecond')";
        let report = sqlx::query_as(sql)
            .bind(i32::from(percent))
            .bind(i32::from(floor))
            .bind(f64::from(recovers))
            .bind(f64::from(forgets));
        let (at, paused_until): (DateTime<Utc>, Option<DateTime<Utc>>) = report.fetch_one(&mut conn).await.unwrap();
        // A report that is tolerated is not dated. Few shares grow between these two instants.
        let instants = [at, now, super::now(&world).await].map(Timestamp::from);
        let reported =
            instants.map(|at| SlowedRate::reported(Some(last), &how, Duration::from_micros(forgets.into()), at));
        let found_now = found(&mut conn).await;
        let reported = reported.into_iter().find(|reported| *reported == found_now).unwrap_or(reported[0]);
        let is_new = reported.reported_at == at.into();
        let expected = match paused_until.filter(|_| is_new && reported != last) {
            Some(until) => paused(reported, at.into(), until.into()),
            None => reported,
        };
        assert_eq!(found(&mut conn).await, expected, "{how:?} after {last:?}, paused until {paused_until:?}");

        // A pause that ends later moves it on.
        let sql = "select set_at, ends_at from tollgate.pause('theirs', null, true, lasting => '100 s')";
        let (at, until): (DateTime<Utc>, DateTime<Utc>) = sqlx::query_as(sql).fetch_one(&mut conn).await.unwrap();
        assert_eq!(found(&mut conn).await, paused(expected, at.into(), until.into()), "{expected:?} at {at}");
    }
}

/// The rate in an override.
fn rate(said: &Override) -> SlowedRate {
    let [reported_at, starts_at, ends_at] = [said.set_at, said.starts_at, said.ends_at.unwrap()].map(Timestamp::from);
    SlowedRate { share: share(said), reported_at, starts_at, ends_at, forgotten_at: None }
}

/// The only slow-down.
async fn found(conn: &mut PgConnection) -> SlowedRate {
    let all = Overrides::read(&mut *conn).await.unwrap().all();
    let sql = "select forgotten_at from tollgate.overrides where label = 'slowdown'";
    let forgotten: Option<DateTime<Utc>> = sqlx::query_scalar(sql).fetch_one(conn).await.unwrap();
    let rate = rate(all.iter().find(|said| said.label == "slowdown").unwrap());
    SlowedRate { forgotten_at: forgotten.map(Timestamp::from), ..rate }
}

/// A service that recovers within minutes, and a pause of every key.
#[tokio::test]
async fn the_rate_of_no_key_grows_back_while_every_key_is_paused() {
    let (world, overrides) = reporters().await;
    let cut = overrides.slow_down(THEIRS.key("k"), &SLOWLY).await.unwrap();
    let paused = overrides.pause_for(THEIRS.global(), HOUR).await.unwrap().unwrap();
    let again = overrides.slow_down(THEIRS.key("other"), &SLOWLY).await.unwrap();
    let of_key = found_for(&world, "k").await;
    assert_eq!(Some(again.starts_at), paused.ends_at);
    assert_eq!((Some(of_key.starts_at), of_key.set_at), (paused.ends_at, cut.set_at), "the cool-down goes on");
    // It counts already: somebody may lift the pause.
    assert_eq!(of_key.share(paused.starts_at), Some(700_000));
    let grown = of_key.share(paused.ends_at.unwrap() + 3 * HOUR).unwrap();
    assert!((824_000..=825_000).contains(&grown), "an eighth of a day: {grown}");
    assert!(of_key.is_live(cut.set_at) && of_key.ends_at > cut.ends_at);
    // A pause that lasts longer is one with the first.
    let longer = overrides.pause_for(THEIRS.global(), 2 * HOUR).await.unwrap().unwrap();
    assert_eq!(longer.starts_at, paused.starts_at);
    assert_eq!(Some(found_for(&world, "k").await.starts_at), longer.ends_at);
}

/// An answer pauses every key for a day, which another answer corrects to less than the key's own pause.
#[tokio::test]
async fn the_rate_of_a_key_grows_back_from_the_end_of_the_last_of_its_pauses() {
    let (world, overrides) = reporters().await;
    let own = overrides.pause_for(THEIRS.key("k"), HOUR).await.unwrap().unwrap();
    overrides.pause_as_told(THEIRS.global(), DAY).await.unwrap();
    overrides.slow_down(THEIRS.key("k"), &SLOWLY).await.unwrap();
    let corrected = overrides.pause_as_told(THEIRS.global(), MINUTE).await.unwrap().unwrap();
    assert_eq!(Some(found_for(&world, "k").await.starts_at), own.ends_at);
    let removed = "select tollgate.remove_override('theirs', 'k', label => 'pause')";
    run(&mut world.connect_as(OWNER).await, removed).await;
    assert_eq!(Some(found_for(&world, "k").await.starts_at), corrected.ends_at);
}

/// The slow-down of a key in the table.
async fn found_for(world: &World, key: &str) -> Override {
    let all = Overrides::read(&mut world.connect().await).await.unwrap().all();
    all.into_iter().find(|said| said.label == "slowdown" && said.key == Key::new(key).ok()).unwrap()
}

/// SQL may slow down a limit of which only the library knows that it has no rate.
#[tokio::test]
async fn a_limit_without_a_rate_is_asked_as_before_whatever_slows_it_down() {
    let world = World::new().await;
    slowed(&world, "", 500_000, second(0.0), second(0.0) + DAY).await;
    let mut tx = world.begin().await;
    let overrides = Overrides::read(&mut tx).await.unwrap();
    let limiter = Limiter::new().parts(parts()).overrides(&overrides).at(second(0.5));
    let wallet = Limit::wallet("theirs").overdraft(3);
    let seen = limiter.balance(&mut tx, wallet.key("k")).await.unwrap();
    assert_eq!(seen.remaining, Tokens::ZERO);
}

/// Nine tenths of it would still be there for the key, and half is left to everybody.
#[tokio::test]
async fn a_report_on_a_key_cuts_the_present_rate_which_is_everybodys_if_that_is_smaller() {
    let (world, overrides) = reporters().await;
    let now = now(&world).await;
    slowed(&world, "", 500_000, now, now + 10_000 * DAY).await;
    slowed(&world, "slow", 300_000, now - MINUTE, now + 10_000 * DAY).await;
    let report = async |key| share(&overrides.slow_down(THEIRS.key(key), &SLOWLY.cool_down(SECOND)).await.unwrap());
    assert_eq!([report("k").await, report("slow").await], [350_000, 210_000]);
    // A report with a higher least share speeds nobody up.
    let most = SLOWLY.least_percent(99).cool_down(Duration::ZERO);
    assert_eq!(share(&overrides.slow_down(THEIRS.key("k"), &most).await.unwrap()), 350_000);
}

/// A service that recovers at once reports on what another one has slowed down for an hour.
#[tokio::test]
async fn a_report_does_not_end_the_slow_down_of_another_sooner() {
    let (world, overrides) = reporters().await;
    let now = now(&world).await;
    slowed(&world, "", 100_000, now, now + HOUR).await;
    let quick = SlowDown::new()
        .percent(99)
        .least_percent(99)
        .recovers(SECOND)
        .cool_down(Duration::ZERO)
        .forgets(Duration::ZERO);
    let said = overrides.slow_down(THEIRS.global(), &quick).await.unwrap();
    assert!(share(&said) <= 101_000 && said.ends_at >= Some(now + HOUR), "{said:?}");
}
