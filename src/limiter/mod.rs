mod alternatives;
mod in_transaction;
mod savepoint;
mod shards;

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::algebra::Timestamp;
use crate::balance::Balance;
use crate::checked::{checked, overruled};
use crate::decision::{Decision, Reservation};
use crate::error::Error;
use crate::execution::{Answers, Execution, only};
use crate::meter::{self, By};
use crate::overrides::Overrides;
use crate::parts::Parts;
use crate::plan::settlement::Settlement;
use crate::plan::{Answer, Call, CheckedCall, Plan};
use crate::receipt::Receipt;
use crate::request::Request;
use crate::store::{Backend, Store, by_table_and_part};
use crate::tokens::{Tokens, TokensError};
pub use in_transaction::{BegunByHand, InTransaction};

/// Decides **inside the caller's transaction**: the decision and the work that it pays for commit or roll back
/// together.
///
/// Verbs that take or give tokens demand a proof of a transaction ([`InTransaction`]): `&mut tx` of a transaction or
/// savepoint of sqlx, or a connection on which `begin` was executed by hand ([`BegunByHand`]). A connection alone does
/// not compile. Verbs that only look take a connection, and so `&mut tx` as well.
///
/// # Locks
///
/// A call that takes or gives tokens locks its rows until the transaction ends, in one order for all callers; the row
/// of a call with an id comes last. So calls never deadlock with each other, however many limits each asks at once. Two
/// calls in one transaction lock outside of that order: ask limits together, in one call, or in the same order
/// everywhere. Consume late and commit soon: whoever asks the same key waits meanwhile.
///
/// A refusal that a committed balance proves takes no lock, writes nothing, and costs one round trip.
/// [`check`](Self::check) and [`balance`](Self::balance) never lock.
///
/// # Time
///
/// A call waits for rows that others hold for as long as PostgreSQL does. [`lock_timeout`](Self::lock_timeout) bounds
/// the wait for each row. PostgreSQL's `statement_timeout` bounds each statement of the rest of the transaction,
/// whatever it waits for. Where it strikes the transaction is aborted, and the error is an [`Error::Database`] (57014)
/// for which [`Error::is_retryable`] is true:
///
/// ```
/// # use tollgate::{Limit, Limiter, MINUTE};
/// # const LIMIT: Limit = Limit::token_bucket("limit", 1, MINUTE);
/// # async fn bounded(pool: &sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
/// let mut tx = pool.begin_with("begin; set local statement_timeout = '2s'").await?;
/// Limiter::new().consume(&mut tx, LIMIT.global()).await?.granted()?;
/// # Ok(())
/// # }
/// ```
///
/// Neither strikes where the server falls silent: for that put `tokio::time::timeout` around the whole transaction.
///
/// # Round trips
///
/// A grant of one limit takes two: lock, write. For a new key it takes three, as the row is inserted in between. A
/// grant of several limits takes three: look, insert or lock, write. A grant of a limit with shards takes four, with
/// the savepoint. A list of calls takes as many as one call of several limits. A refusal takes one. Other verbs take
/// two: lock, write.
///
/// A call of [alternatives](crate::first_of) looks, too. It locks the rows of the alternatives up to the one that the
/// look chose, in a savepoint, which takes one more. If another is due by then, it gives them up and locks all rows, in
/// order.
///
/// A call that lapses or is tracked takes no more, and its settlement one: to lock the call. One with an id takes five:
/// look at rows and call, lock both, write. A repeat takes the first two.
///
/// # Shards
///
/// A call that takes from a limit with [`shards`](crate::Limit::shards) first looks at all rows, without a lock. If the
/// rows together are short, the call is refused. Else it takes from the fullest row that nobody has locked, in a
/// savepoint that stays. If all are locked, it waits for one of them. While rows of a key are missing, it inserts one,
/// and waits for whoever is inserting the same row. If it needs several rows, it locks all of them, in the one order.
/// So it refuses only where the rows together are short.
///
/// `credit` and `debit` lock all rows of a key; `reset` does, and deletes stale ones; `settle` and `cancel` lock the
/// rows that were charged. Ask such a limit once in a transaction, for the sum: a second call may need another row, out
/// of order.
///
/// # Isolation
///
/// Made for READ COMMITTED, PostgreSQL's default. At REPEATABLE READ and SERIALIZABLE a lost race is a serialization
/// failure (40001), as for any other write: [`Error::is_retryable`] says so, and the caller tries the whole transaction
/// again. There, a row that is newer than the snapshot counts as missing, and so as full: credit, settle and reset
/// leave it alone.
///
/// # Cancellation
///
/// Futures may be dropped at any await point. One statement writes what a call takes (but see
/// [`parts`](Self::parts)), so a dropped call was carried out whole or not at all. Only the database knows which of the
/// two, so let the transaction roll back. If it commits after all, a call that was not carried out leaves at most a
/// full row, which means the same as a missing one. A dropped call with a [lock timeout](Self::lock_timeout) leaves
/// that timeout set for the rest of the transaction.
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
///     let insert = sqlx::query("insert into messages (author, body) values ($1, $2)").bind(user).bind(text);
///     insert.execute(&mut *tx).await?;
///     tx.commit().await?;
///     Ok(())
/// }
/// # let _ = send;
/// ```
#[derive(Clone, Debug)]
#[must_use = "a limiter limits nothing until it is asked"]
pub struct Limiter {
    at: Option<Timestamp>,
    lock_timeout: Option<Duration>,
    backend: Backend,
    overrides: Option<Overrides>,
}

