//! The meaning of PostgreSQL's error codes (SQLSTATE) to a limiter: the only place that knows them.

use std::borrow::Cow;
use std::io;

use sqlx::error::DatabaseError;

use super::columns::Corrupt;
use super::pooler::{self, PoolerError, routine};
use crate::error::{Error, SetupFault, Step};
use crate::store::session;
use crate::values::driver_error::DriverError;
use crate::values::text::Text;
pub(crate) use setup::setup_fault;

mod setup;

/// The error for a driver's error at a step. An error with a remedy of its own gets its own variant.
pub(crate) fn database(step: Step, limit: &str, source: sqlx::Error) -> Error {
    if let Some(Corrupt { fault, .. }) = corrupt(&source) {
        return Error::CorruptRow { limit: limit.to_owned().into(), fault };
    }
    match &source {
        sqlx::Error::Database(error) if is_read_only(&**error) => Error::ReadOnly { source: source.into() },
        _ => setup_or(source, |source| Error::Database { step, limit: Some(limit.to_owned().into()), source }),
    }
}

fn setup_or(source: sqlx::Error, otherwise: impl FnOnce(DriverError) -> Error) -> Error {
    match setup_fault(&source) {
        Some(fault) => Error::Setup { fault, source: source.into() },
        None => otherwise(source.into()),
    }
}

pub(super) fn corrupt(error: &sqlx::Error) -> Option<&Corrupt> {
    let (sqlx::Error::ColumnDecode { source, .. } | sqlx::Error::Decode(source)) = error else { return None };
    source.downcast_ref()
}

/// An error of the driver during a sweep of a table.
pub(crate) fn unswept(table: &'static str, source: sqlx::Error) -> Error {
    setup_or(source, |source| Error::Database { step: Step::Sweep(table), limit: None, source })
}

/// An error of the driver while lapsed calls are given back.
pub(crate) fn unreaped(source: sqlx::Error) -> Error {
    unswept("tollgate.calls", source)
}

/// The error of a server that does not answer.
pub(crate) fn timed_out() -> sqlx::Error {
    std::io::Error::from(std::io::ErrorKind::TimedOut).into()
}

/// The error of a row, or of a stored call, that is locked or missing, and still was not written.
pub(crate) fn unwritten(limit: &Text) -> Error {
    Error::CorruptRow { limit: limit.clone().into(), fault: "a trigger or a policy keeps it from being written" }
}

