use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::end;
use crate::answer::decision::{Grant, span};
use crate::answer::receipt::Receipt;
use crate::error::{Error, chain};
use crate::gate::Gate;
use crate::tokens::{Tokens, TokensError};

/// A call whose cost is known only when it has ended. An estimate was charged; the stream counts the use, and settles
/// the call at it. Made by [`Gate::stream`].
///
/// When the stream is dropped, it is settled in the background at the counted use, if the runtime still runs. So a
/// client that goes away in the middle of its answer pays for the part that it got.
///
/// # Crashes and lost answers
///
/// A stored call is settled exactly once. A call is stored if it [lapses](crate::Call::lapses_after), is
/// [tracked](crate::Call::tracked_for) or has an [id](crate::Call::once). If no answer comes, the stream settles
/// it again, until the call lapses. If this process dies, a lapse gives back all but the use that was
/// [reported](Self::report). Any other call needs no row of its own, and is settled at most once. If no answer comes,
/// the stream does not ask again, and an event at level `warn` says so. If this process dies, the estimate stays
/// charged.
///
/// # Example
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Gate, HOUR, Limit, MINUTE};
///
/// const TOKENS: Limit = Limit::sliding_window("llm_tokens", 40_000, MINUTE);
///
/// async fn answer(gate: &Gate, user: i64, mut chunks: Vec<String>) -> Result<(), Box<dyn std::error::Error>> {
///     let estimate = TOKENS.key(user).cost(2_000).lapses_after(HOUR);
///     let stream = gate.stream(estimate).await?.granted()?;
///     for chunk in chunks.drain(..) {
///         stream.add(chunk.split_whitespace().count() as u32);
///     }
///     stream.settle().await?;
///     Ok(())
/// }
/// # let _ = answer;
/// ```
#[derive(Debug)]
#[must_use = "a stream that is dropped is settled at what was counted"]
pub struct Stream {
    grant: Grant,
    used: AtomicI64,
    /// `None` once it is settled, or if nothing was charged.
    open: Option<(Gate, Handle)>,
}

impl Stream {
    pub(crate) fn new(gate: &Gate, grant: Grant, runtime: Handle) -> Self {
        let open = grant.receipt.is_charged().then(|| (gate.clone(), runtime));
        Self { grant, used: AtomicI64::new(0), open }
    }

    /// The grant, as it was then.
    #[must_use]
    pub fn grant(&self) -> &Grant {
        &self.grant
    }

    /// Counts used tokens in each limit of the call, except in requests that are [flat](crate::Request::flat). Takes
    /// the same types as [`cost`](crate::Request::cost).
    ///
    /// The count stops at the largest amount. A number that is below zero or not finite counts nothing, and an event at
    /// level `warn` says so.
    pub fn add(&self, tokens: impl TryInto<Tokens, Error: Into<TokensError>>) {
        let more = match tokens.try_into().map_err(Into::into) {
            Ok(tokens) if tokens.is_negative() => {
                return tracing::warn!(%tokens, "what a stream has used is no amount");
            }
            Ok(tokens) => tokens.micros(),
            Err(TokensError::TooLarge) => i64::MAX,
            Err(TokensError::TooSmall) => 1,
            Err(error) => return tracing::warn!(%error, "what a stream has used is no amount"),
        };
        let add = |used: i64| Some(used.saturating_add(more));
        // This never fails, because `add` always returns a sum.
        let _ = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    /// The tokens counted so far.
    #[must_use]
    pub fn used(&self) -> Tokens {
        Tokens::from_micros(self.used.load(Ordering::Relaxed))
    }

    /// Stores the use counted so far, in case this process dies: a lapse then gives back only the rest. No limit is
    /// touched.
    ///
    /// If the call is not stored, this does nothing.
    ///
    /// # Errors
    ///
    /// [`Error::ReceiptUsed`] for a call that is over, as after a lapse; those of [`Gate`].
    pub async fn report(&self) -> Result<(), Error> {
        let (Some((gate, _)), Some(call)) = (&self.open, &self.grant.receipt.call) else { return Ok(()) };
        gate.report(call, self.used()).await
    }

    /// Settles at the counted use, and waits until that is done.
    ///
    /// # Errors
    ///
    /// Those of [`Gate::settle`]. After an error that changed nothing, the stream first tries again: until the call
    /// lapses, or for a minute.
    pub async fn settle(mut self) -> Result<(), Error> {
        let Some(settling) = self.settling() else { return Ok(()) };
        // The task goes on even if this future is dropped. If the runtime has ended, there is no task.
        settling.await.unwrap_or(Err(Error::Stopped))
    }

    /// Gives up the guard, and settles nothing: the caller must settle the receipt.
    pub fn into_receipt(mut self) -> Receipt {
        self.open = None;
        std::mem::take(&mut self.grant.receipt)
    }
}

impl Stream {
    /// Settles in the background, once.
    fn settling(&mut self) -> Option<JoinHandle<Result<(), Error>>> {
        let (gate, runtime) = self.open.take()?;
        let (receipt, used) = (std::mem::take(&mut self.grant.receipt), self.used());
        let patience = receipt.lapses_at().map_or(GIVE_UP, |lapses_at| span(self.grant.observed_at, lapses_at));
        // Closing the gate waits for this listener. Once the gate is closed, nothing waits for it.
        let closed = gate.inner.shared.owing();
        Some(runtime.spawn(async move { settle(&gate, &receipt, used, patience, closed).await }))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // The task goes on without its handle.
        drop(self.settling());
    }
}

/// Settles a receipt. Tries again after an error that changed nothing, and for a stored call also if no answer came.
async fn settle(
    gate: &Gate,
    receipt: &Receipt,
    used: Tokens,
    patience: Duration,
    closed: Option<watch::Receiver<bool>>,
) -> Result<(), Error> {
    let is_worth_it = |error: &Error| {
        let is_unknown = matches!(error, Error::OutcomeUnknown { .. });
        error.is_retryable() || error.is_outage() || is_unknown && receipt.call.is_some()
    };
    let settled = end(|| gate.settle(receipt.clone(), used), is_worth_it, Instant::now() + patience, closed).await;
    settled.inspect_err(|error| tracing::warn!(error = %chain(error), "could not settle a stream"))
}

/// For how long a call that does not lapse is tried.
const GIVE_UP: Duration = Duration::from_mins(1);
