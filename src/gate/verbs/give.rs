use crate::balance::Balance;
use crate::error::Error;
use crate::gate::Gate;
use crate::plan::settlement::Settlement;
use crate::plan::{Answer, Call};
use crate::receipt::Receipt;
use crate::request::Request;
use crate::tokens::{Tokens, TokensError};

/// # Giving tokens, and giving them back
impl Gate {
    /// Gives tokens, up to the capacity; a [wallet](crate::Limit::wallet) has none.
    ///
    /// # Errors
    ///
    /// Those of [`consume`](Self::consume).
    pub async fn credit(&self, request: Request) -> Result<Balance, Error> {
        self.change(Call::credit(request)).await.map(Answer::balance)
    }

    /// Fills a key up, forgives its debts, and deletes stale shards. The request's cost does not matter.
    ///
    /// # Errors
    ///
    /// Those of [`consume`](Self::consume).
    pub async fn reset(&self, request: Request) -> Result<Balance, Error> {
        self.change(Call::reset(request)).await.map(Answer::balance)
    }

    /// Brings what was charged to its actual cost, in either direction. As [`Limiter::settle`](crate::Limiter::settle).
    ///
    /// # Errors
    ///
    /// Those of [`Limiter::settle`](crate::Limiter::settle) and of [`Gate`]. A grant without the database charged
    /// nothing: [`CallError::NothingAsked`](crate::CallError::NothingAsked).
    pub async fn settle(
        &self,
        receipt: impl Into<Receipt>,
        actual: impl TryInto<Tokens, Error: Into<TokensError>>,
    ) -> Result<Settlement, Error> {
        let receipt = receipt.into();
        let actual = receipt.actual_cost(actual)?;
        self.change(Call::settle(receipt, actual)).await.map(Answer::settlement)
    }

    /// Settles with an actual cost for each request, in the order asked, as
    /// [`Limiter::settle_each`](crate::Limiter::settle_each) does.
    ///
    /// # Errors
    ///
    /// Those of [`Limiter::settle_each`](crate::Limiter::settle_each) and of [`Gate`].
    pub async fn settle_each(&self, receipt: impl Into<Receipt>, costs: &[Tokens]) -> Result<Settlement, Error> {
        self.change(Call::settle_each(receipt.into(), costs)).await.map(Answer::settlement)
    }

    /// Gives back what was charged, if it is not ready to be spent. As [`Limiter::cancel`](crate::Limiter::cancel).
    ///
    /// # Errors
    ///
    /// Those of [`Limiter::cancel`](crate::Limiter::cancel) and of [`Gate`].
    pub async fn cancel(&self, receipt: impl Into<Receipt>) -> Result<Settlement, Error> {
        self.change(Call::cancel(receipt.into())).await.map(Answer::settlement)
    }
}