impl Limiter {
    /// A limiter by the database's clock, which waits for locks as long as the connection does.
    pub const fn new() -> Self {
        Self { at: None, lock_timeout: None, backend: Backend::PLAIN, overrides: None }
    }

    /// Waits at most so long for a row that another transaction has locked. Then it gives up with [`Error::Locked`],
    /// and the caller's transaction stays usable.
    ///
    /// It is PostgreSQL's `lock_timeout`, which counts anew for each row of a call, in whole milliseconds, rounded up.
    /// The savepoint that it needs costs two round trips per call. If the call takes or gives, the savepoint stays
    /// until the transaction ends. With more than 64 savepoints in one transaction PostgreSQL makes every snapshot of
    /// other sessions more slowly: ask many limits in one call.
    pub const fn lock_timeout(mut self, timeout: Duration) -> Self {
        self.lock_timeout = Some(timeout);
        self
    }

    /// Prepares every statement anew, without a name: for poolers in transaction mode that do not follow named
    /// statements (PgBouncer before 1.21, or with `max_prepared_statements = 0`). Costs one more round trip per
    /// statement.
    ///
    /// Preparing and executing are two round trips then, and outside of a transaction a pooler may send them to two
    /// servers. So [`check`](Self::check) and [`balance`](Self::balance) need a transaction, too. One that was
    /// [begun by hand](BegunByHand) costs two more round trips per call.
    ///
    /// Set this on every limiter and gate of a pool: a connection goes on using a statement that it has prepared under
    /// a name.
    pub const fn unnamed_statements(mut self) -> Self {
        self.backend.unnamed = true;
        self
    }

    /// Says over how many parts Citus distributes the tables: the number that `tollgate distribute` was given, 8 by
    /// default. 0, the default here, is plain PostgreSQL.
    ///
    /// Each statement names one part, so Citus sends it to one node. All limits of a key are in one part; a call about
    /// keys in several parts takes its statements once for each part, and Citus commits it in two phases. Several
    /// statements write such a call, and one that lapses, is tracked or has an id, and its settlement: if its future
    /// is dropped, or it fails, roll the transaction back. A transaction that was
    /// [begun by hand](BegunByHand) costs two more round trips per call. Each row goes by the clock of its node, and a
    /// call by the latest of them: keep the nodes' clocks in step (NTP). For a call of one row the clock may be read up
    /// to five milliseconds before the row is locked.
    ///
    /// A process with a wrong number gets [`SetupFault::WrongParts`](crate::SetupFault::WrongParts) at its first call,
    /// and one with none at its first insert: until then [`check`](Self::check) and [`balance`](Self::balance) find no
    /// rows, and say full.
    ///
    /// # Panics
    ///
    /// Unless the number is 0 or a power of two, at most 2048.
    #[track_caller]
    pub const fn parts(mut self, parts: u16) -> Self {
        self.backend.parts = Parts::new(parts);
        self
    }

