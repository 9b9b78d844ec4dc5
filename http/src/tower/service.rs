use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::header::RETRY_AFTER;
use http::{Request, Response};
use tollgate::Limit;
use tower_layer::Layer;
use tower_service::Service;

use super::admission::Admission;
use super::body::Body;
use super::layer::TollgateLayer;
use super::respond::Respond;
use super::rule::AppliedRule;
use crate::fields::keep_from_caches;
use crate::{Facts, NotServed};

/// A service behind a [`TollgateLayer`]. [`Respond`] makes the response of a request that is not served.
#[derive(Clone, Debug)]
pub struct TollgateService<S, R> {
    inner: S,
    layer: Arc<TollgateLayer<R>>,
}

impl<S, R: Clone> Layer<S> for TollgateLayer<R> {
    type Service = TollgateService<S, R>;

    fn layer(&self, inner: S) -> Self::Service {
        TollgateService { inner, layer: Arc::new(self.clone()) }
    }
}

impl<S, R, Req, Res> Service<Request<Req>> for TollgateService<S, R>
where
    S: Service<Request<Req>, Response = Response<Res>> + Clone + Send + 'static,
    S::Future: Send,
    R: Respond<Res> + Send + Sync + 'static,
    Req: Send + 'static,
    Res: Send,
{
    type Response = Response<Body<Res>>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body<Res>>, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Req>) -> Self::Future {
        // The service that was polled is ready, but its clone may not be.
        let clone = self.inner.clone();
        let mut inner = mem::replace(&mut self.inner, clone);
        let layer = self.layer.clone();
        let (parts, body) = request.into_parts();
        let rules = layer.applied_rules(&parts);
        let request = Request::from_parts(parts, body);
        Box::pin(async move {
            let rules = match rules {
                Ok(rules) if rules.is_empty() => {
                    return Ok(inner.call(request).await?.map(|body| Body::new(body, None)));
                }
                Ok(rules) => rules,
                Err(reason) => return Ok(not_served(&layer, &reason, &[])),
            };
            let in_force = |rule: &AppliedRule| layer.gate.in_force(rule.asked.limit(), &rule.key);
            let limits: Vec<_> = rules.iter().filter_map(in_force).collect();
            let admission = match Admission::new(&layer.gate, rules).await {
                Ok(admission) => admission,
                Err(reason) => return Ok(not_served(&layer, &reason, &limits)),
            };
            let (parts, body) = inner.call(request).await?.into_parts();
            let (grant, lease) = admission.settle(&parts).await;
            let mut response = Response::from_parts(parts, Body::new(body, Some(lease)));
            layer.fields.write(Facts::from(&grant).announcing(&limits), response.headers_mut());
            Ok(response)
        })
    }
}

fn not_served<B, R: Respond<B>>(layer: &TollgateLayer<R>, reason: &NotServed, limits: &[Limit]) -> Response<Body<B>> {
    match reason {
        // This is an error of the service, which its operator must repair.
        NotServed::NoKey(missing) => tracing::error!("{missing}"),
        NotServed::Repeated(field) => tracing::warn!("{field}; no rule has another key ({ANOTHER_KEY})"),
        other => tracing::debug!(status = other.status().as_u16(), "{other}"),
    }
    let mut response = layer.respond.respond(reason);
    keep_from_caches(response.headers_mut());
    if !response.headers().contains_key(RETRY_AFTER) {
        reason.write(layer.fields, reason.facts().announcing(limits), response.headers_mut());
    }
    response.map(|body| Body::new(body, None))
}

const ANOTHER_KEY: &str = "add `.or(ClientAddress::peer())`, or turn such requests away in front of the layer";
