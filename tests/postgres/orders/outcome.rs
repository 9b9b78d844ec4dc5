//! An answer of the library or of the plan, without the names that were drawn.

use chrono::{DateTime, Utc};
use tollgate::plan::Answer;
use tollgate::{Balance, Charge, Decision, Denied, Error, Grant, Receipt, Reservation, Settlement, Source, Tokens};

use super::cast::LEASE;

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Outcome {
    /// A function has changed a row, and says no instant.
    Changed,
    /// The answer of an SQL function.
    Decided {
        at: DateTime<Utc>,
        granted: bool,
    },
    Denied {
        at: DateTime<Utc>,
        by: Vec<By>,
    },
    Done {
        at: DateTime<Utc>,
        remaining: Tokens,
        used: Tokens,
        full_at: Option<DateTime<Utc>>,
    },
    Failed(String),
    Granted {
        at: DateTime<Utc>,
        source: Source,
        amount: Tokens,
        remaining: Tokens,
        charges: Vec<Charged>,
    },
    Many(Vec<Self>),
    Renewed {
        ends_at: Vec<Option<DateTime<Utc>>>,
    },
    Reserved {
        at: DateTime<Utc>,
        ready_at: DateTime<Utc>,
        charges: Vec<Charged>,
    },
    Settled {
        at: DateTime<Utc>,
        charges: Vec<Charged>,
    },
    Swept,
}

/// A limit that refused.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct By {
    limit: String,
    remaining: Tokens,
    retry_at: Option<DateTime<Utc>>,
}

/// A charge without the name of its lease.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Charged {
    limit: String,
    cost: Tokens,
    ready_at: DateTime<Utc>,
    ends_at: Option<DateTime<Utc>>,
}

impl Outcome {
    /// The answer of the plan.
    pub(crate) fn of(answer: Result<Answer, Error>) -> Self {
        match answer {
            Ok(Answer::Granted { grant: Grant { observed_at, source, amount, remaining, receipt, .. }, .. }) => {
                Self::Granted { at: observed_at, source, amount, remaining, charges: charged(&receipt.charges) }
            }
            Ok(Answer::Denied(denied)) => denied.into(),
            Ok(Answer::Done(balance)) => balance.into(),
            Ok(Answer::Settled(settlement)) => settlement.into(),
            Err(error) => Self::Failed(error.to_string()),
        }
    }

    /// The answer of the plan to a reservation.
    pub(crate) fn of_reservation(answer: Result<Answer, Error>) -> Self {
        let ready_at = match &answer {
            Ok(Answer::Granted { ready_at, .. }) => (*ready_at).into(),
            _ => return Self::of(answer),
        };
        let Self::Granted { at, charges, .. } = Self::of(answer) else { unreachable!("it is granted") };
        Self::Reserved { at, ready_at, charges }
    }

    /// The answers to calls that were decided one by one.
    pub(crate) fn apart(self) -> Vec<Self> {
        match self {
            Self::Many(each) => each,
            other => vec![other],
        }
    }

    /// The answer of the plan to a renewal.
    pub(crate) fn of_renewal(answer: Result<Answer, Error>) -> Self {
        match answer {
            Ok(Answer::Settled(settlement)) => Self::Renewed { ends_at: ends(&settlement.charges) },
            other => Self::of(other),
        }
    }

    /// Whether the plan could have told this.
    ///
    /// A call looks at rows before it locks them, and then at stored calls. So the `remaining` of a repeat may be older
    /// than the first call. It looks at two `tables` one after the other. So a refusal may name only some of the limits
    /// that refuse.
    pub(crate) fn is_as_good_as(&self, planned: &Self, tables: usize) -> bool {
        match (self, planned) {
            (Self::Decided { at, granted }, planned) => {
                let is_granted = matches!(planned, Self::Granted { .. } | Self::Reserved { .. });
                planned.at() == Some(*at) && is_granted == *granted
            }
            (Self::Changed, planned) => {
                matches!(planned, Self::Changed | Self::Done { .. } | Self::Settled { .. })
            }
            (Self::Denied { at, by }, Self::Denied { at: planned_at, by: all }) if tables > 1 => {
                at == planned_at && by.iter().all(|by| all.iter().any(|other| by.limit == other.limit))
            }
            (
                Self::Granted { source: Source::Repeated, amount, charges, .. },
                Self::Granted { source: Source::Repeated, amount: planned_amount, charges: planned_charges, .. },
            ) => (amount, charges) == (planned_amount, planned_charges),
            (Self::Many(told), Self::Many(planned)) => {
                told.len() == planned.len()
                    && told.iter().zip(planned).all(|(told, planned)| told.is_as_good_as(planned, tables))
            }
            (told, planned) => told == planned,
        }
    }