    /// Goes by overrides: other numbers, deny, unlimited. Without it, the definitions of the limits count alone.
    ///
    /// A call that is denied, or unlimited as a whole, is answered with [`Source::Override`](crate::Source::Override),
    /// and without a round trip. A call with an [id](crate::Request::once) goes to the rows even so, since it may be a
    /// repeat. `credit`, `debit`, `reset` and `balance` go by other numbers, too, and ignore deny and unlimited.
    /// Receipts are settled as without overrides; the receipt of a call that was unlimited settles to nothing, however
    /// much it used.
    ///
    /// Other numbers count at once, and used tokens stay used: 2 of 10 used leaves 18 under 20. The new rate brings
    /// them back from the row's last write on. A missing row is full at the new capacity.
    pub fn overrides(mut self, overrides: &Overrides) -> Self {
        self.overrides = Some(overrides.clone());
        self
    }

    /// Takes this instant instead of the database's clock: for tests and replays.
    ///
    /// Time does not go back for a row: an instant before the row's own counts as the row's own.
    pub fn at(mut self, now: DateTime<Utc>) -> Self {
        self.at = Some(now.into());
        self
    }

    /// Takes tokens, if all of them are there: of one request, or of several, from every limit or from none.
    ///
    /// Requests for the same limit and key add up. If several limits refuse, the refusal names all of them, and the
    /// latest instant. A refusal takes nothing, writes nothing, and delays nobody's tokens.
    ///
    /// # Errors
    ///
    /// Before any SQL: [`Error::Key`], [`Error::Call`], also for no requests, and [`Error::CostExceedsCapacity`]. Then
    /// [`Error::NotInTransaction`], [`Error::Locked`], [`Error::CorruptRow`], [`Error::OnceMismatch`],
    /// [`Error::DoesNotFit`] where a wallet meets the row of another kind, [`Error::ReceiptUsed`] for the id of a lease
    /// that is over, and the errors of the database.
    pub async fn consume(
        &self,
        tx: &mut impl InTransaction,
        requests: impl IntoIterator<Item = Request>,
    ) -> Result<Decision, Error> {
        self.decide(tx.connection(), Call::consume(requests)).await.map(Answer::grant)
    }

    /// Decides many calls in one go, each by itself: in as many round trips as one call of several limits. Each call is
    /// the requests of one [`consume`](Self::consume), and each has its own answer, in their order.
    ///
    /// They are decided one after another at one instant, so calls of one key see each other. They lock the rows of all
    /// in the one order, and ask limits with shards for their sum. Where all calls are refused nothing
    /// is locked. An id that two of them have is carried out once. Use it for a list of jobs: limits that must be taken
    /// together are one call.
    ///
    /// # Errors
    ///
    /// A fault of one call is its own answer: bad input, [`Error::OnceMismatch`], [`Error::DoesNotFit`]. The errors of
    /// the database are the error of all.
    ///
    /// # Example
    ///
    /// ```
    /// use tollgate::{Decision, Limit, Limiter, MINUTE};
    ///
    /// const TENANT: Limit = Limit::token_bucket("tenant", 60, MINUTE);
    /// const TOTAL: Limit = Limit::token_bucket("total", 1_000, MINUTE);
    ///
    /// /// The jobs that may start now.
    /// async fn due(tx: &mut sqlx::PgTransaction<'_>, jobs: Vec<(i64, i64)>) -> Result<Vec<i64>, tollgate::Error> {
    ///     let calls = jobs.iter().map(|(_, tenant)| [TENANT.key(*tenant), TOTAL.global()]);
    ///     let decisions = Limiter::new().consume_each(tx, calls).await?;
    ///     let is_granted = |decision: &Result<_, _>| matches!(decision, Ok(Decision::Granted(_)));
    ///     let answered = jobs.iter().zip(&decisions);
    ///     Ok(answered.filter(|(_, decision)| is_granted(decision)).map(|((job, _), _)| *job).collect())
    /// }
    /// # let _ = due;
    /// ```
    pub async fn consume_each(
        &self,
        tx: &mut impl InTransaction,
        calls: impl IntoIterator<Item: IntoIterator<Item = Request>>,
    ) -> Result<Vec<Result<Decision, Error>>, Error> {
        self.decide_each(tx.connection(), calls.into_iter().map(Call::consume), false, Answer::grant).await
    }

