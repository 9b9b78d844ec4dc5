use std::fmt;
use std::sync::Arc;

use http::request::Parts;
use tower_layer::Layer;

use super::refuse::ProblemJson;
use super::rule::{Asking, OnRequest, Rule};
use super::service::Tollgate;
use crate::gate::Gate;
use crate::http::{Fields, Rejection};

/// Asks limits of a gate for each request; see the [module](super).
///
/// # Example
///
/// ```
/// use tollgate::http::{Fields, Format};
/// use tollgate::tower::TollgateLayer;
/// use tollgate::{Gate, Limit, MINUTE};
///
/// const PER_ADDRESS: Limit = Limit::token_bucket("per_address", 300, MINUTE);
///
/// fn layer(gate: Gate) -> TollgateLayer {
///     TollgateLayer::new(gate).limit(PER_ADDRESS).fields(Fields::new(Format::XRateLimit))
/// }
/// # let _ = layer;
/// ```
#[derive(Clone, Debug)]
#[must_use = "a layer limits nothing until a service is wrapped in it"]
pub struct TollgateLayer<R = ProblemJson> {
    settings: Settings,
    refuse: R,
}

impl TollgateLayer {
    /// A layer without limits, which lets all requests through.
    pub fn new(gate: Gate) -> Self {
        let (fields, missing_key) = (Fields::default(), MissingKey::Reject);
        Self { settings: Settings { gate, rules: Vec::new(), skip: None, fields, missing_key }, refuse: ProblemJson }
    }
}

impl<R> TollgateLayer<R> {
    /// Adds a limit: a [`Rule`], or a [`Limit`](crate::Limit) by the peer's address. All are asked together, all or nothing.
    pub fn limit(mut self, rule: impl Into<Rule>) -> Self {
        self.settings.rules.push(rule.into());
        self
    }

    /// Serves requests of this kind without asking, and without fields.
    pub fn skip(mut self, skipped: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.settings.skip = Some(Arc::new(skipped));
        self
    }

    /// Which header fields responses get.
    pub fn fields(mut self, fields: Fields) -> Self {
        self.settings.fields = fields;
        self
    }

    /// What happens to a request that has no key for a limit.
    pub fn missing_key(mut self, then: MissingKey) -> Self {
        self.settings.missing_key = then;
        self
    }

    /// Answers refused requests in another way than by a problem document: [`Grpc`](super::Grpc) for tonic, or a closure
    /// `Fn(&Rejection) -> Response<B>`.
    ///
    /// The layer adds the header fields, unless the response has a `Retry-After` already.
    pub fn refuse_with<T>(self, refuse: T) -> TollgateLayer<T> {
        TollgateLayer { settings: self.settings, refuse }
    }
}

impl<S, R: Clone> Layer<S> for TollgateLayer<R> {
    type Service = Tollgate<S, R>;

    fn layer(&self, inner: S) -> Self::Service {
        Tollgate::new(inner, Arc::new(self.settings.clone()), self.refuse.clone())
    }
}

/// What happens to a request that has no key for a limit. It never shares a bucket with others by accident.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum MissingKey {
    /// A response of 500 names the remedy, for it is the service that does not know whom it serves.
    #[default]
    Reject,
    /// The limit does not apply to it; others do.
    Pass,
    /// All such requests share one bucket, `nobody|`.
    Share,
}

/// What a layer does, for all services that it wraps.
#[derive(Clone)]
pub(super) struct Settings {
    pub(super) gate: Gate,
    rules: Vec<Rule>,
    skip: Option<OnRequest>,
    pub(super) fields: Fields,
    missing_key: MissingKey,
}

impl Settings {
    /// What a request asks of the limits; nothing where it is skipped.
    pub(super) fn askings(&self, request: &Parts) -> Result<Vec<Asking>, Rejection> {
        if self.skip.as_ref().is_some_and(|skipped| skipped(request)) {
            return Ok(Vec::new());
        }
        self.rules.iter().filter_map(|rule| rule.asking(request, self.missing_key).transpose()).collect()
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { gate, rules, skip: _, fields, missing_key } = self;
        f.debug_struct("Settings")
            .field("gate", gate)
            .field("rules", rules)
            .field("fields", fields)
            .field("missing_key", missing_key)
            .finish_non_exhaustive()
    }
}
