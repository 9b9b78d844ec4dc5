//! The calendar's days, weeks and months around an instant, in some time zone: periods for
//! [`Request::period`](crate::Request::period).
//!
//! A zone is a [`TimeZone`] of chrono, such as `chrono_tz::Tz`. Each function returns the start and the end of the
//! period in which the instant lies; the end is the start of the next one. A period starts when its first day does, at
//! midnight. If the clock shows midnight twice, the first one counts. If the clock passes over midnight, the day starts
//! as soon as the clock has reached it. So each instant lies in exactly one period. A day has 23 to 25 hours in most
//! zones, and a day that a zone has passed over is empty.

use chrono::{DateTime, Datelike, Days, LocalResult, Months, NaiveDate, NaiveTime, TimeDelta, TimeZone, Utc, Weekday};

/// The day of an instant.
pub fn day<Z: TimeZone>(zone: &Z, at: DateTime<Utc>) -> (DateTime<Utc>, DateTime<Utc>) {
    around(zone, at, |date| date, |date, days| date.checked_add_days(Days::new(days)))
}

/// The week of an instant, which begins at midnight at the start of `first`.
pub fn week<Z: TimeZone>(zone: &Z, first: Weekday, at: DateTime<Utc>) -> (DateTime<Utc>, DateTime<Utc>) {
    around(zone, at, |date| date.week(first).first_day(), |date, weeks| date.checked_add_days(Days::new(7 * weeks)))
}

/// The month of an instant, which begins at midnight at the start of `anchor_day`, from 1 to 31. A month without such a
/// day begins on its last day.
pub fn month<Z: TimeZone>(zone: &Z, anchor_day: u32, at: DateTime<Utc>) -> (DateTime<Utc>, DateTime<Utc>) {
    let first = |date: NaiveDate| date.with_day(1).unwrap_or(date);
    let anchored = |first: NaiveDate, months| {
        let last = first.checked_add_months(Months::new(u32::try_from(months).ok()?))?;
        (0..4).find_map(|less| last.with_day(anchor_day.clamp(1, 31).checked_sub(less)?))
    };
    around(zone, at, first, anchored)
}

/// The period in which an instant lies. The periods count from some date before the instant's own.
fn around<Z: TimeZone>(
    zone: &Z,
    at: DateTime<Utc>,
    first: impl Fn(NaiveDate) -> NaiveDate,
    nth: impl Fn(NaiveDate, u64) -> Option<NaiveDate>,
) -> (DateTime<Utc>, DateTime<Utc>) {
    let date = at.with_timezone(zone).date_naive();
    // Far enough back that the first of these periods has begun, whatever the clock does.
    let origin = first(date.checked_sub_days(Days::new(33)).unwrap_or(date));
    let start = |nth_period| nth(origin, nth_period).and_then(|date| start_of(zone, date));
    let starts: Vec<_> = (0..=40).map_while(start).take_while(|start| *start <= at).collect();
    let begun = starts.last().copied().unwrap_or(DateTime::<Utc>::MIN_UTC);
    (begun, start(starts.len() as u64).unwrap_or(DateTime::<Utc>::MAX_UTC))
}

/// The first instant of a day: midnight, or the first instant after it if the clock passes over midnight.
fn start_of<Z: TimeZone>(zone: &Z, date: NaiveDate) -> Option<DateTime<Utc>> {
    let midnight = date.and_time(NaiveTime::MIN);
    match zone.from_local_datetime(&midnight) {
        LocalResult::Single(start) | LocalResult::Ambiguous(start, _) => Some(start.to_utc()),
        LocalResult::None => {
            let (mut early, mut late) = (-26 * 3_600_i64, 26 * 3_600);
            let after = |seconds| midnight.checked_add_signed(TimeDelta::seconds(seconds)).map(|time| time.and_utc());
            while early < late {
                let middle = (early + late).div_euclid(2);
                let local = after(middle)?.with_timezone(zone).naive_local();
                if local >= midnight { late = middle } else { early = middle + 1 }
            }
            after(early)
        }
    }
}