impl Error {
    /// Whether the same call may succeed when the caller tries the whole transaction again.
    ///
    /// True for lost races: serialization failures (40001), deadlocks (40P01), ids that another call used first
    /// (23505), and [`Error::Moved`]. True for waits that were cut short: [`Error::Locked`], lock timeouts (55P03), and
    /// cancelled statements (57014). True for crowds: [`Error::Overloaded`], [`Error::PoolExhausted`], and too many
    /// connections (53300). True for servers that shut down or start up, and for lost connections, including those of
    /// Citus to its nodes, and for a part that Citus splits. True for PgBouncer's own messages (08P01) about crowds and
    /// about servers that are away, and for those of Supavisor and pgcat about crowds. False for
    /// [`Error::OutcomeUnknown`], because the call may have been carried out, and for [`Error::ReadOnly`], because the
    /// same connection leads to the same server again. False for a closed pool, and for a password, a user, a database
    /// or a setting that is refused.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Locked { .. } | Self::Moved { .. } | Self::Overloaded { .. } | Self::PoolExhausted { .. } => true,
            Self::Database { step, source, .. } => {
                is_passing(source) || is_of_a_split(source) || is_broken_off(*step, source)
            }
            _ => false,
        }
    }

    /// PostgreSQL's code (SQLSTATE), if it answered with one.
    pub(crate) fn sqlstate(&self) -> Option<Cow<'_, str>> {
        match self {
            Self::Database { source, .. }
            | Self::OutcomeUnknown { source: Some(source), .. }
            | Self::ReadOnly { source }
            | Self::Setup { source, .. } => code(source),
            _ => None,
        }
    }

    /// The error for the caller that asked this limit.
    pub(crate) fn concerning(self, asked: &Text) -> Self {
        match self {
            Self::Database { step, source, .. } => Self::Database { step, limit: Some(asked.clone().into()), source },
            Self::OutcomeUnknown { source, .. } => Self::OutcomeUnknown { limit: asked.clone().into(), source },
            Self::Locked { .. } => Self::Locked { limit: asked.clone().into() },
            Self::Moved { .. } => Self::Moved { limit: asked.clone().into() },
            Self::PoolExhausted { .. } => Self::PoolExhausted { limit: asked.clone().into() },
            other => other,
        }
    }

    /// The error of a statement that commits. Where the connection failed, or Citus lost one of its nodes (an internal
    /// error to PostgreSQL), it may have been carried out.
    pub(crate) fn of_commit(self) -> Self {
        let is_internal = |source| code(source).as_deref() == Some("XX000");
        match self {
            Self::Database { limit: Some(limit), source, .. }
                if !is_about_the_statement(&source) || is_internal(&source) =>
            {
                Self::OutcomeUnknown { limit, source: Some(source) }
            }
            other => other,
        }
    }

    /// The error of calls that still waited for the connection: none of them was begun.
    pub(crate) fn of_calls_behind(self) -> Self {
        match self {
            Self::OutcomeUnknown { limit, source: Some(source) } => {
                Self::Database { step: Step::Begin, limit: Some(limit), source }
            }
            other => other,
        }
    }

    /// Whether the connection is as good as before. A connection to a server that accepts no writes is not: that server
    /// may be the old primary, and the connection leads there as long as it is kept. Nor is one that could not begin a
    /// transaction: it may be in one that has failed.
    pub(crate) fn leaves_connection(&self) -> bool {
        match self {
            Self::Database { step: Step::Begin, .. } | Self::OutcomeUnknown { .. } | Self::ReadOnly { .. } => false,
            Self::Database { source, .. } | Self::Setup { source, .. } if session::is_left(source) => false,
            Self::Database { source, .. }
            | Self::Setup { fault: SetupFault::Rights | SetupFault::RowSecurity | SetupFault::Schema, source } => {
                is_about_the_statement(source)
            }
            _ => true,
        }
    }

    /// Whether the database cannot decide, so that [`OnFailure`](crate::OnFailure) answers instead; its rustdoc has the
    /// list. A crowd, missing rights or tables, and faults of this machine are no outage.
    pub(crate) fn is_outage(&self) -> bool {
        match self {
            Self::ReadOnly { .. } => true,
            Self::Database { step, source, .. } => {
                matches!(&**source, sqlx::Error::Io(error) if !is_of_this_machine(error))
                    || is_broken_off(*step, source)
                    || is_about_a_node(source)
                    || pooler_error(source) == Some(PoolerError::Away)
                    || code(source).is_some_and(|code| match &*code {
                        // A setting that somebody left, or a person, ended it.
                        "25P04" | "57014" if source.is_early => false,
                        // It may have waited for a row that a crowd locks.
                        "25P04" => !matches!(step, Step::Insert | Step::Lock),
                        code => is_an_end(code) || matches!(code, "53100" | "57014" | "57P03" | "58030"),
                    })
            }
            _ => false,
        }
    }

    /// Whether a pooler says that it cannot log in to the server. The server may be away or refuse the login, so this
    /// neither is an outage by itself nor ends a known one.
    pub(crate) fn is_failing_login(&self) -> bool {
        matches!(self, Self::Database { source, .. } if pooler_error(source) == Some(PoolerError::Failing))
    }

    /// The error of a statement that was answered before a timeout of ours could have struck.
    pub(crate) fn of_no_timeout(mut self) -> Self {
        if let Self::Database { source, .. } = &mut self {
            source.is_early = true;
        }
        self
    }

    /// Whether somebody else ended the statement before our own timeout.
    pub(crate) fn is_cut_short(&self) -> bool {
        matches!(self, Self::Database { source, .. } if source.is_early && code(source).as_deref() == Some("57014"))
    }

    /// Whether somebody left the session in a transaction, or under a role without rights.
    pub(crate) fn is_left(&self) -> bool {
        matches!(self, Self::Database { source, .. } | Self::Setup { source, .. } if session::is_left(source))
    }

    /// Whether a setting that somebody left in the session may be the cause, and a transaction under settings of our
    /// own would not fail: a timeout, a role without rights, or that sessions are read-only by default.
    pub(crate) fn may_be_a_setting(&self) -> bool {
        match self {
            Self::ReadOnly { .. } | Self::Setup { fault: SetupFault::Rights, .. } => true,
            Self::Database { source, .. } => matches!(code(source).as_deref(), Some("55P03" | "57014")),
            _ => false,
        }
    }

    /// The error of a wait for a row that was cut short.
    pub(crate) fn of_locked_row(self) -> Self {
        match self {
            Self::Database { limit: Some(limit), .. } => Self::Locked { limit },
            other => other,
        }
    }

    /// Whether PostgreSQL or the connection failed: the transaction, if there was one, is aborted.
    pub(crate) fn is_of_the_database(&self) -> bool {
        matches!(self, Self::Database { .. } | Self::ReadOnly { .. } | Self::Setup { .. })
    }

    /// Whether this transaction lost a race and must run again as a whole. To be the first to use an id is such a race,
    /// too (23505), and to ask a part that is then moved or split.
    pub(crate) fn is_lost_race(&self) -> bool {
        match self {
            Self::Moved { .. } => true,
            Self::Database { source, .. } => {
                matches!(code(source).as_deref(), Some("40001" | "40P01" | "23505")) || is_of_a_split(source)
            }
            _ => false,
        }
    }

    /// Whether a failed statement outside of a transaction is worth a try in one. It lost a race, it would have waited
    /// for an id of another transaction, or a setting of the session fails it.
    pub(crate) fn is_lost_swap(&self) -> bool {
        self.is_lost_race() || self.may_be_a_setting()
    }

    /// Whether one row or one key may be the cause: a corrupt row, or data that PostgreSQL rejects (classes 22 and 23),
    /// such as a character that the database's encoding lacks.
    pub(crate) fn is_about_data(&self) -> bool {
        match self {
            Self::CorruptRow { .. } => true,
            Self::Database { source, .. } => {
                !session::is_left(source)
                    && code(source).is_some_and(|code| code.starts_with("22") || code.starts_with("23"))
            }
            _ => false,
        }
    }

    /// Whether the server did not answer a statement or a commit in time.
    pub(crate) fn is_timeout(&self) -> bool {
        matches!(self, Self::Database { source, .. } | Self::OutcomeUnknown { source: Some(source), .. }
            if matches!(&**source, sqlx::Error::Io(error) if error.kind() == io::ErrorKind::TimedOut))
    }

    /// Whether a wait for a row was cut short in a transaction of our own. The cause is the lock timeout, the statement
    /// timeout because waits add up, or a deadlock with a client that locks in another order.
    pub(crate) fn is_lost_wait(&self) -> bool {
        let locks = matches!(self, Self::Database { step: Step::Insert | Step::Lock, .. });
        self.is_lock_timeout()
            || locks
                && (self.is_lost_race()
                    || matches!(self, Self::Database { source, .. } if code(source).as_deref() == Some("57014")))
    }

    /// Whether a lock timeout struck.
    pub(crate) fn is_lock_timeout(&self) -> bool {
        matches!(self, Self::Database { source, .. } if code(source).as_deref() == Some("55P03"))
    }
}

