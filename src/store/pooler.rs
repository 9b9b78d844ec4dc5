//! Errors that a pooler causes: those of transaction mode, the words of PgBouncer, which gives nearly all of its own
//! errors the same code (08P01), and those of Supavisor and pgcat about crowds.

use sqlx::error::DatabaseError;
use sqlx::postgres::PgDatabaseError;

/// The meaning of a pooler's own error.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum PoolerError {
    /// The server behind it is away, or it shuts down itself.
    Away,
    /// Logins at the server fail: it is away, or it refuses them. The pooler does not tell which.
    Failing,
    /// It is overloaded, or it ended this connection: another try may succeed.
    Busy,
    /// Everything else: a wrong password, user, database or setting, and unknown words.
    Refused,
}

impl PoolerError {
    /// Reads a message. The whole message must match, because a client chooses some of the names in messages.
    pub(super) fn of(message: &str) -> Self {
        // Since 1.24 PgBouncer quotes why the login failed, in up to 127 bytes in all.
        let quoted = message.strip_prefix("server login has been failing, cached error: ");
        let (words, is_quoted) = match quoted {
            Some(quoted) => (quoted.strip_suffix(" (server_login_retry)").unwrap_or(quoted), true),
            None => (message, false),
        };
        if SERVER_AWAY.contains(&words) || if is_quoted { CONNECT_FAILED } else { AWAY }.contains(&words) {
            Self::Away
        } else if words == "server login has been failing, try again later (server_login_retry)" {
            Self::Failing
        } else if SERVER_FULL.iter().any(|full| words.starts_with(full)) || !is_quoted && BUSY.contains(&words) {
            Self::Busy
        } else {
            Self::Refused
        }
    }
}

/// Whether a pooler in transaction mode has lent out another connection than the one on which a statement was prepared.
/// There its name is unknown, or names a statement of another client.
pub(super) fn is_misprepared(error: &(dyn DatabaseError + 'static)) -> bool {
    match error.code().as_deref() {
        Some("26000" | "42P05") => true,
        // It has another number of parameters.
        Some("08P01") => routine(error) == Some("exec_bind_message"),
        _ => false,
    }
}

/// The name of the routine of PostgreSQL in which an error arose: it is the same in any language.
pub(super) fn routine<'e>(error: &'e (dyn DatabaseError + 'static)) -> Option<&'e str> {
    error.try_downcast_ref::<PgDatabaseError>()?.routine()
}

/// Whether Supavisor says that it has too many clients (XX000), or pgcat that it bans each of its servers for a while
/// (58000), as it does in a crowd.
pub(super) fn is_crowd(code: &str, message: &str) -> bool {
    matches!(code, "XX000" | "58000") && CROWDS.iter().any(|words| message.starts_with(words))
}

const CROWDS: &[&str] = &[
    "(EMAXCONN",
    "Max client connections reached",
    "MaxClientsInSessionMode",
    "could not get connection from the pool - AllServersDown",
    "max client connections reached",
];

const AWAY: &[&str] = &[
    "client_login_timeout (server down)",
    "pooler is shutting down",
    "server conn crashed?",
    "server connection closed",
    "server shutting down",
];

/// PgBouncer's own messages about a connection to the server that it does not have.
const CONNECT_FAILED: &[&str] =
    &["cannot connect", "connect failed", "connect timeout", "server DNS lookup failed", "server conn crashed?"];

/// PostgreSQL's messages under 57P03. Before 1.20 PgBouncer sends them under its own code.
const SERVER_AWAY: &[&str] = &[
    "the database system is in recovery mode",
    "the database system is not accepting connections",
    "the database system is not yet accepting connections",
    "the database system is shutting down",
    "the database system is starting up",
];

/// How PostgreSQL's messages under 53300 begin. Before 1.20 PgBouncer sends them under its own code, too.
const SERVER_FULL: &[&str] = &[
    "remaining connection slots are reserved for ",
    "sorry, too many clients already",
    "too many connections for database ",
    "too many connections for role ",
];

const BUSY: &[&str] = &[
    "admin forced disconnect",
    "client connections exceeded (max_db_client_connections)",
    "client connections exceeded (max_user_client_connections)",
    "client_idle_timeout",
    "client_login_timeout",
    "database removed",
    "idle transaction timeout",
    "no more connections allowed (max_client_conn)",
    "query timeout",
    "query_timeout",
    "query_wait_timeout",
    "suspend_timeout",
    "transaction timeout",
];
