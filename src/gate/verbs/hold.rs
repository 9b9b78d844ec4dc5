use std::time::Duration;

use tokio::time::Instant;

use super::runtime;
use crate::answer::decision::Decision;
use crate::answer::receipt::Receipt;
use crate::call::Call;
use crate::error::Error;
use crate::gate::{Gate, Lease};
use crate::plan::{Answer, Settlement, Verb};

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
