//! The period of a billing limit, as people write it.

use chrono::{DateTime, NaiveDate, NaiveTime, Utc};
use tollgate::{LimitKind, Request, calendar};

use crate::error::CommandError;

/// The period that a billing limit counts by; no other limit takes one.
#[derive(Clone, Debug, clap::Args)]
#[group(multiple = false)]
pub(crate) struct PeriodArgs {
    /// The period of a billing limit: the instants, or the midnights of UTC, at which it starts and ends, such as
    /// 2026-11-14/2026-12-14.
    #[arg(long, value_name = "START/END", value_parser = period)]
    period: Option<Period>,

    /// A month of UTC as the period of a billing limit, such as 2026-12.
    #[arg(long, value_name = "MONTH", value_parser = month)]
    month: Option<Period>,
}

type Period = (DateTime<Utc>, DateTime<Utc>);

impl PeriodArgs {
    /// The request by this period, if one is given.
    pub(crate) fn if_named(&self, request: Request) -> Request {
        match self.period.or(self.month) {
            Some((start, end)) => request.period(start, end),
            None => request,
        }
    }

    /// The request by this period, which a billing limit must have.
    pub(crate) fn of(&self, request: Request) -> Result<Request, CommandError> {
        if self.period.or(self.month).is_none() && request.limit().kind == LimitKind::Billing {
            let what = format!("billing limit {:?} is asked by a period", request.limit().name());
            return Err(CommandError::new(what, "say --month 2026-12, or --period 2026-11-14/2026-12-14"));
        }
        Ok(self.if_named(request))
    }
}

fn period(text: &str) -> Result<Period, &'static str> {
    let ends = text.split_once('/').and_then(|(start, end)| Some((instant(start)?, instant(end)?)));
    ends.ok_or("write it as 2026-11-14/2026-12-14, or with instants such as 2026-11-14T12:30:00Z")
}

fn instant(text: &str) -> Option<DateTime<Utc>> {
    let midnight = || Some(text.parse::<NaiveDate>().ok()?.and_time(NaiveTime::MIN).and_utc());
    text.parse().ok().or_else(midnight)
}

fn month(text: &str) -> Result<Period, &'static str> {
    let first = instant(&format!("{text}-01")).ok_or("write it as 2026-12")?;
    Ok(calendar::month(&Utc, 1, first))
}

#[cfg(test)]
mod tests {
    use super::{month, period};

    #[test]
    fn a_period_is_written_as_dates_or_instants_and_a_month_by_its_number() {
        let december = period("2026-12-01/2027-01-01").unwrap();
        assert_eq!(month("2026-12"), Ok(december));
        assert_eq!(period("2026-12-01T01:00:00+01:00/2027-01-01T00:00:00Z"), Ok(december));
        for wrong in ["2026-13", "2026", "december", ""] {
            assert!(month(wrong).is_err(), "{wrong}");
        }
        for wrong in ["2026-12-01", "2026-12-01/", "/", "2026-12-01/soon"] {
            assert!(period(wrong).is_err(), "{wrong}");
        }
    }
}
