use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};

use super::facts::Facts;
use super::fields::Fields;
use super::problem::{ABOUT_BLANK, Problem, TEMPORARY_REDUCED_CAPACITY};
use super::seconds;
use crate::decision::Denied;
use crate::error::Error;

/// Why a request is not served: it is refused, nobody could decide, or nobody knows whom to charge.
///
/// | | status | `Retry-After` |
/// | --- | --- | --- |
/// | a refusal | 429 | seconds until it would be granted, rounded up |
/// | [`Error::Busy`] | 503 | 1 |
/// | the database fails, or what it holds | 503 | 5 |
/// | [`Error::CostExceedsCapacity`], [`Error::Key`]: the request asks what can never be | 400 | – |
/// | [`Error::ReceiptUsed`] | 409 | – |
/// | a mistake in the service itself, such as a cost that is no number | 500 | – |
/// | [`NoKey`] | 500 | – |
///
/// The body is a [`Problem`]. What the database reported is not in it: that is for logs.
///
/// With the feature `axum` this is a handler's error type: `?` turns [`Denied`] and [`Error`] into it.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Rejection {
    /// A limit refused.
    #[error(transparent)]
    Denied(Box<Denied>),
    /// Nobody could decide.
    #[error(transparent)]
    Failed(#[from] Error),
    /// The request does not say whom to charge.
    #[error(transparent)]
    NoKey(#[from] NoKey),
}

impl Rejection {
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
            Self::NoKey(missing) => Problem {
                detail: Some(missing.to_string()),
                ..Problem::new(StatusCode::INTERNAL_SERVER_ERROR, ABOUT_BLANK, "The server cannot tell who asks")
            },
        }
    }

    /// In how many seconds to try again; `None` where that is of no use.
    #[must_use]
    pub fn retry_after(&self) -> Option<u64> {
        match self {
            Self::Denied(denied) => Some(seconds::retry_after(denied.retry_after())),
            Self::Failed(Error::Busy) => Some(BUSY_SECONDS),
            Self::Failed(_) => (self.status() == StatusCode::SERVICE_UNAVAILABLE).then_some(UNAVAILABLE_SECONDS),
            Self::NoKey(_) => None,
        }
    }

    /// What there is to tell in header fields.
    pub fn facts(&self) -> Facts<'_> {
        match self {
            Self::Denied(denied) => Facts::from(&**denied),
            Self::Failed(_) | Self::NoKey(_) => Facts::default(),
        }
    }

    /// Writes the fields, of which `Retry-After` stays if it is there.
    pub fn write(&self, fields: Fields, facts: Facts<'_>, headers: &mut HeaderMap) {
        if let (Some(retry_after), false) = (self.retry_after(), headers.contains_key(RETRY_AFTER)) {
            headers.insert(RETRY_AFTER, retry_after.into());
        }
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

impl From<Denied> for Rejection {
    fn from(denied: Denied) -> Self {
        Self::Denied(Box::new(denied))
    }
}

/// No key could be taken from a request; the message names the remedy.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{0}")]
pub struct NoKey(pub std::borrow::Cow<'static, str>);

fn failure(error: &Error) -> Problem {
    match error {
        Error::CostExceedsCapacity { .. } | Error::Key { .. } => Problem {
            detail: Some(error.to_string()),
            ..Problem::new(StatusCode::BAD_REQUEST, ABOUT_BLANK, "The request asks for what can never be granted")
        },
        Error::ReceiptUsed => Problem {
            detail: Some(error.to_string()),
            ..Problem::new(StatusCode::CONFLICT, ABOUT_BLANK, "What was reserved is used up")
        },
        Error::ConflictingDefinitions { .. }
        | Error::Cost { .. }
        | Error::DebtTooDeep { .. }
        | Error::MixedCosts
        | Error::NothingAsked
        | Error::NotInTransaction => {
            Problem::new(StatusCode::INTERNAL_SERVER_ERROR, ABOUT_BLANK, "The server asks its limiter wrongly")
        }
        Error::Busy => unavailable("Request cannot be satisfied as too many want the same"),
        Error::CorruptRow { .. } => unavailable(LIMITER_AWAY),
        #[cfg(feature = "postgres")]
        Error::Database { .. }
        | Error::NamedStatements { .. }
        | Error::OutcomeUnknown { .. }
        | Error::ReadOnly { .. }
        | Error::Schema { .. }
        | Error::Stopped
        | Error::Sweep { .. } => unavailable(LIMITER_AWAY),
    }
}

fn unavailable(title: &'static str) -> Problem {
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, TEMPORARY_REDUCED_CAPACITY, title)
}

const LIMITER_AWAY: &str = "Request cannot be satisfied as the rate limiter does not answer";
/// A queue of thousands is through in less.
const BUSY_SECONDS: u64 = 1;
/// A failover takes longer, and a client that comes back in between is told again.
const UNAVAILABLE_SECONDS: u64 = 5;
