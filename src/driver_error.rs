use std::ops::Deref;
use std::sync::Arc;

#[cfg(feature = "postgres")]
use sqlx::Error;
// Without a driver nothing is reported.
#[cfg(not(feature = "postgres"))]
use std::convert::Infallible as Error;

/// An error of the driver, shared: a gate gives the error of a batch to each caller in it.
#[derive(Clone, Debug)]
pub struct DriverError(Arc<Error>);

// It is no error itself, so that the source of an `Error` is the driver's own, which can be downcast.
impl Deref for DriverError {
    type Target = Error;

    fn deref(&self) -> &Error {
        &self.0
    }
}

impl From<Error> for DriverError {
    fn from(error: Error) -> Self {
        Self(Arc::new(error))
    }
}
