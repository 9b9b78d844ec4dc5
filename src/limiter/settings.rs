use std::time::Duration;

use chrono::{DateTime, Utc};

#[cfg(doc)]
use super::BegunByHand;
use super::Limiter;
use crate::overrides::Overrides;
use crate::parts::Parts;
use crate::prepare::MAX_KEYS;
use crate::store::Backend;
use crate::values::clock::Clock;

/// # Settings
impl Limiter {
    /// A limiter by the database's clock, which waits for locks as long as the connection does. It goes by no
    /// [overrides](crate::Overrides), so it ignores a ban on every key: that of a [`Tollgate`](crate::Tollgate) obeys.
    pub const fn new() -> Self {
        Self {
            clock: Clock::Database,
            lock_timeout: None,
            backend: Backend::PLAIN,
            overrides: None,
            max_keys: MAX_KEYS,
        }
    }

    /// Waits at most so long for a row that another transaction has locked. Then it gives up with
    /// [`Error::Locked`](crate::Error::Locked), and the caller's transaction stays usable.
    ///
    /// It is PostgreSQL's `lock_timeout`, which starts again for each row of a call, in whole milliseconds, rounded up.
    /// It needs a savepoint, which costs two round trips per call. If the call takes or gives tokens, the savepoint
    /// stays until the transaction ends. With more than 64 savepoints in one transaction, PostgreSQL makes every
    /// snapshot of other sessions more slowly, so ask many limits in one call.
    pub const fn lock_timeout(mut self, timeout: Duration) -> Self {
        self.lock_timeout = Some(timeout);
        self
    }

    /// Bounds the keys of one call, and those of one list of calls; 2 000 by default, at least 1. A call of more fails
    /// with [`CallError::TooManyKeys`](crate::CallError::TooManyKeys) before any SQL: it would keep its rows from
    /// others for seconds. Charges that were granted are settled, however many they are.
    pub const fn max_keys(mut self, keys: usize) -> Self {
        self.max_keys = if keys == 0 { 1 } else { keys };
        self
    }

    /// Prepares each statement at each use, without a name: for poolers in transaction mode that do not follow named
    /// statements (PgBouncer before 1.21, or with `max_prepared_statements = 0`). This costs one more round trip per
    /// statement.
    ///
    /// Preparing and executing are then two round trips, and outside of a transaction a pooler may send them to two
    /// servers. So [`check`](Self::check) and [`balance`](Self::balance) need a transaction, too. A transaction that
    /// was [begun by hand](BegunByHand) costs two more round trips per call.
    ///
    /// Set this on every limiter and gate of a pool: a connection goes on using a statement that it has prepared under
    /// a name.
    pub const fn unnamed_statements(mut self) -> Self {
        self.backend.unnamed = true;
        self
    }

    /// Sets the number of parts over which Citus distributes the tables. It is the number given to
    /// `tollgate distribute`, 8 by default. 0, the default here, is plain PostgreSQL.
    ///
    /// Each statement names one part, so Citus sends it to one node. All limits of a key are in one part. A call about
    /// keys in several parts runs its statements once for each part, and Citus commits it in two phases. Several
    /// statements write such a call. The same is true for a call that lapses, is tracked or has an id, and for its
    /// settlement. If such a call fails, or its future is dropped, roll the transaction back. A transaction that was
    /// [begun by hand](BegunByHand) costs two more round trips per call. Each row goes by the clock of its node, and a
    /// call by the latest of these clocks, so keep the nodes' clocks in step (NTP). For a call of one row the clock may
    /// be read up to five milliseconds before the row is locked.
    ///
    /// A process with a wrong number gets [`SetupFault::WrongParts`](crate::SetupFault::WrongParts) at its first call.
    /// A process without a number gets it at its first insert: until then [`check`](Self::check) and
    /// [`balance`](Self::balance) find no rows, and report full balances.
    ///
    /// # Panics
    ///
    /// Unless the number is 0 or a power of two, at most 2048.
    #[track_caller]
    pub const fn parts(mut self, parts: u16) -> Self {
        self.backend.parts = Parts::new(parts);
        self
    }

    /// Goes by overrides: other numbers, deny, unlimited. Without them, only the definitions of the limits count.
    ///
    /// A call that is denied, or unlimited as a whole, is answered with [`Source::Override`](crate::Source::Override),
    /// without a round trip. A call with an [id](crate::Call::once) still goes to the rows, because it may be a
    /// repeat. `credit`, `debit`, `reset` and `balance` go by other numbers, too, and ignore deny and unlimited.
    /// Overrides do not change how receipts are settled. The receipt of an unlimited call settles to nothing, however
    /// much the call used.
    ///
    /// Other numbers count at once, and used tokens stay used: if 2 of 10 are used, a capacity of 20 leaves 18. From
    /// the row's last write on, used tokens come back at the new rate. A missing row is full at the new capacity.
    pub fn overrides(mut self, overrides: &Overrides) -> Self {
        self.overrides = Some(overrides.clone());
        self
    }

    /// Takes this instant instead of the database's clock: for tests and replays.
    ///
    /// Time does not go back for a row: if this instant is before the row's own, the row's own counts.
    pub fn at(mut self, now: DateTime<Utc>) -> Self {
        self.clock = Clock::At(now.into());
        self
    }

    /// Takes this clock instead of the database's: for tests and replays. The limiter asks it once for each
    /// call.
    pub fn clock(mut self, clock: impl Fn() -> DateTime<Utc> + Send + Sync + 'static) -> Self {
        self.clock = Clock::given(clock);
        self
    }
}
