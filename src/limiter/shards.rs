//! Takes from limits with several rows for each key, so that callers need not wait for each other.

use sqlx::PgConnection;

use super::Limiter;
use super::carry_out::{CarryOut, only, taken_over, trace};
use crate::algebra::{State, Timestamp};
use crate::error::Error;
use crate::plan::{Answer, Candidate, Outcome, Plan};
use crate::store::{Found, Swap};

impl Limiter {
    /// Decides a call that takes from limits with shards.
    ///
    /// No row is ever waited for while another is held out of order: what was locked at random is given up first.
    pub(super) async fn take_from_shards(&self, conn: &mut PgConnection, plan: &Plan) -> Result<Answer, Error> {
        let mut dice = fastrand::Rng::new();
        let shards = self.store(conn, plan).await?.read_shards(plan.rows()).await?;
        let (began, strangers) = (shards.began, !shards.strangers.is_empty());
        if strangers {
            // They are taken over, also for a refusal: what they hold until then comes back at other instants than its own.
            return self.carry_out(conn, plan, &[]).await;
        }
        let found = shards.found;
        if let Some(refusal) = refusal(plan, &found) {
            return refusal;
        }
        let candidates = plan.candidates(&found.states, found.now, &mut dice);
        let Some(candidates) = candidates else { return self.carry_out(conn, plan, &[]).await };
        if let [candidates] = candidates.as_slice() {
            let ample = candidates.iter().filter(|candidate| candidate.is_ample);
            let ample: Vec<_> = ample.take(ASKED).copied().collect();
            match self.swap(conn, plan, &found, &ample, began).await? {
                Swapped::Granted(answer) => return Ok(answer),
                Swapped::Held => return self.take_without_waiting(conn, plan, &mut dice).await,
                Swapped::Lost => {}
            }
        }
        let places: Vec<_> = candidates.iter().map(|candidates| Some(candidates.first()?.change.row)).collect();
        let alone = plan.placed(&found.states, found.now, &places);
        let seen = places.iter().flatten().all(|place| found.states[*place].is_some());
        let savepoint = self.savepoint(conn, plan).await?;
        match CarryOut::new(self.tables(conn), &alone).try_once(seen).await {
            Ok(None) => {
                savepoint.undo(conn).await?;
                self.carry_out(conn, plan, &[]).await
            }
            Ok(Some(answer)) => {
                trace(plan, &answer);
                savepoint.keep(conn).await.map(|()| answer)
            }
            Err(error) => savepoint.leave(conn, Err(error)).await,
        }
    }

    /// Goes on while it holds a row that somebody else has emptied just before: takes what can be had without waiting,
    /// for whoever waited now could be waited for.
    async fn take_without_waiting(
        &self,
        conn: &mut PgConnection,
        plan: &Plan,
        dice: &mut fastrand::Rng,
    ) -> Result<Answer, Error> {
        for _ in 0..TRIES {
            let shards = self.tables(conn).read_shards(plan.rows()).await?;
            let began = shards.began;
            let found = taken_over(plan, shards)?;
            if let Some(refusal) = refusal(plan, &found) {
                return refusal;
            }
            let candidates = plan.candidates(&found.states, found.now, dice).unwrap_or_default();
            let Some(candidates) = candidates.first() else { break };
            if let Swapped::Granted(answer) = self.swap(conn, plan, &found, candidates, began).await? {
                return Ok(answer);
            }
        }
        Err(Error::Busy)
    }

    /// Takes from the first of these shards that nobody holds and nobody has changed, by one statement.
    async fn swap(
        &self,
        conn: &mut PgConnection,
        plan: &Plan,
        found: &Found,
        candidates: &[Candidate],
        began: Timestamp,
    ) -> Result<Swapped, Error> {
        let changes: Vec<_> = candidates.iter().map(|candidate| candidate.change).collect();
        let swap = self.tables(conn).swap_shard(plan.rows(), &found.states, &changes, began).await?;
        let Some(Swap { row, xid, changed, .. }) = swap else { return Ok(Swapped::Lost) };
        let placed = plan.placed(&found.states, found.now, &[Some(row)]);
        let state: Option<State> = changed.or(found.states[row]);
        let Outcome { answers, changes } = placed.decide(&[state], found.now);
        let mut answer = only(answers)?;
        if !matches!(answer, Answer::Granted { .. }) {
            return Ok(Swapped::Held);
        }
        if changed.is_some() {
            self.tables(conn).save(placed.rows(), &changes, &[], xid, false).await?;
        }
        self.tables(conn).track(&mut answer, Some(xid)).await?;
        trace(plan, &answer);
        Ok(Swapped::Granted(answer))
    }
}

/// What became of an attempt to take from a shard that nobody holds.
enum Swapped {
    Granted(Answer),
    /// Another has changed it at the last moment, and left too little: nothing is taken, but the row is locked.
    Held,
    /// Nothing is taken or locked.
    Lost,
}

/// The refusal of the plan's only call that follows from what was found without a lock, or its error, if it is one.
fn refusal(plan: &Plan, found: &Found) -> Option<Result<Answer, Error>> {
    let answer = only(plan.decide(&found.states, found.now).answers);
    if let Ok(answer @ Answer::Denied(_)) = &answer {
        trace(plan, answer);
    }
    matches!(answer, Ok(Answer::Denied(_)) | Err(_)).then_some(answer)
}

/// How many rows are asked whether somebody holds them, before one is waited for: where each is held by every second caller, eight
/// all are by one caller of 256, and to ask takes time.
const ASKED: usize = 8;

/// How often it is tried.
const TRIES: u32 = 3;