    /// Takes tokens now, to be spent as soon as they are there: at once, or at the instant that the reservation names.
    /// From every limit or from none; the reservation is ready when the last of them is.
    ///
    /// The balance goes down to `-max_reserved` at most. For a limit that allows no reservations, this is
    /// [`consume`](Self::consume).
    ///
    /// # Errors
    ///
    /// Those of [`consume`](Self::consume); [`Error::DoesNotFit`] for an unbounded debt.
    pub async fn reserve(
        &self,
        tx: &mut impl InTransaction,
        requests: impl IntoIterator<Item = Request>,
    ) -> Result<Decision<Reservation>, Error> {
        self.decide(tx.connection(), Call::reserve(requests)).await.map(Answer::reservation)
    }

    /// Reserves for many calls in one go, each by itself. As [`consume_each`](Self::consume_each).
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn reserve_each(
        &self,
        tx: &mut impl InTransaction,
        calls: impl IntoIterator<Item: IntoIterator<Item = Request>>,
    ) -> Result<Vec<Result<Decision<Reservation>, Error>>, Error> {
        self.decide_each(tx.connection(), calls.into_iter().map(Call::reserve), false, Answer::reservation).await
    }

    /// Answers as [`consume`](Self::consume) would now, without a lock, and takes nothing.
    ///
    /// The answer may be outdated when you act on it. Works outside a transaction, too, where statements are named.
    ///
    /// # Errors
    ///
    /// Those of [`consume`](Self::consume).
    pub async fn check(
        &self,
        conn: &mut PgConnection,
        requests: impl IntoIterator<Item = Request>,
    ) -> Result<Decision, Error> {
        self.look(conn, Call::check(requests)).await.map(Answer::grant)
    }

    /// Answers each of many calls as [`check`](Self::check) does, as if it came alone.
    ///
    /// # Errors
    ///
    /// Those of [`consume_each`](Self::consume_each).
    pub async fn check_each(
        &self,
        conn: &mut PgConnection,
        calls: impl IntoIterator<Item: IntoIterator<Item = Request>>,
    ) -> Result<Vec<Result<Decision, Error>>, Error> {
        self.decide_each(conn, calls.into_iter().map(Call::check), true, Answer::grant).await
    }

    /// Tells how much a limit holds for a key now, without a lock. The request's cost does not matter.
    ///
    /// Works outside a transaction, too, where statements are named.
    ///
    /// # Errors
    ///
    /// Those of [`consume`](Self::consume).
    pub async fn balance(&self, conn: &mut PgConnection, request: Request) -> Result<Balance, Error> {
        self.look(conn, Call::look(request)).await.map(Answer::balance)
    }

    /// Gives tokens, up to the capacity; a [wallet](crate::Limit::wallet) has none.
    ///
    /// # Errors
    ///
    /// Those of [`consume`](Self::consume).
    pub async fn credit(&self, tx: &mut impl InTransaction, request: Request) -> Result<Balance, Error> {
        self.decide(tx.connection(), Call::credit(request)).await.map(Answer::balance)
    }

    /// Takes tokens whatever is there. The rest becomes a debt, beyond `max_reserved` if need be.
    ///
    /// # Errors
    ///
    /// Those of [`consume`](Self::consume); [`Error::DoesNotFit`] for a debt too deep.
    pub async fn debit(&self, tx: &mut impl InTransaction, request: Request) -> Result<Balance, Error> {
        self.decide(tx.connection(), Call::debit(request)).await.map(Answer::balance)
    }

    /// Fills a key up, forgives its debts, and mends a row whose instant lies in the future. Deletes stale shards: rows
    /// beyond the limit's number of shards. The request's cost does not matter.
    ///
    /// # Errors
    ///
    /// Those of [`consume`](Self::consume).
    pub async fn reset(&self, tx: &mut impl InTransaction, request: Request) -> Result<Balance, Error> {
        self.decide(tx.connection(), Call::reset(request)).await.map(Answer::balance)
    }

