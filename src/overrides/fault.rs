use std::time::Duration;

use sqlx::error::DatabaseError;

use super::slow_down::SlowDown;
use crate::error::SetupFault;
use crate::key::KeyError;
use crate::limit::{Limit, LimitKind, micros};
use crate::store::setup_fault;
use crate::values::driver_error::DriverError;
use crate::{DAY, SECOND};

/// Why an override was not set or removed, or why overrides could not be read.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OverrideError {
    /// The key is not valid.
    #[error("the key of the override of limit {limit:?} is invalid: {source}")]
    #[cfg_attr(not(feature = "unstable"), non_exhaustive)]
    Key {
        /// The limit's name.
        limit: String,
        /// The fault of the key. By its raw name it is no `source()`: the message has it.
        r#source: KeyError,
    },
    /// The reason is empty, or longer than 500 bytes.
    #[error("an override of limit {limit:?} needs a reason of 1 to 500 bytes (say why, for whoever finds it)")]
    #[cfg_attr(not(feature = "unstable"), non_exhaustive)]
    Reason {
        /// The limit's name.
        limit: String,
    },
    /// The name of the person or program that sets the override is empty, or longer than 255 bytes.
    #[error("who overrides limit {limit:?} needs a name of 1 to 255 bytes (or leave it out, for the role's own)")]
    #[cfg_attr(not(feature = "unstable"), non_exhaustive)]
    Who {
        /// The limit's name.
        limit: String,
    },
    /// The limit is a [meter](Limit::meter), to which no override applies.
    #[error("limit {limit:?} is a meter, which refuses nobody and has no numbers (override the limit beside it)")]
    #[cfg_attr(not(feature = "unstable"), non_exhaustive)]
    Meter {
        /// The limit's name.
        limit: String,
    },
    /// The label is longer than 255 bytes, or has a NUL.
    #[error("an override of limit {limit:?} needs a label of up to 255 bytes without NUL (or none)")]
    #[cfg_attr(not(feature = "unstable"), non_exhaustive)]
    Label {
        /// The limit's name.
        limit: String,
    },
    /// The override ends before it starts, or has two ends.
    #[error("an override of limit {limit:?} ends before it starts, or has two ends (say `until` or `lasting`)")]
    #[cfg_attr(not(feature = "unstable"), non_exhaustive)]
    Span {
        /// The limit's name.
        limit: String,
    },
    /// The database rejected the override: it is already over, or is for another kind of limit than `tollgate.limits`
    /// has.
    #[error("{message}")]
    #[cfg_attr(not(feature = "unstable"), non_exhaustive)]
    Rejected {
        /// The limit's name.
        limit: String,
        /// The database's message.
        message: String,
    },
    /// PostgreSQL or the connection failed.
    #[error("could not {step} overrides: {}", **source)]
    #[cfg_attr(not(feature = "unstable"), non_exhaustive)]
    Database {
        /// The step that failed.
        step: &'static str,
        /// The error of the driver.
        source: DriverError,
    },
    /// The table, its rights or the connections are not set up as this process needs them.
    #[error("could not use tollgate.overrides: {fault}")]
    #[cfg_attr(not(feature = "unstable"), non_exhaustive)]
    Setup {
        /// The fault to mend.
        fault: SetupFault,
        /// The error of the driver.
        source: DriverError,
    },
    /// A number of the slow-down is out of its range, or the limit has no rate.
    #[error("limit {limit:?} cannot be slowed down: {fault}")]
    #[cfg_attr(not(feature = "unstable"), non_exhaustive)]
    SlowDown {
        /// The limit's name.
        limit: String,
        /// The fault.
        fault: SlowDownFault,
    },
    /// 10 000 slow-downs and pauses are live, of all limits and keys together, and this would be one more. The owner of
    /// the tables may set another bound (the guide `sql.md`, `TG011`).
    #[error("{message}")]
    #[cfg_attr(not(feature = "unstable"), non_exhaustive)]
    TooManyReports {
        /// The limit's name.
        limit: String,
        /// The database's message.
        message: String,
    },
    /// These overrides were read once, and have no pool to report over.
    #[error("these overrides were read once, and cannot report (use those of `Overrides::watch`)")]
    NotWatched,
    /// There is no tokio runtime for the task that reads the overrides each second.
    #[error("there is no runtime to watch overrides on (call it from a tokio runtime that is alive)")]
    Stopped,
}

/// Why a slow-down is not valid.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SlowDownFault {
    /// A report must leave 1 to 99 % of the rate.
    #[error("a report must leave 1 to 99 percent of the rate (`percent`)")]
    Percent,
    /// All reports together must leave 1 to 99 % of the rate.
    #[error("all reports together must leave 1 to 99 percent of the rate (`least_percent`)")]
    LeastPercent,
    /// The rate must grow back in a second to a day, in whole microseconds.
    #[error("the rate must grow back in a second to a day, in whole microseconds (`recovers`)")]
    Recovers,
    /// The cool-down must last for a day at most, in whole microseconds.
    #[error("the cool-down must last for a day at most, in whole microseconds (`cool_down`)")]
    CoolDown,
    /// A tolerated report must be forgotten in a day at most, in whole microseconds.
    #[error("a report must be forgotten in a day at most, in whole microseconds (`forgets`)")]
    Forgets,
    /// A wallet has no rate. A monthly and a billing limit bring all of it at once.
    #[error("a {0} has no rate that could be slowed down (pause it, or set an override with other numbers)")]
    Kind(LimitKind),
}

impl SlowDownFault {
    /// The first fault: a number that is out of its range, or a limit without a rate.
    pub(super) fn of(how: &SlowDown, limit: &Limit) -> Option<Self> {
        let is_whole = |span: Duration| micros(span).is_some() && span <= DAY;
        let faults = [
            (!(1..=99).contains(&how.percent), Self::Percent),
            (!(1..=99).contains(&how.least_percent), Self::LeastPercent),
            (how.recovers < SECOND || !is_whole(how.recovers), Self::Recovers),
            (!is_whole(how.cool_down), Self::CoolDown),
            (!how.forgets.is_none_or(is_whole), Self::Forgets),
            (!limit.kind.can_slow(), Self::Kind(limit.kind)),
        ];
        faults.into_iter().find_map(|(is_wrong, fault)| is_wrong.then_some(fault))
    }
}

/// The error of a statement that was rejected: an error of the functions' own class says what is wrong.
pub(super) fn rejected(limit: &str, step: &'static str, source: sqlx::Error) -> OverrideError {
    let error = source.as_database_error();
    let (limit, message) = (limit.to_owned(), error.map(DatabaseError::message).unwrap_or_default().to_owned());
    match error.and_then(DatabaseError::code).as_deref() {
        Some("TG001" | "TG002" | "22P02" | "22008") => OverrideError::Rejected { limit, message },
        Some("TG011") => OverrideError::TooManyReports { limit, message },
        _ => failed(step)(source),
    }
}

pub(super) fn failed(step: &'static str) -> impl Fn(sqlx::Error) -> OverrideError {
    move |source| {
        let fault = setup_fault(&source);
        let source = source.into();
        match fault {
            Some(fault) => OverrideError::Setup { fault, source },
            None => OverrideError::Database { step, source },
        }
    }
}
