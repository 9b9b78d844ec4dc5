use std::borrow::Cow;

use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use http::{HeaderName, Response, StatusCode};
#[cfg(feature = "tower")]
use tollgate::DriverError;
use tollgate::{Denied, Error, KeyError};

use crate::facts::Facts;
use crate::fields::{Fields, keep_from_caches};
use crate::problem::{ABOUT_BLANK, Problem, TEMPORARY_REDUCED_CAPACITY};
use crate::retry_after::retry_after;

/// Why a request is not served: a limit refused, no decision was possible, or the request has no key.
///
/// | | status | `Retry-After` |
/// | --- | --- | --- |
/// | a refusal | 429 | seconds until it would be granted, rounded up |
/// | [`Error::Locked`], [`Error::Overloaded`], [`Error::PoolExhausted`] | 503 | 1 |
/// | another error of the database | 503 | 5 |
/// | a [fault of the set-up](Error::is_setup), [`Error::CorruptRow`]: somebody must mend it | 500 | – |
/// | an `sqlx::Error` of the handler: its pool has no free connection | 503 | 1 |
/// | an `sqlx::Error` of the handler: its pool is closed, or IO fails | 503 | 5 |
/// | another `sqlx::Error` of the handler, such as a duplicate key | 500 | – |
/// | [`Error::CostExceedsCapacity`], [`Error::Key`]: the request can never be granted | 400 | – |
/// | [`Error::Lapsed`], [`Error::ReceiptUsed`], [`Error::TooLateToCancel`]: a receipt is not good any more | 409 | – |
/// | [`Error::OnceMismatch`]: the id of the request was used for another one | 422 | – |
/// | an error of the service itself, such as an invalid cost | 500 | – |
/// | [`NoKey`] | 500 | – |
/// | [`RepeatedField`] | 400 | – |
///
/// The body is a [`Problem`]. It does not contain the database's message; log the error for that.
///
/// With the feature `axum` this is a handler's error type: `?` turns [`Denied`], [`Error`] and `sqlx::Error` into it.
/// The last is logged, at level `error`.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotServed {
    /// A limit refused.
    #[error(transparent)]
    Denied(Box<Denied>),
    /// No decision was possible.
    #[error(transparent)]
    Failed(#[from] Error),
    /// A statement of the handler itself failed.
    #[cfg(feature = "tower")]
    #[error("the handler's own statement failed: {}", **.0)]
    Query(DriverError),
    /// The request has no key.
    #[error(transparent)]
    NoKey(#[from] NoKey),
    /// The request has no key, because one of its header fields occurs several times.
    #[error(transparent)]
    Repeated(#[from] RepeatedField),
}

impl NotServed {
    /// The status of the response.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.problem().status
    }

    /// The body of the response.
    #[must_use]
    pub fn problem(&self) -> Problem {
        match self {
            Self::Denied(denied) => Problem::from(&**denied),
            Self::Failed(error) => failure(error),
            #[cfg(feature = "tower")]
            Self::Query(error) => query_failure(error),
            Self::NoKey(missing) => Problem {
                detail: Some(missing.to_string()),
                ..Problem::new(StatusCode::INTERNAL_SERVER_ERROR, ABOUT_BLANK, "The server cannot tell who asks")
            },
            Self::Repeated(field) => Problem {
                detail: Some(field.to_string()),
                ..Problem::new(StatusCode::BAD_REQUEST, ABOUT_BLANK, "The request does not tell who asks")
            },
        }
    }

    /// The seconds until another try; `None` if another try is of no use.
    #[must_use]
    pub fn retry_after(&self) -> Option<u64> {
        match self {
            Self::Denied(denied) => retry_after(denied),
            Self::Failed(Error::Locked { .. } | Error::Overloaded { .. } | Error::PoolExhausted { .. }) => {
                Some(CROWDED_SECONDS)
            }
            #[cfg(feature = "tower")]
            Self::Query(error) if matches!(**error, sqlx::Error::PoolTimedOut) => Some(CROWDED_SECONDS),
            Self::NoKey(_) | Self::Repeated(_) => None,
            _ => (self.status() == StatusCode::SERVICE_UNAVAILABLE).then_some(UNAVAILABLE_SECONDS),
        }
    }

    /// The facts for header fields.
    pub fn facts(&self) -> Facts<'_> {
        match self {
            Self::Denied(denied) => Facts::from(&**denied),
            _ => Facts::default(),
        }
    }

    /// Writes the fields, and `Cache-Control: no-store`. A `Retry-After` and a `Cache-Control` that are already there
    /// stay.
    pub fn write(&self, fields: Fields, mut facts: Facts<'_>, headers: &mut HeaderMap) {
        facts.wait = self.retry_after();
        keep_from_caches(headers);
        fields.write(facts, headers);
    }

    /// The whole response.
    #[must_use]
    pub fn response<B: From<String>>(&self, fields: Fields) -> Response<B> {
        let mut response = self.document();
        self.write(fields, self.facts(), response.headers_mut());
        response
    }

    /// Status and body.
    pub(crate) fn document<B: From<String>>(&self) -> Response<B> {
        let problem = self.problem();
        let mut response = Response::new(B::from(problem.to_json()));
        *response.status_mut() = problem.status;
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(Problem::MEDIA_TYPE));
        response
    }
}