    /// Brings what was charged to its actual cost. An estimate that was too high gives tokens back; one that was too
    /// low takes the rest, beyond `max_reserved` if need be. Works before and after the tokens are ready. Leases end.
    ///
    /// A bucket gets back what fits into its capacity; a fixed window only while the window that was charged still
    /// runs; a sliding window only what has not left it. Needs no definition: what has become of the limit does not
    /// matter.
    ///
    /// # Errors
    ///
    /// [`CallError::MixedCosts`](crate::CallError::MixedCosts) for charges of different costs
    /// ([`settle_each`](Self::settle_each)), and [`CallError::NothingAsked`](crate::CallError::NothingAsked) for a
    /// receipt without charges. [`Error::ReceiptUsed`] and [`Error::Lapsed`] for a stored call that was settled or has
    /// lapsed. [`Error::DoesNotFit`] for a wallet; those of [`debit`](Self::debit).
    pub async fn settle(
        &self,
        tx: &mut impl InTransaction,
        receipt: impl Into<Receipt>,
        actual: impl TryInto<Tokens, Error: Into<TokensError>>,
    ) -> Result<Settlement, Error> {
        let receipt = receipt.into();
        let actual = receipt.actual_cost(actual)?;
        self.decide(tx.connection(), Call::settle(receipt, actual)).await.map(Answer::settlement)
    }

    /// The same with an actual cost for each request, in the order asked.
    ///
    /// # Errors
    ///
    /// [`CallError::CostsMissing`](crate::CallError::CostsMissing) for another number of costs than of requests; those
    /// of [`settle`](Self::settle).
    pub async fn settle_each(
        &self,
        tx: &mut impl InTransaction,
        receipt: impl Into<Receipt>,
        costs: &[Tokens],
    ) -> Result<Settlement, Error> {
        self.decide(tx.connection(), Call::settle_each(receipt.into(), costs)).await.map(Answer::settlement)
    }

    /// Gives back what was charged, up to `ready_at`, and not later.
    ///
    /// Tokens that are ready may have been spent. To give those back, say what was spent: `settle(receipt, 0)`. A grant
    /// is ready when it is decided.
    ///
    /// # Errors
    ///
    /// [`Error::TooLateToCancel`] for a call that lapses and is ready: it lapses as before. Those of
    /// [`settle`](Self::settle).
    pub async fn cancel(&self, tx: &mut impl InTransaction, receipt: impl Into<Receipt>) -> Result<Settlement, Error> {
        self.decide(tx.connection(), Call::cancel(receipt.into())).await.map(Answer::settlement)
    }

    /// Lets each lease of a receipt last for its limit's period from now on, and returns the receipt with the new ends.
    /// Other charges stay as they are.
    ///
    /// # Errors
    ///
    /// [`Error::Lapsed`] for a lease that has ended, and [`Error::ReceiptUsed`] for one that was released;
    /// [`CallError::NothingAsked`](crate::CallError::NothingAsked) for a receipt without leases; those of
    /// [`consume`](Self::consume).
    pub async fn renew(&self, tx: &mut impl InTransaction, receipt: &Receipt) -> Result<Receipt, Error> {
        self.decide(tx.connection(), Call::renew(receipt)).await.map(|answer| answer.renewal(receipt))
    }

    /// Ends each lease of a receipt: what it held is free when the transaction commits. Other charges stay as they are.
    ///
    /// # Errors
    ///
    /// Those of [`renew`](Self::renew).
    pub async fn release(&self, tx: &mut impl InTransaction, receipt: impl Into<Receipt>) -> Result<Settlement, Error> {
        self.decide(tx.connection(), Call::release(&receipt.into())).await.map(Answer::settlement)
    }

    /// Decides without a lock, and changes nothing. Touches no table but those it asks: a standby has only the durable
    /// one.
    async fn look(&self, conn: &mut PgConnection, call: Call) -> Result<Answer, Error> {
        let call = self.checked(call)?;
        if let Some(answer) = self.overruled(&call) {
            return Ok(answer);
        }
        let plan = Plan::of(vec![call]);
        let answer = self.look_at(conn, &plan).await.and_then(only);
        tell(plan.call(0), &answer);
        answer
    }

    async fn look_at(&self, conn: &mut PgConnection, plan: &Plan) -> Result<Answers, Error> {
        let mut store = self.tables(conn);
        store.expect_transaction_if_unnamed(plan.rows()[0].name()).await?;
        let found = store.peek(plan.rows()).await?;
        if plan.trusts_absence(&found.states) {
            store.expect_parts_if_distributed(plan.rows()[0].name()).await?;
        }
        let known = store.peek_calls(plan).await?;
        Ok(plan.decide(&found.states, &known, found.now).answers)
    }

