use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::{Either, select};
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::end;
use crate::answer::decision::{Grant, span};
use crate::answer::receipt::{Charge, Receipt};
use crate::error::{Error, chain};
use crate::gate::Gate;
use crate::values::lock::lock;

/// A grant of a [concurrency limit](crate::Limit::concurrency) that lasts as long as this value lives. Made by
/// [`Gate::acquire`].
///
/// A task in the background renews the lease after a third of the limit's period, and tries again until the lease ends.
/// When this value is dropped, the lease is released if the runtime still runs; else it lapses. Leases that are due
/// together are renewed by one statement. A holder that may get stuck while it keeps this value bounds the renewals by
/// [`keep_for`](Self::keep_for).
///
/// # When it is lost
///
/// A lease is over if it could not be renewed for its whole length, or if a crash has emptied the table of ephemeral
/// limits. Then others may hold its tokens. [`lapsed`](Self::lapsed) returns a hundredth of the lease before the
/// database lets the lease go, and also when the gate is [closed](Gate::close) or the time of `keep_for` is over. Race
/// it against the work. After that, another holder may write the same data at the same time: a lease is no lock on
/// data.
///
/// # Example
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Gate, Limit};
///
/// const RENDERS: Limit = Limit::concurrency("renders", 8, Duration::from_secs(30));
///
/// async fn render(gate: &Gate, user: i64) -> Result<(), Box<dyn std::error::Error>> {
///     let lease = gate.acquire_within(RENDERS.key(user), Duration::from_secs(5)).await?.granted()?;
///     tokio::select! {
///         () = draw() => {}
///         () = lease.lapsed() => return Err("the lease is lost".into()),
///     }
///     lease.release().await?;
///     Ok(())
/// }
/// # async fn draw() {}
/// # let _ = render;
/// ```
#[derive(Debug)]
#[must_use = "a lease that is dropped is released"]
pub struct Lease {
    grant: Grant,
    /// `None` if nothing has to be released, because the gate granted without the database.
    keeper: Option<Keeper>,
}

/// The task that renews a lease.
#[derive(Debug)]
struct Keeper {
    held: watch::Receiver<Renewed>,
    /// Until when it renews the lease; `None` for as long as the holder lives.
    until: Arc<Mutex<Option<Instant>>>,
    task: JoinHandle<Result<(), Error>>,
    /// If a message is sent, the task leaves the lease alone; if the sender is dropped, the task releases the lease.
    kept: oneshot::Sender<()>,
}

/// A lease after its last renewal.
#[derive(Clone, Debug)]
struct Renewed {
    receipt: Receipt,
    /// When its holder must have stopped.
    deadline: Instant,
}

impl Lease {
    /// Keeps the grant of a call that was sent at this instant.
    pub(crate) fn new(gate: &Gate, grant: Grant, sent: Instant, runtime: &Handle) -> Self {
        let receipt = grant.receipt.clone();
        let shortest = receipt.leases().map(Charge::period).min();
        let ends = receipt.leases().filter_map(|charge| charge.until).min().map(Into::into);
        let keeper = shortest.zip(ends).map(|(lease, ends)| {
            // For a lease of a repeated grant, a part of the time has passed.
            let left = span(grant.observed_at, ends).min(lease);
            let (renewed, held) = watch::channel(Renewed { receipt, deadline: deadline(sent, left) });
            let (kept, given_up) = oneshot::channel();
            let due = gate.renewal_tick(sent + left / 3, lease);
            let closed = gate.inner.shared.closed.subscribe();
            let until = Arc::default();
            let renewals = Renewals { gate: gate.clone(), lease, due, held: renewed, until: Arc::clone(&until) };
            let task = runtime.spawn(keep(renewals, given_up, closed));
            Keeper { held, until, task, kept }
        });
        Self { grant, keeper }
    }

    /// The grant, as it was decided.
    #[must_use]
    pub fn grant(&self) -> &Grant {
        &self.grant
    }

    /// Renews the lease for so long from now, and no longer, unless this is called again. Then the lease is released,
    /// at the latest a third of its length later. [`Duration::MAX`] is no bound, as before the first call.
    ///
    /// Call it once to bound the whole work, or at each step that shows progress: each message that a client has taken,
    /// each chunk that was written. Without it a client that never reads keeps its lease for ever.
    pub fn keep_for(&self, span: Duration) {
        if let Some(Keeper { until, .. }) = &self.keeper {
            *lock(until) = Instant::now().checked_add(span);
        }
    }

    /// Returns when the holder must have stopped, because the lease has ended and was not renewed.
    pub async fn lapsed(&self) {
        let Some(keeper) = &self.keeper else { return std::future::pending().await };
        let mut held = keeper.held.clone();
        loop {
            let deadline = held.borrow_and_update().deadline;
            match timeout_at(deadline, held.changed()).await {
                Ok(Ok(())) => {}
                // No task renews it any more.
                Ok(Err(_)) => return sleep_until(deadline).await,
                Err(_) => return,
            }
        }
    }

