use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use chrono::{DateTime, Utc};
use http::header::RETRY_AFTER;
use http::{Request, Response};
use tower_service::Service;

use super::admission::{Admission, admit, limits};
use super::layer::Settings;
use super::refuse::Refuse;
use crate::http::{Facts, Fields, Rejection};
use crate::limit::Limit;
use crate::standing::Standing;

/// A service behind a [`TollgateLayer`](super::TollgateLayer).
///
/// Any request body will do; the response's is made by [`Refuse`], which asks of it to come from a `String`, or, for
/// [`Grpc`](super::Grpc), to have a default.
#[derive(Clone, Debug)]
pub struct Tollgate<S, R> {
    inner: S,
    settings: Arc<Settings>,
    refuse: R,
}

impl<S, R> Tollgate<S, R> {
    pub(super) fn new(inner: S, settings: Arc<Settings>, refuse: R) -> Self {
        Self { inner, settings, refuse }
    }
}

impl<S, R, Req, Res> Service<Request<Req>> for Tollgate<S, R>
where
    S: Service<Request<Req>, Response = Response<Res>> + Clone + Send + 'static,
    S::Future: Send,
    R: Refuse<Res> + Clone + Send + 'static,
    Req: Send + 'static,
    Res: Send,
{
    type Response = Response<Res>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Res>, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Req>) -> Self::Future {
        // The one that was polled is ready, its clone may not be.
        let clone = self.inner.clone();
        let mut inner = mem::replace(&mut self.inner, clone);
        let (parts, body) = request.into_parts();
        let askings = self.settings.askings(&parts);
        let request = Request::from_parts(parts, body);
        let (settings, refuse) = (self.settings.clone(), self.refuse.clone());
        Box::pin(async move {
            let askings = match askings {
                Ok(askings) if askings.is_empty() => return inner.call(request).await,
                Ok(askings) => askings,
                Err(rejection) => return Ok(refused(&refuse, &rejection, settings.fields, &[])),
            };
            let limits = limits(&askings);
            let Admission { mut standings, settlement } = match admit(&settings.gate, askings).await {
                Ok(admission) => admission,
                Err(rejection) => return Ok(refused(&refuse, &rejection, settings.fields, &limits)),
            };
            let (parts, body) = inner.call(request).await?.into_parts();
            if let Err(error) = settlement.settle(&parts, &mut standings).await {
                return Ok(refused(&refuse, &error.into(), settings.fields, &limits));
            }
            let mut response = Response::from_parts(parts, body);
            settings.fields.write(facts(&standings, &limits), response.headers_mut());
            Ok(response)
        })
    }
}

fn refused<B, R: Refuse<B>>(refuse: &R, rejection: &Rejection, fields: Fields, limits: &[Limit]) -> Response<B> {
    match rejection {
        // The remedy is for whoever runs the service.
        Rejection::NoKey(missing) => tracing::error!("{missing}"),
        other => tracing::debug!(status = other.status().as_u16(), "{other}"),
    }
    let mut response = refuse.refuse(rejection);
    if !response.headers().contains_key(RETRY_AFTER) {
        rejection.write(fields, rejection.facts().announcing(limits), response.headers_mut());
    }
    response
}

fn facts<'f>(standings: &'f [(DateTime<Utc>, Standing)], limits: &'f [Limit]) -> Facts<'f> {
    let facts = Facts::default().announcing(limits);
    standings.iter().fold(facts, |facts, (decided_at, standing)| facts.standing(*decided_at, standing))
}
