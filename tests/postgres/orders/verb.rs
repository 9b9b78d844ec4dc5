//! The verb of a session, as a value that the library and the plan can both carry out.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::{AssertSqlSafe, PgPool};
use tokio::sync::Notify;
use tollgate::plan::{self, AppliedOverride};
use tollgate::{Call, Charge, Error, Gate, Limit, Receipt, Request, Storage, Sweeper, Tokens};

use super::cast::PLAN;
use super::outcome::Outcome;
use crate::memory::World as Memory;
use crate::world::limiter;

#[derive(Clone, Debug)]
pub(crate) enum Verb {
    Balance(Request),
    Cancel(Receipt),
    Check(Call),
    Consume(Call),
    Credit(Call),
    Debit(Call),
    Each(Vec<Vec<Request>>),
    /// Sets numbers of its own for the key of a request, or denies it.
    Override(Request, AppliedOverride),
    Reap,
    Release(Receipt),
    Renew(Receipt),
    Reserve(Call),
    Reset(Request),
    Settle(Receipt, Tokens),
    Sweep(Storage),
    /// Consumes, and rolls back.
    Vain(Call),
}

/// How a call is made, and how its transaction ends when it was dropped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ending {
    /// Of a limiter's wait for a lock. A gate's call waits so long for its tokens.
    pub(crate) timeout: Option<Duration>,
    /// Else the transaction is rolled back.
    pub(crate) commits: bool,
}

/// Tells a verb to a hand: a limiter with a transaction, or a gate.
macro_rules! tell {
    ($verb:expr, $hand:expr $(, $tx:expr)?) => {
        match $verb {
            Verb::Balance(asked) => $hand.balance($($tx,)? asked).await.into(),
            Verb::Cancel(receipt) => $hand.cancel($($tx,)? receipt).await.into(),
            Verb::Check(asked) => $hand.check($($tx,)? asked).await.into(),
            Verb::Consume(asked) | Verb::Vain(asked) => $hand.consume($($tx,)? asked).await.into(),
            Verb::Credit(asked) => $hand.credit($($tx,)? asked).await.into(),
            Verb::Debit(asked) => $hand.debit($($tx,)? asked).await.into(),
            Verb::Each(calls) => $hand.consume_each($($tx,)? calls).await.into(),
            Verb::Release(receipt) => $hand.release($($tx,)? receipt).await.into(),
            Verb::Renew(receipt) => $hand.renew($($tx,)? &receipt).await.into(),
            Verb::Reserve(asked) => $hand.reserve($($tx,)? asked).await.into(),
            Verb::Reset(asked) => $hand.reset($($tx,)? asked).await.into(),
            Verb::Settle(receipt, actual) => $hand.settle($($tx,)? receipt, actual).await.into(),
            Verb::Override(..) => unreachable!("an operator's"),
            Verb::Reap | Verb::Sweep(_) => unreachable!("a sweeper's"),
        }
    };
}

impl Verb {
    /// The SQL functions, in a transaction of their caller.
    pub(crate) async fn in_sql(self, pool: &PgPool) -> Outcome {
        let mut tx = pool.begin().await.unwrap();
        let outcome = if let Some(sql) = self.decision_in_sql() {
            let decided = sqlx::query_as(AssertSqlSafe(sql)).persistent(false).fetch_one(&mut *tx).await;
            decided.map(|(at, granted)| Outcome::Decided { at, granted })
        } else {
            let sql = AssertSqlSafe(self.change_in_sql());
            sqlx::query(sql).persistent(false).execute(&mut *tx).await.map(|_| Outcome::Changed)
        };
        tx.commit().await.unwrap();
        outcome.unwrap_or_else(|error| Outcome::Failed(in_the_words_of_the_library(&error)))
    }

