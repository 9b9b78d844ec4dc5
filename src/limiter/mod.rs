mod decide;
mod in_transaction;
mod savepoint;

use std::time::Duration;

use chrono::{DateTime, Utc};

use crate::algebra::Timestamp;
use crate::overrides::Overrides;
use crate::parts::Parts;
use crate::store::Backend;
pub use in_transaction::{BegunByHand, InTransaction};

/// Decides **inside the caller's transaction**: the decision and the work that it pays for commit or roll back
/// together.
///
/// Verbs that take or give tokens demand a proof of a transaction ([`InTransaction`]): `&mut tx` of a transaction or
/// savepoint of sqlx, or a connection on which `begin` was executed by hand ([`BegunByHand`]). A connection alone does
/// not compile. Verbs that only look take a connection, and so `&mut tx` as well.
///
/// # Locks
///
/// A call that takes or gives tokens locks its rows until the transaction ends, in one order for all callers; the row
/// of a call with an id comes last. So calls never deadlock with each other, however many limits each asks at once. Two
/// calls in one transaction lock outside of that order: ask limits together, in one call, or in the same order
/// everywhere. Consume late and commit soon: whoever asks the same key waits meanwhile.
///
/// A refusal that a committed balance proves takes no lock, writes nothing, and costs one round trip.
/// [`check`](Self::check) and [`balance`](Self::balance) never lock.
///
/// # Time
///
/// A call waits for rows that others hold for as long as PostgreSQL does. [`lock_timeout`](Self::lock_timeout) bounds
/// the wait for each row. PostgreSQL's `statement_timeout` bounds each statement of the rest of the transaction,
/// whatever it waits for. Where it strikes the transaction is aborted, and the error is an
/// [`Error::Database`](crate::Error::Database) (57014) for which
/// [`Error::is_retryable`](crate::Error::is_retryable) is true:
///
/// ```
/// # use tollgate::{Limit, Limiter, MINUTE};
/// # const LIMIT: Limit = Limit::token_bucket("limit", 1, MINUTE);
/// # async fn bounded(pool: &sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
/// let mut tx = pool.begin_with("begin; set local statement_timeout = '2s'").await?;
/// Limiter::new().consume(&mut tx, LIMIT.global()).await?.granted()?;
/// # Ok(())
/// # }
/// ```
///
/// Neither strikes where the server falls silent: for that put `tokio::time::timeout` around the whole transaction.
///
/// # Round trips
///
/// A grant of one limit takes two: lock, write. For a new key it takes three, as the row is inserted in between. A
/// grant of several limits takes three: look, insert or lock, write. A grant of a limit with shards takes four, with
/// the savepoint. A list of calls takes as many as one call of several limits. A refusal takes one. Other verbs take
/// two: lock, write.
///
/// A call of [alternatives](crate::first_of) looks, too. It locks the rows of the alternatives up to the one that the
/// look chose, in a savepoint, which takes one more. If another is due by then, it gives them up and locks all rows, in
/// order.
///
/// A call that lapses or is tracked takes no more, and its settlement one: to lock the call. One with an id takes five:
/// look at rows and call, lock both, write. A repeat takes the first two.
///
/// # Shards
///
/// A call that takes from a limit with [`shards`](crate::Limit::shards) first looks at all rows, without a lock. If the
/// rows together are short, the call is refused. Else it takes from the fullest row that nobody has locked, in a
/// savepoint that stays. If all are locked, it waits for one of them. While rows of a key are missing, it inserts one,
/// and waits for whoever is inserting the same row. If it needs several rows, it locks all of them, in the one order.
/// So it refuses only where the rows together are short.
///
/// `credit` and `debit` lock all rows of a key; `reset` does, and deletes stale ones; `settle` and `cancel` lock the
/// rows that were charged. Ask such a limit once in a transaction, for the sum: a second call may need another row, out
/// of order.
///
/// # Isolation
///
/// Made for READ COMMITTED, PostgreSQL's default. At REPEATABLE READ and SERIALIZABLE a lost race is a serialization
/// failure (40001), as for any other write: [`Error::is_retryable`](crate::Error::is_retryable) says so, and the caller
/// tries the whole transaction again. There, a row that is newer than the snapshot counts as missing, and so as full:
/// credit, settle and reset leave it alone.
///
/// # Cancellation
///
/// Futures may be dropped at any await point. One statement writes what a call takes (but see
/// [`parts`](Self::parts)), so a dropped call was carried out whole or not at all. Only the database knows which of the
/// two, so let the transaction roll back. If it commits after all, a call that was not carried out leaves at most a
/// full row, which means the same as a missing one. A dropped call with a [lock timeout](Self::lock_timeout) leaves
/// that timeout set for the rest of the transaction.
///
/// # Example
///
/// ```
/// use tollgate::{Limit, Limiter, MINUTE};
///
/// const SEND_MESSAGE: Limit = Limit::token_bucket("send_message", 10, MINUTE).capacity(20);
///
/// async fn send(pool: &sqlx::PgPool, user: i64, text: &str) -> Result<(), Box<dyn std::error::Error>> {
///     let mut tx = pool.begin().await?;
///     Limiter::new().consume(&mut tx, SEND_MESSAGE.key(user)).await?.granted()?;
///     let insert = sqlx::query("insert into messages (author, body) values ($1, $2)").bind(user).bind(text);
///     insert.execute(&mut *tx).await?;
///     tx.commit().await?;
///     Ok(())
/// }
/// # let _ = send;
/// ```
#[derive(Clone, Debug)]
#[must_use = "a limiter limits nothing until it is asked"]
pub struct Limiter {
    at: Option<Timestamp>,
    lock_timeout: Option<Duration>,
    backend: Backend,
    overrides: Option<Overrides>,
}

