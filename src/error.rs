use std::borrow::Cow;
#[cfg(feature = "postgres")]
use std::sync::Arc;

use crate::key::KeyError;
use crate::tokens::{Tokens, TokensError};

/// Why no decision was made. A refusal is not among these: it is an answer, see [`Decision`](crate::Decision).
///
/// The first group is **bad input**: found before any SQL, so the caller's transaction is untouched. The second group is
/// about the **transaction and the rows**, the third about the **database**; after [`Error::Database`],
/// [`Error::NamedStatements`], [`Error::ReadOnly`] and [`Error::Schema`] PostgreSQL has aborted the transaction, and the caller
/// rolls back.
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

    /// Too many want the same: another transaction held a row for longer than the lock timeout, or a gate's queue is full.
    /// Nothing was taken, and a caller's own transaction is usable: what the limiter did in it is undone.
    ///
    /// Rarely, of a limit with shards, also without a lock timeout: others emptied the one that was to be taken from in the very
    /// moment in which it was locked, and held the rest; or other releases, with another number of shards, took the key again and
    /// again. A row may stay locked then until the transaction ends.
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
        source: Arc<sqlx::Error>,
    },
    /// A statement that was prepared is not there when it is executed, or is somebody else's: between here and PostgreSQL is a
    /// pooler in transaction mode that does not follow named statements. Nothing was taken.
    ///
    /// PgBouncer follows them from 1.21 on, where `max_prepared_statements` is not 0. Others want
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
    /// The answer would have been a grant, or a change. To try again may take the tokens twice, to give up may have taken
    /// them in vain; neither ever takes more than the limit allows.
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
    /// After a failover a pool may hold connections to what was the primary: a gate closes such a connection, so that its
    /// next batch asks on a new one; a [`Limiter`](crate::Limiter) leaves that to the owner of the connection.
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
}

