//! Many callers at once: nobody is granted too much, nobody deadlocks, nobody fails.

pub(crate) mod bounds;
mod clocks;
mod deadlocks;
mod rows;

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use fastrand::Rng;
use sqlx::{Connection, PgConnection};
use tollgate::{Grant, Limit, Limiter, Request};

use crate::gate::stage::sweep;
use crate::world::{World, limiter};

static LIMITER: LazyLock<Limiter> = LazyLock::new(limiter);

/// So long that nothing comes back while a test runs.
const EVER: Duration = Limit::MAX_PERIOD;

/// One token of `request`, in a transaction of its own; none if it is refused.
async fn take(conn: &mut PgConnection, request: Request) -> Option<Grant> {
    let mut tx = conn.begin().await.unwrap();
    let decision = LIMITER.consume(&mut tx, request).await.unwrap();
    tx.commit().await.unwrap();
    decision.granted().ok()
}

/// Deletes full rows of both tables all the time, as a clean-up would.
struct Sweeper {
    deleted: Arc<AtomicU64>,
    done: Arc<AtomicBool>,
    task: tokio::task::JoinHandle<()>,
}

impl Sweeper {
    fn start(world: &World) -> Self {
        let (deleted, done) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (url, count, is_done) = (world.direct_url(), deleted.clone(), done.clone());
        let task = tokio::spawn(async move {
            let mut conn = PgConnection::connect(&url).await.unwrap();
            while !is_done.load(Ordering::SeqCst) {
                count.fetch_add(sweep(&mut conn).await, Ordering::SeqCst);
            }
        });
        Self { deleted, done, task }
    }

    /// How many rows it has deleted so far.
    fn deleted(&self) -> u64 {
        self.deleted.load(Ordering::SeqCst)
    }

    async fn stop(self) {
        self.done.store(true, Ordering::SeqCst);
        self.task.await.unwrap();
    }
}

/// Some of the numbers below `bound`, in any order, each once.
pub(crate) fn some(dice: &mut Rng, count: RangeInclusive<usize>, bound: usize) -> Vec<usize> {
    let mut picked: Vec<_> = (0..bound).collect();
    dice.shuffle(&mut picked);
    picked.truncate(dice.usize(count));
    picked
}
