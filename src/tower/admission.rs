use chrono::{DateTime, Utc};

use super::rule::{Asking, Moment};
use super::settlement::Settlement;
use crate::decision::{Grant, Source};
use crate::gate::Gate;
use crate::http::Rejection;
use crate::limit::Limit;
use crate::request::Request;
use crate::standing::Standing;

/// A request that may be served: where its limits stand, and what is still to be done once its response is known.
pub(super) struct Admission {
    pub(super) standings: Vec<(DateTime<Utc>, Standing)>,
    pub(super) settlement: Settlement,
}

/// Asks all limits together: first those that are only looked at for now, for that takes nothing if another refuses.
pub(super) async fn admit(gate: &Gate, askings: Vec<Asking>) -> Result<Admission, Rejection> {
    let (later, now): (Vec<_>, Vec<_>) = askings.into_iter().partition(|asking| matches!(asking.moment, Moment::If(_)));
    let mut standings = Vec::with_capacity(later.len() + now.len());
    if !later.is_empty() {
        standings.extend(told(gate.check_all(requests(&later)).await?.granted()?));
    }
    let mut settled = later;
    if !now.is_empty() {
        let grant = gate.consume_all(requests(&now)).await?.granted()?;
        // What was not charged, for the database is away, cannot be given back.
        if grant.source == Source::Database {
            settled.extend(now.into_iter().filter(|asking| matches!(asking.moment, Moment::Unless(_))));
        }
        standings.extend(told(grant));
    }
    Ok(Admission { standings, settlement: Settlement::new(gate.clone(), settled) })
}

/// The limits that a request asks, to be announced in any case.
pub(super) fn limits(askings: &[Asking]) -> Vec<Limit> {
    askings.iter().map(|asking| asking.asked.limit.clone()).collect()
}

fn requests(askings: &[Asking]) -> impl Iterator<Item = Request> {
    askings.iter().map(|asking| asking.asked.clone().into())
}

fn told(grant: Grant) -> impl Iterator<Item = (DateTime<Utc>, Standing)> {
    grant.standings.into_iter().map(move |standing| (grant.decided_at, standing))
}
