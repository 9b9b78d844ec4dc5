mod carry_out;
mod savepoint;
mod shards;

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::algebra::Timestamp;
use crate::balance::Balance;
use crate::decision::{Decision, Reservation};
use crate::error::Error;
use crate::plan::{Answer, Call, Plan};
use crate::receipt::{Charge, Receipt};
use crate::request::Request;
use crate::store::Store;
use crate::tokens::{Tokens, TokensError};
pub(crate) use carry_out::CarryOut;
use savepoint::Savepoint;

/// Decides **inside the caller's transaction**: the decision and the work that it pays for commit or roll back together.
///
/// Every verb takes a connection that is in a transaction: `&mut tx` of a sqlx transaction or savepoint, or a connection on
/// which `begin` was executed by hand. Outside one the verbs that take or give tokens fail with
/// [`Error::NotInTransaction`], and change nothing.
///
/// # Locks
///
/// What is granted, given or taken locks its rows until the transaction ends, in one order for all callers, so that calls
/// never deadlock with each other, however many limits each asks at once. Two calls in one transaction are two steps of
/// that order: ask limits together ([`consume_all`](Self::consume_all)) rather than one after another, or in the same
/// order everywhere. Consume late and commit soon: whoever asks the same key waits meanwhile.
///
/// A refusal that a committed balance proves takes no lock, writes nothing, and costs one round trip; [`check`](Self::check) and
/// [`balance`](Self::balance) never lock.
///
/// # Shards
///
/// A call that takes from a limit with [`shards`](crate::Limit::shards) first looks at all of them, without a lock: if
/// together they have too little, that is the refusal, after one round trip (one for each table). Else it takes from one that has enough and
/// that nobody holds, of eight at random, by a second one. Where those are held it waits for one, in a savepoint that stays (three round
/// trips more); and where several are needed, or somebody was quicker, it asks all of them together, in the one order.
/// So it never refuses what the limit as a whole would grant.
///
/// `credit`, `debit` and `reset` lock all shards; `settle` and `cancel` those that were charged, give back to those, up to what each
/// may hold, and report the balance of those. Ask such a limit once in a transaction, for the sum: a second call may want another shard, out of order.
///
/// # Isolation
///
/// Made for READ COMMITTED, PostgreSQL's default. At REPEATABLE READ and SERIALIZABLE a lost race is a serialization failure
/// (40001), as for any other write: [`Error::is_retryable`] says so, and the whole transaction is tried again. There, what
/// a snapshot does not show is absent, hence full: a row that is newer has nothing credited, settled or reset.
///
/// # Cancellation
///
/// Futures may be dropped at any await point. What a call takes is written by one statement, so a dropped call was
/// carried out whole or not at all; which of the two only the database knows, so let the transaction roll back. If it
/// commits after all, the most that is left of a call that was not carried out is a row that says "full", as its absence did;
/// only while a deploy brings a limit back from several shards to one, that row may say so too early.
///
/// # Example
///
/// ```
/// use tollgate::{Limit, Limiter, MINUTE};
///
/// const SEND_MESSAGE: Limit = Limit::token_bucket("send_message", 10, MINUTE).capacity(20);
///
/// async fn send(pool: &sqlx::PgPool, user: i64, text: &str) -> Result<(), Box<dyn std::error::Error>> {
///     let mut tx = pool.begin().await?;
///     Limiter::new().consume(&mut tx, SEND_MESSAGE.key(user)).await?.granted()?;
///     sqlx::query("insert into messages (author, body) values ($1, $2)").bind(user).bind(text).execute(&mut *tx).await?;
///     tx.commit().await?;
///     Ok(())
/// }
/// # let _ = send;
/// ```
#[derive(Clone, Copy, Debug, Default)]
#[must_use = "a limiter limits nothing until it is asked"]
pub struct Limiter {
    at: Option<Timestamp>,
    lock_timeout: Option<Duration>,
    unnamed: bool,
    distributed: bool,
}

impl Limiter {
    /// A limiter by the database's clock, which waits for locks as long as the connection does.
    pub const fn new() -> Self {
        Self { at: None, lock_timeout: None, unnamed: false, distributed: false }
    }

    /// Waits at most so long for a row that another transaction holds, then gives up with [`Error::Busy`] and leaves the
    /// caller's transaction usable.
    ///
    /// It is PostgreSQL's `lock_timeout`, which counts anew for each row of a call. In whole milliseconds, rounded up. Costs two round trips per call, for the savepoint that it takes.
    pub const fn lock_timeout(mut self, timeout: Duration) -> Self {
        self.lock_timeout = Some(timeout);
        self
    }

