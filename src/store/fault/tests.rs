use std::fmt;

use sqlx::error::ErrorKind;

use super::*;

/// The report of PostgreSQL, Citus or a pooler: a code and a message.
#[derive(Debug)]
struct Report(&'static str, &'static str);

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.1)
    }
}

impl std::error::Error for Report {}

impl DatabaseError for Report {
    fn message(&self) -> &str {
        self.1
    }

    fn code(&self) -> Option<Cow<'_, str>> {
        Some(self.0.into())
    }

    fn as_error(&self) -> &(dyn std::error::Error + Send + Sync + 'static) {
        self
    }

    fn as_error_mut(&mut self) -> &mut (dyn std::error::Error + Send + Sync + 'static) {
        self
    }

    fn into_error(self: Box<Self>) -> Box<dyn std::error::Error + Send + Sync + 'static> {
        self
    }

    fn kind(&self) -> ErrorKind {
        ErrorKind::Other
    }
}

fn reported(step: Step, code: &'static str, message: &'static str) -> Error {
    database(step, "one", sqlx::Error::Database(Box::new(Report(code, message))))
}

/// Each thing that is true of an error of a step.
fn said(step: Step, code: &'static str, message: &'static str) -> String {
    let error = || reported(step, code, message);
    let facts = [
        ("retryable", error().is_retryable()),
        ("outage", error().is_outage()),
        ("race", error().is_lost_race()),
        ("swap", error().is_lost_swap()),
        ("wait", error().is_lost_wait()),
        ("data", error().is_about_data()),
        ("loses the connection", !error().leaves_connection()),
        ("unknown", matches!(error().of_commit(), Error::OutcomeUnknown { .. })),
    ];
    let facts: Vec<_> = facts.iter().filter(|(_, is_true)| *is_true).map(|(fact, _)| *fact).collect();
    facts.join(", ")
}

#[test]
fn each_code_says_what_may_be_done_about_it() {
    for (code, expected) in [
        // Lost races.
        ("40001", "retryable, race, swap"),
        ("40P01", "retryable, race, swap"),
        ("23505", "retryable, race, swap, data"),
        // Waits that were cut short.
        ("55P03", "retryable, swap, wait"),
        ("57014", "retryable, outage, swap"),
        // Crowds, and disks.
        ("53300", "retryable"),
        ("53100", "outage"),
        ("58030", "outage"),
        // Ends of a session, and a server that is not there yet.
        ("25P03", "retryable, outage, loses the connection, unknown"),
        ("25P04", "retryable, outage, loses the connection, unknown"),
        ("57P01", "retryable, outage, loses the connection, unknown"),
        ("57P02", "retryable, outage, loses the connection, unknown"),
        ("57P05", "retryable, outage, loses the connection, unknown"),
        ("57P03", "retryable, outage, loses the connection, unknown"),
        // Lost connections.
        ("08000", "retryable, loses the connection, unknown"),
        ("08001", "retryable, loses the connection, unknown"),
        ("08003", "retryable, loses the connection, unknown"),
        ("08006", "retryable, loses the connection, unknown"),
        ("08004", "loses the connection, unknown"),
        // Data, rights and internal errors.
        ("22021", "data"),
        ("23514", "data"),
        ("42501", "swap"),
        ("28P01", ""),
        ("XX000", "unknown"),
    ] {
        assert_eq!(said(Step::Save, code, "no words"), expected, "{code}");
    }
}

/// Somebody else's timeout, or a person.
#[test]
fn what_ends_a_statement_before_our_own_timeout_is_no_outage() {
    for (code, is_outage) in [("57014", false), ("25P04", false), ("57P01", true)] {
        assert_eq!(reported(Step::Save, code, "").of_no_timeout().is_outage(), is_outage, "{code}");
    }
}

#[test]
fn a_session_that_somebody_left_in_a_transaction_is_lost() {
    for code in ["25001", "25P01", "25P02"] {
        assert_eq!(said(Step::Save, code, ""), "loses the connection", "{code}");
    }
    let left = "invalid input syntax for type boolean: \"somebody left this session in a transaction\"";
    assert_eq!(said(Step::Save, "22P02", left), "loses the connection");
    assert_eq!(said(Step::Begin, "XX000", ""), "loses the connection, unknown");
}

/// The statement may have waited for a row that a crowd locks.
#[test]
fn a_wait_for_a_row_is_not_taken_for_an_outage() {
    for step in [Step::Insert, Step::Lock] {
        assert_eq!(said(step, "25P04", ""), "retryable, loses the connection, unknown");
        assert_eq!(said(step, "57014", ""), "retryable, outage, swap, wait");
        assert_eq!(said(step, "40P01", ""), "retryable, race, swap, wait");
    }
}

