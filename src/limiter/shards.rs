//! Takes from limits with several rows for each key, so that callers need not wait for each other.

use sqlx::PgConnection;

use super::Limiter;
use crate::error::Error;
use crate::execution::{Execution, is_settled, only};
use crate::plan::{Answer, Outcome, Plan};

impl Limiter {
    /// Decides a call that takes from limits with shards.
    ///
    /// Looks at all rows, without a lock. If together they are short, that is the refusal. Else it takes from one row
    /// of each limit, in a savepoint that gives the rows up if one turns out to be short: nobody ever waits for a row
    /// while it holds another out of order. Then, and where several rows are needed, it locks all of them in order.
    pub(super) async fn take_from_shards(&self, conn: &mut PgConnection, plan: &Plan) -> Result<Answer, Error> {
        let mut store = self.tables(conn);
        store.expect_transaction_if_unnamed(plan.rows()[0].name()).await?;
        let seen = store.peek(plan.rows()).await?;
        let known = store.peek_calls(plan).await?;
        let Outcome { answers, .. } = plan.decide(&seen.states, &known, seen.now);
        let answer = only(answers);
        if is_settled(&answer) {
            return answer;
        }
        if let Some(candidates) = plan.candidates(&seen.states, seen.now, fastrand::shuffle) {
            let savepoint = self.savepoint(conn, plan, self.lock_timeout).await?;
            match Execution::new(self.tables(conn), plan).take_from(seen, &candidates).await.transpose() {
                Some(answer) => {
                    return savepoint.leave(conn, answer.map(|answer| vec![Ok(answer)])).await.and_then(only);
                }
                None => savepoint.undo(conn).await?,
            }
        }
        self.carry_out(conn, plan, false).await.and_then(only)
    }
}