    fn decision_in_sql(&self) -> Option<String> {
        let (function, asked) = match self {
            Self::Check(asked) => ("check_all", asked),
            Self::Consume(asked) => ("consume_all", asked),
            Self::Reserve(asked) => ("reserve_all", asked),
            _ => return None,
        };
        let requests: Vec<_> = asked.requests().map(|asked| format!("tollgate.request({})", in_sql(asked))).collect();
        Some(format!("select decided_at, granted from tollgate.{function}(array[{}])", requests.join(", ")))
    }

    fn change_in_sql(&self) -> String {
        match self {
            Self::Credit(asked) => format!("select tollgate.credit({})", in_sql(only(asked))),
            Self::Debit(asked) => format!("select tollgate.debit({})", in_sql(only(asked))),
            Self::Reset(asked) => format!("select tollgate.reset({})", of_in_sql(asked)),
            Self::Cancel(receipt) => {
                let Charge { key, cost, .. } = &receipt.charges[0];
                let (limit, at) = (receipt.charges[0].limit(), receipt.charges[0].ready_at());
                format!("select tollgate.cancel('{limit}', '{key}', {cost}, '{at}', '{at}')")
            }
            Self::Settle(receipt, actual) => {
                let Charge { key, cost, .. } = &receipt.charges[0];
                let (limit, at) = (receipt.charges[0].limit(), receipt.charges[0].ready_at());
                format!("select tollgate.settle('{limit}', '{key}', {cost}, {actual}, '{at}')")
            }
            Self::Override(asked, applied) => {
                let effect = match &applied.numbers {
                    Some(limit) => {
                        format!("'numbers', {}, capacity => {}", limit.spec().rate, limit.spec().capacity.unwrap())
                    }
                    None => "'deny'".to_owned(),
                };
                format!("select from tollgate.set_override({}, {effect}, reason => 'try')", of_in_sql(asked))
            }
            other => unreachable!("no function: {other:?}"),
        }
    }

    /// Whether it is a sweeper's.
    pub(crate) fn sweeps(&self) -> bool {
        matches!(self, Self::Reap | Self::Sweep(_))
    }

    /// A limiter in a transaction of its caller.
    pub(crate) async fn joined(self, pool: &PgPool) -> Outcome {
        let is_vain = matches!(self, Self::Vain(_));
        let mut tx = match pool.begin().await {
            Ok(tx) => tx,
            Err(error) => return Outcome::Failed(error.to_string()),
        };
        let limiter = limiter();
        let outcome = tell!(self, limiter, &mut tx);
        let is_over = is_vain || matches!(outcome, Outcome::Failed(_));
        match if is_over { tx.rollback().await } else { tx.commit().await } {
            Err(error) if !is_over => Outcome::Failed(error.to_string()),
            _ => outcome,
        }
    }

    /// The same, until the call is to be dropped. Its transaction then ends as `ending` says.
    pub(crate) async fn joined_until(self, dropping: &Notify, pool: &PgPool, ending: Ending) -> Option<Outcome> {
        let limiter = ending.timeout.map_or_else(limiter, |timeout| limiter().lock_timeout(timeout));
        let mut tx = pool.begin().await.unwrap();
        let told = until(dropping, async { tell!(self, limiter, &mut tx) }).await;
        if ending.commits {
            tx.commit().await.unwrap();
        }
        told
    }

    pub(crate) async fn through(self, gate: &Gate) -> Outcome {
        tell!(self, gate)
    }

    /// The same, until the call is to be dropped.
    pub(crate) async fn through_until(self, dropping: &Notify, gate: &Gate, ending: Ending) -> Option<Outcome> {
        let call = async {
            match (self, ending.timeout) {
                (Self::Consume(asked), Some(timeout)) => gate.wait(asked, timeout).await.into(),
                (verb, _) => verb.through(gate).await,
            }
        };
        until(dropping, call).await
    }