fn is_passing(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Database(_) => {
            is_about_a_node(error)
                || pooler_error(error).is_some_and(|error| error != PoolerError::Refused)
                || code(error).is_some_and(|code| {
                    let races = ["40001", "40P01", "23505", "55P03", "57014"];
                    let lost = ["08000", "08001", "08003", "08006"];
                    is_an_end(&code)
                        || races.contains(&&*code)
                        || lost.contains(&&*code)
                        || matches!(&*code, "53300" | "57P03")
                })
        }
        sqlx::Error::Io(_) | sqlx::Error::PoolTimedOut | sqlx::Error::WorkerCrashed => true,
        _ => false,
    }
}

/// Whether the server went away in the middle of the handshake. The driver reports that only by this text. Any other
/// byte is an answer, such as that of a server or a pooler that accepts no more connections.
fn is_broken_off(step: Step, error: &sqlx::Error) -> bool {
    step == Step::Acquire
        && matches!(error, sqlx::Error::Protocol(said) if said == "unexpected response from SSLRequest: 0x00")
}

/// Whether this machine could not ask. It has too many files open, has no port or no right to connect, or its TLS
/// rejects the other side. None of this means that the server is away.
fn is_of_this_machine(error: &io::Error) -> bool {
    use io::ErrorKind::{
        AddrInUse, AddrNotAvailable, InvalidData, InvalidInput, OutOfMemory, PermissionDenied, Unsupported,
    };
    // ENFILE and EMFILE, which have no kind.
    matches!(error.raw_os_error(), Some(23 | 24))
        || matches!(
            error.kind(),
            AddrInUse | AddrNotAvailable | InvalidData | InvalidInput | OutOfMemory | PermissionDenied | Unsupported
        )
}

