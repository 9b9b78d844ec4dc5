use futures_util::future::join_all;

use crate::answer::balance::Balance;
use crate::answer::decision::{Decision, Grant, Reservation};
use crate::call::{Call, Request};
use crate::error::Error;
use crate::gate::Gate;
use crate::gate::shared::Shared;
use crate::plan::{Answer, Verb};

/// # Taking tokens
impl Gate {
    /// Takes tokens, if all of them are there, as [`Limiter::consume`](crate::Limiter::consume) does. With several
    /// requests it takes from every limit or from none.
    ///
    /// # Errors
    ///
    /// Before any SQL: [`Error::Key`], [`Error::Call`], also for no requests, and [`Error::CostExceedsCapacity`].
    /// Then those of the section *Errors* of [`Gate`].
    pub async fn consume(&self, call: impl Into<Call>) -> Result<Decision, Error> {
        let call = call.into();
        match self.prepaid(&call) {
            Some(grant) => Ok(Decision::Granted(grant)),
            None => self.decide(self.prepared(Verb::consume(call))?).await,
        }
    }

    /// Decides many calls in one go, each by itself, as [`Limiter::consume_each`](crate::Limiter::consume_each) does.
    /// The calls are queued together, and share batches. Calls that ask one and the same row, and no other, are decided
    /// in their order.
    ///
    /// Each call has its own answer, with the errors of [`consume`](Self::consume). All of them wait in the
    /// [queue](crate::GateBuilder::queue) at once.
    pub async fn consume_each(&self, calls: impl IntoIterator<Item: Into<Call>>) -> Vec<Result<Decision, Error>> {
        join_all(calls.into_iter().map(|call| self.consume(call))).await
    }

    /// Takes tokens now, to be spent as soon as they are there, as [`Limiter::reserve`](crate::Limiter::reserve) does.
    ///
    /// # Errors
    ///
    /// Those of [`Limiter::reserve`](crate::Limiter::reserve) and of [`Gate`].
    pub async fn reserve(&self, call: impl Into<Call>) -> Result<Decision<Reservation>, Error> {
        let call = self.prepared(Verb::reserve(call))?;
        let answer = match self.overruled(&call) {
            Some(answer) => answer,
            None => self.ask(call).await?,
        };
        Ok(answer.reservation())
    }

    /// Takes tokens whatever the balance is, as [`Limiter::debit`](crate::Limiter::debit) does.
    ///
    /// # Errors
    ///
    /// Those of [`consume`](Self::consume); [`Error::DoesNotFit`] for a debt that is too deep.
    pub async fn debit(&self, call: impl Into<Call>) -> Result<Balance, Error> {
        self.change(Verb::debit(call)).await.map(Answer::balance)
    }

    /// A grant from tokens that were taken ahead.
    pub(super) fn prepaid(&self, call: &Call) -> Option<Grant> {
        let Shared { memories, overrides, settings, .. } = &*self.inner.shared;
        let prefetch = Some(&memories.prefetch).filter(|prefetch| prefetch.is_on)?;
        if let Some(overrides) = overrides {
            // Tokens that were taken before an override were charged by other numbers, so they are dropped.
            let asked = call.requests().flat_map(Request::asked);
            let said: Vec<_> = asked
                .filter(|(limit, key, _)| overrides.applied_at(limit, key, settings.clock.at()).is_some())
                .collect();
            if !said.is_empty() {
                for (limit, key, _) in said {
                    prefetch.forget(limit, key);
                }
                return None;
            }
        }
        let grant = prefetch.grant(call)?;
        let limit = call.requests().next()?.limit().name();
        tracing::trace!(limit, "granted from what was taken ahead");
        Some(grant)
    }
}
