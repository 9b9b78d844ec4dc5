use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Response, StatusCode};

use crate::{NotServed, policy};

/// Makes the response of a request that is not served, with a body of type `B`.
///
/// Implemented for closures `Fn(&NotServed) -> Response<B>`.
pub trait Respond<B> {
    /// The response. The layer adds the header fields, unless the response already has a `Retry-After`, and
    /// `Cache-Control: no-store`, unless it already has a `Cache-Control`.
    fn respond(&self, reason: &NotServed) -> Response<B>;
}

impl<F: Fn(&NotServed) -> Response<B>, B> Respond<B> for F {
    fn respond(&self, reason: &NotServed) -> Response<B> {
        self(reason)
    }
}

/// The default: the status and a [`Problem`](crate::Problem) as JSON. The body needs `From<String>`, which the
/// bodies of axum and `http_body_util::Full` have.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProblemJson;

impl<B: From<String>> Respond<B> for ProblemJson {
    fn respond(&self, reason: &NotServed) -> Response<B> {
        reason.document()
    }
}

/// Responds in gRPC: the status is 200, and the header `grpc-status` is `RESOURCE_EXHAUSTED` for a refusal and
/// `UNAVAILABLE` if no decision was possible. The body needs `Default`, which the bodies of tonic have.
#[derive(Clone, Copy, Debug, Default)]
pub struct Grpc;

impl<B: Default> Respond<B> for Grpc {
    fn respond(&self, reason: &NotServed) -> Response<B> {
        let mut response = Response::new(B::default());
        let problem = reason.problem();
        let words = problem.detail.as_deref().unwrap_or(problem.title);
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert("grpc-status", grpc_status(problem.status).into());
        // Printable ASCII is always a valid value.
        if let Ok(words) = HeaderValue::try_from(policy::printable(words)) {
            headers.insert("grpc-message", words);
        }
        response
    }
}

fn grpc_status(status: StatusCode) -> u16 {
    match status {
        StatusCode::TOO_MANY_REQUESTS => 8,    // RESOURCE_EXHAUSTED
        StatusCode::SERVICE_UNAVAILABLE => 14, // UNAVAILABLE
        StatusCode::BAD_REQUEST => 3,          // INVALID_ARGUMENT
        _ => 13,                               // INTERNAL
    }
}
