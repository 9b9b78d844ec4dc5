use crate::algebra::Timestamp;
use crate::balance::Balance;
use crate::decision::Denied;
#[cfg(feature = "postgres")]
use crate::decision::{Decision, Grant, Reservation, Source};
use crate::receipt::Charge;
use crate::standing::Standings;
use crate::tokens::Tokens;

/// What a call comes to.
#[derive(Clone, Debug)]
pub enum Answer {
    /// Everything asked was taken.
    Granted {
        /// When it was decided.
        decided_at: Timestamp,
        /// The least that any of the rows has left.
        remaining: Tokens,
        /// When all of it may be spent.
        ready_at: Timestamp,
        /// What was taken from which row, in the order asked, and whether the caller wants it tracked.
        charges: Vec<(Charge, bool)>,
        /// Where each row stands now, in the order asked.
        standings: Standings,
    },
    /// Nothing was taken.
    Denied(Denied),
    /// The balances after a change or a look, in the order asked.
    Done(Vec<Balance>),
}

#[cfg(feature = "postgres")]
impl Answer {
    /// The answer of a call that takes or checks.
    pub(crate) fn grant(self) -> Decision {
        self.taken(|decided_at, remaining, _, charges, standings| {
            let source = Source::Database;
            Grant { remaining, decided_at: decided_at.into(), source, charges, standings }
        })
    }

    /// The answer of a call that reserves.
    pub(crate) fn reservation(self) -> Decision<Reservation> {
        self.taken(|decided_at, _, ready_at, charges, standings| Reservation {
            ready_at: ready_at.into(),
            decided_at: decided_at.into(),
            charges,
            standings,
        })
    }

    /// The lowest balance of a call that changes or looks.
    pub(crate) fn lowest(self) -> Balance {
        match self {
            Self::Done(balances) => balances.into_iter().min_by_key(|balance| balance.value),
            Self::Granted { .. } | Self::Denied(_) => None,
        }
        .unwrap_or_else(|| unreachable!("a plan has at least one row"))
    }

    fn taken<T>(self, granted: impl FnOnce(Timestamp, Tokens, Timestamp, Vec<Charge>, Standings) -> T) -> Decision<T> {
        match self {
            Self::Granted { decided_at, remaining, ready_at, charges, standings } => {
                let charges = charges.into_iter().map(|(charge, _)| charge).collect();
                Decision::Granted(granted(decided_at, remaining, ready_at, charges, standings))
            }
            Self::Denied(denied) => Decision::Denied(denied),
            Self::Done(_) => unreachable!("a call that takes is granted or denied"),
        }
    }

    /// How the answer is called in traces and metrics.
    pub(crate) fn outcome(&self) -> &'static str {
        match self {
            Self::Granted { .. } => "granted",
            Self::Denied(_) => "denied",
            Self::Done(_) => "changed",
        }
    }
}
