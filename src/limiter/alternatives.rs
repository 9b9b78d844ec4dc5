//! Decides calls of which the first alternative that is granted is charged.

use sqlx::PgConnection;

use super::Limiter;
use crate::error::Error;
use crate::execution::{Answers, Chosen, Execution};
use crate::plan::Plan;

impl Limiter {
    /// Looks at all rows, without a lock. Locks those of the alternatives up to the one that is granted, in a savepoint
    /// that gives them up if none of these is granted by then: nobody ever waits for a row while it holds another out
    /// of order. Then it locks all of them in order.
    pub(super) async fn carry_out_first(&self, conn: &mut PgConnection, plan: &Plan) -> Result<Answers, Error> {
        let mut store = self.tables(conn);
        store.expect_transaction_if_unnamed(plan.rows()[0].name()).await?;
        let chosen = match Execution::new(store, plan).choose().await? {
            Chosen::Settled(answers) => return Ok(answers),
            Chosen::Rows(chosen) => chosen,
        };
        if chosen.rows().len() < plan.rows().len() {
            let savepoint = self.savepoint(conn, plan, self.lock_timeout).await?;
            match Execution::new(self.tables(conn), &chosen).run().await {
                Ok(answers) if chosen.falls_short(plan, &answers) => savepoint.undo(conn).await?,
                answers => return savepoint.leave(conn, answers).await,
            }
        }
        self.carry_out(conn, plan, false).await
    }
}
