use std::time::{Duration, Instant};

use futures_util::TryFutureExt;
use tokio::time::sleep;

use super::{Batch, Wait};
use crate::error::{Error, Step};
use crate::execution::{Answers, Execution};
use crate::gate::connection::{timed, within};
use crate::plan::Plan;
use crate::store::{self, by_table_and_part, database};

impl Batch<'_> {
    /// Decides all calls of a plan in a transaction of their own, under locks. With alternatives, it locks the rows up
    /// to the alternative that a look chooses, and all rows if the locked ones then lead to another.
    ///
    /// Tries again if it lost a race that requires the whole transaction to run again. An error of one call is the
    /// answer to that call. An error of the database is the error of all, and then nothing is taken, unless it is
    /// [`Error::OutcomeUnknown`].
    pub(super) async fn decide_in_transaction(&mut self, plan: &Plan, wait: Wait) -> Result<Answers, Error> {
        let (mut tries, mut looks, asked) = (TRIES, plan.has_alternatives(), Instant::now());
        loop {
            tries -= 1;
            match self.attempt(plan, wait, looks).await {
                Err(Error::Locked { .. }) if matches!(wait, Wait::Apart(span) if asked.elapsed() < span) => {
                    sleep(PAUSE.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
                    tries += 1;
                }
                Err(error) if (error.is_lost_race() || error.is_cut_short()) && tries > 0 => {}
                Err(error)
                    if tries > 0
                        && (error.is_left()
                            || error.may_be_a_setting() && !error.is_lock_timeout() && self.is_left().await?) =>
                {
                    self.connection.replace(self.shared, plan.rows()[0].name()).await?;
                }
                Err(error) if error.is_lost_wait() => return Err(error.of_locked_row()),
                Err(error) => return Err(error),
                Ok(Some(answers)) => return Ok(answers),
                Ok(None) => (tries, looks) = (tries + 1, false),
            }
        }
    }

    /// `None` if the rows that a look chose were not enough.
    async fn attempt(&mut self, plan: &Plan, wait: Wait, looks: bool) -> Result<Option<Answers>, Error> {
        let shared = self.shared;
        let (timeout, limit) = (shared.settings.statement_timeout, plan.rows()[0].name());
        let (Wait::Apart(span) | Wait::InQueue(span)) = wait;
        let begin = store::begin(&mut self.connection, shared.settings.backend, span, timeout);
        let begin = timed(timeout, begin.map_err(|source| database(Step::Begin, limit, source)));
        let mut tx = within(timeout, Step::Begin, limit, begin).await?;
        // The server watches each statement; this timeout is for a server that is gone.
        let pieces = u32::try_from(by_table_and_part(plan.rows()).count()).expect("a plan fits in memory");
        let patience = timeout.saturating_mul(STATEMENTS).saturating_mul(pieces);
        let ended = |source| database(Step::Commit, limit, source);
        let execute = async {
            let (store, waits) = (shared.store_in(&mut tx), matches!(wait, Wait::InQueue(_)));
            let mut execution = Execution { store, plan, looks: false, waits };
            if !looks {
                return execution.run().await.map(Some);
            }
            let look = execution.look().await?;
            if look.is_settled() {
                return Ok(Some(look.answers));
            }
            match look.choose(plan) {
                Some(chosen) => execution.run_chosen(chosen).await,
                None => execution.run().await.map(Some),
            }
        };
        let executed = within(patience, Step::Lock, limit, timed(timeout, execute)).await;
        match &executed {
            Err(error) if !error.leaves_connection() => {}
            Ok(Some(_)) => {
                within(timeout, Step::Commit, limit, tx.commit().map_err(ended)).await.map_err(Error::of_commit)?;
            }
            Ok(None) | Err(_) => within(timeout, Step::Commit, limit, tx.rollback().map_err(ended)).await?,
        }
        executed
    }
}

/// A bound: no table and part of a plan takes as many statements.
const STATEMENTS: u32 = 8;

/// The pause before locked rows are tried again, at most: about as long as another gate holds a row. It is random, so
/// that gates do not try together.
const PAUSE: Duration = Duration::from_millis(1);

/// How often a transaction is tried before the caller gets the error of a lost race.
const TRIES: u32 = 3;
