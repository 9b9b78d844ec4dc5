use std::mem;

use http::response::Parts;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::rule::{AppliedRule, Timing};
use crate::decision::{Grant, Source};
use crate::error::Error;
use crate::gate::Gate;
use crate::http::Rejection;
use crate::request::{CheckedRequest, Request};
use crate::standing::Standing;
use crate::tokens::Tokens;

/// A request that may be served: what its limits granted, and what remains to do when its response is known.
///
/// Dropped before the response is known, it charges: a missing response counts.
pub(super) struct Admission {
    gate: Gate,
    grants: Vec<Grant>,
    unsettled: Vec<AppliedRule>,
}

impl Admission {
    /// Asks all limits together.
    ///
    /// Checks come first: they take nothing, so a refusal among them leaves all limits as they were.
    pub(super) async fn new(gate: &Gate, rules: Vec<AppliedRule>) -> Result<Self, Rejection> {
        let (checked, charged): (Vec<_>, Vec<_>) =
            rules.into_iter().partition(|rule| matches!(rule.timing, Timing::ChargeIf(_)));
        let mut grants = Vec::new();
        if !checked.is_empty() {
            grants.push(gate.check_all(requests(&checked)).await?.granted()?);
        }
        let mut unsettled = checked;
        if !charged.is_empty() {
            let grant = gate.consume_all(requests(&charged)).await?.granted()?;
            // A grant that did not come from the database charged nothing, so there is nothing to give back.
            if grant.source == Source::Database {
                unsettled.extend(charged);
            }
            grants.push(grant);
        }
        Ok(Self { gate: gate.clone(), grants, unsettled })
    }

    /// Charges or gives back as the response demands. Returns the grants without what was not charged.
    ///
    /// A task of its own tells the gate, so that it happens even if the client goes away. Fails if a charge could not
    /// be made and the gate's failure policy is closed.
    pub(super) async fn settle(mut self, response: &Parts) -> Result<Vec<Grant>, Error> {
        let mut grants = mem::take(&mut self.grants);
        let (mut charges, mut refunds) = (Vec::new(), Vec::new());
        // By reference: if a predicate panics, `drop` below charges.
        for AppliedRule { asked, timing } in &self.unsettled {
            match timing {
                Timing::ChargeIf(is_due) if is_due(response) => charges.push(asked.clone().into()),
                Timing::ChargeIf(_) => uncharge(&mut grants, asked),
                Timing::RefundIf(refunded) if refunded(response) => {
                    refunds.push(asked.clone().into());
                    uncharge(&mut grants, asked);
                }
                Timing::Before | Timing::RefundIf(_) => {}
            }
        }
        self.unsettled.clear();
        if !charges.is_empty() || !refunds.is_empty() {
            let task = tell(self.gate.clone(), charges, refunds).ok_or(Error::Stopped)?;
            // The task fails only if the runtime stops. It is unknown then whether the gate counted.
            task.await.unwrap_or(Err(Error::Stopped))?;
        }
        Ok(grants)
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        let unsettled = mem::take(&mut self.unsettled).into_iter();
        let due = unsettled.filter(|rule| matches!(rule.timing, Timing::ChargeIf(_)));
        let charges: Vec<_> = due.map(|rule| rule.asked.into()).collect();
        if !charges.is_empty() {
            // Nobody waits for the result. The task logs a failure.
            drop(tell(self.gate.clone(), charges, Vec::new()));
        }
    }
}

fn requests(rules: &[AppliedRule]) -> impl Iterator<Item = Request> {
    rules.iter().map(|rule| rule.asked.clone().into())
}

/// Tells the gate, in a task that runs even if nobody awaits it; `None` if the runtime has stopped.
fn tell(gate: Gate, charges: Vec<Request>, refunds: Vec<Request>) -> Option<JoinHandle<Result<(), Error>>> {
    let telling = async move {
        let mut result = Ok(());
        for charge in charges {
            if let Err(error) = gate.debit(charge).await {
                tracing::warn!(%error, "could not charge for a response");
                if !gate.answers(&error) {
                    result = Err(error);
                }
            }
        }
        for refund in refunds {
            if let Err(error) = gate.credit(refund).await {
                tracing::warn!(%error, "could not give back a charge");
            }
        }
        result
    };
    Handle::try_current().ok().map(|runtime| runtime.spawn(telling))
}

/// Corrects the standing of a limit by a charge that was not made or was given back.
fn uncharge(grants: &mut [Grant], CheckedRequest { limit, key, cost, .. }: &CheckedRequest) {
    for grant in grants {
        let mut standings = Vec::from_iter(mem::take(&mut grant.standings));
        for standing in &mut standings {
            if standing.limit.name == limit.name && standing.key == *key {
                give_back(standing, *cost);
            }
        }
        grant.standings = standings.into();
    }
}

fn give_back(standing: &mut Standing, charge: Tokens) {
    let (had_debt, capacity) = (standing.remaining.is_negative(), standing.limit.capacity);
    standing.remaining = standing.remaining.checked_add(charge).unwrap_or(Tokens::MAX).min(capacity);
    // The next whole token comes at the same instant as before if the balance moved by whole tokens and it still fits.
    let is_whole = charge.micros() % Tokens::ONE.micros() == 0;
    let fits = Tokens::from_whole(standing.whole() + 1).is_ok_and(|next| next <= capacity);
    standing.more_at = standing.more_at.filter(|_| !had_debt && is_whole && fits);
}
