use std::error::Error;
use std::fmt;
use std::process::ExitCode;

use sqlx::postgres::PgDatabaseError;
use tollgate::migrate::MigrateError;

use crate::output::printable;

/// Why a command failed: one sentence, the remedy where there is one, and the exit status.
///
/// Every other error becomes one by `?`: its own words, and a remedy where PostgreSQL's code tells one. This type is no
/// [`Error`] itself, which is what allows the conversion from all of them.
#[derive(Debug)]
pub(crate) struct CommandError {
    pub(crate) what: String,
    pub(crate) remedy: Option<String>,
    pub(crate) exit: Exit,
}

impl CommandError {
    pub(crate) fn new(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { remedy: Some(remedy.into()), ..Self::bare(what) }
    }

    /// One whose sentence says all.
    pub(crate) fn bare(what: impl Into<String>) -> Self {
        Self { what: what.into(), remedy: None, exit: Exit::Failed }
    }
}

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        self.remedy.as_ref().map_or(Ok(()), |remedy| write!(f, " ({remedy})"))
    }
}

impl<E: Error + 'static> From<E> for CommandError {
    fn from(error: E) -> Self {
        let code = reported(&error).and_then(|reported| reported.as_database_error()?.code());
        let what = in_one_line(&error);
        let needs_owner = (&error as &dyn Error).is::<MigrateError>();
        let told = reported(&error).and_then(sqlx::Error::as_database_error);
        let told = told.and_then(|told| told.try_downcast_ref::<PgDatabaseError>());
        let is_hidden = told.is_some_and(|told| told.routine() == Some("check_enable_rls"));
        let remedy = match code.as_deref() {
            Some("42501") if is_hidden && what.contains("bypassrls") => return Self::bare(what),
            Some("42501") if is_hidden => {
                "disable row level security on this table, or give the role `bypassrls`; `tollgate doctor` says \
                 where it \
                 is on"
            }
            Some("42501") if needs_owner => {
                "run this as the owner of the schema tollgate, or as a role that may create it"
            }
            Some("42501") => {
                "grant usage on schema tollgate, and select, insert, update, delete on all tables in it, to this role; \
                 `tollgate doctor` says what is missing"
            }
            // The limiter's own message says so already.
            Some("42P01" | "3F000" | "42703") if !what.contains("tollgate migrate up") => {
                "the tables are missing or too old: run `tollgate migrate up`"
            }
            Some("08P01") if what.contains("statement pooling mode") => {
                "set pool_mode = transaction for this database in PgBouncer, or connect to the server itself"
            }
            Some("57014") => "give it longer: with --timeout, or by the statement_timeout of the role",
            Some("25006") => "this server or session is read-only: connect to the primary",
            _ => return Self::bare(what),
        };
        Self::new(what, remedy)
    }
}

/// The error and its causes in one line, with PostgreSQL's own message instead of the driver's wording of it.
pub(crate) fn in_one_line(error: &(dyn Error + 'static)) -> String {
    let (mut what, mut cause) = (String::new(), Some(error));
    while let Some(error) = cause {
        let server = error.downcast_ref::<sqlx::Error>().and_then(sqlx::Error::as_database_error);
        let reason = server.map_or_else(|| error.to_string(), |server| server.message().to_owned());
        cause = error.source().filter(|_| server.is_none());
        // Some errors tell their causes themselves.
        if !what.ends_with(&reason) {
            what = if what.is_empty() { reason } else { format!("{what}: {reason}") };
        }
    }
    printable(&what.replace('\n', " "))
}

/// The driver's error about PostgreSQL, wherever it is in the chain of causes.
fn reported<'e>(error: &'e (dyn Error + 'static)) -> Option<&'e sqlx::Error> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(driver) = error.downcast_ref() {
            return Some(driver);
        }
        cause = error.source();
    }
    None
}

/// How a command ends, and the status that the shell sees.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Exit {
    /// The command did its work, or the limit grants.
    Done = 0,
    /// The command failed, or a check found errors.
    Failed = 1,
    /// The limit refuses.
    Refused = 2,
    /// The usage is wrong. The number is that of sysexits.h: clap's own 2 would mean "refused" here.
    Usage = 64,
    /// The program of `tollgate run` cannot be executed. Shells use the same number.
    NotExecutable = 126,
    /// The program of `tollgate run` is not there. Shells use the same number.
    NotFound = 127,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}
