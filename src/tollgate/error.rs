use crate::error::SetupFault;
use crate::store::setup_fault;
use crate::values::driver_error::DriverError;

/// Why a [`Tollgate`](super::Tollgate) did not start.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// PostgreSQL or the connection failed, or did not answer within the pool's `acquire_timeout`.
    #[error(
        "could not read the tollgate tables: {} (check that the server runs and lets this role in, or say \
         `start_in_outage()`)",
        **source
    )]
    #[non_exhaustive]
    Database {
        /// The driver's error.
        source: DriverError,
    },
    /// The tables, their rights or the connections are not set up as this library needs them.
    #[error("{fault}")]
    #[non_exhaustive]
    Setup {
        /// The fault to mend.
        fault: SetupFault,
        /// The driver's error. It names the column, if one is missing.
        source: DriverError,
    },
    /// Two of the [limits](super::TollgateBuilder::limits) have the same name, and different definitions.
    #[error("limit {limit:?} has two definitions (give each a name of its own)")]
    #[non_exhaustive]
    TwoDefinitions {
        /// The limit's name.
        limit: String,
    },
    /// There is no tokio runtime for the tasks.
    #[error("there is no runtime to start on (call it from a tokio runtime that is alive)")]
    Stopped,
}

impl StartError {
    /// Whether the tables, their rights or the connections are set up wrongly, so that a retry is of no use.
    #[must_use]
    pub fn is_setup(&self) -> bool {
        matches!(self, Self::Setup { .. })
    }
}

impl From<sqlx::Error> for StartError {
    fn from(error: sqlx::Error) -> Self {
        let fault = setup_fault(&error);
        let source = error.into();
        match fault {
            Some(fault) => Self::Setup { fault, source },
            None => Self::Database { source },
        }
    }
}
