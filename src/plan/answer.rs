use crate::algebra::Timestamp;
use crate::balance::Balance;
#[cfg(feature = "postgres")]
use crate::decision::{Decision, Grant, Reservation};
use crate::decision::{Denied, Source};
use crate::receipt::Charge;
#[cfg(feature = "postgres")]
use crate::receipt::Receipt;
use crate::standing::Standings;
use crate::tokens::Tokens;

/// What a call comes to.
#[derive(Clone, Debug)]
pub enum Answer {
    /// Everything asked was taken.
    Granted {
        /// The clock as it was read.
        observed_at: Timestamp,
        /// The instant of the decision: the same, or the latest that a row stands at.
        decided_at: Timestamp,
        /// The database, or an earlier call of the same name, if nothing was taken.
        source: Source,
        /// The least that any of the limits has left.
        remaining: Tokens,
        /// When all of it may be spent; the clock as it was read, if at once.
        ready_at: Timestamp,
        /// What was taken from which row, in the order asked.
        charges: Vec<Charge>,
        /// Where each limit stands now, in the order asked.
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
        match self {
            Self::Granted { observed_at, decided_at, source, remaining, charges, standings, .. } => {
                let (observed_at, decided_at) = (observed_at.into(), decided_at.into());
                Decision::Granted(Grant { remaining, observed_at, decided_at, source, charges, standings })
            }
            Self::Denied(denied) => Decision::Denied(denied),
            Self::Done(_) => unreachable!("a call that takes is granted or denied"),
        }
    }

    /// The answer of a call that reserves.
    pub(crate) fn reservation(self) -> Decision<Reservation> {
        match self {
            Self::Granted { observed_at, decided_at, ready_at, charges, standings, .. } => {
                let [ready_at, observed_at, decided_at] = [ready_at, observed_at, decided_at].map(Into::into);
                Decision::Granted(Reservation { ready_at, observed_at, decided_at, charges, standings })
            }
            Self::Denied(denied) => Decision::Denied(denied),
            Self::Done(_) => unreachable!("a call that takes is granted or denied"),
        }
    }

    /// The receipt whose leases a call has renewed.
    pub(crate) fn renewal(self, receipt: &Receipt) -> Receipt {
        let Self::Done(balances) = self else { unreachable!("a call that changes is neither granted nor denied") };
        let mut receipt = receipt.clone();
        let leases = receipt.charges.iter_mut().filter_map(|charge| {
            let lease = charge.limit.lease()?;
            Some((charge.hold.as_mut()?, lease))
        });
        for ((held, lease), balance) in leases.zip(balances) {
            held.lapses_at = Timestamp::from(balance.as_of).plus(lease).into();
        }
        receipt
    }

    /// The lowest balance of a call that changes or looks.
    pub(crate) fn lowest(self) -> Balance {
        let Self::Done(balances) = self else { unreachable!("a call that changes is neither granted nor denied") };
        balances.into_iter().min_by_key(|balance| balance.value).expect("a call asks at least one row")
    }

    /// Who decided.
    pub(crate) fn source(&self) -> Source {
        if let Self::Granted { source, .. } = self { *source } else { Source::Database }
    }

    /// How traces and metrics name the answer.
    pub(crate) fn outcome(&self) -> &'static str {
        match self {
            Self::Granted { .. } => "granted",
            Self::Denied(_) => "denied",
            Self::Done(_) => "changed",
        }
    }
}
