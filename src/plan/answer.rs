use std::time::Duration;

use super::settle::Settlement;
use crate::algebra::Timestamp;
use crate::answer::balance::Balance;
use crate::answer::decision::{Decision, Denied, Grant, Reservation, Source, span};
use crate::answer::receipt::Receipt;

/// The answer to a call.
#[derive(Clone, Debug)]
pub enum Answer {
    /// All tokens of the call were taken.
    Granted {
        /// The instant that the first row stands at from now on.
        stands_at: Timestamp,
        /// The instant from which on that row counts as a missing one, unless more is taken.
        full_at: Timestamp,
        /// When all of it may be spent; the reading of the clock, if at once.
        ready_at: Timestamp,
        /// The answer to its caller.
        grant: Grant,
    },
    /// Nothing was taken.
    Denied(Denied),
    /// The balance after a change or a look.
    Done(Balance),
    /// The charges after they were settled, cancelled, released or renewed, or have lapsed.
    Settled(Settlement),
}

impl Answer {
    /// The answer to a call that only checks: nothing is taken.
    pub(super) fn untaken(mut self) -> Self {
        if let Self::Granted { grant, .. } = &mut self {
            grant.receipt = Receipt::default();
            grant.standings.iter_mut().for_each(|standing| standing.before = None);
        }
        self
    }

    /// The answer of a call that takes or checks.
    pub(crate) fn grant(self) -> Decision {
        match self {
            Self::Granted { grant, .. } => Decision::Granted(grant),
            Self::Denied(denied) => Decision::Denied(denied),
            Self::Done(_) | Self::Settled(_) => unreachable!("a call that takes is granted or denied"),
        }
    }

    /// The answer of a call that reserves.
    pub(crate) fn reservation(self) -> Decision<Reservation> {
        match self {
            Self::Granted { ready_at, grant: Grant { observed_at, decided_at, receipt, standings, .. }, .. } => {
                let ready_at = ready_at.into();
                Decision::Granted(Reservation { ready_at, observed_at, decided_at, receipt, standings })
            }
            Self::Denied(denied) => Decision::Denied(denied),
            Self::Done(_) | Self::Settled(_) => unreachable!("a call that takes is granted or denied"),
        }
    }

    /// The receipt whose leases a call has renewed.
    pub(crate) fn renewal(self, receipt: &Receipt) -> Receipt {
        let mut receipt = receipt.clone();
        let leases = receipt.charges.iter_mut().filter(|charge| charge.lease.is_some());
        for (charge, renewed) in leases.zip(self.settlement().charges) {
            *charge = renewed;
        }
        receipt
    }

    /// The answer of a call that settles.
    pub(crate) fn settlement(self) -> Settlement {
        let Self::Settled(settlement) = self else { unreachable!("a call that settles is not granted or denied") };
        settlement
    }

    /// The balance of a call that changes or looks.
    pub(crate) fn balance(self) -> Balance {
        let Self::Done(balance) = self else { unreachable!("a call that changes is neither granted nor denied") };
        balance
    }

    /// The least time after the decision for which the stored call is kept.
    pub(crate) fn stored_for(&self) -> Option<Duration> {
        let Self::Granted { grant: Grant { observed_at, receipt, .. }, .. } = self else { return None };
        receipt.lapses_at.map(|lapses_at| span(*observed_at, lapses_at.into()))
    }

    /// The source of the decision.
    pub(crate) fn source(&self) -> Source {
        match self {
            Self::Granted { grant: Grant { source, .. }, .. } | Self::Done(Balance { source, .. }) => *source,
            Self::Denied(_) | Self::Settled(_) => Source::Database,
        }
    }

    /// The word for the answer in traces and metrics.
    pub(crate) fn outcome(&self) -> &'static str {
        match self {
            Self::Granted { .. } => "granted",
            Self::Denied(_) => "denied",
            Self::Done(_) | Self::Settled(_) => "changed",
        }
    }
}
