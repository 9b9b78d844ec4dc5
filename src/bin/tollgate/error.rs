use std::io;

use tollgate::bench::BenchError;
use tollgate::migrate::MigrateError;
use tollgate::{Denied, embedded};

/// Why a command failed: one sentence, with the remedy where there is one.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CommandError {
    #[error("{0}")]
    Bench(#[from] BenchError),
    #[error("could not connect to the database: {0} (check --database-url, and that the server runs)")]
    Connect(sqlx::Error),
    #[error("{0}")]
    Database(#[from] sqlx::Error),
    #[error("{0}")]
    Denied(#[from] Denied),
    #[error("{0}")]
    Limiter(#[from] tollgate::Error),
    #[error("{0}")]
    Migrate(#[from] MigrateError),
    #[error("no database is given (set DATABASE_URL, or pass --database-url postgres://user:password@host/database)")]
    NoDatabase,
    #[error("could not write the output: {0}")]
    Output(io::Error),
    #[error("the reader of the output is gone")]
    OutputClosed,
    #[error("could not store a receipt: {0}")]
    Receipt(#[from] serde_json::Error),
    #[error("{0}")]
    Server(#[from] embedded::StartError),
    #[error("{0}")]
    Simulate(#[from] crate::simulate::SimulateFault),
    #[error("the demo stopped early: {0}")]
    Task(#[from] tokio::task::JoinError),
}

impl From<io::Error> for CommandError {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe { Self::OutputClosed } else { Self::Output(error) }
    }
}
