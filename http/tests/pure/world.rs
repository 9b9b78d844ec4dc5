//! Decisions over rows in memory, at instants of our choice.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde_json::json;
use tollgate::algebra::{State, Timestamp};
use tollgate::plan::{Answer, Plan, RowId, RowWrite, Verb};
use tollgate::{Call, Decision, Grant};

#[derive(Clone, Debug, Default)]
pub(crate) struct World {
    rows: BTreeMap<RowId, State>,
}

impl World {
    pub(crate) fn consume(&mut self, call: impl Into<Call>, now: Timestamp) -> Decision {
        let plan = Plan::new([Verb::consume(call)]).unwrap();
        let found: Vec<_> = plan.rows().iter().map(|row| self.rows.get(row).cloned()).collect();
        let mut outcome = plan.decide(&found, &[], now);
        for RowWrite { row, state, .. } in outcome.changes {
            self.rows.insert(plan.rows()[row].clone(), state);
        }
        match outcome.answers.remove(0).unwrap() {
            Answer::Denied(denied) => Decision::Denied(denied),
            Answer::Granted { grant: Grant { observed_at, decided_at, remaining, standings, .. }, .. } => {
                let [observed_at, decided_at] = [observed_at, decided_at].map(DateTime::<Utc>::from);
                let grant: Grant = serde_json::from_value(json!({
                    "observed_at": observed_at, "decided_at": decided_at, "remaining": remaining, "source": "database",
                    "receipt": { "charges": [] },
                    "standings": standings,
                }))
                .unwrap();
                Decision::Granted(grant)
            }
            Answer::Done(_) | Answer::Settled(_) => unreachable!(),
        }
    }
}

/// So many milliseconds after the epoch.
pub(crate) fn millis(millis: i64) -> Timestamp {
    Timestamp::from_micros(millis * 1_000)
}