#[test]
fn words_of_citus_and_of_poolers_count_with_their_codes_alone() {
    for (code, message, expected) in [
        ("XX000", "connection to the remote node failed", "retryable, outage, unknown"),
        ("XX000", "could not find valid entry for shard 102008", "retryable, race, swap, unknown"),
        ("08006", "server closed the connection unexpectedly", "retryable, outage, loses the connection, unknown"),
        ("58030", "could not read: unexpected postmaster exit", "retryable, outage"),
        ("42501", "connection to the remote node failed", "swap"),
        ("08P01", "server conn crashed?", "retryable, outage, loses the connection, unknown"),
        ("42501", "server conn crashed?", "swap"),
    ] {
        assert_eq!(said(Step::Save, code, message), expected, "{code} {message}");
    }
    let login = "server login has been failing, try again later (server_login_retry)";
    let is_failing = |code| reported(Step::Acquire, code, login).is_failing_login();
    assert_eq!(["08P01", "42501"].map(is_failing), [true, false]);
}

#[test]
fn what_is_set_up_wrongly_names_its_remedy() {
    let fault = |code, message| match reported(Step::Insert, code, message) {
        Error::Setup { fault, .. } => Some(fault),
        _ => None,
    };
    for code in ["3F000", "42P01", "42703", "42883"] {
        assert_eq!(fault(code, ""), Some(SetupFault::Schema), "{code}");
    }
    for code in ["26000", "42P05"] {
        assert_eq!(fault(code, ""), Some(SetupFault::NamedStatements), "{code}");
    }
    assert_eq!(fault("23514", "violates check constraint \"durable_part_102008\""), Some(SetupFault::WrongParts));
    assert_eq!(fault("23514", "violates check constraint \"durable_check\""), None);
    assert_eq!(fault("42501", "\"durable_part\""), Some(SetupFault::Rights));
    assert_eq!(fault("22P02", "\"row security hides rows of tollgate.durable\""), Some(SetupFault::RowSecurity));
    assert_eq!(fault("42501", "\"row security hides rows of tollgate.durable\""), Some(SetupFault::Rights));
    assert_eq!(fault("28P01", "password authentication failed"), None, "a password may be right again");
    assert!(matches!(reported(Step::Save, "25006", ""), Error::ReadOnly { .. }));
    // Only the name of PostgreSQL's routine makes these a server that accepts no writes, or an unknown statement.
    for code in ["0A000", "08P01"] {
        assert!(matches!(reported(Step::Save, code, ""), Error::Database { .. }), "{code}");
    }
    let read_only = || reported(Step::Save, "25006", "");
    assert!(read_only().is_lost_swap() && read_only().is_outage() && !read_only().leaves_connection());
    assert!(reported(Step::Save, "42P01", "").is_of_the_database());
}

fn is_outage(source: sqlx::Error) -> bool {
    database(Step::Acquire, "one", source).is_outage()
}

#[test]
fn only_silence_in_the_handshake_is_an_outage() {
    assert!(is_outage(sqlx::Error::Protocol("unexpected response from SSLRequest: 0x00".to_owned())));
    for said in ["unexpected response from SSLRequest: 0x45", "unsupported authentication method: Gss"] {
        assert!(!is_outage(sqlx::Error::Protocol(said.to_owned())), "{said}");
    }
    assert!(!is_outage(sqlx::Error::Tls("server does not support TLS".into())));
    assert!(!is_outage(sqlx::Error::PoolClosed));
}

#[test]
fn what_this_machine_cannot_do_is_no_outage() {
    use io::ErrorKind::{
        AddrNotAvailable, ConnectionRefused, ConnectionReset, HostUnreachable, InvalidData, NotFound, PermissionDenied,
        TimedOut, UnexpectedEof,
    };
    for kind in [ConnectionRefused, ConnectionReset, HostUnreachable, NotFound, TimedOut, UnexpectedEof] {
        assert!(is_outage(io::Error::from(kind).into()), "{kind:?}");
    }
    for kind in [AddrNotAvailable, InvalidData, PermissionDenied] {
        assert!(!is_outage(io::Error::from(kind).into()), "{kind:?}");
    }
    // Too many open files, in the system (23) and in the process (24).
    for number in [23, 24] {
        assert!(!is_outage(io::Error::from_raw_os_error(number).into()), "{number}");
    }
}

#[test]
fn only_an_answer_that_did_not_come_in_time_is_a_timeout() {
    let is_timeout = |kind: io::ErrorKind| database(Step::Lock, "one", io::Error::from(kind).into()).is_timeout();
    assert_eq!([io::ErrorKind::TimedOut, io::ErrorKind::ConnectionReset].map(is_timeout), [true, false]);
    assert!(!reported(Step::Lock, "57014", "").is_timeout());
}
