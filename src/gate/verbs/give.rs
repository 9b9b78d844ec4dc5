use crate::answer::balance::Balance;
use crate::answer::receipt::Receipt;
use crate::call::{Call, Request};
use crate::error::Error;
use crate::gate::Gate;
use crate::meter::{self, By};
use crate::plan::{Answer, Settlement, Verb};
use crate::tokens::{Tokens, TokensError};

/// # Giving tokens, and giving them back
impl Gate {
    /// Gives tokens, up to the capacity; a [wallet](crate::Limit::wallet) has none.
    ///
    /// # Errors
    ///
    /// Those of [`consume`](Self::consume).
    pub async fn credit(&self, call: impl Into<Call>) -> Result<Balance, Error> {
        self.change(Verb::credit(call)).await.map(Answer::balance)
    }

    /// Fills a key up, forgives its debts, and deletes stale shards. Empties a wallet. The request's cost does not
    /// matter.
    ///
    /// # Errors
    ///
    /// Those of [`consume`](Self::consume).
    pub async fn reset(&self, request: Request) -> Result<Balance, Error> {
        self.change(Verb::Reset(request)).await.map(Answer::balance)
    }

    /// Brings the charges of a receipt to their actual cost, in either direction, as
    /// [`Limiter::settle`](crate::Limiter::settle) does.
    ///
    /// # Errors
    ///
    /// Those of [`Limiter::settle`](crate::Limiter::settle) and of [`Gate`]. A grant without the database charged
    /// nothing, so it fails with [`CallError::NothingAsked`](crate::CallError::NothingAsked).
    pub async fn settle(
        &self,
        receipt: impl Into<Receipt>,
        actual: impl TryInto<Tokens, Error: Into<TokensError>>,
    ) -> Result<Settlement, Error> {
        let receipt = receipt.into();
        let actual = receipt.actual_cost(actual).inspect_err(|error| meter::wrong(By::Gate, error))?;
        self.change(Verb::Settle(receipt, actual)).await.map(Answer::settlement)
    }

    /// Settles with an actual cost for each request, in the order of the requests, as
    /// [`Limiter::settle_each`](crate::Limiter::settle_each) does.
    ///
    /// # Errors
    ///
    /// Those of [`Limiter::settle_each`](crate::Limiter::settle_each) and of [`Gate`].
    pub async fn settle_each(&self, receipt: impl Into<Receipt>, costs: &[Tokens]) -> Result<Settlement, Error> {
        self.change(Verb::SettleEach(receipt.into(), costs.to_vec())).await.map(Answer::settlement)
    }

    /// Gives back the charges of a receipt, if they are not ready to be spent, as
    /// [`Limiter::cancel`](crate::Limiter::cancel) does.
    ///
    /// # Errors
    ///
    /// Those of [`Limiter::cancel`](crate::Limiter::cancel) and of [`Gate`].
    pub async fn cancel(&self, receipt: impl Into<Receipt>) -> Result<Settlement, Error> {
        self.change(Verb::Cancel(receipt.into())).await.map(Answer::settlement)
    }
}
