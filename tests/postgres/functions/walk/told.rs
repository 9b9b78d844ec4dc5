//! Answers, in the words that the limiter and the functions share.

use chrono::{DateTime, Utc};
use sqlx::Row as _;
use sqlx::postgres::PgRow;
use tollgate::{CallError, Denied, Error, FitError, Tokens};

/// An answer that both can give.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Told {
    Granted { last: String, decided_at: DateTime<Utc> },
    Denied { limit: String, remaining: String, retry_at: Option<DateTime<Utc>>, decided_at: DateTime<Utc> },
    Done(String),
    Failed(String),
}

impl Told {
    pub(super) fn failed(&self) -> bool {
        matches!(self, Self::Failed(_))
    }

    pub(super) fn retry_at(&self) -> Option<DateTime<Utc>> {
        if let Self::Denied { retry_at, .. } = self { *retry_at } else { None }
    }

    /// Reads an error by the codes of the functions.
    pub(super) fn error(error: &Error) -> Self {
        Self::Failed(
            match error {
                Error::DoesNotFit { source: FitError::DebtTooDeep, .. } => "TG003",
                Error::CostExceedsCapacity { .. } => "TG004",
                Error::DoesNotFit { source: FitError::MixedMoney, .. } => "TG006",
                Error::DoesNotFit { source: FitError::BalanceTooLarge, .. } => "TG007",
                Error::Call { source: CallError::PeriodMissing | CallError::ResetOfMeter, .. } => "TG002",
                Error::OnceMismatch { .. } => "TG008",
                Error::TooLateToCancel { .. } => "TG010",
                // A table knows one definition of a limit, so a call with two has no code there.
                Error::Call { source: CallError::ConflictingDefinitions, .. } => "",
                error => panic!("{error}"),
            }
            .to_owned(),
        )
    }
}

pub(super) fn refused(denied: &Denied) -> Told {
    Told::Denied {
        limit: denied.limit.to_string(),
        remaining: written(denied.remaining),
        retry_at: denied.retry_at,
        decided_at: denied.decided_at,
    }
}

pub(super) fn decision(row: &PgRow, reserves: bool) -> Told {
    let instant = |column: &str| row.get::<Option<DateTime<Utc>>, _>(column);
    // Null for an unlimited call.
    let remaining = row.get::<Option<String>, _>("remaining").unwrap_or_else(|| written(Tokens::MAX));
    if row.get("granted") {
        let last = if reserves { instant("ready_at").unwrap().to_rfc3339() } else { remaining };
        return Told::Granted { last, decided_at: row.get("decided_at") };
    }
    let (limit, retry_at, decided_at) = (row.get("refused_by"), instant("retry_at"), row.get("decided_at"));
    Told::Denied { limit, remaining, retry_at, decided_at }
}

/// As `numeric` is written with six decimals.
pub(super) fn written(tokens: Tokens) -> String {
    let micros = tokens.micros();
    let sign = if micros < 0 { "-" } else { "" };
    format!("{sign}{}.{:06}", micros.unsigned_abs() / 1_000_000, micros.unsigned_abs() % 1_000_000)
}
