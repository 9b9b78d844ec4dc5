use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Response, StatusCode};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use crate::http::Rejection;

/// Answers requests that are not served, with a body of type `B`.
///
/// Implemented for closures `Fn(&Rejection) -> Response<B>`.
///
/// # Example
///
/// ```
/// use http::Response;
/// use tollgate::http::Rejection;
/// use tollgate::tower::TollgateLayer;
///
/// fn in_words(layer: TollgateLayer) -> TollgateLayer<impl Fn(&Rejection) -> Response<String> + Clone> {
///     layer.refuse_with(|rejection: &Rejection| {
///         let mut response = Response::new(format!("not now: {rejection}\n"));
///         *response.status_mut() = rejection.status();
///         response
///     })
/// }
/// # let _ = in_words;
/// ```
pub trait Refuse<B> {
    /// The response. The layer adds the header fields, unless it has a `Retry-After` already.
    fn refuse(&self, rejection: &Rejection) -> Response<B>;
}

/// Refuses with a status and a [`Problem`](crate::http::Problem) as JSON: the default, for bodies that come from a `String`, as
/// those of axum and `http_body_util::Full` do.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProblemJson;

impl<B: From<String>> Refuse<B> for ProblemJson {
    fn refuse(&self, rejection: &Rejection) -> Response<B> {
        rejection.document()
    }
}

/// Refuses as gRPC does, for bodies that can be empty, as those of tonic can: status 200, and in the headers `grpc-status`, which
/// is `RESOURCE_EXHAUSTED` for a refusal and `UNAVAILABLE` where nobody could decide.
#[derive(Clone, Copy, Debug, Default)]
pub struct Grpc;

impl<B: Default> Refuse<B> for Grpc {
    fn refuse(&self, rejection: &Rejection) -> Response<B> {
        let mut response = Response::new(B::default());
        let (status, problem) = (grpc_status(rejection.status()), rejection.problem());
        let words = problem.detail.as_deref().unwrap_or(problem.title);
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert("grpc-status", status.into());
        // Percent-encoded text is ASCII, which no header refuses.
        if let Ok(words) = HeaderValue::try_from(utf8_percent_encode(words, GRPC_MESSAGE).to_string()) {
            headers.insert("grpc-message", words);
        }
        response
    }
}

impl<F, B> Refuse<B> for F
where
    F: Fn(&Rejection) -> Response<B>,
{
    fn refuse(&self, rejection: &Rejection) -> Response<B> {
        self(rejection)
    }
}

/// The codes of gRPC, by what their names say.
fn grpc_status(status: StatusCode) -> u16 {
    match status {
        StatusCode::TOO_MANY_REQUESTS => 8,    // RESOURCE_EXHAUSTED
        StatusCode::SERVICE_UNAVAILABLE => 14, // UNAVAILABLE
        StatusCode::BAD_REQUEST => 3,          // INVALID_ARGUMENT
        _ => 13,                               // INTERNAL
    }
}

const GRPC_MESSAGE: &AsciiSet = &CONTROLS.add(b'%');
