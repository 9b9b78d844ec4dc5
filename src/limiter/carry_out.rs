//! The ways in which all verbs decide: by overrides alone, by a look, or under locks.

use std::borrow::Cow;
use std::{convert, iter};

use sqlx::PgConnection;

use super::Limiter;
use crate::error::Error;
use crate::execution::{Answers, Execution, Look};
use crate::meter::{self, By};
use crate::plan::{Answer, Operation, Plan, Verb};
use crate::prepare::{expect_few, overruled, prepared, tell};
use crate::store::{Store, by_table_and_part};

impl Limiter {
    pub(super) async fn decide(&self, conn: &mut PgConnection, verb: Verb) -> Result<Answer, Error> {
        let mut answers = self.decide_each(conn, iter::once(verb), convert::identity).await?;
        answers.pop().expect("each verb has an answer")
    }

    /// Decides calls in their order, each by itself, at one instant of a given clock. A fault of one call is the error
    /// of that call only.
    pub(super) async fn decide_each<T>(
        &self,
        conn: &mut PgConnection,
        verbs: impl Iterator<Item = Verb>,
        convert: impl Fn(Answer) -> T,
    ) -> Result<Vec<Result<T, Error>>, Error> {
        let limiter =
            self.clock.stopped().map_or(Cow::Borrowed(self), |clock| Cow::Owned(Self { clock, ..self.clone() }));
        // Calls that are wrong, or already answered, are not planned.
        let (mut planned, mut answered) = (Vec::new(), Vec::new());
        for verb in verbs {
            answered.push(match limiter.prepared(verb) {
                Ok(call) => limiter.overruled(&call).map(Ok).or_else(|| {
                    planned.push(call);
                    None
                }),
                Err(fault) => Some(Err(fault)),
            });
        }
        let plan = Plan::of(planned);
        // The keys of each call are few, except those of a settlement.
        if plan.len() > 1 {
            expect_few(plan.count_keys(), limiter.max_keys, plan.call(0).limit())
                .inspect_err(|error| meter::wrong(By::Limiter, error))?;
        }
        let answers = if plan.len() == 0 { Ok(Vec::new()) } else { limiter.carry_out(conn, &plan).await };
        let answers = answers.inspect_err(|error| {
            (0..plan.len()).for_each(|call| tell(By::Limiter, plan.call(call).limit(), &Err(error.clone())));
        })?;
        let mut answers = answers.into_iter().enumerate().map(|(call, answer)| {
            tell(By::Limiter, plan.call(call).limit(), &answer);
            answer
        });
        let each = answered.into_iter().map(|answered| {
            answered.unwrap_or_else(|| answers.next().expect("a plan has one answer for each call")).map(&convert)
        });
        Ok(each.collect())
    }

    fn prepared(&self, verb: Verb) -> Result<Operation, Error> {
        prepared(By::Limiter, verb, self.backend.parts, self.max_keys, self.overrides.as_ref(), || self.clock.at())
    }

    fn overruled(&self, call: &Operation) -> Option<Answer> {
        overruled(By::Limiter, call, self.overrides.as_ref(), || self.clock.at())
    }

    async fn carry_out(&self, conn: &mut PgConnection, plan: &Plan) -> Result<Answers, Error> {
        if plan.looks() {
            let look = self.look(conn, plan).await?;
            // A fault that a look finds may be stale, and here no lock follows. A second look sees the rows of a stored
            // call that was made during the first one.
            let look = if look.answers.iter().any(Result::is_err) && plan.may_repeat() {
                self.look(conn, plan).await?
            } else {
                look
            };
            Ok(look.answers)
        } else if plan.has_choice() {
            self.lock_chosen(conn, plan).await
        } else {
            self.lock_all(conn, plan, true).await
        }
    }

    /// Looks without a lock, and changes nothing. It touches only the tables that it asks, because a standby has only
    /// the durable one.
    async fn look(&self, conn: &mut PgConnection, plan: &Plan) -> Result<Look, Error> {
        let mut store = self.tables(conn);
        // An unnamed statement could be lost there between prepare and execute.
        if self.backend.unnamed {
            store.expect_transaction(plan.rows()[0].name()).await?;
        }
        Execution { store, plan, looks: true, waits: true }.look().await
    }

    /// Looks at all rows, and takes tokens from those that may suffice: the rows of the alternatives up to the one that
    /// is granted, or one shard of each limit.
    ///
    /// It locks these rows in a savepoint, and gives them up if they no longer suffice. So no call ever waits for a row
    /// while it holds another out of order. If they do not suffice, or if all rows are needed, it locks all of them in
    /// order.
    async fn lock_chosen(&self, conn: &mut PgConnection, plan: &Plan) -> Result<Answers, Error> {
        let look = self.look(conn, plan).await?;
        if look.is_settled() {
            return Ok(look.answers);
        }
        if let Some(chosen) = look.choose(plan) {
            let savepoint = self.savepoint(conn, plan).await?;
            let execution = Execution { store: self.tables(conn), plan, looks: false, waits: true };
            match execution.run_chosen(chosen).await.transpose() {
                Some(answers) => return savepoint.leave(conn, answers).await,
                None => savepoint.undo(conn).await?,
            }
        }
        self.lock_all(conn, plan, false).await
    }

    /// Locks, decides and writes. It does so in a savepoint if there is a lock timeout. On Citus it also does so where
    /// several statements write: about several parts, stored calls or stale shards.
    async fn lock_all(&self, conn: &mut PgConnection, plan: &Plan, looks: bool) -> Result<Answers, Error> {
        let writes_often = self.backend.parts.is_distributed()
            && (by_table_and_part(plan.rows()).nth(1).is_some()
                || !plan.names().is_empty()
                || !plan.stale().is_empty());
        if self.lock_timeout.is_some() || writes_often {
            let savepoint = self.savepoint(conn, plan).await?;
            let answers = Execution { store: self.tables(conn), plan, looks, waits: true }.run().await;
            return savepoint.leave(conn, answers).await;
        }
        let mut store = self.tables(conn);
        // No later statement can find that out: on Citus each node counts its own transactions.
        if self.backend.unnamed || self.backend.parts.is_distributed() {
            store.expect_transaction(plan.rows()[0].name()).await?;
        }
        Execution { store, plan, looks, waits: true }.run().await
    }

    fn tables<'c>(&self, conn: &'c mut PgConnection) -> Store<'c> {
        Store::new(conn, self.clock.at(), self.backend)
    }
}