impl From<Denied> for NotServed {
    fn from(denied: Denied) -> Self {
        Self::Denied(Box::new(denied))
    }
}

#[cfg(feature = "tower")]
impl From<sqlx::Error> for NotServed {
    fn from(error: sqlx::Error) -> Self {
        let failed = Self::Query(error.into());
        // The response does not tell, and nobody else sees the error.
        tracing::error!("{failed}");
        failed
    }
}

#[cfg(feature = "axum")]
macro_rules! responses {
    ($($reason:ty),*) => {$(
        /// The response of the [`NotServed`] into which it converts.
        impl axum::response::IntoResponse for $reason {
            fn into_response(self) -> axum::response::Response {
                NotServed::from(self).response::<axum::body::Body>(Fields::default())
            }
        }
    )*};
}
#[cfg(feature = "axum")]
responses!(NotServed, NoKey, RepeatedField);

/// No key can be taken from the request; the message names the remedy.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{0}")]
pub struct NoKey(pub Cow<'static, str>);

/// The client has sent several times a header field that identifies it and may occur only once.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("the header field {0:?} occurs several times (send it once)")]
pub struct RepeatedField(pub HeaderName);

impl From<KeyError> for NoKey {
    fn from(error: KeyError) -> Self {
        Self(error.to_string().into())
    }
}

fn failure(error: &Error) -> Problem {
    let (status, title) = match error {
        Error::CostExceedsCapacity { .. } | Error::Key { .. } => {
            (StatusCode::BAD_REQUEST, "The request asks for what can never be granted")
        }
        Error::CorruptRow { .. } | Error::Setup { .. } => {
            (StatusCode::INTERNAL_SERVER_ERROR, "The rate limiter of the server is not set up rightly")
        }
        Error::Lapsed { .. } | Error::ReceiptUsed { .. } | Error::TooLateToCancel { .. } => {
            (StatusCode::CONFLICT, "The charge was settled before, has lapsed, or is spent")
        }
        Error::OnceMismatch { .. } => {
            (StatusCode::UNPROCESSABLE_ENTITY, "The id of the request was used for another request")
        }
        Error::Call { .. } | Error::DoesNotFit { .. } | Error::NotInTransaction => {
            (StatusCode::INTERNAL_SERVER_ERROR, WRONGLY_ASKED)
        }
        Error::Locked { .. } | Error::Overloaded { .. } | Error::PoolExhausted { .. } => {
            (StatusCode::SERVICE_UNAVAILABLE, "Request cannot be satisfied as too many ask at once")
        }
        _ => (StatusCode::SERVICE_UNAVAILABLE, "Request cannot be satisfied as the rate limiter does not answer"),
    };
    let detail = match error {
        // The error's own text advises whoever runs the service.
        Error::CostExceedsCapacity { limit, asked, max, .. } => {
            Some(format!("the request asks {asked} tokens of limit {limit:?}, and may ask at most {max} at once"))
        }
        error => status.is_client_error().then(|| error.to_string()),
    };
    Problem { detail, ..failed(status, title) }
}

/// The failure of a statement that is not the limiter's.
#[cfg(feature = "tower")]
fn query_failure(error: &sqlx::Error) -> Problem {
    match error {
        sqlx::Error::Io(_) | sqlx::Error::PoolClosed | sqlx::Error::PoolTimedOut => {
            let title = "Request cannot be satisfied as the database of the server does not answer";
            failed(StatusCode::SERVICE_UNAVAILABLE, title)
        }
        _ => failed(StatusCode::INTERNAL_SERVER_ERROR, "The server could not carry out the request"),
    }
}

fn failed(status: StatusCode, title: &'static str) -> Problem {
    let is_temporary = status == StatusCode::SERVICE_UNAVAILABLE;
    Problem::new(status, if is_temporary { TEMPORARY_REDUCED_CAPACITY } else { ABOUT_BLANK }, title)
}

const WRONGLY_ASKED: &str = "The server asks its limiter wrongly";
/// Even a queue of thousands of calls is empty sooner.
const CROWDED_SECONDS: u64 = 1;
/// A failover takes longer; a client that comes back during it gets the same answer again.
const UNAVAILABLE_SECONDS: u64 = 5;
