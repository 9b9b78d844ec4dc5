use crate::driver_error::DriverError;
use crate::key::KeyError;
use crate::store::is_row_security;

/// Why an override was not set or removed, or why overrides could not be read.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OverrideError {
    /// The key is not valid.
    #[error("the key of the override of limit {limit:?} is invalid")]
    Key {
        /// The limit's name.
        limit: String,
        /// The fault of the key.
        source: KeyError,
    },
    /// The reason is empty, or longer than 500 bytes.
    #[error("an override of limit {limit:?} needs a reason of 1 to 500 bytes (say why, for whoever finds it)")]
    Reason {
        /// The limit's name.
        limit: String,
    },
    /// The name of the person or program that sets the override is empty, or longer than 255 bytes.
    #[error("who overrides limit {limit:?} needs a name of 1 to 255 bytes (or leave it out, for the role's own)")]
    Who {
        /// The limit's name.
        limit: String,
    },
    /// The label is longer than 255 bytes, or has a NUL.
    #[error("an override of limit {limit:?} needs a label of up to 255 bytes without NUL (or none)")]
    Label {
        /// The limit's name.
        limit: String,
    },
    /// The override ends before it starts, or has two ends.
    #[error("an override of limit {limit:?} ends before it starts, or has two ends (say `until` or `lasting`)")]
    Span {
        /// The limit's name.
        limit: String,
    },
    /// The database rejected the override: it is already over, or is for another kind of limit than `tollgate.limits`
    /// has.
    #[error("{message}")]
    Rejected {
        /// The limit's name.
        limit: String,
        /// The database's message.
        message: String,
    },
    /// PostgreSQL or the connection failed.
    #[error("could not {step} overrides")]
    Database {
        /// The step that failed.
        step: &'static str,
        /// The error of the driver.
        source: DriverError,
    },
    /// Row security is switched on for `tollgate.overrides`, and may hide rows from this role.
    #[error(
        "row security hides rows of tollgate.overrides from this role (`alter table tollgate.overrides disable \
         row level security`, or give the role `bypassrls`)"
    )]
    RowSecurity {
        /// The error of the driver.
        source: DriverError,
    },
    /// There is no tokio runtime for the task that reads the overrides each second.
    #[error("there is no runtime to watch overrides on (call it from a tokio runtime that is alive)")]
    Stopped,
}

pub(super) fn failed(step: &'static str) -> impl Fn(sqlx::Error) -> OverrideError {
    move |source| {
        let is_hidden = is_row_security(&source);
        let source = source.into();
        if is_hidden { OverrideError::RowSecurity { source } } else { OverrideError::Database { step, source } }
    }
}
