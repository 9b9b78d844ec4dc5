use super::contender::Fault;
use super::processors::UnknownTime;
use super::scene::Scene;
use crate::decision::Denied;
use crate::embedded::StartError;
use crate::migrate::MigrateError;

/// Why there are no figures: one wrong answer, and all are worthless.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// The database could not be reached.
    #[error("could not connect to the database: {0}")]
    Connect(#[source] sqlx::Error),
    /// A contender failed, or gave a wrong answer.
    #[error("{contender} failed at {scene}: {fault}")]
    Contender {
        /// Its name.
        contender: &'static str,
        /// What it was measured at.
        scene: Scene,
        /// What went wrong.
        fault: Fault,
    },
    /// The rows could not be made, tidied or removed, or the server's counters not be read.
    #[error("could not set the scene: {0}")]
    Database(#[from] sqlx::Error),
    /// The rows could not be made.
    #[error("could not make the rows: {0}")]
    Fill(#[from] crate::Error),
    /// A fresh row was empty.
    #[error("could not make the rows: {0}")]
    Denied(#[from] Denied),
    /// The tables could not be made.
    #[error("{0}")]
    Migrate(#[from] MigrateError),
    /// The kernel does not tell processor time.
    #[error("could not read processor time: {0}")]
    Processors(#[from] UnknownTime),
    /// The private server did not start.
    #[error("{0}")]
    Server(#[from] StartError),
    /// Nothing would be measured.
    #[error("{0}")]
    Settings(&'static str),
    /// The runtime shut down.
    #[error("the run stopped early: {0}")]
    Task(#[from] tokio::task::JoinError),
}
