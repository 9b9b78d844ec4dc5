use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use sqlx::PgPool;
use tokio::sync::watch;

use super::map::Map;
use super::row::Override;
use super::table::{Snapshot, Stamp};
use crate::algebra::Timestamp;
use crate::values::lock;

/// The overrides of the table, as far as this process knows them.
pub(super) struct Known {
    /// Spares the lock where there is no override.
    pub(super) is_empty: AtomicBool,
    reading: RwLock<LastReading>,
    /// Reports go over this pool; `None` for overrides that were read once.
    pub(super) pool: Option<PgPool>,
    /// Notified when the map was swapped.
    pub(super) changed: watch::Sender<()>,
}

/// The last reading.
pub(super) struct LastReading {
    pub(super) map: Map,
    /// Tells whether the table has changed; `None` if this process knows more than it has read.
    pub(super) stamp: Option<Stamp>,
    /// The reading of the database's clock, and in `read` when its answer came.
    pub(super) now: Timestamp,
    pub(super) read: Instant,
}

impl Known {
    pub(super) fn new(reading: LastReading, pool: Option<PgPool>) -> Self {
        let is_empty = AtomicBool::new(reading.map.is_empty());
        let (reading, changed) = (RwLock::new(reading), watch::Sender::new(()));
        Self { is_empty, reading, pool, changed }
    }

    pub(super) fn known<T>(&self, of: impl FnOnce(&LastReading) -> T) -> T {
        of(&lock::read(&self.reading))
    }

    /// Goes by an override that this process has just reported. The next reading includes it.
    pub(super) fn note(&self, said: Override) {
        let mut reading = lock::write(&self.reading);
        reading.map.note(said);
        reading.stamp = None;
        drop(reading);
        self.is_empty.store(false, Ordering::Relaxed);
        self.changed.send_replace(());
    }

    /// Replaces the whole map, if it has changed.
    pub(super) fn swap(&self, Snapshot { now, stamp, map }: Snapshot) {
        let mut reading = lock::write(&self.reading);
        (reading.now, reading.read) = (now, Instant::now());
        if let Some(map) = map {
            reading.stamp = Some(stamp);
            self.is_empty.store(map.is_empty(), Ordering::Relaxed);
            reading.map = map;
            drop(reading);
            self.changed.send_replace(());
        }
    }
}

impl LastReading {
    pub(super) fn now(&self) -> Timestamp {
        self.now.plus(self.read.elapsed())
    }
}
