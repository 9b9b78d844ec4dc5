use std::convert::Infallible;
use std::future::pending;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::{Either, select};
use sqlx::PgPool;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::Sweeper;
use super::pass::{SweepPass, Swept};
use crate::SECOND;
use crate::algebra::Timestamp;
use crate::error::{Error, chain};
use crate::meter;
use crate::reaper::Reaper;

/// A sweeper in the background, started by [`Sweeper::spawn`]. It ends when it is dropped, after the current batch.
#[derive(Debug)]
#[must_use = "the sweeping ends when this is dropped"]
pub struct Sweeping {
    stop: oneshot::Sender<()>,
    task: JoinHandle<Swept>,
}

impl Sweeping {
    pub(super) fn start(sweeper: Sweeper, pool: PgPool, every: Duration) -> Self {
        let (stop, stopped) = oneshot::channel();
        Self { stop, task: tokio::spawn(work(sweeper, pool, every, stopped)) }
    }

    /// Ends it after the current batch, and returns all of its work.
    ///
    /// If the task panicked, or its runtime ended, its work is not known, and all counts are 0.
    pub async fn stop(self) -> Swept {
        // A task that has ended needs no message.
        let _ = self.stop.send(());
        self.task.await.unwrap_or_default()
    }
}

/// Sweeps now and then, and gives back lapsed calls each second.
async fn work(sweeper: Sweeper, pool: PgPool, every: Duration, stopped: oneshot::Receiver<()>) -> Swept {
    let lapsed = AtomicU64::new(0);
    let reaping = pin!(reap(Reaper::new(pool.clone(), sweeper.backend), sweeper.at, &lapsed));
    let mut swept = match select(pin!(sweep(sweeper, pool, every, stopped)), reaping).await {
        Either::Left((swept, _)) => swept,
        Either::Right((never, _)) => match never {},
    };
    swept.lapsed += lapsed.load(Ordering::Relaxed);
    swept
}

async fn reap(mut reaper: Reaper, at: Option<Timestamp>, lapsed: &AtomicU64) -> Infallible {
    while !reaper.is_over() {
        // The random pause keeps processes from looking all at the same time.
        tokio::time::sleep(SECOND.mul_f64(0.5 + fastrand::f64())).await;
        match reaper.reap(at, |_| {}).await {
            Ok(more) => drop(lapsed.fetch_add(more, Ordering::Relaxed)),
            Err(error) => tracing::warn!(error = %chain(&error), "could not give back what has lapsed"),
        }
    }
    pending().await
}

async fn sweep(sweeper: Sweeper, pool: PgPool, every: Duration, mut stopped: oneshot::Receiver<()>) -> Swept {
    let mut total = Swept::default();
    meter::sweeping();
    let mut wait = every.min(FIRST).mul_f64(fastrand::f64());
    while timeout(wait, &mut stopped).await.is_err() {
        let mut pass = sweeper.pass(&pool);
        let was_stopped = walk(&mut pass, &mut stopped).await;
        let swept = pass.swept();
        total.add(swept);
        tell(swept, &was_stopped);
        if matches!(was_stopped, Ok(true)) {
            break;
        }
        wait = (every / 10 * 9).saturating_add((every / 5).mul_f64(fastrand::f64())).max(BREATH);
    }
    total
}

/// Makes a pass, to its end or until the sweeping is stopped. Returns whether it was stopped.
async fn walk(pass: &mut SweepPass, stopped: &mut oneshot::Receiver<()>) -> Result<bool, Error> {
    while pass.work().await? {
        if timeout(pass.take_rest(), &mut *stopped).await.is_ok() {
            return Ok(true);
        }
    }
    Ok(false)
}

fn tell(swept: Swept, was_stopped: &Result<bool, Error>) {
    let Swept { ephemeral, durable, missed, yielded, clock_stepped, shut_out, .. } = swept;
    tracing::debug!(ephemeral, durable, missed, yielded, clock_stepped, shut_out, "swept");
    if let Err(error) = was_stopped {
        tracing::warn!(error = %chain(error), "a sweep ended early");
    }
    meter::swept(ephemeral, durable);
    if matches!(was_stopped, Ok(false)) && !yielded && !clock_stepped {
        meter::swept_all();
    }
}

/// The shortest time between two passes, in case `every` is close to zero.
const BREATH: Duration = Duration::from_millis(10);

/// The latest time at which the first pass begins, so that even a service that is deployed daily sweeps.
const FIRST: Duration = Duration::from_mins(1);
