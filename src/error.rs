use std::borrow::Cow;

use crate::key::KeyError;
use crate::tokens::{Tokens, TokensError};

/// Why no decision was made. A refusal is not among these: it is an answer, see [`Decision`](crate::Decision).
///
/// The first group is **bad input**: found before any SQL, so the caller's transaction is untouched. The second group is
/// about the **transaction and the rows**, the third about the **database**; after [`Error::Database`] and [`Error::Schema`]
/// PostgreSQL has aborted the transaction, and the caller rolls back.
#[derive(Debug, thiserror::Error)]
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
    /// A call that asks nothing. An empty list of limits grants nothing by itself: whoever means that skips the call.
    #[error("no limit was asked (skip the call where nothing is limited)")]
    NothingAsked,

    /// Another transaction held a row for longer than the limiter's lock timeout. The caller's transaction is usable: what
    /// the limiter did in it is undone.
    #[error(
        "another transaction held a row for longer than the lock timeout (retry, or consume later and commit sooner)"
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
    /// The connection is in no transaction, so nothing could be locked for long enough to decide. Nothing was taken.
    #[error("the connection is in no transaction (call `begin` first)")]
    NotInTransaction,
    /// A tracked receipt was settled or cancelled before. Nothing was changed.
    #[error("the receipt was used before")]
    ReceiptUsed,

    /// PostgreSQL or the connection failed.
    #[cfg(feature = "postgres")]
    #[error("could not {step} limit {limit:?}: {source}")]
    Database {
        /// What the limiter was about to do.
        step: Step,
        /// The limit's name; of several the first in lock order.
        limit: Cow<'static, str>,
        /// What the driver reported.
        source: sqlx::Error,
    },
    /// The tables are missing, or older than this library.
    #[cfg(feature = "postgres")]
    #[error("the tollgate schema is missing or too old (run `tollgate migrate up`): {source}")]
    Schema {
        /// What the driver reported.
        source: sqlx::Error,
    },
}

impl Error {
    /// Whether the same call may succeed when the whole transaction is tried again.
    ///
    /// True for lost races (serialization failures 40001, deadlocks 40P01), waits that were cut short (lock timeouts
    /// 55P03 and [`Error::Busy`], cancelled statements 57014), servers that are shutting down or starting up, and lost connections.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Busy => true,
            #[cfg(feature = "postgres")]
            Self::Database { source, .. } => is_passing(source),
            _ => false,
        }
    }
}

/// What the limiter was doing when the database failed.
#[cfg(feature = "postgres")]
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum Step {
    /// Finding out whether there is a transaction.
    Begin,
    /// Inserting or locking the rows of several requests.
    Claim,
    /// Locking rows, or inserting the first row of a key.
    Lock,
    /// Reading rows without a lock.
    Read,
    /// Deleting the rows that were inserted for a call that is refused.
    Release,
    /// Writing new balances, and using up tracked receipts.
    Save,
    /// Setting the savepoint and the lock timeout, or taking them back.
    Savepoint,
    /// Inserting the row of a tracked receipt.
    Track,
}

#[cfg(feature = "postgres")]
impl std::fmt::Display for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Begin => "find the transaction of",
            Self::Claim => "claim the rows of",
            Self::Lock => "lock a row of",
            Self::Read => "read a row of",
            Self::Release => "release the new rows of",
            Self::Save => "save a row of",
            Self::Savepoint => "set the savepoint for",
            Self::Track => "track a charge of",
        })
    }
}

#[cfg(feature = "postgres")]
fn is_passing(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Database(error) => error.code().is_some_and(|code| {
            // Class 08 is about the connection, 57P0x about a server that stops or starts.
            matches!(&*code, "40001" | "40P01" | "55P03" | "57014" | "57P01" | "57P02" | "57P03")
                || code.starts_with("08")
        }),
        sqlx::Error::Io(_) | sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed | sqlx::Error::WorkerCrashed => true,
        _ => false,
    }
}
