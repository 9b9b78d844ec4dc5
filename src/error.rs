use std::borrow::Cow;
use std::fmt;

use crate::call::CallError;
use crate::key::KeyError;
use crate::tokens::Tokens;
use crate::values::driver_error::DriverError;
use crate::values::text::Text;

/// Why no decision was made. A refusal is not an error but an answer: see [`Decision`](crate::Decision).
///
/// The first group is **bad input**: it is found before any SQL, so the caller's transaction is untouched. The second
/// group is about the **transaction and the rows**, the third about the **gate**, the fourth about the **database**.
/// After [`Error::Database`], [`Error::ReadOnly`] and [`Error::Setup`] PostgreSQL has aborted the transaction, and the
/// caller must roll it back.
///
/// The message has the reason and names the remedy. [`source`](std::error::Error::source) is the driver's error, a
/// `sqlx::Error`, if there is one. The limiter logs each kind of error once a minute, at level `warn`, with its whole
/// [chain](Error::chain). A kind is a variant and PostgreSQL's code.
///
/// A variant may get more fields, so match it with `..`. Another crate can build one with the feature `unstable` alone,
/// as for a test of what a service does with it.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The call breaks a rule: its requests and their options, its verb, or its receipt.
    #[error("the call{} is wrong: {source}", of(" for", limit.as_deref()))]
    #[cfg_attr(not(feature = "unstable"), non_exhaustive)]
    Call {
        /// The limit's name; `None` for a call without a limit.
        limit: Option<Cow<'static, str>>,
        /// The rule. By its raw name it is no `source()`: the message has it.
        r#source: CallError,
    },
    /// The cost can never be granted, however long the caller waits.
    #[error(
        "limit {limit:?} can never grant {asked} tokens at once, at most {max} (raise its capacity or max_reserved, or \
         ask for less)"
    )]
    #[cfg_attr(not(feature = "unstable"), non_exhaustive)]
    CostExceedsCapacity {
        /// The limit's name.
        limit: Cow<'static, str>,
        /// All tokens that the call asks of the limit for one key. A request with [`up_to`](crate::Request::up_to)
        /// counts with its least part.
        asked: Tokens,
        /// The most tokens that can be granted: the capacity, and for a reservation `max_reserved` on top. For a
        /// request with [`leaving`](crate::Request::leaving), the capacity less the tokens that stay.
        max: Tokens,
    },
    /// The key is not valid.
    #[error("the key asked of limit {limit:?} is invalid: {source}")]
    #[cfg_attr(not(feature = "unstable"), non_exhaustive)]
    Key {
        /// The limit's name.
        limit: Cow<'static, str>,
        /// The fault of the key.
        r#source: KeyError,
    },

    /// A row holds a value that the limiter never writes, such as an infinite instant.
    #[error("a row of limit {limit:?} is corrupt: {fault} (repair or delete it)")]
    #[cfg_attr(not(feature = "unstable"), non_exhaustive)]
    CorruptRow {
        /// The limit's name.
        limit: Cow<'static, str>,
        /// The fault of the row.
        fault: &'static str,
    },
    /// A row cannot hold the balance that the call would leave. Nothing was changed.
    #[error("a row of limit {limit:?} cannot hold what the call would make of it: {source}")]
    #[cfg_attr(not(feature = "unstable"), non_exhaustive)]
    DoesNotFit {
        /// The limit's name.
        limit: Cow<'static, str>,
        /// The reason.
        r#source: FitError,
    },
    /// The receipt came too late: its charge has lapsed, or stands for good, or a lease has ended. Or the receipt was
    /// used before; after the lapse the two cannot be told apart. Nothing was changed.
    #[error("the receipt of limit {limit:?} has lapsed, or was used before (debit what was spent after all)")]
    #[cfg_attr(not(feature = "unstable"), non_exhaustive)]
    Lapsed {
        /// The limit's name.
        limit: Cow<'static, str>,
    },
    /// Another transaction locked a row for longer than the lock timeout. Nothing was taken, and the limiter has undone
    /// its own changes to the caller's transaction.
    ///
    /// A limiter without a lock timeout is subject to the `lock_timeout` of the session. When that strikes, the limiter
    /// returns this error for a limit with shards, and on Citus for a call about several parts or both tables.
    /// Otherwise it returns [`Error::Database`].
    #[error("another transaction locks a row of limit {limit:?} for too long (try again, and let it commit sooner)")]
    #[cfg_attr(not(feature = "unstable"), non_exhaustive)]
    Locked {
        /// The limit's name; of several limits, the first in lock order.
        limit: Cow<'static, str>,
    },
    /// Citus moved a part to another node after the call had locked its rows, and others changed one of them there.
    /// Nothing was written, and the caller's transaction is usable. A gate tries again by itself, a few times.
    #[error("a row of limit {limit:?} was moved to another node and changed there before it was written (try again)")]
    #[cfg_attr(not(feature = "unstable"), non_exhaustive)]
    Moved {
        /// The limit's name; of several limits, the first in lock order whose part was moved.
        limit: Cow<'static, str>,
    },
    /// The connection is in no transaction, although the caller vouched for one with
    /// [`BegunByHand`](crate::BegunByHand), or although sqlx counts one, which was ended by hand. Without a transaction
    /// no lock lasts until the decision is written. Nothing was taken.
    #[error("the connection is in no transaction (call `begin` first)")]
    NotInTransaction,
    /// Another call was granted under this id before: with other limits, keys, costs or options. Nothing was taken.
    #[error("the id of the call for limit {limit:?} was granted another call (use an id for each)")]
    #[cfg_attr(not(feature = "unstable"), non_exhaustive)]
    OnceMismatch {
        /// The limit's name.
        limit: Cow<'static, str>,
    },
    /// The receipt was settled or cancelled before. Or its call or its lease is no longer there: it was swept, rolled
    /// back, reset, or lost in a crash with an [`ephemeral`](crate::Limit::ephemeral) row. Or a call repeats the
    /// [id](crate::Call::once) of a lease that is over. Nothing was changed.
    #[error("the receipt of limit {limit:?} stands for no charge: it was used before, or is not known any more")]
    #[cfg_attr(not(feature = "unstable"), non_exhaustive)]
    ReceiptUsed {
        /// The limit's name.
        limit: Cow<'static, str>,
    },
    /// The tokens are ready, so they may have been spent. Nothing was changed: a call that lapses does so as before.
    #[error("the tokens of limit {limit:?} are ready, and too late to cancel (give them back with `settle(grant, 0)`)")]
    #[cfg_attr(not(feature = "unstable"), non_exhaustive)]
    TooLateToCancel {
        /// The limit's name.
        limit: Cow<'static, str>,
    },

    /// A gate sent the commit of the call and got no answer. The tokens may or may not have been taken.
    ///
    /// The answer would have been a grant or a change. A retry may take the tokens twice, unless the call has an
    /// [id](crate::Call::once). Giving up may waste them. In neither case is more taken than the limit allows.
    #[error(
        "nobody knows whether limit {limit:?} was charged: no answer came to the commit (look at the balance, or count \
         it as charged)"
    )]
    #[cfg_attr(not(feature = "unstable"), non_exhaustive)]
    OutcomeUnknown {
        /// The limit's name; of several limits, the first in lock order.
        limit: Cow<'static, str>,
        /// The driver's error; `None` if the gate itself ended.
        source: Option<DriverError>,
    },
    /// A gate has more calls than it can decide: its queue is full, or the call waited too long in the queue. Nothing
    /// was taken.
    #[error("more calls wait for limit {limit:?} than its gate can decide (try again later)")]
    #[cfg_attr(not(feature = "unstable"), non_exhaustive)]
    Overloaded {
        /// The limit's name.
        limit: Cow<'static, str>,
    },
    /// A gate's pool had no free connection within [`acquire_timeout`](crate::GateBuilder::acquire_timeout), although
    /// the server answers: other users of the pool hold all connections. Nothing was taken.
    #[error(
        "the pool had no connection for limit {limit:?} in time, though the server answers (enlarge the pool, hold its \
         connections for less long, or look at its hooks)"
    )]
    #[cfg_attr(not(feature = "unstable"), non_exhaustive)]
    PoolExhausted {
        /// The limit's name.
        limit: Cow<'static, str>,
    },
    /// The gate was [closed](crate::Gate::close), and the call would wait or hold a lease. Or the gate's runtime ended
    /// before the call's turn came, or the caller is on no runtime. Nothing was taken.
    #[error(
        "the gate is closed or has no runtime to work on (ask it before it is closed, from a tokio runtime that is \
         alive)"
    )]
    Stopped,

    /// PostgreSQL or the connection failed.
    #[error("could not {step}{}: {}", of("", limit.as_deref()), **source)]
    #[cfg_attr(not(feature = "unstable"), non_exhaustive)]
    Database {
        /// The step that failed.
        step: Step,
        /// The limit's name; of several limits, the first in lock order. `None` for a sweep, which is about all limits.
        limit: Option<Cow<'static, str>>,
        /// The driver's error.
        source: DriverError,
    },
    /// The server accepts no writes: it is a standby, or the transaction is read-only. Nothing was taken.
    ///
    /// After a failover a pool may hold connections to the old primary. A gate closes such a connection and sends its
    /// next batch over a new one. With a [`Limiter`](crate::Limiter) this is up to the owner of the connection.
    #[error(
        "the server takes no writes: it is a standby, or the transaction is read-only (connect to the primary, or \
         begin `read write`)"
    )]
    #[cfg_attr(not(feature = "unstable"), non_exhaustive)]
    ReadOnly {
        /// The driver's error.
        source: DriverError,
    },
    /// The tables, their rights or the connections are not set up as this process needs them. Nothing was taken.
    #[error("{fault}")]
    #[cfg_attr(not(feature = "unstable"), non_exhaustive)]
    Setup {
        /// The fault to mend.
        fault: SetupFault,
        /// The driver's error.
        source: DriverError,
    },
}

