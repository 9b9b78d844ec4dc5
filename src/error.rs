use std::borrow::Cow;
use std::fmt;

use crate::call_error::CallError;
use crate::driver_error::DriverError;
use crate::key::KeyError;
use crate::text::Text;
use crate::tokens::Tokens;

/// Why no decision was made. A refusal is not among these: it is an answer, see [`Decision`](crate::Decision).
///
/// The first group is **bad input**: found before any SQL, so the caller's transaction is untouched. The second group
/// is about the **transaction and the rows**, the third about the **gate**, the fourth about the **database**. After
/// [`Error::Database`], [`Error::ReadOnly`] and [`Error::Setup`] PostgreSQL has aborted the transaction, and the caller
/// rolls back.
///
/// The message names the remedy and leaves the cause to [`source`](std::error::Error::source), which is a
/// `sqlx::Error` for what the driver reported. So print the whole chain.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The call breaks a rule: its requests and their options, its verb, or its receipt.
    #[error("the call{} is wrong", of(" for", limit.as_deref()))]
    Call {
        /// The limit's name; `None` where the call asks none.
        limit: Option<Cow<'static, str>>,
        /// The rule.
        source: CallError,
    },
    /// A cost that could never be granted, however long the caller waits.
    #[error(
        "limit {limit:?} can never grant {asked} tokens at once, at most {max} (raise its capacity or max_reserved, or \
         ask for less)"
    )]
    CostExceedsCapacity {
        /// The limit's name.
        limit: Cow<'static, str>,
        /// All tokens that the call asks for one key. A request with [`up_to`](crate::Request::up_to) counts by its
        /// least.
        asked: Tokens,
        /// The most that can be granted: the capacity, and for a reservation `max_reserved` on top. Or the capacity
        /// less what is [left](crate::Request::leaving).
        max: Tokens,
    },
    /// A key that cannot name anybody.
    #[error("the key asked of limit {limit:?} is invalid")]
    Key {
        /// The limit's name.
        limit: Cow<'static, str>,
        /// The fault of the key.
        source: KeyError,
    },

    /// A row holds what the limiter never writes, such as an infinite instant.
    #[error("a row of limit {limit:?} is corrupt: {fault} (repair or delete it)")]
    CorruptRow {
        /// The limit's name.
        limit: Cow<'static, str>,
        /// The fault of the row.
        fault: &'static str,
    },
    /// A row cannot hold what the call would make of it. Nothing was changed.
    #[error("a row of limit {limit:?} cannot hold what the call would make of it")]
    DoesNotFit {
        /// The limit's name.
        limit: Cow<'static, str>,
        /// Why not.
        source: FitError,
    },
    /// The receipt came too late: its charge has lapsed, or stands for good, or a lease has ended. Or it was used,
    /// which after the lapse nobody knows any more. Nothing was changed.
    #[error("the receipt of limit {limit:?} has lapsed, or was used before (debit what was spent after all)")]
    Lapsed {
        /// The limit's name.
        limit: Cow<'static, str>,
    },
    /// Another transaction locked a row for longer than the lock timeout. Nothing was taken, and the limiter's own
    /// changes to the caller's transaction are undone.
    ///
    /// A limiter without a lock timeout may meet the `lock_timeout` of the session. Then it returns this error for a
    /// limit with shards, and on Citus for a call about several parts or both tables; else [`Error::Database`].
    #[error("another transaction locks a row of limit {limit:?} for too long (try again, and let it commit sooner)")]
    Locked {
        /// The limit's name; of several the first in lock order.
        limit: Cow<'static, str>,
    },
    /// The connection is in no transaction, whatever its caller said by [`BegunByHand`](crate::BegunByHand), or sqlx
    /// counts one that was ended by hand. So nothing could be locked for long enough to decide. Nothing was taken.
    #[error("the connection is in no transaction (call `begin` first)")]
    NotInTransaction,
    /// The same id was granted another call before: other limits, keys, costs or options. Nothing was taken.
    #[error("the id of the call for limit {limit:?} was granted another call (use an id for each)")]
    OnceMismatch {
        /// The limit's name.
        limit: Cow<'static, str>,
    },
    /// The receipt was settled or cancelled before, or its call or its lease is not known any more: swept, rolled back,
    /// reset, or lost in a crash with an [`ephemeral`](crate::Limit::ephemeral) row. Or a call asks anew with the
    /// [id](crate::Request::once) of a lease that is over. Nothing was changed.
    #[error("the receipt of limit {limit:?} stands for no charge: it was used before, or is not known any more")]
    ReceiptUsed {
        /// The limit's name.
        limit: Cow<'static, str>,
    },
    /// A charge that lapses is ready, so it may have been spent and cannot be cancelled. Nothing was changed, and it
    /// lapses as before.
    #[error("the charge of limit {limit:?} is ready, and too late to cancel (settle it at what was spent, maybe 0)")]
    TooLateToCancel {
        /// The limit's name.
        limit: Cow<'static, str>,
    },

    /// A gate asked to commit the call and heard no answer: the tokens were taken, or they were not.
    ///
    /// The answer would have been a grant or a change. A retry may take the tokens twice, unless the request has an
    /// [id](crate::Request::once); giving up may waste them. Neither ever takes more than the limit allows.
    #[error(
        "nobody knows whether limit {limit:?} was charged: no answer came to the commit (look at the balance, or count \
         it as charged)"
    )]
    OutcomeUnknown {
        /// The limit's name; of several the first in lock order.
        limit: Cow<'static, str>,
        /// The driver's error; `None` where the gate itself came to an end.
        source: Option<DriverError>,
    },
    /// A gate has more calls than it can decide: its queue is full, or the call waited in it for too long. Nothing was
    /// taken.
    #[error("more calls wait for limit {limit:?} than its gate can decide (try again later)")]
    Overloaded {
        /// The limit's name.
        limit: Cow<'static, str>,
    },
    /// A gate's pool had no connection to give for [`acquire_timeout`](crate::GateBuilder::acquire_timeout), though the
    /// server answers: others hold them all. Nothing was taken.
    #[error(
        "the pool had no connection for limit {limit:?} in time, though the server answers (enlarge the pool, hold its \
         connections for less long, or look at its hooks)"
    )]
    PoolExhausted {
        /// The limit's name.
        limit: Cow<'static, str>,
    },
    /// The gate was [closed](crate::Gate::close) and the call would wait or hold a lease, or the runtime that it worked
    /// on ended before the call's turn came, or the caller is on no runtime. Nothing was taken.
    #[error(
        "the gate is closed or has no runtime to work on (ask it before it is closed, from a tokio runtime that is \
         alive)"
    )]
    Stopped,

    /// PostgreSQL or the connection failed.
    #[error("could not {step}{}", of("", limit.as_deref()))]
    Database {
        /// The step that failed.
        step: Step,
        /// The limit's name; of several the first in lock order. `None` of a sweep, which is about all limits.
        limit: Option<Cow<'static, str>>,
        /// The driver's error.
        source: DriverError,
    },
    /// The server takes no writes: it is a standby, or the transaction is read-only. Nothing was taken.
    ///
    /// After a failover a pool may hold connections to the old primary. A gate closes such a connection and asks its
    /// next batch on a new one; a [`Limiter`](crate::Limiter) leaves that to the owner of the connection.
    #[error(
        "the server takes no writes: it is a standby, or the transaction is read-only (connect to the primary, or \
         begin `read write`)"
    )]
    ReadOnly {
        /// The driver's error.
        source: DriverError,
    },
    /// The tables, their rights or the connections are not set up as this process needs them. Nothing was taken.
    #[error("{fault}")]
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

    /// The name of the limit that it is about; of several the first in lock order.
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
            | Self::OnceMismatch { limit }
            | Self::OutcomeUnknown { limit, .. }
            | Self::Overloaded { limit }
            | Self::PoolExhausted { limit }
            | Self::ReceiptUsed { limit }
            | Self::TooLateToCancel { limit } => Some(limit),
            _ => None,
        }
    }

    /// The error and its causes, in one line, as logs want them.
    #[must_use]
    pub fn chain(&self) -> String {
        chain(self)
    }

    /// Whether the call itself is wrong: it fails before any SQL, and fails again however often it is tried. A call
    /// with an id may be a repeat, so the database looks for the id before the cost is checked.
    #[must_use]
    pub fn is_bad_input(&self) -> bool {
        matches!(self, Self::Call { .. } | Self::CostExceedsCapacity { .. } | Self::Key { .. })
    }
}

