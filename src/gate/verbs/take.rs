use std::ops::ControlFlow;

use futures_util::future::join_all;

use crate::balance::Balance;
use crate::decision::{Decision, Grant, Reservation};
use crate::error::Error;
use crate::gate::Gate;
use crate::gate::shared::Shared;
use crate::plan::{Answer, Verb};
use crate::request::Request;

/// # Taking tokens
impl Gate {
    /// Takes tokens, if all of them are there, as [`Limiter::consume`](crate::Limiter::consume) does. With several
    /// requests it takes from every limit or from none.
    ///
    /// # Errors
    ///
    /// Before any SQL: [`Error::Key`], [`Error::Call`], also for no requests, and [`Error::CostExceedsCapacity`].
    /// Then those of the section *Errors* of [`Gate`].
    pub async fn consume(&self, requests: impl IntoIterator<Item = Request>) -> Result<Decision, Error> {
        // Before the first await, so that no iterator of the caller lives across it.
        match self.prepaid_or_asked(requests) {
            ControlFlow::Break(grant) => Ok(Decision::Granted(grant)),
            ControlFlow::Continue(call) => self.decide(self.checked(call)?).await,
        }
    }

    /// Decides many calls in one go, each by itself, as [`Limiter::consume_each`](crate::Limiter::consume_each) does.
    /// The calls are queued together, and share batches. Calls that ask one and the same row, and no other, are decided
    /// in their order.
    ///
    /// Each call has its own answer, with the errors of [`consume`](Self::consume). All of them wait in the
    /// [queue](crate::GateBuilder::queue) at once.
    pub async fn consume_each(
        &self,
        calls: impl IntoIterator<Item: IntoIterator<Item = Request>>,
    ) -> Vec<Result<Decision, Error>> {
        join_all(calls.into_iter().map(|requests| self.consume(requests))).await
    }

    /// Takes tokens now, to be spent as soon as they are there, as [`Limiter::reserve`](crate::Limiter::reserve) does.
    ///
    /// # Errors
    ///
    /// Those of [`Limiter::reserve`](crate::Limiter::reserve) and of [`Gate`].
    pub async fn reserve(&self, requests: impl IntoIterator<Item = Request>) -> Result<Decision<Reservation>, Error> {
        let call = self.checked(Verb::reserve(requests))?;
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
    pub async fn debit(&self, request: Request) -> Result<Balance, Error> {
        self.change(Verb::debit(request)).await.map(Answer::balance)
    }

    /// A grant from tokens that were taken ahead.
    pub(super) fn prepaid(&self, requests: &[Request]) -> Option<Grant> {
        let Shared { memories, overrides, settings, .. } = &*self.inner.shared;
        let prefetch = Some(&memories.prefetch).filter(|prefetch| prefetch.is_on)?;
        if let Some(overrides) = overrides {
            // Tokens that were taken before an override were charged by other numbers, so they are dropped.
            let asked = requests.iter().flat_map(Request::asked);
            let said: Vec<_> = asked
                .filter(|(limit, key, _)| overrides.exception(limit, key, settings.clock.at()).is_some())
                .collect();
            if !said.is_empty() {
                for (limit, key, _) in said {
                    prefetch.forget(limit, key);
                }
                return None;
            }
        }
        let grant = prefetch.grant(requests)?;
        let limit = requests.first()?.limit().name();
        tracing::trace!(limit, "granted from what was taken ahead");
        Some(grant)
    }

    fn prepaid_or(&self, requests: impl AsRef<[Request]> + IntoIterator<Item = Request>) -> ControlFlow<Grant, Verb> {
        match self.prepaid(requests.as_ref()) {
            Some(grant) => ControlFlow::Break(grant),
            None => ControlFlow::Continue(Verb::consume(requests)),
        }
    }

    /// A grant from tokens that were taken ahead, else the call for the database.
    fn prepaid_or_asked(&self, requests: impl IntoIterator<Item = Request>) -> ControlFlow<Grant, Verb> {
        let mut requests = requests.into_iter();
        if !self.inner.shared.memories.prefetch.is_on {
            return ControlFlow::Continue(Verb::consume(requests));
        }
        match (requests.next(), requests.next()) {
            // One request needs no list.
            (Some(only), None) => self.prepaid_or([only]),
            (first, second) => self.prepaid_or(first.into_iter().chain(second).chain(requests).collect::<Vec<_>>()),
        }
    }
}
