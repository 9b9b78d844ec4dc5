use std::ops::Deref;
use std::sync::Arc;

#[cfg(feature = "postgres")]
use sqlx::Error;
// Without a driver there are no such errors.
#[cfg(not(feature = "postgres"))]
use std::convert::Infallible as Error;

/// A shared error of the driver: a gate gives the error of a batch to each caller in it.
#[derive(Clone, Debug)]
pub struct DriverError {
    error: Arc<Error>,
    /// Whether it came before a timeout of ours could have struck.
    pub(crate) is_early: bool,
}

// This type does not implement `Error`, so that the source of an `Error` is the driver's error itself, which can be
// downcast.
impl Deref for DriverError {
    type Target = Error;

    fn deref(&self) -> &Error {
        &self.error
    }
}

impl From<Error> for DriverError {
    fn from(error: Error) -> Self {
        Self { error: Arc::new(error), is_early: false }
    }
}
