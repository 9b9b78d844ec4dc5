mod carry_out;
mod in_transaction;
mod savepoint;

// The documentation shows their methods in this order. Blank lines keep rustfmt from sorting them.
mod settings;

mod verbs;

use std::time::Duration;

use crate::overrides::Overrides;
use crate::store::Backend;
use crate::values::clock::Clock;
pub use in_transaction::{BegunByHand, InTransaction};

/// Decides **inside the caller's transaction**: the decision and the work that it pays for commit or roll back
/// together.
///
/// Verbs that take or give tokens demand a proof of a transaction ([`InTransaction`]): `&mut tx` of a transaction or
/// savepoint of sqlx, or a connection on which `begin` was executed by hand ([`BegunByHand`]). A connection alone does
/// not compile. Verbs that only look take a connection, so they take `&mut tx` as well.
///
/// # Locks
///
/// A call that takes or gives tokens locks its rows until the transaction ends, in one order for all callers; the row
/// of a call with an id comes last. So calls never deadlock with each other, however many limits each asks at once. Two
/// calls in one transaction together do not keep that order: ask limits in one call, or in the same order everywhere.
/// Consume late and commit soon, because other callers of the same key wait until then.
///
/// If a committed balance already refuses the call, it takes no lock, writes nothing, and costs one round trip.
/// [`check`](Self::check) and [`balance`](Self::balance) never lock.
///
/// # Time
///
/// A call waits for rows that other transactions hold, without a bound unless you set one.
/// [`lock_timeout`](Self::lock_timeout) bounds the wait for each row. PostgreSQL's `statement_timeout` bounds each
/// later statement of the transaction, whatever it waits for. When it strikes, the transaction is aborted, and the
/// error is an [`Error::Database`](crate::Error::Database) (57014) for which
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
/// Neither helps if the server falls silent. For that, put `tokio::time::timeout` around the whole transaction.
///
/// # Round trips
///
/// A grant of one limit takes two round trips: lock, write. For a new key it takes three, because the row is inserted
/// in between. A grant of several limits takes three: look, insert or lock, write. A grant of a limit with shards takes
/// four, including the savepoint. A list of calls takes as many as one call of several limits. A refusal takes one.
/// Other verbs take two: lock, write.
///
/// A call of [alternatives](crate::first_of) looks, too. In a savepoint, which takes one more round trip, it locks the
/// rows of the alternatives up to the one that the look chose. If the locked rows no longer grant it, it gives them up
/// and locks all rows, in order.
///
/// A call that lapses or is tracked takes no extra round trip, and its settlement takes one, to lock the stored call. A
/// call with an id takes five: look at the rows and at the stored call, lock both, write. A repeat takes only the first
/// two.
///
/// # Shards
///
/// A call that takes from a limit with [`shards`](crate::Limit::shards) first looks at all rows, without a lock. If the
/// rows together are short, the call is refused. Else it takes from the fullest row that no other transaction has
/// locked, in a savepoint that stays. If all are locked, it waits for one of them. While rows of a key are missing, it
/// inserts one, and waits if another transaction is inserting the same row. If it needs several rows, it locks all of
/// them, in the one order. So it refuses only if the rows together are short.
///
/// `credit`, `debit` and `reset` lock all rows of a key. They insert the missing ones, and delete those that they do
/// not need in one more round trip. `reset` deletes stale ones, too. `settle` and `cancel` lock the rows that were
/// charged. Ask such a limit once in a transaction, for the sum: a second call may need another row, out of order.
///
/// # Isolation
///
/// A limiter is made for READ COMMITTED, PostgreSQL's default. At REPEATABLE READ and SERIALIZABLE a lost race is a
/// serialization failure (40001), as for any other write: [`Error::is_retryable`](crate::Error::is_retryable) says so,
/// and the caller tries the whole transaction again. At these levels a row that is newer than the snapshot counts as
/// missing, and so as full: settle leaves it alone, and so do credit and reset of a limit with one row.
///
/// # Cancellation
///
/// Futures may be dropped at any await point. One statement writes all changes of a call (but see
/// [`parts`](Self::parts)), so a dropped call was carried out whole or not at all. Only the database knows which, so
/// let the transaction roll back. If it commits after all, a call that was not carried out leaves at most a full row,
/// which means the same as a missing one, and a `reset` at most deletes stale shards, which bind nobody. A dropped call
/// with a [lock timeout](Self::lock_timeout) leaves that timeout set for the rest of the transaction.
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
    clock: Clock,
    lock_timeout: Option<Duration>,
    backend: Backend,
    overrides: Option<Overrides>,
    max_keys: usize,
}

impl Default for Limiter {
    fn default() -> Self {
        Self::new()
    }
}
