//! Many callers at once: nobody is granted too much, nobody deadlocks, nobody fails.

mod bounds;
mod clocks;
mod deadlocks;
mod rows;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

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

/// Throws the same numbers in every run, for each seed its own.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    /// Some of the numbers below `bound`, in any order, each once.
    fn some(&mut self, count: std::ops::RangeInclusive<u64>, bound: u64) -> Vec<usize> {
        let count = count.start() + self.below(count.end() - count.start() + 1);
        let mut all: Vec<_> = (0..usize::try_from(bound).unwrap()).collect();
        let picked = (0..count).map(|_| {
            let place = self.below(all.len() as u64);
            all.swap_remove(usize::try_from(place).unwrap())
        });
        picked.collect()
    }
}
