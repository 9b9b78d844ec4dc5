use sqlx::PgConnection;

use super::{InTransaction, Limiter};
use crate::answer::balance::Balance;
use crate::answer::decision::{Decision, Reservation};
use crate::answer::receipt::Receipt;
use crate::call::{Call, Request};
use crate::error::Error;
use crate::meter::{self, By};
use crate::plan::{Answer, Settlement, Verb};
use crate::tokens::{Tokens, TokensError};

/// # Verbs
impl Limiter {
    /// Takes tokens, if all of them are there. With several requests it takes from every limit or from none.
    ///
    /// Costs for the same limit and key add up. If several limits refuse, the refusal names all of them, and the latest
    /// of their instants. A refusal takes nothing, writes nothing, and delays nobody's tokens.
    ///
    /// # Errors
    ///
    /// Before any SQL: [`Error::Key`], [`Error::Call`], also for no requests, and [`Error::CostExceedsCapacity`]. Then
    /// [`Error::NotInTransaction`], [`Error::Locked`], on Citus [`Error::Moved`], [`Error::CorruptRow`],
    /// [`Error::OnceMismatch`], [`Error::DoesNotFit`] where a wallet meets the row of another kind,
    /// [`Error::ReceiptUsed`] for the id of a lease that is over, and the errors of the database.
    pub async fn consume(&self, tx: &mut impl InTransaction, call: impl Into<Call>) -> Result<Decision, Error> {
        self.decide(tx.connection(), Verb::consume(call)).await.map(Answer::grant)
    }

