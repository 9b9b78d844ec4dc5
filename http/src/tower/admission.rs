use std::collections::BTreeMap;
use std::mem;
use std::time::Duration;

use http::response::Parts;
use tollgate::{Call, Gate, Grant, Key, Lease, Receipt, Standing, Tokens};

use super::rule::AppliedRule;
use crate::NotServed;

/// A request that may be served: the grant of its limits, and the settlement that follows when its response is known.
///
/// If it is dropped before that, everything stays charged, because a missing response counts. Only leases are released.
pub(super) struct Admission {
    gate: Gate,
    lease: Lease,
    rules: Vec<AppliedRule>,
}

impl Admission {
    /// Charges all limits together, or none.
    pub(super) async fn new(gate: &Gate, rules: Vec<AppliedRule>) -> Result<Self, NotServed> {
        let lease = gate.acquire(call(&rules)).await?.granted()?;
        Ok(Self { gate: gate.clone(), lease, rules })
    }

    /// The same, and waits for its turn.
    pub(super) async fn within(gate: &Gate, rules: Vec<AppliedRule>, timeout: Duration) -> Result<Self, NotServed> {
        let lease = gate.acquire_within(call(&rules), timeout).await?.granted()?;
        Ok(Self { gate: gate.clone(), lease, rules })
    }

    /// Settles at the cost of the response. Returns the grant as it is then, and the lease, which lasts until the
    /// body is sent.
    ///
    /// The response waits, so that the client's next request finds the tokens, but it does not wait for a gate that
    /// hangs. A separate task settles even if the client goes away.
    pub(super) async fn settle(self, response: &Parts) -> (Grant, Lease) {
        let Self { gate, lease, rules } = self;
        let mut grant = lease.grant().clone();
        let mut more = BTreeMap::new();
        // A lease ends with the body, whatever the response.
        for rule in rules.iter().filter(|rule| rule.asked.limit().lease().is_none()) {
            let more = more.entry((rule.asked.limit().name(), &rule.key)).or_insert(0_i64);
            // Neither cost is below zero.
            *more = more.saturating_add(rule.actual_cost(response).micros() - rule.cost.micros());
        }
        let charges = grant.receipt.charges.iter().filter(|charge| charge.lease_ends_at().is_none());
        let receipt = Receipt::from(charges.cloned().collect::<Vec<_>>());
        // A grant from memory was charged before; a grant during an outage is never charged.
        if receipt.is_charged() && more.values().any(|more| *more != 0) {
            let more_of = |limit: &str, key: &Key| more.get(&(limit, key)).copied().unwrap_or(0);
            let costs = receipt.by_request().map(|charges| {
                let taken: i64 = charges.iter().map(|charge| charge.cost.micros()).sum();
                // An unlimited request has taken no tokens, whatever its cost.
                Tokens::from_micros(taken.saturating_add(more_of(charges[0].limit(), &charges[0].key)).max(0))
            });
            let costs = costs.collect();
            let standings = mem::take(&mut grant.standings).into_iter().map(|mut standing| {
                let more = more_of(standing.limit.name(), &standing.key);
                lower(&mut standing, Tokens::from_micros(more));
                standing
            });
            grant.standings = standings.collect();
            let task = tokio::spawn(bring_to(gate, receipt, costs));
            let _ = tokio::time::timeout(PATIENCE, task).await;
        }
        (grant, lease)
    }
}

fn call(rules: &[AppliedRule]) -> Call {
    rules.iter().map(|rule| rule.asked.clone()).collect()
}

/// Tries again after an error that may pass and left nothing written, such as a full queue.
async fn bring_to(gate: Gate, receipt: Receipt, costs: Vec<Tokens>) {
    let mut pause = FIRST_PAUSE;
    loop {
        match gate.settle_each(receipt.clone(), &costs).await {
            Err(error) if error.is_retryable() && pause <= LAST_PAUSE => tokio::time::sleep(pause).await,
            Err(error) => break tracing::warn!(error = %error.chain(), "could not settle a request"),
            Ok(_) => break,
        }
        pause *= 2;
    }
}

/// Corrects the standing of a limit by the tokens that are charged more, or less.
fn lower(standing: &mut Standing, more: Tokens) {
    let (before, capacity) = (standing.remaining, standing.limit.most());
    standing.remaining = before.checked_sub(more).unwrap_or(before).min(capacity);
    // The next whole token comes at the same instant as before if the balance moved by whole tokens and the token still
    // fits.
    let is_whole = more.micros() % Tokens::ONE.micros() == 0;
    let has_debt = before.is_negative() || standing.remaining.is_negative();
    let fits = Tokens::try_from(standing.whole() + 1).is_ok_and(|next| next <= capacity);
    standing.more_at = standing.more_at.filter(|_| !has_debt && is_whole && fits);
    // All is back no later than before where tokens came back.
    standing.full_at = standing.full_at.filter(|_| more <= Tokens::ZERO);
}

/// How long a response waits at most until it is settled.
const PATIENCE: Duration = Duration::from_secs(1);
/// Ten tries within a minute. By then a queue is empty, and most failovers are over.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LAST_PAUSE: Duration = Duration::from_millis(25_600);