    pub(crate) fn is_failed(&self) -> bool {
        match self {
            Self::Many(each) => each.iter().any(Self::is_failed),
            outcome => matches!(outcome, Self::Failed(_)),
        }
    }

    /// The instant at which it was decided, where it says one.
    pub(crate) fn at(&self) -> Option<DateTime<Utc>> {
        match self {
            Self::Decided { at, .. }
            | Self::Denied { at, .. }
            | Self::Done { at, .. }
            | Self::Granted { at, .. }
            | Self::Reserved { at, .. }
            | Self::Settled { at, .. } => Some(*at),
            Self::Many(each) => each.iter().find_map(Self::at),
            Self::Renewed { ends_at } => ends_at[0].map(|ends_at| ends_at - LEASE),
            Self::Changed | Self::Failed(_) | Self::Swept => None,
        }
    }
}

impl<T: Into<Self>> From<Result<T, Error>> for Outcome {
    fn from(told: Result<T, Error>) -> Self {
        told.map_or_else(|error| Self::Failed(error.chain()), Into::into)
    }
}

impl<T: Into<Self>> From<Vec<T>> for Outcome {
    fn from(each: Vec<T>) -> Self {
        Self::Many(each.into_iter().map(Into::into).collect())
    }
}

impl<T: Into<Self>> From<Decision<T>> for Outcome {
    fn from(decision: Decision<T>) -> Self {
        match decision {
            Decision::Granted(granted) => granted.into(),
            Decision::Denied(denied) => denied.into(),
        }
    }
}

impl From<Grant> for Outcome {
    fn from(grant: Grant) -> Self {
        let Grant { observed_at, source, amount, remaining, receipt, .. } = grant;
        Self::Granted { at: observed_at, source, amount, remaining, charges: charged(&receipt.charges) }
    }
}

impl From<Reservation> for Outcome {
    fn from(booked: Reservation) -> Self {
        Self::Reserved { at: booked.observed_at, ready_at: booked.ready_at, charges: charged(&booked.receipt.charges) }
    }
}

impl From<Denied> for Outcome {
    fn from(denied: Denied) -> Self {
        let first = By { limit: denied.limit.into(), remaining: denied.remaining, retry_at: denied.retry_at };
        let others = denied.others.iter().cloned();
        let others = others.map(|by| By { limit: by.limit.into(), remaining: by.remaining, retry_at: by.retry_at });
        Self::Denied { at: denied.observed_at, by: [first].into_iter().chain(others).collect() }
    }
}

impl From<Balance> for Outcome {
    fn from(balance: Balance) -> Self {
        let Balance { observed_at, remaining, used, full_at, .. } = balance;
        Self::Done { at: observed_at, remaining, used, full_at }
    }
}

impl From<Settlement> for Outcome {
    fn from(settlement: Settlement) -> Self {
        Self::Settled { at: settlement.observed_at, charges: charged(&settlement.charges) }
    }
}

impl From<Receipt> for Outcome {
    fn from(renewed: Receipt) -> Self {
        Self::Renewed { ends_at: ends(&renewed.charges) }
    }
}

fn charged(charges: &[Charge]) -> Vec<Charged> {
    let each = charges.iter().map(|charge| Charged {
        limit: charge.limit().to_owned(),
        cost: charge.cost,
        ready_at: charge.ready_at(),
        ends_at: charge.lease_ends_at(),
    });
    each.collect()
}

fn ends(charges: &[Charge]) -> Vec<Option<DateTime<Utc>>> {
    charges.iter().map(Charge::lease_ends_at).collect()
}
