//! The share of a rate that a slow-down leaves.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use tollgate::algebra::Timestamp;
use tollgate::plan::SlowedRate;
use tollgate::{DAY, HOUR, Limit, Limiter, MINUTE, Override, Overrides, SECOND, SlowDown, Tokens};

use super::now;
use super::slow_down::{SLOWLY, THEIRS, reporters, share, slowed};
use crate::world::{OWNER, World, parts, second};

/// A simulation reports to itself by the same formula as the function.
#[tokio::test]
async fn a_report_cuts_the_rate_in_the_function_as_in_the_core() {
    let (world, overrides) = reporters().await;
    let mut conn = world.connect_as(OWNER).await;
    let slowed = |said: &Override| {
        let instants = [Some(said.starts_at), said.ends_at].map(|at| Timestamp::from(at.unwrap()));
        SlowedRate { share: share(said), starts_at: instants[0], ends_at: instants[1], forgotten_at: None }
    };
    let mut dice = fastrand::Rng::new();
    let first = overrides.slow_down(THEIRS.global(), &SLOWLY).await.unwrap();
    assert_eq!(slowed(&first), SlowedRate::reported(None, &SLOWLY, Duration::ZERO, first.starts_at.into()));
    for _ in 0..200 {
        let (percent, floor, recovers) = (dice.u8(1..100), dice.u8(1..100), dice.u64(1_000_000..86_400_000_000));
        let how = SlowDown::new().percent(percent).least_percent(floor).recovers(Duration::from_micros(recovers));
        // The last cut began some seconds ago: it is over, or grows back, or is younger than the cool-down. Or the clock
        // has stepped back since.
        let (ago, lasting) = (dice.i64(-20_000_000..40_000_000), dice.i64(0..60_000_000) * [1, 1_000][dice.usize(..2)]);
        // Citus updates a table of which each node has a copy by constants alone.
        let now = now(&world).await;
        let forgets = if ago < 0 { 0 } else { dice.u64(0..10_000_000) };
        let forgotten = dice.bool().then(|| now + TimeDelta::microseconds(dice.i64(-1_000_000..20_000_000)));
        let [from, until] = [-ago, lasting + 1_000_000 - ago].map(|after| now + TimeDelta::microseconds(after));
        let sql =
            "update tollgate.overrides set rate = $1, starts_at = $2, set_at = $2, ends_at = $3, forgotten_at = $4";
        let last = sqlx::query(sql).bind(dice.i64(1..1_000_001)).bind(from).bind(until).bind(forgotten);
        last.execute(&mut conn).await.unwrap();
        let last = slowed(&Overrides::read(&mut conn).await.unwrap().all()[0]);
        let last = SlowedRate { forgotten_at: forgotten.map(Timestamp::from), ..last };
        // Asked by SQL, for the process may know of an earlier cut.
        let sql = "select set_at, forgotten_at from tollgate.slow_down('theirs', null, true, $1, $2,
                 $3 * interval '1 microsecond', forgets => $4 * interval '1 microsecond')";
        let report = sqlx::query_as(sql).bind(i32::from(percent)).bind(i32::from(floor)).bind(recovers as f64);
        let (at, forgotten): (DateTime<Utc>, Option<DateTime<Utc>>) =
            report.bind(forgets as f64).fetch_one(&mut conn).await.unwrap();
        let found = slowed(&Overrides::read(&mut conn).await.unwrap().all()[0]);
        assert_eq!(
            SlowedRate { forgotten_at: forgotten.map(Timestamp::from), ..found },
            SlowedRate::reported(Some(last), &how, Duration::from_micros(forgets), at.into()),
            "{how:?} after {last:?}"
        );
    }
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