impl Error {
    /// The fault of a call about a limit.
    pub(crate) fn of_call(limit: &Text, source: CallError) -> Self {
        Self::Call { limit: Some(limit.clone().into()), source }
    }

    /// The name of the limit that it is about; of several limits, the first in lock order.
    #[must_use]
    pub fn limit(&self) -> Option<&str> {
        match self {
            Self::Call { limit, .. } | Self::Database { limit, .. } => limit.as_deref(),
            Self::CorruptRow { limit, .. }
            | Self::CostExceedsCapacity { limit, .. }
            | Self::DoesNotFit { limit, .. }
            | Self::Key { limit, .. }
            | Self::Lapsed { limit }
            | Self::Locked { limit }
            | Self::Moved { limit }
            | Self::OnceMismatch { limit }
            | Self::OutcomeUnknown { limit, .. }
            | Self::Overloaded { limit }
            | Self::PoolExhausted { limit }
            | Self::ReceiptUsed { limit }
            | Self::TooLateToCancel { limit } => Some(limit),
            _ => None,
        }
    }

    /// The error and its causes in one line, for logs.
    #[must_use]
    pub fn chain(&self) -> String {
        chain(self)
    }

    /// Whether the call itself is wrong: it fails before any SQL, and fails again at each retry. One exception: a call
    /// with an id may be a repeat, so the database looks for the id before the cost is checked.
    #[must_use]
    pub fn is_bad_input(&self) -> bool {
        matches!(self, Self::Call { .. } | Self::CostExceedsCapacity { .. } | Self::Key { .. })
    }

