//! Counts the months of UTC from January 1970, in integers.

use crate::values::timestamp::Timestamp;

/// The longest month.
pub(super) const LONGEST: i64 = 31 * DAY;

/// The number of the month in which an instant lies. Each month begins at the same offset from midnight at the start of
/// its 1st, in microseconds; a month that has no such day begins on its last.
pub(super) fn number(at: Timestamp, offset: i64) -> i128 {
    // From here on a year begins in March, so that a leap day is its last.
    let days = at.micros().div_euclid(DAY) + DAYS_BEFORE_1970;
    let (era, day) = (days.div_euclid(DAYS_OF_ERA), days.rem_euclid(DAYS_OF_ERA));
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let month = (5 * (day - days_of(year)) + 2) / 153;
    let number = (era * 400 + year - 1970) * 12 + month + 2;
    i128::from(if at < step(number.into(), offset) { number - 1 } else { number })
}

/// When the month of a number begins. Numbers beyond the last instant saturate.
pub(super) fn step(number: i128, offset: i64) -> Timestamp {
    let number = i64::try_from(number.clamp(-LAST, LAST)).expect("the bounds fit");
    let (first, next) = (first(number), first(number + 1));
    let day = first + (offset / DAY).min(next - first - 1);
    Timestamp::saturating(i128::from(day) * i128::from(DAY) + i128::from(offset % DAY))
}

/// The days from 1 January 1970 to the 1st of a month.
fn first(number: i64) -> i64 {
    let (year, month) = ((number - 2).div_euclid(12) + 1970, (number - 2).rem_euclid(12));
    let (era, year) = (year.div_euclid(400), year.rem_euclid(400));
    era * DAYS_OF_ERA + days_of(year) + (153 * month + 2) / 5 - DAYS_BEFORE_1970
}

/// The days of so many years, which begin in March.
fn days_of(years: i64) -> i64 {
    years * 365 + years / 4 - years / 100
}

const DAY: i64 = 86_400_000_000;
/// Of 400 years, after which the calendar repeats.
const DAYS_OF_ERA: i64 = 146_097;
/// From 1 March of the year 0.
const DAYS_BEFORE_1970: i64 = 719_468;
/// Beyond the last instant.
const LAST: i128 = 3_200_000;

#[cfg(test)]
mod tests {
    use chrono::{DateTime, Datelike, Months, NaiveDate, NaiveTime, Utc};

    use super::{DAY, LONGEST, number, step};
    use crate::values::timestamp::Timestamp;

    const OFFSETS: [i64; 6] = [0, 1, 14 * DAY, 28 * DAY + 5, 30 * DAY, LONGEST - 1];

    /// The start of the month with this number, as chrono has it.
    fn start(number: i64, offset: i64) -> Option<Timestamp> {
        let year = i32::try_from(1970 + number.div_euclid(12)).ok()?;
        let first = NaiveDate::from_ymd_opt(year, u32::try_from(number.rem_euclid(12)).ok()? + 1, 1)?;
        let last = first.checked_add_months(Months::new(1))?.pred_opt()?;
        let day = last.with_day(last.day().min(u32::try_from(offset / DAY).ok()? + 1))?;
        Some(Timestamp::from(day.and_time(NaiveTime::MIN).and_utc()).after(offset % DAY))
    }

    /// From the first instant to the last. The stride meets each month of the 400 years.
    #[test]
    fn months_are_those_of_chrono_over_the_whole_range() {
        let of = |at: Timestamp| {
            let at = DateTime::<Utc>::from(at);
            i64::from(at.year() - 1970) * 12 + i64::from(at.month0())
        };
        for offset in OFFSETS {
            for month in (of(Timestamp::MIN) + 1..of(Timestamp::MAX)).step_by(37) {
                let begins = start(month, offset).unwrap();
                assert_eq!(step(month.into(), offset), begins);
                assert_eq!(number(begins, offset), month.into());
                assert_eq!(number(begins.after(-1), offset), i128::from(month - 1));
            }
        }
    }

    #[test]
    fn a_month_beyond_all_instants_begins_at_the_end_of_time() {
        for offset in OFFSETS {
            assert_eq!(step(i128::MAX, offset), Timestamp::MAX);
            assert_eq!(step(i128::MIN, offset), Timestamp::MIN);
            for at in [Timestamp::MIN, Timestamp::MAX] {
                let month = number(at, offset);
                assert!(step(month, offset) <= at && (at < step(month + 1, offset) || at == Timestamp::MAX));
            }
        }
    }
}
