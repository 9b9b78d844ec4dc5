use std::sync::atomic::AtomicBool;
use std::time::Duration;

use sqlx::PgConnection;
use tokio::sync::watch;

use super::memory::Memories;
use super::outage::Fallback;
use super::server::Server;
use super::wait::Waiters;
use crate::overrides::Overrides;
use crate::plan::RowId;
use crate::store::{Backend, Store};
use crate::values::clock::Clock;

/// The parts of a gate that all its lanes work with.
pub(super) struct Shared {
    /// The server that the builder's pool names.
    pub(super) entry: Server,
    pub(super) settings: Settings,
    pub(super) memories: Memories,
    /// `None` if no call is answered without the database.
    pub(super) fallback: Option<Fallback>,
    pub(super) overrides: Option<Overrides>,
    pub(super) waiters: Waiters,
    /// Whether the tables were seen to have the parts that the settings say.
    pub(super) has_parts: AtomicBool,
    /// Whether the gate is closed. Everything that the gate still owes listens until it is done: the tasks of leases,
    /// the tasks of streams that are being settled, and calls that take ahead or give back. No future that a caller
    /// polls listens.
    pub(super) closed: watch::Sender<bool>,
}

impl Shared {
    /// A listener that keeps [`close`](super::Gate::close) waiting until it is dropped; `None` once the gate is closed.
    pub(super) fn owing(&self) -> Option<watch::Receiver<bool>> {
        Some(self.closed.subscribe()).filter(|closed| !*closed.borrow())
    }

    /// Notes that a lapsed call which this gate gave back has raised a row.
    pub(super) fn lapsed(&self, row: &RowId) {
        self.memories.forget_refusals(row);
        self.waiters.raise(row, false);
    }

    /// The tables, in a transaction, by the gate's clock.
    pub(super) fn store_in<'c>(&self, transaction: &'c mut PgConnection) -> Store<'c> {
        Store::new(transaction, self.settings.clock.at(), self.settings.backend)
    }
}

/// The settings of a gate.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    /// How many calls one batch takes at most.
    pub(super) max_batch: usize,
    /// The most keys of one call.
    pub(super) max_keys: usize,
    /// The most keys of all calls that wait in one lane, and of all calls that wait for locked rows.
    pub(super) queue: usize,
    pub(super) lock_timeout: Duration,
    pub(super) statement_timeout: Duration,
    pub(super) acquire_timeout: Duration,
    /// How much longer than needed a waiting caller sleeps, at most.
    pub(super) jitter: Duration,
    pub(super) backend: Backend,
    pub(super) clock: Clock,
}