    /// Whether the tables, their rights or the connections are set up wrongly. Each call fails until somebody mends
    /// that, so a retry is of no use. An outage, a crowd and a refused password are no such fault.
    #[must_use]
    pub fn is_setup(&self) -> bool {
        matches!(self, Self::Setup { .. })
    }
}

/// A word, and then the limit by its name; empty without a limit.
fn of(word: &str, limit: Option<&str>) -> String {
    limit.map_or_else(String::new, |limit| format!("{word} limit {limit:?}"))
}

/// Why a row cannot hold the balance that a call would leave.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum FitError {
    /// The balance of a wallet would be larger than fits, about nine million million tokens. To store less would lose
    /// the rest.
    #[error("the balance would be larger than fits (debit it first, and try again)")]
    BalanceTooLarge,
    /// The debt would be deeper than fits, about nine million million tokens. To store less would forgive the rest.
    #[error("the debt would be deeper than fits")]
    DebtTooDeep,
    /// The limit is a wallet by its definition but not by its row, or the reverse. Capacity cannot be read as money.
    #[error("it is a wallet in its row or in its definition, and not in the other (use another name)")]
    MixedMoney,
}

/// A fault of the tables, their rights or the connections, with which this process cannot work.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SetupFault {
    /// A prepared statement is missing when it is executed, or is another client's: the connection goes through a
    /// pooler in transaction mode that does not follow named statements.
    ///
    /// PgBouncer follows them since 1.21, unless `max_prepared_statements` is 0. Other poolers need
    /// [`Limiter::unnamed_statements`](crate::Limiter::unnamed_statements) and
    /// [`GateBuilder::unnamed_statements`](crate::GateBuilder::unnamed_statements).
    #[error(
        "a prepared statement was not there or was somebody else's: the pooler does not follow named ones (say \
         `unnamed_statements()`, or set PgBouncer's max_prepared_statements)"
    )]
    NamedStatements,
    /// The role lacks a right: on the tables, their schema or the database.
    #[error(
        "this role lacks a right (`tollgate migrate up --grant ROLE` grants what a service needs; `tollgate doctor` \
         names what is missing)"
    )]
    Rights,
    /// Row security is switched on for a table and may hide rows from this role. A hidden row must not count as a
    /// missing one.
    #[error(
        "row security hides rows from this role (`alter table … disable row level security`, or give the role \
         `bypassrls`; `tollgate doctor` names the tables)"
    )]
    RowSecurity,
    /// The tables are missing, or older than this library.
    #[error("the tollgate schema is missing or too old (run `tollgate migrate up`)")]
    Schema,
    /// The tables are distributed over another number of parts than this process was given.
    #[error(
        "the tables are not distributed over as many parts as this process says (say `.parts(n)` as `tollgate \
         distribute` did, nothing on plain PostgreSQL)"
    )]
    WrongParts,
}

/// An error and its causes in one line. A cause that the text before already ends with is not repeated.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let (mut said, mut cause) = (error.to_string(), error.source());
    while let Some(error) = cause {
        let reason = error.to_string();
        if !said.ends_with(&reason) {
            said = format!("{said}: {reason}");
        }
        cause = error.source();
    }
    said
}

/// A step of the limiter at which the database failed.
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
    /// Setting the savepoint and the lock timeout, or undoing them.
    Savepoint,
    /// Sweeping a table, or giving back its lapsed calls. The work done before stays done.
    Sweep(&'static str),
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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
            Self::Sweep(table) => return write!(f, "sweep {table}"),
        })
    }
}
