//! One handle for a service: limiter, gate, overrides and clean-up, started and stopped together.

mod builder;
mod definitions;
mod error;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use sqlx::PgPool;
use tokio::time::timeout;

pub use builder::TollgateBuilder;
pub use error::StartError;

use crate::gate::Gate;
use crate::limiter::Limiter;
use crate::overrides::Overrides;
use crate::sweeper::Sweeping;
use crate::values::lock::lock;

/// All that a service needs, over one pool: a [`Limiter`] and a [`Gate`] that go by the [`Overrides`], and the tasks
/// that watch these, sweep, and give back what lapses.
///
/// [`start`](Self::start) looks whether the tables have the columns that this release needs, and reads over how many
/// [parts](Limiter::parts) they are distributed. Start one per process, on the runtime that serves. Clones are the same
/// handle.
///
/// # Connections
///
/// The gate works on the service's pool. The tasks have a pool of their own, of up to three connections with the same
/// options and hooks. So a service hears a ban while its own pool is in full use. A password that you change later by
/// `PgPool::set_connect_options` does not reach that pool: restart the service then.
///
/// # End
///
/// [`stop`](Self::stop) ends everything in order. If the last clone is dropped instead, the sweeping ends, and limiters
/// and gates that are still there go on hearing overrides. Tokens that the gate has [taken
/// ahead](crate::GateBuilder::prefetch) stay charged.
///
/// # Example
///
/// ```
/// use tollgate::{Limit, MINUTE, Tollgate};
///
/// const SEND_MESSAGE: Limit = Limit::token_bucket("send_message", 10, MINUTE).capacity(20);
///
/// async fn serve(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
///     let tollgate = Tollgate::start(pool.clone()).await?;
///     // Where there is work to pay for: in its transaction.
///     let mut tx = pool.begin().await?;
///     tollgate.limiter().consume(&mut tx, SEND_MESSAGE.key("ada")).await?.granted()?;
///     tx.commit().await?;
///     // Where there is none: in one of the gate's.
///     tollgate.gate().consume(SEND_MESSAGE.key("bob")).await?.granted()?;
///     tollgate.stop().await;
///     Ok(())
/// }
/// # let _ = serve;
/// ```
#[derive(Clone, Debug)]
#[must_use = "the sweeping ends when the last clone is dropped"]
pub struct Tollgate {
    limiter: Limiter,
    gate: Gate,
    overrides: Overrides,
    tasks: Arc<Tasks>,
}

#[derive(Debug)]
struct Tasks {
    pool: PgPool,
    sweeping: Mutex<Option<Sweeping>>,
}

impl Tollgate {
    /// Starts with the defaults of [`TollgateBuilder`].
    ///
    /// # Errors
    ///
    /// Those of [`TollgateBuilder::start`].
    pub async fn start(pool: PgPool) -> Result<Self, StartError> {
        Self::builder(pool).start().await
    }

    /// A builder of a handle over a pool, which others may use as well.
    pub fn builder(pool: PgPool) -> TollgateBuilder {
        TollgateBuilder::new(pool)
    }

    /// Decides in the caller's transaction.
    pub fn limiter(&self) -> &Limiter {
        &self.limiter
    }

    /// Decides in transactions of its own.
    pub fn gate(&self) -> &Gate {
        &self.gate
    }

    /// The overrides that both go by. Reports of trouble ([`Overrides::slow_down`]) go over the handle's own pool.
    #[must_use]
    pub fn overrides(&self) -> &Overrides {
        &self.overrides
    }

    /// Ends everything in order: [closes](Gate::close) the gate, ends the sweeping after its batch, and watches
    /// overrides no more. Then it closes the connections of its own. Call it when the service takes no more requests.
    /// The limiter and the gate still answer as after [`Gate::close`], by the overrides that were read last.
    ///
    /// If the database does not answer, it returns when the timeouts of the gate and five seconds more have passed.
    pub async fn stop(&self) {
        self.gate.close().await;
        let sweeping = lock(&self.tasks.sweeping).take();
        let rest = async {
            if let Some(sweeping) = sweeping {
                sweeping.stop().await;
            }
            self.tasks.pool.close().await;
        };
        if timeout(PATIENCE, rest).await.is_err() {
            tracing::warn!("the database does not answer: the handle's own connections are left to it");
        }
    }
}

/// How long a batch of the sweeper, or the reading of overrides, may still take.
const PATIENCE: Duration = Duration::from_secs(5);