impl Error {
    /// Whether the same call may succeed when the whole transaction is tried again.
    ///
    /// True for lost races (serialization failures 40001, deadlocks 40P01), waits that were cut short (lock timeouts
    /// 55P03 and [`Error::Busy`], cancelled statements 57014), servers that are shutting down or starting up, and lost connections. False for
    /// [`Error::OutcomeUnknown`], which may have been carried out, and for [`Error::ReadOnly`], for the same connection leads to
    /// the same server again.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Busy => true,
            // The server went away in the middle of the handshake, of which the driver says no more.
            #[cfg(feature = "postgres")]
            Self::Database { step: Step::Acquire, source, .. } if matches!(**source, sqlx::Error::Protocol(_)) => true,
            #[cfg(feature = "postgres")]
            Self::Database { source, .. } | Self::Sweep { source, .. } => is_passing(source),
            _ => false,
        }
    }

    /// The same, as the error of a caller who asked this limit.
    #[cfg(feature = "postgres")]
    pub(crate) fn concerning(self, asked: &crate::text::Text) -> Self {
        match self {
            Self::Database { step, source, .. } => Self::Database { step, limit: asked.clone().into(), source },
            Self::OutcomeUnknown { source, .. } => Self::OutcomeUnknown { limit: asked.clone().into(), source },
            other => other,
        }
    }

    /// The same, as the error of a statement that commits: where the connection failed, or Citus lost one of its nodes (an
    /// internal error to PostgreSQL), it may have been carried out.
    #[cfg(feature = "postgres")]
    pub(crate) fn of_commit(self) -> Self {
        let is_internal = |source| code(source).as_deref() == Some("XX000");
        match self {
            Self::Database { limit, source, .. } if !is_about_the_statement(&source) || is_internal(&source) => {
                Self::OutcomeUnknown { limit, source: Some(source) }
            }
            other => other,
        }
    }

    /// Whether the connection is as good as before. One to a server that takes no writes is not: it may have been the primary's,
    /// and would lead there for as long as it is kept.
    #[cfg(feature = "postgres")]
    pub(crate) fn leaves_connection(&self) -> bool {
        match self {
            Self::Database { source, .. } | Self::Schema { source } => is_about_the_statement(source),
            Self::OutcomeUnknown { .. } | Self::ReadOnly { .. } => false,
            _ => true,
        }
    }

    /// Whether it was PostgreSQL that failed, or the way to it: the transaction, if there was one, is aborted.
    #[cfg(feature = "postgres")]
    pub(crate) fn is_of_the_database(&self) -> bool {
        matches!(
            self,
            Self::Database { .. } | Self::NamedStatements { .. } | Self::ReadOnly { .. } | Self::Schema { .. }
        )
    }

    /// Whether another transaction won a race that only the whole transaction can run again.
    #[cfg(feature = "postgres")]
    pub(crate) fn is_lost_race(&self) -> bool {
        matches!(self, Self::Database { source, .. } | Self::Sweep { source, .. }
            if matches!(code(source).as_deref(), Some("40001" | "40P01")))
    }

    /// Whether what could not be swapped is worth a try in a transaction: it lost a race, sessions are read-only unless they
    /// say otherwise, or a row was not written, of which the swap complains as of a number (22P02).
    #[cfg(feature = "postgres")]
    pub(crate) fn is_lost_swap(&self) -> bool {
        let is_unwritten = |source| code(source).as_deref() == Some("22P02");
        self.is_lost_race()
            || matches!(self, Self::ReadOnly { .. })
            || matches!(self, Self::Database { source, .. } if is_unwritten(source))
    }

    /// Whether one row or one key may be the cause: one that is corrupt, or that PostgreSQL finds fault with (classes 22 and
    /// 23), such as a character that the database's encoding lacks.
    #[cfg(feature = "postgres")]
    pub(crate) fn is_about_data(&self) -> bool {
        match self {
            Self::CorruptRow { .. } => true,
            Self::Database { source, .. } => {
                code(source).is_some_and(|code| code.starts_with("22") || code.starts_with("23"))
            }
            _ => false,
        }
    }

    /// Whether the server did not answer in time.
    #[cfg(feature = "postgres")]
    pub(crate) fn is_timeout(&self) -> bool {
        matches!(self, Self::Database { source, .. }
            if matches!(&**source, sqlx::Error::Io(error) if error.kind() == std::io::ErrorKind::TimedOut))
    }

    /// Whether a lock timeout struck.
    #[cfg(feature = "postgres")]
    pub(crate) fn is_lock_timeout(&self) -> bool {
        matches!(self, Self::Database { source, .. } if code(source).as_deref() == Some("55P03"))
    }
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
    /// Inserting or locking the rows of several requests.
    Claim,
    /// Ending the gate's own transaction.
    Commit,
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
            Self::Acquire => "get a connection for",
            Self::Begin => "begin the transaction of",
            Self::Claim => "claim the rows of",
            Self::Commit => "end the transaction of",
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
        sqlx::Error::Database(_) => {
            is_about_the_connection(error)
                || matches!(code(error).as_deref(), Some("40001" | "40P01" | "55P03" | "57014"))
        }
        sqlx::Error::Io(_) | sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed | sqlx::Error::WorkerCrashed => true,
        _ => false,
    }
}

/// Whether PostgreSQL says that the statement failed, and goes on.
#[cfg(feature = "postgres")]
fn is_about_the_statement(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some() && !is_about_the_connection(error)
}

/// Whether PostgreSQL speaks of the connection (class 08), or of itself stopping or starting (57P0x), rather than of the
/// statement.
#[cfg(feature = "postgres")]
fn is_about_the_connection(error: &sqlx::Error) -> bool {
    code(error).is_some_and(|code| matches!(&*code, "57P01" | "57P02" | "57P03") || code.starts_with("08"))
}

#[cfg(feature = "postgres")]
fn code(error: &sqlx::Error) -> Option<Cow<'_, str>> {
    error.as_database_error()?.code()
}
