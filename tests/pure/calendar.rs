//! Days, weeks and months by the clocks of zones that do unusual things.

use chrono::{DateTime, Datelike, Days, NaiveDate, TimeDelta, TimeZone, Timelike, Utc, Weekday};
use chrono_tz::Tz;
use proptest::prelude::*;
use tollgate::calendar;

use crate::story::config;

type Period = (DateTime<Utc>, DateTime<Utc>);

fn zones() -> impl Strategy<Value = Tz> {
    prop::sample::select(vec![
        Tz::UTC,
        Tz::Australia__Lord_Howe,
        Tz::Pacific__Apia,
        Tz::Africa__Casablanca,
        Tz::America__Sao_Paulo,
        Tz::America__Havana,
        Tz::Asia__Kathmandu,
        Tz::Europe__Berlin,
    ])
}

fn instant(zone: Tz, year: i32, month: u32, day: u32, hour: u32) -> DateTime<Utc> {
    zone.with_ymd_and_hms(year, month, day, hour, 0, 0).earliest().unwrap().to_utc()
}

/// The date on which a period starts, and whether that is as its day does: nothing of the day was before.
fn starts_on(zone: Tz, start: DateTime<Utc>) -> NaiveDate {
    let [before, then] = [start - TimeDelta::microseconds(1), start].map(|at| at.with_timezone(&zone));
    assert!(before.date_naive() < then.date_naive(), "{start} {zone}");
    then.date_naive()
}

proptest! {
    #![proptest_config(config())]

    /// Under any change of a zone's clock each instant lies in one period, the next period begins as it ends, and both
    /// begin with a day, the right one.
    #[test]
    fn periods_follow_each_other_and_begin_with_their_days(
        zone in zones(),
        seconds in 0_i64..2_000_000_000,
        anchor in 1_u32..=31,
        first in 0_u8..7,
    ) {
        let (at, first) = (DateTime::from_timestamp(seconds, 0).unwrap(), Weekday::try_from(first).unwrap());
        let day = |at| calendar::day(&zone, at);
        let week = |at| calendar::week(&zone, first, at);
        let month = |at| calendar::month(&zone, anchor, at);
        let hours: [(&dyn Fn(_) -> Period, _, _); 3] =
            [(&day, 22, 49), (&week, 6 * 24 - 1, 7 * 24 + 2), (&month, 27 * 24, 31 * 24 + 2)];
        for (period, least, most) in hours {
            let (start, end) = period(at);
            prop_assert!(start <= at && at < end, "{start} {at} {end}");
            prop_assert!((least..=most).contains(&(end - start).num_hours()), "{start} {end} {zone}");
            prop_assert_eq!(period(start), (start, end));
            prop_assert_eq!(period(end - TimeDelta::microseconds(1)), (start, end));
            prop_assert_eq!(period(end).0, end);
            starts_on(zone, start);
        }
        // A day that a zone has passed over begins with the next one.
        let may_be = |date: NaiveDate| [date, date.checked_sub_days(Days::new(1)).unwrap()];
        prop_assert_eq!(starts_on(zone, day(at).0), day(at).0.with_timezone(&zone).date_naive());
        prop_assert!(may_be(starts_on(zone, week(at).0)).iter().any(|date| date.weekday() == first));
        let is_last = |date: &NaiveDate| date.succ_opt().unwrap().day() == 1;
        let is_anchor = |date: &NaiveDate| date.day() == anchor || date.day() < anchor && is_last(date);
        prop_assert!(may_be(starts_on(zone, month(at).0)).iter().any(is_anchor), "{} {anchor}", month(at).0);
    }
}

#[test]
fn unusual_days_and_the_31st_are_as_people_read_them() {
    let hours = |zone: Tz, year, month, day| {
        let (start, end) = calendar::day(&zone, instant(zone, year, month, day, 12));
        (end - start).num_minutes()
    };
    let (berlin, howe, apia) = (Tz::Europe__Berlin, Tz::Australia__Lord_Howe, Tz::Pacific__Apia);
    assert_eq!([hours(berlin, 2026, 3, 29), hours(berlin, 2026, 10, 25)], [23 * 60, 25 * 60]);
    assert_eq!([hours(howe, 2025, 4, 6), hours(howe, 2025, 10, 5)], [24 * 60 + 30, 23 * 60 + 30]);
    // Samoa passed over 30 December 2011.
    let (_, end) = calendar::day(&apia, instant(apia, 2011, 12, 29, 12));
    assert_eq!((end, end.with_timezone(&apia).day()), (instant(apia, 2011, 12, 31, 0), 31));
    assert_eq!(calendar::month(&apia, 30, instant(apia, 2011, 12, 31, 9)).0, end);
    // São Paulo's clocks passed over midnight.
    let paulo = Tz::America__Sao_Paulo;
    let (start, _) = calendar::day(&paulo, instant(paulo, 2018, 11, 4, 12));
    assert_eq!(start.with_timezone(&paulo).hour(), 1);
    let casablanca = Tz::Africa__Casablanca;
    let (start, end) = calendar::month(&casablanca, 1, instant(casablanca, 2025, 3, 15, 12));
    assert_eq!([start, end].map(|at| at.with_timezone(&casablanca).hour()), [0, 0]);
    let months = [(2026, 1, 31), (2026, 2, 28), (2026, 3, 31), (2026, 4, 30), (2026, 5, 31)];
    for pair in months.windows(2) {
        let [start, end] = [pair[0], pair[1]].map(|(year, month, day)| instant(Tz::UTC, year, month, day, 0));
        assert_eq!(calendar::month(&Utc, 31, start), (start, end));
    }
    let never = calendar::day(&Utc, DateTime::<Utc>::MAX_UTC);
    assert_eq!(never.1, DateTime::<Utc>::MAX_UTC);
    assert_eq!(calendar::month(&Utc, 1, DateTime::<Utc>::MIN_UTC).0, DateTime::<Utc>::MIN_UTC);
}
