use std::borrow::Cow;
use std::error::Error;
use std::io;
use std::process::ExitCode;
use std::sync::Arc;

use tollgate::bench::BenchError;
use tollgate::migrate::MigrateError;
use tollgate::{Denied, embedded};

use crate::connect::ConnectError;
use crate::limits_file::LimitsFileError;
use crate::top::LookError;
use crate::verbs::{KeyFault, RunError};

/// Why a command failed: one sentence, with the remedy where there is one.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CommandError {
    #[error("{0}")]
    Bench(#[from] BenchError),
    #[error("{0}")]
    Connect(#[from] ConnectError),
    #[error("{}", with_remedy(.0))]
    Database(#[from] sqlx::Error),
    #[error("{0}")]
    Denied(#[from] Denied),
    #[error("{0}")]
    Key(#[from] KeyFault),
    #[error("{0}")]
    Limits(#[from] LimitsFileError),
    #[error("{}", with_remedy(.0))]
    Limiter(#[from] tollgate::Error),
    #[error("{}", with_remedy(.0))]
    Look(#[from] LookError),
    #[error("{}", with_owners_remedy(.0))]
    Migrate(#[from] MigrateError),
    #[error(
        "there is no row of limit {limit:?} for {key:?}, and no limits file to say what that means (check both names with \
         `tollgate inspect {limit}`, or pass --limits FILE)"
    )]
    NoRow { limit: String, key: String },
    #[error("could not write the output: {0}")]
    Output(io::Error),
    #[error("the reader of the output is gone")]
    OutputClosed,
    #[error("could not store a receipt: {0}")]
    Receipt(#[from] serde_json::Error),
    #[error("{0}")]
    Run(#[from] RunError),
    #[error("{0}")]
    Scaling(#[from] crate::bench::FileFault),
    #[error("{0}")]
    Server(#[from] embedded::StartError),
    #[error("{0}")]
    Simulate(#[from] crate::simulate::SimulateFault),
    #[error("the demo stopped early: {0}")]
    Task(#[from] tokio::task::JoinError),
    #[error("nothing was reset: this asks first, and nobody can answer here (say --yes)")]
    Unasked,
}

impl CommandError {
    /// 1, unless the error has a status that shells know it by.
    pub(crate) fn exit_code(&self) -> ExitCode {
        match self {
            Self::Run(error) => error.exit_code(),
            _ => ExitCode::FAILURE,
        }
    }

    /// PostgreSQL's code, where it is PostgreSQL that refused.
    pub(crate) fn sqlstate(&self) -> Option<String> {
        match self {
            Self::Database(error) => sqlstate(error),
            Self::Limiter(error) => sqlstate(error),
            Self::Migrate(error) => sqlstate(error),
            _ => None,
        }
    }
}

impl From<io::Error> for CommandError {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe { Self::OutputClosed } else { Self::Output(error) }
    }
}

/// What failed, in one line, and what to do where PostgreSQL's code tells.
fn with_remedy<E: Error + 'static>(error: &E) -> String {
    let what = in_one_line(error);
    let remedy = match sqlstate(error).as_deref() {
        Some("42501") => {
            " (grant usage on schema tollgate, and select, insert, update, delete on all tables in it, to this role; `tollgate \
             doctor` says what is missing)"
        }
        // The limiter's own message says so already.
        Some("42P01" | "3F000" | "42703") if !what.contains("tollgate migrate up") => {
            " (the tables are missing or too old: run `tollgate migrate up`)"
        }
        Some("57014") => " (give it longer: with --timeout, or by the statement_timeout of the role)",
        Some("25006") => " (this server or session is read-only: connect to the primary)",
        _ => "",
    };
    format!("{what}{remedy}")
}

/// The same, where only the owner of the schema has the rights.
fn with_owners_remedy(error: &MigrateError) -> String {
    if sqlstate(error).as_deref() != Some("42501") {
        return with_remedy(error);
    }
    format!("{} (run this as the owner of the schema tollgate, or as a role that may create it)", in_one_line(error))
}

/// What failed, without the driver's preamble, and without the line of PostgreSQL's own source.
fn in_one_line<E: Error + 'static>(error: &E) -> String {
    let mut what = error.to_string();
    if let Some(driver) = refusal(error) {
        let message = driver.as_database_error().map_or_else(String::new, |refusal| refusal.message().to_owned());
        what = what.replace(&driver.to_string(), &message);
    }
    what.replace('\n', " ")
}

/// The code that PostgreSQL gave, if it did.
fn sqlstate(error: &(dyn Error + 'static)) -> Option<String> {
    refusal(error)?.as_database_error()?.code().map(Cow::into_owned)
}

/// What the driver reports of PostgreSQL, wherever in the chain of causes it is.
fn refusal<'e>(error: &'e (dyn Error + 'static)) -> Option<&'e sqlx::Error> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        let shared = || error.downcast_ref::<Arc<sqlx::Error>>().map(|shared| &**shared);
        if let Some(driver) = error.downcast_ref::<sqlx::Error>().or_else(shared) {
            return driver.as_database_error().is_some().then_some(driver);
        }
        cause = error.source();
    }
    None
}
