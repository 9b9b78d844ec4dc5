use axum::body::Body;
use axum::response::{IntoResponse, Response};

use super::fields::Fields;
use super::rejection::{NoKey, Rejection};
use crate::decision::Denied;
use crate::error::Error;

impl IntoResponse for Rejection {
    fn into_response(self) -> Response {
        self.response::<Body>(Fields::default())
    }
}

/// 429 with `Retry-After`, the draft's header fields and a problem document.
impl IntoResponse for Denied {
    fn into_response(self) -> Response {
        Rejection::from(self).into_response()
    }
}

/// 503 with `Retry-After` where the database failed; see [`Rejection`] for the others.
impl IntoResponse for Error {
    fn into_response(self) -> Response {
        Rejection::from(self).into_response()
    }
}

impl IntoResponse for NoKey {
    fn into_response(self) -> Response {
        Rejection::from(self).into_response()
    }
}