/// A limit by its name, if there is one, behind a word.
fn of(word: &str, limit: Option<&str>) -> String {
    limit.map_or_else(String::new, |limit| format!("{word} limit {limit:?}"))
}

/// Why a row cannot hold what a call would make of it.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum FitError {
    /// A wallet would hold more than fits, about nine million million tokens: storing less would lose the rest.
    #[error("the balance would be larger than fits (debit it first, and try again)")]
    BalanceTooLarge,
    /// A debt too deep for a balance, about nine million million tokens: storing less would forgive the rest.
    #[error("the debt would be deeper than fits")]
    DebtTooDeep,
    /// A wallet's definition meets the row of another kind of limit, or the reverse: capacity is not money.
    #[error("it is a wallet in its row or in its definition, and not in the other (use another name)")]
    MixedMoney,
}

/// A fault of the tables, their rights or the connections, by which this process cannot work.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SetupFault {
    /// A prepared statement is not there when it is executed, or is somebody else's: a pooler in transaction mode sits
    /// before PostgreSQL and does not follow named statements.
    ///
    /// PgBouncer follows them from 1.21 on, unless `max_prepared_statements` is 0. Other poolers need
    /// [`Limiter::unnamed_statements`](crate::Limiter::unnamed_statements) and
    /// [`GateBuilder::unnamed_statements`](crate::GateBuilder::unnamed_statements).
    #[error(
        "a prepared statement was not there or was somebody else's: the pooler does not follow named ones (say \
         `unnamed_statements()`, or set PgBouncer's max_prepared_statements)"
    )]
    NamedStatements,
    /// Row security is switched on for a table and hides rows from this role, or may: a row that is hidden must not
    /// count as one that is missing.
    #[error(
        "row security hides rows from this role (`alter table … disable row level security`, or give the role \
         `bypassrls`; `tollgate doctor` names the tables)"
    )]
    RowSecurity,
    /// The tables are missing, or older than this library.
    #[error("the tollgate schema is missing or too old (run `tollgate migrate up`)")]
    Schema,
    /// The tables are distributed over another number of parts than this process says.
    #[error(
        "the tables are not distributed over as many parts as this process says (say `.parts(n)` as `tollgate \
         distribute` did, nothing on plain PostgreSQL)"
    )]
    WrongParts,
}

/// An error and its causes, in one line. Some errors tell their causes themselves.
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
    /// Setting the savepoint and the lock timeout, or taking them back.
    Savepoint,
    /// Sweeping a table, or giving back what lapsed in it. The work until then stays done.
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