    /// Releases the lease, and waits until that is done.
    ///
    /// # Errors
    ///
    /// [`Error::Lapsed`] and [`Error::ReceiptUsed`] for a lease that was lost before; else those of
    /// [`Gate::settle`]. A release that fails is tried again until the lease has ended.
    pub async fn release(mut self) -> Result<(), Error> {
        let Some(Keeper { task, kept, .. }) = self.keeper.take() else { return Ok(()) };
        drop(kept);
        // If the runtime has ended, there is no task.
        task.await.unwrap_or(Err(Error::Stopped))
    }

    /// Gives up the guard and keeps the lease. The caller renews and releases it by this receipt ([`Gate::renew`],
    /// [`Gate::release`]); else it lapses.
    pub fn into_receipt(mut self) -> Receipt {
        let Some(Keeper { held, kept, .. }) = self.keeper.take() else {
            return self.grant.receipt.clone();
        };
        let _ = kept.send(());
        let held = held.borrow();
        held.receipt.clone()
    }
}

/// The renewals of a lease.
struct Renewals {
    gate: Gate,
    lease: Duration,
    due: Instant,
    held: watch::Sender<Renewed>,
    until: Arc<Mutex<Option<Instant>>>,
}

/// Why a lease is not renewed any more.
enum Ended {
    /// It is lost, or has ended without having been renewed.
    Lost,
    /// The time of [`Lease::keep_for`] is over.
    Over,
}

/// Renews a lease until its holder gives it up, its time is over, or the gate is closed, and releases it.
async fn keep(
    mut renewals: Renewals,
    given_up: oneshot::Receiver<()>,
    mut closed: watch::Receiver<bool>,
) -> Result<(), Error> {
    if is_left_alone(given_up, &mut closed, renewals.until_end()).await {
        return Ok(());
    }
    let Renewals { gate, held, .. } = &renewals;
    let last = held.borrow().clone();
    // The holder may still be at work.
    held.send_modify(|held| held.deadline = Instant::now());
    release_each(gate, last, &closed).await
}

/// Renews a lease until its holder or the gate gives it up. Returns whether the lease is then left alone.
async fn is_left_alone(
    given_up: oneshot::Receiver<()>,
    closed: &mut watch::Receiver<bool>,
    renewals: impl Future<Output = Ended>,
) -> bool {
    let given_up = async {
        let closed = pin!(closed.wait_for(|is_closed| *is_closed));
        matches!(select(given_up, closed).await, Either::Left((Ok(()), _)))
    };
    let mut given_up = pin!(given_up);
    match select(&mut given_up, pin!(renewals)).await {
        Either::Left((is_left_alone, _)) => is_left_alone,
        Either::Right((Ended::Lost, _)) => given_up.await,
        Either::Right((Ended::Over, _)) => false,
    }
}

impl Renewals {
    /// Renews whenever it is due.
    async fn until_end(&mut self) -> Ended {
        let Self { gate, lease, due, held, until } = self;
        loop {
            sleep_until(*due).await;
            let sent = Instant::now();
            if lock(until).is_some_and(|until| until <= sent) {
                tracing::debug!("a lease is released, because its holder has made no progress");
                return Ended::Over;
            }
            let receipt = held.borrow().receipt.clone();
            let error = match gate.renew(&receipt).await {
                Ok(receipt) => {
                    held.send_replace(Renewed { receipt, deadline: deadline(sent, *lease) });
                    *due = gate.renewal_tick(sent + *lease / 3, *lease);
                    continue;
                }
                Err(error) => error,
            };
            tracing::warn!(error = %chain(&error), "could not renew a lease");
            if is_lost(&error) {
                held.send_modify(|held| held.deadline = sent);
                return Ended::Lost;
            }
            if Instant::now() >= held.borrow().deadline {
                return Ended::Lost;
            }
            *due = Instant::now() + *lease / TRIES;
        }
    }
}

/// Releases leases together. If one of several is lost, it releases the others one by one.
async fn release_each(
    gate: &Gate,
    Renewed { receipt, deadline }: Renewed,
    closed: &watch::Receiver<bool>,
) -> Result<(), Error> {
    let released = release(gate, &receipt, deadline, closed).await;
    if receipt.leases().count() > 1 && released.as_ref().is_err_and(is_lost) {
        for lease in receipt.leases() {
            // The first error already says that a lease was lost.
            let _ = release(gate, &Receipt::from(vec![lease.clone()]), deadline, closed).await;
        }
    }
    released
}

/// Tries again until it succeeds or the lease has ended by itself.
async fn release(
    gate: &Gate,
    receipt: &Receipt,
    deadline: Instant,
    closed: &watch::Receiver<bool>,
) -> Result<(), Error> {
    let released = end(|| gate.release(receipt.clone()), |error| !is_lost(error), deadline, Some(closed.clone())).await;
    released.inspect_err(|error| tracing::warn!(error = %chain(error), "could not release a lease: it lapses"))
}

/// Whether others may have been granted the tokens of a lease.
fn is_lost(error: &Error) -> bool {
    matches!(error, Error::Lapsed { .. } | Error::ReceiptUsed { .. })
}

/// When the holder of a lease must have stopped. The lease lasts from a later instant, that of the decision.
fn deadline(sent: Instant, lease: Duration) -> Instant {
    sent + lease / 100 * 99
}

/// About how many tries to renew a lease fit into its length.
const TRIES: u32 = 12;