/// Whether PostgreSQL reports that the statement failed, and keeps the connection.
fn is_about_the_statement(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some() && !is_about_the_connection(error)
}

/// Whether an error ends the connection: class 08, the end of a session, and a server that accepts no connections
/// (57P03).
fn is_about_the_connection(error: &sqlx::Error) -> bool {
    code(error).is_some_and(|code| is_an_end(&code) || &*code == "57P03" || code.starts_with("08"))
}

/// Whether PostgreSQL ended the connection: because the session was idle (25P03, 57P05), because its transaction took
/// too long (25P04), or because the server stops or an administrator ended the session (57P01, 57P02).
fn is_an_end(code: &str) -> bool {
    matches!(code, "25P03" | "25P04" | "57P01" | "57P02" | "57P05")
}

/// The meaning of a pooler's message, if the error is a pooler's.
fn pooler_error(error: &sqlx::Error) -> Option<PoolerError> {
    let error = error.as_database_error()?;
    match &*error.code()? {
        "08P01" => Some(PoolerError::of(error.message())),
        code => pooler::is_crowd(code, error.message()).then_some(PoolerError::Busy),
    }
}

/// Whether a shard was split before Citus had locked it. Nothing is written, and the next statement finds the new ones.
pub(super) fn is_of_a_split(error: &sqlx::Error) -> bool {
    let Some(error) = error.as_database_error() else { return false };
    error.code().as_deref() == Some("XX000") && error.message().starts_with("could not find valid entry for shard")
}

/// Whether Citus says, in English, that it has lost a node. PostgreSQL's code is that of a lost connection (08006), an
/// internal error (XX000) or an I/O error (58030). The words are those of libpq, of the node that exits, or of Citus
/// itself.
fn is_about_a_node(error: &sqlx::Error) -> bool {
    let words = [
        "marked as essential",
        "closed the connection unexpectedly",
        "SSL SYSCALL error",
        "remote node",
        "failed to COPY to shard",
        "postmaster was shut down",
        "unexpected postmaster exit",
    ];
    let says = |error: &dyn DatabaseError| words.iter().any(|words| error.message().contains(words));
    matches!(code(error).as_deref(), Some("08006" | "58030" | "XX000")) && error.as_database_error().is_some_and(says)
}

/// Whether the server or the transaction accepts no writes. A standby reports this as a feature that it lacks (0A000),
/// a code that has other causes, too. The name of PostgreSQL's routine tells them apart in any language: a standby
/// cannot read unlogged tables, and cannot begin a transaction `read write`.
fn is_read_only(error: &(dyn DatabaseError + 'static)) -> bool {
    match error.code().as_deref() {
        Some("25006") => true,
        Some("0A000") => matches!(routine(error), Some("get_relation_info" | "call_bool_check_hook")),
        _ => false,
    }
}

fn code(error: &sqlx::Error) -> Option<Cow<'_, str>> {
    error.as_database_error()?.code()
}

#[cfg(test)]
mod tests;