    async fn decide(&self, conn: &mut PgConnection, call: Call) -> Result<Answer, Error> {
        let call = self.checked(call)?;
        if let Some(answer) = self.overruled(&call) {
            return Ok(answer);
        }
        let plan = Plan::of(vec![call]);
        let answer = if plan.takes_from_shards() {
            self.take_from_shards(conn, &plan).await
        } else {
            self.carry_out_looking(conn, &plan).await.and_then(only)
        };
        tell(plan.call(0), &answer);
        answer
    }

    /// Decides calls in their order, each by itself. A fault of one is its own error.
    async fn decide_each<T>(
        &self,
        conn: &mut PgConnection,
        calls: impl Iterator<Item = Call>,
        looks_only: bool,
        told: fn(Answer) -> T,
    ) -> Result<Vec<Result<T, Error>>, Error> {
        // Calls that are wrong, or answered already, are not planned.
        let (mut right, mut known) = (Vec::new(), Vec::new());
        for call in calls {
            known.push(match self.checked(call) {
                Ok(call) => self.overruled(&call).map(Ok).or_else(|| {
                    right.push(call);
                    None
                }),
                Err(fault) => Some(Err(fault)),
            });
        }
        let plan = Plan::of(right);
        let answers = match plan.len() {
            0 => Vec::new(),
            _ if looks_only => self.look_at(conn, &plan).await?,
            _ => self.carry_out_looking(conn, &plan).await?,
        };
        let mut answers = answers.into_iter().enumerate();
        let each = known.into_iter().map(|known| {
            if let Some(known) = known {
                return known.map(told);
            }
            let (call, answer) = answers.next().expect("a plan has one answer for each call");
            tell(plan.call(call), &answer);
            answer.map(told)
        });
        Ok(each.collect())
    }

    fn checked(&self, call: Call) -> Result<CheckedCall, Error> {
        checked(call, self.backend.parts, self.overrides.as_ref(), || self.at)
    }

    fn overruled(&self, call: &CheckedCall) -> Option<Answer> {
        let answer = Ok(overruled(call, self.overrides.as_ref(), || self.at)?);
        tell(call, &answer);
        answer.ok()
    }

    async fn carry_out_looking(&self, conn: &mut PgConnection, plan: &Plan) -> Result<Answers, Error> {
        if plan.has_alternatives() {
            return self.carry_out_first(conn, plan).await;
        }
        self.carry_out(conn, plan, true).await
    }

    /// Locks, decides and writes. Where there is a lock timeout, or a call takes its statements once for each part, it
    /// does so in a savepoint.
    async fn carry_out(&self, conn: &mut PgConnection, plan: &Plan, looks: bool) -> Result<Answers, Error> {
        let parted = self.backend.parts.is_distributed() && by_table_and_part(plan.rows()).nth(1).is_some();
        if self.lock_timeout.is_some() || parted {
            let savepoint = self.savepoint(conn, plan, self.lock_timeout).await?;
            let answers = Execution::new(self.tables(conn), plan).looking(looks).run().await;
            return savepoint.leave(conn, answers).await;
        }
        let mut store = self.tables(conn);
        store.expect_transaction_if_blind(plan.rows()[0].name()).await?;
        Execution::new(store, plan).looking(looks).run().await
    }

    fn tables<'c>(&self, conn: &'c mut PgConnection) -> Store<'c> {
        Store::new(conn, self.at, self.backend)
    }
}

impl Default for Limiter {
    fn default() -> Self {
        Self::new()
    }
}

fn tell(call: &CheckedCall, answer: &Result<Answer, Error>) {
    let limit = call.limit().as_str();
    for shadow in answer.as_ref().map_or(&[][..], Answer::would_deny) {
        meter::would_deny(By::Limiter, &shadow.limit);
    }
    match answer {
        Ok(Answer::Denied(denied)) => meter::refused(By::Limiter, denied),
        Ok(answer) => meter::decided(By::Limiter, limit, answer.outcome(), answer.source()),
        Err(error) => meter::failed(By::Limiter, limit, error),
    }
}
