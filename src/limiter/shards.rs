//! Takes from limits with several rows for each key, so that callers need not wait for each other.

use std::time::Duration;

use sqlx::PgConnection;

use super::{Limiter, only, trace};
use crate::error::Error;
use crate::plan::{Answer, Change, Outcome, Plan, Row};
use crate::store::Found;

impl Limiter {
    /// Decides a call that takes from limits with shards; `None` where it needs several rows of one.
    ///
    /// Looks at all rows, without a lock. If together they are short, that is the refusal. Else it takes from the
    /// fullest row that nobody holds; a missing row is a full one. Where all are held it waits for one, in a savepoint
    /// that gives up the row if it turns out to be short: nobody ever waits for a row while it holds another out of
    /// order.
    pub(super) async fn take_from_shards(&self, conn: &mut PgConnection, plan: &Plan) -> Result<Option<Answer>, Error> {
        let rows = plan.rows();
        let mut store = self.tables(conn);
        store.expect_transaction_if_unnamed(rows[0].name()).await?;
        let mut seen = store.peek(rows).await?;
        let Outcome { answers, .. } = plan.decide(&seen.states, seen.now);
        if let answer @ (Ok(Answer::Denied(_)) | Err(_)) = only(answers) {
            return traced(plan, answer);
        }
        // A row that is written without a lock before would be written for good outside of a transaction.
        store.expect_transaction(rows[0].name()).await?;
        let Some(candidates) = plan.candidates(&seen.states, seen.now, &mut fastrand::Rng::new()) else {
            return Ok(None);
        };
        if let [candidates] = candidates.as_slice() {
            // A row may have holds of a time when the limit had one row; `swap_first` does not write them.
            let unheld = |change: &&Change| seen.states[change.row].as_ref().is_some_and(|state| state.holds.is_none());
            let there: Vec<_> = candidates.iter().filter(unheld).cloned().collect();
            let fullest = candidates[0].row;
            if !there.is_empty() && seen.states[fullest].is_none() {
                // Missing, it would stay full, and waste its refill. If somebody else is inserting it, another will do.
                match self.take_locked(conn, plan, &mut seen, &[fullest], Some(A_MOMENT)).await {
                    Ok(Some(answer)) => return Ok(Some(answer)),
                    Ok(None) | Err(Error::Busy) => {}
                    Err(error) => return Err(error),
                }
            }
            if !there.is_empty()
                && let Some(row) = self.swap_first(conn, plan, &seen, &there).await?
            {
                return traced(plan, only(plan.decide_in(&[row], &seen.states, seen.now).answers));
            }
        }
        // Random ones, so that not all wait for the same. The candidates of an item are never empty.
        let chosen: Vec<usize> =
            candidates.iter().map(|changes| changes[fastrand::usize(..changes.len())].row).collect();
        self.take_locked(conn, plan, &mut seen, &chosen, self.lock_timeout).await
    }

    /// Takes from the first of these rows that nobody holds and nobody has changed; which one.
    ///
    /// A row that changes while the statement locks it stays locked, and is not written. The savepoint gives it up.
    async fn swap_first(
        &self,
        conn: &mut PgConnection,
        plan: &Plan,
        seen: &Found,
        changes: &[Change],
    ) -> Result<Option<usize>, Error> {
        let savepoint = self.savepoint(conn, plan, self.lock_timeout).await?;
        match self.tables(conn).swap_first(plan.rows(), seen, changes).await {
            Ok(Some(place)) => savepoint.keep(conn).await.map(|()| Some(changes[place].row)),
            Ok(None) => savepoint.undo(conn).await.map(|()| None),
            Err(error) => savepoint.leave(conn, Err(error)).await,
        }
    }

    /// Locks one row of each limit, in a savepoint, and takes from it; `None`, and nothing locked, where it is short by
    /// then.
    async fn take_locked(
        &self,
        conn: &mut PgConnection,
        plan: &Plan,
        seen: &mut Found,
        chosen: &[usize],
        patience: Option<Duration>,
    ) -> Result<Option<Answer>, Error> {
        let savepoint = self.savepoint(conn, plan, patience).await?;
        let taken = self.take_from(conn, plan, seen, chosen).await;
        match taken {
            Ok(Some(answer)) => savepoint.keep(conn).await.map(|()| Some(answer)),
            Ok(None) => savepoint.undo(conn).await.map(|()| None),
            Err(error) => savepoint.leave(conn, Err(error)).await,
        }
    }

    async fn take_from(
        &self,
        conn: &mut PgConnection,
        plan: &Plan,
        seen: &mut Found,
        chosen: &[usize],
    ) -> Result<Option<Answer>, Error> {
        let mut store = self.tables(conn);
        let mut places = chosen.to_vec();
        places.sort_unstable();
        let rows: Vec<Row> = places.iter().map(|place| plan.rows()[*place].clone()).collect();
        let capacities = plan.capacities();
        let capacities: Vec<_> = places.iter().map(|place| capacities[*place]).collect();
        let (found, _) = store.claim(&rows, &capacities).await?;
        for (place, state) in places.iter().zip(&found.states) {
            seen.states[*place].clone_from(state);
        }
        let Outcome { answers, changes } = plan.decide_in(chosen, &seen.states, found.now);
        let Ok(answer @ Answer::Granted { .. }) = only(answers) else { return Ok(None) };
        store.save(plan.rows(), &changes, found.xid.ok_or(Error::NotInTransaction)?).await?;
        traced(plan, Ok(answer))
    }
}

/// How long to wait for a row while another is free.
const A_MOMENT: Duration = Duration::from_millis(5);

fn traced(plan: &Plan, answer: Result<Answer, Error>) -> Result<Option<Answer>, Error> {
    answer.inspect(|answer| trace(plan, answer)).map(Some)
}
