use std::pin::pin;
use std::time::Duration;

use futures_util::future::{Either, select};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use super::Gate;
use crate::decision::{Grant, span};
use crate::error::Error;
use crate::receipt::Receipt;

/// What a [concurrency limit](crate::Limit::concurrency) has granted, for as long as this lives. Made by
/// [`Gate::acquire`].
///
/// A task in the background renews it after a third of the limit's lease, and tries again until its end. Dropped, it is
/// released, if the runtime still runs; else it lapses. Leases that are due together are renewed by one statement.
///
/// # When it is lost
///
/// A lease that could not be renewed for its whole length, or that a crash has emptied from the table of ephemeral
/// limits, is over: others may have been granted what it held. [`lapsed`](Self::lapsed) returns then, a hundredth of the lease
/// before the database lets it go. Race it against the work. What is written after that, somebody else may be writing
/// at the same time: a lease is no lock on data.
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
    /// `None` where nothing has to be released: a gate has granted without the database.
    keeper: Option<Keeper>,
}

/// The task that renews a lease.
#[derive(Debug)]
struct Keeper {
    held: watch::Receiver<Held>,
    task: JoinHandle<Result<(), Error>>,
    /// Dropped, it stands for `Then::Release`.
    then: oneshot::Sender<Then>,
}

/// What a lease is as long as it is renewed.
#[derive(Clone, Debug)]
struct Held {
    receipt: Receipt,
    /// When its holder must have stopped.
    deadline: Instant,
}

/// What becomes of a lease that its holder gives up.
#[derive(Debug)]
enum Then {
    Release,
    Keep,
}

impl Lease {
    /// Keeps what was granted by a call that was sent at this instant.
    pub(super) fn new(gate: &Gate, grant: Grant, sent: Instant) -> Self {
        let receipt = Receipt { charges: grant.charges.clone() };
        let shortest = receipt.leases().filter_map(|(charge, _)| charge.limit.lease()).min();
        let ends = receipt.leases().map(|(_, held)| held.lapses_at).min();
        let keeper = shortest.zip(ends).map(|(lease, ends)| {
            // Of one that was granted before a part has passed.
            let left = span(grant.observed_at, ends).min(lease);
            let (renewed, held) = watch::channel(Held { receipt, deadline: deadline(sent, left) });
            let (then, given_up) = oneshot::channel();
            let due = gate.together(sent + left / 3, lease);
            let task = tokio::spawn(keep(gate.clone(), lease, due, renewed, given_up));
            Keeper { held, task, then }
        });
        Self { grant, keeper }
    }

    /// What was granted, as it was then.
    #[must_use]
    pub fn grant(&self) -> &Grant {
        &self.grant
    }

    /// Returns when the holder must have stopped: the lease has ended, and was not renewed.
    pub async fn lapsed(&self) {
        let Some(keeper) = &self.keeper else { return std::future::pending().await };
        let mut held = keeper.held.clone();
        loop {
            let deadline = held.borrow_and_update().deadline;
            match timeout_at(deadline, held.changed()).await {
                Ok(Ok(())) => {}
                // Nobody renews it any more.
                Ok(Err(_)) => return sleep_until(deadline).await,
                Err(_) => return,
            }
        }
    }

    /// Releases it, and waits until that is done.
    ///
    /// # Errors
    ///
    /// [`Error::Lapsed`] and [`Error::ReceiptUsed`] for a lease that was lost before; else those of
    /// [`Gate::settle`]. A release that fails is tried again until the lease has ended.
    pub async fn release(mut self) -> Result<(), Error> {
        let Some(Keeper { task, then, .. }) = self.keeper.take() else { return Ok(()) };
        // A task that has ended knows already that the lease is lost.
        let _ = then.send(Then::Release);
        task.await.unwrap_or(Err(Error::Stopped))
    }

    /// Gives up the guard and keeps the lease: it is renewed and released by this receipt
    /// ([`Gate::renew`], [`Gate::release`]), else it lapses.
    pub fn into_receipt(mut self) -> Receipt {
        let Some(Keeper { held, then, .. }) = self.keeper.take() else {
            return Receipt { charges: self.grant.charges.clone() };
        };
        let _ = then.send(Then::Keep);
        let held = held.borrow();
        held.receipt.clone()
    }
}

/// Renews a lease until its holder gives it up, or it is lost.
async fn keep(
    gate: Gate,
    lease: Duration,
    mut due: Instant,
    held: watch::Sender<Held>,
    mut given_up: oneshot::Receiver<Then>,
) -> Result<(), Error> {
    loop {
        let renewal = pin!(renew(&gate, &held, due));
        let (sent, renewed) = match select(&mut given_up, renewal).await {
            Either::Left((Ok(Then::Keep), _)) => return Ok(()),
            Either::Left((Ok(Then::Release) | Err(_), _)) => {
                let last = held.borrow().clone();
                return release(&gate, &last).await;
            }
            Either::Right((renewed, _)) => renewed,
        };
        match renewed {
            Ok(receipt) => {
                held.send_replace(Held { receipt, deadline: deadline(sent, lease) });
                due = gate.together(sent + lease / 3, lease);
            }
            Err(lost @ (Error::Lapsed { .. } | Error::ReceiptUsed { .. })) => {
                held.send_modify(|held| held.deadline = sent);
                return Err(lost);
            }
            Err(error) if Instant::now() >= held.borrow().deadline => return Err(error),
            Err(error) => {
                tracing::warn!(%error, "could not renew a lease, and will try again");
                due = Instant::now() + lease / TRIES;
            }
        }
    }
}

/// Renews a lease once it is due; when that was asked for, and what came of it.
async fn renew(gate: &Gate, held: &watch::Sender<Held>, due: Instant) -> (Instant, Result<Receipt, Error>) {
    sleep_until(due).await;
    let (sent, receipt) = (Instant::now(), held.borrow().receipt.clone());
    (sent, gate.renew(&receipt).await)
}

/// Releases a lease, however often it takes, until it has ended by itself.
async fn release(gate: &Gate, Held { receipt, deadline }: &Held) -> Result<(), Error> {
    let mut pause = FIRST_PAUSE;
    loop {
        match gate.release(receipt.clone()).await {
            Err(error) if error.is_retryable() && Instant::now() + pause < *deadline => sleep(pause).await,
            done => return done.map(drop),
        }
        pause *= 2;
    }
}

/// When the holder of a lease must have stopped. The lease lasts from a later instant, that of the decision.
fn deadline(sent: Instant, lease: Duration) -> Instant {
    sent + lease / 100 * 99
}

/// How often a lease is tried to be renewed, about, until its end.
const TRIES: u32 = 12;

const FIRST_PAUSE: Duration = Duration::from_millis(50);