    /// Decides many calls in one go, each by itself: in as many round trips as one call of several limits. Each call is
    /// the requests of one [`consume`](Self::consume), and each has its own answer, in their order.
    ///
    /// The calls are decided one after another at one instant, so calls of one key see each other. The rows of all
    /// calls are locked together in the one order, and limits with shards are asked for the sum of their rows. If all
    /// calls are refused, nothing is locked. If two calls have the same id, it is carried out once. Use this verb for a
    /// list of jobs; limits that must be taken together belong in one call.
    ///
    /// # Errors
    ///
    /// A fault of one call is the answer to that call only: bad input, [`Error::OnceMismatch`], [`Error::DoesNotFit`].
    /// An error of the database is the error of the whole list, and so are more keys than
    /// [`max_keys`](Self::max_keys) allows.
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
        calls: impl IntoIterator<Item: Into<Call>>,
    ) -> Result<Vec<Result<Decision, Error>>, Error> {
        self.decide_each(tx.connection(), calls.into_iter().map(Verb::consume), Answer::grant).await
    }

    /// Takes tokens now, to be spent as soon as they are there: at once, or at the instant that the reservation names.
    /// It takes from every limit or from none, and the reservation is ready when the last limit is.
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
        call: impl Into<Call>,
    ) -> Result<Decision<Reservation>, Error> {
        self.decide(tx.connection(), Verb::reserve(call)).await.map(Answer::reservation)
    }

    /// Reserves for many calls in one go, each by itself, as [`consume_each`](Self::consume_each) does.
    ///
    /// # Errors
    ///
    /// Those of [`consume_each`](Self::consume_each).
    pub async fn reserve_each(
        &self,
        tx: &mut impl InTransaction,
        calls: impl IntoIterator<Item: Into<Call>>,
    ) -> Result<Vec<Result<Decision<Reservation>, Error>>, Error> {
        self.decide_each(tx.connection(), calls.into_iter().map(Verb::reserve), Answer::reservation).await
    }

    /// Answers as [`consume`](Self::consume) would now, without a lock, and takes nothing.
    ///
    /// The answer may be outdated when you act on it. If statements are named, this also works outside of a
    /// transaction.
    ///
    /// # Errors
    ///
    /// Those of [`consume`](Self::consume).
    pub async fn check(&self, conn: &mut PgConnection, call: impl Into<Call>) -> Result<Decision, Error> {
        self.decide(conn, Verb::check(call)).await.map(Answer::grant)
    }

    /// Tells how much a limit holds for a key now, without a lock. The request's cost does not matter.
    ///
    /// If statements are named, this also works outside of a transaction.
    ///
    /// # Errors
    ///
    /// Those of [`consume`](Self::consume).
    pub async fn balance(&self, conn: &mut PgConnection, request: Request) -> Result<Balance, Error> {
        self.decide(conn, Verb::Look(request)).await.map(Answer::balance)
    }

    /// Gives tokens, up to the capacity; a [wallet](crate::Limit::wallet) has none.
    ///
    /// # Errors
    ///
    /// Those of [`consume`](Self::consume).
    pub async fn credit(&self, tx: &mut impl InTransaction, call: impl Into<Call>) -> Result<Balance, Error> {
        self.decide(tx.connection(), Verb::credit(call)).await.map(Answer::balance)
    }

    /// Takes tokens whatever the balance is. The missing tokens become a debt, which may be deeper than `max_reserved`.
    ///
    /// # Errors
    ///
    /// Those of [`consume`](Self::consume); [`Error::DoesNotFit`] for a debt that is too deep.
    pub async fn debit(&self, tx: &mut impl InTransaction, call: impl Into<Call>) -> Result<Balance, Error> {
        self.decide(tx.connection(), Verb::debit(call)).await.map(Answer::balance)
    }

    /// Fills a key up, forgives its debts, and mends a row whose instant lies in the future. Empties a wallet. Deletes
    /// stale shards: rows beyond the limit's number of shards. The request's cost does not matter.
    ///
    /// # Errors
    ///
    /// Those of [`consume`](Self::consume).
    pub async fn reset(&self, tx: &mut impl InTransaction, request: Request) -> Result<Balance, Error> {
        self.decide(tx.connection(), Verb::Reset(request)).await.map(Answer::balance)
    }

    /// Brings the charges of a receipt to their actual cost. An estimate that was too high gives tokens back. An
    /// estimate that was too low takes the rest, beyond `max_reserved` if necessary. This works before and after the
    /// tokens are ready. Leases end.
    ///
    /// A bucket gets back the tokens that fit into its capacity. A fixed window gets tokens back only while the window
    /// that was charged still runs, and a sliding window only tokens that have not left it. This needs no definition,
    /// so later changes to the limit do not matter.
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
        let actual = receipt.actual_cost(actual).inspect_err(|error| meter::wrong(By::Limiter, error))?;
        self.decide(tx.connection(), Verb::Settle(receipt, actual)).await.map(Answer::settlement)
    }

    /// Settles with an actual cost for each request, in the order of the requests.
    ///
    /// # Errors
    ///
    /// [`CallError::CostsMissing`](crate::CallError::CostsMissing) if there are more or fewer costs than requests;
    /// those of [`settle`](Self::settle).
    pub async fn settle_each(
        &self,
        tx: &mut impl InTransaction,
        receipt: impl Into<Receipt>,
        costs: &[Tokens],
    ) -> Result<Settlement, Error> {
        self.decide(tx.connection(), Verb::SettleEach(receipt.into(), costs.to_vec())).await.map(Answer::settlement)
    }

    /// Gives back the charges of a receipt, up to `ready_at`, and not later.
    ///
    /// Tokens that are ready may have been spent. To give them back, state the use: `settle(receipt, 0)`. A grant is
    /// ready when it is decided.
    ///
    /// # Errors
    ///
    /// [`Error::TooLateToCancel`] for a call that is ready, unless a lease among its charges ends: the other charges
    /// then stay. Those of [`settle`](Self::settle).
    pub async fn cancel(&self, tx: &mut impl InTransaction, receipt: impl Into<Receipt>) -> Result<Settlement, Error> {
        self.decide(tx.connection(), Verb::Cancel(receipt.into())).await.map(Answer::settlement)
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
        self.decide(tx.connection(), Verb::Renew(receipt.clone())).await.map(|answer| answer.renewal(receipt))
    }

    /// Ends each lease of a receipt: its tokens are free when the transaction commits. Other charges stay as they are.
    ///
    /// # Errors
    ///
    /// Those of [`renew`](Self::renew).
    pub async fn release(&self, tx: &mut impl InTransaction, receipt: impl Into<Receipt>) -> Result<Settlement, Error> {
        self.decide(tx.connection(), Verb::Release(receipt.into())).await.map(Answer::settlement)
    }
}
