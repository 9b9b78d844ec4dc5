use std::iter;
use std::time::Duration;

use tokio::time::Instant;

use super::runtime;
use crate::answer::decision::{Decision, Denied, Grant, Source, span};
use crate::call::Call;
use crate::error::Error;
use crate::gate::Gate;
use crate::gate::shared::Shared;
use crate::gate::wait::Turn;
use crate::overrides::Overrides;
use crate::plan::{Operation, Verb};

/// # Waiting for tokens
impl Gate {
    /// Takes tokens as [`consume`](Self::consume) does, and waits for them if they will come within `timeout`.
    ///
    /// Sleeps until the instant that the refusal names, and asks again; if another caller was quicker, it sleeps again.
    /// If the instant lies beyond the timeout, it returns the refusal at once. One gate serves the callers that wait
    /// for one key in the order in which they came, whatever they cost. If the tokens of several callers come at once,
    /// the first caller asks, and then all callers whom its answer pays for. If a caller's timeout ends while others
    /// wait before it, the caller is refused, even if its tokens are there. Waiting reserves nothing: callers of
    /// [`consume`](Self::consume) and other processes may take the tokens first. A caller who needs a promise calls
    /// [`reserve`](Self::reserve).
    ///
    /// A credit, a reset, a settlement, a release or a lapse by this gate wakes the first caller of the line at once.
    /// So does an override, when this process has read it. Other processes may raise a row, too, so the first caller of
    /// each line asks again at least every 5 seconds. If such an early question meets an outage, that is no error: the
    /// caller sleeps on.
    ///
    /// The database gives the span to sleep, and this machine's monotonic clock measures it; see
    /// [`jitter`](crate::GateBuilder::jitter).
    ///
    /// A call of several requests waits in the line of the limit that refused it; if another limit refuses it after
    /// that, it waits in that limit's line. A call with [alternatives](crate::first_of) waits in a line for each, and
    /// asks for all of them as soon as its turn comes in one. A call with a [split](crate::split) cost waits in the
    /// line of its first limit, and is also woken when the others are raised.
    ///
    /// # Errors
    ///
    /// Those of [`consume`](Self::consume), and [`Error::Stopped`] once the gate was [closed](Self::close).
    pub async fn wait(&self, call: impl Into<Call>, timeout: Duration) -> Result<Decision, Error> {
        self.wait_in_turn(call.into(), timeout).await.map(|(decision, _)| decision)
    }

    /// Takes tokens from every limit, or from none, and waits for them in turn. Returns the decision, and the instant
    /// at which the decided call was sent.
    pub(super) async fn wait_in_turn(&self, said: Call, timeout: Duration) -> Result<(Decision, Instant), Error> {
        // The timers need a runtime.
        runtime()?;
        self.expect_open()?;
        let Shared { waiters, settings, overrides, memories, .. } = &*self.inner.shared;
        // A timeout beyond the last instant is no timeout.
        let deadline = Instant::now().checked_add(timeout);
        let mut changes = overrides.as_ref().map(Overrides::changes);
        // Overrides of the limits may change meanwhile.
        let asked = || self.prepared(Verb::consume(said.clone()));
        let (mut call, mut waiter) = (asked()?, waiters.arrive());
        if !waiter.join(&call)
            && let Some(grant) = self.prepaid(&said)
        {
            return Ok((Decision::Granted(grant), Instant::now()));
        }
        if waiter.waits() && (!call.is_held() || call.is_once()) {
            match self.check(said.clone()).await? {
                // A repeat takes nothing from those who wait.
                Decision::Granted(Grant { source: Source::Repeated, .. }) => waiter.leave(),
                Decision::Denied(denied) if is_too_late(&call, &denied, deadline) => {
                    return Ok((Decision::Denied(denied), Instant::now()));
                }
                _ => {}
            }
        }
        loop {
            let turn = waiter.turn(deadline, settings.jitter.mul_f64(fastrand::f64()), &mut changes).await;
            let is_early = match turn {
                Turn::Ask { is_early } => is_early,
                Turn::Changed => {
                    if !asked()?.is_overridden_as(&call) {
                        waiter.ask_anew();
                    }
                    continue;
                }
                Turn::Late if waiter.is_first() => false,
                Turn::Late | Turn::Closed => {
                    let denied = waiter.out_of_turn(self.check(said.clone()).await?);
                    return Ok((Decision::Denied(denied), Instant::now()));
                }
            };
            call = asked()?;
            if is_early {
                // Remembered refusals do not know the rows that other processes have raised.
                call.first_rows().for_each(|row| memories.forget_refusals(row));
            }
            let sent = Instant::now();
            let denied = match self.decide(call.clone()).await {
                Ok(Decision::Denied(denied)) => denied,
                Ok(Decision::Granted(grant)) => {
                    waiter.granted(&grant);
                    return Ok((Decision::Granted(grant), sent));
                }
                // Without the early question, the caller would have slept through the outage.
                Err(error) if is_early && (error.is_outage() || error.is_retryable()) => {
                    waiter.unanswered();
                    continue;
                }
                Err(error) => return Err(error),
            };
            waiter.refused(&call, &denied);
            if matches!(turn, Turn::Late) || is_too_late(&call, &denied, deadline) {
                return Ok((Decision::Denied(denied), sent));
            }
        }
    }
}

/// Whether no alternative of a call will be granted by the deadline. A lease may be released at any time, unless an
/// override denies the call.
fn is_too_late(call: &Operation, denied: &Denied, deadline: Option<Instant>) -> bool {
    let is_held = |limit: &str| {
        let mut items = call.alternatives().flatten();
        items.any(|item| item.target.limit.lease().is_some() && item.is_of(limit))
    };
    let is_alternative_too_late = |denied: &Denied| {
        let others = denied.others.iter().map(|other| (&other.limit, other.retry_at));
        let mut rest = iter::once((&denied.limit, denied.retry_at))
            .chain(others)
            .filter(|(limit, _)| denied.source == Source::Override || !is_held(limit));
        let wait = rest.try_fold(Duration::ZERO, |longest, (_, at)| Some(longest.max(span(denied.observed_at, at?))));
        let ready = wait.and_then(|wait| Instant::now().checked_add(wait));
        ready.is_none_or(|ready| deadline.is_some_and(|deadline| ready > deadline))
    };
    iter::once(denied).chain(denied.beside.iter()).all(is_alternative_too_late)
}
