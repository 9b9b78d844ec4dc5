//! Decides in transactions of its own, for many callers.
//!
//! A call enters by [`verbs`], waits in one of the [`lanes`] to its server, which [`nodes`] knows, and is decided in a
//! [`batch`]. A [`reply`] answers its caller. [`memory`] answers some calls without the database: by rows that refused,
//! and by tokens taken ahead. [`wait`] keeps callers in line. [`guards`] has the values whose tasks give tokens back,
//! and [`outage`] answers while the server is silent.

mod batch;
mod builder;
mod connection;
mod guards;
mod memory;
mod merge;
mod nodes;
mod outage;
mod raised;
mod reply;
mod server;
mod shared;
mod verbs;
mod wait;
mod worker;

use std::fmt;
use std::sync::Arc;

use sqlx::PgPool;
use tokio::time::Instant;

pub use builder::GateBuilder;
use guards::Reaping;
pub use guards::{Lease, Stream};
use merge::Width;
use nodes::Nodes;
pub use outage::OnFailure;
use shared::Shared;

/// Decides **in transactions of its own**: its answers are committed, whatever the caller does afterwards.
///
/// Use a gate for calls that must count even if their handler rolls back, such as failed log-ins, and for requests that
/// need no transaction otherwise. Use a [`Limiter`](crate::Limiter) for a decision that shares the fate of other work.
/// Both work on the same rows, at the same time, by almost [the same verbs](crate#the-parts-of-a-call).
///
/// A gate is cheap to clone, and all clones are the same gate. Make one per process and keep it: it is fast because its
/// callers share statements. Like its pool, it belongs to one tokio runtime.
///
/// # How it works
///
/// Callers queue in lanes, and all that wait in a lane form the next batch. Two statements decide hundreds of calls, in
/// the order in which they came; a third looks for calls with ids. There is no timer: a lone caller is a batch of one,
/// and pays two round trips. Calls for one row meet in one lane, so lanes do not wait for each other; lanes open as
/// batches grow. A thousand callers hold a handful of connections. If the pool has no other connection left, a lane
/// gives its own back between batches.
///
/// A batch reads its rows without a lock. It writes each row that still is the version that was read
/// (compare-and-swap), so no lock is held across a round trip. Calls of rows that are missing, or have changed in
/// between, are decided again in a transaction that locks the rows, for at most
/// [`lock_timeout`](GateBuilder::lock_timeout). Only grants and changes are written.
///
/// # Errors
///
/// A failure of the database reaches every caller of the batch; [`OnFailure`] decides which calls get an answer
/// instead. [`Error::Locked`](crate::Error::Locked), [`Error::Overloaded`](crate::Error::Overloaded) and
/// [`Error::PoolExhausted`](crate::Error::PoolExhausted) mean that callers ask too much at once, and nothing was taken.
/// [`Error::OutcomeUnknown`](crate::Error::OutcomeUnknown) means that the connection broke during a commit.
///
/// # Cancellation
///
/// Futures may be dropped at any time. A dropped call does not count if it still waits in the queue, and counts as a
/// whole if it is being decided. The caller cannot know which, so drop only calls that may count.
///
/// # Example
///
/// ```
/// use tollgate::{Gate, Limit, MINUTE};
///
/// const FAILED_LOGINS: Limit = Limit::token_bucket("failed_logins", 5, MINUTE);
///
/// async fn log_in(gate: &Gate, user: i64, password: &str) -> Result<bool, Box<dyn std::error::Error>> {
///     // Charged before it is tried, so that parallel guesses count. A right one is given back.
///     let guess = gate.consume(FAILED_LOGINS.key(user)).await?.granted()?;
///     let is_right = verify(user, password).await;
///     if is_right {
///         gate.settle(guess, 0).await?;
///     }
///     Ok(is_right)
/// }
/// # async fn verify(_: i64, _: &str) -> bool { true }
/// # let _ = log_in;
/// ```
#[derive(Clone)]
#[must_use = "a gate limits nothing until it is asked"]
pub struct Gate {
    inner: Arc<GateInner>,
}

struct GateInner {
    shared: Arc<Shared>,
    nodes: Arc<Nodes>,
    reaping: Reaping,
    built: Instant,
}

impl Gate {
    /// A gate with the defaults of [`GateBuilder`]. It connects when it is first asked. It goes by no
    /// [overrides](crate::Overrides), so it ignores a ban on every key: that of a [`Tollgate`](crate::Tollgate) obeys.
    pub fn new(pool: PgPool) -> Self {
        Self::builder(pool).build()
    }

    /// A builder of a gate on the connections of a pool, which others may use as well.
    pub fn builder(pool: PgPool) -> GateBuilder {
        GateBuilder::new(pool)
    }

    fn with(shared: Shared, width: Width, by_node: bool) -> Self {
        let shared = Arc::new(shared);
        let nodes = Arc::new(Nodes::new(&shared, width, by_node));
        let outlet = Arc::downgrade(&nodes);
        // If too many calls wait, the call fails, and its tokens are forfeited.
        let send = move |call| drop(outlet.upgrade().map(|nodes| nodes.submit(call)));
        shared.memories.prefetch.send_over(Arc::new(send));
        Self { inner: Arc::new(GateInner { shared, nodes, reaping: Reaping::default(), built: Instant::now() }) }
    }
}

/// Shows none of the keys in its queues and memories.
impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").field("settings", &self.inner.shared.settings).finish_non_exhaustive()
    }
}