    pub(crate) async fn swept(self, pool: &PgPool) -> Outcome {
        let swept = match self {
            Self::Reap => Sweeper::new().reap(pool).await.map(drop),
            Self::Sweep(table) => Sweeper::new().share(100).only(table).sweep(pool).await.map(drop),
            _ => unreachable!("a caller's"),
        };
        swept.map_or_else(|error| Outcome::Failed(error.chain()), |()| Outcome::Swept)
    }

    /// The calls that a gate decides one by one.
    pub(crate) fn apart(self) -> Vec<Self> {
        match self {
            Self::Each(calls) => calls.into_iter().map(|call| Self::Consume(call.into())).collect(),
            other => vec![other],
        }
    }

    /// The same over rows in memory, at an instant, under the override that an operator has set.
    pub(crate) fn planned(&self, memory: &mut Memory, set: &mut Option<AppliedOverride>, at: DateTime<Utc>) -> Outcome {
        let applied = set.clone();
        let set_for = |limit: &Limit, _: &tollgate::Key| applied.clone().filter(|_| limit.name() == PLAN.name());
        let called = |memory: &mut Memory, call| memory.batch_under(&set_for, [call], at.into())?.remove(0);
        let call = match self.clone() {
            Self::Balance(asked) => plan::Verb::Look(asked),
            Self::Cancel(receipt) => plan::Verb::Cancel(receipt),
            Self::Check(asked) => plan::Verb::check(asked),
            Self::Consume(asked) => plan::Verb::consume(asked),
            Self::Credit(asked) => plan::Verb::credit(asked),
            Self::Debit(asked) => plan::Verb::debit(asked),
            Self::Each(calls) => {
                let answers = memory.batch(calls.into_iter().map(plan::Verb::consume), at.into()).unwrap();
                return Outcome::Many(answers.into_iter().map(Outcome::of).collect());
            }
            Self::Override(_, applied) => {
                *set = Some(applied);
                return Outcome::Changed;
            }
            Self::Reap => {
                memory.reap(at.into());
                return Outcome::Swept;
            }
            Self::Release(receipt) => plan::Verb::Release(receipt),
            Self::Renew(receipt) => return Outcome::of_renewal(memory.call(plan::Verb::Renew(receipt), at.into())),
            Self::Reserve(asked) => {
                let call = plan::Verb::reserve(asked);
                return Outcome::of_reservation(called(memory, call));
            }
            Self::Reset(asked) => plan::Verb::Reset(asked),
            Self::Settle(receipt, actual) => plan::Verb::Settle(receipt, actual),
            Self::Sweep(table) => {
                memory.rows.retain(|row, state| row.storage() != table || state.full_at > at.into());
                return Outcome::Swept;
            }
            Self::Vain(asked) => return Outcome::of(memory.clone().call(plan::Verb::consume(asked), at.into())),
        };
        Outcome::of(called(memory, call))
    }
}

/// The outcome of a call; `None` where it was to be dropped before.
async fn until(dropping: &Notify, call: impl Future<Output = Outcome>) -> Option<Outcome> {
    tokio::select! {
        biased;
        told = call => Some(told),
        () = dropping.notified() => None,
    }
}

/// The request of a call of one.
fn only(call: &Call) -> &Request {
    call.requests().next().unwrap()
}

/// The limit, the key and the cost of a request.
fn in_sql(asked: &Request) -> String {
    format!("{}, {}", of_in_sql(asked), serde_json::to_value(asked).unwrap()["cost"])
}

fn of_in_sql(asked: &Request) -> String {
    format!("'{}', '{}'", asked.limit().name(), serde_json::to_value(asked).unwrap()["key"].as_str().unwrap())
}

fn in_the_words_of_the_library(error: &sqlx::Error) -> String {
    let said = error.as_database_error().filter(|said| said.code().as_deref() == Some("TG010"));
    let limit = said.and_then(|said| said.message().split('\'').nth(1));
    limit.map_or_else(
        || error.to_string(),
        |limit| Error::TooLateToCancel { limit: limit.to_owned().into() }.to_string(),
    )
}
