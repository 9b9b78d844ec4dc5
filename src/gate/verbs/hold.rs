use std::time::Duration;

use tokio::time::Instant;

use super::runtime;
use crate::answer::decision::Decision;
use crate::answer::receipt::Receipt;
use crate::call::{Call, CallId};
use crate::error::{Error, Step};
use crate::gate::connection::{Connection, within};
use crate::gate::{Gate, Lease, Stream};
use crate::meter::{self, By};
use crate::plan::{Answer, Settlement, Verb};
use crate::tokens::Tokens;

/// # Holding tokens of a concurrency limit
impl Gate {
    /// Takes tokens of a [concurrency](crate::Limit::concurrency) limit, if they are there, and holds them as long as
    /// the [`Lease`] lives. Tokens of other limits in the same call are not given back.
    ///
    /// If the future is dropped while it waits for its answer, the call may have been granted. Such a grant lapses at
    /// the end of the lease.
    ///
    /// # Errors
    ///
    /// Those of [`consume`](Self::consume). [`Error::Stopped`] once the gate was [closed](Self::close), if one of the
    /// limits is a concurrency limit.
    pub async fn acquire(&self, call: impl Into<Call>) -> Result<Decision<Lease>, Error> {
        let (runtime, sent, call) = (runtime()?, Instant::now(), call.into());
        if call.requests().any(|request| request.limit().lease().is_some()) {
            self.expect_open()?;
        }
        Ok(self.consume(call).await?.map(|grant| Lease::new(self, grant, sent, &runtime)))
    }

    /// Acquires as [`acquire`](Self::acquire) does, and waits for up to `timeout` until the missing tokens are released
    /// or lapse.
    ///
    /// One gate serves its callers in the order in which they came, and a release by the same gate wakes the first. The
    /// gate finds releases by other processes by asking: after 10 ms, and then less and less often, down to once a
    /// second, until the holders change again. It leaves every eighth of its own releases to other processes, for a
    /// fifth of the time since the release before, and at most a second. Meanwhile only callers that also wait for an
    /// alternative ask. Anything else that raises a limit reaches the callers as in [`wait`](Self::wait).
    ///
    /// # Errors
    ///
    /// Those of [`wait`](Self::wait).
    pub async fn acquire_within(&self, call: impl Into<Call>, timeout: Duration) -> Result<Decision<Lease>, Error> {
        let runtime = runtime()?;
        let (decision, sent) = self.wait_in_turn(call.into(), timeout).await?;
        Ok(decision.map(|grant| Lease::new(self, grant, sent, &runtime)))
    }

    /// Renews each lease of a receipt, as [`Limiter::renew`](crate::Limiter::renew) does.
    ///
    /// # Errors
    ///
    /// Those of [`Limiter::renew`](crate::Limiter::renew) and of [`Gate`].
    pub async fn renew(&self, receipt: &Receipt) -> Result<Receipt, Error> {
        self.ask(self.prepared(Verb::Renew(receipt.clone()))?).await.map(|answer| answer.renewal(receipt))
    }

    /// Ends each lease of a receipt, as [`Limiter::release`](crate::Limiter::release) does.
    ///
    /// # Errors
    ///
    /// Those of [`Limiter::release`](crate::Limiter::release) and of [`Gate`].
    pub async fn release(&self, receipt: impl Into<Receipt>) -> Result<Settlement, Error> {
        self.change(Verb::Release(receipt.into())).await.map(Answer::settlement)
    }

    /// The last tick up to an instant. Leases of one length are renewed at the same ticks, and so in one batch.
    pub(crate) fn renewal_tick(&self, at: Instant, lease: Duration) -> Instant {
        let step = (lease / 12).as_micros().max(1);
        let late = at.saturating_duration_since(self.inner.built).as_micros() % step;
        at - Duration::from_micros(u64::try_from(late).unwrap_or(0))
    }
}

/// # Streaming
impl Gate {
    /// Takes an estimate from every limit, or from none, for a call whose cost is known only when it has ended. The
    /// [`Stream`] counts the use, and settles the call at it when the stream is dropped.
    ///
    /// # Errors
    ///
    /// [`CallError::MixedCosts`](crate::CallError::MixedCosts) for counted requests with different costs; those of
    /// [`consume`](Self::consume).
    pub async fn stream(&self, call: impl Into<Call>) -> Result<Decision<Stream>, Error> {
        // The settlement needs a runtime.
        let (runtime, call) = (runtime()?, call.into());
        // Different costs are an error now, because after the answer was streamed it is too late.
        let checked = self.prepared(Verb::consume(call.clone()))?;
        checked.expect_one_cost().inspect_err(|error| meter::wrong(By::Gate, error))?;
        Ok(self.consume(call).await?.map(|grant| Stream::new(self, grant, runtime)))
    }

    /// Stores the tokens of a stored call that are used so far.
    pub(crate) async fn report(&self, call: &CallId, used: Tokens) -> Result<(), Error> {
        let shared = &self.inner.shared;
        let call = CallId { part: shared.settings.backend.parts.of(call.key()), ..call.clone() };
        let mut connection = Connection::acquire_sound(shared, &shared.entry, call.name()).await?;
        let reporting = async { connection.store(shared).report_call(&call, used).await };
        let reported = within(shared.settings.statement_timeout, Step::Save, call.name(), reporting).await;
        if reported.as_ref().err().is_none_or(Error::leaves_connection) {
            connection.finished();
            connection.give_back(shared).await;
        }
        reported
    }
}