    /// Prepares every statement anew, without a name: for poolers in transaction mode that do not follow named ones (PgBouncer
    /// before 1.21, or with `max_prepared_statements = 0`). Costs one more round trip per statement.
    ///
    /// Preparing and executing are two round trips then, and outside of a transaction a pooler may send them to two servers:
    /// so [`check`](Self::check) and [`balance`](Self::balance) want a transaction too. One that was begun by hand costs two more
    /// round trips per call, for sqlx does not know of it.
    ///
    /// Say it to every limiter and gate of a pool: a connection goes on using a statement that it has prepared under a name.
    pub const fn unnamed_statements(mut self) -> Self {
        self.unnamed = true;
        self
    }

    /// Says only what Citus sends to one node: for tables that are distributed by `key` (`tollgate distribute`).
    ///
    /// Each statement names one key then. So a grant takes three round trips for each limit instead of two for all, and the
    /// call that first uses a key one more; a refusal takes one for each. Rows are locked in the same order as ever, and over
    /// several nodes Citus commits in two phases.
    ///
    /// A call of several limits is not written by one statement: if its future is dropped, or it fails, roll the transaction
    /// back. A transaction that was begun by hand costs two more round trips per call, for sqlx does not know of it. Each
    /// row goes by the clock of its node, and one call by the latest of them: keep the nodes' clocks in step (NTP).
    pub const fn distributed(mut self) -> Self {
        self.distributed = true;
        self
    }

    /// Speaks over the database's clock: for tests and replays.
    ///
    /// As with the clock, time does not go back for a row: an instant before the row's own counts as that.
    pub fn at(mut self, now: DateTime<Utc>) -> Self {
        self.at = Some(now.into());
        self
    }

    /// Takes tokens, if all of them are there.
    ///
    /// A refusal takes nothing, writes nothing, and pushes nobody further back.
    ///
    /// # Errors
    ///
    /// Bad input, before any SQL: [`Error::Key`], [`Error::Cost`], [`Error::CostExceedsCapacity`]. Else as the groups of [`Error`] say.
    pub async fn consume(&self, conn: &mut PgConnection, request: Request) -> Result<Decision, Error> {
        self.consume_all(conn, [request]).await
    }

    /// Takes tokens from every limit, or from none.
    ///
    /// Requests for the same limit and key add up. If several limits refuse, the refusal names all of them, and the latest
    /// instant.
    ///
    /// # Errors
    ///
    /// As [`consume`](Self::consume); [`Error::NothingAsked`] for no requests, [`Error::ConflictingDefinitions`] for two
    /// definitions of one limit.
    pub async fn consume_all(
        &self,
        conn: &mut PgConnection,
        requests: impl IntoIterator<Item = Request>,
    ) -> Result<Decision, Error> {
        self.within_timeout(conn, Call::consume(requests), &[]).await.map(Answer::grant)
    }

    /// Takes tokens now, to be spent as soon as they are there: at once, or at the instant that the reservation names, and
    /// it is yours.
    ///
    /// The balance goes down to `-max_reserved` at most; a limit that says nothing owes nothing, and then this is
    /// [`consume`](Self::consume).
    ///
    /// # Errors
    ///
    /// As [`consume`](Self::consume); [`Error::DebtTooDeep`] where an unbounded debt does not fit.
    pub async fn reserve(&self, conn: &mut PgConnection, request: Request) -> Result<Decision<Reservation>, Error> {
        self.reserve_all(conn, [request]).await
    }

    /// Reserves from every limit, or from none; ready when the last of them is.
    ///
    /// # Errors
    ///
    /// As [`consume_all`](Self::consume_all) and [`reserve`](Self::reserve).
    pub async fn reserve_all(
        &self,
        conn: &mut PgConnection,
        requests: impl IntoIterator<Item = Request>,
    ) -> Result<Decision<Reservation>, Error> {
        self.within_timeout(conn, Call::reserve(requests), &[]).await.map(Answer::reservation)
    }

    /// What [`consume`](Self::consume) would answer now, without a lock and without taking anything.
    ///
    /// By the time that you act on it, it may be otherwise. Works outside a transaction too, where statements are named.
    ///
    /// # Errors
    ///
    /// As [`consume`](Self::consume).
    pub async fn check(&self, conn: &mut PgConnection, request: Request) -> Result<Decision, Error> {
        self.look(conn, Call::check([request])).await.map(Answer::grant)
    }

    /// What a limit holds for a key now, without a lock. The request's cost does not matter.
    ///
    /// Works outside a transaction too, where statements are named.
    ///
    /// # Errors
    ///
    /// As [`consume`](Self::consume).
    pub async fn balance(&self, conn: &mut PgConnection, request: Request) -> Result<Balance, Error> {
        self.look(conn, Call::look(request)).await.map(Answer::lowest)
    }

    /// Gives tokens, up to the capacity.
    ///
    /// # Errors
    ///
    /// As [`consume`](Self::consume).
    pub async fn credit(&self, conn: &mut PgConnection, request: Request) -> Result<Balance, Error> {
        self.alter(conn, Call::credit(request), &[]).await
    }