impl Limiter {
    /// A limiter by the database's clock, which waits for locks as long as the connection does.
    pub const fn new() -> Self {
        Self { at: None, lock_timeout: None, backend: Backend::PLAIN, overrides: None }
    }

    /// Waits at most so long for a row that another transaction has locked. Then it gives up with
    /// [`Error::Locked`](crate::Error::Locked), and the caller's transaction stays usable.
    ///
    /// It is PostgreSQL's `lock_timeout`, which counts anew for each row of a call, in whole milliseconds, rounded up.
    /// The savepoint that it needs costs two round trips per call. If the call takes or gives, the savepoint stays
    /// until the transaction ends. With more than 64 savepoints in one transaction PostgreSQL makes every snapshot of
    /// other sessions more slowly: ask many limits in one call.
    pub const fn lock_timeout(mut self, timeout: Duration) -> Self {
        self.lock_timeout = Some(timeout);
        self
    }

    /// Prepares every statement anew, without a name: for poolers in transaction mode that do not follow named
    /// statements (PgBouncer before 1.21, or with `max_prepared_statements = 0`). Costs one more round trip per
    /// statement.
    ///
    /// Preparing and executing are two round trips then, and outside of a transaction a pooler may send them to two
    /// servers. So [`check`](Self::check) and [`balance`](Self::balance) need a transaction, too. One that was
    /// [begun by hand](BegunByHand) costs two more round trips per call.
    ///
    /// Set this on every limiter and gate of a pool: a connection goes on using a statement that it has prepared under
    /// a name.
    pub const fn unnamed_statements(mut self) -> Self {
        self.backend.unnamed = true;
        self
    }

    /// Says over how many parts Citus distributes the tables: the number that `tollgate distribute` was given, 8 by
    /// default. 0, the default here, is plain PostgreSQL.
    ///
    /// Each statement names one part, so Citus sends it to one node. All limits of a key are in one part; a call about
    /// keys in several parts takes its statements once for each part, and Citus commits it in two phases. Several
    /// statements write such a call, and one that lapses, is tracked or has an id, and its settlement: if its future
    /// is dropped, or it fails, roll the transaction back. A transaction that was
    /// [begun by hand](BegunByHand) costs two more round trips per call. Each row goes by the clock of its node, and a
    /// call by the latest of them: keep the nodes' clocks in step (NTP). For a call of one row the clock may be read up
    /// to five milliseconds before the row is locked.
    ///
    /// A process with a wrong number gets [`SetupFault::WrongParts`](crate::SetupFault::WrongParts) at its first call,
    /// and one with none at its first insert: until then [`check`](Self::check) and [`balance`](Self::balance) find no
    /// rows, and say full.
    ///
    /// # Panics
    ///
    /// Unless the number is 0 or a power of two, at most 2048.
    #[track_caller]
    pub const fn parts(mut self, parts: u16) -> Self {
        self.backend.parts = Parts::new(parts);
        self
    }

    /// Goes by overrides: other numbers, deny, unlimited. Without it, the definitions of the limits count alone.
    ///
    /// A call that is denied, or unlimited as a whole, is answered with [`Source::Override`](crate::Source::Override),
    /// and without a round trip. A call with an [id](crate::Request::once) goes to the rows even so, since it may be a
    /// repeat. `credit`, `debit`, `reset` and `balance` go by other numbers, too, and ignore deny and unlimited.
    /// Receipts are settled as without overrides; the receipt of a call that was unlimited settles to nothing, however
    /// much it used.
    ///
    /// Other numbers count at once, and used tokens stay used: 2 of 10 used leaves 18 under 20. The new rate brings
    /// them back from the row's last write on. A missing row is full at the new capacity.
    pub fn overrides(mut self, overrides: &Overrides) -> Self {
        self.overrides = Some(overrides.clone());
        self
    }

    /// Takes this instant instead of the database's clock: for tests and replays.
    ///
    /// Time does not go back for a row: an instant before the row's own counts as the row's own.
    pub fn at(mut self, now: DateTime<Utc>) -> Self {
        self.at = Some(now.into());
        self
    }
}

// Below the settings, as the documentation shows them.
mod verbs;

impl Default for Limiter {
    fn default() -> Self {
        Self::new()
    }
}
