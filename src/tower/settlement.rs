use std::mem;

use chrono::{DateTime, Utc};
use http::response::Parts;
use tokio::runtime::Handle;

use super::rule::{Asking, Moment};
use crate::error::Error;
use crate::gate::Gate;
use crate::request::{Asked, Request};
use crate::standing::Standing;

/// What is charged or given back once the response is known. Dropped before that, it charges: a response that never came
/// counts.
pub(super) struct Settlement {
    gate: Gate,
    open: Vec<Asking>,
}

/// What the gate is still to be told.
enum Change {
    Charge(Request),
    Refund(Request),
}

impl Settlement {
    pub(super) fn new(gate: Gate, open: Vec<Asking>) -> Self {
        Self { gate, open }
    }

    /// Does what the response says, and corrects the standings by what was not charged after all.
    ///
    /// The gate is told by a task of its own, so that a client who goes away ends nothing. Fails where a charge could not be made
    /// and the gate is to be closed then.
    pub(super) async fn settle(
        mut self,
        response: &Parts,
        standings: &mut [(DateTime<Utc>, Standing)],
    ) -> Result<(), Error> {
        let mut changes = Vec::new();
        // By reference: should a predicate panic, the drop below charges.
        for Asking { asked, moment } in &self.open {
            match moment {
                Moment::If(charged) if charged(response) => changes.push(Change::Charge(asked.clone().into())),
                Moment::Unless(refunded) if refunded(response) => {
                    changes.push(Change::Refund(asked.clone().into()));
                    correct(standings, asked);
                }
                Moment::If(_) => correct(standings, asked),
                Moment::Before | Moment::Unless(_) => {}
            }
        }
        self.open.clear();
        if changes.is_empty() { Ok(()) } else { carry_out(self.gate.clone(), changes).await }
    }
}

impl Drop for Settlement {
    fn drop(&mut self) {
        let unanswered = mem::take(&mut self.open).into_iter().filter(|asking| matches!(asking.moment, Moment::If(_)));
        let changes: Vec<_> = unanswered.map(|asking| Change::Charge(asking.asked.into())).collect();
        if !changes.is_empty() {
            // What becomes of it is traced; nobody is left to be told.
            drop(carry_out(self.gate.clone(), changes));
        }
    }
}

/// Tells the gate, in a task that runs whether its result is awaited or not.
fn carry_out(gate: Gate, changes: Vec<Change>) -> impl Future<Output = Result<(), Error>> {
    let task = Handle::try_current().map(|runtime| runtime.spawn(tell(gate, changes)));
    async {
        match task {
            // A task that is aborted with its runtime has not counted for certain.
            Ok(task) => task.await.unwrap_or(Err(Error::Stopped)),
            Err(_) => Err(Error::Stopped),
        }
    }
}

async fn tell(gate: Gate, changes: Vec<Change>) -> Result<(), Error> {
    let mut failed = Ok(());
    for change in changes {
        let (told, is_charge) = match change {
            Change::Charge(request) => (gate.debit(request).await, true),
            Change::Refund(request) => (gate.credit(request).await, false),
        };
        if let Err(error) = told {
            tracing::warn!(%error, is_charge, "could not count a response");
            if is_charge && !gate.answers(&error) {
                failed = Err(error);
            }
        }
    }
    failed
}

fn correct(standings: &mut [(DateTime<Utc>, Standing)], asked: &Asked) {
    let is_of = |standing: &Standing| standing.limit.name == asked.limit.name && standing.key == asked.key;
    standings.iter_mut().filter(|(_, standing)| is_of(standing)).for_each(|(_, standing)| standing.without(asked.cost));
}
