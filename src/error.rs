use std::borrow::Cow;
#[cfg(feature = "postgres")]
use std::sync::Arc;

use crate::hold::HoldError;
use crate::key::KeyError;
use crate::tokens::{Tokens, TokensError};

/// Why no decision was made. A refusal is not among these: it is an answer, see [`Decision`](crate::Decision).
///
/// The first group is **bad input**: found before any SQL, so the caller's transaction is untouched. The second group
/// is about the **transaction and the rows**, the third about the **database**. After [`Error::Database`],
/// [`Error::NamedStatements`], [`Error::ReadOnly`], [`Error::Schema`] and [`Error::WrongParts`] PostgreSQL has aborted
/// the transaction, and the caller rolls back.
///
/// Clones share what the driver reported: a gate gives the error of a batch to every caller in it.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The definitions of one limit differ within one call.
    #[error("limit {limit:?} is asked under two definitions in one call (use one)")]
    ConflictingDefinitions {
        /// The limit's name.
        limit: Cow<'static, str>,
    },
    /// A cost that is no amount of tokens.
    #[error("cost of limit {limit:?}: {source}")]
    Cost {
        /// The limit's name.
        limit: Cow<'static, str>,
        /// What is wrong with the cost.
        source: TokensError,
    },
    /// A cost that could never be granted, however long the caller waits.
    #[error(
        "limit {limit:?} can never grant {asked} tokens at once, at most {max} (raise its capacity or max_reserved, or ask for less)"
    )]
    CostExceedsCapacity {
        /// The limit's name.
        limit: Cow<'static, str>,
        /// What was asked for one key, summed over the call.
        asked: Tokens,
        /// The most that can be granted: the capacity, and for a reservation `max_reserved` on top.
        max: Tokens,
    },
    /// A debt that no balance holds, of about nine million million tokens: storing less would forgive the rest.
    #[error("limit {limit:?} cannot hold a debt this deep")]
    DebtTooDeep {
        /// The limit's name.
        limit: Cow<'static, str>,
    },
    /// A hold that a request cannot have.
    #[error("hold of limit {limit:?}: {source}")]
    Hold {
        /// The limit's name.
        limit: Cow<'static, str>,
        /// What is wrong with it.
        source: HoldError,
    },
    /// A key that cannot name anybody.
    #[error("key of limit {limit:?}: {source}")]
    Key {
        /// The limit's name.
        limit: Cow<'static, str>,
        /// What is wrong with the key.
        source: KeyError,
    },
    /// Several charges of different costs, settled for one actual cost.
    #[error("a receipt with different costs cannot be settled for one (use `Receipt::split`, and settle each)")]
    MixedCosts,
    /// A call that asks nothing. An empty list of limits grants nothing; skip the call where nothing is limited.
    #[error("no limit was asked (skip the call where nothing is limited)")]
    NothingAsked,

    /// Too many callers want the same: another transaction held a row for longer than the lock timeout, or a gate's
    /// queue is full. Nothing was taken, and the limiter's own changes to the caller's transaction are undone.
    ///
    /// A limiter that was given no lock timeout returns it only where the session's own `lock_timeout` strikes, and only
    /// for a limit with shards or a call about several parts or both tables on Citus; else that is [`Error::Database`].
    #[error(
        "another transaction held a row for longer than the lock timeout, or a gate's queue is full (retry, or commit sooner)"
    )]
    Busy,
    /// A row holds what the limiter never writes, such as an infinite instant.
    #[error("a row of limit {limit:?} is corrupt: {fault} (repair or delete it)")]
    CorruptRow {
        /// The limit's name.
        limit: Cow<'static, str>,
        /// What is wrong with it.
        fault: &'static str,
    },
    /// The receipt came too late: its charge has lapsed, or stands for good. Nothing was changed.
    #[error("the receipt of limit {limit:?} has lapsed (debit what was spent after all)")]
    Lapsed {
        /// The limit's name.
        limit: Cow<'static, str>,
    },
    /// The connection is in no transaction, so nothing could be locked for long enough to decide. Nothing was taken.
    #[error("the connection is in no transaction (call `begin` first)")]
    NotInTransaction,
    /// The id of a request was granted another cost or another hold, and that one has not lapsed. Nothing was taken.
    #[error("the id of the request for limit {limit:?} was granted another cost or hold (use an id for each)")]
    OnceMismatch {
        /// The limit's name.
        limit: Cow<'static, str>,
    },
    /// The receipt was settled or cancelled before, or its row is gone, as after a crash in an
    /// [`ephemeral`](crate::Limit::ephemeral) limit. Also for a lease that is asked [once](crate::Request::once) more
    /// after it was released. Nothing was changed.
    #[error("the receipt of limit {limit:?} was used before")]
    ReceiptUsed {
        /// The limit's name.
        limit: Cow<'static, str>,
    },

    /// PostgreSQL or the connection failed.
    #[cfg(feature = "postgres")]
    #[error("could not {step} limit {limit:?}: {source}")]
    Database {
        /// What the limiter was about to do.
        step: Step,
        /// The limit's name; of several the first in lock order.
        limit: Cow<'static, str>,
        /// What the driver reported.
        source: Arc<sqlx::Error>,
    },
    /// A prepared statement is not there when it is executed, or is somebody else's: a pooler in transaction mode sits
    /// before PostgreSQL and does not follow named statements. Nothing was taken.
    ///
    /// PgBouncer follows them from 1.21 on, unless `max_prepared_statements` is 0. Other poolers need
    /// [`Limiter::unnamed_statements`](crate::Limiter::unnamed_statements) and
    /// [`GateBuilder::unnamed_statements`](crate::GateBuilder::unnamed_statements).
    #[cfg(feature = "postgres")]
    #[error(
        "a prepared statement was not there or was somebody else's: the pooler does not follow named ones (say `unnamed_statements()`, or set PgBouncer's max_prepared_statements): {source}"
    )]
    NamedStatements {
        /// What the driver reported.
        source: Arc<sqlx::Error>,
    },
    /// The connection was lost while a gate committed the call: the tokens were taken, or they were not.
    ///
    /// The answer would have been a grant or a change. A retry may take the tokens twice, unless the request has an
    /// [id](crate::Request::once); giving up may waste them. Neither ever takes more than the limit allows.
    #[cfg(feature = "postgres")]
    #[error(
        "whether limit {limit:?} was charged is unknown: the connection was lost while it was (look at the balance, or count it as charged)"
    )]
    OutcomeUnknown {
        /// The limit's name; of several the first in lock order.
        limit: Cow<'static, str>,
        /// What the driver reported; `None` where the gate itself came to an end.
        source: Option<Arc<sqlx::Error>>,
    },
    /// The server takes no writes: it is a standby, or the transaction is read-only. Nothing was taken.
    ///
    /// After a failover a pool may hold connections to the old primary. A gate closes such a connection and asks its
    /// next batch on a new one; a [`Limiter`](crate::Limiter) leaves that to the owner of the connection.
    #[cfg(feature = "postgres")]
    #[error(
        "the server takes no writes: it is a standby, or the transaction is read-only (connect to the primary, or begin `read write`): {source}"
    )]
    ReadOnly {
        /// What the driver reported.
        source: Arc<sqlx::Error>,
    },
    /// The runtime that the gate worked on ended before the call's turn came. Nothing was taken.
    #[cfg(feature = "postgres")]
    #[error("the runtime of the gate has ended (ask it from a tokio runtime that is alive)")]
    Stopped,
    /// A table could not be swept. What was deleted until then stays deleted.
    #[cfg(feature = "postgres")]
    #[error("could not sweep {table}: {source}")]
    Sweep {
        /// The table.
        table: &'static str,
        /// What the driver reported.
        source: Arc<sqlx::Error>,
    },
    /// The tables are missing, or older than this library.
    #[cfg(feature = "postgres")]
    #[error("the tollgate schema is missing or too old (run `tollgate migrate up`): {source}")]
    Schema {
        /// What the driver reported.
        source: Arc<sqlx::Error>,
    },
    /// The tables are distributed over another number of parts than this process says. Nothing was taken.
    #[cfg(feature = "postgres")]
    #[error(
        "the tables are not distributed over as many parts as this process says (say `.parts(n)` as `tollgate distribute` did, nothing on plain PostgreSQL): {source}"
    )]
    WrongParts {
        /// What the driver reported.
        source: Arc<sqlx::Error>,
    },
}

/// What the limiter was doing when the database failed.
#[cfg(feature = "postgres")]
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum Step {
    /// Getting a connection from the gate's pool.
    Acquire,
    /// Beginning a transaction, or finding out whether there is one.
    Begin,
    /// Ending the gate's own transaction.
    Commit,
    /// Inserting the rows of new keys.
    Insert,
    /// Locking rows.
    Lock,
    /// Reading rows without a lock.
    Read,
    /// Deleting the rows that were inserted for a call that is refused.
    Remove,
    /// Writing new balances.
    Save,
    /// Setting the savepoint and the lock timeout, or taking them back.
    Savepoint,
}

#[cfg(feature = "postgres")]
impl std::fmt::Display for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Acquire => "get a connection for",
            Self::Begin => "begin the transaction of",
            Self::Commit => "end the transaction of",
            Self::Insert => "insert a row of",
            Self::Lock => "lock a row of",
            Self::Read => "read a row of",
            Self::Remove => "remove the new rows of",
            Self::Save => "save a row of",
            Self::Savepoint => "set the savepoint for",
        })
    }
}