    /// Takes tokens whatever is there: what is missing becomes a debt, beyond `max_reserved` if need be.
    ///
    /// # Errors
    ///
    /// As [`consume`](Self::consume); [`Error::DebtTooDeep`] where the debt does not fit.
    pub async fn debit(&self, conn: &mut PgConnection, request: Request) -> Result<Balance, Error> {
        self.alter(conn, Call::debit(request), &[]).await
    }

    /// Fills a key up, and forgives its debts. Mends a row from the future, too. The request's cost does not matter.
    ///
    /// Updates the row rather than deleting it, so callers that wait for it go on without a detour.
    ///
    /// # Errors
    ///
    /// As [`consume`](Self::consume).
    pub async fn reset(&self, conn: &mut PgConnection, request: Request) -> Result<Balance, Error> {
        self.alter(conn, Call::reset(request), &[]).await
    }

    /// Brings what was charged to its actual cost, in either direction: an estimate that was too high gives tokens back, up to
    /// the capacity; one that was too low takes the rest, beyond `max_reserved` if need be. Works before and after the
    /// tokens are ready. Returns the balance; of several charges the lowest.
    ///
    /// # Errors
    ///
    /// [`Error::MixedCosts`] for charges of different costs ([`Receipt::split`] them); [`Error::ReceiptUsed`] for a tracked
    /// receipt that was used before; [`Error::NothingAsked`] for one without charges, as a check of cost zero leaves it;
    /// else as [`debit`](Self::debit).
    pub async fn settle(
        &self,
        conn: &mut PgConnection,
        receipt: impl Into<Receipt>,
        actual: impl TryInto<Tokens, Error: Into<TokensError>>,
    ) -> Result<Balance, Error> {
        let receipt = receipt.into();
        let actual = receipt.actual_cost(actual)?;
        let charges = receipt.charges.clone();
        self.alter(conn, Call::settle(receipt, actual), &charges).await
    }

    /// Gives back what was charged, if it is not ready to be spent: up to `ready_at`, and not later.
    ///
    /// Tokens that are ready may have been spent; to give those back, say what was spent: `settle(receipt, 0)`. A grant is
    /// ready when it is decided. Returns the balance; of several charges the lowest.
    ///
    /// # Errors
    ///
    /// [`Error::ReceiptUsed`] for a tracked receipt that was used before; else as [`credit`](Self::credit).
    pub async fn cancel(&self, conn: &mut PgConnection, receipt: impl Into<Receipt>) -> Result<Balance, Error> {
        let receipt = receipt.into();
        let charges = receipt.charges.clone();
        self.alter(conn, Call::cancel(receipt), &charges).await
    }

    async fn alter(&self, conn: &mut PgConnection, call: Call, used: &[Charge]) -> Result<Balance, Error> {
        self.within_timeout(conn, call, used).await.map(Answer::lowest)
    }

    async fn look(&self, conn: &mut PgConnection, call: Call) -> Result<Answer, Error> {
        let plan = Plan::new([call])?;
        CarryOut::new(self.store(conn, &plan).await?, &plan).look().await
    }

    async fn within_timeout(&self, conn: &mut PgConnection, call: Call, used: &[Charge]) -> Result<Answer, Error> {
        let plan = Plan::new([call])?;
        if plan.takes_pooled() {
            return self.take_from_shards(conn, &plan).await;
        }
        self.carry_out(conn, &plan, used).await
    }

    /// Carries out a plan; where there is a lock timeout, in a savepoint.
    async fn carry_out(&self, conn: &mut PgConnection, plan: &Plan, used: &[Charge]) -> Result<Answer, Error> {
        if self.lock_timeout.is_none() {
            let mut store = self.store(conn, plan).await?;
            if self.distributed {
                store.expect_transaction(plan.rows()[0].name()).await?;
            }
            return CarryOut::new(store, plan).using_up(used)?.run().await;
        }
        let savepoint = self.savepoint(conn, plan).await?;
        // The savepoint is proof enough of a transaction.
        let answer = match CarryOut::new(self.tables(conn), plan).using_up(used) {
            Ok(carry_out) => carry_out.run().await,
            Err(error) => Err(error),
        };
        savepoint.leave(conn, answer).await
    }

    /// The tables, once it is certain that what is prepared without a name is still there when it is executed.
    async fn store<'c>(&self, conn: &'c mut PgConnection, plan: &Plan) -> Result<Store<'c>, Error> {
        let mut store = self.tables(conn);
        if self.unnamed {
            store.expect_transaction(plan.rows()[0].name()).await?;
        }
        Ok(store)
    }

    fn tables<'c>(&self, conn: &'c mut PgConnection) -> Store<'c> {
        Store::new(conn, self.at, !self.unnamed).routed(self.distributed)
    }

    async fn savepoint(&self, conn: &mut PgConnection, plan: &Plan) -> Result<Savepoint, Error> {
        Savepoint::set(conn, self.lock_timeout, self.distributed, plan.rows()[0].name()).await
    }
}
