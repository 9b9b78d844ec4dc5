use std::mem;
use std::time::Duration;

use http::response::Parts;

use super::rule::AppliedRule;
use crate::decision::{Grant, Source};
use crate::error::{Error, chain};
use crate::gate::{Gate, Lease};
use crate::http::NotServed;
use crate::request::{CheckedRequest, Request};
use crate::standing::Standing;
use crate::tokens::Tokens;

/// A request that may be served: what its limits granted, and what remains to do when its response is known.
///
/// Dropped before that, it leaves everything charged: a missing response counts. Only what is held is released.
pub(super) struct Admission {
    gate: Gate,
    lease: Lease,
    rules: Vec<AppliedRule>,
}

impl Admission {
    /// Charges all limits together, or none.
    pub(super) async fn new(gate: &Gate, rules: Vec<AppliedRule>) -> Result<Self, NotServed> {
        let requests = rules.iter().map(|rule| rule.asked.clone().into());
        let lease = gate.acquire_all(requests).await?.granted()?;
        Ok(Self { gate: gate.clone(), lease, rules })
    }

    /// Gives back what the response deserves. Returns the grant without it, and what is held until the body is sent.
    ///
    /// The response waits, so that the client's next request finds the tokens, but not for a gate that hangs. A task of
    /// its own gives them back even if the client goes away.
    pub(super) async fn settle(self, response: &Parts) -> (Grant, Lease) {
        let Self { gate, lease, rules } = self;
        let mut grant = lease.grant().clone();
        let is_due = |rule: &AppliedRule| {
            let deserved = rule.refund_if.as_ref().is_some_and(|refunded| refunded(response));
            // What is held is released, whatever the response.
            deserved && rule.asked.limit.lease().is_none()
        };
        let refunds: Vec<_> = rules.into_iter().filter(is_due).map(|rule| rule.asked).collect();
        // A grant that did not come from the database charged nothing.
        if !refunds.is_empty() && grant.source == Source::Database {
            for refund in &refunds {
                uncharge(&mut grant, refund);
            }
            let task = tokio::spawn(give_back(gate, refunds));
            let _ = tokio::time::timeout(PATIENCE, task).await;
        }
        (grant, lease)
    }
}

async fn give_back(gate: Gate, refunds: Vec<CheckedRequest>) {
    for refund in refunds {
        if let Err(error) = credit(&gate, refund.into()).await {
            tracing::warn!(error = %chain(&error), "could not give back a charge");
        }
    }
}

/// Tries again after an error that nothing was written by and that may pass, such as a full queue.
async fn credit(gate: &Gate, refund: Request) -> Result<(), Error> {
    let mut pause = FIRST_PAUSE;
    loop {
        match gate.credit(refund.clone()).await {
            Err(error) if error.is_retryable() && pause <= LAST_PAUSE => tokio::time::sleep(pause).await,
            done => return done.map(drop),
        }
        pause *= 2;
    }
}

/// Corrects the standing of a limit by a charge that is given back.
fn uncharge(grant: &mut Grant, CheckedRequest { limit, key, cost, .. }: &CheckedRequest) {
    let mut standings = Vec::from_iter(mem::take(&mut grant.standings));
    for standing in &mut standings {
        if standing.limit.name == limit.name && standing.key == *key {
            raise(standing, *cost);
        }
    }
    grant.standings = standings.into();
}

fn raise(standing: &mut Standing, charge: Tokens) {
    let (had_debt, capacity) = (standing.remaining.is_negative(), standing.limit.most());
    standing.remaining = standing.remaining.checked_add(charge).unwrap_or(Tokens::MAX).min(capacity);
    // The next whole token comes at the same instant as before if the balance moved by whole tokens and it still fits.
    let is_whole = charge.micros() % Tokens::ONE.micros() == 0;
    let fits = Tokens::from_whole(standing.whole() + 1).is_ok_and(|next| next <= capacity);
    standing.more_at = standing.more_at.filter(|_| !had_debt && is_whole && fits);
}

/// How long a response waits at most for what it gives back.
const PATIENCE: Duration = Duration::from_secs(1);
/// Ten tries within a minute: a queue is empty sooner, and most failovers are over.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LAST_PAUSE: Duration = Duration::from_millis(25_600);
